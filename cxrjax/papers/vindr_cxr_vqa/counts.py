"""One system's predictions against the references: what is counted on each image.

Every figure of VinDr-CXR-VQA is of sums over images, or over questions, of the columns made here.
"""

import functools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from cxrjax.boxes import pairwise_iou
from cxrjax.codecs import FAILURE_CATEGORIES, Codec
from cxrjax.evaluation.benchmark import Answers, SharedCounts, SystemCounts, count_answers
from cxrjax.evaluation.counted import DECISION, Outcome, code
from cxrjax.evaluation.matched_boxes import question_columns
from cxrjax.evaluation.on_topic import is_about_another
from cxrjax.evaluation.predictions import PROBLEMS, SHARED, Prediction, ReadBoxes, read_boxes
from cxrjax.evaluation.ranked_boxes import is_constant
from cxrjax.metrics import detection
from cxrjax.metrics.classification import set_counts, sums_at
from cxrjax.papers.vindr_cxr_vqa.annotation import above, related
from cxrjax.papers.vindr_cxr_vqa.boxes import (
    GROUNDED,
    IOU,
    BoxGroups,
    Columns,
    PackedColumns,
    Views,
    box_group_columns,
    join_columns,
    localization_columns,
    packed,
    paper_columns,
    strict_columns,
)
from cxrjax.papers.vindr_cxr_vqa.truth import (
    NO_BOXES,
    Labelled,
    VindrQuestion,
    VindrReferences,
    join_lists,
    read_question,
    union,
)
from cxrjax.radiology_text.answer_details import SaidPlace, count_said, place_said
from cxrjax.radiology_text.mentions import VINDR_CLASSES, MentionReader, Reading
from cxrjax.records import QARecord

_ANSWER_COLUMNS = (
    *(f"mentions/{count}" for count in ("tp", "fp", "fn")),
    *(f"asked/{count}" for count in ("tp", "fp", "fn", "tn", "there", "yes", "boxes")),
    *("questions", "asking", "exact_set", "hallucinated", "parse_failures"),
    *("undecided", "off_topic", "nothing"),
    *("counting", "count/exact", "count/in_range", "siding", "side_right"),
    *("placing", "region_right", "naming", "named_by_votes"),
)

_NO_ANSWER = Reading(frozenset(), frozenset(), "nothing")


@dataclass(frozen=True)
class VindrCounts:
    """Counts of one system."""

    answers: SystemCounts  # of each question
    images: PackedColumns  # columns with a number for every image
    # The union of each image's boxes, for each of its views, against the true ones.
    boxes: detection.Overlaps
    # Confidence of each of those predicted boxes, NaN where it has none.
    box_scores: Float[np.ndarray, " n"]
    # Of each answer with several boxes, whether all have one score.
    constant: list[bool]


@dataclass(frozen=True, eq=False, slots=True)
class _Answer:
    """A prediction (or none) with its boxes and what its text says."""

    boxes: Float[np.ndarray, "n 4"]
    classes: tuple[int, ...]  # of each box
    scores: Float[np.ndarray, " n"]  # NaN where a box has none
    reading: Reading
    parse: str | None  # None: no prediction
    text: str = ""

    @property
    def labelled(self) -> list[Labelled]:
        """Each box with its class."""
        return list(zip(self.classes, map(tuple, self.boxes.tolist()), strict=True))


class _BoxCounts(NamedTuple):
    """All that is counted of boxes."""

    questions: PackedColumns
    images: PackedColumns
    # `boxes`, `box_scores` of `VindrCounts`.
    overlaps: detection.Overlaps
    scores: Float[np.ndarray, " n"]


