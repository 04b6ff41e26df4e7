"""VinDr-CXR-VQA's figures by what true boxes are like, strict protocol.

Size: tenths of all true boxes of the references, by share of the image. Place: as displayed. A
predicted box belongs to no true one's size or place: there are recall and mean IoU, and no
precision. `n`: images that have such a box.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from cxrjax.benchmarks.formulas import named, quotient
from cxrjax.benchmarks.vindr_boxes import IOU, Columns, Views
from cxrjax.metrics.bootstrap import Figure
from cxrjax.metrics.overlaps import ImageBoxes, Overlaps

_TENTHS = 10
_THIRDS, _HALVES = ("upper", "middle", "lower"), ("left", "right")
BOX_SIZES = tuple(f"tenth {number}" for number in range(1, _TENTHS + 1))
BOX_PLACES = tuple(f"{third} {half}" for third in _THIRDS for half in _HALVES)


@dataclass(frozen=True)
class BoxGroups:
    """The groups of the references' true boxes.

    Attributes:
        names: what is grouped by -> the groups' names.
        members: what is grouped by -> the group of each true box, as an index.
        size_limits: shares of the image between the tenths by size, rising.
    """

    names: Mapping[str, tuple[str, ...]]
    members: Mapping[str, Int[np.ndarray, " boxes"]]
    size_limits: tuple[float, ...]


def group_true_boxes(truth: ImageBoxes) -> BoxGroups:
    """Size and place of true boxes, which are fractions of their images."""
    x0, y0, x1, y1 = truth.boxes.T
    areas = (x1 - x0) * (y1 - y0)
    limits = np.quantile(areas, np.arange(1, _TENTHS) / _TENTHS) if len(areas) else np.zeros(0)
    third = np.clip((y0 + y1) / 2 * len(_THIRDS), 0, len(_THIRDS) - 1).astype(int)
    half = np.clip((x0 + x1) / 2 * len(_HALVES), 0, len(_HALVES) - 1).astype(int)
    return BoxGroups(
        names={"box_size": BOX_SIZES, "box_place": BOX_PLACES},
        members={
            "box_size": np.searchsorted(limits, areas),
            "box_place": third * len(_HALVES) + half,
        },
        size_limits=tuple(limits.tolist()),
    )


def box_group_columns(
    views: Views, overlaps: Overlaps, pairs: Bool[np.ndarray, " pairs"], groups: BoxGroups
) -> Columns:
    """`GROUPING/GROUP/{tp,iou,truth,images}` for every group of true boxes.

    Args:
        pairs: the true positives at IoU 0.3, one to one, with classes.
    """
    columns: Columns = {}
    rows, matched, iou = overlaps.image[pairs], overlaps.columns[pairs], overlaps.iou[pairs]
    for grouping, names in groups.names.items():
        member = groups.members[grouping]
        for number, name in enumerate(names):
            here = member[matched] == number
            image = views.image[rows[here]]
            truth = views.per_image(views.truth, member == number)
            columns |= {
                f"{grouping}/{name}/tp": np.bincount(image, minlength=views.images).astype(float),
                f"{grouping}/{name}/iou": np.bincount(
                    image, weights=iou[here], minlength=views.images
                ),
                f"{grouping}/{name}/truth": truth,
                f"{grouping}/{name}/images": (truth > 0).astype(float),
            }
    return columns


def by_box_group(groups: BoxGroups) -> dict[str, Figure]:
    """`by_GROUPING/detection/{recall,miou_tp}@0.3/GROUP`, of the columns above."""
    figures: dict[str, Figure] = {}
    for grouping, names in groups.names.items():
        for name in names:
            cell = f"{grouping}/{name}"
            here = {
                f"recall@{IOU}": Figure(quotient(f"{cell}/tp", f"{cell}/truth"), f"{cell}/images"),
                f"miou_tp@{IOU}": Figure(quotient(f"{cell}/iou", f"{cell}/tp"), f"{cell}/images"),
            }
            figures |= named(f"by_{grouping}/detection", here, suffix=f"/{name}")
    return figures
