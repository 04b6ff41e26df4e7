"""The constant baseline: for each question the mean box of its class, without looking."""

import collections
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import QARecord, read_records
from cxrjax.runners.answer_lines import prediction_line
from cxrjax.runners.base import Answer, Line
from cxrjax.runners.mean_boxes import MeanBoxes, box_fractions


def start_prior_box(train: Path) -> Answer:
    """The baseline, learnt from training records.

    Raises:
        UserError: there are none, they cannot be read, or lack image sizes.
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
        UserError: no record, or one without an image size.
    """

    def __init__(self, records: Iterable[QARecord]) -> None:
        seen: dict[str, MeanBoxes] = collections.defaultdict(MeanBoxes)
        for record in records:
            if record.image_hw is None:
                raise UserError(f"question {record.question_id}: image_hw is null; join the sizes")
            seen[_subject(record)].add(box_fractions(record))
        if not seen:
            raise UserError("no training records: there are no boxes to take the mean of")
        self._boxes = {subject: boxes.most_frequent() for subject, boxes in seen.items()}

    def predict(self, questions: Iterable[QARecord]) -> Iterator[Line]:
        """A line of predictions for each question."""
        for record in questions:
            subject = _subject(record)
            boxes = self._boxes.get(subject, np.zeros((0, 4)))
            shown = CODECS["paligemma"].encode(boxes, 1, 1)
            text = f"{subject}: {shown}" if shown else f"There is no {subject}."
            yield prediction_line(record, text, boxes, [subject] * len(boxes))


def _subject(record: QARecord) -> str:
    return record.finding or record.question
