"""Calibration: a system's confidence against its correctness.

A confidence is a probability in [0, 1]; what it is held against is 0 or 1 (an answer is right), or
an IoU in [0, 1] (how well a box lies).
"""

import numpy as np
from jaxtyping import Float, Int, Num

BINS = 10
_CHUNK = 500_000  # weights processed together, each with a dozen numbers made of it


def equal_mass_edges(
    confidence: Float[np.ndarray, " answers"], bins: int = BINS
) -> Float[np.ndarray, " bins_and_one"]:
    """Quantiles of the confidences."""
    return np.quantile(confidence, np.linspace(0, 1, bins + 1))


def bin_numbers(
    confidence: Float[np.ndarray, " answers"], edges: Float[np.ndarray, " bins_and_one"]
) -> Int[np.ndarray, " answers"]:
    """The bin of each confidence. Equal confidences are in one bin."""
    return np.searchsorted(edges[1:-1], confidence)


def reliability(
    confidence: Float[np.ndarray, " answers"], outcome: Num[np.ndarray, " answers"]
) -> tuple[Int[np.ndarray, " bins"], Float[np.ndarray, " bins"], Float[np.ndarray, " bins"]]:
    """Puts answers into bins of about equally many, from the least to the most confident.

    Returns:
        Answers of each bin (with ties at its ends it may have more), their mean confidence and mean
        outcome. Bins without answers are left out.
    """
    numbers = bin_numbers(confidence, equal_mass_edges(confidence))
    n = np.bincount(numbers)
    sums = (np.bincount(numbers, weights=values) for values in (confidence, outcome))
    means = [total[n > 0] / n[n > 0] for total in sums]
    return n[n > 0], means[0], means[1]


def expected_calibration_error(
    n: Num[np.ndarray, " bins *sums"],
    confidence: Float[np.ndarray, " bins *sums"],
    outcome: Float[np.ndarray, " bins *sums"],
) -> Float[np.ndarray, "*sums"]:
    """Mean distance of confidence and outcome over bins, weighted by their answers.

    Args:
        n, confidence, outcome: sums over each bin's answers (not means), so that it is a figure
            like any other: elementwise over resamples. NaN without answers.
    """
    total = np.sum(n, axis=0)
    gaps = np.abs(np.asarray(confidence) - np.asarray(outcome)).sum(axis=0)
    return np.divide(gaps, total, out=np.full(np.shape(total), np.nan), where=total > 0)


def risk_coverage(
    confidence: Float[np.ndarray, " answers"], right: Num[np.ndarray, " answers"]
) -> tuple[Float[np.ndarray, " answers"], Float[np.ndarray, " answers"]]:
    """Share of wrong answers among the k most confident ones, for every k.

    Returns:
        Coverage k / n and risk. Answers of equal confidence are in no order: the risk is what any
        order of them gives on average.
    """
    order = np.argsort(-np.asarray(confidence, np.float64), kind="stable")
    sure, wrong = np.asarray(confidence)[order], 1.0 - np.asarray(right, np.float64)[order]
    _, group = np.unique(-sure, return_inverse=True)
    counts = np.bincount(group)
    expected = (np.bincount(group, weights=wrong) / counts)[group] if len(sure) else wrong
    k = np.arange(1, len(sure) + 1)
    return k / max(len(sure), 1), np.cumsum(expected) / k


def reweighted_area(
    confidence: Float[np.ndarray, " answers"],
    right: Num[np.ndarray, " answers"],
    weights: Float[np.ndarray, "draws answers"],
) -> Float[np.ndarray, " draws"]:
    """Computes AURC (Geifman et al., ICLR 2019), the mean risk over all coverages, in each draw.

    It is NaN in a draw without answers.

    Within answers of equal confidence the risk after j of them is (W + j e) / (N + j), with W wrong
    of N before them and a share e of themselves wrong: summed over j, harmonic numbers come of it.

    Args:
        weights: whole numbers.
    """
    order = np.argsort(-np.asarray(confidence, np.float64), kind="stable")
    sure, wrong = np.asarray(confidence)[order], 1.0 - np.asarray(right, np.float64)[order]
    starts = np.flatnonzero(np.r_[True, np.diff(sure) != 0])
    areas = np.full(len(weights), np.nan)
    step = max(1, _CHUNK // max(len(sure), 1))
    for row in range(0, len(weights) if len(sure) else 0, step):
        counted = np.take(weights[row : row + step], order, axis=1)
        n, errors = counted, counted * wrong
        if len(starts) < len(sure):
            n, errors = (np.add.reduceat(each, starts, axis=1) for each in (n, errors))
        after, wrong_after = n.cumsum(axis=1), errors.cumsum(axis=1)
        share = np.divide(errors, n, out=np.zeros_like(n), where=n > 0)
        most = int(after[:, -1].max())
        harmonic = np.r_[0.0, np.cumsum(1 / np.arange(1, most + 1))]
        steps = np.diff(harmonic[after.astype(np.int64)], axis=1, prepend=0.0)
        risks = errors + (wrong_after - errors - (after - n) * share) * steps
        totals = after[:, -1]
        np.divide(risks.sum(axis=1), totals, out=areas[row : row + step], where=totals > 0)
    return areas


def rank_correlation(
    confidence: Float[np.ndarray, " n"], outcome: Float[np.ndarray, " n"]
) -> float:
    """Computes Spearman's correlation; NaN where one of the two never varies."""
    if len(confidence) < 2 or min(np.ptp(confidence), np.ptp(outcome)) == 0:
        return float("nan")
    from scipy import stats  # here: it takes long to load

    return float(stats.spearmanr(confidence, outcome).statistic)
