"""Segmentation masks as boxes: a box around each connected part.

masks/CLASS/NAME.png      marked or not; the folder has "mask" or "segmentation" in its name
masks/NAME_CLASS.png      the same
CLASSmask/NAME.png        the same
masks/NAME.png            levels are numbers of classes (--classes), or all are of one (--label)

A folder of another name holds masks where its files are named like images elsewhere and have two
levels.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Integer

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.folder import MASK_WORDS, Folder, split_of
from cxrjax.errors import UserError
from cxrjax.records_io.quality import PixelBox, Unusable
from cxrjax.untrusted.names import shown

_ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
_READER = re.compile(rf"(?:{'|'.join(an.WORDS['columns']['reader'])})(?:\d{{1,3}}|[a-d])")
_NO_CLASS = re.compile(an.WORDS["patterns"]["no_class"])
# Ours: parts of fewer of a mask's pixels are specks of the brush.
_SPECK = 1e-4
_MOST_LEVELS = 64
_MOST_PARTS = 200
_MOST_PACKED = 1_000_000  # bytes of a brush mask
_MOST_PIXELS = 24_000_000


def read(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of one mask; one that marks nothing means that its class is absent."""
    where = folder.where(path)
    try:
        name, label, reader = _whose(folder, path)
        yield an.Annotation(name, where, reader=reader)
        size = folder.size(name)
        for of_class, mask in _by_class(_levels(path), label, said, path):
            boxes, specks = boxes_of(mask, size)
            if specks:
                found.quality.warnings["specks of masks left out"] += specks
            for box in boxes:
                yield an.Annotation(name, where, "", an.Shape(box), of_class, reader)
    except Unusable as why:
        yield an.Rejected(where, "", why, path.stem)


def _whose(folder: Folder, path: Path) -> tuple[str, str, str]:
    """The image that a mask is of, its class and its reader; "" where its name contains none."""
    parts = path.relative_to(folder.root).parts[:-1]
    reader = next((part for part in parts if _READER.fullmatch(an.plain(part))), "")
    parts = tuple(part for part in parts if part != reader)
    split = next((part for part in parts if split_of(part)), "")
    words = [_NO_CLASS.sub(" ", part).strip() for part in parts if part != split]
    above = [part for part in parts if part != split]
    # Of folders above the one of masks only that itself can name a class.
    start = next((n for n, part in enumerate(above) if _NO_CLASS.search(part)), len(above) - 1)
    named = [word for word in words[max(start, 0) :] if word]
    stem = path.stem
    for candidate in _within(stem):
        if folder.has(candidate):
            rest = _NO_CLASS.sub(" ", stem.replace(candidate, " ", 1)).strip()
            rest = "" if rest.isdigit() else rest
            image = candidate
            if split and folder.has(f"{split}/{candidate}"):
                image = f"{split}/{candidate}"
            return image, named[-1] if named else rest, reader
    raise Unusable("unmatched_mask", f"no image is named {shown(stem)}, or as its beginning")


def _within(stem: str) -> list[str]:
    """The name, what of it ends before a sign, and what follows a word for masks, longest first."""
    places = [place for place, sign in enumerate(stem) if sign in "_- "]
    begins = [stem, *(stem[:place] for place in reversed(places) if place)]
    ends = [stem[at + 1 :] for at in places if not _NO_CLASS.sub("", stem[:at])]
    return begins + [end for end in ends if end]


def _levels(path: Path) -> Integer[np.ndarray, "h w"]:
    from cxrjax.images.decode import read_levels
    from cxrjax.images.files import ImageError

    try:
        return read_levels(path)
    except ImageError as error:
        raise Unusable("not_a_mask", str(error)) from None


