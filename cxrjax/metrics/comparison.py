"""Compares two systems on the same questions: is the difference more than chance?

The interval of a difference is of the pair: both systems are resampled together. The p-value is of
a paired permutation test: under the null hypothesis, whose answers are whose does not matter, so
the two systems' results are swapped, whole clusters at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from cxrjax.metrics.bootstrap import ROUNDING, Figure, Resampled, Sums, chunks, interval


@dataclass(frozen=True)
class Comparison:
    """One metric of two systems.

    Attributes:
        difference: of the observed values; None where one is undefined.
        ci_low, ci_high: interval of the difference; None where there is none.
        p: two-sided, of the permutation test; never below 1 / (1 + permutations).
        p_holm: p corrected for all metrics that were compared together (Holm, 1979).
        n: what the metric is taken over.
    """

    difference: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_holm: float | None
    n: int


def compare(
    first: Resampled,
    second: Resampled,
    figures: Mapping[str, tuple[Figure, Figure]],
) -> dict[str, Comparison]:
    """The first system minus the second, metric by metric, with as many permutations as resamples.

    Args:
        first, second: of the same units, clusters and settings.
        figures: metric -> the figure of the first and of the second system, over the same group.

    Raises:
        ValueError: the two were not resampled alike.
    """
    if (first.settings, first.clusters) != (second.settings, second.clusters):
        raise ValueError("systems are compared on the same clusters and resamples")
    results: dict[str, Comparison] = {}
    for within in dict.fromkeys(one.within for one, _ in figures.values()):
        here = {name: pair for name, pair in figures.items() if pair[0].within == within}
        results |= _compare_within(first, second, here, within)
    defined = {name: result.p for name, result in results.items() if result.p is not None}
    corrected = dict(zip(defined, holm(list(defined.values())), strict=True))
    return {name: replace(results[name], p_holm=corrected.get(name)) for name in figures}


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for being several, in the order given (Scand. J. Statist. 6, 1979)."""
    order = np.argsort(p_values, kind="stable")
    factors = len(order) - np.arange(len(order))
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate(np.asarray(p_values)[order] * factors)
    return np.minimum(corrected, 1.0).tolist()


def _compare_within(
    first: Resampled,
    second: Resampled,
    figures: Mapping[str, tuple[Figure, Figure]],
    within: tuple[str, str] | None,
) -> dict[str, Comparison]:
    settings = first.settings
    swapped = _swapped_sums(first, second, within)
    results = {}
    for name, (one, two) in figures.items():
        draws = first.draws(one) - second.draws(two)
        n = first.n(one)
        if not np.isfinite(draws[0]):
            results[name] = Comparison(None, None, None, None, None, n)
            continue

        def left_out(one: Figure = one, two: Figure = two) -> Float[np.ndarray, " clusters"]:
            return first.left_out(one) - second.left_out(two)

        low, high, _ = interval(draws, left_out, settings.confidence, settings.method)
        p = None
        if settings.resamples:
            with np.errstate(invalid="ignore"):
                other = np.abs(one.formula(swapped[0]) - two.formula(swapped[1]))
            # One that is undefined is no evidence against chance: it counts as large.
            as_large = int((~(other < abs(draws[0]) - ROUNDING)).sum())
            p = (1 + as_large) / (1 + settings.resamples)
        results[name] = Comparison(float(draws[0]), low, high, p, None, n)
    return results


@threadpool_limits.wrap(limits=1, user_api="blas")  # as in bootstrap
def _swapped_sums(
    first: Resampled, second: Resampled, within: tuple[str, str] | None
) -> tuple[Sums, Sums]:
    """Both systems' sums in every permutation, clusters swapped with even chance."""
    settings = first.settings
    one, two = first.block(within), second.block(within)
    names = list(dict.fromkeys((*one.columns, *two.columns)))
    gaps = np.zeros((len(one.rows), len(names)))
    totals = np.zeros((2, len(names)))
    for place, name in enumerate(names):
        for sign, block, total in ((1, one, totals[0]), (-1, two, totals[1])):
            if name in block.columns:
                gaps[:, place] += sign * block.rows[:, block.columns[name]]
                total[place] = block.sums[0, block.columns[name]]
    rng = np.random.default_rng(settings.seed)
    moved = np.empty((settings.resamples, len(names)))
    for rows in chunks(settings.resamples, len(gaps)):
        swaps = rng.integers(0, 2, size=(rows.stop - rows.start, len(gaps)), dtype=np.int8)
        moved[rows] = swaps.astype(np.float64) @ gaps
    nothing = np.zeros(len(moved))
    sums = []
    for system, total, sign in ((first, totals[0], -1), (second, totals[1], 1)):
        named = {name: total[place] + sign * moved[:, place] for place, name in enumerate(names)}
        sums.append({name: named.get(name, nothing) for name in system.names})
    return sums[0], sums[1]
