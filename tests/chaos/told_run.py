"""A small run that says what it is at: `python told_run.py train ...`, as small_run.py."""

import importlib.util
from pathlib import Path

from cxrjax import cli, train
from cxrjax.training.watchdog import Watchdog

_small = importlib.util.spec_from_file_location(
    "small_run", Path(__file__).parents[1] / "distributed" / "small_run.py"
)
_small.loader.exec_module(importlib.util.module_from_spec(_small))
_on_phase = Watchdog.on_phase


def _tell(self, step, doing):
    print(f"step {step} is {doing}", flush=True)
    _on_phase(self, step, doing)


Watchdog.on_phase = _tell

if __name__ == "__main__":
    cli.run(train.main)
