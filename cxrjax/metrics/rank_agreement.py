"""Whether two raters of the same things agree: rank correlations and kappa of rounded marks."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

from cxrjax.metrics.agreement import cohen_kappa, contingency


class RaterAgreement(NamedTuple):
    """NaN where undefined: fewer than two items, or a rater who gives all the same.

    Attributes:
        n: items that both rated.
        kappa: Cohen's with quadratic weights, of marks rounded to whole ones.
        kappa_low, kappa_high: its large-sample 95 % interval.
        mean_difference: second minus first.
    """

    n: int
    spearman: float
    kendall: float
    kappa: float
    kappa_low: float
    kappa_high: float
    mean_difference: float


def rater_agreement(first: Sequence[float], second: Sequence[float]) -> RaterAgreement:
    """Agreement on marks of the same items, in the same order.

    Kendall's tau is tau-b, which allows for ties.
    """
    one, two = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if len(one) == 0:
        return RaterAgreement(0, *[math.nan] * 6)
    spearman = kendall = math.nan
    if len(one) > 1 and np.ptp(one) > 0 and np.ptp(two) > 0:
        spearman = float(scipy.stats.spearmanr(one, two).statistic)
        kendall = float(scipy.stats.kendalltau(one, two).statistic)
    marks = np.rint(np.stack([one, two])).astype(np.int64)
    marks -= marks.min()
    kappa = cohen_kappa(contingency(marks[0], marks[1], int(marks.max()) + 1), "quadratic")
    difference = float((two - one).mean())
    return RaterAgreement(len(one), spearman, kendall, kappa.value, *kappa.interval, difference)
