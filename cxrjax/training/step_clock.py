"""Measures where the time of a training step goes, as the device sees it.

Steps are dispatched before the metrics of earlier ones are read, so that the time that the loop
spends on a step is not the step's. What counts is the device's: it takes the steps in order, and
the time from the end of one to the end of the next falls into three parts without remainder.

- **device**: from the moment at which the step can begin, dispatched and the one before it done,
  to its end. Computing, sums over devices, and the transfer of its batch where that lasts longer
  than the step before.
- **data wait**: what of the time before that moment the loop spent on waiting for the batch. The
  device had nothing to do, because the input pipeline had nothing ready. While an earlier step is
  still being computed, waiting for a batch costs nothing, and is not counted.
- **host**: the rest of the time before that moment: batches put on devices, lines written.

On a CPU, input pipeline, loop and device share the cores: there `device` is longer than the step
would take alone.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax


class StepTimes(NamedTuple):
    """Seconds of a step's time, as the module defines them."""

    device: float = 0.0
    data_wait: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """From the end of the step before to the end of this one."""
        return self.device + self.data_wait + self.host

    def plus(self, other: "StepTimes") -> "StepTimes":
        return StepTimes(*(a + b for a, b in zip(self, other, strict=True)))


class RunningStep(NamedTuple):
    """A step on its way.

    Attributes:
        wait: when the loop began to wait for its batch, and when it had it.
        dispatched: when it was.
        finished: when its results were there.
    """

    wait: tuple[float, float]
    dispatched: float
    finished: Future[float]


class StepClock:
    """Stamps steps; nothing waits for it. Close it at the end of the run.

    Args:
        now: the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # One thread, which sleeps until the device is done: steps end in the order of dispatch.
        self._watcher = ThreadPoolExecutor(1, "step-clock")
        self._wait = (now(), now())
        self._dispatched = now()
        self._last_end = now()

    def restart(self) -> None:
        """What was done since the last step's end (an evaluation, say) belongs to no step."""
        self._last_end = self._now()

    @contextlib.contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Around the request for a batch."""
        begun = self._now()
        yield
        self._wait = (begun, self._now())

    def dispatching(self) -> None:
        """Right before the call that dispatches the step."""
        self._dispatched = self._now()

    def watch(self, result: Any) -> RunningStep:
        """Right after that call.

        Args:
            result: of the step; not donated to a later one.
        """
        finished = self._watcher.submit(self._end_of, result)
        return RunningStep(self._wait, self._dispatched, finished)

    def times(self, step: RunningStep) -> StepTimes:
        """Waits for the end of a step. To be asked of every step once, in their order."""
        end, begun = step.finished.result(), max(step.dispatched, self._last_end)
        wait_begun, wait_ended = step.wait
        wait = max(0.0, min(wait_ended, begun) - max(wait_begun, self._last_end))
        found = StepTimes(end - begun, wait, begun - self._last_end - wait)
        self._last_end = end
        return found

    def close(self) -> None:
        """Steps on their way are not waited for: after an error they may never end."""
        self._watcher.shutdown(wait=False)

    def _end_of(self, result: Any) -> float:
        jax.block_until_ready(result)
        return self._now()
