"""Says so when the input pipeline is what limits a run's speed."""

import collections
import os

from cxrjax.training.config import ExperimentConfig
from cxrjax.training.step_clock import StepTimes

# Shorter waits are what a full batch of large images, or a slow moment of a disk, makes.
STEPS = 50
# Of the time of the last steps, spent on waiting for data, above which there is something to say.
SHARE = 0.1


class InputLimit:
    """Watches how long devices wait for data.

    Args:
        config: a whole configuration; its settings are named in the remedy.
        steps: that must have been seen, the last ones.
    """

    def __init__(self, config: ExperimentConfig, steps: int = STEPS) -> None:
        self._config = config
        self._times: collections.deque[StepTimes] = collections.deque(maxlen=steps)
        self._told = False

    def check(self, times: StepTimes) -> str | None:
        """Takes a step's times; one line, once in a run, where the input pipeline is the limit."""
        self._times.append(times)
        if self._told or len(self._times) < (self._times.maxlen or 0):
            return None
        waited = sum(times.data_wait for times in self._times)
        total = sum(times.total for times in self._times)
        if waited <= SHARE * total:
            return None
        self._told = True
        steps = len(self._times)
        return (
            "the input pipeline is the limit: devices waited for data for "
            f"{waited / steps:.3f} of {total / steps:.3f} s a step ({waited / total:.0%}) over the "
            f"last {steps} steps; {self._remedy()}"
        )

    def _remedy(self) -> str:
        workers, cores = self._config.data.workers, os.cpu_count() or 1
        advice = (
            f"raise data.workers (now {workers}, this machine has {cores} cores)"
            if workers < cores
            else f"data.workers is {workers} of {cores} cores, so decode less"
        )
        if self._config.data.image_cache is None:
            advice += "; data.image_cache decodes no image twice"
        if self._config.data.feature_cache is None:
            advice += "; with a frozen vision tower, data.feature_cache reads no image twice"
        return advice
