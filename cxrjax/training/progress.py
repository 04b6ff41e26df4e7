"""The step line: rates and the time left."""

import time
from collections.abc import Mapping


class Progress:
    """Counts steps, questions and tokens, and turns them into rates.

    Time spent on compiling, evaluating and saving is left out of the rates by `restart`; the time
    left counts training steps alone.

    Args:
        total_steps: of the run.
    """

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self.restart()

    def restart(self) -> None:
        """Begins a new window."""
        self._start = time.monotonic()
        self._steps = self._questions = self._tokens = 0

    def count(self, questions: int, tokens: int) -> None:
        """One step more, with this many questions and text tokens."""
        self._steps += 1
        self._questions += questions
        self._tokens += tokens

    def rates(self, step: int) -> dict[str, float]:
        """Rates since the last call or restart; empty where nothing was counted since."""
        seconds, steps = time.monotonic() - self._start, self._steps
        if steps == 0 or seconds <= 0:
            return {}
        rates = {
            "questions_per_second": self._questions / seconds,
            "tokens_per_second": self._tokens / seconds,
            "seconds_left": (self._total - step) * seconds / steps,
        }
        self.restart()
        return rates

    def line(self, step: int, values: Mapping[str, float], rates: Mapping[str, float]) -> str:
        """One line for people."""
        parts = [
            f"step {step:,}/{self._total:,}",
            f"loss {values['loss']:.4f}",
            f"tokens {values['ce']:.4f}",
            f"boxes {values['giou_loss']:.4f}",
            f"token accuracy {values['token_accuracy']:.3f}",
            f"box IoU {values['box_iou']:.3f}",
        ]
        if rates:
            parts += [
                f"{rates['questions_per_second']:,.1f} questions/s",
                f"{rates['tokens_per_second']:,.0f} tokens/s",
                f"{clock(rates['seconds_left'])} left",
            ]
        return "  ".join(parts)


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