_NOTHING = _Answer(NO_BOXES.boxes, (), np.zeros(0), _NO_ANSWER, None)


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
    in_parts = _ByPart(references, views, groups)
    # Of answers that share all that is read of them, and of questions with one truth.
    known: dict[Any, tuple[_Answer, Counter[str]]] = {}
    counted: dict[Any, tuple[SharedCounts, str | None]] = {}

    def count(
        question: VindrQuestion, prediction: Prediction | None, counts: SystemCounts
    ) -> Mapping[str, float]:
        votes = references.images[question.image].votes
        if prediction is None or prediction.where != SHARED:
            answer = _read(references, question, prediction, codec, answers.source, counts.problems)
            numbers: Mapping[str, float] = _count_question(votes, question, answer)
            failed = answer.parse if numbers["parse_failures"] else None
        else:
            key = (question.kind, question.asked, prediction.text, id(prediction.boxes))
            if key not in known:
                found: Counter[str] = Counter()
                read_one = _read(references, question, prediction, codec, answers.source, found)
                known[key] = read_one, +found
            answer, problems = known[key]
            if problems:
                counts.problems.update(problems)
            truth = (alike(references)[question.question_id], id(answer))
            if truth not in counted:
                numbers = SharedCounts(_count_question(votes, question, answer))
                counted[truth] = numbers, answer.parse if numbers["parse_failures"] else None
            numbers, failed = counted[truth]
        in_parts.add(question, answer)
        if failed is not None:
            counts.failures[failed] += 1
        return numbers

    counts = count_answers(
        references.questions, answers, count, PROBLEMS, FAILURE_CATEGORIES, _ANSWER_COLUMNS
    )
    counts.columns = packed(counts.columns)
    found = in_parts.join()
    counts.columns |= found.questions
    return VindrCounts(counts, found.images, found.overlaps, found.scores, in_parts.constant)


class _ByPart:
    """Counts answers about some images at a time, so that none is kept after its image's part."""

    def __init__(self, references: VindrReferences, views: Views, groups: BoxGroups) -> None:
        self._of = references, views, groups
        self._parts = views.parts(groups)
        self._part = next(self._parts)
        self._questions: list[VindrQuestion] = []
        self._answers: list[_Answer] = []
        self._counted: list[_BoxCounts] = []
        self.constant: list[bool] = []

    def add(self, question: VindrQuestion, answer: _Answer) -> None:
        """Notes an answer; questions come in the order of their images."""
        if question.image >= self._part[0].stop:
            self._count()
            self._part = next(self._parts)
        self._questions.append(question)
        self._answers.append(answer)
        if len(answer.scores) > 1:
            self.constant.append(is_constant(answer.scores))

    def _count(self) -> None:
        here, views, groups = self._part
        references = self._of[0]
        if any(len(answer.boxes) for answer in self._answers):
            found = _count_part(references, here, self._answers, views, groups)
        else:
            found = _count_no_boxes(*self._of, here.start)
        pairs = packed(_count_pairs(references, here, self._questions, self._answers))
        self._counted.append(found._replace(images=found.images | pairs))
        self._questions, self._answers = [], []

    def join(self) -> _BoxCounts:
        """Returns the counts of all images."""
        self._count()
        questions, images, overlaps, scores = zip(*self._counted, strict=True)
        del self._counted
        joined = detection.join_overlaps(overlaps, self._of[1].truth)
        return _BoxCounts(
            join_columns(questions), join_columns(images), joined, np.concatenate(scores)
        )


@functools.lru_cache(maxsize=1)
def alike(references: VindrReferences) -> dict[str, int]:
    """Question id -> a number, the same for questions to which any answer counts the same."""
    numbers: dict[Any, int] = {}
    return {
        name: numbers.setdefault(
            (
                question.kind,
                question.asked,
                question.present,
                question.count,
                question.place,
                question.has_boxes,
                tuple(references.images[question.image].votes.items()),
            ),
            len(numbers),
        )
        for name, question in references.questions.items()
    }


def _read(
    references: VindrReferences,
    question: VindrQuestion,
    prediction: Prediction | None,
    codec: Codec | None,
    source: str,
    problems: Counter[str],
) -> _Answer:
    """Reads an answer, with a class for each of its boxes; notes what was wrong with it."""
    if prediction is None:
        return _NOTHING
    image = references.images[question.image]
    given = read_boxes(prediction, codec, image.height, image.width, source)
    problems.update(given.problems)
    problems["blank_answer"] += not (prediction.text.strip() or len(given.boxes))
    reading = read_classes(references.reader, question, prediction, given)
    classes = tuple(_classes(references, question, prediction, given, reading, problems))
    return _Answer(given.boxes, classes, given.scores, reading, given.parse, prediction.text)


