"""A run for a test to kill.

python killed_run.py WORKDIR STEPS PAUSE [--slow_to_compile | --rewards]
"""

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import jax.numpy as jnp
from flax import nnx

from cxrjax import cli
from cxrjax.models import VLM
from cxrjax.training import loop
from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config
from cxrjax.training.preemption import Preemption
from cxrjax.training.rollouts import Rollouts


def _module(name: str) -> ModuleType:
    """A file beside this one."""
    spec = importlib.util.spec_from_file_location(f"training_{name}", _HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_HERE = Path(__file__).parent
fakes = _module("conftest")


class SlowToCompile(fakes.TinyModel):
    """A long chain of small products keeps XLA at work for seconds."""

    def __call__(self, *arguments, **options):
        x = super().__call__(*arguments, **options)
        for _ in range(120):
            x = jnp.tanh(x @ jnp.eye(x.shape[-1])[::-1])
        return x


def main() -> None:
    workdir, steps, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    model = SlowToCompile() if "--slow_to_compile" in sys.argv else fakes.TinyModel()
    config = default_config()
    config.training.batch_images = 8
    config.training.steps = steps
    config.training.log_every = 1
    config.training.checkpoint_every = 2
    config.trainable = (".*",)
    config.lora.dropout = 0.3
    config.optimizer.learning_rate = 0.01
    make_rollouts = None
    if "--rewards" in sys.argv:
        model = VLM(fakes.SMALL, rngs=nnx.Rngs(0))  # it draws answers
        config.lora.dropout = 0.0
        config.rl.kind, config.rl.group_size = "grpo", 4
        config.decoding.max_answer_tokens = 6
        make_rollouts = functools.partial(Rollouts, tokenizer=_module("test_rollouts").Letters())
    with Preemption() as preemption:
        loop.train(
            typed_config(config),
            workdir,
            loop.Start(model, {"kind": "random", "seed": 0, "sha256": "abc"}),
            loop.TrainingData(fakes.BatchStream(pause=pause), steps),
            make_rollouts=make_rollouts,
            preemption=preemption,
        )


cli.run(main)
