"""VinDr-CXR-VQA's figures about boxes, from the columns of `vindr_boxes`.

At every IoU threshold of the sweep (0.10 to 0.75) precision, recall, F1 and the mean IoU of true
positives, of one-to-one matches with classes and without and of any overlap: as curves. As metrics
those at `POINTS`, and `f1_area`, the area under the F1 curve divided by its width, so that 1 is
perfect.
"""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np

from cxrjax.benchmarks.formulas import named, of, quotient
from cxrjax.benchmarks.scores import PAPER, STRICT
from cxrjax.benchmarks.vindr_boxes import IOU, Columns
from cxrjax.benchmarks.vindr_truth import References
from cxrjax.metrics.bootstrap import Figure, Formula, Sums
from cxrjax.metrics.classification import harmonic_mean, ratio
from cxrjax.metrics.detection import SWEEP, mean_iou_of_hits

POINTS = (0.3, 0.4, 0.5, 0.75)
_METRICS = {
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "miou_tp": "mean IoU of true positives",
}

Named = dict[str, Figure]


def strict_detection(references: References) -> Named:
    """Figures of the union of an image's boxes, matched one to one."""
    images = references.images_with_truth
    normal = sum(any(not len(t.boxes) for t in image.truths) for image in references.images)
    lesion = sum(any(len(t.boxes) for t in image.truths) for image in references.images)
    about = {
        f"recall_ceiling@{IOU}": Figure(quotient("ceiling/found", "strict/truth"), images),
        "recall_ceiling_one_box": Figure(quotient("ceiling_one_box/found", "strict/truth"), images),
        "boxes_per_image": Figure(quotient("boxes", "images"), images),
        "truth_boxes_per_image": Figure(quotient("strict/truth", "views"), images),
        "duplicate_share": Figure(quotient("duplicates", "boxes"), images),
        "boxes_per_normal_image": Figure(quotient("normal/boxes", "normal/views"), normal),
        "normal_images_without_boxes": Figure(quotient("normal/clean", "normal/views"), normal),
    }
    return {
        **named("detection", _points("one_to_one", images)),
        **named("detection_agnostic", _points("agnostic", images)),
        **named("detection", about),
        **_placed("localization", STRICT, "views", images),
        **_placed("localization_with_lesion", "lesion", "lesion/views", lesion),
        "localization/ceiling": Figure(quotient("lesion/views", "views"), images),
    }


def paper_detection(references: References) -> Named:
    """Figures of all of an image's boxes, right where they overlap any true box."""
    images = references.images_with_truth
    about = {
        f"recall_ceiling@{IOU}": Figure(quotient("ceiling_any/found", "paper/truth"), images),
        "boxes_per_image": Figure(quotient("boxes", "images"), images),
        "truth_boxes_per_image": Figure(quotient("paper/truth", "views"), images),
    }
    return {
        **named("detection", _points("any", images)),
        **named("detection", about),
        **_placed("localization", PAPER, "views", images),
    }


def images_by_class(references: References) -> Counter[str]:
    """How many images have each class."""
    return Counter(
        references.classes[number]
        for image in references.images
        for number in {int(c) for truth in image.truths for c in truth.classes}
    )


def detection_by_class(references: References) -> Named:
    """One-to-one figures of each class; n: images that have the class."""
    having = images_by_class(references)
    figures: Named = {}
    for name in references.classes:
        here = {
            f"{metric}@{IOU}": Figure(formula, having[name])
            for metric, formula in class_formulas(name, IOU).items()
        }
        figures |= named("by_class/detection", here, suffix=f"/{name}")
    return figures


def sweep_curves(columns: Columns) -> dict[str, dict[str, Any]]:
    """Curves over the IoU threshold; null where a figure is undefined."""
    sums = {name: np.array([column.sum()]) for name, column in columns.items()}
    curves = {}
    for title, kind in (
        ("strict", "one_to_one"),
        ("strict_agnostic", "agnostic"),
        ("paper", "any"),
    ):
        for metric, label in _METRICS.items():
            figures = [float(formulas(kind, t)[metric](sums)[0]) for t in SWEEP]
            curves[f"sweep/{title}/{metric}"] = {
                "x": list(SWEEP),
                "y": [None if np.isnan(figure) else figure for figure in figures],
                "x_label": "IoU threshold",
                "y_label": label,
            }
    return curves


def _points(kind: str, n: int) -> Named:
    figures = {
        f"{metric}@{threshold}": Figure(formula, n)
        for threshold in POINTS
        for metric, formula in formulas(kind, threshold).items()
    }
    return {**figures, "f1_area": Figure(partial(_f1_area, kind), n)}


def _f1_area(kind: str, sums: Sums) -> np.ndarray:
    f1 = np.stack([formulas(kind, threshold)["f1"](sums) for threshold in SWEEP])
    return np.trapezoid(f1, SWEEP, axis=0) / (SWEEP[-1] - SWEEP[0])


def formulas(kind: str, threshold: float, truth: str = "") -> dict[str, Formula]:
    """Metric -> formula, of one way of counting at one IoU threshold.

    Args:
        kind: `one_to_one`, `agnostic` or `any`.
        truth: what the columns' names begin with.
    """
    prefix = f"{truth}{kind}@{threshold}"
    if kind == "any":
        return _any_overlap(prefix, f"{truth}paper", threshold)
    return _one_to_one(prefix, f"{truth}strict", threshold)


def class_formulas(name: str, threshold: float, truth: str = "") -> dict[str, Formula]:
    """The same of one class, one to one."""
    prefix = f"{truth}one_to_one/class/{name}"
    return _one_to_one(prefix, prefix, threshold)


def _one_to_one(prefix: str, boxes: str, threshold: float) -> dict[str, Formula]:
    hits, predicted, truth = f"{prefix}/tp", f"{boxes}/predicted", f"{boxes}/truth"
    return {
        "precision": quotient(hits, predicted),
        "recall": quotient(hits, truth),
        "f1": lambda sums: ratio(2 * sums[hits], sums[predicted] + sums[truth]),
        "miou_tp": of(partial(mean_iou_of_hits, threshold=threshold), f"{prefix}/iou", hits),
    }


def _any_overlap(prefix: str, boxes: str, threshold: float) -> dict[str, Formula]:
    precision = quotient(f"{prefix}/hits", f"{boxes}/predicted")
    recall = quotient(f"{prefix}/found", f"{boxes}/truth")
    return {
        "precision": precision,
        "recall": recall,
        # Hits are predicted boxes and found are true boxes: their numbers differ, so that only the
        # harmonic mean makes an F1 of the two. The paper's own figures agree with it.
        "f1": lambda sums: harmonic_mean(precision(sums), recall(sums)),
        "miou_tp": of(
            partial(mean_iou_of_hits, threshold=threshold), f"{prefix}/iou", f"{prefix}/hits"
        ),
    }


def _placed(name: str, prefix: str, views: str, n: int) -> Named:
    """The rows of Table 6."""
    figures = {
        "good@0.5": Figure(quotient(f"{prefix}/good", views), n),
        "acceptable@0.3": Figure(quotient(f"{prefix}/acceptable", views), n),
        "mean_iou": Figure(quotient(f"{prefix}/iou", f"{prefix}/boxes"), n),
    }
    return named(name, figures)
