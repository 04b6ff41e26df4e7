"""Rankings of scored boxes over all images at once: FROC, and average precision.

FROC: boxes are tried from the highest score down; each takes the best true box of its class that is
still free, and a second box on a lesion is a false one. The figures are those of cuts that scores
allow: at most so many false boxes an image, no interpolation between cuts. All images count, those
without lesions too, and all boxes, also those without a class.

Sensitivity is NaN without true boxes, 0 without predictions.

Average precision, NaN for a class without true boxes, 0 without predictions:

| | VOC 2010 | COCO |
|---|---|---|
| a box is tried on | the true box it overlaps most | the free true box it overlaps most |
| hit | IoU > threshold (VinBigData's contest on Kaggle: 0.4) | IoU >= 0.50, 0.55, ..., 0.95 |
| area under the interpolated curve | exact | mean of precision at 101 recalls |

In both, boxes are tried from the highest score down, within their class, and a second box on a true
box is wrong; at most 100 boxes of a class count on an image, and a box without a class nowhere.
Boxes of one score are one step of the curve: nothing tells them apart, so a cut through them would
depend on the order of the file. With all scores equal the curve is one point and AP no more than
precision times recall there: `constant_scores` tells, and must be shown beside the figure. True
boxes that a box overlaps alike are taken by their coordinates.

`pycocotools_rankings` has pycocotools' own rules for both: boxes of one score go by the order of
the file, and of true boxes that tie the last of the file is taken. Others print such figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int

from cxrjax.metrics.classification import ratio
from cxrjax.metrics.detection import TOLERANCE, ImageBoxes, Overlaps

Weights = Float[np.ndarray, "draws images"]


@dataclass(frozen=True)
class Curve:
    """Hits and misses at each score that brings a hit, by falling score.

    Between these, boxes of other scores only add misses.
    """

    # `hits`, `misses`: boxes of at least that score that are right, that are wrong.
    hits: Float[np.ndarray, "*draws steps"]
    misses: Float[np.ndarray, "*draws steps"]
    truths: Float[np.ndarray, "*draws"]  # number of true boxes

    @property
    def recall(self) -> Float[np.ndarray, "*draws steps"]:
        """Share of the true boxes found; NaN where there are none."""
        return ratio(self.hits, self.truths[..., None])

    @property
    def precision(self) -> Float[np.ndarray, "*draws steps"]:
        """Share of the predicted boxes that are right; NaN where no box counts yet."""
        return ratio(self.hits, self.hits + self.misses)


@dataclass(frozen=True)
class Ranking:
    """Predicted boxes by falling score, and which of them are right by each of some rules."""

    scores: Float[np.ndarray, " n"]  # of each box
    hits: Bool[np.ndarray, "rules n"]  # by each rule, whether it is right
    image: Int[np.ndarray, " n"]  # its image
    truths: Int[np.ndarray, " images"]  # number of true boxes of each image

    def curves(self, weights: Weights | None = None) -> list[Curve]:
        """Each rule's curve: as it is, or where images count as often as their weights say.

        Boxes of one score are one step: nothing tells them apart.
        """
        if weights is None:
            once = self.curves(np.ones((1, len(self.truths))))
            return [Curve(c.hits[0], c.misses[0], np.asarray(c.truths[0])) for c in once]
        new = np.diff(self.scores, prepend=np.inf) != 0
        step = np.cumsum(new) - 1
        last = np.flatnonzero(np.append(new[1:], True)) if len(new) else step
        counted = weights[:, self.image]
        tried = np.cumsum(counted, axis=1)[:, last]
        truths = weights @ self.truths
        curves = []
        for hits in self.hits:
            right = np.flatnonzero(hits)
            final = np.flatnonzero(np.diff(step[right], append=-1))
            found = np.cumsum(counted[:, right], axis=1)[:, final]
            curves.append(Curve(found, tried[:, step[right[final]]] - found, truths))
        return curves


def join_rankings(first: Ranking, second: Ranking) -> Ranking:
    """Two systems' boxes in one ranking, as those of twice as many images."""
    scores = np.concatenate([first.scores, second.scores])
    order = np.argsort(-scores, kind="stable")
    return Ranking(
        scores[order],
        np.concatenate([first.hits, second.hits], axis=1)[:, order],
        np.concatenate([first.image, second.image + len(first.truths)])[order],
        np.concatenate([first.truths, second.truths]),
    )


def make_ranking(
    overlaps: Overlaps,
    scores: Float[np.ndarray, " n"],
    hits: Bool[np.ndarray, "rules n"],
    predicted: Bool[np.ndarray, " n"],
    truth: Bool[np.ndarray, " m"],
) -> Ranking:
    """The ranking of some of the predicted boxes against some of the true ones.

    Args:
        scores: of each predicted box, finite; higher is surer.
        hits: which predicted boxes are right, by each rule.
        predicted, truth: which boxes belong to this ranking.
    """
    order = np.flatnonzero(predicted)
    order = order[np.argsort(-scores[order], kind="stable")]
    return Ranking(
        scores[order],
        hits[:, order],
        overlaps.predicted.image[order],
        np.bincount(overlaps.truth.image[truth], minlength=overlaps.images),
    )


def constant_scores(scores: Float[np.ndarray, " n"]) -> bool:
    """Returns whether the scores rank nothing: there are boxes, and all have one score."""
    return len(scores) > 0 and bool((scores == scores[0]).all())


