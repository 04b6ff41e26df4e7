"""How well predicted boxes lie on lesions: Table 6 of arXiv 2511.00504v2."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from cxrjax.metrics.overlaps import TOLERANCE, Overlaps

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
        iou_sum=np.bincount(image, weights=best, minlength=overlaps.images),
        predictions=overlaps.predicted.per_image,
    )
