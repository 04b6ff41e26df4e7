"""Observers of a run: what looks at its batches, steps and evaluations, and says what it finds.

The loop tells all observers of a list the same things, in the list's order. Of several processes
each has its own list of the same observers, and all are told of the same step at the same point, so
that those methods that say so may gather what single processes know.
"""

import collections
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from cxrjax.distributed import hosts
from cxrjax.errors import UserError, first_line
from cxrjax.input_pipeline.batch import BatchProblem, LoadedBatch
from cxrjax.input_pipeline.data_config import DataConfig
from cxrjax.records_io.quality import QualityLog
from cxrjax.training.coordinate_report import swapped_share
from cxrjax.training.workdir import drop_torn_line, storage_errors, write_json

# Steps that are looked at together, the last ones, before something is said of all of them.
STEPS = 50
LogLine = Callable[[str], None]


class StepTimes(NamedTuple):
    """Seconds of a step's time, in the parts that progress.py defines."""

    device: float = 0.0
    data_wait: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """Time from the end of the step before to the end of this one."""
        return self.device + self.data_wait + self.host


class FinishedStep(NamedTuple):
    """A step whose figures are there."""

    number: int  # from 1 on
    values: Mapping[str, float]  # its figures, the same in all processes
    times: StepTimes  # where its time went
    question_ids: Sequence[str] = ()  # of this process's rows
    compiled: bool = False  # on the way, so that its times say nothing


class Observer:
    """Base of observers: each overrides what it wants to hear."""

    def on_start(self, saved: Mapping[str, Any]) -> None:
        """Before the first step: the states that a checkpoint holds; empty in a new run."""

    def on_phase(self, step: int, doing: str) -> None:
        """The run begins something else, such as reading data."""

    def on_batch(self, step: int, loaded: LoadedBatch) -> None:
        """Before a step is dispatched: this process's rows of its batch."""

    def wants_rest(self, step: int, before: bool) -> bool:
        """Returns whether no step may be in flight before this step, or after it, for `on_rest`."""
        return False

    def on_rest(self, step: int, before: bool) -> None:
        """After a step and with none in flight, where an observer wanted it; 0: at the start."""

    def on_step(self, done: FinishedStep) -> None:
        """Each step in its order, when its figures are there."""

    def on_log(self, done: FinishedStep, figures: dict[str, float]) -> None:
        """A step whose figures are logged; adds some. All processes come here together."""

    def on_restart_of_clock(self) -> None:
        """Time since the last step, as of an evaluation, is no step's."""

    def on_evaluation(self, step: int, figures: Mapping[str, float | None]) -> None:
        """An evaluation has ended."""

    def state(self) -> Mapping[str, Any]:
        """State that `on_start` gets back on a resume; all processes come here together."""
        return {}

    def close(self) -> None:
        """The run ends, or ended in an error."""


