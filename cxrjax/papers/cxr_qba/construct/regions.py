"""Boxes and masks of all regions on an image, from those that are given.

What is given are the boxes of Chest ImaGenome (29 structures) and masks of structures; the rest is
derived as reference/regions.json says: unions, intersections, boxes around several, parts of boxes.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import ndimage

from cxrjax import boxes as box_arithmetic
from cxrjax.papers.cxr_qba.construct.extraction import Box, StudyImage
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.records_io.quality import CUT, GivenBox, QualityLog, Unusable, fit_boxes

# Ours: a region below this share of the image, or of this many pixels, can't be pointed at.
MIN_AREA_SHARE = 1e-4
MIN_SIDE_PIXELS = 4
# Ours: boxes of one region that overlap this much are one box, said twice.
DUPLICATE_IOU = 0.9


@dataclasses.dataclass(frozen=True)
class LocalizedRegion:
    """A region on an image."""

    boxes: tuple[Box, ...]  # pixels, xyxy
    # [height, width] bool where the region has one, of the whole image at any size.
    mask: np.ndarray | None = None
    masked: bool = False  # whether it had a mask that is not kept

    @property
    def has_mask(self) -> bool:
        """True for a region with a mask, here or where it was cached from."""
        return self.masked or self.mask is not None


def localize(image: StudyImage, quality: QualityLog | None = None) -> dict[str, LocalizedRegion]:
    """Returns every region that an image gives, given ones first.

    Boxes are cut at the image's edges, which is counted in `quality`. Those that are unusable (no
    area, beside the image, fractions) are rejected there, and all of an image where most do not
    fit it. Given regions that are too small or have no definition are counted.
    """
    quality = quality or QualityLog()
    known = load_definitions()
    found: dict[str, LocalizedRegion] = {}
    given = ((name, None, mask) for name, mask in image.masks.items())
    boxed = ((name, boxes, None) for name, boxes in _usable(image, quality).items())
    for name, boxes, mask in itertools.chain(given, boxed):
        region = known.source_names.get(name, name)
        if region not in known.regions:
            quality.warnings["given regions that have no definition"] += 1
            continue
        if mask is not None:
            made = _from_mask(np.asarray(mask, bool), image)
        elif boxes and region not in found:
            large = _large_enough(fuse_duplicates(boxes), image.image_hw)
            made = LocalizedRegion(large) if large else None
        else:
            continue
        if made:
            found[region] = made
        else:
            quality.warnings["given regions too small to be pointed at"] += 1
    for name in known.regions:
        _derive(name, found, image, set())
    return found


def fuse_duplicates(boxes: Sequence[Box]) -> tuple[Box, ...]:
    """Averages boxes with an earlier one that they overlap by more than `DUPLICATE_IOU`."""
    groups: list[list[Box]] = []
    for box in boxes:
        for group in groups:
            first = np.asarray(group[0], np.float32)
            if float(box_arithmetic.iou(first, np.asarray(box, np.float32))) > DUPLICATE_IOU:
                group.append(box)
                break
        else:
            groups.append([box])
    # One box stays as it is, whole pixels included.
    return tuple(
        group[0] if len(set(group)) == 1 else _box(np.asarray(group, np.float64).mean(axis=0))
        for group in groups
    )


def _box(values: Iterable[float]) -> Box:
    x_min, y_min, x_max, y_max = (float(value) for value in values)
    return x_min, y_min, x_max, y_max


def clean_mask(mask: np.ndarray) -> np.ndarray:
    """A mask opened and closed by 3x3, holes filled, specks taken away.

    Args:
        mask: [height, width] bool.

    Returns:
        The same; parts under a twentieth of the largest one are specks.
    """
    if (inside := _bounds(mask)) is None:
        return mask
    around = tuple(slice(max(s.start - 2, 0), s.stop + 2) for s in inside)
    block = np.pad(mask[around], 2)
    opened = _over_3x3(_over_3x3(block, np.logical_and), np.logical_or)
    block = _over_3x3(_over_3x3(opened, np.logical_or), np.logical_and)
    block = ndimage.binary_fill_holes(block)[2:-2, 2:-2]
    labels, count = ndimage.label(block, np.ones((3, 3), int))
    if count > 1:
        sizes = np.bincount(labels.ravel())[1:]
        block = np.isin(labels, 1 + np.flatnonzero(sizes * 20 >= sizes.max()))
    cleaned = np.zeros_like(mask)
    cleaned[around] = block
    return cleaned


def _over_3x3(block: np.ndarray, join: np.ufunc) -> np.ndarray:
    """Erosion (logical_and) or dilation (logical_or) by a square of 3x3; nothing lies outside."""
    padded = np.pad(block, 1)
    rows = join(join(padded[:-2], padded[1:-1]), padded[2:])
    return join(join(rows[:, :-2], rows[:, 1:-1]), rows[:, 2:])


def mask_boxes(mask: np.ndarray) -> tuple[Box, ...]:
    """A box around each connected part of [height, width], outlines of pixels."""
    if (inside := _bounds(mask)) is None:
        return ()
    labels, _ = ndimage.label(mask[inside], np.ones((3, 3), int))
    top, left = (one.start for one in inside)
    return tuple(
        (float(x.start + left), float(y.start + top), float(x.stop + left), float(y.stop + top))
        for y, x in ndimage.find_objects(labels)
    )


def _bounds(mask: np.ndarray) -> tuple[slice, slice] | None:
    """Rows and columns that hold all of a mask; None where there is nothing."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return None
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)


