"""A small run that says what it is at: `python told_run.py train ...`, as small_run.py."""

import importlib.util
import os
import time
from pathlib import Path

if "CLOCK_OFF_BY" in os.environ:  # a file, of days; before anybody takes a function of `time`
    _days = Path(os.environ["CLOCK_OFF_BY"])
    _now = time.time_ns

    def _shifted():
        return _now() + 86_400_000_000_000 * int(_days.read_text() or 0)

    time.time_ns, time.time = _shifted, lambda: _shifted() / 1e9

from cxrjax import cli
from cxrjax.commands import train
from cxrjax.training.watchdog import Watchdog

_small = importlib.util.spec_from_file_location(
    "small_run", Path(__file__).parents[2] / "tests" / "distributed" / "small_run.py"
)
_small.loader.exec_module(importlib.util.module_from_spec(_small))
_on_phase = Watchdog.on_phase


def _tell(self, step, doing):
    print(f"step {step} is {doing}", flush=True)
    if "CLOCK_OFF_BY" in os.environ:
        print(f"step {step}: the clock is off by {_days.read_text()}", flush=True)
    _on_phase(self, step, doing)


Watchdog.on_phase = _tell

if __name__ == "__main__":
    cli.run(train.main)
