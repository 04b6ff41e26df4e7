"""Writes a run's figures to `metrics.jsonl` and CLU event files."""

import collections
import contextlib
import json
import math
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, SupportsFloat

import jax
import numpy as np

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.step import StepMetrics
from cxrjax.training.tracking import open_tracker
from cxrjax.training.workdir import storage_errors
from cxrjax.untrusted.foreign_files import raw_lines
from cxrjax.untrusted.json_text import parse_object

FILE_NAME = "metrics.jsonl"


class MetricLog:
    """Named values by step, one JSON object a line and every step once.

    Values of one step may come in several writes; its line is written when a later step begins or
    on `flush`. Undefined values (NaN, None) are null.

    Args:
        workdir: receives `metrics.jsonl` and the event files.
        start_step: the step a run resumes from; later lines are cut off, so that no step is there
            twice. 0 begins anew.
        track: one of `tracking.TRACKERS` that gets what the event files get.

    Raises:
        UserError: the file cannot be written, or is not a metrics file.
    """

    def __init__(self, workdir: Path, start_step: int = 0, track: str | None = None) -> None:
        self._path = workdir / FILE_NAME
        with storage_errors(str(self._path)):
            _cut_after(self._path, start_step)
            self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - open for the run
            self._events = _EventFiles(workdir, track)
        self._step = start_step
        self._values: dict[str, float | None] = {}

    def write(
        self,
        step: int,
        values: Mapping[str, SupportsFloat | None],
        images: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Adds values, and pictures for the event files alone, to a step.

        Args:
            step: not before the last one.
            images: uint8 [H, W, 3], or [n, H, W, 3].
        """
        if step < self._step or (step == self._step and not self._values):
            raise ValueError(f"step {step} was written already")
        clean = {name: _finite(value) for name, value in values.items()}
        with storage_errors(str(self._path)):
            if step > self._step:
                self._write_line()
            self._step = step
            self._values.update(clean)
            self._events.write(step, clean, images or {})

    def write_hparams(self, config: ExperimentConfig) -> None:
        """Writes the resolved configuration to the event files."""
        with storage_errors(str(self._path)):
            self._events.write_hparams(config.to_json())

    def reopen(self) -> None:
        """Takes the line of the step that the run resumes from back, to add values to it."""
        start, last = 0, b"{}"
        with reading(self._path):
            for _, line in raw_lines(self._path):
                start, last = start + len(line), line
            values = parse_object(last)
        if values.pop("step", None) == self._step:
            self._values = values
            os.truncate(self._path, start - len(last))

    def flush(self) -> None:
        """Writes everything to the files; the step is closed."""
        with storage_errors(str(self._path)):
            self._write_line()
            self._file.flush()
            self._events.flush()

    def close(self) -> None:
        with storage_errors(str(self._path)), contextlib.closing(self._file):
            self.flush()
            self._events.close()

    def _write_line(self) -> None:
        if self._values:
            line = json.dumps({"step": self._step, **self._values}, allow_nan=False)
            self._file.write(line + "\n")
            self._values = {}


class NoLog:
    """The log of every process but the first: it writes nothing."""

    def write(self, *_: Any) -> None: ...

    def write_hparams(self, config: ExperimentConfig) -> None: ...

    def reopen(self) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def write_figures(
    directory: Path,
    step: int,
    values: Mapping[str, SupportsFloat | None],
    images: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Writes figures of a model, found after its run, to the event files of a directory.

    Args:
        directory: a workdir, whose `metrics.jsonl` stays the training's, or any other.
        values: undefined ones (NaN, None) are left out.
        images: as in `MetricLog.write`.

    Raises:
        UserError: the files cannot be written.
    """
    with storage_errors(str(directory)):
        events = _EventFiles(directory)
        clean = {name: _finite(value) for name, value in values.items()}
        events.write(step, clean, images or {})
        events.close()


def step_figures(found: StepMetrics) -> dict[str, float]:
    """Figures of a step by name: sums divided by counts; NaN where a count is 0."""
    from clu import metrics  # not at the top: a step runs without it

    # Divided on the host: on the device it would queue behind the steps dispatched since.
    sums = jax.device_get(found).sums()
    averages = {name: metrics.Average(*sum_and_count) for name, sum_and_count in sums.items()}
    with np.errstate(invalid="ignore"):
        return {name: float(average.compute()) for name, average in averages.items()}


def quiet_tensorflow() -> None:
    """Silences TensorFlow, before it is imported.

    It writes event files and computes nothing: what it has to say of its kernels is noise.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


class _EventFiles:
    """Event files, and what else gets their figures, written by a thread of their own.

    Where TensorFlow is installed CLU writes them, else `EventWriter` the same. TensorFlow takes
    seconds to import: that begins with the first figures, beside the steps that follow; what was to
    be written before waits for it.

    Raises:
        UserError: the tracker's library is not installed.
    """

    def __init__(self, workdir: Path, track: str | None = None) -> None:
        quiet_tensorflow()
        self._workdir = workdir
        self._trackers = [] if track is None else [open_tracker(track, workdir)]
        self._writers: list[Any] = []
        self._before: list[tuple[str, tuple[Any, ...]]] = []
        self._pool = ThreadPoolExecutor(1, "event files")
        self._pending: collections.deque[Future[None]] = collections.deque()

    def write_hparams(self, hparams: Mapping[str, Any]) -> None:
        self._before.append(("write_hparams", (hparams,)))

    def write(
        self, step: int, values: Mapping[str, float | None], images: Mapping[str, np.ndarray]
    ) -> None:
        """Writes what is defined of the values, and images uint8 [H, W, 3] or [n, H, W, 3].

        Raises:
            OSError, and what else went wrong in a write before.
        """
        figures = {name: value for name, value in values.items() if value is not None}
        shown = {name: x if x.ndim == 4 else x[None] for name, x in images.items()}
        if figures:
            self._ask("write_scalars", step, figures)
        if shown:
            self._ask("write_images", step, shown)

    def flush(self) -> None:
        """Waits until all that was written is in the files; raises as `write`."""
        if self._pending or self._writers:
            self._ask("flush")
        self._check(wait=True)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._pool.shutdown)
            self._ask("flush")
            self._ask("close")
            self._check(wait=True)

    def _ask(self, method: str, *arguments: Any) -> None:
        self._check(wait=False)
        for earlier in (*self._before, (method, arguments)):
            self._pending.append(self._pool.submit(self._do, *earlier))
        self._before = []

    def _do(self, method: str, arguments: tuple[Any, ...]) -> None:
        if not self._writers:
            self._writers = [_event_writer(str(self._workdir)), *self._trackers]
        for writer in self._writers:
            getattr(writer, method)(*arguments)

    def _check(self, *, wait: bool) -> None:
        """Raises what went wrong in the thread."""
        while self._pending and (wait or self._pending[0].done()):
            self._pending.popleft().result()


def _event_writer(directory: str) -> Any:
    try:
        from clu import metric_writers
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        from cxrjax.training.event_writer import EventWriter

        return EventWriter(directory)
    return metric_writers.SummaryWriter(directory)


def _finite(value: SupportsFloat | None) -> float | None:
    return None if value is None or not math.isfinite(float(value)) else float(value)


def _cut_after(path: Path, step: int) -> None:
    """Keeps the lines up to a step; a torn last line (a killed run) goes as well."""
    if not path.exists():
        return
    keep = 0
    with reading(path, hint="move the file away to go on"):
        for number, line in raw_lines(path):
            if not line.endswith(b"\n"):
                break
            try:
                if parse_object(line)["step"] > step:
                    break
            except (ForeignError, TypeError, KeyError):
                raise UserError(
                    f"{path}:{number}: not a line of metrics; move the file away to go on"
                ) from None
            keep += len(line)
    os.truncate(path, keep)
