"""Predictions of any model: JSON Lines, one line a question, checked before anything is scored.

    {"question_id": "q1", "text": "Yes, Cardiomegaly at ...", "boxes": [[0.2, 0.4, 0.8, 0.7]],
     "labels": ["Cardiomegaly"], "box_scores": [0.9], "answer_logprob": -3.2, "parse": "ok"}

`boxes` are xyxy fractions of the original image. Without `boxes` (or with null) they are read from
`text` by a codec. `labels` (a class or null per box), `box_scores` (a confidence or null per box,
higher is surer), `decision_logprob` (natural logarithm of the probability of what the answer
decides: yes against no, the finding that it names), `coordinate_logprob` (of its coordinates),
`answer_logprob` (of all of it; stands for the decision's in a line that gives none, unless boxes
are written out in its text), `history` (of a later turn: "gold", asked on the true earlier answers,
or "self", on the system's own), `parse`, `repaired_boxes` (how many were not written exactly) and
`image_id` may be left out; `heat_map` is for benchmarks that read one. Other keys are ignored;
those that look like one of these are counted.

What makes a file unusable is refused with its line: no JSON, a missing or repeated id, a field of
another type, a line of absurd length. What a model can do wrong in a usable file is kept, scored as
wrong and counted (`PROBLEMS`).
"""

import difflib
import functools
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import Codec
from cxrjax.codecs.base import MOST_BOXES, NOT_BEGUN
from cxrjax.codecs.reading import without_thinking
from cxrjax.errors import UserError
from cxrjax.files import read_packaged, read_raw_json_lines
from cxrjax.paths import to_path
from cxrjax.radiology_text.thoughts import thought_length
from cxrjax.records import QARecord
from cxrjax.untrusted.json_text import repeated_keys, without_half_characters

# What is counted of answers, and of whole lines in every benchmark, with its meaning.
PROBLEMS: dict[str, str]
LINE_PROBLEMS: dict[str, str]
PROBLEMS, LINE_PROBLEMS = read_packaged(str(__package__), "problems.toml").values()

