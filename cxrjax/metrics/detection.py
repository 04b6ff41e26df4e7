"""Boxes against boxes, without confidences, at any number of IoU thresholds.

Two ways of counting, of which section 3.2 of arXiv 2511.00504v2 has the second:

* one to one: every true box serves at most one predicted box, within its class or with classes
  ignored. The pairs are those of a matching with as many pairs as possible and, among such, the
  largest total IoU.
* any overlap: a predicted box is right if it overlaps any true box, class ignored, so that ten
  copies of one good box are ten hits. It needs no matching: a box is a hit at every threshold below
  its highest IoU (`Overlaps.best_of_predicted`, `best_of_truth`).

Counts are summed over images before anything is divided. What is defined where a side is empty is
tabled in `cxrjax.metrics`.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from cxrjax.metrics.classification import Count, Figure, ratio
from cxrjax.metrics.overlaps import TOLERANCE, ImageBoxes, Overlaps, find_overlaps

# From 0.10 to 0.75 in steps of 0.05.
SWEEP = tuple(round(0.05 * step, 2) for step in range(2, 16))


def match_one_to_one(
    overlaps: Overlaps, thresholds: tuple[float, ...], with_classes: bool = True
) -> Bool[np.ndarray, "thresholds pairs"]:
    """Which pairs are true positives at each threshold.

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
    """Which of the numbers occur once."""
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
    _, place = np.unique(group * (int(box.max()) + 1) + box, return_inverse=True)
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
    """Which boxes overlap an earlier one of their image with an IoU above the threshold."""
    pairs = find_overlaps(boxes, boxes)
    later = (pairs.iou > threshold) & (pairs.columns < pairs.rows)
    duplicate = np.zeros(len(boxes), bool)
    duplicate[pairs.rows[later]] = True
    return duplicate
