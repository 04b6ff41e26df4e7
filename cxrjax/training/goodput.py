"""Goodput: the parts of a run's wall-clock time, from its first start on and over all restarts.

The parts add up to the time since the first start, as the first process sees it:

- `training`, `data_wait`, `host`: the steps' own, as progress.py defines them; where the input of
  another process is late, this one waits in the step;
- `compiling`: steps of new shapes;
- `evaluation`, and `saving`: what checkpoints keep the loop waiting, and the end of the last one;
- `starting`: imports, reading of data, restoring;
- `lost`: work after the checkpoint from which a later process resumed; `down`: no process at all;
- `other`: the rest, such as a profile being written, or steps that an error cut off.
"""

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.files import read_json_object
from cxrjax.training.observers import FinishedStep, LogLine, Observer
from cxrjax.training.watchdog import DIRECTORY, EVALUATING, SAVING
from cxrjax.training.workdir import write_json

PARTS = (
    *("training", "data_wait", "host", "compiling", "evaluation", "saving", "starting"),
    *("lost", "down", "other"),
)
_PHASES = {EVALUATING: "evaluation", SAVING: "saving"}
# Imports and the reading of data belong to the first run of a process.
_loaded = [time.time()]


class Goodput(Observer):
    """Adds up where the time went, for run.json, the logged figures and the last line.

    Args:
        run_file: run.json, which is there when the run starts.
        first: step of the checkpoint that the run resumes from, or 0.
        now: seconds since 1970, since processes on several machines share it.
    """

    def __init__(
        self, run_file: Path, first: int, log_line: LogLine, now: Callable[[], float] = time.time
    ) -> None:
        self._file, self._step, self._log_line, self._now = run_file, first, log_line, now
        self._begun = self._since = _loaded.pop() if _loaded else now()
        self._alive = 0.0  # when the process before was last heard of
        with contextlib.suppress(OSError):
            self._alive = (run_file.parent / DIRECTORY / "0.json").stat().st_mtime
        self._doing, self._of_steps = "starting", 0.0
        self._about: dict[str, Any] = {}
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @property
    def share(self) -> float:
        """Share of training in the whole time."""
        return self.seconds["training"] / (sum(self.seconds.values()) or 1.0)

    def on_start(self, saved: Mapping[str, Any]) -> None:
        self._about = read_json_object(self._file)
        # The file is later than the checkpoint, where it is of the same one.
        for earlier in (self._about.get("goodput"), saved.get("goodput")):
            if isinstance(earlier, dict) and earlier.get("step") == self._step:
                self._resume(earlier)
                break
        self._write()

    def _resume(self, earlier: Mapping[str, Any]) -> None:
        found, until = earlier.get("seconds"), _number(earlier.get("until"))
        if isinstance(found, dict):
            for part in PARTS:
                self.seconds[part] += _number(found.get(part))
        ended = min(max(self._alive, until), self._begun)
        self.seconds["lost"] += max(0.0, ended - until)
        self.seconds["down"] += max(0.0, self._begun - max(ended, until))

    def on_phase(self, step: int, doing: str) -> None:
        if doing in _PHASES:
            self._switch(_PHASES[doing])
            self._step = step if doing == SAVING else self._step

    def on_restart_of_clock(self) -> None:
        self._switch("steps")

    def on_step(self, done: FinishedStep) -> None:
        times = done.times
        self.seconds["compiling" if done.compiled else "training"] += times.device
        self.seconds["compiling" if done.compiled else "host"] += times.host
        self.seconds["data_wait"] += times.data_wait
        self._of_steps += times.total

    def on_log(self, done: FinishedStep, figures: dict[str, float]) -> None:
        figures |= {f"goodput/{part}_seconds": self.seconds[part] for part in PARTS}

    def state(self) -> Mapping[str, Any]:
        self._switch("saving")
        self._write()
        return {"goodput": self._json()}

    def finish(self) -> None:
        """The run and its last checkpoint have ended."""
        self._switch("other")
        self._write()
        spent = ", ".join(f"{part} {self.seconds[part]:,.0f} s" for part in PARTS)
        self._log_line(f"goodput {self.share:.0%} since the first start: {spent}")

    def _switch(self, doing: str) -> None:
        now = self._now()
        spent = now - self._since
        if self._doing == "steps":
            spent, self._of_steps = max(0.0, spent - self._of_steps), 0.0
        self.seconds["other" if self._doing == "steps" else self._doing] += spent
        self._doing, self._since = doing, now

    def _json(self) -> dict[str, Any]:
        seconds = {part: round(spent, 3) for part, spent in self.seconds.items()}
        share = round(self.share, 4)
        return {"share": share, "seconds": seconds, "step": self._step, "until": self._since}

    def _write(self) -> None:
        if self._about:
            with contextlib.suppress(UserError):  # the checkpoint says what is wrong with the disk
                write_json(self._file, {**self._about, "goodput": self._json()})


def _number(value: Any) -> float:
    """A number of seconds in a file that anyone may have changed; 0 for anything else."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
