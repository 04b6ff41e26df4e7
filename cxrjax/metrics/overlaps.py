"""Finds which predicted boxes overlap which true ones, on many images at once.

Every figure about boxes follows from the pairs that overlap at all, so they are found once and
serve all thresholds and all ways of matching. Boxes of all images stand in one array: a pair of
indexes and an IoU take 24 bytes, and nothing runs image by image in Python.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from cxrjax.boxes import iou

# Overlap counts when it is greater than the threshold. Rounding (float32 codecs, pixels divided by
# a size) moves an IoU by some 1e-7; an IoU of exactly 0.3 must not become a hit by that.
TOLERANCE = 1e-6

# Class of a box whose class nobody knows: it matches nothing where classes count.
NO_CLASS = -1

# Pairs compared at once: some 100 MB.
_CHUNK = 500_000


@dataclass(frozen=True)
class ImageBoxes:
    """Boxes of many images, image after image.

    Attributes:
        boxes: xyxy, those of one image in one unit, with finite coordinates.
        classes: class numbers from 0, or `NO_CLASS`.
        image: the image of each box, from 0, never falling.
        images: how many images there are, those without boxes too.
    """

    boxes: Float[np.ndarray, "n 4"]
    classes: Int[np.ndarray, " n"]
    image: Int[np.ndarray, " n"]
    images: int

    def __len__(self) -> int:
        return len(self.boxes)

    @cached_property
    def per_image(self) -> Int[np.ndarray, " images"]:
        """Number of boxes of each image."""
        return np.bincount(self.image, minlength=self.images)


def join_images(
    images: Iterable[tuple[Float[np.ndarray, "_ 4"], Int[np.ndarray, " _"]]],
) -> ImageBoxes:
    """(boxes, classes) of one image after another in one array."""
    pairs = list(images)
    counts = [len(boxes) for boxes, _ in pairs]
    return ImageBoxes(
        np.concatenate([np.zeros((0, 4)), *(boxes for boxes, _ in pairs)]),
        np.concatenate([np.zeros(0, np.int64), *(classes for _, classes in pairs)]),
        np.repeat(np.arange(len(pairs)), counts),
        len(pairs),
    )


@dataclass(frozen=True)
class Overlaps:
    """All pairs of a predicted and a true box of one image that share some area.

    Attributes:
        predicted, truth: the boxes, of the same images.
        rows: index of each pair's predicted box, never falling.
        columns: index of its true box.
        iou: their IoU, above 0.
    """

    predicted: ImageBoxes
    truth: ImageBoxes
    rows: Int[np.ndarray, " pairs"]
    columns: Int[np.ndarray, " pairs"]
    iou: Float[np.ndarray, " pairs"]

    @property
    def images(self) -> int:
        """How many images there are."""
        return self.predicted.images

    @cached_property
    def image(self) -> Int[np.ndarray, " pairs"]:
        """The image of each pair."""
        return self.predicted.image[self.rows]

    @cached_property
    def same_class(self) -> Bool[np.ndarray, " pairs"]:
        """Whether both boxes are of one known class."""
        known = self.truth.classes[self.columns]
        return (self.predicted.classes[self.rows] == known) & (known != NO_CLASS)

    @cached_property
    def best_of_predicted(self) -> Float[np.ndarray, " n"]:
        """Highest IoU of each predicted box with a true one of any class; 0 where none."""
        return self._best(self.rows, len(self.predicted))

    @cached_property
    def best_of_truth(self) -> Float[np.ndarray, " m"]:
        """Highest IoU of each true box with a predicted one of any class; 0 where none."""
        return self._best(self.columns, len(self.truth))

    def _best(self, side: Int[np.ndarray, " pairs"], count: int) -> Float[np.ndarray, " _"]:
        best = np.zeros(count)
        np.maximum.at(best, side, self.iou)
        return best


def find_overlaps(predicted: ImageBoxes, truth: ImageBoxes) -> Overlaps:
    """The pairs that share some area.

    Raises:
        ValueError: the two sides are of different numbers of images.
    """
    if predicted.images != truth.images:
        raise ValueError(f"boxes of {predicted.images} images against those of {truth.images}")
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    for rows, columns in _all_pairs(predicted, truth):
        overlap = np.asarray(iou(predicted.boxes[rows], truth.boxes[columns]), np.float64)
        kept = overlap > 0
        found.append((rows[kept], columns[kept], overlap[kept]))
    rows, columns, overlap = (np.concatenate(part) for part in zip(*found, strict=True))
    return Overlaps(predicted, truth, rows, columns, overlap)


def _all_pairs(
    predicted: ImageBoxes, truth: ImageBoxes
) -> Iterator[tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]]]:
    """Every predicted box with every true box of its image, in parts of some `_CHUNK` pairs."""
    first = np.cumsum(truth.per_image) - truth.per_image
    partners = truth.per_image[predicted.image]
    ends = np.cumsum(partners)
    start = 0
    while start < len(predicted):
        done = ends[start - 1] if start else 0
        # At least one box, however many partners it has.
        stop = max(start + 1, int(np.searchsorted(ends, done + _CHUNK, side="right")))
        rows = np.repeat(np.arange(start, stop), partners[start:stop])
        place = np.arange(len(rows)) - np.repeat(
            ends[start:stop] - partners[start:stop] - done, partners[start:stop]
        )
        yield rows, first[predicted.image[rows]] + place
        start = stop
