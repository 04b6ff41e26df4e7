"""Average precision of scored boxes: PASCAL VOC 2010 and COCO, over all images at once.

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
`ranking.constant_scores` tells, and must be shown beside the figure.

AP is NaN for a class without true boxes, 0 without predictions.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from cxrjax.metrics.overlaps import TOLERANCE, Overlaps
from cxrjax.metrics.ranking import (
    Curve,
    Ranking,
    Weights,
    first_of_each,
    make_ranking,
    rank_by_score,
    take_best_free,
)

VOC_THRESHOLD = 0.4
COCO_THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
_MOST_PER_CLASS = 100
_RECALLS = np.linspace(0, 1, 101)


def voc_rankings(
    overlaps: Overlaps,
    scores: Float[np.ndarray, " n"],
    classes: int,
    threshold: float = VOC_THRESHOLD,
) -> list[Ranking]:
    """Each class's boxes, with VOC's hits.

    Args:
        scores: of each predicted box, finite; higher is surer.
        classes: how many classes there are.
    """
    rank = rank_by_score(overlaps.predicted, scores)
    hits = _first_on_its_best(overlaps, rank, threshold)
    return _by_class(overlaps, scores, rank, hits[None], classes)


def coco_rankings(
    overlaps: Overlaps, scores: Float[np.ndarray, " n"], classes: int
) -> list[Ranking]:
    """Each class's boxes, with COCO's hits at each of `COCO_THRESHOLDS`; arguments as above."""
    rank = rank_by_score(overlaps.predicted, scores)
    hits = [take_best_free(overlaps, rank, threshold - TOLERANCE) for threshold in COCO_THRESHOLDS]
    return _by_class(overlaps, scores, rank, np.stack(hits), classes)


def voc_average_precision(
    rankings: Sequence[Ranking], weights: Weights | None = None
) -> Float[np.ndarray, "*draws classes"]:
    """VOC 2010 AP of each class.

    Args:
        rankings: of `voc_rankings`.
        weights: how often each image counts in each draw; None: once, and no axis of draws.
    """
    by_class = [_area(curve) for ranking in rankings for curve in ranking.curves(weights)]
    return np.stack(by_class, axis=-1)


def coco_average_precision(
    rankings: Sequence[Ranking], weights: Weights | None = None
) -> Float[np.ndarray, "*draws thresholds classes"]:
    """COCO AP of each class at each of `COCO_THRESHOLDS`.

    Args:
        rankings: of `coco_rankings`.
        weights: as of `voc_average_precision`.
    """
    by_class = [
        np.stack([_mean_of_recalls(curve) for curve in ranking.curves(weights)], axis=-1)
        for ranking in rankings
    ]
    return np.stack(by_class, axis=-1)


def _first_on_its_best(
    overlaps: Overlaps, rank: Int[np.ndarray, " n"], threshold: float
) -> Bool[np.ndarray, " n"]:
    """VOC's hits: boxes whose best true box of their class is above the threshold, and that come
    first on it."""
    pairs = np.flatnonzero(overlaps.same_class)
    pairs = pairs[np.lexsort((-overlaps.iou[pairs], overlaps.rows[pairs]))]
    best = pairs[first_of_each(overlaps.rows[pairs])]
    best = best[overlaps.iou[best] > threshold + TOLERANCE]
    best = best[np.lexsort((rank[overlaps.rows[best]], overlaps.columns[best]))]
    hits = np.zeros(len(overlaps.predicted), bool)
    hits[overlaps.rows[best[first_of_each(overlaps.columns[best])]]] = True
    return hits


def _by_class(
    overlaps: Overlaps,
    scores: Float[np.ndarray, " n"],
    rank: Int[np.ndarray, " n"],
    hits: Bool[np.ndarray, "rules n"],
    classes: int,
) -> list[Ranking]:
    counted = rank < _MOST_PER_CLASS
    predicted, truth = overlaps.predicted.classes, overlaps.truth.classes
    return [
        make_ranking(overlaps, scores, hits, counted & (predicted == number), truth == number)
        for number in range(classes)
    ]


def _interpolated(curve: Curve) -> Float[np.ndarray, "*draws steps"]:
    """The highest precision at this recall or any beyond."""
    precision = np.nan_to_num(curve.precision)  # undefined before the first box that counts
    return np.maximum.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]


def _area(curve: Curve) -> Float[np.ndarray, "*draws"]:
    """Area under the interpolated curve (VOC 2010)."""
    gained = np.diff(curve.recall, prepend=0, axis=-1)
    area = (gained * _interpolated(curve)).sum(axis=-1)
    return np.where(curve.truths > 0, area, np.nan)


def _mean_of_recalls(curve: Curve) -> Float[np.ndarray, "*draws"]:
    """Mean interpolated precision at 101 recalls, 0 where a recall is not reached (COCO)."""
    # Recalls are quotients of counts: as exact as pycocotools' own, so compared like there.
    reached = np.searchsorted(_RECALLS, curve.recall, side="right")
    gained = np.diff(reached, prepend=0, axis=-1)
    mean = (gained * _interpolated(curve)).sum(axis=-1) / len(_RECALLS)
    return np.where(curve.truths > 0, mean, np.nan)
