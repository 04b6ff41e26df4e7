"""Bootstrap intervals of one figure from its resamples: percentiles and BCa."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float

Method = Literal["bca", "percentile"]
# Two figures that differ by this are the same but for the order in which their sums were added.
ROUNDING = 1e-12


def interval(
    draws: Float[np.ndarray, " sums"],
    left_out: Callable[[], Float[np.ndarray, " clusters"]],
    confidence: float,
    method: Method,
) -> tuple[float | None, float | None, bool]:
    """Where a figure lies: (low, high, whether BCa was asked for and is undefined).

    BCa is undefined, and percentiles are taken, where all resamples lie on one side of the observed
    value, where the figure is undefined without some cluster, and where it is extremely skewed.

    Args:
        draws: the observed value, then that of every resample; NaN where undefined.
        confidence: share of the draws inside the interval.
        left_out: gives the figure without each cluster; called only where it is needed.
    """
    value, drawn = draws[0], draws[1:][np.isfinite(draws[1:])]
    if not len(drawn):
        return None, None, False
    tail = (1 - confidence) / 2
    shares = np.array([tail, 1 - tail])
    fallback = False
    if method == "bca" and np.ptp(drawn) > ROUNDING:
        corrected = _bca_shares(value, drawn, left_out(), shares)
        fallback = corrected is None
        shares = shares if corrected is None else corrected
    low, high = np.quantile(drawn, shares)
    return float(low), float(high), fallback


def _bca_shares(
    value: float,
    drawn: Float[np.ndarray, " draws"],
    left_out: Float[np.ndarray, " clusters"],
    shares: Float[np.ndarray, "2"],
) -> Float[np.ndarray, "2"] | None:
    """The shares of the draws between which BCa's interval lies; None where undefined."""
    from scipy.special import ndtr, ndtri  # here: it takes long to load

    away = drawn - value
    tied = np.abs(away) <= ROUNDING
    # Draws that tie with the value count half: figures of few units take few values.
    bias = ndtri(np.mean((away < 0) & ~tied) + np.mean(tied) / 2)
    influence = left_out.mean() - left_out
    spread = float((influence**2).sum())
    if not np.isfinite(bias) or not spread > 0:  # NaN too
        return None
    acceleration = float((influence**3).sum()) / (6 * spread**1.5)
    z = bias + ndtri(shares)
    if (acceleration * z >= 1).any():  # so skewed that the ends would change places
        return None
    return np.asarray(ndtr(bias + z / (1 - acceleration * z)))
