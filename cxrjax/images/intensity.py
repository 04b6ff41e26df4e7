"""Grey levels of 9 to 16 bits brought to the 8 bits that models see.

An image of up to 16 bits has at most 65,536 levels, so everything here works on the table of
levels and how often each occurs, never on the pixels; the pixels go through the table once.
"""

import numpy as np
from jaxtyping import Float, Int, Integer, UInt8

# Where no window is recorded, these percentiles of the pixels become black and white. Minimum and
# maximum would not do: one dead detector element or a lead marker, and the chest is a grey patch.
# Half a percent on each side is more than markers and dead pixels cover, and less than lung or
# mediastinum do; what lies outside is clipped.
BLACK_PERCENTILE = 0.5
WHITE_PERCENTILE = 99.5


class Levels:
    """The levels of an integer image of at most 16 bits.

    Attributes:
        values: ascending without gaps, from 0 or the lowest negative one to the highest.
        places: where each pixel's level stands in `values`.
    """

    values: Int[np.ndarray, " levels"]
    places: Integer[np.ndarray, "h w"]

    def __init__(self, stored: Integer[np.ndarray, "h w"]) -> None:
        lowest = min(int(stored.min()), 0)
        self.values = np.arange(lowest, int(stored.max()) + 1)
        # int32 holds the difference of any two 16-bit values, signed ones too. Without negative
        # ones the pixels themselves will do, and no copy is made.
        self.places = stored.astype(np.int32) - lowest if lowest else stored

    def counts(self) -> Int[np.ndarray, " levels"]:
        """Pixels that have each level. Costs as much as all the rest of showing an image."""
        return np.bincount(self.places.ravel(), minlength=len(self.values))

    def paint(self, shades: UInt8[np.ndarray, " levels"]) -> UInt8[np.ndarray, "h w"]:
        """The image with each level shown as its shade."""
        return np.take(shades, self.places)


def percentile_range(
    values: Float[np.ndarray, " levels"] | Int[np.ndarray, " levels"],
    counts: Int[np.ndarray, " levels"],
) -> tuple[float, float]:
    """The values that become black and white in an image that records no window.

    `BLACK_PERCENTILE` and `WHITE_PERCENTILE` of the pixels. Where the two coincide (a flat
    background with less than half a percent of anything else) the minimum and maximum.
    `values` need not be ascending. An image without pixels to count gives (0, 0).
    """
    present = counts > 0
    if not present.any():
        return 0.0, 0.0
    order = np.argsort(values[present], kind="stable")
    ascending, cumulative = values[present][order], np.cumsum(counts[present][order])
    # The smallest value with at least this share of the pixels at or below it.
    shares = np.array([BLACK_PERCENTILE, WHITE_PERCENTILE]) / 100 * cumulative[-1]
    low, high = ascending[np.searchsorted(cumulative, shares)]
    if low == high:
        low, high = ascending[0], ascending[-1]
    return float(low), float(high)


def stretch(
    values: Float[np.ndarray, " levels"] | Int[np.ndarray, " levels"], low: float, high: float
) -> Float[np.ndarray, " levels"]:
    """`low` to 0 and `high` to 1, linearly, clipped. A flat image (low == high) becomes black."""
    if low == high:
        return np.zeros(len(values))
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def to_uint8(fractions: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Fractions of white, 0 to 1, as the nearest of 256 levels."""
    return np.round(fractions * 255).astype(np.uint8)


def auto_exposed(stored: Integer[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w"]:
    """An image of at most 16 bits without a window, between its percentiles."""
    levels = Levels(stored)
    low, high = percentile_range(levels.values, levels.counts())
    return levels.paint(to_uint8(stretch(levels.values, low, high)))
