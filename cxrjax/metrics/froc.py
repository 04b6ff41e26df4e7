"""FROC: how many lesions are found at how many false boxes per image.

Boxes are tried from the highest score down; each takes the best true box of its class that is
still free, and a second box on a lesion is a false one. The figures are those of cuts that scores
allow: at most so many false boxes an image, no interpolation between cuts. All images count, those
without lesions too, and all boxes, also those without a class.

Sensitivity is NaN without true boxes, 0 without predictions.
"""

import numpy as np
from jaxtyping import Float

from cxrjax.metrics.classification import ratio
from cxrjax.metrics.overlaps import TOLERANCE, Overlaps
from cxrjax.metrics.ranking import Curve, Ranking, make_ranking, rank_by_score, take_best_free

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
    curve: Curve,
    images: int | Float[np.ndarray, "*draws"],
    rates: tuple[float, ...] = RATES,
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
