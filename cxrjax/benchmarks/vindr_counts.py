"""One system's predictions against the references: what is counted on each image.

Everything that a figure of VinDr-CXR-VQA needs is a sum over images of the columns made here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from cxrjax.benchmarks.predictions import (
    PROBLEMS,
    Prediction,
    ReadBoxes,
    check_known,
    read_boxes,
)
from cxrjax.benchmarks.vindr_truth import LabelledBoxes, Question, References, stack, union
from cxrjax.codecs import FAILURE_CATEGORIES, Codec
from cxrjax.metrics.classification import set_counts
from cxrjax.metrics.detection import (
    NO_CLASS,
    count_any_overlap,
    count_duplicates,
    count_one_to_one,
)
from cxrjax.metrics.localization import localize
from cxrjax.metrics.mentions import MentionReader, Reading

# Section 3.2 of the paper: a predicted box counts where its IoU is above this.
IOU = 0.3

_BOX_COUNTS = ("tp", "fp", "fn", "iou")


@dataclass
class Tally:
    """Named columns with a number for every image, zero until something is added."""

    images: int
    columns: dict[str, Float[np.ndarray, "images"]] = field(default_factory=dict)

    def add(self, image: int, name: str, amount: int | float = 1) -> None:
        if name not in self.columns:
            self.columns[name] = np.zeros(self.images)
        self.columns[name][image] += amount

    def ensure(self, names: Iterable[str]) -> None:
        """Makes the columns exist, so that what never happened is a zero."""
        for name in names:
            self.columns.setdefault(name, np.zeros(self.images))


@dataclass
class SystemCounts:
    """What was counted of one system.

    Attributes:
        tally: columns by image; those of `ceiling_tally` are not among them.
        problems: category of `PROBLEMS` -> how often.
        parse_failures: failure category -> how many answers.
    """

    tally: Tally
    problems: Counter[str]
    parse_failures: Counter[str]


@dataclass(frozen=True)
class _Answer:
    """A prediction (or none) with its boxes and what its text says."""

    boxes: tuple[tuple[int, tuple[float, ...]], ...]
    reading: Reading
    parse: str | None  # None: no prediction


def count_system(
    references: References,
    predictions: Iterable[Prediction],
    codec: Codec | None,
    source: str,
) -> SystemCounts:
    """Counts one system.

    Args:
        references: what was asked and what is true.
        predictions: at most one for each question.
        codec: reads boxes from the text of lines without boxes.
        source: names the predictions, for error messages.

    Raises:
        UserError: a prediction is for an unknown question, or has no boxes and there is no codec.
    """
    by_id = {prediction.question_id: prediction for prediction in predictions}
    check_known(by_id.values(), references.questions, source)
    counts = SystemCounts(
        Tally(len(references.images)),
        Counter(dict.fromkeys(PROBLEMS, 0)),
        Counter(dict.fromkeys(FAILURE_CATEGORIES, 0)),
    )
    counts.tally.ensure(_expected_columns(references))
    answers: list[list[_Answer]] = [[] for _ in references.images]
    # Minutes for a hundred thousand long answers. None: quiet unless a terminal watches.
    for question in tqdm(references.questions.values(), desc=f"scoring {source}", disable=None):
        answer = _answer(
            references, question, by_id.get(question.question_id), codec, source, counts
        )
        answers[question.image].append(answer)
        _count_question(counts, question, answer)
    for number, given in enumerate(answers):
        _count_boxes(counts.tally, references, number, [answer.boxes for answer in given])
    return counts


def ceiling_tally(references: References) -> Tally:
    """What the reference answers themselves reach: the ceiling for whoever answers perfectly (H20).

    Columns `ceiling/found`, `ceiling/lost` (one to one, with classes), `ceiling_any/...` (any
    overlap) and `ceiling_one_box/found`: true boxes within reach of one box per question.
    """
    tally = Tally(len(references.images))
    names = ("ceiling/found", "ceiling/lost", "ceiling_any/found", "ceiling_any/lost")
    tally.ensure([*names, "ceiling_one_box/found", "truth_boxes"])
    for number, image in enumerate(references.images):
        for truth in image.truths:
            given = image.answered
            matched = count_one_to_one(
                given.boxes, given.classes, truth.boxes, truth.classes, IOU, len(references.classes)
            ).sum(axis=0)
            tally.add(number, "ceiling/found", matched[0])
            tally.add(number, "ceiling/lost", matched[2])
            overlaps = count_any_overlap(given.boxes, truth.boxes, IOU)
            tally.add(number, "ceiling_any/found", overlaps.found)
            tally.add(number, "ceiling_any/lost", overlaps.lost)
            tally.add(number, "ceiling_one_box/found", min(image.box_questions, len(truth.boxes)))
            tally.add(number, "truth_boxes", len(truth.boxes))
    return tally


def _expected_columns(references: References) -> list[str]:
    kinds = {question.kind for question in references.questions.values()}
    groups = ["", *(f"/class/{name}" for name in references.classes)]
    names = [f"one_to_one{group}/{c}" for group in groups for c in _BOX_COUNTS]
    names += [f"agnostic/{c}" for c in _BOX_COUNTS]
    names += [f"any/{c}" for c in ("hits", "misses", "found", "lost", "iou")]
    names += ["boxes", "duplicates", "normal/views", "normal/boxes", "lesion/views"]
    names += [f"lesion/{c}" for c in ("good", "acceptable", "iou", "boxes")]
    for protocol in ("paper", "strict"):
        names += [f"{protocol}/{c}" for c in ("good", "acceptable", "iou", "boxes")]
    groups += [f"/kind/{kind}" for kind in kinds]
    for group in groups:
        names += [f"asked{group}/{c}" for c in ("tp", "fp", "fn", "tn")]
    for group in ["", *(f"/kind/{kind}" for kind in kinds)]:
        names += [f"mentions{group}/{c}" for c in ("tp", "fp", "fn")]
        names += [f"{name}{group}" for name in ("questions", "exact_set", "parse_failures")]
    return [*names, "images", "views"]


def _answer(
    references: References,
    question: Question,
    prediction: Prediction | None,
    codec: Codec | None,
    source: str,
    counts: SystemCounts,
) -> _Answer:
    """What the system said, with a class for each of its boxes; notes what was wrong with it."""
    nothing = Reading(frozenset(), frozenset(), answered=False)
    if prediction is None:
        counts.problems["missing_prediction"] += 1
        return _Answer((), nothing, None)
    image = references.images[question.image]
    given = read_boxes(prediction, codec, image.height, image.width, source)
    counts.problems.update(given.problems)
    reader = references.reader
    reading = reader.read(prediction.text, question.asked, has_box=bool(len(given.boxes)))
    if not reading.answered:
        counts.problems["blank_answer"] += 1
    elif given.parse == "refusal" and not any(reader.read(prediction.text)[:2]):
        reading = nothing
    classes = _classes(references, question, prediction, given, reading, counts)
    boxes = tuple(zip(classes, map(tuple, given.boxes.tolist()), strict=True))
    return _Answer(boxes, reading, given.parse)


def _classes(
    references: References,
    question: Question,
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


def _count_question(counts: SystemCounts, question: Question, answer: _Answer) -> None:
    tally, image, reading = counts.tally, question.image, answer.reading
    kind = f"/kind/{question.kind}"
    found = dict(
        zip(("tp", "fp", "fn"), set_counts(reading.present, question.present), strict=True)
    )
    exact = reading.answered and reading.present == question.present
    failed = _parse_failed(question, answer)
    for group in ("", kind):
        for name, amount in found.items():
            tally.add(image, f"mentions{group}/{name}", amount)
        tally.add(image, f"questions{group}")
        tally.add(image, f"exact_set{group}", exact)
        tally.add(image, f"parse_failures{group}", failed)
    if failed and answer.parse is not None:
        counts.parse_failures[answer.parse] += 1
    if question.asked is None:
        return
    truth = question.asked in question.present
    # Who doesn't answer is wrong, also about a class that is absent.
    said = question.asked in reading.present if reading.answered else not truth
    cell = ("tp" if truth else "fp") if said else ("fn" if truth else "tn")
    for group in ("", kind, f"/class/{question.asked}"):
        tally.add(image, f"asked{group}/{cell}")


def _parse_failed(question: Question, answer: _Answer) -> bool:
    """Whether an answer could not be read. That it has no box is a failure only where one is due:
    the reference has boxes, and the answer doesn't deny the class."""
    if answer.parse is None or answer.parse == "ok":
        return False
    if answer.parse == "no_box":
        return question.has_boxes and question.asked not in answer.reading.absent
    return True


