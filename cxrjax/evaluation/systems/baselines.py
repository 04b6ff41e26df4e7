"""Baselines that do not look: the most frequent answer, a prior box, random answers."""

import collections
import functools
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import CODECS, Codec
from cxrjax.errors import UserError
from cxrjax.evaluation.systems.base import Answer, Line
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import RECORD_CODECS, QARecord, ReaderBox, read_records

# A question that begins like this is answered by yes or no, in every language that is asked here.
_CLOSED = re.compile(r"(?:is|are|was|were|does|do|did|has|have|can|could|will|would)\b", re.I)
_CLOSED_TYPES = ("closed_ended", "Yes_No", "Is_there")


def is_closed(record: QARecord) -> bool:
    """Says whether the answer to a question is yes or no."""
    return record.question_type in _CLOSED_TYPES or bool(_CLOSED.match(record.question.strip()))


def yes_or_no(yes: bool, finding: str | None) -> str:
    """The answer, with the finding that a question names."""
    if finding is None:
        return "Yes." if yes else "No."
    return f"Yes, there is {finding}." if yes else f"No, there is no {finding}."


def prediction_line(
    record: QARecord,
    text: str,
    boxes: Float[np.ndarray, "n 4"],
    labels: list[str | None] | None = None,
    parse: str = "ok",
) -> dict[str, Any]:
    """A line in the form that `score` reads.

    Args:
        boxes: xyxy, fractions of the original image.
        labels: one for each box; by default the finding that the question names.
        parse: `ok`, or why there is no answer.
    """
    return {
        "question_id": record.question_id,
        "text": text,
        "boxes": np.asarray(boxes, np.float64).round(6).tolist(),
        "labels": [record.finding] * len(boxes) if labels is None else labels,
        # A baseline is as sure of one box as of another.
        "box_scores": [1.0] * len(boxes),
        "answer_logprob": None,
        "parse": parse,
    }


class MeanBoxes:
    """Mean boxes by how many an answer has: the k-th from left to right with the k-th."""

    def __init__(self) -> None:
        self._counts: collections.Counter[int] = collections.Counter()
        self._sums: dict[int, np.ndarray] = {}

    def add(self, boxes: Float[np.ndarray, "n 4"]) -> None:
        """One answer's boxes, xyxy fractions of the image, in any order."""
        in_order = boxes[np.argsort(boxes[:, 0], kind="stable")]
        self._counts[len(boxes)] += 1
        self._sums[len(boxes)] = self._sums.get(len(boxes), 0.0) + in_order

    def most_frequent(self) -> Float[np.ndarray, "n 4"]:
        """The mean boxes of answers with the most frequent number of boxes; of equally frequent
        ones the first that came."""
        count = self._counts.most_common(1)[0][0]
        return self._sums[count] / self._counts[count]


def box_fractions(record: QARecord) -> Float[np.ndarray, "n 4"]:
    """The boxes of a record's answers as fractions of its image.

    Raises:
        UserError: there are boxes and the image's size is not known.
    """
    boxes = np.asarray(record.boxes, np.float64).reshape(-1, 4)
    if not len(boxes):
        return boxes
    if record.image_hw is None:
        raise UserError(f"question {record.question_id}: image_hw is null; join the sizes")
    height, width = record.image_hw
    return boxes / [width, height, width, height]


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
            said, boxes = answer_identity(record), box_fractions(record)
            for group in _groups(record):
                if (group, said) not in answers:
                    answers[group, said] = _Common(answer_words(record), MeanBoxes())
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
    """The groups of a question, from the narrowest to all questions."""
    kind, finding = record.question_type, record.finding
    return list(dict.fromkeys([(kind, finding), (kind, None), (None, None)]))


def answer_identity(record: QARecord) -> object:
    """What an answer says: two answers of which this is equal are the same."""
    if record.answer_key is not None:
        key = record.answer_key
        return key if isinstance(key, str) else tuple(key)
    main = [answer for answer in record.answers if answer.answer_type == "main"] or record.answers
    said = tuple((answer.polarity, tuple(sorted(answer.labels))) for answer in main)
    return said if any(labels for _, labels in said) else answer_words(record)


def answer_words(record: QARecord) -> str:
    """The answer's text without its boxes."""
    size = record.image_hw or (_ANY_SIZE, _ANY_SIZE)
    return _without_boxes(record.answer_text, RECORD_CODECS[record.dataset], *size)


@functools.lru_cache(maxsize=4096)  # the same few words stand in many records
def _without_boxes(text: str, codec_name: str, height: int, width: int) -> str:
    codec: Codec = CODECS[codec_name]
    for span in reversed(codec.find(text, height, width)):
        text = text[: span.start] + text[span.end :]
    text = text.replace("<location>[]", "").replace("<location> []", "")
    return " ".join(text.split())


