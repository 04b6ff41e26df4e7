"""Average precision of scored boxes: PASCAL VOC 2010 and COCO, over all images at once (H06).

| | VOC 2010 | COCO |
|---|---|---|
| a box is tried on | the true box it overlaps most | the free true box it overlaps most |
| hit | IoU > threshold (VinBigData's contest on Kaggle: 0.4) | IoU >= 0.50, 0.55, ..., 0.95 |
| area under the interpolated curve | exact | mean of precision at 101 recalls |

In both, boxes are tried from the highest score down, within their class, and a second box on a true
box is wrong; at most 100 boxes of a class count on an image.

A box without a class counts nowhere: every figure is of one class. Boxes of one score are one step
of the curve: nothing tells them apart, so a cut through them would depend on the order of the file.
(Evaluators that cut there give different figures for the same boxes in another order.) With all
scores equal the curve is one point and AP no more than precision times recall there:
`constant_scores` tells, and must be shown beside the figure.

AP is NaN for a class without true boxes, 0 without predictions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int

from cxrjax.metrics.classification import ratio
from cxrjax.metrics.overlaps import TOLERANCE, ImageBoxes, Overlaps

VOC_THRESHOLD = 0.4
COCO_THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
_MOST_PER_CLASS = 100
_RECALLS = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class Curve:
    """What is reached when only boxes of at least some score count, by falling score.

    Attributes:
        scores: the distinct scores.
        hits, misses: predicted boxes of at least that score that are right, that are wrong.
        truths: number of true boxes.
    """

    scores: Float[np.ndarray, "steps"]
    hits: Int[np.ndarray, "steps"]
    misses: Int[np.ndarray, "steps"]
    truths: int

    @property
    def recall(self) -> Float[np.ndarray, "steps"]:
        """Share of the true boxes found; NaN where there are none."""
        return ratio(self.hits, self.truths)

    @property
    def precision(self) -> Float[np.ndarray, "steps"]:
        """Share of the predicted boxes that are right."""
        return ratio(self.hits, self.hits + self.misses)


def make_curve(scores: Float[np.ndarray, "n"], hits: Bool[np.ndarray, "n"], truths: int) -> Curve:
    """The curve of boxes with these scores, of which some are hits."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    last = np.flatnonzero(np.diff(ranked, append=-np.inf))
    found = np.cumsum(hits[order])[last]
    return Curve(ranked[last], found, last + 1 - found, truths)


def constant_scores(scores: Float[np.ndarray, "n"]) -> bool:
    """Whether the scores rank nothing: there are boxes, and all have one score."""
    return len(scores) > 0 and bool((scores == scores[0]).all())


def voc_average_precision(
    overlaps: Overlaps,
    scores: Float[np.ndarray, "n"],
    classes: int,
    threshold: float = VOC_THRESHOLD,
) -> Float[np.ndarray, "classes"]:
    """VOC 2010 AP of each class.

    Args:
        scores: of each predicted box, finite; higher is surer.
        classes: how many classes there are.
    """
    rank = rank_by_score(overlaps.predicted, scores)
    hits = _first_on_its_best(overlaps, rank, threshold)
    return np.array([_area(c) for c in _curves(overlaps, scores, rank, hits, classes)])


def coco_average_precision(
    overlaps: Overlaps, scores: Float[np.ndarray, "n"], classes: int
) -> Float[np.ndarray, "thresholds classes"]:
    """COCO AP of each class at each of `COCO_THRESHOLDS`; arguments as above."""
    rank = rank_by_score(overlaps.predicted, scores)
    figures = []
    for threshold in COCO_THRESHOLDS:
        hits = take_best_free(overlaps, rank, threshold - TOLERANCE)
        curves = _curves(overlaps, scores, rank, hits, classes)
        figures.append([_mean_of_recalls(curve) for curve in curves])
    return np.array(figures)