# `where` of predictions that share their arrays with others of their system that say the same.
SHARED = "floor"
_LAYOUT = 'expected {"question_id": ..., "text": ..., "boxes": [[x0, y0, x1, y1], ...], ...}'
_MAX_LINE_BYTES = 1_000_000
# Beyond this a number is no place on an image, and products of such numbers overflow.
_MAX_COORDINATE = 1e6
_ROUNDING = 1e-4
# The sum of many log-probabilities of nearly 1 may come out this much above 0.
_LOGPROB_ROUNDING = 1e-3
# Keys that are read somewhere, and those that `predict` adds for people.
_KEYS = (
    *("question_id", "image_id", "text", "boxes", "labels", "box_scores", "answer_logprob"),
    *("decision_logprob", "coordinate_logprob", "history", "parse", "repaired_boxes"),
    *("heat_map", "written", "reason", "box_spreads", "margins"),
)
# Lines may carry what their question's record has ("question"); none of it is misspelt.
_OF_RECORDS = frozenset(QARecord.model_fields)
# How alike two keys are, 0 to 1, when one is taken for the other misspelt.
_ALIKE = 0.8
_CATEGORY = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SNIPPET = 60
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# Molmo's <point x="63.5" y="44.8" ...> and <points x1=...>, and Molmo 2's <points coords="...">.
_POINT = re.compile(r"<(points?)\s{1,3}(?:x1?|y1?|coords|alt)\s{0,3}=", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One line."""

    question_id: str
    text: str
    # float64 [n, 4], xyxy fractions of the original image as written; None: to be read from the
    # text.
    boxes: Float[np.ndarray, "n 4"] | None
    # A class or None for each box (without `boxes`: of those in the text); None where the line
    # gives none.
    labels: tuple[str | None, ...] | None
    parse: str | None  # `ok`, a failure category, or None where the line does not say
    # Confidence of each box, as `labels`; NaN where it has no finite one.
    box_scores: Float[np.ndarray, " n"] | None = None
    # `answer_logprob`, `decision_logprob`: as written, of the whole answer and of what it decides;
    # None where the line gives none.
    answer_logprob: float | None = None
    decision_logprob: float | None = None
    # "gold" or "self", of a later turn of a dialogue; None where the line does not say.
    history: str | None = None
    repaired: int = 0  # boxes that the line says were not written exactly as a codec's grammar says
    heat_map: Any = None  # as written, for benchmarks that read one
    # Of the image that the line says it is about; None where it does not say.
    image_id: str | None = None
    # (category of `LINE_PROBLEMS`, the key or name concerned) of each case.
    problems: tuple[tuple[str, str], ...] = ()
    where: str = ""  # file and line, for error messages

    @property
    def decision_probability(self) -> float | None:
        """The probability of what the answer decides, 0 to 1; None where that is not known."""
        logprob = self.decision_logprob
        if logprob is None and not self.is_undivided:
            logprob = self.answer_logprob
        # False for NaN. Minus infinity is a probability of 0.
        if logprob is None or not logprob <= _LOGPROB_ROUNDING:
            return None
        return math.exp(min(logprob, 0.0))

    @property
    def is_undivided(self) -> bool:
        """Returns whether the only probability given is of a text that includes coordinates.

        Such a text has four numbers or more for each box of the line, or for one where the boxes
        are still to be read from it.
        """
        if self.answer_logprob is None or self.decision_logprob is not None:
            return False
        boxes = 1 if self.boxes is None else len(self.boxes)
        return boxes > 0 and len(_NUMBER.findall(self.text)) >= 4 * boxes

    def with_problems(self, category: str, names: Iterable[str]) -> "Prediction":
        """Returns the prediction with more problems of a category of `LINE_PROBLEMS`."""
        return replace(self, problems=(*self.problems, *((category, name) for name in names)))


@dataclass(frozen=True)
class ReadBoxes:
    """Boxes of one answer, fit for arithmetic: finite, corners sorted."""

    # float64 [n, 4], xyxy fractions of the original image. What was not a box has no area, so that
    # it counts as predicted and overlaps nothing.
    boxes: Float[np.ndarray, "n 4"]
    # Where in the text each box was read; None where it was not read from the text.
    places: tuple[tuple[int, int], ...] | None
    parse: str  # `ok` or a failure category
    problems: tuple[str, ...]  # categories of `PROBLEMS`, one entry per box concerned
    # Of each box, as the line gives them; empty where it gives none.
    labels: tuple[str | None, ...] = ()
    # What the notation in the text calls each box; empty where it was not read from there.
    named: tuple[str | None, ...] = ()
    # Confidence of each box, NaN where it has none.
    scores: Float[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0))


def read_predictions(path: str | Path) -> list[Prediction]:
    """All predictions of a file.

    Raises:
        UserError: the file cannot be read, a line is not a prediction, or an id is repeated.
    """
    predictions: dict[str, Prediction] = {}
    lines = read_raw_json_lines(
        to_path(path), "predictions", _LAYOUT, _MAX_LINE_BYTES, without_half_characters
    )
    for where, fields, line in lines:
        prediction = parse_prediction(fields, where)
        if without_half_characters(line) != line:
            prediction = prediction.with_problems("half_character", ["text"])
        if repeats := repeated_keys(line):
            prediction = prediction.with_problems("repeated_key", repeats)
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
    whole, decision = (
        _logprob(fields, name, where) for name in ("answer_logprob", "decision_logprob")
    )
    # Other people's lines may hold something else under this name.
    history = fields.get("history") if fields.get("history") in ("gold", "self") else None
    repaired = fields.get("repaired_boxes", 0)
    if not isinstance(repaired, int) or isinstance(repaired, bool) or repaired < 0:
        raise UserError(f"{where}: repaired_boxes is {_show(repaired)}: expected a count")
    image_id = fields.get("image_id")
    answer = without_thinking(text or "")
    # More than there are boxes is nobody's count.
    repaired = min(repaired, 0 if boxes is None else len(boxes))
    return Prediction(
        question_id=name,
        text=answer,
        boxes=boxes,
        # One object for all that are equal, of a million answers.
        labels=None
        if labels is None
        else one_of_equal(tuple(one and sys.intern(one) for one in labels)),
        parse=parse and sys.intern(parse),
        box_scores=None if scores is None else _finite(scores),
        answer_logprob=whole,
        decision_logprob=decision,
        history=history,
        repaired=repaired,
        heat_map=fields.get("heat_map"),
        image_id=image_id if isinstance(image_id, str) else None,
        problems=(
            *(("misspelt_key", key) for key in fields if _is_misspelt(key)),
            *([("bare_thought", "text")] if answer != (text or "") else ()),
            *(("point", f"<{tag.lower()}>") for tag in _POINT.findall(text or "")),
        ),
        where=where,
    )


@functools.lru_cache(maxsize=4096)
def one_of_equal(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the first of equal tuples, so that the others need not be kept."""
    return value


@functools.lru_cache(maxsize=1024)
def _is_misspelt(key: str) -> bool:
    """Returns whether an unknown key looks like a known one."""
    if key in _KEYS or key in _OF_RECORDS or len(key) > 2 * max(map(len, _KEYS)):
        return False
    plain = key.strip().lower().replace("-", "_").replace(" ", "_")
    return bool(difflib.get_close_matches(plain, _KEYS, n=1, cutoff=_ALIKE))


def _logprob(fields: Mapping[str, Any], name: str, where: str) -> float | None:
    value = fields.get(name)
    if value is not None and not _is_number(value):
        raise UserError(f"{where}: {name} is {_show(value)}: expected a number or null")
    return None if value is None else float(value)


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
    named: tuple[str | None, ...] = ()
    parse = prediction.parse
    if prediction.boxes is None:
        if codec is None:
            misspelt = [key for kind, key in prediction.problems if kind == "misspelt_key"]
            hint = f" (is {misspelt[0]!r} a key misspelt?)" if misspelt else ""
            if any(kind == "point" for kind, _ in prediction.problems):
                hint += ", but points, which have no extent and are none"
            raise UserError(
                f"{where}: question {prediction.question_id} has no boxes{hint}: give --codec=NAME "
                'to read them from the text, or write "boxes": [] for an answer without'
            )
        geometry = codec.makers_geometry(height, width)
        # A box that was only thought of is no more an answer than a word is.
        thought = thought_length(prediction.text)
        text = " " * thought + prediction.text[thought:]
        read = codec.read_as_written(text, height, width, geometry)
        boxes = np.array([span.as_written for span in read.spans], np.float64).reshape(-1, 4)
        places = tuple((span.start, span.end) for span in read.spans)
        named = tuple(span.label for span in read.spans)
        # The line's values may be of all boxes that the text begins.
        begun = [(start, True) for start, _ in places]
        begun += [(f.start, False) for f in read.failures if f.category not in NOT_BEGUN]
        is_read = [read_too for _, read_too in sorted(begun)]
        if parse is None or parse == "ok":
            parse = read.failures[0].category if read.failures else "ok"
            if thought and not text.strip():
                parse = "truncated"
        repaired = read.repaired
    else:
        boxes = prediction.boxes
        repaired = prediction.repaired
        is_read = [True] * len(boxes)
    boxes, problems = _mend(boxes)
    problems += ("repaired_box",) * repaired
    labels, scores = (
        _of_boxes(values, is_read) for values in (prediction.labels, prediction.box_scores)
    )
    problems += ("unmatched_values",) * ((labels is None) + (scores is None))
    confidence = np.array(scores or [math.nan] * len(boxes), np.float64)
    if scores:
        problems += ("unusable_score",) * int(np.isnan(confidence).sum())
    if prediction.is_undivided:
        problems += ("undivided_logprob",)
    elif prediction.decision_probability is None and (
        prediction.answer_logprob is not None or prediction.decision_logprob is not None
    ):
        problems += ("unusable_logprob",)
    return ReadBoxes(boxes, places, parse or "ok", problems, tuple(labels or ()), named, confidence)


def _of_boxes(values: Iterable[Any] | None, is_read: Sequence[bool]) -> list[Any] | None:
    """A line's values of the boxes that were read; [] where it has none, None if they do not fit.

    Args:
        is_read: of each box that was begun, in order, whether it was.
    """
    if values is None:
        return []
    values = list(values)
    if len(values) == len(is_read):
        return [value for value, kept in zip(values, is_read, strict=True) if kept]
    return values if len(values) == sum(is_read) else None


def check_images(
    predictions: Iterable[Prediction], images: Mapping[str, Collection[str]]
) -> list[Prediction]:
    """The predictions, with the contradiction noted where a line names another image.

    Args:
        images: question id -> ids of the images that it is about. A line may name a file of such.
    """
    checked = []
    for prediction in predictions:
        named, known = prediction.image_id, images.get(prediction.question_id)
        if named and known is not None and not {named, PurePosixPath(named).stem} & {*known}:
            prediction = prediction.with_problems("contradicted_image", [named])
        checked.append(prediction)
    return checked


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
    # An array that was reshaped keeps the one that it was made of.
    return np.array(rows, np.float64) if rows else np.zeros((0, 4))


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
    # Those of no box, or of boxes that stand in the text, are held against these when it is read.
    if boxes and len(value) != boxes:
        raise UserError(
            f"{where}: {len(value)} {name} for {boxes} boxes: expected one {expected} or null per "
            "box"
        )
    return value


def _finite(scores: Sequence[Any]) -> Float[np.ndarray, " n"]:
    numbers = np.array([math.nan if score is None else float(score) for score in scores])
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _mend(boxes: Float[np.ndarray, "n 4"]) -> tuple[Float[np.ndarray, "n 4"], tuple[str, ...]]:
    if not len(boxes):
        return boxes, ()
    # Most are as they should be. Never true of NaN.
    if boxes.min() >= 0 and boxes.max() <= 1 and (boxes[:, :2] < boxes[:, 2:]).all():
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
