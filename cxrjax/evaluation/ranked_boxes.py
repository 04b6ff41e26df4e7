"""Figures of scored boxes, for every benchmark that has boxes: AP and FROC, and constant scores.

Where a benchmark counts boxes question by question, a question stands in the place of an image, and
FROC's rates are false boxes per question.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.evaluation.figures import thinned
from cxrjax.metrics.bootstrap import (
    Bootstrap,
    Estimate,
    Swapped,
    chunks,
    estimate_reweighted,
    number_clusters,
)
from cxrjax.metrics.classification import ratio
from cxrjax.metrics.detection import Overlaps
from cxrjax.metrics.ranking import (
    COCO_THRESHOLDS,
    RATES,
    VOC_THRESHOLD,
    Ranking,
    coco_average_precision,
    coco_rankings,
    constant_scores,
    froc_ranking,
    join_rankings,
    pycocotools_rankings,
    sensitivity_at,
    voc_average_precision,
    voc_rankings,
)

# Above this IoU a box is a hit to FROC.
IOU = 0.3
# Predicted boxes times draws, resamples and left-out clusters together.
MOST_WORK = 100_000_000

Clusters = Sequence[tuple[str, str]]
Curves = dict[str, dict[str, Any]]


def rank_last_where_missing(scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The scores' places among each other, up to 1, at whatever scale; 0 in place of NaN."""
    known = ~np.isnan(scores)
    different, places = np.unique(scores[known], return_inverse=True)
    ranked = np.zeros(len(scores))
    ranked[known] = (places + 1) / max(len(different), 1)
    return ranked


def is_constant(scores: Float[np.ndarray, " n"]) -> bool:
    """Returns whether an answer gives all of its boxes one score, or none (NaN)."""
    return bool(np.isnan(scores).all() or (scores == scores[0]).all())


def constant_within_answers(constant: Sequence[bool], n: int) -> Estimate:
    """The share, of answers with several boxes, of those that give all of them one score.

    Args:
        constant: `is_constant` of each answer with several boxes.
        n: of the figure.
    """
    value = float(np.mean(constant)) if constant else None
    return Estimate(value, None, None, n)


@dataclass(frozen=True)
class RankedBoxes:
    """A system's boxes by their scores, ready to be weighed image by image."""

    clusters: Clusters  # of each image
    classes: Mapping[str, int]  # class -> how many images have it; empty: boxes without classes
    # `voc`, `coco`, `froc`: rankings, of `cxrjax.metrics.ranking`.
    voc: list[Ranking]
    coco: list[Ranking]
    froc: Ranking

    def figures(self, weights: Float[np.ndarray, "draws images"]) -> dict[str, np.ndarray]:
        """Every figure of AP and FROC where images count as often as their weights say."""
        by_voc = voc_average_precision(self.voc, weights)
        by_coco = coco_average_precision(self.coco, weights)
        (curve,) = self.froc.curves(weights)
        sensitivity = sensitivity_at(curve, weights.sum(axis=1))
        values = {
            f"ap/voc@{VOC_THRESHOLD}": _mean(by_voc),
            "ap/coco": _mean(by_coco.mean(axis=1)),
            **{f"ap/coco@{t}": _mean(by_coco[:, COCO_THRESHOLDS.index(t)]) for t in (0.5, 0.75)},
            **{f"froc/sensitivity@{rate:g}": sensitivity[:, i] for i, rate in enumerate(RATES)},
            "froc/mean_sensitivity": sensitivity.mean(axis=1),
        }
        for number, name in enumerate(self.classes):
            values[f"by_class/ap/voc@{VOC_THRESHOLD}/{name}"] = by_voc[:, number]
            values[f"by_class/ap/coco/{name}"] = by_coco[:, :, number].mean(axis=1)
        return values

    def swapped(self, other: "RankedBoxes", settings: Bootstrap) -> Swapped | None:
        """Both systems' figures where clusters are swapped with even chance, permutation by
        permutation; None where that takes too long.

        Systems' scores are of different scales, so that each counts by its place in its own.
        """
        rows, count = number_clusters(self.clusters)
        boxes = len(self.froc.scores) + len(other.froc.scores)
        if 2 * boxes * settings.resamples > MOST_WORK:
            return None
        both = RankedBoxes(
            [*self.clusters, *other.clusters],
            self.classes,
            list(map(join_rankings, self.voc, other.voc)),
            list(map(join_rankings, self.coco, other.coco)),
            join_rankings(self.froc, other.froc),
        )
        rng = np.random.default_rng(settings.seed)
        sides: tuple[list[dict[str, np.ndarray]], ...] = ([], [])
        for part in chunks(settings.resamples, 2 * len(rows)):
            swaps = rng.integers(0, 2, (part.stop - part.start, count)).astype(np.float64)[:, rows]
            kept = np.concatenate([1 - swaps, swaps], axis=1)
            for found, weights in zip(sides, (kept, 1 - kept), strict=True):
                found.append(both.figures(weights))
        first, second = (
            {name: np.concatenate([part[name] for part in found]) for name in found[0]}
            for found in sides
        )
        return first, second


