"""What baselines say: short sentences, and lines of predictions from them."""

import re
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.records import QARecord

# A question that begins like this is answered by yes or no, in every language that is asked here.
_CLOSED = re.compile(r"(?:is|are|was|were|does|do|did|has|have|can|could|will|would)\b", re.I)
_CLOSED_TYPES = ("closed_ended", "Yes_No", "Is_there")


def is_closed(record: QARecord) -> bool:
    """Whether the answer to a question is yes or no."""
    return record.question_type in _CLOSED_TYPES or bool(_CLOSED.match(record.question.strip()))


def yes_or_no(yes: bool, finding: str | None) -> str:
    """The answer, with the finding that a question names."""
    if finding is None:
        return "Yes." if yes else "No."
    return f"Yes, there is {finding}." if yes else f"No, there is no {finding}."


def prediction_line(
    record: QARecord,
    text: str,
    boxes: Float[np.ndarray, "n 4"],
    labels: list[str | None] | None = None,
    parse: str = "ok",
) -> dict[str, Any]:
    """A line in the form that `score` reads.

    Args:
        boxes: xyxy, fractions of the original image.
        labels: one for each box; by default the finding that the question names.
        parse: `ok`, or why there is no answer.
    """
    return {
        "question_id": record.question_id,
        "text": text,
        "boxes": np.asarray(boxes, np.float64).round(6).tolist(),
        "labels": [record.finding] * len(boxes) if labels is None else labels,
        # A baseline is as sure of one box as of another.
        "box_scores": [1.0] * len(boxes),
        "answer_logprob": None,
        "parse": parse,
    }
