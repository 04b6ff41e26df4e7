"""Questions that training had to leave out of its batches."""

from collections.abc import Callable, Iterable
from pathlib import Path

from cxrjax.distributed import hosts
from cxrjax.input_pipeline.batch import BatchProblem
from cxrjax.records_io.quality import QualityLog
from cxrjax.training.run_info import write_json

_WHERE = "during training"


class SetAsideQuestions:
    """Counts and tells each question once, over all processes; none is replaced.

    Args:
        quality: what was set aside before the run, and before a resume.
        file: quality.json, which the first process writes.
        log_line: where each is told.
        known: what `state` gave where the run resumes.
    """

    def __init__(
        self,
        quality: QualityLog,
        file: Path,
        log_line: Callable[[str], None],
        known: Iterable[int] = (),
    ) -> None:
        self._quality = quality
        self._file = file
        self._log_line = log_line
        self._indices = set(known)
        self._waiting: list[tuple[int, BatchProblem]] = []

    def __len__(self) -> int:
        return len(self._indices)

    def state(self) -> list[int]:
        """Positions of the questions, for a checkpoint."""
        return sorted(self._indices)

    def note(self, step: int, problems: Iterable[BatchProblem]) -> None:
        """Problems of this process's rows; other processes hear of them at the next `share`."""
        # By position: two files of a mixture may use the same id.
        new = [problem for problem in problems if problem.question_index not in self._indices]
        self._waiting += [(step, problem) for problem in new]
        if new and hosts.alone():
            self.share()

    def share(self) -> None:
        """Counts what has come since the last time. Called by all processes at the same step."""
        found = hosts.gather(self._waiting)
        self._waiting = []
        known = len(self._indices)
        # A run that was killed has told of some that its last checkpoint does not know.
        told = {(entry.item, entry.where, entry.found) for entry in self._quality.entries}
        # As one process would have met them: step by step, and rows in order within a step.
        for _, fields in sorted((each for part in found for each in part), key=lambda e: e[0]):
            problem = BatchProblem(*fields)
            if problem.question_index not in self._indices:
                self._indices.add(problem.question_index)
                if (problem.question_id, _WHERE, problem.detail) in told:
                    continue
                self._quality.set_aside(problem.reason, problem.question_id, _WHERE, problem.detail)
                self._log_line(f"set aside {problem.question_id}: {problem.detail}")
        if len(self._indices) > known and hosts.is_first():
            write_json(self._file, self._quality.to_json())
