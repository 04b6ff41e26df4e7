"""Counts answers that a judge failed at, by one rule for every benchmark that asks one.

`paper` leaves them out of the mean, for what an answer is worth is not known; `strict` counts them
as 0. Where nothing was judged, both are undefined. How often the judge failed stands beside the
figures, and by category in score.json.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from cxrjax.language_model.judges.judge import FAILURES
from cxrjax.metrics.bootstrap import Formula
from cxrjax.metrics.classification import ratio
from cxrjax.scoring.scores import PAPER

# Category of score.json -> what it means.
JUDGE_PROBLEMS = {f"judge_failure/{name}": meaning for name, meaning in FAILURES.items()}


NOTE = (
    "What the judge failed at is left out under `paper` and counts as 0 under `strict`; how often "
    "that was stands beside the figures, and why under failures and problems."
)


def count_judge_failures(failures: Iterable[str | None]) -> dict[str, int]:
    """Key of `JUDGE_PROBLEMS` -> how often, zeros too; None is no failure."""
    counted = Counter(failures)
    return {name: counted[name.removeprefix("judge_failure/")] for name in JUDGE_PROBLEMS}


def judged_mean(total: str, judged: str, asked: str, protocol: str) -> Formula:
    """The mean of what a judge says, from sums of columns.

    Args:
        total: what it gave, 0 where it failed.
        judged: 1 where it did not fail.
        asked: 1 for every answer.
    """
    divisor = judged if protocol == PAPER else asked
    return lambda sums: np.where(sums[judged] > 0, ratio(sums[total], sums[divisor]), np.nan)


def judge_failure_rate(judged: str, asked: str) -> Formula:
    """The share of answers that the judge failed at; columns as of `judged_mean`."""
    return lambda sums: ratio(sums[asked] - sums[judged], sums[asked])
