"""Segmentation masks as boxes: a box around each connected part.

masks/CLASS/NAME.png      marked or not
masks/NAME_CLASS.png      the same
masks/NAME.png            levels are numbers of classes (--classes), or all are of one (--label)
"""

import os
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Integer

from cxrjax.apps.annotations.folder import MASK_FOLDERS, Folder
from cxrjax.apps.annotations.table import Annotations, MarkedBox, MarkedImage, Stated, label_of
from cxrjax.errors import UserError
from cxrjax.records_io.quality import PixelBox, Unusable
from cxrjax.untrusted.names import shown

# Ours: parts of fewer of a mask's pixels are specks of the brush.
_SPECK = 1e-4
_MOST_LEVELS = 64
_MOST_PARTS = 200


def read(folder: Folder, files: list[Path], said: Stated, found: Annotations) -> None:
    """Reads all masks; one that marks nothing says that its class is not there.

    Raises:
        UserError: nothing names a class.
    """
    specks = 0
    for path in files:
        where = folder.where(path)
        try:
            name, label = _whose(folder, path)
            found.add_image(MarkedImage(name, where))
            levels = _levels(path)
            size = folder.size(name)
            for of_class, mask in _by_class(levels, label, said, path):
                boxes, left_out = boxes_of(mask, size)
                specks += left_out
                found.quality.examined["boxes"] += len(boxes)
                found.boxes += [MarkedBox(name, of_class, box, where) for box in boxes]
        except Unusable as why:
            found.set_aside(why, path.stem, where)
    if specks:
        found.quality.warnings["specks of masks left out"] += specks
    found.told.append("masks: a box around each connected part")


def _whose(folder: Folder, path: Path) -> tuple[str, str]:
    """The image that a mask is of, and its class; "" where its name tells none."""
    parts = path.relative_to(folder.root).parts
    start = next(place for place, part in enumerate(parts) if part.lower() in MASK_FOLDERS)
    nested = [
        part for part in parts[start + 1 : -1] if part.lower() not in ("train", "val", "test")
    ]
    label = nested[-1] if nested else ""
    stem = path.stem
    for candidate in _beginnings(stem):
        if folder.size_or_none(candidate) is not None:
            rest = stem[len(candidate) :].strip("_- ")
            if rest.lower() in ("mask", "seg", "segmentation", "label"):
                rest = ""
            return candidate, label or rest
    raise Unusable("unmatched_mask", f"no image is named {shown(stem)}, or as its beginning")


def _beginnings(stem: str) -> list[str]:
    """The name and what of it ends before a sign, the longest first."""
    return [stem] + [stem[:place] for place in range(len(stem) - 1, 0, -1) if stem[place] in "_- "]


def _levels(path: Path) -> Integer[np.ndarray, "h w"]:
    from cxrjax.images.decode import read_levels
    from cxrjax.images.files import ImageError

    try:
        return read_levels(path)
    except ImageError as error:
        raise Unusable("not_a_mask", str(error)) from None


def _by_class(
    levels: Integer[np.ndarray, "h w"], label: str, said: Stated, path: Path
) -> list[tuple[str, Bool[np.ndarray, "h w"]]]:
    """(class, where it is) of a mask.

    Raises:
        Unusable: it is a picture.
        UserError: nothing names its classes.
    """
    found = [int(level) for level in np.unique(levels) if level]
    if len(found) > _MOST_LEVELS or len(found) > len(said.classes) > 0:
        told = f"{len(found)} levels besides 0; expected one, or numbers of classes"
        raise Unusable("not_a_mask", told)
    one = label or said.label
    if one and not said.classes:
        if len(found) > 1:
            # The edges of a mask that was scaled or compressed.
            return [(label_of(one), levels > max(found) // 2)]
        return [(label_of(one), levels > 0)]
    if not said.classes:
        raise UserError(
            f"{path}: the class of this mask is unknown; pass --label=NAME, --classes=NAME,NAME "
            "for levels 1, 2 and so on, or put masks into one folder per class"
        )
    if found and max(found) > len(said.classes):
        told = f"level {max(found)}, and --classes names {len(said.classes)}"
        raise Unusable("unknown_class", told)
    return [(label_of(said.classes[level - 1]), levels == level) for level in found]


def boxes_of(
    mask: Bool[np.ndarray, "h w"], image_hw: tuple[int, int]
) -> tuple[list[PixelBox], int]:
    """Boxes around the parts of a mask in pixels of its image, and how many specks were left out.

    Raises:
        Unusable: the mask is no resize of the image, or of a great many parts.
    """
    from scipy import ndimage

    from cxrjax.images.geometry import is_resize

    size = (mask.shape[0], mask.shape[1])
    if size != image_hw and not is_resize(size, image_hw):
        told = f"the mask has {list(size)} (height, width), the image {list(image_hw)}"
        raise Unusable("mask_size", told)
    if mask.all():
        raise Unusable("inverted_mask", "all of the mask is marked")
    down, across = image_hw[0] / size[0], image_hw[1] / size[1]
    numbers, count = ndimage.label(mask, np.ones((3, 3)))
    areas = np.bincount(numbers.ravel(), minlength=count + 1)[1:]
    boxes = []
    for area, (rows, columns) in zip(areas, ndimage.find_objects(numbers), strict=True):
        if area >= _SPECK * mask.size:
            box = (columns.start * across, rows.start * down, columns.stop * across)
            boxes.append((*(round(edge, 2) for edge in box), round(rows.stop * down, 2)))
    if len(boxes) > _MOST_PARTS:
        raise Unusable("not_a_mask", f"{len(boxes)} parts, expected at most {_MOST_PARTS}")
    return boxes, count - len(boxes)


def mask_files(folder: Folder) -> list[Path]:
    """Pictures in folders of masks."""
    endings = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
    return [path for path in folder.masks if os.path.splitext(path)[1].lower() in endings]
