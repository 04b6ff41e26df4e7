"""How well the boxes of one image lie on its lesions (V30, A11): Table 6 of arXiv 2511.00504v2."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from cxrjax.boxes import pairwise_iou
from cxrjax.metrics.detection import TOLERANCE

GOOD, ACCEPTABLE = 0.5, 0.3


class Localization(NamedTuple):
    """One image's part of Table 6.

    Attributes:
        good, acceptable: whether some predicted box has an IoU above 0.5, above 0.3, with a true
            box of any class. False without a prediction and without a true box.
        iou_sum: sum over the predicted boxes of each one's highest IoU with a true box.
        predictions: number of predicted boxes; `iou_sum` over all images is divided by their sum.
    """

    good: bool
    acceptable: bool
    iou_sum: float
    predictions: int


def localize(predicted: Float[np.ndarray, "n 4"], truth: Float[np.ndarray, "m 4"]) -> Localization:
    """One image's part of Table 6; boxes xyxy in one unit, with finite coordinates."""
    if not len(predicted) or not len(truth):
        return Localization(False, False, 0.0, len(predicted))
    best = np.asarray(pairwise_iou(predicted, truth), np.float64).max(axis=1)
    highest = best.max()
    return Localization(
        good=bool(highest > GOOD + TOLERANCE),
        acceptable=bool(highest > ACCEPTABLE + TOLERANCE),
        iou_sum=float(best.sum()),
        predictions=len(predicted),
    )
