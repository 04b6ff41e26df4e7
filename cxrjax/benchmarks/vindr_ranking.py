"""VinDr-CXR-VQA's figures from the confidence of boxes: AP and FROC, strict protocol.

They are of the union of an image's boxes, with classes. A box without a score ranks below all that
have one. `ap/constant_scores` is 1 where all scores are equal or none is given: then nothing is
ranked, and the figures are those of the one cut that there is.

Intervals: all curves are made anew in every resample, which takes half a second for the paper's 659
images. From `MOST_WORK` on they are left out, since they would take longer than everything else;
`ap/intervals_left_out` is 1 then.
"""

from collections import defaultdict
from dataclasses import replace
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
    coco_rankings,
    voc_average_precision,
    voc_rankings,
)
from cxrjax.metrics.bootstrap import Bootstrap, Estimate
from cxrjax.metrics.classification import ratio
from cxrjax.metrics.froc import RATES, froc_ranking, sensitivity_at
from cxrjax.metrics.overlaps import Overlaps
from cxrjax.metrics.ranking import constant_scores
from cxrjax.metrics.reweighting import estimate_reweighted

# Predicted boxes times draws, resamples and left-out clusters together.
MOST_WORK = 100_000_000


def rank_last_where_missing(scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The scores with a finite one below all others in place of NaN."""
    missing = np.isnan(scores)
    if missing.all():
        return np.zeros(len(scores))
    return np.where(missing, scores[~missing].min() - 1, scores)


def ranked_figures(
    references: References,
    overlaps: Overlaps,
    scores: Float[np.ndarray, " n"],
    bootstrap: Bootstrap,
) -> tuple[dict[str, Estimate], dict[str, dict[str, Any]]]:
    """Figures and curves of scored boxes.

    Args:
        overlaps: of the union of an image's boxes with its true ones, once for each truth that
            the image has.
        scores: of each predicted box, NaN where it has none.
        bootstrap: how intervals are made.

    Returns:
        Metric -> figure, curve -> points.
    """
    classes, images = references.classes, references.images_with_truth
    scores = rank_last_where_missing(scores)
    voc = voc_rankings(overlaps, scores, len(classes))
    coco = coco_rankings(overlaps, scores, len(classes))
    froc = froc_ranking(overlaps, scores, IOU)

    def figures(weights: Float[np.ndarray, "draws truths"]) -> dict[str, Any]:
        by_voc = voc_average_precision(voc, weights)
        by_coco = coco_average_precision(coco, weights)
        (curve,) = froc.curves(weights)
        sensitivity = sensitivity_at(curve, weights.sum(axis=1))
        values = {
            f"ap/voc@{VOC_THRESHOLD}": _mean(by_voc),
            "ap/coco": _mean(by_coco.mean(axis=1)),
            **{f"ap/coco@{t}": _mean(by_coco[:, COCO_THRESHOLDS.index(t)]) for t in (0.5, 0.75)},
            **{f"froc/sensitivity@{rate:g}": sensitivity[:, i] for i, rate in enumerate(RATES)},
            "froc/mean_sensitivity": sensitivity.mean(axis=1),
        }
        for number, name in enumerate(classes):
            values[f"by_class/ap/voc@{VOC_THRESHOLD}/{name}"] = by_voc[:, number]
            values[f"by_class/ap/coco/{name}"] = by_coco[:, :, number].mean(axis=1)
        return values

    clusters = [image.cluster for image in references.images for _ in image.truths]
    work = len(scores) * (bootstrap.resamples + len(set(clusters)))
    too_much = work > MOST_WORK
    if too_much:
        bootstrap = replace(bootstrap, resamples=0)
    having = images_by_class(references)
    n: dict[str, int] = defaultdict(lambda: images)
    n |= {f"by_class/ap/voc@{VOC_THRESHOLD}/{name}": having[name] for name in classes}
    n |= {f"by_class/ap/coco/{name}": having[name] for name in classes}
    found = estimate_reweighted(figures, clusters, n, bootstrap)
    constant = float(constant_scores(scores)) if len(scores) else None
    found["ap/constant_scores"] = Estimate(constant, None, None, images)
    found["ap/intervals_left_out"] = Estimate(float(too_much), None, None, images)
    (curve,) = froc.curves()
    curves: dict[str, dict[str, Any]] = {}
    if curve.truths and len(curve.hits):
        curves["froc"] = {
            **thinned(curve.misses / overlaps.images, curve.recall),
            "x_label": "false boxes per image",
            "y_label": f"sensitivity (IoU > {IOU})",
        }
    return found, curves


def _mean(by_class: Float[np.ndarray, "draws classes"]) -> Float[np.ndarray, " draws"]:
    """Over the classes that there are; NaN where there are none."""
    defined = ~np.isnan(by_class)
    return ratio(np.where(defined, by_class, 0).sum(axis=1), defined.sum(axis=1))
