"""One system's predictions against the references: what is counted on each image.

Everything that a figure of VinDr-CXR-VQA needs is a sum over images, or over questions, of the
columns made here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cxrjax.boxes import pairwise_iou
from cxrjax.codecs import FAILURE_CATEGORIES, Codec
from cxrjax.metrics.classification import set_counts, sums_at
from cxrjax.metrics.detection import NO_CLASS, Overlaps, find_duplicates, find_overlaps, join_images
from cxrjax.papers.vindr_cxr_vqa.boxes import (
    IOU,
    BoxGroups,
    Columns,
    Views,
    box_group_columns,
    localization_columns,
    paper_columns,
    strict_columns,
)
from cxrjax.papers.vindr_cxr_vqa.truth import (
    Labelled,
    VindrQuestion,
    VindrReferences,
    read_question,
    stack,
    union,
)
from cxrjax.radiology_text.mentions import MentionReader, Reading
from cxrjax.records import QARecord
from cxrjax.scoring.benchmark import Answers, SystemCounts, count_answers
from cxrjax.scoring.predictions import PROBLEMS, Prediction, ReadBoxes, read_boxes
from cxrjax.scoring.scores import Outcome

_ANSWER_COLUMNS = (
    *(f"mentions/{count}" for count in ("tp", "fp", "fn")),
    *(f"asked/{count}" for count in ("tp", "fp", "fn", "tn", "there", "yes", "boxes")),
    *("questions", "asking", "exact_set", "hallucinated", "parse_failures"),
)

_NO_ANSWER = Reading(frozenset(), frozenset(), answered=False)


@dataclass(frozen=True)
class VindrCounts:
    """Counts of one system.

    Attributes:
        answers: of each question.
        images: columns with a number for every image.
        boxes: the union of each image's boxes, for each of its views, against the true ones.
        box_scores: confidence of each of those predicted boxes, NaN where it has none.
    """

    answers: SystemCounts
    images: Columns
    boxes: Overlaps
    box_scores: Float[np.ndarray, " n"]


@dataclass(frozen=True)
class _Answer:
    """A prediction (or none) with its boxes and what its text says."""

    boxes: tuple[Labelled, ...]
    scores: tuple[float, ...]  # NaN where a box has none
    reading: Reading
    parse: str | None  # None: no prediction


def count_system(
    references: VindrReferences,
    views: Views,
    groups: BoxGroups,
    answers: Answers,
    codec: Codec | None,
) -> VindrCounts:
    """Counts one system.

    Args:
        views, groups: of the references.
        codec: reads boxes from the text of lines without boxes.

    Raises:
        UserError: a prediction is for an unknown question, or has no boxes and there is no codec.
    """
    read: list[list[_Answer]] = [[] for _ in references.images]

    def count(
        question: VindrQuestion, prediction: Prediction | None, counts: SystemCounts
    ) -> Mapping[str, float]:
        answer = _read(references, question, prediction, codec, answers.source, counts)
        read[question.image].append(answer)
        return _count_question(counts, question, answer)

    counts = count_answers(
        references.questions, answers, count, PROBLEMS, FAILURE_CATEGORIES, _ANSWER_COLUMNS
    )
    return VindrCounts(counts, *_count_boxes(references, views, groups, read))


def _read(
    references: VindrReferences,
    question: VindrQuestion,
    prediction: Prediction | None,
    codec: Codec | None,
    source: str,
    counts: SystemCounts,
) -> _Answer:
    """Reads an answer, with a class for each of its boxes; notes what was wrong with it."""
    if prediction is None:
        return _Answer((), (), _NO_ANSWER, None)
    image = references.images[question.image]
    given = read_boxes(prediction, codec, image.height, image.width, source)
    counts.problems.update(given.problems)
    counts.problems["blank_answer"] += not (prediction.text.strip() or len(given.boxes))
    reading = read_classes(references.reader, question, prediction, given)
    classes = _classes(references, question, prediction, given, reading, counts)
    boxes = tuple(zip(classes, map(tuple, given.boxes.tolist()), strict=True))
    scores = prediction.box_scores
    if scores is None:
        scores = np.full(len(boxes), np.nan)
    return _Answer(boxes, tuple(scores.tolist()), reading, given.parse)


def read_classes(
    reader: MentionReader, question: VindrQuestion, prediction: Prediction, given: ReadBoxes
) -> Reading:
    """The classes that an answer says are there and not; a refusal that names none is no answer."""
    if given.parse == "refusal" and not any(reader.read(prediction.text)[:2]):
        return _NO_ANSWER
    return reader.read(prediction.text, question.asked, has_box=len(given.boxes) > 0)


def _classes(
    references: VindrReferences,
    question: VindrQuestion,
    prediction: Prediction,
    given: ReadBoxes,
    reading: Reading,
    counts: SystemCounts,
) -> list[int]:
    """The class of each box: its label, else the class asked about, else the one its text names."""
    numbers = {name: number for number, name in enumerate(references.classes)}
    classes = []
    for index in range(len(given.boxes)):
        label = prediction.labels[index] if prediction.labels else None
        if label is not None:
            name = references.reader.name_of(label)
            problem = "unknown_label"
        elif question.asked is not None:
            name, problem = question.asked, ""
        else:
            name = _named_with(references.reader, prediction.text, given, index, reading)
            problem = "unclassed_box"
        if name is None:
            counts.problems[problem] += 1
        classes.append(NO_CLASS if name is None else numbers[name])
    return classes


def _named_with(
    reader: MentionReader, text: str, given: ReadBoxes, index: int, reading: Reading
) -> str | None:
    """The class that an answer to an open question names with one of its boxes.

    The only class that it says is there; else, where the box's place in the text is known, the
    nearest before it in its part of the text (between semicolons, full stops and line ends), else
    the nearest after it there.
    """
    if len(reading.present) == 1:
        (name,) = reading.present
        return name
    if given.places is None:
        return None
    start, end = given.places[index]
    begin = max(text.rfind(mark, 0, start) for mark in (";", ". ", "\n")) + 1
    stops = [at for mark in (";", ". ", "\n") if (at := text.find(mark, end)) >= 0]
    named = [
        mention
        for mention in reader.mentions(text)
        if begin <= mention.start < min(stops, default=len(text)) and not mention.negated
    ]
    before = [mention.name for mention in named if mention.end <= start]
    after = [mention.name for mention in named if mention.start >= end]
    return before[-1] if before else after[0] if after else None


def _count_question(
    counts: SystemCounts, question: VindrQuestion, answer: _Answer
) -> Mapping[str, float]:
    reading = answer.reading
    found = set_counts(reading.present, question.present)
    failed = _parse_failed(question, answer)
    if failed and answer.parse is not None:
        counts.failures[answer.parse] += 1
    counted: dict[str, float] = {
        **{f"mentions/{name}": n for name, n in zip(("tp", "fp", "fn"), found, strict=True)},
        "questions": 1,
        "hallucinated": found[1] > 0,
        "exact_set": reading.answered and reading.present == question.present,
        "parse_failures": failed,
    }
    if question.asked is not None:
        counted |= _count_asked(question.asked, question, answer)
    return {name: float(amount) for name, amount in counted.items()}


def _count_asked(asked: str, question: VindrQuestion, answer: _Answer) -> dict[str, float]:
    truth = asked in question.present
    yes = asked in answer.reading.present
    # Who doesn't answer is wrong, also about a class that is absent.
    said = yes if answer.reading.answered else not truth
    cell = ("tp" if truth else "fp") if said else ("fn" if truth else "tn")
    return {
        f"asked/{cell}": 1.0,
        "asking": 1.0,
        "asked/there": float(truth),
        "asked/yes": float(yes),
        "asked/boxes": float(len(answer.boxes)),
    }


def _parse_failed(question: VindrQuestion, answer: _Answer) -> bool:
    """Says whether an answer could not be read. No box is a failure only where one is due:
    the reference has boxes, and the answer doesn't deny the class."""
    if answer.parse is None or answer.parse == "ok":
        return False
    if answer.parse == "no_box":
        return question.has_boxes and question.asked not in answer.reading.absent
    return True


