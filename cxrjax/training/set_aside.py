"""Questions that training had to leave out of its batches."""

from collections.abc import Callable, Iterable
from pathlib import Path

from cxrjax import distributed
from cxrjax.datasets.quality import QualityLog
from cxrjax.input_pipeline.batch import Problem
from cxrjax.training.run_info import write_json


class SetAside:
    """Counts and tells each question once, over all processes; none is replaced.

    Args:
        quality: what was set aside before the run.
        file: quality.json, which the first process writes.
        log_line: where each is told.
    """

    def __init__(self, quality: QualityLog, file: Path, log_line: Callable[[str], None]) -> None:
        self._quality = quality
        self._file = file
        self._log_line = log_line
        self._indices: set[int] = set()
        self._waiting: list[tuple[int, Problem]] = []

    def __len__(self) -> int:
        return len(self._indices)

    def note(self, step: int, problems: Iterable[Problem]) -> None:
        """Problems of this process's rows; other processes hear of them at the next `share`."""
        # By position: two files of a mixture may use the same id.
        new = [problem for problem in problems if problem.question_index not in self._indices]
        self._waiting += [(step, problem) for problem in new]
        if new and distributed.alone():
            self.share()

    def share(self) -> None:
        """Counts what has come since the last time. Called by all processes at the same step."""
        found = distributed.gather(self._waiting)
        self._waiting = []
        known = len(self._indices)
        # As one process would have met them: step by step, and rows in order within a step.
        for _, fields in sorted((each for part in found for each in part), key=lambda e: e[0]):
            problem = Problem(*fields)
            if problem.question_index not in self._indices:
                self._indices.add(problem.question_index)
                self._quality.set_aside(
                    problem.reason, problem.question_id, "during training", problem.detail
                )
                self._log_line(f"set aside {problem.question_id}: {problem.detail}")
        if len(self._indices) > known and distributed.is_first():
            write_json(self._file, self._quality.to_json())
