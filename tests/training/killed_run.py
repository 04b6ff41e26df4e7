"""A run for a test to kill: `python killed_run.py WORKDIR STEPS PAUSE [--slow_to_compile]`."""

import importlib.util
import sys
from pathlib import Path

import jax.numpy as jnp

from cxrjax import cli
from cxrjax.training import loop
from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config
from cxrjax.training.preemption import Preemption

_conftest = importlib.util.spec_from_file_location(
    "training_conftest", Path(__file__).with_name("conftest.py")
)
assert _conftest is not None and _conftest.loader is not None
fakes = importlib.util.module_from_spec(_conftest)
_conftest.loader.exec_module(fakes)


class SlowToCompile(fakes.TinyModel):
    """A long chain of small products keeps XLA at work for seconds."""

    def __call__(self, *arguments, **options):
        x = super().__call__(*arguments, **options)
        for _ in range(300):
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
    with Preemption() as preemption:
        loop.train(
            typed_config(config),
            workdir,
            loop.Start(model, {"kind": "random", "seed": 0, "sha256": "abc"}),
            loop.TrainingData(fakes.BatchStream(pause=pause), steps),
            preemption=preemption,
        )


cli.run(main)
