"""Says so when a run leaves boxes with their corners swapped."""

import collections
import math
from collections.abc import Mapping

# Share of expected boxes with swapped corners above which there is something to say.
LIMIT = 0.01
# Steps that are looked at together, and the share of the run in which boxes may still be anywhere.
STEPS = 50
FIRST_PART = 0.1


class SwappedCorners:
    """Watches the boxes that a run trains on.

    Args:
        total_steps: of the run.
        steps: that are looked at together, the last ones.
    """

    def __init__(self, total_steps: int, steps: int = STEPS) -> None:
        self._from = FIRST_PART * total_steps
        self._shares: collections.deque[float] = collections.deque(maxlen=steps)
        self._told = False

    def check(self, step: int, values: Mapping[str, float]) -> str | None:
        """Takes a step's figures; one line, once in a run, where too many corners are swapped."""
        share = values.get("coordinates/swapped", math.nan)
        if step > self._from and math.isfinite(share):
            self._shares.append(share)
        if self._told or len(self._shares) < (self._shares.maxlen or 0):
            return None
        mean = sum(self._shares) / len(self._shares)
        if mean <= LIMIT:
            return None
        self._told = True
        return f"{swapped_line(mean)} of the last {len(self._shares)} steps"


def swapped_line(share: float) -> str:
    """What is said of a share above `LIMIT`."""
    return (
        f"warning: {share:.1%} of expected boxes have swapped corners (`python -m "
        "cxrjax.tools.coordinates` shows where)"
    )
