"""Boxes against boxes, without confidences, at any number of IoU thresholds.

Two ways of counting, of which section 3.2 of arXiv 2511.00504v2 has the second:

* one to one: every true box serves at most one predicted box, within its class or with classes
  ignored. The pairs are those of a matching with as many pairs as possible and, among such, the
  largest total IoU.
* any overlap: a predicted box is right if it overlaps any true box, class ignored, so that ten
  copies of one good box are ten hits. It needs no matching: a box is a hit at every threshold below
  its highest IoU (`Overlaps.best_of_predicted`, `best_of_truth`).

Every figure about boxes follows from the pairs that overlap at all, so they are found once and
serve all thresholds and all ways of matching. Boxes of all images stand in one array: a pair of
indexes and an IoU take 16 bytes, and nothing runs image by image in Python.

Counts are summed over images before anything is divided. What is defined where a side is empty is
tabled in `cxrjax.metrics`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from cxrjax.boxes import iou
from cxrjax.metrics.classification import Count, Figure, ratio

# Overlap counts when it is greater than the threshold. Rounding (float32 codecs, pixels divided by
# a size) moves an IoU by some 1e-7; an IoU of exactly 0.3 must not become a hit by that.
TOLERANCE = 1e-6

# Class of a box whose class nobody knows: it matches nothing where classes count.
NO_CLASS = -1

# Pairs compared at once: some 100 MB.
_CHUNK = 500_000


@dataclass(frozen=True)
class ImageBoxes:
    """Boxes of many images, image after image."""

    boxes: Float[np.ndarray, "n 4"]  # xyxy, those of one image in one unit, with finite coordinates
    classes: Int[np.ndarray, " n"]  # class numbers from 0, or `NO_CLASS`
    image: Int[np.ndarray, " n"]  # the image of each box, from 0, never falling
    images: int  # how many images there are, those without boxes too

    def __len__(self) -> int:
        return len(self.boxes)

    @cached_property
    def per_image(self) -> Int[np.ndarray, " images"]:
        """Number of boxes of each image."""
        return np.bincount(self.image, minlength=self.images)

    def cut(self, start: int, stop: int) -> "ImageBoxes":
        """Returns the boxes of the images from `start` to before `stop`."""
        some = slice(*np.searchsorted(self.image, [start, stop]))
        image = self.image[some] - np.int32(start)
        return ImageBoxes(self.boxes[some], self.classes[some], image, stop - start)

    @cached_property
    def rank(self) -> Int[np.ndarray, " n"]:
        """Each box's place by its coordinates, so that the order of the file says nothing."""
        x0, y0, x1, y1 = self.boxes.T
        rank = np.empty(len(self), np.int64)
        rank[np.lexsort((y1, x1, y0, x0))] = np.arange(len(self))
        return rank


def join_images(
    images: Iterable[tuple[Float[np.ndarray, "_ 4"], Int[np.ndarray, " _"]]],
) -> ImageBoxes:
    """(boxes, classes) of one image after another in one array."""
    pairs = list(images)
    counts = [len(boxes) for boxes, _ in pairs]
    return ImageBoxes(
        np.concatenate([np.zeros((0, 4)), *(boxes for boxes, _ in pairs)]),
        np.concatenate([np.zeros(0, np.int16), *(classes for _, classes in pairs)]),
        np.repeat(np.arange(len(pairs), dtype=np.int32), counts),
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
        """The number of images."""
        return self.predicted.images

    @cached_property
    def image(self) -> Int[np.ndarray, " pairs"]:
        """The image of each pair."""
        return self.predicted.image[self.rows]

    @cached_property
    def same_class(self) -> Bool[np.ndarray, " pairs"]:
        """Marks pairs whose boxes are of one known class."""
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
    found = [(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0))]
    for rows, columns in _all_pairs(predicted, truth):
        overlap = np.asarray(iou(predicted.boxes[rows], truth.boxes[columns]), np.float64)
        kept = overlap > 0
        pairs = rows[kept].astype(np.int32), columns[kept].astype(np.int32)
        found.append((*pairs, overlap[kept]))
    rows, columns, overlap = (np.concatenate(part) for part in zip(*found, strict=True))
    return Overlaps(predicted, truth, rows, columns, overlap)


def join_overlaps(parts: Sequence[Overlaps], truth: ImageBoxes) -> Overlaps:
    """Overlaps of some images after those of others, whose true boxes `truth` are together."""
    if len(parts) == 1:
        return parts[0]
    found = []
    images = predicted = true = np.int32(0)
    for part in parts:
        found.append((part.predicted.image + images, part.rows + predicted, part.columns + true))
        images += np.int32(part.images)
        predicted += np.int32(len(part.predicted))
        true += np.int32(len(part.truth))
    image, rows, columns = (np.concatenate(side) for side in zip(*found, strict=True))
    boxes = np.concatenate([part.predicted.boxes for part in parts])
    classes = np.concatenate([part.predicted.classes for part in parts])
    overlap = np.concatenate([part.iou for part in parts])
    return Overlaps(ImageBoxes(boxes, classes, image, int(images)), truth, rows, columns, overlap)


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