def _count_boxes(
    tally: Tally,
    references: References,
    number: int,
    answers: list[tuple[tuple[int, tuple[float, ...]], ...]],
) -> None:
    """Everything about the boxes of one image, against each of its truths."""
    every = stack(box for boxes in answers for box in boxes)
    merged = stack(union(answers))
    tally.add(number, "images")
    tally.add(number, "boxes", len(every.boxes))
    for boxes in answers:
        tally.add(number, "duplicates", count_duplicates(stack(boxes).boxes))
    for truth in references.images[number].truths:
        tally.add(number, "views")
        if len(truth.boxes):
            tally.add(number, "lesion/views")
        else:
            tally.add(number, "normal/views")
            tally.add(number, "normal/boxes", len(merged.boxes))
        _count_matches(tally, references.classes, number, merged, truth)
        overlaps = count_any_overlap(every.boxes, truth.boxes, IOU)
        for name, amount in zip(("hits", "misses", "found", "lost", "iou"), overlaps, strict=True):
            tally.add(number, f"any/{name}", amount)
        for protocol, predicted in (("paper", every), ("strict", merged)):
            placed = localize(predicted.boxes, truth.boxes)
            for name, amount in zip(("good", "acceptable", "iou", "boxes"), placed, strict=True):
                tally.add(number, f"{protocol}/{name}", amount)
                if protocol == "strict" and len(truth.boxes):
                    tally.add(number, f"lesion/{name}", amount)