def _by_class(
    levels: Integer[np.ndarray, "h w"], label: str, said: an.Stated, path: Path
) -> list[tuple[str, Bool[np.ndarray, "h w"]]]:
    """(class, where it is) of a mask; Unusable if it is an image."""
    found = [int(level) for level in np.unique(levels) if level]
    if len(found) > _MOST_LEVELS or len(found) > len(said.classes) > 0:
        told = f"{len(found)} levels besides 0; expected one, or numbers of classes"
        raise Unusable("not_a_mask", told)
    one = (said.label if label.lower() in ("left", "right") else "") or label or said.label
    if one and not said.classes:
        if len(found) > 1:
            # The edges of a mask that was scaled or compressed.
            return [(one, levels > max(found) // 2)]
        return [(one, levels > 0)]
    if not said.classes:
        raise UserError(
            f"{path}: the class of this mask is unknown; pass --label=NAME, --classes=NAME,NAME "
            "for levels 1, 2 and so on, or put masks into one folder per class"
        )
    if found and max(found) > len(said.classes):
        told = f"level {max(found)}, and --classes names {len(said.classes)}"
        raise Unusable("unknown_class", told)
    return [(said.classes[level - 1], levels == level) for level in found]


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


def boxes_of_runs(text: str, image_hw: tuple[int, int]) -> list[PixelBox]:
    """Boxes of a mask in Kaggle's runs, start and length down the columns; none of -1.

    Starts count from 1, or (SIIM-ACR) from the end of the run before.

    Raises:
        Unusable: they are others, or leave the image.
    """
    words = text.split()
    if words in ([], ["-1"], ["nan"], ["1", "0"]):
        return []
    height, width = image_hw
    if height * width > _MOST_PIXELS:
        raise Unusable("mask_size", f"a mask of {height:,} x {width:,}, at most {_MOST_PIXELS:,}")
    if len(words) % 2 or not all(word.isdecimal() and len(word) < 10 for word in words):
        raise Unusable("bad_box", f"{shown(text)} is no mask in runs of start and length")
    starts, lengths = np.array(words, np.int64).reshape(-1, 2).T
    ends = starts + lengths
    if (starts[1:] >= ends[:-1]).all():
        starts = starts - 1
    else:
        starts = np.cumsum(starts) + np.cumsum(lengths) - lengths
    if (starts[:1] < 0).any() or starts[-1] + lengths[-1] > height * width:
        told = f"a mask in runs up to pixel {starts[-1] + lengths[-1]:,} of {height} x {width}"
        raise Unusable("bad_box", told)
    edges = np.zeros(height * width + 1, np.int8)
    np.add.at(edges, starts, 1)
    np.add.at(edges, starts + lengths, -1)
    mask = np.cumsum(edges[:-1], dtype=np.int8).reshape(width, height).T > 0
    return boxes_of(mask, image_hw)[0]


def boxes_of_brush(packed: Any, image_hw: tuple[int, int] | None) -> list[PixelBox]:
    """Boxes of a mask as Label Studio's brush packs it: bits of words and of runs, RGBA.

    https://github.com/HumanSignal/label-studio-sdk, converter/brush.py

    Raises:
        Unusable: it is something else, or too large.
    """
    is_bytes = isinstance(packed, list) and all(type(b) is int and 0 <= b < 256 for b in packed)
    if image_hw is None or not is_bytes or not 0 < len(packed) <= _MOST_PACKED:
        raise Unusable("bad_box", "a brush mask without its size, or of other than bytes")
    bits = "".join(f"{byte:08b}" for byte in packed)
    place = 0

    def number(width: int) -> int:
        nonlocal place
        place += width
        if place > len(bits):
            raise Unusable("bad_box", "a brush mask that is cut off")
        return int(bits[place - width : place], 2)

    count, word = number(32), number(5) + 1
    if not 0 < count == 4 * image_hw[0] * image_hw[1] <= 4 * _MOST_PIXELS:
        raise Unusable("mask_size", f"a brush mask of {count // 4:,} pixels, of {list(image_hw)}")
    sizes = [number(4) + 1 for _ in range(4)]
    levels = np.zeros(count, np.uint8)
    at = 0
    while at < count:
        is_run = number(1)
        length = number(sizes[number(2)]) + 1
        if is_run:
            levels[at : at + length] = number(word) > 0
        else:
            levels[at : at + length] = [number(word) > 0 for _ in range(length)][: count - at]
        at += length
    return boxes_of(levels.reshape(*image_hw, 4)[..., 3] > 0, image_hw)[0]


def mask_files(folder: Folder) -> list[Path]:
    """Images in folders of masks, or in folders whose images look like masks of others."""
    drawn = [path for path in folder.masks if os.path.splitext(path)[1].lower() in _ENDINGS]
    if drawn:
        return drawn
    by_folder: dict[Path, list[Path]] = {}
    for path in folder.images:
        by_folder.setdefault(path.parent, []).append(path)
    found: list[Path] = []
    stems = {path.stem.lower() for path in folder.images}
    for parent, files in sorted(by_folder.items()):
        # Beside their images masks have a word for it in their names.
        named = [one for one in files if any(word in one.stem.lower() for word in MASK_WORDS)]
        if named and len(named) < len(files):
            files = [one for one in named if stems & {*_within(one.stem.lower())[1:]}]
        else:
            others = {p.stem.lower() for p in folder.images if p.parent != parent}
            if not all(others & {*_within(path.stem.lower())} for path in files):
                continue
        if files and all(map(_has_two_levels, files[:3])):
            found += files
    folder.leave_out(found)
    return found


def _has_two_levels(path: Path) -> bool:
    with contextlib.suppress(Unusable):
        return len(np.unique(_levels(path))) <= 2
    return False
