"""Figures from counts of right and wrong decisions; elementwise, so one call serves all resamples.

Every function takes counts as scalars or arrays of one shape and returns float64 of that shape,
NaN where the figure is undefined: nothing to divide by. scikit-learn returns 0 there; a 0 would
read as "measured, and bad".
"""

from collections.abc import Set

import numpy as np
from jaxtyping import Float, Int, Num, Shaped

Figure = Float[np.ndarray, "..."]
Count = Num[np.ndarray, "..."] | np.number | int | float


def ratio(numerator: Count, denominator: Count) -> Figure:
    """numerator / denominator, NaN where the denominator is 0."""
    top, bottom = np.broadcast_arrays(
        np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    )
    return np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom != 0)


def precision(true_positives: Count, false_positives: Count) -> Figure:
    """Share of the predicted that is right; undefined where nothing was predicted."""
    return ratio(true_positives, np.add(true_positives, false_positives))


def recall(true_positives: Count, false_negatives: Count) -> Figure:
    """Share of the truth that was found; undefined where there is no truth."""
    return ratio(true_positives, np.add(true_positives, false_negatives))


def f1(true_positives: Count, false_positives: Count, false_negatives: Count) -> Figure:
    """Harmonic mean of precision and recall; undefined only where both sides are empty."""
    twice = np.multiply(true_positives, 2)
    return ratio(twice, twice + np.asarray(false_positives) + np.asarray(false_negatives))


def harmonic_mean(a: Count, b: Count) -> Figure:
    """2ab / (a + b) of figures in [0, 1]; 0 where one is 0; NaN where both are undefined.

    For precision and recall that count different things (a prediction's hits, a truth's hits).
    One of the two is undefined where one side is empty; then nothing was hit, and the mean is 0.
    """
    first, second = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(b, np.float64))
    both_undefined = np.isnan(first) & np.isnan(second)
    first, second = np.nan_to_num(first), np.nan_to_num(second)
    mean = np.nan_to_num(ratio(2 * first * second, first + second))
    return np.where(both_undefined, np.nan, mean)


def accuracy(
    true_positives: Count, false_positives: Count, false_negatives: Count, true_negatives: Count
) -> Figure:
    """Share of all decisions that are right."""
    right = np.add(true_positives, true_negatives)
    return ratio(right, right + np.asarray(false_positives) + np.asarray(false_negatives))


def specificity(true_negatives: Count, false_positives: Count) -> Figure:
    """Share of the absent that was called absent; undefined where nothing is absent."""
    return ratio(true_negatives, np.add(true_negatives, false_positives))


def balanced_accuracy(
    true_positives: Count, false_positives: Count, false_negatives: Count, true_negatives: Count
) -> Figure:
    """Mean of sensitivity and specificity: 0.5 for whoever always says the same.

    Undefined unless there is both presence and absence to tell apart.
    """
    sensitivity = recall(true_positives, false_negatives)
    return ratio(sensitivity + specificity(true_negatives, false_positives), 2)


def matthews(
    true_positives: Count, false_positives: Count, false_negatives: Count, true_negatives: Count
) -> Figure:
    """Matthews correlation in [-1, 1]; undefined where truth or prediction never varies."""
    tp, fp, fn, tn = (
        np.asarray(count, np.float64)
        for count in (true_positives, false_positives, false_negatives, true_negatives)
    )
    # Roots before products: the product of four counts can leave the exact range of float64.
    scale = np.sqrt(tp + fp) * np.sqrt(tp + fn) * np.sqrt(tn + fp) * np.sqrt(tn + fn)
    return ratio(tp * tn - fp * fn, scale)


def sums_at(
    places: Int[np.ndarray, " n"], count: int, amounts: Shaped[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, " count"]:
    """Sums of amounts (of ones by default) at each of `count` places, numbered from 0."""
    # Whole numbers where there is nothing to sum, without the cast.
    return np.bincount(places, weights=amounts, minlength=count).astype(np.float64)


def set_counts(predicted: Set[object], truth: Set[object]) -> tuple[int, int, int]:
    """(true positives, false positives, false negatives) of one set of names against another."""
    found = len(predicted & truth)
    return found, len(predicted) - found, len(truth) - found