def rank_by_score(predicted: ImageBoxes, scores: Float[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """Each box's place, from 0, among those of its image and class, the highest score first.

    Equal scores go by the boxes' coordinates, so that the order of the file says nothing.
    """
    x0, y0, x1, y1 = predicted.boxes.T
    order = np.lexsort((y1, x1, y0, x0, -scores, predicted.classes, predicted.image))
    new = np.diff(predicted.image[order], prepend=-1) != 0
    new |= np.diff(predicted.classes[order], prepend=-2) != 0
    starts = np.flatnonzero(new)
    sizes = np.diff(np.append(starts, len(order)))
    rank = np.zeros(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    return rank


def take_best_free(
    overlaps: Overlaps, rank: Int[np.ndarray, "n"], above: float
) -> Bool[np.ndarray, "n"]:
    """Hits where each box in turn takes the best true box of its class that is still free.

    All images at once: in round k every image and class tries the k-th of its boxes.

    Args:
        rank: of `rank_by_score`.
        above: what IoU must exceed, exactly.

    Returns:
        Whether each predicted box is a hit.
    """
    hits = np.zeros(len(overlaps.predicted), bool)
    taken = np.zeros(len(overlaps.truth), bool)
    pairs = np.flatnonzero(overlaps.same_class & (overlaps.iou > above))
    turn = rank[overlaps.rows[pairs]]
    order = np.lexsort((-overlaps.iou[pairs], overlaps.rows[pairs], turn))
    pairs, turn = pairs[order], turn[order]
    starts = _first_of_each(turn).tolist()
    for start, stop in pairwise([*starts, len(pairs)]):
        free = pairs[start:stop]
        free = free[~taken[overlaps.columns[free]]]
        best = free[_first_of_each(overlaps.rows[free])]
        taken[overlaps.columns[best]] = True
        hits[overlaps.rows[best]] = True
    return hits


def _first_on_its_best(
    overlaps: Overlaps, rank: Int[np.ndarray, "n"], threshold: float
) -> Bool[np.ndarray, "n"]:
    """VOC's hits: boxes whose best true box of their class is above the threshold, and that come
    first on it."""
    pairs = np.flatnonzero(overlaps.same_class)
    pairs = pairs[np.lexsort((-overlaps.iou[pairs], overlaps.rows[pairs]))]
    best = pairs[_first_of_each(overlaps.rows[pairs])]
    best = best[overlaps.iou[best] > threshold + TOLERANCE]
    best = best[np.lexsort((rank[overlaps.rows[best]], overlaps.columns[best]))]
    hits = np.zeros(len(overlaps.predicted), bool)
    hits[overlaps.rows[best[_first_of_each(overlaps.columns[best])]]] = True
    return hits


def _first_of_each(numbers: Int[np.ndarray, "n"]) -> Int[np.ndarray, "_"]:
    """Where each number (from 0) of a sorted array comes first."""
    return np.flatnonzero(np.diff(numbers, prepend=-1))


def _curves(
    overlaps: Overlaps,
    scores: Float[np.ndarray, "n"],
    rank: Int[np.ndarray, "n"],
    hits: Bool[np.ndarray, "n"],
    classes: int,
) -> Iterator[Curve]:
    counted = rank < _MOST_PER_CLASS
    for number in range(classes):
        here = counted & (overlaps.predicted.classes == number)
        truths = int((overlaps.truth.classes == number).sum())
        yield make_curve(scores[here], hits[here], truths)


def _interpolated(curve: Curve) -> Float[np.ndarray, "steps"]:
    """The highest precision at this recall or any beyond."""
    return np.maximum.accumulate(curve.precision[::-1])[::-1]


def _area(curve: Curve) -> float:
    """Area under the interpolated curve (VOC 2010)."""
    if not curve.truths:
        return float("nan")
    return float(np.diff(curve.recall, prepend=0) @ _interpolated(curve))


def _mean_of_recalls(curve: Curve) -> float:
    """Mean interpolated precision at 101 recalls, 0 where a recall is not reached (COCO)."""
    if not curve.truths:
        return float("nan")
    # Recalls are quotients of counts: as exact as pycocotools' own, so compared like there.
    step = np.searchsorted(curve.recall, _RECALLS, side="left")
    return float(np.append(_interpolated(curve), 0)[step].mean())
