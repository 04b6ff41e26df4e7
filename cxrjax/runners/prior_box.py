"""The constant baseline: for each question the mean box of its class, without looking (H15)."""

import collections
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import QARecord, read_records
from cxrjax.runners.base import Answer, Line


def start_prior_box(train: Path) -> Answer:
    """The baseline, learnt from training records.

    Raises:
        UserError: they cannot be read, or lack image sizes.
    """
    baseline = PriorBox(read_records(train))

    def answer(questions: RecordSource) -> Iterator[Line]:
        return baseline.predict(record for _, record in questions.records())

    return answer


class PriorBox:
    """What the training answers say on average.

    Questions about one finding share an answer: the most frequent number of boxes in the training
    answers about it (none, where it is mostly absent), each the mean, as fractions of the image, of
    the boxes at its place from left to right.

    Args:
        records: training records with answers and image sizes.

    Raises:
        UserError: a record without an image size.
    """

    def __init__(self, records: Iterable[QARecord]) -> None:
        seen: dict[str, list[np.ndarray]] = collections.defaultdict(list)
        for record in records:
            if record.image_hw is None:
                raise UserError(f"question {record.question_id}: image_hw is null; join the sizes")
            height, width = record.image_hw
            boxes = np.asarray(record.boxes, np.float64).reshape(-1, 4)
            boxes = boxes / [width, height, width, height]
            seen[_finding(record)].append(boxes[np.argsort(boxes[:, 0], kind="stable")])
        self._boxes: dict[str, np.ndarray] = {}
        for finding, answers in seen.items():
            count = collections.Counter(map(len, answers)).most_common(1)[0][0]
            same = [boxes for boxes in answers if len(boxes) == count]
            self._boxes[finding] = np.mean(same, axis=0)

    def predict(self, questions: Iterable[QARecord]) -> Iterator[dict[str, Any]]:
        """A line of predictions for each question, in the form that `score` reads."""
        for record in questions:
            finding = _finding(record)
            boxes = self._boxes.get(finding, np.zeros((0, 4)))
            text = CODECS["paligemma"].encode(boxes, 1, 1) if len(boxes) else ""
            yield {
                "question_id": record.question_id,
                "text": f"{finding}: {text}" if text else f"There is no {finding}.",
                "boxes": boxes.round(6).tolist(),
                "labels": [finding] * len(boxes),
                "box_scores": [1.0] * len(boxes),
                "answer_logprob": None,
                "parse": "ok",
            }


def _finding(record: QARecord) -> str:
    return str((record.variables or {}).get("finding") or record.question)
