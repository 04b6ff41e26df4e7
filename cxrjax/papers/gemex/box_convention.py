"""Decides if a file's boxes are [x_min, y_min, x_max, y_max] or [x, y, width, height].

The released boxes are the first, as their values show; the author of the data set and another user
of it say the second. So each file is judged by its own boxes, on the frame of 224 pixels.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from cxrjax.codecs.prose import SIDE
from cxrjax.errors import UserError
from cxrjax.records_io.quality import Unusable

BoxFormat = Literal["xyxy", "xywh"]


BOX_FORMATS = ("auto", "xyxy", "xywh")


@dataclasses.dataclass(frozen=True)
class Evidence:
    """How many boxes of a file can be read in which way.

    Attributes:
        either: as both; xyxy, xywh: in this way alone; neither: in none.
    """

    either: int = 0
    xyxy: int = 0
    xywh: int = 0
    neither: int = 0


def weigh(boxes: Iterable[Any]) -> Evidence:
    """The evidence of a file's boxes."""
    counts = collections.Counter(
        (_is_box(box) and _fits_corners(box), _is_box(box) and _fits_size(box)) for box in boxes
    )
    return Evidence(
        either=counts[True, True],
        xyxy=counts[True, False],
        xywh=counts[False, True],
        neither=counts[False, False],
    )


def decide(evidence: Evidence, where: str) -> BoxFormat:
    """The one convention that a file keeps to; xyxy where its boxes could be both.

    Raises:
        UserError: some boxes are xyxy alone and others xywh alone.
    """
    if evidence.xyxy and evidence.xywh:
        raise UserError(
            f"{where}: {evidence.xyxy} boxes can only be [x_min, y_min, x_max, y_max] and "
            f"{evidence.xywh} only [x, y, width, height] on {SIDE} pixels; name one by "
            "--coord_format=xyxy or xywh, and the others are set aside"
        )
    return "xywh" if evidence.xywh else "xyxy"


def to_corners(box: Any, box_format: BoxFormat) -> tuple[float, float, float, float]:
    """A native box as xyxy on the frame of 224.

    Raises:
        Unusable: `bad_box`, four numbers are missing; `wrong_frame`, they are no box of the frame.
    """
    if not _is_box(box):
        raise Unusable("bad_box", f"{box!r}; expected four numbers")
    if not (_fits_corners(box) if box_format == "xyxy" else _fits_size(box)):
        raise Unusable("wrong_frame", f"{list(box)} is no {box_format} box within {SIDE} pixels")
    x, y, a, b = box
    return (x, y, a, b) if box_format == "xyxy" else (x, y, x + a, y + b)


def _is_box(box: Any) -> bool:
    return (
        isinstance(box, Sequence)
        and len(box) == 4
        and all(type(value) in (int, float) for value in box)
    )


def _fits_corners(box: Sequence[float]) -> bool:
    return 0 <= box[0] < box[2] <= SIDE and 0 <= box[1] < box[3] <= SIDE


def _fits_size(box: Sequence[float]) -> bool:
    x, y, width, height = box
    return x >= 0 and y >= 0 and 0 < width <= SIDE - x and 0 < height <= SIDE - y