# Where the size is not known: any box of pixels lies inside.
_ANY_SIZE = 10**6


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
    """The training answers' mean boxes.

    Questions about one finding share an answer: the most frequent number of boxes in the training
    answers about it (none, where it is mostly absent), each the mean, as fractions of the image, of
    the boxes at its place from left to right.

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


def start_random(seed: int, closed_classes: Mapping[str, Sequence[str]]) -> Answer:
    """The baseline. A question's answer depends on the seed and its id alone.

    Args:
        closed_classes: data set -> the labels that its answers may have.
    """

    def answer(questions: RecordSource) -> Iterator[Line]:
        for _, record in questions.records():
            drawn = random.Random(f"{seed}/{record.question_id}/random_answer")
            yield prediction_line(
                record,
                draw_answer(record, drawn, closed_classes.get(record.dataset, ())),
                np.zeros((0, 4)),
            )

    return answer


def draw_answer(record: QARecord, drawn: random.Random, classes: Sequence[str]) -> str:
    """An answer's text; all that the question leaves open are equally likely.

    One option of a single-choice question (right in 1 of 4), a set of at least one option of a
    multi-choice question (1 of 15 for four), yes or no (1 of 2), one of `classes`, where
    there are any. A question that names a finding is answered by whether it is there. To any other
    there is nothing to draw from: the text is empty, which counts as wrong.
    """
    return draw_text(
        record.choices or (),
        record.question_type == "multi_choice",
        is_closed(record) or record.finding is not None,
        record.finding,
        drawn,
        classes,
    )


def draw_text(
    choices: Sequence[str],
    several: bool,
    closed: bool,
    finding: str | None,
    drawn: random.Random,
    classes: Sequence[str],
) -> str:
    """The same of a question's parts.

    Args:
        several: whether several of the choices may be right.
        closed: whether the answer is yes or no.
    """
    if choices:
        letters = [choice.partition(":")[0].strip() for choice in choices]
        return str(draw_subset(letters, drawn)) if several else drawn.choice(letters)
    if closed:
        return yes_or_no(drawn.random() < 0.5, finding)
    if classes:
        return f"There is {drawn.choice(classes)}."
    return ""


def draw_subset(options: Sequence[str], drawn: random.Random) -> list[str]:
    """Some of the options, in order, at least one; every such set is equally likely."""
    chosen = drawn.randrange(1, 2 ** len(options))
    return [option for place, option in enumerate(options) if chosen >> place & 1]


_NOTHING = np.zeros((0, 4))


def start_reader(records: Path, rad_id: str) -> Answer:
    """The reader, as the records of the same images have them.

    Raises:
        UserError: the records cannot be read, or this reader read none of their images.
    """
    marks = reader_marks(read_records(records), rad_id, str(records))

    def answer(questions: RecordSource) -> Iterator[Line]:
        for _, record in questions.records():
            yield reader_line(record, marks.get(record.image_id))

    return answer


def reader_marks(
    records: Iterable[QARecord], rad_id: str, source: str
) -> dict[str, list[tuple[str, np.ndarray]]]:
    """Image id -> (class, box as fractions [4]) of what this reader marked there.

    Raises:
        UserError: no record has such a reader, or one has no image size.
    """
    marks: dict[str, list[tuple[str, np.ndarray]]] = {}
    others: set[str] = set()
    for record in records:
        readers: Mapping[str, list[ReaderBox]] = record.readers or {}
        others.update(readers)
        if rad_id not in readers or record.image_id in marks:
            continue
        if record.image_hw is None:
            raise UserError(f"question {record.question_id}: image_hw is null; join the sizes")
        height, width = record.image_hw
        marks[record.image_id] = [
            (mark.label, np.asarray(mark.box) / [width, height, width, height])
            for mark in readers[rad_id]
        ]
    if not marks:
        raise UserError(
            f"{source}: no image was read by {rad_id!r}; expected one of {sorted(others)}"
            if others
            else f"{source}: its records have no readers; expected some with `readers`"
        )
    return marks


def reader_line(record: QARecord, marks: list[tuple[str, np.ndarray]] | None) -> Line:
    """The reader's answer to a question; `marks` is None where they did not read the image.

    Of a question that names a finding, whether they marked it and where; of any other, all that
    they marked.
    """
    if marks is None:
        return prediction_line(record, "", _NOTHING, parse="not_read")
    finding = record.finding
    shown = [(label, box) for label, box in marks if finding in (None, label)]
    labels: list[str | None] = [label for label, _ in shown]
    if finding is not None:
        text = yes_or_no(bool(shown), finding)
    elif shown:
        text = f"There is {', '.join(dict.fromkeys(label for label, _ in shown))}."
    else:
        text = "There is no finding."
    boxes = np.array([box for _, box in shown]).reshape(-1, 4)
    return prediction_line(record, text, boxes, labels)
