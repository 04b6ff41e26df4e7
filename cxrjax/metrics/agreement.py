"""Agreement between readers beyond chance: Cohen's and Fleiss' kappa, Krippendorff's alpha, ICC.

An undefined value is NaN: kappa where both readers use one and the same level for everything
(chance agreement is 1), alpha where only one level occurs.
"""

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Float, Int, Num

from cxrjax.metrics.bootstrap import Bootstrap, Estimate, Figure, Resampled, Sums, resample

Weights = Literal["unweighted", "linear", "quadratic"]
Level = Literal["nominal", "ordinal"]
WEIGHTS: tuple[Weights, ...] = ("unweighted", "linear", "quadratic")
MEASUREMENT_LEVELS: tuple[Level, ...] = ("nominal", "ordinal")
Z_95 = 1.959963984540054  # standard normal quantile of a two-sided 95 % interval


@dataclasses.dataclass(frozen=True)
class Kappa:
    """Cohen's kappa with its large-sample 95 % interval.

    Attributes:
        value: NaN where undefined.
        observed, expected: agreement found, and by chance (weighted where weights are).
        standard_error: after Fleiss, Cohen and Everitt (Psychological Bulletin 72, 1969).
        n: items that both readers rated.
    """

    value: float
    observed: float
    expected: float
    standard_error: float
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high), cut at -1 and 1."""
        half = Z_95 * self.standard_error
        return max(self.value - half, -1.0), min(self.value + half, 1.0)


@dataclasses.dataclass(frozen=True)
class KappaSanity:
    """Agreement by chance and levels that a published kappa implies.

    Attributes:
        expected: agreement by chance that observed agreement and kappa need.
        half_width: of the large-sample 95 % interval, sqrt(po (1 - po) / n) / (1 - pe).
        least_levels: fewest rating levels for which chance agreement can be that low: with k
            levels used alike by both readers it is at least 1 / k.
    """

    expected: float
    half_width: float
    least_levels: int


def kappa_sanity(observed: float, kappa: float, n: int) -> KappaSanity:
    """The chance agreement and the interval that belong to a printed kappa.

    Args:
        observed: share of items on which the readers agree, below 1.
        kappa: as printed, below 1.
        n: ratings that it is over.

    Raises:
        ValueError: no chance agreement in [0, 1) gives this kappa.
    """
    if not (0 <= observed <= 1 and kappa < 1 and n > 0):
        raise ValueError(f"observed {observed}, kappa {kappa}, n {n}: expected [0, 1], < 1, > 0")
    expected = (observed - kappa) / (1 - kappa)
    if not 0 <= expected < 1:
        raise ValueError(f"kappa {kappa} at agreement {observed} needs chance {expected:.3f}")
    half_width = Z_95 * math.sqrt(observed * (1 - observed) / n) / (1 - expected)
    # Rounding must not ask for a level more where 1 / expected is whole.
    levels = math.ceil(1 / expected - 1e-9) if expected else 2
    return KappaSanity(expected, half_width, max(levels, 2))


def contingency(
    first: Sequence[int] | Int[np.ndarray, " n"],
    second: Sequence[int] | Int[np.ndarray, " n"],
    levels: int,
) -> Float[np.ndarray, "levels levels"]:
    """Counts how often the first reader gave level i where the second gave j.

    Raises:
        ValueError: of different length, or a level outside 0 to `levels` - 1.
    """
    a, b = np.asarray(first, np.int64), np.asarray(second, np.int64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"ratings of shapes {a.shape} and {b.shape}: expected two equal lists")
    if a.size and not (min(a.min(), b.min()) >= 0 and max(a.max(), b.max()) < levels):
        raise ValueError(f"a level outside 0 to {levels - 1}")
    table = np.zeros((levels, levels))
    np.add.at(table, (a, b), 1)
    return table


def cohen_kappa(table: Float[np.ndarray, "k k"], weights: Weights = "unweighted") -> Kappa:
    """Cohen's kappa of a contingency table, with interval.

    Args:
        table: counts, rows the first reader's levels, columns the second's, in order of severity.
        weights: of disagreements: all the same, by distance of the levels, or by its square.
    """
    n = float(table.sum())
    if not n:
        return Kappa(math.nan, math.nan, math.nan, math.nan, 0)
    credit = 1 - _disagreement(len(table), weights)
    cells = table / n
    rows, columns = cells.sum(axis=1), cells.sum(axis=0)
    observed = float((credit * cells).sum())
    expected = float(rows @ credit @ columns)
    if 1 - expected < 1e-12:
        return Kappa(math.nan, observed, expected, math.nan, int(n))
    value = (observed - expected) / (1 - expected)
    mean_credit = (credit @ columns)[:, None] + (rows @ credit)[None, :]
    spread = (cells * (credit * (1 - expected) - mean_credit * (1 - observed)) ** 2).sum()
    spread -= (observed * expected - 2 * expected + observed) ** 2
    error = math.sqrt(max(float(spread), 0.0) / n) / (1 - expected) ** 2
    return Kappa(value, observed, expected, error, int(n))


def bootstrap_kappa(
    first: Sequence[int],
    second: Sequence[int],
    levels: int,
    clusters: Sequence[Hashable],
    weights: Weights = "unweighted",
    settings: Bootstrap | None = None,
) -> Estimate:
    """Cohen's kappa with an interval from resampled clusters (ratings of one item stay together).

    Args:
        first, second: the two readers' levels of every rating.
        clusters: what each rating belongs to, such as the question.
    """
    disagreement = _disagreement(levels, weights)

    def kappas(sums: Sums) -> Float[np.ndarray, " sums"]:
        tables = _tables(sums, levels)
        n = tables.sum(axis=(1, 2))
        chance = tables.sum(axis=2)[:, :, None] * tables.sum(axis=1)[:, None, :]
        # In disagreements, kappa is 1 - observed / expected.
        observed = (disagreement * tables).sum(axis=(1, 2)) * n
        expected = (disagreement * chance).sum(axis=(1, 2))
        safe = np.where(expected > 0, expected, 1)
        return np.where(expected > 0, 1 - observed / safe, np.nan)

    return _resampled(first, second, levels, clusters, settings).estimate(
        Figure(kappas, len(first))
    )


def bootstrap_alpha(
    first: Sequence[int],
    second: Sequence[int],
    levels: int,
    clusters: Sequence[Hashable],
    level: Level = "ordinal",
    settings: Bootstrap | None = None,
) -> Estimate:
    """Krippendorff's alpha of two readers with an interval from resampled clusters."""

    def alphas(sums: Sums) -> Float[np.ndarray, " sums"]:
        return _alphas_of_tables(_tables(sums, levels), level)

    return _resampled(first, second, levels, clusters, settings).estimate(
        Figure(alphas, len(first))
    )


