"""Case studies as GEMeX prints them: a judge's kept marks, and each answer taken apart.

A judge's marks are those that score kept in judgements.jsonl; nobody is asked again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.images.decode import read_image
from cxrjax.papers.gemex.cases import AnswerParts, case_studies, choose_cases
from cxrjax.records import read_records
from cxrjax.scoring.overlays import TRUTH, jpeg_data_uri
from cxrjax.scoring.predictions import read_predictions
from cxrjax.scoring.scores import Outcome

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
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    found = json.loads(line)
                    if found["task"] != "relative_score" or found["failure"] is not None:
                        continue
                    ratio = found["ratio_reference_first"]
                    if found["surrogate"]:
                        name = f"Score by {found['judge']}"
                    if ratio is not None:
                        marks[found["system"], found["question_id"]] = 100 * float(ratio)
                except (ValueError, KeyError, TypeError):
                    raise UserError(
                        f"{path}:{number}: expected a judgement as score writes it: score again"
                    ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
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
    marks: Marks = judgements.marks if judgements else {}
    studies = []
    for record, case in zip(chosen, case_studies(chosen, systems, codec), strict=True):
        uri = None
        height_px, width_px = record.image_hw or (1, 1)
        if image_root is not None:
            image = read_image(image_root / record.image_path)
            uri, (height_px, width_px) = jpeg_data_uri(image), image.shape[:2]
        height = round(VIEW_WIDTH * height_px / width_px, 1)
        answers = [StudyAnswer(TRUTH, case.truth, None, None)]
        answers += [
            StudyAnswer(a.system, a.said, a.outcome, marks.get((a.system, case.question_id)))
            for a in case.systems
        ]
        layers = {a.system: _layer(a.said.boxes, height) for a in answers if a.said is not None}
        studies.append(
            ShownQuestion(
                case.question_id,
                case.kind.replace("_", " "),
                case.question,
                case.choices,
                uri,
                height,
                answers,
                layers,
            )
        )
    return studies


def _layer(
    boxes: Float[np.ndarray, "n 4"], height: float
) -> list[tuple[float, float, float, float]]:
    scale: Any = np.array([VIEW_WIDTH, height, VIEW_WIDTH, height])
    rows = (np.clip(boxes, -1, 2) * scale).round(1).tolist()
    return [(x0, y0, round(x1 - x0, 1), round(y1 - y0, 1)) for x0, y0, x1, y1 in rows]
