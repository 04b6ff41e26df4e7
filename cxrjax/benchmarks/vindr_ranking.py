"""VinDr-CXR-VQA's figures from the confidence of boxes: AP and FROC (H06), strict protocol.

They are of the union of an image's boxes, with classes. A box without a score ranks below all that
have one. `ap/constant_scores` is 1 where all scores are equal or none is given: then nothing is
ranked, and the figures are those of the one cut that there is.

No intervals: AP and FROC are no functions of sums over images, and ranking all boxes anew in every
resample costs minutes where everything else costs seconds.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.benchmarks.calibration_figures import thinned
from cxrjax.benchmarks.vindr_boxes import IOU
from cxrjax.benchmarks.vindr_detection import images_by_class
from cxrjax.benchmarks.vindr_truth import References
from cxrjax.metrics.average_precision import (
    COCO_THRESHOLDS,
    VOC_THRESHOLD,
    coco_average_precision,
    constant_scores,
    voc_average_precision,
)
from cxrjax.metrics.bootstrap import Estimate
from cxrjax.metrics.froc import RATES, froc_curve, sensitivity_at
from cxrjax.metrics.overlaps import Overlaps


def rank_last_where_missing(scores: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """The scores with a finite one below all others in place of NaN."""
    missing = np.isnan(scores)
    if missing.all():
        return np.zeros(len(scores))
    return np.where(missing, scores[~missing].min() - 1, scores)


def ranked_figures(
    references: References, overlaps: Overlaps, scores: Float[np.ndarray, "n"]
) -> tuple[dict[str, Estimate], dict[str, dict[str, Any]]]:
    """Figures and curves of scored boxes.

    Args:
        overlaps: of the union of an image's boxes with its true ones.
        scores: of each predicted box, NaN where it has none.

    Returns:
        Metric -> figure, curve -> points.
    """
    classes, images = references.classes, references.images_with_truth
    having = images_by_class(references)
    scores = rank_last_where_missing(scores)
    voc = voc_average_precision(overlaps, scores, len(classes))
    coco = coco_average_precision(overlaps, scores, len(classes))
    curve = froc_curve(overlaps, scores, IOU)
    sensitivity = sensitivity_at(curve, overlaps.images)
    values = {
        f"ap/voc@{VOC_THRESHOLD}": _mean(voc),
        "ap/coco": _mean(coco.mean(axis=0)),
        **{f"ap/coco@{t}": _mean(coco[COCO_THRESHOLDS.index(t)]) for t in (0.5, 0.75)},
        "ap/constant_scores": float(constant_scores(scores)) if len(scores) else np.nan,
        **{
            f"froc/sensitivity@{rate:g}": float(found)
            for rate, found in zip(RATES, sensitivity, strict=True)
        },
        "froc/mean_sensitivity": float(sensitivity.mean()),
    }
    figures = {name: _estimate(value, images) for name, value in values.items()}
    for number, name in enumerate(classes):
        for metric, value in (
            (f"voc@{VOC_THRESHOLD}", voc[number]),
            ("coco", coco[:, number].mean()),
        ):
            figures[f"by_class/ap/{metric}/{name}"] = _estimate(float(value), having[name])
    curves: dict[str, dict[str, Any]] = {}
    if curve.truths and len(curve.hits):
        curves["froc"] = {
            **thinned(curve.misses / overlaps.images, curve.recall),
            "x_label": "false boxes per image",
            "y_label": f"sensitivity (IoU > {IOU})",
        }
    return figures, curves


def _mean(by_class: Float[np.ndarray, "classes"]) -> float:
    """Over the classes that there are; NaN where there are none."""
    defined = by_class[~np.isnan(by_class)]
    return float(defined.mean()) if len(defined) else float("nan")


def _estimate(value: float, n: int) -> Estimate:
    return Estimate(None if np.isnan(value) else value, None, None, n)