def _count_matches(
    tally: Tally,
    classes: tuple[str, ...],
    number: int,
    predicted: LabelledBoxes,
    truth: LabelledBoxes,
) -> None:
    """One-to-one matches, with classes and without."""
    rows = count_one_to_one(
        predicted.boxes, predicted.classes, truth.boxes, truth.classes, IOU, len(classes)
    )
    agnostic = count_one_to_one(
        predicted.boxes,
        np.zeros_like(predicted.classes),
        truth.boxes,
        np.zeros_like(truth.classes),
        IOU,
        1,
    )
    for name, total, without in zip(_BOX_COUNTS, rows.sum(axis=0), agnostic[0], strict=True):
        tally.add(number, f"one_to_one/{name}", total)
        tally.add(number, f"agnostic/{name}", without)
    for index in np.flatnonzero(rows[:-1].any(axis=1)):
        for name, amount in zip(_BOX_COUNTS, rows[index], strict=True):
            tally.add(number, f"one_to_one/class/{classes[index]}/{name}", amount)


def count_by_group(questions: Mapping[str, Question]) -> dict[str, Counter[str]]:
    """How many questions ask about each class, and how many there are (and ask) of each kind."""
    asking = [question for question in questions.values() if question.asked is not None]
    return {
        "class": Counter(str(question.asked) for question in asking),
        "kind": Counter(question.kind for question in questions.values()),
        "kind_asking": Counter(question.kind for question in asking),
    }
