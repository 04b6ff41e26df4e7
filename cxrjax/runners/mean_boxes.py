"""The boxes that answers have on average."""

import collections

import numpy as np
from jaxtyping import Float

from cxrjax.errors import UserError
from cxrjax.records import QARecord


class MeanBoxes:
    """Mean boxes by how many an answer has: the k-th from left to right with the k-th."""

    def __init__(self) -> None:
        self._counts: collections.Counter[int] = collections.Counter()
        self._sums: dict[int, np.ndarray] = {}

    def add(self, boxes: Float[np.ndarray, "n 4"]) -> None:
        """One answer's boxes, xyxy fractions of the image, in any order."""
        in_order = boxes[np.argsort(boxes[:, 0], kind="stable")]
        self._counts[len(boxes)] += 1
        self._sums[len(boxes)] = self._sums.get(len(boxes), 0.0) + in_order

    def most_frequent(self) -> Float[np.ndarray, "n 4"]:
        """The mean boxes of answers with the most frequent number of boxes; of equally frequent
        ones the first that came."""
        count = self._counts.most_common(1)[0][0]
        return self._sums[count] / self._counts[count]


def box_fractions(record: QARecord) -> Float[np.ndarray, "n 4"]:
    """The boxes of a record's answers as fractions of its image.

    Raises:
        UserError: there are boxes and the image's size is not known.
    """
    boxes = np.asarray(record.boxes, np.float64).reshape(-1, 4)
    if not len(boxes):
        return boxes
    if record.image_hw is None:
        raise UserError(f"question {record.question_id}: image_hw is null; join the sizes")
    height, width = record.image_hw
    return boxes / [width, height, width, height]
