"""Kinds of errors of an answer that has boxes, words or both."""

from collections.abc import Sequence

import numpy as np

from cxrjax.boxes import pairwise_iou

# Kinds, each a bit of `errors_of`; RIGHT is of answers without any other.
MISSED, SPURIOUS, MISPLACED, WRONG, RIGHT = (1 << n for n in range(5))
# What the page calls them, and what each means.
KINDS = {
    MISSED: ("missed", "a true box that no box of the answer is meant for"),
    SPURIOUS: ("spurious", "a box that no true box is left for"),
    MISPLACED: ("misplaced", "a box that does not reach the true one, of which neither is paired"),
    WRONG: ("wrong answer", "what is said is wrong"),
    RIGHT: ("right", "nothing of these"),
}
# Boxes of this IoU are the same one.
SAME_IOU = 0.3

_Box = tuple[float, float, float, float]


def errors_of(truth: Sequence[_Box], said: Sequence[_Box], right: bool | None) -> int:
    """The kinds of errors of an answer.

    Boxes are paired one to one, best first, from an IoU of SAME_IOU on. Of what is left on both
    sides two make one that is misplaced; the rest is missed or spurious.

    Args:
        truth, said: boxes as fractions, xyxy.
        right: whether what is said is right; None: nobody says.

    Returns:
        Bits of KINDS; 0 where nothing is known: no boxes, and nobody says.
    """
    paired = _pairs(truth, said)
    left, more = len(truth) - paired, len(said) - paired
    found = MISPLACED * (min(left, more) > 0)
    found |= MISSED * (left > more) | SPURIOUS * (more > left) | WRONG * (right is False)
    return found or RIGHT * (right is True or paired > 0)


def _pairs(truth: Sequence[_Box], said: Sequence[_Box]) -> int:
    if not truth or not said:
        return 0
    ious = np.asarray(pairwise_iou(np.array(truth, np.float32), np.array(said, np.float32))).copy()
    count = 0
    while ious.max() >= SAME_IOU:
        one, other = np.unravel_index(ious.argmax(), ious.shape)
        ious[one, :] = ious[:, other] = -1
        count += 1
    return count
