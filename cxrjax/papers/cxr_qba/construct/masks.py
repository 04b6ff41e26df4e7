"""Decodes masks of structures (COCO run lengths) one at a time, at a size that boxes need.

A chest radiograph of 3,000 x 2,500 pixels has 158 masks: whole, they are 1.2 GB. Runs are looked up
at every n-th row and column alone, within the structure's box, so that none is ever whole.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from cxrjax.records_io.quality import QualityLog
from cxrjax.untrusted.foreign_files import MIB, read_bytes
from cxrjax.untrusted.json_text import parse_object

# Ours: pixels of the longer side. A pixel of 512 is 5 to 6 of the original.
LONG_SIDE = 512
MAX_FILE = 8 * MIB  # bytes of masks or of a scene graph
# 5 bits each: more than these are no length of a run.
_MOST_PARTS = 7


def run_ends(counts: str | bytes) -> Int[np.ndarray, " runs"]:
    """Returns where runs end, of COCO's compressed lengths: background first, then in turn.

    Args:
        counts: 5 bits a character from "0" on, 32 for "continues", lengths as differences from the
            last but one (pycocotools' rleToString).

    Raises:
        ValueError: they are not run lengths.
    """
    data = np.frombuffer(counts.encode() if isinstance(counts, str) else counts, np.uint8)
    values = data.astype(np.int64) - 48
    if not len(values) or values.min() < 0 or values.max() > 63 or values[-1] & 32:
        raise ValueError("no compressed run lengths")
    last = np.flatnonzero(~(values & 32).astype(bool))
    first = np.concatenate([[0], last[:-1] + 1])
    length = last - first + 1
    if length.max() > _MOST_PARTS:
        raise ValueError("a run length that is no number")
    place = np.arange(len(values)) - np.repeat(first, length)
    parts = (values & 31) << (5 * place)
    numbers = np.add.reduceat(parts, first)
    # The last part's 16 says that the number is below zero.
    numbers -= np.where(values[last] & 16, np.int64(1) << (5 * length), 0)
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    if (numbers < 0).any():
        raise ValueError("a run of negative length")
    return np.cumsum(numbers)


def sampled(size: int, step: int) -> np.ndarray:
    """Returns the rows or columns that represent all."""
    return np.arange(min(step // 2, size - 1), size, step)


def check_lengths(lengths: Mapping[str, Any]) -> Int[np.ndarray, " runs"]:
    """Returns where runs end, of lengths that are as many pixels as their size says.

    Raises:
        ValueError: it does not.
    """
    height, width = lengths["size"]
    ends = run_ends(lengths["counts"])
    if ends[-1] != height * width:
        raise ValueError(f"{ends[-1]} pixels of {height * width}")
    return ends


def sample_runs(
    ends: Int[np.ndarray, " runs"], height: int, width: int, long_side: int = LONG_SIDE
) -> Bool[np.ndarray, "h w"]:
    """Decodes every n-th pixel of a mask's runs, column by column, so that its longer side has no
    more than `long_side`."""
    step = math.ceil(max(height, width) / long_side)
    rows, columns = sampled(height, step), sampled(width, step)
    small = np.zeros((len(rows), len(columns)), bool)
    starts, stops = ends[:-1:2], ends[1::2]
    starts = starts[: len(stops)]
    there = stops > starts
    if not there.any():
        return small
    # Columns with anything in them, and rows where no run goes on into the next column.
    low, high = starts[there][0] // height, (stops[there][-1] - 1) // height
    wanted = np.flatnonzero((columns >= low) & (columns <= high))
    if not len(wanted):
        return small
    top, bottom = starts[there] % height, (stops[there] - 1) % height
    within = top <= bottom
    y_low, y_high = (top.min(), bottom.max()) if within.all() else (0, height - 1)
    lines = np.flatnonzero((rows >= y_low) & (rows <= y_high))
    if not len(lines):
        return small
    pixels = columns[wanted, None] * height + rows[None, lines]
    inside = np.searchsorted(ends, pixels.ravel(), side="right").reshape(pixels.shape) & 1
    small[lines[0] : lines[-1] + 1, wanted[0] : wanted[-1] + 1] = inside.T.astype(bool)
    return small


class MaskFile(Mapping[str, np.ndarray]):
    """Structure -> mask at `LONG_SIDE`, of a COCO file that is read when it is first asked for.

    What is no mask is rejected in `quality`. Nothing decoded is kept: `items()` is a stream.
    """

    def __init__(
        self, path: Path, image_id: str, image_hw: tuple[int, int] | None, quality: QualityLog
    ) -> None:
        self._path, self._image_id, self._image_hw = path, image_id, image_hw
        self._quality = quality

    @functools.cached_property
    def _runs(self) -> dict[str, list[np.ndarray]]:
        """Ends of the runs of each structure's parts."""
        found: dict[str, list[np.ndarray]] = {}
        lists = ("categories", "annotations")
        categories, annotations = read_lists(self._path, self._image_id, lists, self._quality)
        names = {one.get("id"): one.get("name") for one in categories}
        for number, entry in enumerate(annotations):
            try:
                lengths, name = entry["segmentation"], str(names[entry["category_id"]])
                if tuple(lengths["size"]) != self._image_hw:
                    wrong = f"annotation {number}: {lengths['size']}; the image has "
                    self._set_aside("wrong_frame", f"{wrong}{self._image_hw}")
                    continue
                ends = check_lengths(lengths)
                found.setdefault(name, []).append(ends)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self._set_aside("invalid_record", f"annotation {number} is no mask: {error!r}")
        return found

    def _set_aside(self, reason: str, found: str) -> None:
        self._quality.set_aside(reason, self._image_id, self._path.name, found)

    def __getitem__(self, name: str) -> np.ndarray:
        # A structure in several parts may have an annotation for each.
        height, width = self._image_hw or (0, 0)  # all that were read have the image's size
        return np.logical_or.reduce([sample_runs(one, height, width) for one in self._runs[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)


def read_lists(
    path: Path, image_id: str, names: tuple[str, ...], quality: QualityLog
) -> list[list[dict[str, Any]]]:
    """Reads lists of objects in a file, by name.

    Empty where there is no file (lateral views have no regions) or where it is rejected.
    """
    if not path.is_file():
        return [[] for _ in names]
    try:
        content = parse_object(read_bytes(path, MAX_FILE))
        lists = [content[name] for name in names]
        for name, entry in zip(names, lists, strict=True):
            if not isinstance(entry, list) or not all(isinstance(one, dict) for one in entry):
                raise ValueError(f"{name} is no list of objects")
    except (OSError, ValueError, KeyError) as error:
        quality.set_aside("invalid_graph", image_id, path.name, f"not as expected: {error!r}")
        return [[] for _ in names]
    return lists