def rank_by_score(predicted: ImageBoxes, scores: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
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


# IoUs that differ by less are equal: rounding is no reason to take one box before another.
_IOU_DECIMALS = 9


def take_best_free(
    overlaps: Overlaps,
    rank: Int[np.ndarray, " n"],
    above: float,
    truth_rank: Int[np.ndarray, " m"] | None = None,
) -> Bool[np.ndarray, " n"]:
    """Hits where each box in turn takes the best true box of its class that is still free.

    All images at once: in round k every image and class tries the k-th of its boxes.

    Args:
        rank: of `rank_by_score`.
        above: what IoU must exceed, exactly.
        truth_rank: which of true boxes with one IoU is taken, the lowest; None: by coordinates.

    Returns:
        Whether each predicted box is a hit.
    """
    hits = np.zeros(len(overlaps.predicted), bool)
    taken = np.zeros(len(overlaps.truth), bool)
    pairs = np.flatnonzero(overlaps.same_class & (overlaps.iou > above))
    turn = rank[overlaps.rows[pairs]]
    if truth_rank is None:
        truth_rank = overlaps.truth.rank
    ties = truth_rank[overlaps.columns[pairs]]
    order = np.lexsort((ties, _falling(overlaps.iou[pairs]), overlaps.rows[pairs], turn))
    pairs, turn = pairs[order], turn[order]
    starts = first_of_each(turn).tolist()
    for start, stop in pairwise([*starts, len(pairs)]):
        free = pairs[start:stop]
        free = free[~taken[overlaps.columns[free]]]
        best = free[first_of_each(overlaps.rows[free])]
        taken[overlaps.columns[best]] = True
        hits[overlaps.rows[best]] = True
    return hits


def _falling(iou: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    """A key that sorts IoUs, the highest first, and that is one for equal ones."""
    return -iou.round(_IOU_DECIMALS)


def first_of_each(numbers: Int[np.ndarray, " n"]) -> Int[np.ndarray, " _"]:
    """The place where each number (from 0) of a sorted array comes first."""
    return np.flatnonzero(np.diff(numbers, prepend=-1))


# As in LUNA16 and its kin: false boxes per image.
RATES = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)


def froc_ranking(overlaps: Overlaps, scores: Float[np.ndarray, " n"], threshold: float) -> Ranking:
    """All boxes, classes pooled.

    Args:
        scores: of each predicted box, finite; higher is surer.
        threshold: a hit has an IoU above.
    """
    rank = rank_by_score(overlaps.predicted, scores)
    hits = take_best_free(overlaps, rank, threshold + TOLERANCE)
    all_boxes = np.ones(len(overlaps.predicted), bool), np.ones(len(overlaps.truth), bool)
    return make_ranking(overlaps, scores, hits[None], *all_boxes)


def sensitivity_at(
    curve: Curve, images: int | Float[np.ndarray, "*draws"], rates: tuple[float, ...] = RATES
) -> Float[np.ndarray, "*draws rates"]:
    """Sensitivity at each of the rates.

    Args:
        curve: of `froc_ranking`.
        images: how many images the boxes are of.
        rates: false boxes per image.

    Returns:
        The highest sensitivity of a cut with at most that many; 0 where every cut has more.
    """
    allowed = np.asarray(images)[..., None] * np.array(rates)
    # Misses never fall along the curve, and neither do hits.
    steps = np.stack(
        [(curve.misses <= most[..., None]).sum(axis=-1) for most in np.moveaxis(allowed, -1, 0)],
        axis=-1,
    )
    nothing = np.zeros((*curve.hits.shape[:-1], 1))
    found = np.take_along_axis(np.concatenate([nothing, curve.hits], axis=-1), steps, axis=-1)
    return ratio(found, curve.truths[..., None])


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


def pycocotools_rankings(
    overlaps: Overlaps, scores: Float[np.ndarray, " n"], classes: int
) -> list[Ranking]:
    """Each class's boxes as pycocotools ranks and matches them; arguments as of `coco_rankings`.

    Boxes and true boxes are in the order of the file, and none is crowded or ignored.
    """
    # No two boxes are one step: of equal scores the earlier is surer.
    order = np.argsort(-scores, kind="stable")
    distinct = np.empty(len(scores))
    distinct[order] = -np.arange(len(scores), dtype=np.float64)
    rank = rank_by_score(overlaps.predicted, distinct)
    last = -np.arange(len(overlaps.truth))
    hits = [
        take_best_free(overlaps, rank, threshold - 1e-10, last) for threshold in COCO_THRESHOLDS
    ]
    return _by_class(overlaps, distinct, rank, np.stack(hits), classes)


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
    draws = () if weights is None else (len(weights),)
    by_class = [
        np.stack([_mean_of_recalls(curve) for curve in ranking.curves(weights)], axis=-1)
        if ranking.truths.any()  # most classes of a small set have no true box, and no figure
        else np.full((*draws, len(ranking.hits)), np.nan)
        for ranking in rankings
    ]
    return np.stack(by_class, axis=-1)


def _first_on_its_best(
    overlaps: Overlaps, rank: Int[np.ndarray, " n"], threshold: float
) -> Bool[np.ndarray, " n"]:
    """VOC's hits: boxes whose best true box of their class is above the threshold, and that come
    first on it."""
    pairs = np.flatnonzero(overlaps.same_class)
    ties = overlaps.truth.rank[overlaps.columns[pairs]]
    pairs = pairs[np.lexsort((ties, _falling(overlaps.iou[pairs]), overlaps.rows[pairs]))]
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
