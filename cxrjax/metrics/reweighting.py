"""Intervals of figures that are no functions of sums: computed anew on every resample.

Clusters are drawn as `bootstrap.resample` draws the same clusters from the same seed.
"""

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from cxrjax.metrics.bootstrap import Bootstrap, Estimate, chunks, draw_clusters, number_clusters
from cxrjax.metrics.intervals import interval

# How often each unit counts in each draw -> the figures of each draw, NaN where undefined.
Reweighted = Callable[[Float[np.ndarray, "draws units"]], Mapping[str, Float[np.ndarray, " draws"]]]


def estimate_reweighted(
    figures: Reweighted,
    clusters: Sequence[Hashable],
    n: Mapping[str, int],
    bootstrap: Bootstrap,
) -> dict[str, Estimate]:
    """Figures with their intervals.

    Args:
        figures: computes all of them from how often each unit counts.
        clusters: the cluster of each unit.
        n: figure -> what it is taken over, for the record.
        bootstrap: how intervals are made; no resamples, no intervals.
    """
    rows, count = number_clusters(clusters)
    resamples = bootstrap.resamples if count > 1 else 0

    def drawn() -> Iterator[Float[np.ndarray, "draws units"]]:
        yield np.ones((1, len(rows)))
        for _, weights in draw_clusters(count, resamples, bootstrap.seed):
            yield weights[:, rows]

    def left_out() -> Iterator[Float[np.ndarray, "draws units"]]:
        for part in chunks(count, count):
            yield (rows != np.arange(part.start, part.stop)[:, None]).astype(np.float64)

    draws = _of_all(figures, drawn())
    is_bca = bootstrap.method == "bca" and resamples > 0
    without = _of_all(figures, left_out()) if is_bca else {}
    estimates = {}
    for name, values in draws.items():
        if not np.isfinite(values[0]):
            estimates[name] = Estimate(None, None, None, n[name])
            continue
        left = functools.partial(without.__getitem__, name)
        ends = interval(values, left, bootstrap.confidence, bootstrap.method)
        estimates[name] = Estimate(float(values[0]), ends[0], ends[1], n[name], ends[2])
    return estimates


def _of_all(
    figures: Reweighted, weights: Iterator[Float[np.ndarray, "draws units"]]
) -> dict[str, Float[np.ndarray, " draws"]]:
    parts = [figures(some) for some in weights]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