# From 0.10 to 0.75 in steps of 0.05.
SWEEP = tuple(round(0.05 * step, 2) for step in range(2, 16))


def match_one_to_one(
    overlaps: Overlaps, thresholds: tuple[float, ...], with_classes: bool = True
) -> Bool[np.ndarray, "thresholds pairs"]:
    """Marks the pairs that are true positives at each threshold.

    Args:
        thresholds: rising; a pair may match where its IoU is above.
        with_classes: whether only boxes of one class may match.

    Returns:
        A row per threshold, in which no box is part of two pairs. (As many rows as thresholds;
        columns as `Overlaps.rows`.)
    """
    matched = np.zeros((len(thresholds), len(overlaps.iou)), bool)
    # Boxes that may match stand in one group; groups are solved one by one.
    group = overlaps.image
    if with_classes:
        group = group * (overlaps.truth.classes.max(initial=0) + 1)
        group = group + np.maximum(overlaps.truth.classes[overlaps.columns], 0)
    allowed = overlaps.same_class if with_classes else np.ones(len(overlaps.iou), bool)
    before = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    for row, threshold in enumerate(thresholds):
        pairs = np.flatnonzero(allowed & (overlaps.iou > threshold + TOLERANCE))
        # With a rising threshold pairs only drop out: as many as before are the same as before.
        count = np.bincount(group[pairs], minlength=len(before))
        changed = count != before if row else count > 0
        if row:
            matched[row] = matched[row - 1] & ~changed[group]
        todo = pairs[changed[group[pairs]]]
        alone = _alone(overlaps.rows[todo]) & _alone(overlaps.columns[todo])
        matched[row, todo[alone]] = True
        rest = todo[~alone]
        matched[row, rest] = _solve(
            group[rest], overlaps.rows[rest], overlaps.columns[rest], overlaps.iou[rest]
        )
        before = count
    return matched


def _alone(numbers: Int[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Marks the numbers that occur once."""
    if not len(numbers):
        return np.zeros(0, bool)
    return np.bincount(numbers)[numbers] == 1


def _solve(
    group: Int[np.ndarray, " n"],
    rows: Int[np.ndarray, " n"],
    columns: Int[np.ndarray, " n"],
    iou: Float[np.ndarray, " n"],
) -> Bool[np.ndarray, " n"]:
    """The pairs of the best matching of every group."""
    chosen = np.zeros(len(group), bool)
    if not len(group):
        return chosen
    from scipy.optimize import linear_sum_assignment  # here: it takes long to load

    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    stops = np.append(starts[1:], len(order))
    local_rows = _places(group[order], rows[order], starts)
    local_columns = _places(group[order], columns[order], starts)
    shapes = np.stack(
        [np.maximum.reduceat(local, starts) + 1 for local in (local_rows, local_columns)], axis=1
    )
    # One more pair must outweigh any gain of IoU in the others, which is below the shorter side.
    weights = iou[order] + 1 + np.repeat(shapes.min(axis=1), stops - starts)
    for start, stop, shape in zip(starts.tolist(), stops.tolist(), shapes.tolist(), strict=True):
        at = local_rows[start:stop], local_columns[start:stop]
        weight, pairs = np.zeros(shape), np.zeros(shape, bool)
        weight[at] = weights[start:stop]
        pairs[linear_sum_assignment(weight, maximize=True)] = True
        chosen[order[start:stop]] = pairs[at]
    return chosen


def _places(
    group: Int[np.ndarray, " n"], box: Int[np.ndarray, " n"], starts: Int[np.ndarray, " groups"]
) -> Int[np.ndarray, " n"]:
    """Each box's place among the boxes of its group, from 0; groups stand together, from `starts`
    on."""
    numbers = group.astype(np.int64) * (int(box.max()) + 1) + box
    _, place = np.unique(numbers, return_inverse=True)
    first = np.minimum.reduceat(place, starts)
    return place - np.repeat(first, np.diff(np.append(starts, len(group))))


def mean_iou_of_hits(iou_sum: Count, hits: Count, threshold: float) -> Figure:
    """Mean IoU of true positives at a threshold; elementwise, NaN where there are none.

    Raises:
        AssertionError: a mean is not above the threshold, as no mean of true positives can be
            (Table 5 of arXiv 2511.00504v2 prints one).
    """
    mean = ratio(iou_sum, hits)
    if (mean <= threshold).any():
        raise AssertionError(
            f"mean IoU of true positives {np.nanmin(mean)} is not above {threshold}"
        )
    return mean


def find_duplicates(boxes: ImageBoxes, threshold: float = 0.9) -> Bool[np.ndarray, " n"]:
    """Marks boxes that overlap an earlier one of their image with an IoU above the threshold."""
    pairs = find_overlaps(boxes, boxes)
    later = (pairs.iou > threshold) & (pairs.columns < pairs.rows)
    duplicate = np.zeros(len(boxes), bool)
    duplicate[pairs.rows[later]] = True
    return duplicate