def read_classes(
    reader: MentionReader, question: VindrQuestion, prediction: Prediction, given: ReadBoxes
) -> Reading:
    """The classes that an answer says are there and not; a refusal that names none is no answer.

    A yes or no before a statement on something else than the class asked about decides nothing.
    """
    if given.parse == "refusal" and not any(reader.read(prediction.text)[:2]):
        return _NO_ANSWER
    asked, counts = question.asked, question.kind == "How_many"
    read = reader.read(prediction.text, asked, len(given.boxes) > 0, counts)
    if asked is None or read.outcome not in ("yes", "no"):
        return read
    if not is_about_another(prediction.text, VINDR_CLASSES.get(asked, ()), asked):
        return read
    return Reading(read.present - {asked}, read.absent - {asked}, "off_topic")


def _classes(
    references: VindrReferences,
    question: VindrQuestion,
    prediction: Prediction,
    given: ReadBoxes,
    reading: Reading,
    problems: Counter[str],
) -> list[int]:
    """The class of each box: its label, else the class asked about, else the one its text names.

    A name that the notation gives a box in the text is a label where it is a class's.
    """
    numbers = {name: number for number, name in enumerate(references.classes)}
    classes = []
    for index in range(len(given.boxes)):
        label = given.labels[index] if given.labels else None
        named = given.named[index] if given.named else None
        if label is None and named is not None and references.reader.name_of(named):
            label = named
        if label is not None:
            name = references.reader.name_of(label)
            problem = "unknown_label"
        elif question.asked is not None:
            name, problem = question.asked, ""
        else:
            name = _named_with(references.reader, prediction.text, given, index, reading)
            problem = "unclassed_box"
        if name is None:
            problems[problem] += 1
        classes.append(detection.NO_CLASS if name is None else numbers[name])
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
    votes: Mapping[str, int], question: VindrQuestion, answer: _Answer
) -> Mapping[str, float]:
    reading = answer.reading
    said = implied(reading.present, question.present, votes)
    found = set_counts(said, question.present)
    failed = _parse_failed(question, answer)
    counted: dict[str, float] = {
        "mentions/tp": found[0],
        "mentions/fp": found[1],
        "mentions/fn": found[2],
        "questions": 1,
        "hallucinated": bool(said - votes.keys()),
        "exact_set": is_exact(question, reading, votes),
        "parse_failures": failed,
        "undecided": reading.outcome == "undecided",
        "off_topic": reading.outcome == "off_topic",
        "nothing": reading.outcome == "nothing",
    }
    if answer.parse is not None:
        decided = "+".join(sorted(reading.present)) if question.asked is None else reading.outcome
        counted[DECISION] = code(decided)
    if question.asked is not None and is_decided(question.asked, question.present, votes):
        counted |= _count_asked(question.asked, question, answer)
        counted |= _count_details(question, answer)
    elif votes or question.present:
        counted |= {"naming": 1, "named_by_votes": _named_by_votes(reading, votes)}
    else:
        counted |= {"naming": 1, "named_by_votes": is_exact(question, reading)}
    return counted


def implied(said: Set[str], present: Set[str], marked: Collection[str] = ()) -> frozenset[str]:
    """Returns the classes that an answer names, as far as the hierarchy leaves a choice.

    Who names a special class has named the general one, too, and a general word for what is there
    is not wrong.

    Args:
        said: as the answer has them.
        present: as the reference answer has them.
        marked: on the image.
    """
    with_general = {one for name in said for one in above(name)} & present
    general = {one for name in (*present, *marked) for one in above(name)} - present
    return frozenset((said | with_general) - general)


def is_decided(name: str, present: Collection[str], marked: Collection[str]) -> bool:
    """Returns whether a class is marked, or nothing above or below it is, which leaves it open."""
    return name in present or name in marked or not any(one in marked for one in related(name))


def is_exact(question: VindrQuestion, reading: Reading, marked: Collection[str] = ()) -> bool:
    """Returns whether an answer's set of classes is correct; an empty one needs an explicit no."""
    said = reading.outcome == "no" or (reading.outcome == "yes" and reading.present)
    return bool(said) and implied(reading.present, question.present, marked) == question.present


