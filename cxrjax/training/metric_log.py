"""Writes a run's figures to `metrics.jsonl`, event files and trackers, as CLU's writers do."""

import contextlib
import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat

import jax
import numpy as np
from clu import metrics

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.paths import truncate
from cxrjax.training.event_writer import EventWriter, FigureWriter, metric_writers
from cxrjax.training.step import StepMetrics
from cxrjax.training.tracking import open_tracker
from cxrjax.training.workdir import storage_errors
from cxrjax.untrusted.foreign_files import raw_lines
from cxrjax.untrusted.json_text import parse_object

FILE_NAME = "metrics.jsonl"


class RunWriter(metric_writers.MultiWriter):
    """Writes what is known of a model to all places at once.

    Undefined scalars (None, NaN, infinite) are null in `metrics.jsonl` and absent elsewhere. Event
    files are written in a thread, whose errors are raised by a later call.

    Args:
        directory: receives the files.
        start_step: the step that a run resumes from: later lines of `metrics.jsonl` are removed, so
            that no step is written twice. None: event files only, of a model whose run has ended.
        track: one of `tracking.TRACKERS` that receives the figures of the event files.

    Raises:
        UserError: the files cannot be written, or `metrics.jsonl` is not a metrics file.
    """

    def __init__(
        self, directory: Path, start_step: int | None = None, track: str | None = None
    ) -> None:
        path = directory / FILE_NAME
        self._storage = functools.partial(
            storage_errors, str(directory if start_step is None else path)
        )
        with self._storage():
            trackers = [] if track is None else [open_tracker(track, directory)]
            lines = [] if start_step is None else [MetricsFile(path, start_step)]
            files = _EventFiles([EventWriter(str(directory)), *trackers])
        events = metric_writers.AsyncWriter(files)
        super().__init__([*lines, metric_writers.LoggingWriter(), events])

    def write_scalars(self, step: int, scalars: Mapping[str, SupportsFloat | None]) -> None:
        values = {name: math.nan if x is None else float(x) for name, x in scalars.items()}
        with self._storage():
            super().write_scalars(step, values)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Writes images, uint8 [H, W, 3] or [n, H, W, 3], to the event files."""
        with self._storage():
            super().write_images(step, images)

    def flush(self) -> None:
        with self._storage():
            super().flush()

    def close(self) -> None:
        with self._storage():
            super().close()


class MetricsFile(FigureWriter):
    """Scalars by step in JSON Lines, one object a line and every step once.

    Scalars of a step may come in several calls; its line is written when a later step starts, or by
    `flush`. Those that are not finite are null.

    Args:
        path: the file; lines after `start_step` are removed.
    """

    def __init__(self, path: Path, start_step: int = 0) -> None:
        _cut_after(path, start_step)
        self._path = path
        self._file = path.open("a", encoding="utf-8")
        self._step = start_step
        self._values: dict[str, float | None] = {}

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        if step < self._step:
            raise ValueError(f"{self._path}: step {step} after step {self._step}")
        if step > self._step:
            self._write_line()
        elif not self._values:
            self._values = self._take_back()
        self._step = step
        self._values |= {n: x if math.isfinite(x) else None for n, x in scalars.items()}

    def flush(self) -> None:
        self._write_line()
        self._file.flush()

    def close(self) -> None:
        with contextlib.closing(self._file):
            self.flush()

    def _write_line(self) -> None:
        if self._values:
            line = json.dumps({"step": self._step, **self._values}, allow_nan=False)
            self._file.write(line + "\n")
            self._values = {}

    def _take_back(self) -> dict[str, Any]:
        """Removes the line of the present step, if it is written; returns its values."""
        self._file.flush()
        start, last = 0, b"{}"
        with reading(self._path):
            for _, line in raw_lines(self._path):
                start, last = start + len(line), line
            values = parse_object(last)
        if values.pop("step", None) != self._step:
            return {}
        self._file.truncate(start - len(last))
        return values


class _EventFiles(metric_writers.MultiWriter):
    """Event files and trackers, which take finite scalars and stacks of images."""

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        if defined := {name: x for name, x in scalars.items() if math.isfinite(x)}:
            super().write_scalars(step, defined)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        super().write_images(step, {n: x if x.ndim == 4 else x[None] for n, x in images.items()})


def step_figures(found: StepMetrics) -> dict[str, float]:
    """Figures of a step by name: sums divided by counts; NaN where a count is 0."""
    # Divided on the host: on the device it would queue behind the steps dispatched since.
    sums = jax.device_get(found).sums()
    averages = {name: metrics.Average(*sum_and_count) for name, sum_and_count in sums.items()}
    with np.errstate(invalid="ignore"):
        return {name: float(average.compute()) for name, average in averages.items()}


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
    truncate(path, keep)