def _from_mask(mask: np.ndarray, image: StudyImage) -> LocalizedRegion | None:
    cleaned = clean_mask(mask)
    boxes = _large_enough(_boxes_on(image, cleaned), image.image_hw or mask.shape)
    return LocalizedRegion(boxes, cleaned) if boxes else None


def _boxes_on(image: StudyImage, mask: np.ndarray) -> tuple[Box, ...]:
    """A box around each part of a mask, which may be smaller than its image, in image pixels."""
    height, width = image.image_hw or mask.shape
    by_y, by_x = height / mask.shape[0], width / mask.shape[1]
    if (by_y, by_x) == (1, 1):
        return mask_boxes(mask)
    return tuple(
        (round(x0 * by_x, 1), round(y0 * by_y, 1), round(x1 * by_x, 1), round(y1 * by_y, 1))
        for x0, y0, x1, y1 in mask_boxes(mask)
    )


def _usable(image: StudyImage, quality: QualityLog) -> dict[str, list[Box]]:
    """The image's boxes by name, with an empty list where none of them can be used."""
    usable: dict[str, list[Box]] = {name: [] for name in image.boxes}
    try:
        fitted = fit_boxes(
            GivenBox((name, number), box, image.image_hw, name)
            for name, boxes in image.boxes.items()
            for number, box in enumerate(boxes)
        )
    except Unusable as fault:
        quality.set_aside(fault.reason, image.image_id, "boxes", fault.found)
        return usable
    for (name, _), one in fitted.faults.items():
        quality.set_aside(one.reason, image.image_id, name, one.found)
    for (name, _), box in fitted.boxes.items():
        usable[name].append(box)
    if fitted.cut:
        quality.warnings[CUT] += len(fitted.cut)
    return usable


def _large_enough(boxes: Sequence[Box], image_hw: tuple[int, int] | None) -> tuple[Box, ...]:
    least = MIN_AREA_SHARE * image_hw[0] * image_hw[1] if image_hw else 0.0
    return tuple(
        box
        for box in boxes
        if min(box[2] - box[0], box[3] - box[1]) >= MIN_SIDE_PIXELS
        and (box[2] - box[0]) * (box[3] - box[1]) >= least
    )


def _derive(
    name: str, found: dict[str, LocalizedRegion], image: StudyImage, open_names: set[str]
) -> LocalizedRegion | None:
    """Returns the region given or derived, operands first; None where they are missing."""
    if name in found:
        return found[name]
    region = load_definitions().regions[name]
    if region.derive is None or not region.localized or name in open_names:
        return None
    rule = region.derive
    operands = [_derive(other, found, image, open_names | {name}) for other in rule["of"]]
    present = [operand for operand in operands if operand is not None]
    # A union of what is there is still right; an intersection or a box around all is not.
    if not present or (rule["op"] != "union" and len(present) < len(operands)):
        return None
    made = _apply(rule, present, image)
    boxes = _large_enough(made.boxes, image.image_hw)
    if not boxes:
        return None
    found[name] = LocalizedRegion(boxes, made.mask)
    return found[name]


def _apply(
    rule: Mapping[str, Any], operands: Sequence[LocalizedRegion], image: StudyImage
) -> LocalizedRegion:
    """Applies a rule of reference/regions.json to the regions that it is about."""
    operation = rule["op"]
    boxes = [box for operand in operands for box in operand.boxes]
    masks = [operand.mask for operand in operands if operand.mask is not None]
    masked = len(masks) == len(operands)
    if operation == "union":
        mask = np.logical_or.reduce(masks) if masked else None
        return LocalizedRegion(fuse_duplicates(boxes), mask)
    if operation == "super":
        return LocalizedRegion((_around(boxes),))
    if operation == "intersection" and masked:
        mask = clean_mask(np.logical_and.reduce(masks))
        return LocalizedRegion(_boxes_on(image, mask), mask)
    corners = np.array([_around(operand.boxes) for operand in operands])
    if operation == "intersection":
        low, high = corners[:, :2].max(axis=0), corners[:, 2:].min(axis=0)
        return LocalizedRegion((_box((*low, *high)),) if (low < high).all() else ())
    low, high = corners[0, :2], corners[0, 2:]
    if operation == "part":
        shares = np.asarray(rule["box"], np.float64)
        return LocalizedRegion((_box(np.tile(low, 2) + shares * np.tile(high - low, 2)),))
    assert operation == "grow"
    by = (rule["factor"] - 1) * (high - low) / 2
    edges = image.image_hw[::-1] if image.image_hw else np.inf
    low, high = np.maximum(low - by, 0.0), np.minimum(high + by, edges)
    return LocalizedRegion((_box((*low, *high)),))


def _around(boxes: Sequence[Box]) -> Box:
    corners = np.asarray(boxes, np.float64)
    return _box((*corners[:, :2].min(axis=0), *corners[:, 2:].max(axis=0)))
