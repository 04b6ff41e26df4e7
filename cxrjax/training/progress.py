"""The step line: rates, where the time went, and the time left."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cxrjax.input_pipeline.batch import Batch
from cxrjax.training.box_loss import NEAR
from cxrjax.training.step_clock import StepTimes


class Load(NamedTuple):
    """What there is in a batch of this host; padding and empty slots are not counted.

    Attributes:
        images: that have a question.
        questions: examples: a record is one question.
        tokens: of text, prompts and answers.
        answer_tokens: of answers, the ones with a loss.
    """

    images: int = 0
    questions: int = 0
    tokens: int = 0
    answer_tokens: int = 0

    def plus(self, other: "Load") -> "Load":
        return Load(*(a + b for a, b in zip(self, other, strict=True)))


def load_of(batch: Batch) -> Load:
    """Counts a batch that is on the host."""
    present = np.asarray(batch.question_index) >= 0
    answer_tokens = int(np.sum(batch.answer_mask))
    return Load(
        images=int(np.sum(present.any(axis=-1))),
        questions=int(np.sum(present)),
        tokens=int(np.sum(batch.prefix_mask)) + answer_tokens,
        answer_tokens=answer_tokens,
    )


class Progress:
    """Adds up what steps did and how long they took, and turns it into rates.

    Time spent on compiling, evaluating and saving belongs to no step (`StepClock.restart`); the
    time left counts training steps alone.

    Args:
        total_steps: of the run.
        peak_flops: operations per second of all devices together; None: unknown, and no MFU.
    """

    def __init__(self, total_steps: int, peak_flops: float | None = None) -> None:
        self._total = total_steps
        self._peak = peak_flops
        self.restart()

    def restart(self) -> None:
        """Begins a new window."""
        self._steps, self._flops = 0, 0.0
        self._load, self._times = Load(), StepTimes()

    def count(self, load: Load, times: StepTimes, flops: float | None = None) -> None:
        """One step more, and the operations it needed where they are known."""
        self._steps += 1
        self._load = self._load.plus(load)
        self._times = self._times.plus(times)
        self._flops += flops or 0.0

    def rates(self, step: int) -> dict[str, float]:
        """Rates since the last call or restart; empty where nothing was counted since.

        `step_seconds` is the mean from the end of a step to the end of the next; `device_seconds`,
        `data_wait_seconds` and `host_seconds` are its parts (step_clock.py). `mfu`: operations by
        formula over what the devices could have done in `step_seconds`; absent where unknown.
        """
        seconds, steps = self._times.total, self._steps
        if steps == 0 or seconds <= 0:
            return {}
        rates = {
            "images_per_second": self._load.images / seconds,
            "questions_per_second": self._load.questions / seconds,
            "tokens_per_second": self._load.tokens / seconds,
            "step_seconds": seconds / steps,
            "device_seconds": self._times.device / steps,
            "data_wait_seconds": self._times.data_wait / steps,
            "host_seconds": self._times.host / steps,
            "seconds_left": (self._total - step) * seconds / steps,
        }
        if self._peak and self._flops:
            rates["mfu"] = self._flops / seconds / self._peak
        self.restart()
        return rates

    def line(self, step: int, values: Mapping[str, float], rates: Mapping[str, float]) -> str:
        """One line for people."""
        parts = [
            f"step {step:,}/{self._total:,}",
            f"loss {values['loss']:.4f}",
            f"tokens {values['ce']:.4f}",
            f"boxes {values['box_loss']:.4f}",
            f"token accuracy {values['token_accuracy']:.3f}",
        ]
        if "box_iou" in values:
            near = [value for name, value in values.items() if name.startswith(_NEAR)]
            parts += [
                f"box IoU {values['box_iou']:.3f}",
                f"swapped {values['coordinates/swapped']:.1%}",
                f"within {NEAR} {sum(near) / len(near):.3f}",
            ]
        if rates:
            parts += [
                f"{rates['questions_per_second']:,.1f} questions/s",
                f"{rates['tokens_per_second']:,.0f} tokens/s",
                f"{rates['step_seconds']:.3g} s a step",
                f"data wait {rates['data_wait_seconds'] / rates['step_seconds']:.0%}",
                f"host {rates['host_seconds'] / rates['step_seconds']:.0%}",
                *([f"MFU {rates['mfu']:.1%}"] if "mfu" in rates else []),
                *(f"{name} {rates[key]:.1f} GB" for key, name in _MEMORY.items() if key in rates),
                f"{clock(rates['seconds_left'])} left",
            ]
        return "  ".join(parts)


# Of each coordinate, the probability near the target (box_loss.py).
_NEAR = f"coordinates/mass_within_{NEAR}/"
# Names in a run's figures (utilization.py) -> on the step line.
_MEMORY = {"hbm_peak_gb": "HBM", "host_peak_memory_gb": "memory"}


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