def _count_asked(asked: str, question: VindrQuestion, answer: _Answer) -> dict[str, float]:
    truth, outcome = asked in question.present, answer.reading.outcome
    # Who neither affirms nor denies is wrong, also about a class that is absent.
    said = outcome == "yes" if outcome in ("yes", "no") else not truth
    cell = ("tp" if truth else "fp") if said else ("fn" if truth else "tn")
    return {
        f"asked/{cell}": 1.0,
        "asking": 1.0,
        "asked/there": float(truth),
        "asked/yes": float(outcome == "yes"),
        "asked/boxes": float(len(answer.boxes)),
    }


def _count_details(question: VindrQuestion, answer: _Answer) -> dict[str, float]:
    """Counts answers on numbers of lesions and on places, if the question asks for them."""
    counted: dict[str, float] = {}
    outcome = answer.reading.outcome
    decided = outcome in ("yes", "no")
    if question.count is not None:
        exact, least, most = question.count
        said = count_said(answer.text)
        if outcome == "no":
            said = 0
        elif said is None:
            said = len(answer.boxes) or None
        right = decided and said is not None
        counted = {
            "counting": 1,
            "count/exact": right and said == exact,
            "count/in_range": right and said is not None and least <= said <= most,
        }
    if question.place is not None:
        place = _NOWHERE
        if outcome == "yes":
            place = place_said(answer.text, answer.boxes, question.asked or "")
        if question.place.sides:
            counted |= {"siding": 1, "side_right": place.sides == question.place.sides}
        if question.place.regions:
            counted |= {"placing": 1, "region_right": place.regions == question.place.regions}
    return counted


_NOWHERE = SaidPlace(frozenset(), frozenset())


def _named_by_votes(reading: Reading, votes: Mapping[str, int]) -> float:
    """The mean, over the classes that an answer to an open question names, of the share of votes
    that each has of the most voted class's."""
    if reading.outcome != "yes" or not reading.present:
        return 0.0
    most = max(votes.values(), default=1)
    return sum(votes.get(name, 0) for name in reading.present) / (most * len(reading.present))


def _count_pairs(
    references: VindrReferences,
    here: slice,
    questions: Sequence[VindrQuestion],
    answers: Sequence[_Answer],
) -> Columns:
    """`pairs/{tp,fp,fn,tn}` of each image: every class, asked about or not.

    A class is said to be there where some answer about the image says so, and not to be there
    where none does and some answer decides it: the one to a question about it, or any where there
    is none. Of what nobody decides the answer is wrong.
    """
    images, asked = references.images[here], _of_images(references, here)
    columns = {f"pairs/{cell}": np.zeros(len(images)) for cell in ("tp", "fp", "fn", "tn")}
    columns["pairs"] = np.full(len(images), float(len(references.classes)))
    # Of a class above or below one that is there, nothing is known.
    classes = frozenset(references.classes)
    for number, (image, some) in enumerate(zip(images, asked, strict=True)):
        about_it, given = questions[some], answers[some]
        there = image.votes.keys() | {name for one in about_it for name in one.present}
        said = {name for answer in given for name in answer.reading.present}
        decided = [answer.reading.outcome in ("yes", "no") for answer in given]
        about: dict[str | None, bool] = {}
        for question, sure in zip(about_it, decided, strict=True):
            about[question.asked] = about.get(question.asked, False) or sure
        judged = {name for name in classes if is_decided(name, there, there)}
        columns["pairs"][number] = len(judged)
        concerned = judged & {*there, *said, *about}
        # Classes that nobody speaks of, and that are not there.
        rest = columns["pairs/tn" if any(decided) else "pairs/fp"]
        rest[number] += len(judged) - len(concerned)
        for name in concerned:
            truth = name in there
            yes = name in said if name in said or about.get(name, any(decided)) else not truth
            columns[f"pairs/{('tp' if truth else 'fp') if yes else ('fn' if truth else 'tn')}"][
                number
            ] += 1
    return columns


def _parse_failed(question: VindrQuestion, answer: _Answer) -> bool:
    """Returns whether an answer is unreadable. A missing box is a failure only if one is due: the
    reference has boxes, and the answer doesn't deny the class."""
    if answer.parse is None or answer.parse == "ok":
        return False
    if answer.parse == "no_box":
        return question.has_boxes and question.asked not in answer.reading.absent
    return True


