"""Case studies as GEMeX prints them: one question, and every system's answer to it.

The paper shows image, question, choices, truth and each system's answer, reason and boxes (Tables 7
and 14 to 17); its GPTScores beside them are of a judge's marks (`page_studies.Judgements`).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import Codec
from cxrjax.papers.gemex.counts import outcome, read_answer, without_boxes
from cxrjax.papers.gemex.dialogue import QUESTION_TYPES, parse_answer
from cxrjax.papers.gemex.truth import read_question
from cxrjax.records import QARecord
from cxrjax.scoring.predictions import Prediction
from cxrjax.scoring.scores import Outcome


@dataclass(frozen=True)
class AnswerParts:
    """An answer taken apart.

    Attributes:
        boxes: float64 [n, 4], xyxy fractions of the image.
    """

    answer: str
    reason: str
    boxes: Float[np.ndarray, "n 4"]


@dataclass(frozen=True)
class GemexAnswer:
    """One system's answer; `said` is None where it gave none."""

    system: str
    said: AnswerParts | None
    outcome: Outcome


@dataclass(frozen=True)
class CaseStudy:
    """Attributes:
    kind: the question's type.
    choices: `A: words`; none for open and closed questions.
    """

    question_id: str
    image_path: str
    kind: str
    question: str
    choices: tuple[str, ...]
    truth: AnswerParts
    systems: tuple[GemexAnswer, ...]


def choose_cases(records: Sequence[QARecord], per_type: int, seed: int = 0) -> list[QARecord]:
    """Questions to show: so many of each type, with boxes, drawn by seed; types in their order."""
    drawn = []
    for kind in QUESTION_TYPES:
        fitting = [r for r in records if r.question_type == kind and r.boxes]
        fitting.sort(key=lambda record: record.question_id)
        chance = random.Random(f"{seed}/{kind}/case_studies")
        drawn += chance.sample(fitting, min(per_type, len(fitting)))
    return drawn


def case_studies(
    records: Sequence[QARecord],
    systems: Mapping[str, Mapping[str, Prediction]],
    codec: Codec | None = None,
) -> list[CaseStudy]:
    """What is to be shown of each record.

    Args:
        records: with answers.
        systems: name -> question id -> prediction.
        codec: reads boxes from the text of lines without boxes; None: GEMeX's own.

    Raises:
        UserError: a record or prediction cannot be read.
    """
    cases = []
    for record in records:
        question = read_question(record, record.question_id)
        parsed = parse_answer(record.answer_text, question.kind, record.choices)
        truth = AnswerParts(parsed.answer, record.reason or parsed.reason, question.boxes)
        cases.append(
            CaseStudy(
                question_id=record.question_id,
                image_path=record.image_path,
                kind=question.kind,
                question=record.question,
                choices=question.choices or (),
                truth=truth,
                systems=tuple(
                    _system_answer(record, system, predictions.get(record.question_id), codec)
                    for system, predictions in systems.items()
                ),
            )
        )
    return cases


def _system_answer(
    record: QARecord,
    system: str,
    prediction: Prediction | None,
    codec: Codec | None,
) -> GemexAnswer:
    if prediction is None:
        return GemexAnswer(system, None, Outcome(False, None, "no answer"))
    question = read_question(record, record.question_id)
    boxes = read_answer(question, prediction, codec, system).boxes.boxes
    parsed = parse_answer(prediction.text, question.kind, record.choices)
    said = AnswerParts(without_boxes(parsed.answer), without_boxes(parsed.reason), boxes)
    return GemexAnswer(system, said, outcome(record, prediction, codec))
