"""Case studies as GEMeX prints them: one question, and every system's answer to it (G28).

The paper shows image, question, choices, truth and each system's answer, reason and boxes, with a
GPTScore: the answer's mark by the reference's, times 100 (Tables 7 and 14 to 17).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cxrjax.benchmarks.gemex_counts import judged_sample, read_answer, without_boxes
from cxrjax.benchmarks.gemex_truth import read_question
from cxrjax.benchmarks.outcomes import Outcome
from cxrjax.benchmarks.predictions import Prediction
from cxrjax.codecs import Codec
from cxrjax.datasets.gemex.dialogue import QUESTION_TYPES, parse_answer
from cxrjax.judges import Judge
from cxrjax.metrics.v_score import v_score
from cxrjax.records import QARecord


@dataclass(frozen=True)
class Statement:
    """An answer taken apart.

    Attributes:
        boxes: float64 [n, 4], xyxy fractions of the image.
    """

    answer: str
    reason: str
    boxes: Float[np.ndarray, "n 4"]


@dataclass(frozen=True)
class SystemAnswer:
    """One system's answer; `said` is None where it gave none.

    Attributes:
        score: 100 times the answer's mark by the reference's; None without a judge, or where it
            failed.
    """

    system: str
    said: Statement | None
    outcome: Outcome
    score: float | None


@dataclass(frozen=True)
class CaseStudy:
    """Attributes:
    kind: the question's type.
    choices: `A: words`; none for open and closed questions.
    score_name: what scores are called: "GPTScore" is the paper's, of a model; a surrogate's says
        so. None without a judge.
    """

    question_id: str
    image_path: str
    kind: str
    question: str
    choices: tuple[str, ...]
    truth: Statement
    systems: tuple[SystemAnswer, ...]
    score_name: str | None


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
    judge: Judge | None = None,
) -> list[CaseStudy]:
    """What is to be shown of each record.

    Args:
        records: with answers.
        systems: name -> question id -> prediction.
        codec: reads boxes from the text of lines without boxes; None: GEMeX's own.
        judge: rates the answers; a language model's verdicts are replayed where they are kept.

    Raises:
        UserError: a record or prediction cannot be read.
    """
    scores = _scores(records, systems, judge)
    name = None
    if judge is not None:
        name = f"Score by {judge.name}" if judge.surrogate else "GPTScore"
    cases = []
    for record in records:
        question = read_question(record, record.question_id)
        parsed = parse_answer(record.answer_text, question.kind, record.choices)
        truth = Statement(parsed.answer, record.reason or parsed.reason, question.boxes)
        cases.append(
            CaseStudy(
                question_id=record.question_id,
                image_path=record.image_path,
                kind=question.kind,
                question=record.question,
                choices=question.choices or (),
                truth=truth,
                systems=tuple(
                    _system_answer(
                        record,
                        system,
                        predictions.get(record.question_id),
                        codec,
                        scores.get((system, record.question_id)),
                    )
                    for system, predictions in systems.items()
                ),
                score_name=name,
            )
        )
    return cases


def outcome(record: QARecord, prediction: Prediction, codec: Codec | None) -> Outcome:
    """What came of one question."""
    question = read_question(record, record.question_id)
    answer = read_answer(question, prediction, codec, record.question_id)
    iou = None
    if len(question.boxes) or len(answer.boxes.boxes):
        iou = v_score(answer.boxes.boxes, question.boxes).strict
    if question.key is None:
        return Outcome(None, iou, ", ".join(answer.failures))
    true = ", ".join(sorted(question.key))
    if answer.named is None or answer.named.options is None:
        return Outcome(False, iou, f"answer could not be matched to an option; it is {true}")
    said = ", ".join(sorted(answer.named.options))
    right = answer.named.options == question.key
    return Outcome(right, iou, f"said {said}" if right else f"said {said}; it is {true}")


def _system_answer(
    record: QARecord,
    system: str,
    prediction: Prediction | None,
    codec: Codec | None,
    score: float | None,
) -> SystemAnswer:
    if prediction is None:
        return SystemAnswer(system, None, Outcome(False, None, "no answer"), score)
    question = read_question(record, record.question_id)
    boxes = read_answer(question, prediction, codec, system).boxes.boxes
    parsed = parse_answer(prediction.text, question.kind, record.choices)
    said = Statement(without_boxes(parsed.answer), without_boxes(parsed.reason), boxes)
    return SystemAnswer(system, said, outcome(record, prediction, codec), score)


def _scores(
    records: Sequence[QARecord],
    systems: Mapping[str, Mapping[str, Prediction]],
    judge: Judge | None,
) -> dict[tuple[str, str], float | None]:
    """100 times the ratio of marks, the reference read first, by system and question."""
    if judge is None:
        return {}
    samples = []
    for record in records:
        question = read_question(record, record.question_id)
        for system, predictions in systems.items():
            if (prediction := predictions.get(record.question_id)) is not None:
                answer = read_answer(question, prediction, None, system)
                samples.append(judged_sample(system, question, answer.text))
    rated = judge.relative_scores(samples)
    return {
        (sample.system, sample.question_id): (
            None if score.ratio_reference_first is None else 100 * score.ratio_reference_first
        )
        for sample, score in zip(samples, rated, strict=True)
    }