@functools.lru_cache(maxsize=4)
def _count_no_boxes(
    references: VindrReferences, views: Views, groups: BoxGroups, start: int
) -> _BoxCounts:
    """Counts a part, from image `start` on, for all systems that output no boxes there."""
    here, part, groups_here = next(one for one in views.parts(groups) if one[0].start == start)
    answers = [_NOTHING] * _of_images(references, here)[-1].stop
    return _count_part(references, here, answers, part, groups_here)


def _of_images(references: VindrReferences, here: slice) -> list[slice]:
    """The places of each image's questions among those of a part."""
    ends = references.first_questions[here.start : here.stop + 1]
    return [slice(start, stop) for start, stop in pairwise((ends - ends[0]).tolist())]


def _count_part(
    references: VindrReferences,
    here: slice,
    answers: Sequence[_Answer],
    views: Views,
    groups: BoxGroups,
) -> _BoxCounts:
    """Counts the boxes of some images."""
    images = references.images[here]
    labelled = [answer.labelled for answer in answers]
    of_image = _of_images(references, here)
    image = np.repeat(np.arange(len(images)), [some.stop - some.start for some in of_image])
    first, last = references.first_questions[[here.start, here.stop]].tolist()
    every = [[box for boxes in labelled[some] for box in boxes] for some in of_image]
    merged = [union(labelled[some]) for some in of_image]
    given = join_lists(labelled)
    columns = question_columns(
        "grounding", given, references.question_boxes.cut(first, last), GROUNDED
    )
    paper = detection.find_overlaps(views.predicted(every), views.paper_truth)
    strict = detection.find_overlaps(views.predicted(merged), views.truth)
    by_threshold, matched = strict_columns(views, strict, references.classes)
    of_images = {
        **paper_columns(views, paper),
        **by_threshold,
        **localization_columns(views, paper, strict),
        **box_group_columns(views, strict, matched[IOU], groups),
        "images": np.ones(len(images)),
        "images_with_truth": np.array([bool(one.truths) for one in images], np.float64),
        "boxes": np.array([len(boxes) for boxes in every], np.float64),
        # Boxes that repeat an earlier one of their own answer.
        "duplicates": sums_at(image, len(images), columns["grounding/duplicates"]),
    }
    scores = [
        _scores(boxes, labelled[some], answers[some])
        for boxes, some in zip(merged, of_image, strict=True)
    ]
    by_view = np.array([s for one in views.image.tolist() for s in scores[one]], np.float64)
    return _BoxCounts(packed(columns), packed(of_images), strict, by_view)


def _scores(
    boxes: list[Labelled], labelled: Sequence[list[Labelled]], answers: Sequence[_Answer]
) -> list[float]:
    """The confidence of each box of the union: the highest that some answer gives it."""
    highest: dict[Labelled, float] = {}
    for given, answer in zip(labelled, answers, strict=True):
        for box, score in zip(given, answer.scores.tolist(), strict=True):
            if score > highest.get(box, -math.inf):  # never for NaN
                highest[box] = score
    return [highest.get(box, math.nan) for box in boxes]


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
    return Outcome(
        is_exact(question, reading), mean_best_iou(true, given.boxes), _note(question, reading)
    )


def mean_best_iou(
    true: Float[np.ndarray, "n 4"], predicted: Float[np.ndarray, "m 4"]
) -> float | None:
    """Measures how well two sets of boxes cover each other, in [0, 1]; None where both are empty.

    The mean, over the boxes of both sides, of the highest IoU with a box of the other. It orders
    images; it is no metric of the benchmark.
    """
    if not len(true) and not len(predicted):
        return None
    if not len(true) or not len(predicted):
        return 0.0
    overlaps = np.asarray(pairwise_iou(true, predicted))
    return float(np.concatenate([overlaps.max(axis=1), overlaps.max(axis=0)]).mean())


_NOTES = {
    "undecided": "says neither yes nor no",
    "off_topic": "about another finding",
    "nothing": "no answer",
}


def _note(question: VindrQuestion, reading: Reading) -> str:
    if reading.outcome not in ("yes", "no"):
        return _NOTES[reading.outcome]
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
