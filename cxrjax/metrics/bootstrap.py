"""Intervals by resampling whole clusters (H10): what comes from one patient stays together.

Every metric here is a function of sums over images. So an image is reduced once to a row of
numbers (its hits, its misses, ...), and a resample is a weighted sum of rows: one matrix product
for all metrics and all resamples, whatever the number of boxes.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

# Weights held at once while resampling: 16 MB of float64.
_CHUNK = 2_000_000

Sums = Mapping[str, Float[np.ndarray, "sums"]]
Formula = Callable[[Sums], Float[np.ndarray, "sums"]]


@dataclass(frozen=True)
class Estimate:
    """A figure with its percentile interval; None where undefined. `n`: what it was taken over."""

    value: int | float | None
    ci_low: float | None
    ci_high: float | None
    n: int

    def to_json(self) -> dict[str, float | int | None]:
        """The cell of metrics.json."""
        return {
            "value": self.value,
            "ci_low": self.ci_low,
            "ci_high": self.ci_high,
            "n": self.n,
        }


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are made.

    Attributes:
        resamples: 0 for no intervals.
        seed: the same seed and the same clusters give the same resamples, so that two systems on
            one set of references are resampled together.
        confidence: share of the resamples inside the interval.
    """

    resamples: int = 1000
    seed: int = 0
    confidence: float = 0.95


@dataclass(frozen=True)
class Resampled:
    """Sums of every column: first the observed one, then one per resample."""

    sums: dict[str, Float[np.ndarray, "sums"]]
    confidence: float

    def estimate(self, formula: Formula, n: int) -> Estimate:
        """A figure and its interval.

        Args:
            formula: from named sums to the figure, elementwise; NaN where undefined.
            n: what the figure is taken over, for the record.

        Returns:
            The observed value with percentiles of the resamples in which it is defined. No
            interval where the value is undefined or nothing was resampled.
        """
        figures = np.asarray(formula(self.sums), np.float64)
        value, draws = float(figures[0]), figures[1:]
        draws = draws[np.isfinite(draws)]
        if not np.isfinite(value):
            return Estimate(None, None, None, n)
        if not len(draws):
            return Estimate(value, None, None, n)
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(draws, [tail, 1 - tail])
        return Estimate(value, float(low), float(high), n)


def resample(
    columns: Mapping[str, Float[np.ndarray, "units"]],
    clusters: Sequence[Hashable],
    settings: Bootstrap,
) -> Resampled:
    """Sums the columns over the units, as observed and in every resample of the clusters.

    Args:
        columns: name -> one number per unit (image).
        clusters: the cluster of each unit (the patient, or the image itself).
        settings: how many resamples, from which seed.

    Returns:
        The sums. Without intervals where there are fewer than two clusters: one cluster says
        nothing about how another would have come out.
    """
    index = {cluster: row for row, cluster in enumerate(dict.fromkeys(clusters))}
    rows = np.asarray([index[cluster] for cluster in clusters], np.int64)
    by_cluster = np.zeros((len(index), len(columns)))
    values = np.stack([np.asarray(c, np.float64) for c in columns.values()], axis=1)
    np.add.at(by_cluster, rows, values)
    draws = settings.resamples if len(index) > 1 else 0
    sums = np.concatenate([by_cluster.sum(axis=0)[None], _draw(by_cluster, draws, settings.seed)])
    return Resampled(dict(zip(columns, sums.T, strict=True)), settings.confidence)


def _draw(
    by_cluster: Float[np.ndarray, "clusters columns"], resamples: int, seed: int
) -> Float[np.ndarray, "resamples columns"]:
    count = len(by_cluster)
    rng = np.random.default_rng(seed)
    sums = np.empty((resamples, by_cluster.shape[1]))
    step = max(1, _CHUNK // max(count, 1))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(0, count, size=(rows, count))
        # How often each cluster was drawn, counted for all rows of the chunk in one pass.
        drawn += np.arange(rows)[:, None] * count
        weights = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        sums[start : start + rows] = weights.astype(np.float64) @ by_cluster
    return sums
