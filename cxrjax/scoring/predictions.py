"""Predictions of any model: JSON Lines, one line a question, checked before anything is scored.

    {"question_id": "q1", "text": "Yes, Cardiomegaly at ...", "boxes": [[0.2, 0.4, 0.8, 0.7]],
     "labels": ["Cardiomegaly"], "box_scores": [0.9], "answer_logprob": -3.2, "parse": "ok"}

`boxes` are xyxy fractions of the original image. Without `boxes` (or with null) they are read from
`text` by a codec. `labels` (a class or null per box), `box_scores` (a confidence or null per box,
higher is surer), `answer_logprob` (natural logarithm of the answer's probability), `history` (of a
later turn: "gold", asked on the true earlier answers, or "self", on the system's own), `parse` and
`repaired_boxes` (how many were not written exactly) may be left out; `heat_map` is for benchmarks
that read one; other keys are ignored.

What makes a file unusable is refused with its line: no JSON, a missing or repeated id, a field of
another type, a line of absurd length. What a model can do wrong in a usable file is kept, scored as
wrong and counted (`PROBLEMS`).
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import Codec
from cxrjax.codecs.base import MOST_BOXES
from cxrjax.errors import UserError
from cxrjax.files import read_json_lines

# What is counted, and what it means; score.json and the tables explain themselves with it.
PROBLEMS = {
    "missing_prediction": "question without a line in the predictions file; scored as wrong",
    "blank_answer": "answer without text and boxes; scored as wrong",
    "non_finite_box": "box with NaN, infinity or an absurd number; overlaps nothing",
    "degenerate_box": "box without area; overlaps nothing",
    "swapped_box": "box with swapped corners; scored with its corners sorted",
    "out_of_range_box": "box that reaches beyond the image; scored as it is",
    "repaired_box": "box not written exactly as the codec's grammar says; read leniently",
    "unknown_label": "box whose label names no class, or several; belongs to no class",
    "unclassed_box": "box without a label, to a question and in an answer that name no one class",
    "unusable_score": "box score that is null or not finite, among others; the box ranks last",
    "unusable_logprob": "answer_logprob above 0 or not a number; taken as not given",
}

_LAYOUT = 'expected {"question_id": ..., "text": ..., "boxes": [[x0, y0, x1, y1], ...], ...}'
_MAX_LINE_BYTES = 1_000_000
# Beyond this a number is no place on an image, and products of such numbers overflow.
_MAX_COORDINATE = 1e6
_ROUNDING = 1e-4
# The sum of many log-probabilities of nearly 1 may come out this much above 0.
_LOGPROB_ROUNDING = 1e-3
_CATEGORY = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SNIPPET = 60


@dataclass(frozen=True, slots=True)
class Prediction:
    """One line.

    Attributes:
        boxes: float64 [n, 4], xyxy fractions of the original image as written; None: to be read
            from the text.
        labels: a class or None for each box; None where the line gives none.
        parse: `ok`, a failure category, or None where the line does not say.
        box_scores: confidence of each box, NaN where it has no finite one; None where the line
            gives none.
        answer_logprob: as written, of the whole answer; None where the line gives none.
        history: "gold" or "self", of a later turn of a dialogue; None where the line does not say.
        repaired: boxes that the line says were not written exactly as a codec's grammar says.
        heat_map: as written, for benchmarks that read one.
        where: file and line, for error messages.
    """

    question_id: str
    text: str
    boxes: Float[np.ndarray, "n 4"] | None
    labels: tuple[str | None, ...] | None
    parse: str | None
    box_scores: Float[np.ndarray, " n"] | None = None
    answer_logprob: float | None = None
    history: str | None = None
    repaired: int = 0
    heat_map: Any = None
    where: str = ""

    @property
    def answer_probability(self) -> float | None:
        """The probability of the whole answer, 0 to 1; None where that is not known."""
        # False for NaN. Minus infinity is a probability of 0.
        if self.answer_logprob is None or not self.answer_logprob <= _LOGPROB_ROUNDING:
            return None
        return math.exp(min(self.answer_logprob, 0.0))


@dataclass(frozen=True)
class ReadBoxes:
    """Boxes of one answer, fit for arithmetic: finite, corners sorted.

    Attributes:
        boxes: float64 [n, 4], xyxy fractions of the original image. What was not a box has no
            area, so that it counts as predicted and overlaps nothing.
        places: where in the text each box was read; None where it was not read from the text.
        parse: `ok` or a failure category.
        problems: categories of `PROBLEMS`, one entry per box concerned.
    """

    boxes: Float[np.ndarray, "n 4"]
    places: tuple[tuple[int, int], ...] | None
    parse: str
    problems: tuple[str, ...]


def read_predictions(path: str | Path) -> list[Prediction]:
    """All predictions of a file.

    Raises:
        UserError: the file cannot be read, a line is not a prediction, or an id is repeated.
    """
    predictions: dict[str, Prediction] = {}
    for where, fields in read_json_lines(Path(path), "predictions", _LAYOUT, _MAX_LINE_BYTES):
        prediction = parse_prediction(fields, where)
        name = prediction.question_id
        if name in predictions:
            raise UserError(
                f"{where}: question_id {name!r} was predicted on line "
                f"{predictions[name].where.rpartition(':')[2]} already: keep one of the two"
            )
        predictions[name] = prediction
    if not predictions:
        raise UserError(f"{path}: holds no predictions: {_LAYOUT}")
    return list(predictions.values())


def parse_prediction(fields: Mapping[str, Any], where: str) -> Prediction:
    """One prediction from the fields of its line.

    Args:
        fields: as in the module's docstring; what `predict` yields.
        where: file and line, for the error message.

    Raises:
        UserError: a field is missing or of another type.
    """
    name = fields.get("question_id")
    if not isinstance(name, str) or not name:
        raise UserError(f"{where}: question_id is {_show(name)}: {_LAYOUT}")
    text = fields.get("text")
    if text is not None and not isinstance(text, str):
        raise UserError(f"{where}: text is {_show(text)}: expected a string")
    parse = fields.get("parse")
    if parse is not None and not (isinstance(parse, str) and _CATEGORY.fullmatch(parse)):
        raise UserError(f"{where}: parse is {_show(parse)}: expected 'ok' or a failure category")
    boxes = _boxes(fields.get("boxes"), where)
    count = None if boxes is None else len(boxes)
    labels, scores = (
        _per_box(fields.get(name), count, is_fit, (name, expected), where)
        for name, expected, is_fit in (
            ("labels", "class name", lambda item: isinstance(item, str)),
            ("box_scores", "number", _is_number),
        )
    )
    logprob = fields.get("answer_logprob")
    if logprob is not None and not _is_number(logprob):
        raise UserError(f"{where}: answer_logprob is {_show(logprob)}: expected a number or null")
    logprob = None if logprob is None else float(logprob)
    # Other people's lines may hold something else under this name.
    history = fields.get("history") if fields.get("history") in ("gold", "self") else None
    repaired = fields.get("repaired_boxes", 0)
    if not isinstance(repaired, int) or isinstance(repaired, bool) or repaired < 0:
        raise UserError(f"{where}: repaired_boxes is {_show(repaired)}: expected a count")
    # More than there are boxes is nobody's count.
    repaired = min(repaired, 0 if boxes is None else len(boxes))
    return Prediction(
        question_id=name,
        text=text or "",
        boxes=boxes,
        labels=None if labels is None else tuple(labels),
        parse=parse,
        box_scores=None if scores is None else _finite(scores),
        answer_logprob=logprob,
        history=history,
        repaired=repaired,
        heat_map=fields.get("heat_map"),
        where=where,
    )


def read_boxes(
    prediction: Prediction, codec: Codec | None, height: int, width: int, where: str
) -> ReadBoxes:
    """The boxes of an answer: the line's own, else those that the codec finds in its text.

    Args:
        prediction: one line.
        codec: reads boxes from text; needed only for lines without `boxes`.
        height, width: size of the original image in pixels.
        where: names the file, for the error message.

    Raises:
        UserError: the line has no `boxes` and there is no codec.
    """
    places = None
    parse = prediction.parse
    if prediction.boxes is None:
        if codec is None:
            raise UserError(
                f"{where}: question {prediction.question_id} has no boxes: give --codec=NAME to "
                'read them from the text, or write "boxes": [] for an answer without'
            )
        geometry = codec.makers_geometry(height, width)
        read = codec.read_as_written(prediction.text, height, width, geometry)
        boxes = np.array([span.as_written for span in read.spans], np.float64).reshape(-1, 4)
        places = tuple((span.start, span.end) for span in read.spans)
        if parse is None or parse == "ok":
            parse = read.failures[0].category if read.failures else "ok"
        repaired = read.repaired
    else:
        boxes = prediction.boxes
        repaired = prediction.repaired
    boxes, problems = _mend(boxes)
    problems += ("repaired_box",) * repaired + _unusable(prediction)
    return ReadBoxes(boxes, places, parse or "ok", problems)


def check_known(predictions: Iterable[Prediction], known: Mapping[str, Any], where: str) -> None:
    """Refuses predictions for questions that nobody asked.

    Raises:
        UserError: counts the unknown ids and names the first.
    """
    unknown = [p.question_id for p in predictions if p.question_id not in known]
    if unknown:
        raise UserError(
            f"{where}: {len(unknown):,} predictions for questions that are not in the references, "
            f"the first {unknown[0]!r}: predictions and references must be of the same split"
        )


def _boxes(value: Any, where: str) -> Float[np.ndarray, "n 4"] | None:
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UserError(f"{where}: boxes is {_show(value)}: expected a list of [x0, y0, x1, y1]")
    if len(value) > MOST_BOXES:
        raise UserError(f"{where}: {len(value):,} boxes in one answer, at most {MOST_BOXES:,}")
    rows = []
    for box in value:
        if not isinstance(box, Sequence) or len(box) != 4 or not all(map(_is_number, box)):
            raise UserError(
                f"{where}: box {_show(box)} is not four numbers, fractions of the original image: "
                "x_min, y_min, x_max, y_max"
            )
        rows.append([float(number) for number in box])
    return np.array(rows, np.float64).reshape(-1, 4)


def _per_box(
    value: Any, boxes: int | None, is_fit: Callable[[Any], bool], what: tuple[str, str], where: str
) -> Sequence[Any] | None:
    """A value or null per box; None where there are none to use."""
    name, expected = what
    if value is None or value == []:
        return None
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UserError(f"{where}: {name} is {_show(value)}: expected a list of {expected}s")
    for item in value:
        if item is not None and not is_fit(item):
            raise UserError(f"{where}: {name}: {_show(item)}: expected a {expected} or null")
    if not boxes:
        return None  # no box in the line that they could belong to
    if len(value) != boxes:
        raise UserError(
            f"{where}: {len(value)} {name} for {boxes} boxes: expected one {expected} or null per "
            "box"
        )
    return value


def _finite(scores: Sequence[Any]) -> Float[np.ndarray, " n"]:
    numbers = np.array([math.nan if score is None else float(score) for score in scores])
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _unusable(prediction: Prediction) -> tuple[str, ...]:
    """Names the confidences that cannot be used."""
    scores = prediction.box_scores
    problems: tuple[str, ...] = ()
    if scores is not None:
        problems = ("unusable_score",) * int(np.isnan(scores).sum())
    if prediction.answer_logprob is not None and prediction.answer_probability is None:
        problems += ("unusable_logprob",)
    return problems


def _mend(
    boxes: Float[np.ndarray, "n 4"],
) -> tuple[Float[np.ndarray, "n 4"], tuple[str, ...]]:
    if not len(boxes):
        return boxes, ()
    usable = (np.abs(boxes) <= _MAX_COORDINATE).all(axis=1)  # False for NaN
    boxes = np.where(usable[:, None], boxes, 0.0)
    swapped = usable & (boxes[:, :2] > boxes[:, 2:]).any(axis=1)
    boxes = np.concatenate(
        [np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1
    )
    flat = usable & (boxes[:, :2] == boxes[:, 2:]).any(axis=1)
    outside = usable & ((boxes < -_ROUNDING) | (boxes > 1 + _ROUNDING)).any(axis=1)
    found = {
        "non_finite_box": ~usable,
        "swapped_box": swapped,
        "degenerate_box": flat,
        "out_of_range_box": outside,
    }
    return boxes, tuple(name for name, where in found.items() for _ in range(int(where.sum())))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SNIPPET else text[:_SNIPPET] + "..."
