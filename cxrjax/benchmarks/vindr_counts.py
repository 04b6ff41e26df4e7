"""One system's predictions against the references: what is counted on each image.

Everything that a figure of VinDr-CXR-VQA needs is a sum over images of the columns made here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from cxrjax.benchmarks.labelled_boxes import Labelled, stack, union
from cxrjax.benchmarks.predictions import (
    PROBLEMS,
    Prediction,
    ReadBoxes,
    check_known,
    read_boxes,
)
from cxrjax.benchmarks.vindr_boxes import (
    IOU,
    Views,
    localization_columns,
    paper_columns,
    strict_columns,
)
from cxrjax.benchmarks.vindr_breakdowns import BoxGroups, box_group_columns
from cxrjax.benchmarks.vindr_truth import Question, References
from cxrjax.codecs import FAILURE_CATEGORIES, Codec
from cxrjax.metrics.classification import set_counts
from cxrjax.metrics.detection import find_duplicates
from cxrjax.metrics.mentions import MentionReader, Reading
from cxrjax.metrics.overlaps import NO_CLASS, Overlaps, find_overlaps, join_images

# Why a class that a question asks about is absent.
NEGATIVE_KINDS = ("absent_class", "no_finding_image")


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
        tally: columns by image.
        problems: category of `PROBLEMS` -> how often.
        parse_failures: failure category -> how many answers.
        boxes: the union of each image's boxes, for each of its views, against the true ones.
        box_scores: confidence of each of those predicted boxes, NaN where it has none.
    """

    tally: Tally
    problems: Counter[str]
    parse_failures: Counter[str]
    boxes: Overlaps = field(init=False)
    box_scores: Float[np.ndarray, "n"] = field(init=False)


@dataclass(frozen=True)
class _Answer:
    """A prediction (or none) with its boxes and what its text says."""

    boxes: tuple[Labelled, ...]
    scores: tuple[float, ...]  # NaN where a box has none
    reading: Reading
    parse: str | None  # None: no prediction


def count_system(
    references: References,
    views: Views,
    groups: BoxGroups,
    predictions: Iterable[Prediction],
    codec: Codec | None,
    source: str,
) -> SystemCounts:
    """Counts one system.

    Args:
        references: what was asked and what is true.
        views, groups: of the references.
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
    _count_boxes(counts, references, views, groups, answers)
    return counts


def _groups(question: Question) -> list[str]:
    """What a question's counts are added to."""
    groups = ["", f"/kind/{question.kind}"]
    return groups + [f"/difficulty/{question.difficulty}"] * (question.difficulty is not None)


def _expected_columns(references: References) -> list[str]:
    of_questions = {g: None for q in references.questions.values() for g in _groups(q)}
    of_classes = [f"/class/{name}" for name in references.classes]
    names = []
    for group in [*of_questions, *of_classes]:
        names += [f"asked{group}/{c}" for c in ("tp", "fp", "fn", "tn", "yes")]
    for group in of_questions:
        names += [f"mentions{group}/{c}" for c in ("tp", "fp", "fn")]
        counts = ("questions", "exact_set", "hallucinated", "parse_failures")
        names += [f"{name}{group}" for name in counts]
    for kind in NEGATIVE_KINDS:
        names += [f"negative/{kind}/{c}" for c in ("questions", "yes", "boxes")]
    return names


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
        return _Answer((), (), nothing, None)
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
    scores = prediction.box_scores
    if scores is None:
        scores = np.full(len(boxes), np.nan)
    return _Answer(boxes, tuple(scores.tolist()), reading, given.parse)


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
    found = dict(
        zip(("tp", "fp", "fn"), set_counts(reading.present, question.present), strict=True)
    )
    exact = reading.answered and reading.present == question.present
    failed = _parse_failed(question, answer)
    for group in _groups(question):
        for name, amount in found.items():
            tally.add(image, f"mentions{group}/{name}", amount)
        tally.add(image, f"questions{group}")
        tally.add(image, f"exact_set{group}", exact)
        tally.add(image, f"hallucinated{group}", found["fp"] > 0)
        tally.add(image, f"parse_failures{group}", failed)
    if failed and answer.parse is not None:
        counts.parse_failures[answer.parse] += 1
    if question.asked is None:
        return
    truth = question.asked in question.present
    yes = question.asked in reading.present
    # Who doesn't answer is wrong, also about a class that is absent.
    said = yes if reading.answered else not truth
    cell = ("tp" if truth else "fp") if said else ("fn" if truth else "tn")
    for group in (*_groups(question), f"/class/{question.asked}"):
        tally.add(image, f"asked{group}/{cell}")
        tally.add(image, f"asked{group}/yes", yes)
    if question.negative_kind is not None:
        negative = f"negative/{question.negative_kind}"
        tally.add(image, f"{negative}/questions")
        tally.add(image, f"{negative}/yes", yes)
        tally.add(image, f"{negative}/boxes", len(answer.boxes))


