"""Case studies as GEMeX prints them (Tables 7 and 14 to 17): each answer taken apart, and marked.

A judge's marks are those that score kept in judgements.jsonl; nobody is asked again.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.files import read_json_lines
from cxrjax.images.decode import read_image
from cxrjax.papers.gemex.counts import outcome, read_answer, without_boxes
from cxrjax.papers.gemex.dialogue import QUESTION_TYPES, parse_answer
from cxrjax.papers.gemex.truth import read_question
from cxrjax.records import QARecord, read_records
from cxrjax.scoring.overlays import TRUTH, jpeg_data_uri
from cxrjax.scoring.predictions import Prediction, read_predictions
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


def choose_cases(records: Sequence[QARecord], per_type: int, seed: int = 0) -> list[QARecord]:
    """Questions to show: so many of each type, with boxes, drawn by seed; types in their order."""
    drawn = []
    for kind in QUESTION_TYPES:
        fitting = [r for r in records if r.question_type == kind and r.boxes]
        fitting.sort(key=lambda record: record.question_id)
        chance = random.Random(f"{seed}/{kind}/case_studies")
        drawn += chance.sample(fitting, min(per_type, len(fitting)))
    return drawn


def study_answers(
    record: QARecord,
    systems: Mapping[str, Mapping[str, Prediction]],
    codec: Codec | None = None,
    marks: "Marks | None" = None,
) -> list["StudyAnswer"]:
    """The columns of a question: the truth, then every system.

    Args:
        record: with answers.
        systems: name -> question id -> prediction.
        codec: reads boxes from the text of lines without boxes; None: GEMeX's own.

    Raises:
        UserError: the record or a prediction cannot be read.
    """
    question = read_question(record, record.question_id)
    parsed = parse_answer(record.answer_text, question.kind, record.choices)
    truth = AnswerParts(parsed.answer, record.reason or parsed.reason, question.boxes)
    columns = [StudyAnswer(TRUTH, truth, None, None)]
    for system, predictions in systems.items():
        said, came_out = None, Outcome(False, None, "no answer")
        if (prediction := predictions.get(record.question_id)) is not None:
            boxes = read_answer(question, prediction, codec, system).boxes.boxes
            parsed = parse_answer(prediction.text, question.kind, record.choices)
            said = AnswerParts(without_boxes(parsed.answer), without_boxes(parsed.reason), boxes)
            came_out = outcome(record, prediction, codec)
        mark = (marks or {}).get((system, record.question_id))
        columns.append(StudyAnswer(system, said, came_out, mark))
    return columns


PER_TYPE = 2
VIEW_WIDTH = 400

# (system, question id) -> 100 times the answer's mark by the reference's.
Marks = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Judgements:
    """Marks of answers, and what they are called: GPTScore is a model's alone."""

    name: str
    marks: Marks


@dataclass(frozen=True)
class StudyAnswer:
    """One column of a study; the truth's has no outcome."""

    system: str
    said: AnswerParts | None
    outcome: Outcome | None
    score: float | None


@dataclass(frozen=True)
class ShownQuestion:
    """One question; `layers`: system -> its boxes as (x, y, width, height) in the view box."""

    question_id: str
    kind: str
    question: str
    choices: Sequence[str]
    uri: str | None
    height: float
    answers: list[StudyAnswer]
    layers: dict[str, list[tuple[float, float, float, float]]]


def read_judgements(path: Path) -> Judgements | None:
    """Relative scores of judgements.jsonl, as score writes it; None where it has none.

    Raises:
        UserError: the file cannot be read, or a line is not a judgement.
    """
    marks: dict[tuple[str, str], float] = {}
    name = "GPTScore"
    hint = "expected a judgement as score writes it: score again"
    for where, found in read_json_lines(path, "judgements", hint):
        try:
            if found["task"] != "relative_score" or found["failure"] is not None:
                continue
            ratio = found["ratio_reference_first"]
            if found["surrogate"]:
                name = f"Score by {found['judge']}"
            if ratio is not None:
                marks[found["system"], found["question_id"]] = 100 * float(ratio)
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{where}: {hint}") from None
    return Judgements(name, marks) if marks else None


def gemex_studies(
    references: Path,
    predictions: Mapping[str, Path],
    image_root: Path | None,
    codec: Codec | None,
    judgements: Judgements | None,
) -> list[ShownQuestion]:
    """Questions of each type with boxes, drawn by seed.

    Args:
        image_root: None leaves the pictures out.

    Raises:
        UserError: a file or an image cannot be read.
    """
    chosen = choose_cases(list(read_records(references)), PER_TYPE)
    wanted = {record.question_id for record in chosen}
    systems = {
        system: {p.question_id: p for p in read_predictions(path) if p.question_id in wanted}
        for system, path in predictions.items()
    }
    marks = judgements.marks if judgements else {}
    studies = []
    for record in chosen:
        uri = None
        height_px, width_px = record.image_hw or (1, 1)
        if image_root is not None:
            image = read_image(image_root / record.image_path)
            uri, (height_px, width_px) = jpeg_data_uri(image), image.shape[:2]
        height = round(VIEW_WIDTH * height_px / width_px, 1)
        answers = study_answers(record, systems, codec, marks)
        studies.append(
            ShownQuestion(
                record.question_id,
                record.question_type.replace("_", " "),
                record.question,
                record.choices or (),
                uri,
                height,
                answers,
                {a.system: _layer(a.said.boxes, height) for a in answers if a.said is not None},
            )
        )
    return studies


def _layer(
    boxes: Float[np.ndarray, "n 4"], height: float
) -> list[tuple[float, float, float, float]]:
    scale: Any = np.array([VIEW_WIDTH, height, VIEW_WIDTH, height])
    rows = (np.clip(boxes, -1, 2) * scale).round(1).tolist()
    return [(x0, y0, round(x1 - x0, 1), round(y1 - y0, 1)) for x0, y0, x1, y1 in rows]
