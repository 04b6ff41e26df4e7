"""Lesions: the boxes that several readers drew around one thing, as one.

A question is about lesions, not about boxes: three readers' boxes of one nodule are one place. What
is shown of a lesion stays a box that a reader drew (labels and boxes are copied, section 2.1 of the
paper): the one that agrees best with the others.
"""

import dataclasses
from collections.abc import Sequence

from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.records_io.quality import PixelBox
from cxrjax.records_io.readers import COPY_IOU, DEFAULT_IOU

# Of these a chest has one: boxes of several readers are of it, however little they overlap.
ORGANS = ("Aortic enlargement", "Cardiomegaly")
_WITHIN = 0.8  # of the smaller box


@dataclasses.dataclass(frozen=True)
class ReaderLesion:
    """One place of a finding: the box that shows it, and how many readers marked it."""

    box: PixelBox
    readers: int


def find_lesions(image: ImageAnnotation, label: str) -> list[ReaderLesion]:
    """Returns the lesions of a class in reading order: from the top, then from the left.

    Boxes of different readers are linked where they overlap by the `DEFAULT_IOU` of `components`
    (`readers.py`), or where one lies within the other: a reader who drew less of an area marked no
    second one. An annotation without readers has one lesion a box.
    """
    drawn = [
        (rad_id, finding.box)
        for rad_id, marked in image.readers.items()
        for finding in marked
        if finding.label == label
    ]
    if not drawn:
        return [ReaderLesion(box, 0) for box in image.boxes_of(label)]
    kept: list[tuple[str, PixelBox]] = []
    for rad_id, box in drawn:
        if not any(rad_id == other and iou(box, seen) >= COPY_IOU for other, seen in kept):
            kept.append((rad_id, box))
    groups = [kept] if label in ORGANS else _linked(kept)
    lesions = [
        ReaderLesion(_medoid([b for _, b in one]), len({r for r, _ in one})) for one in groups
    ]
    return sorted(lesions, key=lambda one: _reading_order(one.box))


def _reading_order(box: PixelBox) -> tuple[float, ...]:
    return box[1], box[0], box[3], box[2]


def count_range(image: ImageAnnotation, label: str) -> tuple[int, int]:
    """Returns the fewest and the most boxes of a class by a reader who marked it, or (0, 0)."""
    counts = [sum(one.label == label for one in marked) for marked in image.readers.values()]
    counts = [count for count in counts if count]
    return (min(counts), max(counts)) if counts else (0, 0)


def _linked(boxes: Sequence[tuple[str, PixelBox]]) -> list[list[tuple[str, PixelBox]]]:
    groups: list[list[tuple[str, PixelBox]]] = []
    for rad_id, box in boxes:
        touching = [
            group
            for group in groups
            if any(rad_id != other and _same_area(box, seen) for other, seen in group)
        ]
        joined = [(rad_id, box), *(one for group in touching for one in group)]
        groups = [group for group in groups if group not in touching] + [joined]
    return groups


def _same_area(a: PixelBox, b: PixelBox) -> bool:
    within = shared_area(a, b) >= _WITHIN * min(area(a), area(b))
    return within or iou(a, b) >= DEFAULT_IOU["components"]


def _medoid(boxes: Sequence[PixelBox]) -> PixelBox:
    """Returns the box that overlaps most with all; of equals the first in reading order."""
    ordered = sorted(boxes, key=_reading_order)
    return max(ordered, key=lambda box: sum(iou(box, other) for other in boxes))


def iou(a: PixelBox, b: PixelBox) -> float:
    """Intersection over union of two boxes (`cxrjax.boxes.iou` starts an array for each)."""
    shared = shared_area(a, b)
    return shared / (area(a) + area(b) - shared) if shared else 0.0


def shared_area(a: PixelBox, b: PixelBox) -> float:
    """Returns the area that two boxes have in common, square pixels."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return max(width, 0.0) * max(height, 0.0)


def area(box: PixelBox) -> float:
    """Square pixels."""
    return (box[2] - box[0]) * (box[3] - box[1])