def krippendorff_alpha(ratings: Float[np.ndarray, "readers items"], level: Level) -> float:
    """Krippendorff's alpha; NaN in `ratings` means not rated."""
    import krippendorff  # extra `agreement`: nothing else here needs it

    values = np.asarray(ratings, np.float64)
    paired = values[:, (~np.isnan(values)).sum(axis=0) > 1]
    if len(np.unique(paired[~np.isnan(paired)])) < 2:
        return math.nan
    return float(krippendorff.alpha(reliability_data=values, level_of_measurement=level))


def fleiss_kappa(counts: Num[np.ndarray, "items levels"]) -> float:
    """Fleiss' kappa (Psychological Bulletin 76, 1971) of counts of ratings by level.

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


def _disagreement(levels: int, weights: Weights) -> Float[np.ndarray, "k k"]:
    """0 on the diagonal to 1 for the ends of the scale (all 1 where unweighted)."""
    steps = np.abs(np.subtract.outer(np.arange(levels), np.arange(levels))).astype(np.float64)
    if weights == "unweighted":
        return (steps > 0).astype(np.float64)
    scaled = steps / max(levels - 1, 1)
    return scaled if weights == "linear" else scaled**2


def _alphas_of_tables(
    tables: Float[np.ndarray, "sums k k"], level: Level
) -> Float[np.ndarray, " sums"]:
    """Alpha of two readers who rated everything, from their contingency tables.

    The package's formula over tables, for thousands of resamples at once: 1 - (n - 1) times
    observed over expected squared distances, n being the number of ratings of both readers.
    """
    pairs = tables + tables.transpose(0, 2, 1)
    counts = pairs.sum(axis=2)
    if level == "nominal":
        distance = np.broadcast_to(1 - np.eye(tables.shape[1]), pairs.shape)
    else:
        # Ratings between two levels, half of those on the two themselves.
        below = np.cumsum(counts, axis=1) - counts / 2
        distance = (below[:, :, None] - below[:, None, :]) ** 2
    observed = (pairs * distance).sum(axis=(1, 2)) * (counts.sum(axis=1) - 1)
    expected = (counts[:, :, None] * counts[:, None, :] * distance).sum(axis=(1, 2))
    safe = np.where(expected > 0, expected, 1)
    return np.where(expected > 0, 1 - observed / safe, np.nan)


def _tables(sums: Sums, levels: int) -> Float[np.ndarray, "sums k k"]:
    cells = np.stack([sums[f"{i}/{j}"] for i in range(levels) for j in range(levels)], axis=-1)
    return cells.reshape(-1, levels, levels)


def _resampled(
    first: Sequence[int],
    second: Sequence[int],
    levels: int,
    clusters: Sequence[Hashable],
    settings: Bootstrap | None,
) -> Resampled:
    """The contingency table as sums over ratings: as observed and in every resample."""
    contingency(first, second, levels)  # refuses lists that don't fit
    a, b = np.asarray(first), np.asarray(second)
    columns = {
        f"{i}/{j}": ((a == i) & (b == j)).astype(np.float64)
        for i in range(levels)
        for j in range(levels)
    }
    return resample(columns, clusters, settings or Bootstrap())


class RaterAgreement(NamedTuple):
    """NaN where undefined: fewer than two items, or a rater who gives all the same.

    Attributes:
        n: items that both rated.
        kappa: Cohen's with quadratic weights, of marks rounded to whole ones.
        kappa_low, kappa_high: its large-sample 95 % interval.
        icc: of the marks themselves, see `intraclass_correlation`.
        mean_difference: second minus first.
    """

    n: int
    spearman: float
    kendall: float
    kappa: float
    kappa_low: float
    kappa_high: float
    icc: float
    mean_difference: float


def rater_agreement(first: Sequence[float], second: Sequence[float]) -> RaterAgreement:
    """Agreement on marks of the same items, in the same order.

    Kendall's tau is tau-b, which allows for ties.
    """
    one, two = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if len(one) == 0:
        return RaterAgreement(0, *[math.nan] * 7)
    spearman = kendall = math.nan
    if len(one) > 1 and np.ptp(one) > 0 and np.ptp(two) > 0:
        spearman = float(scipy.stats.spearmanr(one, two).statistic)
        kendall = float(scipy.stats.kendalltau(one, two).statistic)
    marks = np.rint(np.stack([one, two])).astype(np.int64)
    marks -= marks.min()
    kappa = cohen_kappa(contingency(marks[0], marks[1], int(marks.max()) + 1), "quadratic")
    difference = float((two - one).mean())
    icc = intraclass_correlation(np.stack([one, two]))
    return RaterAgreement(
        len(one), spearman, kendall, kappa.value, *kappa.interval, icc, difference
    )


def intraclass_correlation(ratings: Float[np.ndarray, "readers items"]) -> float:
    """ICC(2,1): absolute agreement of single readers, who are drawn as the items are.

    Shrout and Fleiss, Psychological Bulletin 86 (1979). NaN with fewer than two items or readers,
    or where nothing varies.
    """
    readers, items = ratings.shape
    if min(readers, items) < 2:
        return math.nan
    by_item, by_reader, mean = ratings.mean(axis=0), ratings.mean(axis=1), ratings.mean()
    between_items = readers * float(((by_item - mean) ** 2).sum()) / (items - 1)
    between_readers = items * float(((by_reader - mean) ** 2).sum()) / (readers - 1)
    rest = ratings - by_item[None, :] - by_reader[:, None] + mean
    residual = float((rest**2).sum()) / ((items - 1) * (readers - 1))
    total = between_items + (readers - 1) * residual
    total += readers * (between_readers - residual) / items
    return (between_items - residual) / total if total > 0 else math.nan
