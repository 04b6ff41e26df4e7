"""A profile of some steps of a run, for TensorBoard, XProf or Perfetto."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import jax

FOLDER = "profile"


class StepProfiler:
    """Traces the steps of `training.profile_steps`, the first and the last included.

    The caller sees to it that no other step is in flight when it calls `start` and `close`.

    Args:
        workdir: receives `profile/`.
        steps: (first, last), or nothing. A run resumed between the two traces from there on.
    """

    def __init__(self, workdir: Path, steps: Sequence[int]) -> None:
        self.folder = workdir / FOLDER
        self._steps = tuple(steps)
        self._running = False

    def begins(self, step: int) -> bool:
        """Whether to `start` before this step."""
        return bool(self._steps) and not self._running and self._steps[0] <= step <= self._steps[1]

    def ends(self, step: int, last_of_run: bool) -> bool:
        """Whether to `close` after this step."""
        return self._running and (step >= self._steps[1] or last_of_run)

    def start(self) -> None:
        jax.profiler.start_trace(self.folder)
        self._running = True

    def close(self) -> None:
        """Writes the trace; nothing where none is running."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()

    def step(self, number: int) -> AbstractContextManager[object]:
        """Around a step's dispatch: the trace then shows steps by their numbers."""
        return jax.profiler.StepTraceAnnotation("train", step_num=number)
