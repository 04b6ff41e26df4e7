"""Agreement between readers beyond chance: Cohen's and Fleiss' kappa, Krippendorff's alpha.

An undefined value is NaN: kappa where both readers use one and the same level for everything
(chance agreement is 1), alpha where only one level occurs.
"""

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num

from cxrjax.metrics.bootstrap import Bootstrap, Estimate, Figure, Sums, resample
from cxrjax.metrics.classification import ratio

Weights = Literal["unweighted", "linear", "quadratic"]
Level = Literal["nominal", "ordinal"]
WEIGHTS: tuple[Weights, ...] = ("unweighted", "linear", "quadratic")
MEASUREMENT_LEVELS: tuple[Level, ...] = ("nominal", "ordinal")
Z_95 = 1.959963984540054  # standard normal quantile of a two-sided 95 % interval
Tables = Float[np.ndarray, "sums k k"]


class Kappa(NamedTuple):
    """Cohen's kappa with its large-sample 95 % interval; NaN where undefined."""

    value: float
    # `observed`, `expected`: agreement found, and by chance, weighted as kappa is.
    observed: float
    expected: float
    standard_error: float  # after Fleiss, Cohen and Everitt (Psychological Bulletin 72, 1969)

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high), cut at -1 and 1."""
        half = Z_95 * self.standard_error
        return max(self.value - half, -1.0), min(self.value + half, 1.0)


def cohen_kappa(
    first: Sequence[int] | Int[np.ndarray, " n"],
    second: Sequence[int] | Int[np.ndarray, " n"],
    levels: int,
    weights: Weights = "unweighted",
) -> Kappa:
    """Computes Cohen's kappa by scikit-learn, and the interval that it lacks.

    Args:
        first, second: levels, 0 to `levels` - 1, of the same items, in order of severity.
        weights: of disagreements: all the same, by distance of the levels, or by its square.
    """
    if not len(first):
        return Kappa(*[math.nan] * 4)
    cells = np.zeros((levels, levels))
    np.add.at(cells, (np.asarray(first), np.asarray(second)), 1 / len(first))
    credit = 1 - _disagreement(levels, weights)
    rows, columns = cells.sum(axis=1), cells.sum(axis=0)
    observed, expected = float((credit * cells).sum()), float(rows @ credit @ columns)
    if 1 - expected < 1e-12:
        return Kappa(math.nan, observed, expected, math.nan)
    from sklearn.metrics import cohen_kappa_score  # here: it takes seconds to load

    named = None if weights == "unweighted" else weights
    value = cohen_kappa_score(first, second, labels=range(levels), weights=named)
    mean_credit = (credit @ columns)[:, None] + (rows @ credit)[None, :]
    spread = (cells * (credit * (1 - expected) - mean_credit * (1 - observed)) ** 2).sum()
    spread -= (observed * expected - 2 * expected + observed) ** 2
    error = math.sqrt(max(float(spread), 0.0) / len(first)) / (1 - expected) ** 2
    return Kappa(float(value), observed, expected, error)


def bootstrap_agreement(
    readers: Sequence[Sequence[int]],
    levels: int,
    clusters: Sequence[Hashable],
    settings: Bootstrap | None = None,
) -> dict[str, Estimate]:
    """Computes Cohen's kappas of two readers, Fleiss' kappa of more, and Krippendorff's alphas,
    with intervals from resampled clusters (ratings of one item stay together).

    scikit-learn and krippendorff would take a millisecond for each of thousands of resamples: here
    their formulas are over all tables together.

    Args:
        readers: each one's levels of every rating, from 0 to `levels` - 1.
        clusters: of each rating, such as its question.
    """
    pairs = list(itertools.combinations(map(np.asarray, readers), 2))
    # An item's pairs of ratings, divided so that each rating counts once in all.
    columns = {
        f"{i}/{j}": sum(((a == i) & (b == j)) / (len(readers) - 1) for a, b in pairs)
        for i in range(levels)
        for j in range(levels)
    }
    drawn = resample(columns, clusters, settings or Bootstrap())

    def estimate(formula: Callable[[Tables], Float[np.ndarray, " sums"]]) -> Estimate:
        def of_sums(sums: Sums) -> Float[np.ndarray, " sums"]:
            cells = np.stack([sums[name] for name in columns], axis=-1)
            return formula(cells.reshape(-1, levels, levels))

        return drawn.estimate(Figure(of_sums, len(clusters)))

    found: dict[str, Estimate] = {}
    if len(readers) > 2:
        found["fleiss"] = estimate(_fleiss)
    else:
        for weights in WEIGHTS:
            found[weights] = estimate(functools.partial(_kappas, weights=weights))
    for level in MEASUREMENT_LEVELS:
        found[level] = estimate(functools.partial(_alphas, level=level))
    return found


def _kappas(tables: Tables, weights: Weights) -> Float[np.ndarray, " sums"]:
    """1 - observed / expected disagreement."""
    disagreement = _disagreement(tables.shape[1], weights)
    chance = tables.sum(axis=2)[:, :, None] * tables.sum(axis=1)[:, None, :]
    observed = (disagreement * tables).sum(axis=(1, 2)) * tables.sum(axis=(1, 2))
    return 1 - ratio(observed, (disagreement * chance).sum(axis=(1, 2)))


def _fleiss(tables: Tables) -> Float[np.ndarray, " sums"]:
    """1 - observed / expected disagreement, by chance of all readers' ratings together."""
    pairs = tables + tables.transpose(0, 2, 1)
    totals = pairs.sum(axis=(1, 2))
    observed = totals - np.trace(pairs, axis1=1, axis2=2)
    return 1 - ratio(observed * totals, totals**2 - (pairs.sum(axis=2) ** 2).sum(axis=1))