class SetAsideQuestions(Observer):
    """Counts and tells each question that batches had to leave out, over all processes.

    Also counts what variation had to spare (`LoadedBatch.unvaried`).

    Args:
        quality: what was set aside before the run, and before a resume.
        file: quality.json, which the first process writes.
        log_line: where each is told, once.
    """

    _WHERE = "during training"

    def __init__(self, quality: QualityLog, file: Path, log_line: LogLine) -> None:
        self._quality = quality
        self._file = file
        self._log_line = log_line
        self._indices: set[int] = set()
        self._waiting: list[tuple[int, BatchProblem]] = []
        self._unvaried: collections.Counter[str] = collections.Counter()
        self._unvaried_here: collections.Counter[str] = collections.Counter()

    def __len__(self) -> int:
        return len(self._indices)

    def on_start(self, saved: Mapping[str, Any]) -> None:
        self._indices = set(saved.get("set_aside", ()))
        self._unvaried = collections.Counter(saved.get("unvaried", {}))

    def on_batch(self, step: int, loaded: LoadedBatch) -> None:
        self._unvaried_here.update(loaded.unvaried)
        self.note(step, loaded.problems)

    def on_log(self, done: FinishedStep, figures: dict[str, float]) -> None:
        self.share()
        figures["set_aside"] = len(self)
        figures.update(self._unvaried)

    def state(self) -> Mapping[str, Any]:
        self.share()
        return {"set_aside": sorted(self._indices), "unvaried": dict(self._unvaried)}

    def note(self, step: int, problems: Iterable[BatchProblem]) -> None:
        """Takes this process's problems; other processes hear of them at the next `share`."""
        # By position: two files of a mixture may use the same id.
        new = [problem for problem in problems if problem.question_index not in self._indices]
        self._waiting += [(step, problem) for problem in new]
        if new and hosts.alone():
            self.share()

    def share(self) -> None:
        """Counts what has come since the last time. Called by all processes at the same step."""
        gathered = hosts.gather((self._waiting, dict(self._unvaried_here)))
        found = [waiting for waiting, _ in gathered]
        for _, counts in gathered:
            self._unvaried.update(counts)
        self._waiting, self._unvaried_here = [], collections.Counter()
        known = len(self._indices)
        # A run that was killed has told of some that its last checkpoint does not know.
        told = {(entry.item, entry.where, entry.found) for entry in self._quality.entries}
        # As one process would have met them: step by step, and rows in order within a step.
        for _, fields in sorted((each for part in found for each in part), key=lambda e: e[0]):
            problem = BatchProblem(*fields)
            if problem.question_index in self._indices:
                continue
            self._indices.add(problem.question_index)
            where, detail = self._WHERE, problem.detail
            if (problem.question_id, where, detail) not in told:
                self._quality.set_aside(problem.reason, problem.question_id, where, detail)
                self._log_line(f"rejected {problem.question_id}: {detail}")
        if len(self._indices) > known and hosts.is_first():
            write_json(self._file, self._quality.to_json())


class NonFiniteSteps(Observer):
    """Writes down steps whose loss or gradients are not finite, and ends a run of too many.

    Args:
        workdir: receives nonfinite.jsonl; a resumed run may meet a step again, and write it again.
        limit: how many in a row are left out (`training.skip_nonfinite`).
        log_line: where each is told.
        last_checkpoint: gives its step.
    """

    # Question ids told on the one line; all of them are in the file.
    _IDS_IN_MESSAGE = 20

    def __init__(
        self,
        workdir: Path,
        limit: int,
        log_line: LogLine,
        last_checkpoint: Callable[[], int | None],
    ) -> None:
        self._path = workdir / "nonfinite.jsonl"
        if hosts.is_first():
            drop_torn_line(self._path)
        self._limit = limit
        self._log_line = log_line
        self._last_checkpoint = last_checkpoint
        self._skipped = self._in_a_row = 0

    def on_start(self, saved: Mapping[str, Any]) -> None:
        self._skipped = saved.get("skipped_steps", 0)

    def state(self) -> Mapping[str, Any]:
        return {"skipped_steps": self._skipped}

    def on_log(self, done: FinishedStep, figures: dict[str, float]) -> None:
        if self._limit:
            figures["skipped_steps"] = self._skipped

    def on_step(self, done: FinishedStep) -> None:
        """Checks a step.

        Raises:
            UserError: one more than may be left out.
        """
        values = done.values
        if math.isfinite(values["loss"]) and math.isfinite(values["grad_norm"]):
            self._in_a_row = 0
            return
        found = [i for part in hosts.gather(list(done.question_ids)) for i in part]
        if hosts.is_first():
            finite = {name: v if math.isfinite(v) else None for name, v in values.items()}
            line = {"step": done.number, "question_ids": found, "values": finite}
            with storage_errors(str(self._path)), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        hosts.wait_for_all(f"{self._path.name} written")
        what = f"step {done.number}: loss {values['loss']}, gradient norm {values['grad_norm']}"
        ids = ", ".join(found[: self._IDS_IN_MESSAGE])
        if len(found) > self._IDS_IN_MESSAGE:
            ids += f" and {len(found) - self._IDS_IN_MESSAGE} more (all in {self._path})"
        if self._in_a_row < self._limit:
            self._in_a_row += 1
            self._skipped += 1
            self._log_line(f"{what}; left out ({self._in_a_row} in a row), with questions: {ids}")
            return
        last = self._last_checkpoint()
        kept = "no checkpoint was made yet" if last is None else f"the last good one is step {last}"
        remedies = "lower optimizer.learning_rate or look at these questions"
        if self._limit:
            what += f", after {self._limit} in a row that were left out"
        else:
            remedies = f"set training.skip_nonfinite, {remedies}"
        raise UserError(f"{what}; stopped ({kept}); {remedies}: {ids}")


