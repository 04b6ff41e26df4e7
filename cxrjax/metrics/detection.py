"""Boxes against boxes at one IoU threshold, without confidences.

Two ways of counting (spec: V29 and A10 of arXiv 2511.00504v2, section 3.2):

* one to one: every true box serves at most one predicted box, within its class. The pairs are
  those of a matching with as many pairs as possible and, among such, the largest total IoU.
* any overlap: a predicted box is right if it overlaps any true box, class ignored, so that ten
  copies of one good box are ten hits.

Counts are summed over images before anything is divided. What is defined when a side is empty,
over all images together:

| predicted | true | precision | recall | F1 | mean IoU of true positives |
|---|---|---|---|---|---|
| none | none | undefined | undefined | undefined | undefined |
| none | some | undefined | 0 | 0 | undefined |
| some | none | 0 | undefined | 0 | undefined |
| some | some, no hit | 0 | 0 | 0 | undefined |
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment

from cxrjax.boxes import pairwise_iou

# Overlap counts when it is greater than the threshold. Rounding (float32 codecs, pixels divided by
# a size) moves an IoU by some 1e-7; an IoU of exactly 0.3 must not become a hit by that.
TOLERANCE = 1e-6

# Class of a box whose class nobody knows: it matches nothing where classes count.
NO_CLASS = -1


class AnyOverlap(NamedTuple):
    """Counts of one image when hits are many to one.

    Attributes:
        hits: predicted boxes that overlap some true box.
        misses: predicted boxes that overlap none.
        found: true boxes that some predicted box overlaps.
        lost: true boxes that none overlaps.
        iou_sum: sum over the hits of the highest IoU with a true box.
    """

    hits: int
    misses: int
    found: int
    lost: int
    iou_sum: float


def match_one_to_one(
    iou: Float[np.ndarray, "n m"], allowed: np.ndarray
) -> tuple[Int[np.ndarray, "k"], Int[np.ndarray, "k"]]:
    """Pairs (row, column), each row and column used once, all of them allowed.

    Args:
        iou: overlaps in [0, 1].
        allowed: bool [n, m].

    Returns:
        Rows and columns of a matching with the most pairs possible; among those with as many, the
        one of the largest IoU in total. Both empty when nothing is allowed.
    """
    if not allowed.any():
        empty = np.zeros(0, np.int64)
        return empty, empty
    # One more pair must outweigh any gain of IoU in the others, which is below min(n, m).
    weight = np.where(allowed, min(iou.shape) + 1 + iou, 0.0)
    rows, columns = linear_sum_assignment(weight, maximize=True)
    kept = allowed[rows, columns]
    return rows[kept], columns[kept]


def count_one_to_one(
    predicted: Float[np.ndarray, "n 4"],
    predicted_classes: Int[np.ndarray, "n"],
    truth: Float[np.ndarray, "m 4"],
    truth_classes: Int[np.ndarray, "m"],
    threshold: float,
    num_classes: int,
) -> Float[np.ndarray, "num_classes_and_unclassed 4"]:
    """Counts of one image, by class: true positives, false positives, false negatives, IoU sum.

    Args:
        predicted, truth: boxes xyxy in one unit, with finite coordinates.
        predicted_classes, truth_classes: 0 to num_classes - 1, or `NO_CLASS`.
        threshold: IoU above which a pair of one class counts.
        num_classes: 1 and all classes 0 to count without classes.

    Returns:
        A row per class and a last one for boxes of `NO_CLASS`, which are always wrong. The IoU sum
        is over the true positives.
    """
    counts = np.zeros((num_classes + 1, 4))
    if len(predicted):
        counts[:, 1] = np.bincount(predicted_classes % (num_classes + 1), minlength=num_classes + 1)
    if len(truth):
        counts[:, 2] = np.bincount(truth_classes % (num_classes + 1), minlength=num_classes + 1)
    if not len(predicted) or not len(truth):
        return counts
    iou = np.asarray(pairwise_iou(predicted, truth), np.float64)
    same_class = (predicted_classes[:, None] == truth_classes) & (truth_classes != NO_CLASS)
    rows, columns = match_one_to_one(iou, same_class & (iou > threshold + TOLERANCE))
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        counts[predicted_classes[row]] += (1, -1, -1, iou[row, column])
    return counts


def count_any_overlap(
    predicted: Float[np.ndarray, "n 4"], truth: Float[np.ndarray, "m 4"], threshold: float
) -> AnyOverlap:
    """Counts of one image when a predicted box is right as soon as it overlaps any true box."""
    if not len(predicted) or not len(truth):
        return AnyOverlap(0, len(predicted), 0, len(truth), 0.0)
    iou = np.asarray(pairwise_iou(predicted, truth), np.float64)
    overlaps = iou > threshold + TOLERANCE
    hit, found = overlaps.any(axis=1), overlaps.any(axis=0)
    return AnyOverlap(
        hits=int(hit.sum()),
        misses=int((~hit).sum()),
        found=int(found.sum()),
        lost=int((~found).sum()),
        iou_sum=float(iou.max(axis=1)[hit].sum()),
    )


def count_duplicates(boxes: Float[np.ndarray, "n 4"], threshold: float = 0.9) -> int:
    """How many boxes overlap an earlier one of the list with an IoU above the threshold (H21)."""
    if len(boxes) < 2:
        return 0
    iou = np.asarray(pairwise_iou(boxes, boxes), np.float64)
    return int(np.tril(iou > threshold, k=-1).any(axis=1).sum())


def one_box_recall_ceiling(questions: int | float, boxes: int | float) -> float:
    """Highest recall within reach of one box per question, on average numbers (H20, A11).

    Args:
        questions: questions, or questions per image.
        boxes: true boxes, or true boxes per image.

    Returns:
        min(1, questions / boxes); NaN without boxes.
    """
    return min(1.0, questions / boxes) if boxes else float("nan")
