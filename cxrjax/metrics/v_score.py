"""V-score: mean IoU of Hungarian-matched boxes (GEMeX, arXiv 2411.16778, section 4.2).

The paper gives neither what unmatched boxes cost nor what an answer without boxes gets, so there
are three denominators for the same sum of IoU. The pairs are those of the largest total IoU with
as many pairs as the smaller side has boxes; a pair whose boxes don't touch adds nothing.

* `strict`: divided by the larger number of boxes, so that too many cost as much as too few;
* `lenient`: by the number of pairs, so that unmatched boxes cost nothing;
* `truth`: by the number of true boxes, so that unmatched predictions cost nothing.

| predicted | true | strict | lenient | truth |
|---|---|---|---|---|
| none | none | 1, flagged `both_empty` | 1 | 1 |
| none | some | 0 | 0 | 0 |
| some | none | 0 | 0 | 0 |
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from cxrjax.boxes import pairwise_iou


class VScore(NamedTuple):
    """One answer's V-score in [0, 1], by denominator; `both_empty`: no box here and none there."""

    strict: float
    lenient: float
    truth: float
    both_empty: bool


def v_score(predicted: Float[np.ndarray, "n 4"], truth: Float[np.ndarray, "m 4"]) -> VScore:
    """V-score of one answer.

    Args:
        predicted, truth: boxes xyxy in one unit, with finite coordinates; either may be empty.
    """
    if not len(predicted) and not len(truth):
        return VScore(1.0, 1.0, 1.0, both_empty=True)
    if not len(predicted) or not len(truth):
        return VScore(0.0, 0.0, 0.0, both_empty=False)
    overlap = np.asarray(pairwise_iou(predicted, truth), np.float64)
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    total = float(overlap[rows, columns].sum())
    return VScore(
        strict=total / max(overlap.shape),
        lenient=total / min(overlap.shape),
        truth=total / len(truth),
        both_empty=False,
    )
