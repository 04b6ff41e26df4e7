"""The two lungs in a mask, or why it is no mask of two lungs.

A part of the mask (pixels of one level that touch) with less than `SPECK` of all that is marked is
a speck: it is left out and counted. Of 1,626 of V7's masks one has specks, each below 0.01 % of the
marked area; the others have two parts or none. The smaller lung of the 3,864 masks of children has
36 % of both or more, so that two parts of which one has less than `SMALLEST` are no two lungs.
"""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy import ndimage

from cxrjax.records_io.quality import Unusable

SPECK = 0.01
SMALLEST = 0.1
# Of the outermost pixels, how many a mask may mark: of 3,864 masks none marks 20 %, but the
# background of a mask that is inverted nearly all.
MOST_BORDER = 0.5
# Horizontally, the part of the narrower lung's box that may lie above or below the other's. Of
# 3,864 pairs none has more than 7 %.
MOST_SHARED = 0.5
# Grey levels of a lossy file that are near enough to black or white, and how many pixels must be.
_NEAR, _MOST_BETWEEN = 32, 0.02
_MANY_LEVELS = 16


@dataclasses.dataclass(frozen=True)
class Lungs:
    """Boxes of the two lungs, fractions of the mask's height and width, xyxy."""

    right: Float[np.ndarray, "4"]  # of the patient's right lung, on the left of the image
    left: Float[np.ndarray, "4"]  # of the patient's left lung
    specks: int  # parts that were left out


def find_lungs(
    levels: Sequence[Integer[np.ndarray, "h w"]], ignored: Collection[int] = ()
) -> Lungs:
    """The lungs of an image's mask.

    Args:
        levels: stored levels of one mask, 0 where there is nothing: the other level marks both
            lungs, two other levels a lung each; or of two masks, a lung each.
        ignored: levels that mark no lung.

    Raises:
        Unusable: it does not show two lungs beside each other; says what it shows.
    """
    marked = [part for one in levels for part in _labels(one, ignored)]
    if not marked or not any(label.any() for label in marked):
        raise Unusable("no_lung", "the mask is empty; expected two lungs")
    together = np.logical_or.reduce(marked)
    border = np.concatenate([together[0], together[-1], together[1:-1, 0], together[1:-1, -1]])
    if border.mean() > MOST_BORDER:
        found = f"the mask marks {border.mean():.0%} of the image's border"
        raise Unusable("inverted_mask", f"{found}; expected lungs in white on black: invert it")
    boxes, areas, specks = [], [], 0
    for label in marked:
        numbers, count = ndimage.label(label)
        sizes = np.bincount(numbers.ravel(), minlength=count + 1)[1:]
        for place, (rows, columns) in enumerate(ndimage.find_objects(numbers)):
            if sizes[place] < SPECK * together.sum():
                specks += 1
                continue
            boxes.append((columns.start, rows.start, columns.stop, rows.stop))
            areas.append(int(sizes[place]))
    shares = ", ".join(f"{area / together.sum():.0%}" for area in areas)
    if len(boxes) > 2:
        raise Unusable("three_lungs", f"the mask has {len(boxes)} parts ({shares}); expected two")
    if len(boxes) < 2 or min(areas) < SMALLEST * sum(areas):
        found = f"the mask has {len(boxes)} part{'s' * (len(boxes) > 1)} ({shares}); expected two"
        raise Unusable("one_lung", f"{found} lungs: mark those that touch by two levels")
    height, width = together.shape
    right, left = sorted(np.array(boxes) / [width, height, width, height], key=_centre)
    shared = right[2] - left[0]
    if shared > MOST_SHARED * min(right[2] - right[0], left[2] - left[0]):
        found = "the mask's two parts lie one above the other; expected lungs side by side"
        raise Unusable("lung_sides", found)
    return Lungs(right, left, specks)


def _centre(box: Float[np.ndarray, "4"]) -> float:
    return float(box[0] + box[2])


def _labels(
    levels: Integer[np.ndarray, "h w"], ignored: Collection[int]
) -> list[Bool[np.ndarray, "h w"]]:
    """The pixels of each level that marks something."""
    found = [int(level) for level in np.unique(levels)]
    if len(found) > _MANY_LEVELS:
        white = int(levels.max())
        between = (levels > _NEAR) & (levels < white - _NEAR)
        if white <= 2 * _NEAR or between.mean() > _MOST_BETWEEN:
            raise Unusable("not_a_mask", f"{len(found)} grey levels; expected a mask, not an image")
        return [2 * levels.astype(np.int64) > white]
    marks = [level for level in found if level and level not in ignored]
    if len(marks) > 2:
        raise Unusable(
            "not_a_mask",
            f"the levels {marks}; expected one that marks both lungs, or two, a lung each",
        )
    return [levels == level for level in marks]