def _count_boxes(
    references: VindrReferences,
    views: Views,
    groups: BoxGroups,
    answers: list[list[_Answer]],
) -> tuple[Columns, Overlaps, Float[np.ndarray, " n"]]:
    """Everything about boxes, against each of the images' truths: fields of `VindrCounts`."""
    every = [[box for answer in given for box in answer.boxes] for given in answers]
    merged = [union(answer.boxes for answer in given) for given in answers]
    paper = find_overlaps(views.predicted(every), views.truth)
    strict = find_overlaps(views.predicted(merged), views.truth)
    columns, matched = strict_columns(views, strict, references.classes)
    images = {
        **paper_columns(views, paper),
        **columns,
        **localization_columns(views, paper, strict),
        **box_group_columns(views, strict, matched[IOU], groups),
        "images": np.ones(len(every)),
        "images_with_truth": np.array(
            [bool(image.truths) for image in references.images], np.float64
        ),
        "boxes": np.array([len(boxes) for boxes in every], np.float64),
        "duplicates": _duplicates(answers),
    }
    scores = [_scores(boxes, given) for boxes, given in zip(merged, answers, strict=True)]
    return images, strict, np.array([s for image in views.image.tolist() for s in scores[image]])


def _scores(boxes: list[Labelled], answers: list[_Answer]) -> list[float]:
    """The confidence of each box of the union: the highest that some answer gives it."""
    highest: dict[Labelled, float] = {}
    for answer in answers:
        for box, score in zip(answer.boxes, answer.scores, strict=True):
            if score > highest.get(box, -math.inf):  # never for NaN
                highest[box] = score
    return [highest.get(box, math.nan) for box in boxes]