class InputLimit(Observer):
    """Logs once in a run that the input pipeline limits its speed.

    Args:
        data: its settings are named in the remedy.
        log_line: of several processes, the first that is too slow calls it.
        steps: number of steps before the first check.
    """

    # Of the time of these steps, spent on waiting for data, above which there is something to say.
    _SHARE = 0.1

    def __init__(self, data: DataConfig, log_line: LogLine, steps: int = STEPS) -> None:
        self._data = data
        self._log_line = log_line
        # Shorter waits are what a full batch of large images, or a slow moment of a disk, makes.
        self._times: collections.deque[StepTimes] = collections.deque(maxlen=steps)
        self._told = False
        self._warning: str | None = None

    def on_step(self, done: FinishedStep) -> None:
        if not done.compiled and (found := self.check(done.times)):
            self._warning = f"warning: step {done.number:,}: {found}"
            if hosts.alone():
                self._share()

    def on_log(self, done: FinishedStep, figures: dict[str, float]) -> None:
        self._share()

    def _share(self) -> None:
        """A slow input pipeline of one process keeps all waiting. Called by all of them."""
        found = hosts.gather(self._warning)
        self._warning = None
        limited = [process for process, warning in enumerate(found) if warning]
        if limited:
            several = f" (processes {', '.join(map(str, limited))})" if len(found) > 1 else ""
            self._log_line(found[limited[0]] + several)

    def check(self, times: StepTimes) -> str | None:
        """Takes a step's times; gives the line where there is something to say."""
        self._times.append(times)
        if self._told or len(self._times) < (self._times.maxlen or 0):
            return None
        waited = sum(times.data_wait for times in self._times)
        total = sum(times.total for times in self._times)
        if waited <= self._SHARE * total:
            return None
        self._told = True
        steps = len(self._times)
        return (
            "the input pipeline is the limit: devices waited for data for "
            f"{waited / steps:.3f} of {total / steps:.3f} s a step ({waited / total:.0%}) over the "
            f"last {steps} steps; {self._remedy()}"
        )

    def _remedy(self) -> str:
        workers, cores = self._data.workers, os.cpu_count() or 1
        advice = (
            f"raise data.workers (now {workers}, this machine has {cores} cores)"
            if workers < cores
            else f"data.workers is {workers} of {cores} cores, so decode less"
        )
        if self._data.image_cache is None:
            advice += "; data.image_cache decodes no image twice"
        if self._data.feature_cache is None:
            advice += "; with a frozen vision tower, data.feature_cache reads no image twice"
        return advice


# Share of expected boxes with swapped corners above which there is something to say.
SWAPPED_LIMIT = 0.01