def _alphas(tables: Tables, level: Level) -> Float[np.ndarray, " sums"]:
    """1 - (n - 1) times observed over expected squared distances of n ratings of all readers."""
    pairs = tables + tables.transpose(0, 2, 1)
    counts = pairs.sum(axis=2)
    if level == "nominal":
        distance = np.broadcast_to(1 - np.eye(tables.shape[1]), pairs.shape)
    else:
        # Ratings between two levels, half of those on the two themselves.
        below = np.cumsum(counts, axis=1) - counts / 2
        distance = (below[:, :, None] - below[:, None, :]) ** 2
    observed = (pairs * distance).sum(axis=(1, 2)) * (counts.sum(axis=1) - 1)
    return 1 - ratio(
        observed, (counts[:, :, None] * counts[:, None, :] * distance).sum(axis=(1, 2))
    )


def _disagreement(levels: int, weights: Weights) -> Float[np.ndarray, "k k"]:
    """0 on the diagonal to 1 for the ends of the scale (all 1 where unweighted)."""
    steps = np.abs(np.subtract.outer(np.arange(levels), np.arange(levels))).astype(np.float64)
    if weights == "unweighted":
        return (steps > 0).astype(np.float64)
    scaled = steps / max(levels - 1, 1)
    return scaled if weights == "linear" else scaled**2


def krippendorff_alpha(ratings: Float[np.ndarray, "readers items"], level: Level) -> float:
    """Computes Krippendorff's alpha by its package; NaN in `ratings` means not rated."""
    import krippendorff  # extra `agreement`: nothing else here needs it

    values = np.asarray(ratings, np.float64)
    paired = values[:, (~np.isnan(values)).sum(axis=0) > 1]
    if len(np.unique(paired[~np.isnan(paired)])) < 2:
        return math.nan
    return float(krippendorff.alpha(reliability_data=values, level_of_measurement=level))


def fleiss_kappa(counts: Num[np.ndarray, "items levels"]) -> float:
    """Computes Fleiss' kappa (Psychological Bulletin 76, 1971) of counts of ratings by level.

    Raises:
        ValueError: items with different numbers of ratings, or fewer than two.
    """
    counts = np.asarray(counts, np.float64)
    raters = counts.sum(axis=1)
    if not len(counts) or raters.min() != raters.max() or raters[0] < 2:
        raise ValueError("every item must have the same number of ratings, at least two")
    by_item = ((counts**2).sum(axis=1) - raters) / (raters * (raters - 1))
    chance = float(((counts.sum(axis=0) / counts.sum()) ** 2).sum())
    if 1 - chance < 1e-12:
        return math.nan
    return (float(by_item.mean()) - chance) / (1 - chance)
