"""The baseline that draws an answer: what chance alone reaches (GEMeX's Table 5, row Random)."""

import random
from collections.abc import Iterator, Sequence

import numpy as np

from cxrjax.datasets.vindr_cxr_vqa.classes import CLASSES
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import QARecord
from cxrjax.runners.answer_lines import is_closed, prediction_line, yes_or_no
from cxrjax.runners.base import Answer, Line

_OF_14_CLASSES = ("vindr_cxr_vqa", "synthetic")


def start_random(seed: int) -> Answer:
    """The baseline. A question's answer depends on the seed and its id alone."""

    def answer(questions: RecordSource) -> Iterator[Line]:
        for _, record in questions.records():
            drawn = random.Random(f"{seed}/{record.question_id}/random_answer")
            yield prediction_line(record, draw_answer(record, drawn), np.zeros((0, 4)))

    return answer


def draw_answer(record: QARecord, drawn: random.Random) -> str:
    """An answer's text; all that the question leaves open are equally likely.

    One option of a single-choice question (right in 1 of 4), a set of at least one option of a
    multi-choice question (1 of 15 for four), yes or no (1 of 2), one of the 14 classes where
    VinDr-CXR-VQA asks what is seen. A question that names a finding is answered by whether it is
    there. To any other there is nothing to draw from: the text is empty, which counts as wrong.
    """
    finding = record.finding
    if record.choices:
        letters = [choice.partition(":")[0].strip() for choice in record.choices]
        if record.question_type == "multi_choice":
            return str(draw_subset(letters, drawn))
        return drawn.choice(letters)
    if is_closed(record) or finding is not None:
        return yes_or_no(drawn.random() < 0.5, finding)
    if record.dataset in _OF_14_CLASSES:
        return f"There is {drawn.choice(CLASSES)}."
    return ""


def draw_subset(options: Sequence[str], drawn: random.Random) -> list[str]:
    """Some of the options, in order, at least one; every such set is equally likely."""
    chosen = drawn.randrange(1, 2 ** len(options))
    return [option for place, option in enumerate(options) if chosen >> place & 1]