class SwappedCorners(Observer):
    """Logs once if a run still predicts boxes with swapped corners after its first part.

    Args:
        total_steps: of the run.
        log_line: is called with the message.
        steps: number of steps that a check averages.
    """

    # Of the run, in which boxes may still be anywhere.
    _FIRST_PART = 0.1

    def __init__(self, total_steps: int, log_line: LogLine, steps: int = STEPS) -> None:
        self._from = self._FIRST_PART * total_steps
        self._log_line = log_line
        self._shares: collections.deque[float] = collections.deque(maxlen=steps)
        self._told = False

    def on_step(self, done: FinishedStep) -> None:
        share = done.values.get("coordinates/swapped", math.nan)
        if done.number > self._from and math.isfinite(share):
            self._shares.append(share)
        if self._told or len(self._shares) < (self._shares.maxlen or 0):
            return
        mean = sum(self._shares) / len(self._shares)
        if mean > SWAPPED_LIMIT:
            self._told = True
            line = f"{swapped_line(mean)} of the last {len(self._shares)} steps"
            self._log_line(f"step {done.number:,}: {line}")

    def on_evaluation(self, step: int, figures: Mapping[str, float | None]) -> None:
        share = swapped_share(figures)
        if share is not None and share > SWAPPED_LIMIT:
            self._log_line(f"step {step:,}: validation: {swapped_line(share)}")


def swapped_line(share: float) -> str:
    """The warning about a share above `SWAPPED_LIMIT`."""
    return (
        f"warning: {share:.1%} of expected boxes have swapped corners (`python -m "
        "cxrjax.tools.coordinates` shows where)"
    )


class ExampleLog(Observer):
    """Logs what every step has read, so that runs can be compared example by example.

    `examples/<process>_of_<processes>.jsonl` in the workdir has a line of JSON for each image of
    this process: `step`, `row` of the global batch, the `question_ids` that were asked about it,
    and `sha256` over all arrays of the row. A resumed run adds lines; steps that are read again are
    there again, and must say the same.

    Args:
        rows: of each global batch, those that this process loads.
    """

    def __init__(self, workdir: Path, rows: Sequence[int]) -> None:
        directory = workdir / "examples"
        self._path = directory / f"{jax.process_index()}_of_{jax.process_count()}.jsonl"
        with storage_errors(str(directory)):
            directory.mkdir(exist_ok=True)
        drop_torn_line(self._path)
        self._rows = rows

    def on_batch(self, step: int, loaded: LoadedBatch) -> None:
        """Adds the rows of a batch.

        Raises:
            UserError: they cannot be written (a full disk).
        """
        arrays = [np.asarray(x) for x in jax.tree.leaves(loaded.batch)]
        with storage_errors(str(self._path)), self._path.open("a", encoding="utf-8") as file:
            for local, row in enumerate(self._rows):
                digest = hashlib.sha256()
                for array in arrays:
                    digest.update(array[local].tobytes())
                ids = [i for i in loaded.question_ids[local] if i is not None]
                line = {"step": step, "row": row, "question_ids": ids, "sha256": digest.hexdigest()}
                file.write(json.dumps(line) + "\n")


class StepProfiler(Observer):
    """Traces the steps of `training.profile_steps` for TensorBoard, XProf or Perfetto.

    Args:
        workdir: receives `profile/`.
        steps: (first, last) of the trace.
        start: the step a run goes on from, 0 if it is new: it traces what is left.
        total_steps: of the run.
        log_line: told where the trace is.
    """

    def __init__(
        self, workdir: Path, steps: Sequence[int], start: int, total_steps: int, log_line: LogLine
    ) -> None:
        first, last = steps
        self._folder = workdir / "profile"
        self._first, self._last = max(first, start + 1), min(last, total_steps)
        self._log_line = log_line
        self._traces = False

    def wants_rest(self, step: int, before: bool) -> bool:
        return self._first <= self._last and step == (self._first if before else self._last)

    def on_rest(self, step: int, before: bool) -> None:
        if before:
            self._begin(step)
        elif self._traces:
            self.close()
            self._log_line(f"step {step:,}: profile written to {self._folder}")

    def _begin(self, step: int) -> None:
        try:
            jax.profiler.start_trace(self._folder)
            self._traces = True
        except (OSError, RuntimeError) as error:  # a run is worth more than its profile
            self._log_line(
                f"warning: step {step:,}: no profile: the profiler did not start "
                f"({first_line(error)}); end what else traces this process, and see that "
                f"{self._folder} can be written"
            )

    def close(self) -> None:
        """Writes the trace, of a run that ended within it too."""
        if self._traces:
            jax.profiler.stop_trace()
            self._traces = False
