"""FROC: how many lesions are found at how many false boxes per image (H06).

Boxes are tried from the highest score down; each takes the best true box of its class that is
still free, and a second box on a lesion is a false one. The figures are those of cuts that scores
allow: at most so many false boxes an image, no interpolation between cuts. All images count, those
without lesions too, and all boxes, also those without a class.

Sensitivity is NaN without true boxes, 0 without predictions.
"""

import numpy as np
from jaxtyping import Float

from cxrjax.metrics.average_precision import Curve, make_curve, rank_by_score, take_best_free
from cxrjax.metrics.overlaps import TOLERANCE, Overlaps

# As in LUNA16 and its kin: false boxes per image.
RATES = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)


def froc_curve(overlaps: Overlaps, scores: Float[np.ndarray, "n"], threshold: float) -> Curve:
    """Hits and false boxes by falling score, classes pooled.

    Args:
        scores: of each predicted box, finite; higher is surer.
        threshold: a hit has an IoU above.
    """
    rank = rank_by_score(overlaps.predicted, scores)
    hits = take_best_free(overlaps, rank, threshold + TOLERANCE)
    return make_curve(scores, hits, len(overlaps.truth))


def sensitivity_at(curve: Curve, images: int, rates: tuple[float, ...] = RATES) -> np.ndarray:
    """Sensitivity at each of the rates.

    Args:
        images: how many images the boxes are of.
        rates: false boxes per image.

    Returns:
        float64 [rates], the highest sensitivity of a cut with at most that many; 0 where every cut
        has more.
    """
    if not curve.truths:
        return np.full(len(rates), np.nan)
    # Misses never fall along the curve, and neither do hits.
    steps = np.searchsorted(curve.misses, np.array(rates) * images, side="right")
    return np.concatenate([[0.0], curve.recall])[steps]
