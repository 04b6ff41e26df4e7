"""Regions against regions, each the union of its boxes: IoU, IoP and IoT of areas.

CXR-QBA validates its boxes so: the pixels of all boxes of a finding against those of a
human's. Where boxes have whole-pixel corners the areas here are the masks' numbers of pixels,
without drawing a mask: the plane is cut along every box's edges, and inside a cell of that grid
each region is everything or nothing.

| predicted | true | IoU | IoP | IoT |
|---|---|---|---|---|
| none | none | undefined | undefined | undefined |
| none | some | 0 | undefined | 0 |
| some | none | 0 | 0 | undefined |

A region counts as none where its boxes have no area.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Num

from cxrjax.metrics.classification import Count, Figure, ratio


class RegionAreas(NamedTuple):
    """Areas of one image, in squared units of the coordinates. Over several images of one study
    they add up, where the unit is the same: pixels."""

    intersection: float
    predicted: float
    truth: float


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
    """Which cells of the grid of all edges lie in some box."""
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
