"""Boxes made to lie on their images: cut at an edge, left out alone, or all of them in doubt.

Releases have a few boxes that reach beyond their image or have no area. Where most of those that
belong together do, they are on another frame than they are said to be, and none can be trusted.
"""

import dataclasses
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from cxrjax.records_io.quality import PixelBox, Unusable, check_area

# What quality.json says of boxes that reached beyond their image.
CUT = "boxes cut at an edge of their image"
# Ours: pixels that a box may reach beyond its image by rounding, no sign of a wrong frame.
ROUNDING = 1.0

Key = TypeVar("Key", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class GivenBox(Generic[Key]):
    """A box as a source has it.

    Attributes:
        key: what tells it from others.
        box: pixels, (x_min, y_min, x_max, y_max).
        image_hw: the image's (height, width), None where it is not known.
        label: whose it is, for messages.
    """

    key: Key
    box: PixelBox
    image_hw: tuple[int, int] | None
    label: str


@dataclasses.dataclass(frozen=True)
class FittedBoxes(Generic[Key]):
    """Every given box is in `boxes` or in `faults`.

    Attributes:
        boxes: those that lie on their images.
        cut: which of them were cut.
        faults: those left out, and why.
    """

    boxes: dict[Key, PixelBox]
    cut: set[Key]
    faults: dict[Key, Unusable]


def cut_box(box: PixelBox, image_hw: tuple[float, float] | None, label: str = "") -> PixelBox:
    """A box cut at its image's edges; one that fits as it is, whole numbers included.

    Args:
        box: pixels, (x_min, y_min, x_max, y_max).
        image_hw: the image's (height, width); without it only the left and upper edge are known.
        label: the box's class, for the message.

    Raises:
        Unusable: `bad_box`, it has no area; `box_outside_image`, it lies beside the image.
    """
    check_area(box, label)
    x_min, y_min, x_max, y_max = box
    height, width = image_hw or (float("inf"), float("inf"))
    left, top, right, bottom = max(x_min, 0), max(y_min, 0), min(x_max, width), min(y_max, height)
    if left >= right or top >= bottom:
        size = f" of {image_hw[0]:g}x{image_hw[1]:g} (height x width)" if image_hw else ""
        name = f"{label} box {list(box)}".strip()
        raise Unusable("box_outside_image", f"{name} lies beside the image{size}")
    return left, top, right, bottom


def fit_boxes(given: Iterable[GivenBox[Key]]) -> FittedBoxes[Key]:
    """Boxes that belong together, each on its image.

    A box of at most one pixel in the first corner is one of fractions among pixels, and left out.

    Raises:
        Unusable: `wrong_frame`: more than one and most of them are left out, or are cut by more
            than rounding explains.
    """
    boxes: dict[Key, PixelBox] = {}
    cut: set[Key] = set()
    faults: dict[Key, Unusable] = {}
    misfits: list[str] = []
    for one in given:
        try:
            fitted = cut_box(one.box, one.image_hw, one.label)
            if max(one.box) <= 1:
                name = f"{one.label} box {list(one.box)}".strip()
                raise Unusable("wrong_frame", f"{name} looks like fractions; expected pixels")
        except Unusable as fault:
            faults[one.key] = fault
            misfits.append(fault.found)
            continue
        boxes[one.key] = fitted
        beyond = max(abs(old - new) for old, new in zip(one.box, fitted, strict=True))
        if beyond:
            cut.add(one.key)
        if beyond > ROUNDING:
            found = f"{one.label} box {list(one.box)}".strip()
            misfits.append(f"{found} reaches {beyond:g} pixels beyond the image")
    total = len(boxes) + len(faults)
    if len(misfits) > 1 and 2 * len(misfits) > total:
        raise Unusable(
            "wrong_frame", f"{len(misfits)} of {total} boxes do not fit, the first: {misfits[0]}"
        )
    return FittedBoxes(boxes, cut, faults)