def _parse_failed(question: Question, answer: _Answer) -> bool:
    """Whether an answer could not be read. That it has no box is a failure only where one is due:
    the reference has boxes, and the answer doesn't deny the class."""
    if answer.parse is None or answer.parse == "ok":
        return False
    if answer.parse == "no_box":
        return question.has_boxes and question.asked not in answer.reading.absent
    return True


def _count_boxes(
    counts: SystemCounts,
    references: References,
    views: Views,
    groups: BoxGroups,
    answers: list[list[_Answer]],
) -> None:
    """Everything about boxes, against each of the images' truths."""
    every = [stack(box for answer in given for box in answer.boxes) for given in answers]
    merged = [union(answer.boxes for answer in given) for given in answers]
    paper = find_overlaps(views.predicted(every), views.truth)
    strict = find_overlaps(views.predicted([stack(boxes) for boxes in merged]), views.truth)
    columns, matched = strict_columns(views, strict, references.classes)
    counts.tally.columns |= {
        **paper_columns(views, paper),
        **columns,
        **localization_columns(views, paper, strict),
        **box_group_columns(views, strict, matched[IOU], groups),
        "images": np.ones(len(every)),
        "with_truth": np.array([bool(image.truths) for image in references.images], np.float64),
        "boxes": np.array([len(boxes.boxes) for boxes in every], np.float64),
        "duplicates": _duplicates(answers),
    }
    scores = [_scores(boxes, given) for boxes, given in zip(merged, answers, strict=True)]
    counts.boxes = strict
    counts.box_scores = np.array([s for image in views.image.tolist() for s in scores[image]])


def _scores(boxes: list[Labelled], answers: list[_Answer]) -> list[float]:
    """The confidence of each box of the union: the highest that some answer gives it."""
    highest: dict[Labelled, float] = {}
    for answer in answers:
        for box, score in zip(answer.boxes, answer.scores, strict=True):
            highest[box] = float(np.fmax(highest.get(box, np.nan), score))
    return [highest[box] for box in boxes]


def _duplicates(answers: list[list[_Answer]]) -> Float[np.ndarray, "images"]:
    """Boxes that repeat an earlier one of their own answer."""
    image = [number for number, given in enumerate(answers) for _ in given]
    boxes = (stack(answer.boxes) for given in answers for answer in given)
    given = join_images((one.boxes, one.classes) for one in boxes)
    of_answer = np.bincount(given.image[find_duplicates(given)], minlength=given.images)
    return np.bincount(image, weights=of_answer, minlength=len(answers))


def count_by_group(questions: Mapping[str, Question]) -> dict[str, Counter[str]]:
    """How many questions ask about each class and are of each group, all and those that ask."""
    asking = [question for question in questions.values() if question.asked is not None]
    return {
        "class": Counter(str(question.asked) for question in asking),
        "all": Counter(group for q in questions.values() for group in _groups(q)),
        "asking": Counter(group for question in asking for group in _groups(question)),
        "negative": Counter(str(q.negative_kind) for q in asking if q.negative_kind is not None),
    }
