"""Problems of reinforcement learning, logged while it trains."""

import collections
import math
from collections.abc import Mapping
from typing import Any

from cxrjax.training.observers import STEPS, FinishedStep, LogLine, Observer


class PolicyHealth(Observer):
    """Logs each problem of reinforcement learning once, with a remedy.

    Args:
        log_line: is called with the message.
        steps: number of steps that a check averages.
    """

    # Figure -> from which mean on, and what it means.
    _TOO_MUCH = {
        "rl/dead_groups": (
            0.9,
            "of groups are worth the same throughout and teach nothing: raise rl.group_size or "
            "rl.temperature, or train on harder questions",
        ),
        "rl/truncated": (
            0.2,
            "of answers do not end in their slots: raise decoding.max_answer_tokens",
        ),
        "rl/kl": (
            1.0,
            "nats a token away from the start: raise rl.kl_weight or lower optimizer.learning_rate",
        ),
    }
    # The same, at most.
    _TOO_LITTLE = {
        "rl/coordinate_entropy": (
            0.1,
            "nats of entropy in coordinates, so that all answers are the same: raise "
            "rl.temperature or rl.kl_weight",
        )
    }
    # Spurious boxes an answer, against those of the first steps.
    _MORE_BOXES = 1.5

    def __init__(self, log_line: LogLine, steps: int = STEPS) -> None:
        self._log_line = log_line
        self._last: collections.deque[Mapping[str, float]] = collections.deque(maxlen=steps)
        self._spurious_at_first = math.nan
        self._told: set[str] = set()

    def on_start(self, saved: Mapping[str, Any]) -> None:
        self._spurious_at_first = saved.get("spurious_at_first", math.nan)

    def state(self) -> Mapping[str, Any]:
        if math.isnan(self._spurious_at_first):
            return {}
        return {"spurious_at_first": self._spurious_at_first}

    def on_step(self, done: FinishedStep) -> None:
        self._last.append(done.values)
        if len(self._last) < (self._last.maxlen or 0):
            return
        for limits, sign in ((self._TOO_MUCH, 1), (self._TOO_LITTLE, -1)):
            for name, (limit, meaning) in limits.items():
                mean = self._mean(name)
                if sign * mean >= sign * limit:
                    shown = f"{mean:.1%}" if meaning.startswith("of ") else f"{mean:.3g}"
                    self._tell(done.number, name, f"{shown} {meaning}")
        spurious = self._mean("rl/spurious_boxes")
        if math.isnan(self._spurious_at_first):
            self._spurious_at_first = spurious
        elif spurious > max(self._MORE_BOXES * self._spurious_at_first, 0.1):
            self._tell(
                done.number,
                "spurious",
                f"{spurious:.2f} spurious boxes an answer, {self._spurious_at_first:.2f} at first: "
                "look at answers; rl.reward_boxes='f1' or a larger rl.kl_weight may help",
            )

    def _mean(self, name: str) -> float:
        values = [each[name] for each in self._last if math.isfinite(each.get(name, math.nan))]
        return sum(values) / len(values) if values else math.nan

    def _tell(self, step: int, name: str, line: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._log_line(f"step {step:,}: warning: {line}")
