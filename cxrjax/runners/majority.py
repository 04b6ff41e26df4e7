"""The baseline that says what training answers say most often, without looking."""

import collections
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cxrjax.codecs import CODECS, Codec
from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import RECORD_CODECS, QARecord, read_records
from cxrjax.runners.answer_lines import prediction_line
from cxrjax.runners.base import Answer, Line
from cxrjax.runners.mean_boxes import MeanBoxes, box_fractions

# A question's type and finding, as far as they are taken into account.
_Group = tuple[str | None, str | None]

_GEMEX = CODECS["gemex"]


def start_majority(train: Path) -> Answer:
    """The baseline, learnt from training records.

    Raises:
        UserError: they cannot be read, hold no answer, or lack the size of an image with boxes.
    """
    baseline = Majority(read_records(train))

    def answer(questions: RecordSource) -> Iterator[Line]:
        return baseline.predict(record for _, record in questions.records())

    return answer


class _Common(NamedTuple):
    """An answer that is given more than once: its words the first time, its boxes on average."""

    text: str
    boxes: MeanBoxes


class Majority:
    """The most frequent answer to questions of one type about one finding, and its boxes.

    Answers are the same if their keys are (yes, a letter, letters), or without keys their polarity
    and labels, or without those their words. Of the most frequent answer, the first one's words are
    repeated, without what they show of that image's boxes; its boxes are the mean ones
    (`mean_boxes`) of all who gave it. A finding that training does not have is answered as its type
    of question is, a type that it does not have as all questions are.

    Args:
        records: training records with answers; those with boxes with image sizes.

    Raises:
        UserError: no record has an answer, or one with boxes has no image size.
    """

    def __init__(self, records: Iterable[QARecord]) -> None:
        counts: dict[_Group, collections.Counter[object]] = collections.defaultdict(
            collections.Counter
        )
        answers: dict[tuple[_Group, object], _Common] = {}
        for record in records:
            if not record.answers:
                continue
            said, boxes = _said(record), box_fractions(record)
            for group in _groups(record):
                if (group, said) not in answers:
                    answers[group, said] = _Common(_words(record), MeanBoxes())
                answers[group, said].boxes.add(boxes)
                counts[group][said] += 1
        if not counts:
            raise UserError("training records without answers: there is no majority among them")
        self._answers = {
            group: answers[group, count.most_common(1)[0][0]] for group, count in counts.items()
        }

    def predict(self, questions: Iterable[QARecord]) -> Iterator[Line]:
        """A line of predictions for each question."""
        for record in questions:
            known = next(group for group in _groups(record) if group in self._answers)
            text, mean = self._answers[known]
            boxes = mean.most_frequent()
            if record.dataset == "gemex":
                # Its answers end in their boxes, on a frame that needs no image's size.
                text = f"{text} {_GEMEX.encode(boxes, 1, 1) or '<location>[]'}"
            yield prediction_line(record, text, boxes)


def _groups(record: QARecord) -> list[_Group]:
    """From the narrowest to all questions."""
    kind, finding = record.question_type, record.finding
    return list(dict.fromkeys([(kind, finding), (kind, None), (None, None)]))


def _said(record: QARecord) -> object:
    if record.answer_key is not None:
        key = record.answer_key
        return key if isinstance(key, str) else tuple(key)
    main = [answer for answer in record.answers if answer.answer_type == "main"] or record.answers
    said = tuple((answer.polarity, tuple(sorted(answer.labels))) for answer in main)
    return said if any(labels for _, labels in said) else _words(record)


def _words(record: QARecord) -> str:
    """The answer's text without its boxes."""
    text = record.answer_text
    codec: Codec = CODECS[RECORD_CODECS[record.dataset]]
    height, width = record.image_hw or (_ANY_SIZE, _ANY_SIZE)
    for span in reversed(codec.find(text, height, width)):
        text = text[: span.start] + text[span.end :]
    text = text.replace("<location>[]", "").replace("<location> []", "")
    return " ".join(text.split())


# Where the size is not known: any box of pixels lies inside.
_ANY_SIZE = 10**6