def _duplicates(answers: list[list[_Answer]]) -> Float[np.ndarray, " images"]:
    """Boxes that repeat an earlier one of their own answer."""
    image = [number for number, given in enumerate(answers) for _ in given]
    given = join_images(stack(answer.boxes) for given in answers for answer in given)
    of_answer = sums_at(given.image[find_duplicates(given)], given.images)
    return sums_at(np.array(image, np.int64), len(answers), of_answer)


def outcome(record: QARecord, prediction: Prediction, codec: Codec | None) -> Outcome:
    """Right: the answer's set of classes is, as `vqa/exact_set` counts it.

    The IoU is that of the boxes of this one question, classes aside: `mean_best_iou`. Of records
    with classes of their own, only this record's are known.

    Raises:
        UserError: a record that cannot be scored, or a prediction without boxes and no codec.
    """
    if not record.answers or record.image_hw is None:
        return Outcome(None, None, "no reference answer")
    question, reader = read_question(record, record.question_id)
    height, width = record.image_hw
    given = read_boxes(prediction, codec, height, width, record.question_id)
    true = np.array(record.boxes, np.float64).reshape(-1, 4) / [width, height, width, height]
    reading = read_classes(reader, question, prediction, given)
    right = reading.answered and reading.present == question.present
    return Outcome(right, mean_best_iou(true, given.boxes), _note(question, reading))


def mean_best_iou(
    true: Float[np.ndarray, "n 4"], predicted: Float[np.ndarray, "m 4"]
) -> float | None:
    """Measures how well two sets of boxes cover each other, in [0, 1]; None where both are empty.

    The mean, over the boxes of both sides, of the highest IoU with a box of the other. It orders
    pictures; it is no metric of the benchmark.
    """
    if not len(true) and not len(predicted):
        return None
    if not len(true) or not len(predicted):
        return 0.0
    overlaps = np.asarray(pairwise_iou(true, predicted))
    return float(np.concatenate([overlaps.max(axis=1), overlaps.max(axis=0)]).mean())


def _note(question: VindrQuestion, reading: Reading) -> str:
    if not reading.answered:
        return "no answer"
    missed, added = question.present - reading.present, reading.present - question.present
    if question.asked is not None and not (missed | added) - {question.asked}:
        there = question.asked in question.present
        if question.asked in missed | added:
            return "said absent; it is there" if there else "said there; it is absent"
        return "there, as said" if there else "absent, as said"
    notes = [f"missed: {_list(missed)}"] if missed else []
    notes += [f"not there: {_list(added)}"] if added else []
    return "; ".join(notes) or "all classes right"


def _list(names: Sequence[str] | frozenset[str]) -> str:
    return ", ".join(sorted(names))
