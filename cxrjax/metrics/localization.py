"""Overlap of predicted boxes with lesions: Table 6 of arXiv 2511.00504v2, areas, V-score."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from cxrjax.boxes import pairwise_iou
from cxrjax.metrics.classification import Count, Figure, ratio, sums_at
from cxrjax.metrics.detection import TOLERANCE, Overlaps

GOOD, ACCEPTABLE = 0.5, 0.3


class Localization(NamedTuple):
    """Each image's part of Table 6.

    Attributes:
        good, acceptable: whether some predicted box has an IoU above 0.5, above 0.3, with a true
            box of any class. False without a prediction and without a true box.
        iou_sum: sum over the predicted boxes of each one's highest IoU with a true box.
        predictions: number of predicted boxes; `iou_sum` over all images is divided by their sum.
    """

    good: Bool[np.ndarray, " images"]
    acceptable: Bool[np.ndarray, " images"]
    iou_sum: Float[np.ndarray, " images"]
    predictions: Int[np.ndarray, " images"]


def localize(overlaps: Overlaps) -> Localization:
    """Each image's part of Table 6."""
    best, image = overlaps.best_of_predicted, overlaps.predicted.image
    highest = np.zeros(overlaps.images)
    np.maximum.at(highest, image, best)
    return Localization(
        good=highest > GOOD + TOLERANCE,
        acceptable=highest > ACCEPTABLE + TOLERANCE,
        iou_sum=sums_at(image, overlaps.images, best),
        predictions=overlaps.predicted.per_image,
    )


class RegionAreas(NamedTuple):
    """Areas of one image, in squared units of the coordinates. Over several images of one study
    they add up, where the unit is the same: pixels."""

    intersection: float
    predicted: float
    truth: float

    def shares(self) -> dict[str, float]:
        """`iou`, `iop` (of the predicted) and `iot` (of the truth), those that are defined."""
        found = {
            "iou": region_iou(*self),
            "iop": region_iop(self.intersection, self.predicted),
            "iot": region_iot(self.intersection, self.truth),
        }
        return {name: float(share) for name, share in found.items() if np.isfinite(share)}


def region_areas(predicted: Num[np.ndarray, "n 4"], truth: Num[np.ndarray, "m 4"]) -> RegionAreas:
    """Areas of the union of `predicted`, of the union of `truth` and of what they share.

    Args:
        predicted, truth: boxes xyxy on one image in one unit, with finite coordinates; corners are
            edges, not the last pixel inside: (0, 0, 2, 2) covers four pixels.
    """
    sides = [np.asarray(side, np.float64).reshape(-1, 4) for side in (predicted, truth)]
    every = np.concatenate(sides)
    xs, ys = np.unique(every[:, [0, 2]]), np.unique(every[:, [1, 3]])
    cells = np.outer(np.diff(xs), np.diff(ys))
    inside = [_covered(side, xs, ys) for side in sides]
    return RegionAreas(
        intersection=float(cells[inside[0] & inside[1]].sum()),
        predicted=float(cells[inside[0]].sum()),
        truth=float(cells[inside[1]].sum()),
    )


def _covered(
    boxes: Float[np.ndarray, "n 4"], xs: Float[np.ndarray, " x"], ys: Float[np.ndarray, " y"]
) -> Bool[np.ndarray, "columns rows"]:
    """Marks the cells of the grid of all edges that lie in some box."""
    covered = np.zeros((max(len(xs) - 1, 0), max(len(ys) - 1, 0)), bool)
    columns, rows = np.searchsorted(xs, boxes[:, [0, 2]]), np.searchsorted(ys, boxes[:, [1, 3]])
    for (left, right), (top, bottom) in zip(columns.tolist(), rows.tolist(), strict=True):
        covered[left:right, top:bottom] = True
    return covered


def region_iou(intersection: Count, predicted: Count, truth: Count) -> Figure:
    """Share of what either region covers that both cover."""
    return ratio(intersection, np.add(predicted, truth) - np.asarray(intersection))


def region_iop(intersection: Count, predicted: Count) -> Figure:
    """Share of the predicted region that is right (intersection over prediction)."""
    return ratio(intersection, predicted)


def region_iot(intersection: Count, truth: Count) -> Figure:
    """Share of the true region that was found (intersection over target)."""
    return ratio(intersection, truth)


class VScore(NamedTuple):
    """One answer's V-score in [0, 1], by denominator; `both_empty`: no box here and none there."""

    strict: float
    lenient: float
    truth: float
    both_empty: bool


def v_score(predicted: Float[np.ndarray, "n 4"], truth: Float[np.ndarray, "m 4"]) -> VScore:
    """V-score of one answer.

    Args:
        predicted, truth: boxes xyxy in one unit, with finite coordinates; either may be empty.
    """
    if not len(predicted) and not len(truth):
        return VScore(1.0, 1.0, 1.0, both_empty=True)
    if not len(predicted) or not len(truth):
        return VScore(0.0, 0.0, 0.0, both_empty=False)
    from scipy.optimize import linear_sum_assignment  # here: it takes long to load

    overlap = np.asarray(pairwise_iou(predicted, truth), np.float64)
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    total = float(overlap[rows, columns].sum())
    return VScore(
        strict=total / max(overlap.shape),
        lenient=total / min(overlap.shape),
        truth=total / len(truth),
        both_empty=False,
    )


def contrast_to_noise(heat: Float[np.ndarray, "h w"], inside: Bool[np.ndarray, "h w"]) -> float:
    """Signed contrast-to-noise ratio; infinite without noise, 0 of a map that is the same all over.

    Args:
        inside: where the true region is; neither everywhere nor nowhere.
    """
    within, outside = heat[inside], heat[~inside]
    contrast = float(within.mean() - outside.mean())
    # Exactly, where sums of equal numbers round.
    if np.ptp(within) == 0 and np.ptp(outside) == 0:
        return 0.0 if within[0] == outside[0] else float(np.copysign(np.inf, contrast))
    return contrast / float(np.sqrt(within.var() + outside.var()))


def region_mask(
    boxes: Float[np.ndarray, "n 4"], size: tuple[int, int], shape: tuple[int, int]
) -> Bool[np.ndarray, "h w"]:
    """Marks the cells of a map over the whole image whose centres lie in some box.

    Args:
        boxes: pixels xyxy of an image of this `size` (height, width).
    """
    ys = (np.arange(shape[0]) + 0.5) * size[0] / shape[0]
    xs = (np.arange(shape[1]) + 0.5) * size[1] / shape[1]
    mask = np.zeros(shape, bool)
    for x0, y0, x1, y1 in boxes:
        mask |= ((ys >= y0) & (ys < y1))[:, None] & ((xs >= x0) & (xs < x1))
    return mask