def ranked_figures(
    overlaps: Overlaps,
    scores: Float[np.ndarray, " n"],
    clusters: Clusters,
    images: int,
    bootstrap: Bootstrap,
    having: Mapping[str, int] | None = None,
) -> tuple[dict[str, Estimate], Curves, RankedBoxes | None]:
    """Figures and curves of scored boxes.

    Args:
        overlaps: of predicted and true boxes, image by image. Of boxes without classes all are of
            class 0.
        scores: of each predicted box, NaN where it has none.
        clusters: of each image.
        images: n of the figures.
        bootstrap: how intervals are made.
        having: class -> how many images have it, in the classes' order; None: without classes.

    Returns:
        Metric -> figure, curve -> points, and the boxes, to be compared with another system's; None
        where that takes too long.
    """
    classes = len(having) if having else 1
    scores = rank_last_where_missing(scores)
    ranked = RankedBoxes(
        clusters,
        having or {},
        voc_rankings(overlaps, scores, classes),
        coco_rankings(overlaps, scores, classes),
        froc_ranking(overlaps, scores, IOU),
    )
    compared = 2 * len(scores) * bootstrap.resamples <= MOST_WORK
    work = len(scores) * (bootstrap.resamples + len(set(clusters)))
    too_much = work > MOST_WORK
    if too_much:
        bootstrap = replace(bootstrap, resamples=0)
    n: dict[str, int] = defaultdict(lambda: images)
    for name, count in (having or {}).items():
        n |= {f"by_class/ap/voc@{VOC_THRESHOLD}/{name}": count, f"by_class/ap/coco/{name}": count}
    found: dict[str, Estimate] = {
        **estimate_reweighted(ranked.figures, clusters, n, bootstrap),
        "ap/intervals_left_out": Estimate(float(too_much), None, None, images),
    }
    constant = float(constant_scores(scores)) if len(scores) else None
    found["ap/constant_scores"] = Estimate(constant, None, None, images)
    as_others = coco_average_precision(pycocotools_rankings(overlaps, scores, classes))
    for name, by_class in (
        ("ap/coco_pycocotools", as_others.mean(axis=0)),
        ("ap/coco_pycocotools@0.5", as_others[COCO_THRESHOLDS.index(0.5)]),
    ):
        mean = float(_mean(by_class[None])[0])
        found[name] = Estimate(None if np.isnan(mean) else mean, None, None, images)
    (curve,) = ranked.froc.curves()
    curves: Curves = {}
    if curve.truths and len(curve.hits):
        curves["froc"] = {
            **thinned(curve.misses / overlaps.images, curve.recall),
            "x_label": "false boxes per image",
            "y_label": f"sensitivity (IoU > {IOU})",
        }
    return found, curves, ranked if compared else None


def _mean(by_class: Float[np.ndarray, "draws classes"]) -> Float[np.ndarray, " draws"]:
    """Over the classes that there are; NaN where there are none."""
    defined = ~np.isnan(by_class)
    return ratio(np.where(defined, by_class, 0).sum(axis=1), defined.sum(axis=1))
