"""A small run for a test to kill: `python killed_run.py WORKDIR STEPS PAUSE`."""

import importlib.util
import sys
from pathlib import Path

from cxrjax.training import loop
from cxrjax.training.config import default_config

_conftest = importlib.util.spec_from_file_location(
    "training_conftest", Path(__file__).with_name("conftest.py")
)
assert _conftest is not None and _conftest.loader is not None
fakes = importlib.util.module_from_spec(_conftest)
_conftest.loader.exec_module(fakes)


def main() -> None:
    workdir, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    config = default_config()
    config.training.batch_images = 8
    config.training.steps = steps
    config.training.log_every = 1
    config.training.checkpoint_every = 2
    config.trainable = (".*",)
    config.lora.dropout = 0.3
    config.optimizer.learning_rate = 0.01
    loop.train(
        config,
        workdir,
        model=fakes.TinyModel(),
        base={"kind": "random", "seed": 0, "sha256": "abc"},
        batches=fakes.BatchStream(pause=pause),
        steps=steps,
    )


main()
