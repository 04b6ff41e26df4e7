"""Baselines that see no image, and radiologists who did: what any figure stands above.

Beside every table, from the references' own answers, which no system may know; better constants do
not exist (`--floors`). docs/protocols.md ("Baselines that see no image") has the answers of each.

Systems of `--runner` are `majority`, `question` (as `named place`) and `prior_box`, learnt from
training records, `random`, and `reader`, the boxes of one radiologist. A system called `blind`,
`shuffled` or `noise`, or with such an ending, did not see the image either.
"""

import collections
import dataclasses
import functools
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from cxrjax.boxes import pairwise_iou
from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.evaluation.predictions import SHARED, Prediction
from cxrjax.evaluation.question_priors import QuestionPriors, is_report, named_place
from cxrjax.evaluation.scores import PERSON
from cxrjax.evaluation.systems.base import Answer, Line
from cxrjax.paper import closed_classes, find_paper
from cxrjax.records import QARecord

Boxes = Float[np.ndarray, "n 4"]
# (class, box as fractions [4]) of what a reader marked in an image.
Marks = Sequence[tuple[str, np.ndarray]]

_NO_BOXES = np.zeros((0, 4))
# A question that begins like this is answered by yes or no, in every language that is asked here.
_CLOSED = re.compile(r"(?:is|are|was|were|does|do|did|has|have|can|could|will|would)\b", re.I)
_CLOSED_TYPES = ("closed_ended", "Yes_No", "Is_there")
# Pixels of an image whose size is not known: any box lies inside.
_ANY_SIZE = 10**6
# Boxes of a class among which the typical one is searched, and IoUs above which it is a hit.
_MOST_BOXES = 400
_IOUS = (0.3, 0.5, 0.75)


@dataclasses.dataclass(frozen=True, slots=True)
class BlindQuestion:
    """A question, and of a reference its answer."""

    question_id: str
    image_id: str
    dataset: str
    kind: str
    finding: str | None
    choices: tuple[str, ...]
    closed: bool  # the answer is yes or no
    question: str = ""  # its words
    key: tuple[str, ...] = ()  # letters of the right options
    labels: tuple[str, ...] = ()  # the classes that the answer affirms
    said: object = None  # the identity of the answer, in `text` without boxes
    text: str = ""
    # xyxy, fractions of the image.
    boxes: np.ndarray = dataclasses.field(default_factory=lambda: _NO_BOXES)

    @classmethod
    def of(cls, record: QARecord) -> "BlindQuestion":
        """Reads a record without its answer."""
        kind = record.question_type
        closed = kind in _CLOSED_TYPES or bool(_CLOSED.match(record.question.strip()))
        choices = tuple(record.choices or ())
        identity = (record.question_id, record.image_id, record.dataset)
        return cls(*identity, kind, record.finding, choices, closed, record.question)

    @classmethod
    def answered(cls, record: QARecord) -> "BlindQuestion":
        """Reads a record with its answer; boxes of images of known size."""
        present = (answer for answer in record.answers if answer.polarity != "neg")
        boxes = box_fractions(record) if record.boxes and record.image_hw else _NO_BOXES
        return dataclasses.replace(
            cls.of(record),
            key=tuple(record.answer_key or ()),
            labels=tuple(dict.fromkeys(label for one in present for label in one.labels)),
            said=answer_identity(record),
            text=answer_words(record),
            boxes=boxes,
        )


class Said(NamedTuple):
    """The answer of a baseline."""

    text: str
    boxes: np.ndarray = _NO_BOXES  # xyxy, fractions of the image
    # Of the boxes; None: all the finding that the question names.
    labels: Sequence[str | None] | None = None
    score: float = 1.0  # confidence of every box
    parse: str = "ok"  # `ok`, or the reason for no answer

    def labels_for(self, finding: str | None) -> Sequence[str | None]:
        """Returns a label for each box."""
        return [finding] * len(self.boxes) if self.labels is None else self.labels

    def in_form_of(self, dataset: str) -> "Said":
        """Returns the answer with its boxes in the text where the data set's answers have them."""
        codec = CODECS[find_paper(dataset).record_codec]
        if codec.empty_list:
            # Answers end in their boxes, on a frame that needs no image's size.
            shown = codec.encode(self.boxes, 1, 1) or codec.empty_list
            return self._replace(text=f"{self.text} {shown}")
        return self


def yes_or_no(yes: bool, finding: str | None) -> str:
    """Returns the answer, with the finding that a question names."""
    if finding is None:
        return "Yes." if yes else "No."
    return f"Yes, there is {finding}." if yes else f"No, there is no {finding}."


def draw(question: BlindQuestion, seed: int, classes: Sequence[str]) -> Said:
    """Draws an answer, which depends only on the seed and the question's id; all that the question
    leaves open are equally likely.

    One option of a single-choice question (right in 1 of 4), a set of at least one option of a
    multi-choice question (1 of 15 for four), yes or no (1 of 2), one of `classes`, where
    there are any. A question that names a finding is answered by whether it is there. For any other
    question the text is empty, which counts as wrong.
    """
    drawn = random.Random(f"{seed}/{question.question_id}/random_answer")
    if question.choices:
        letters = [choice.partition(":")[0].strip() for choice in question.choices]
        if question.kind != "multi_choice":
            return Said(drawn.choice(letters))
        chosen = drawn.randrange(1, 2 ** len(letters))
        return Said(str([letter for n, letter in enumerate(letters) if chosen >> n & 1]))
    if question.closed or question.finding is not None:
        return Said(yes_or_no(drawn.random() < 0.5, question.finding))
    return Said(f"There is {drawn.choice(classes)}." if classes else "")


def reader_answer(finding: str | None, marks: Marks | None) -> Said:
    """Returns a reader's answer: to a question that names a finding, whether they marked it and
    where; to any other, all that they marked.

    Args:
        marks: None where they did not read the image.
    """
    if marks is None:
        return Said("", parse="not_read")
    shown = [(label, box) for label, box in marks if finding in (None, label)]
    labels = [label for label, _ in shown]
    text = f"There is {', '.join(dict.fromkeys(labels))}." if shown else "There is no finding."
    if finding is not None:
        text = yes_or_no(bool(shown), finding)
    return Said(text, np.array([box for _, box in shown]).reshape(-1, 4).round(6), labels)


def _scale(record: QARecord) -> Float[np.ndarray, " 4"]:
    if record.image_hw is None:
        raise UserError(f"question {record.question_id}: image_hw is null; join the sizes")
    height, width = record.image_hw
    return np.array([width, height, width, height], np.float64)


def box_fractions(record: QARecord) -> Boxes:
    """Returns the boxes of a record's answers as fractions of its image.

    Raises:
        UserError: there are boxes and the image's size is not known.
    """
    boxes = np.asarray(record.boxes, np.float64).reshape(-1, 4)
    return boxes / _scale(record) if len(boxes) else boxes


def _marks_of(record: QARecord) -> dict[str, Marks]:
    """Reader id -> marks in the record's image."""
    scale = _scale(record)
    return {
        rad_id: [(mark.label, np.array(mark.box) / scale) for mark in marks]
        for rad_id, marks in (record.readers or {}).items()
    }


def answer_identity(record: QARecord) -> object:
    """Returns what makes answers the same: their key (yes, a letter, letters), without one their
    polarity and labels, without labels their words."""
    if record.answer_key is not None:
        key = record.answer_key
        return key if isinstance(key, str) else tuple(key)
    main = [answer for answer in record.answers if answer.answer_type == "main"] or record.answers
    said = tuple((answer.polarity, tuple(sorted(answer.labels))) for answer in main)
    return said if any(labels for _, labels in said) else answer_words(record)


def answer_words(record: QARecord) -> str:
    """Returns the answer's text without its boxes."""
    size = record.image_hw or (_ANY_SIZE, _ANY_SIZE)
    return _without_boxes(record.answer_text, record.codec, *size)


@functools.lru_cache(maxsize=4096)  # many records have the same few words
def _without_boxes(text: str, codec_name: str, height: int, width: int) -> str:
    for span in reversed(CODECS[codec_name].find(text, height, width)):
        text = text[: span.start] + text[span.end :]
    text = text.replace("<location>[]", "").replace("<location> []", "")
    return " ".join(text.split())


# Systems of `--runner`.


def answer_each(say: Callable[[QARecord], Said]) -> Answer:
    """Returns a system that answers each question for itself."""

    def line(record: QARecord) -> Line:
        said = say(record)
        return {
            "question_id": record.question_id,
            "text": said.text,
            "boxes": np.asarray(said.boxes, np.float64).round(6).tolist(),
            "labels": list(said.labels_for(record.finding)),
            "box_scores": [said.score] * len(said.boxes),
            "answer_logprob": None,
            "parse": said.parse,
        }

    return lambda questions: (line(record) for _, record in questions.records())


def draw_answers(seed: int) -> Callable[[QARecord], Said]:
    """Answers at random, with the labels that a data set's answers may have."""
    return lambda record: draw(BlindQuestion.of(record), seed, closed_classes(record.dataset))


class MeanBoxes:
    """Mean boxes by how many an answer has: the k-th from left to right with the k-th."""

    def __init__(self) -> None:
        self._counts: collections.Counter[int] = collections.Counter()
        self._sums: dict[int, np.ndarray] = {}

    def add(self, boxes: Boxes) -> None:
        """Adds one answer's boxes, xyxy fractions of the image, in any order."""
        in_order = boxes[np.argsort(boxes[:, 0], kind="stable")]
        self._counts[len(boxes)] += 1
        self._sums[len(boxes)] = self._sums.get(len(boxes), 0.0) + in_order

    def most_frequent(self) -> Boxes:
        """Returns the mean boxes of answers with the most frequent number of boxes; of equally
        frequent ones the first that came."""
        count = self._counts.most_common(1)[0][0]
        return self._sums[count] / self._counts[count]


class _Common:
    """The most frequent answer of each group of questions, in the words of the first of them."""

    def __init__(self) -> None:
        self._counts: dict[Any, collections.Counter[Any]] = collections.defaultdict(
            collections.Counter
        )
        self._texts: dict[Any, str] = {}

    def __contains__(self, group: object) -> bool:
        return group in self._counts

    def add(self, group: object, said: object, text: str) -> None:
        """Counts an answer."""
        self._counts[group][said] += 1
        self._texts.setdefault((group, said), text)

    def most_frequent(self, group: object) -> tuple[object, str]:
        """Returns the identity and the words of a group's answer."""
        ((said, _),) = self._counts[group].most_common(1)
        return said, self._texts[group, said]


def learn_majority(records: Iterable[QARecord]) -> Callable[[QARecord], Said]:
    """Learns the most frequent answer to questions of one type about one finding, and its boxes.

    Of the most frequent answer, the first one's words are repeated, without the boxes in them; its
    boxes are the mean ones (`MeanBoxes`) of all such answers. A finding that training does not have
    is answered as its type of question is, a type that it does not have as all questions are.

    Raises:
        UserError: no record has an answer, or one with boxes has no image size.
    """
    common = _Common()
    means: dict[Any, MeanBoxes] = collections.defaultdict(MeanBoxes)
    for record in records:
        if not record.answers:
            continue
        said, boxes = answer_identity(record), box_fractions(record)
        for group in _groups(record):
            common.add(group, said, answer_words(record))
            means[group, said].add(boxes)
    if not means:
        raise UserError("training records without answers: there is no majority among them")

    def say(record: QARecord) -> Said:
        known = next(group for group in _groups(record) if group in common)
        said, text = common.most_frequent(known)
        return Said(text, means[known, said].most_frequent()).in_form_of(record.dataset)

    return say


def _groups(record: QARecord) -> list[tuple[str | None, str | None]]:
    """The groups of a question, from the narrowest to all questions."""
    kind, finding = record.question_type, record.finding
    return list(dict.fromkeys([(kind, finding), (kind, None), (None, None)]))


def learn_prior_box(records: Iterable[QARecord]) -> Callable[[QARecord], Said]:
    """Learns the mean boxes of training answers.

    Questions about one finding share an answer: the most frequent number of boxes in the training
    answers about it (none, where it is mostly absent), each the mean, as fractions of the image, of
    the boxes at its place from left to right.

    Raises:
        UserError: no record, or one without an image size.
    """
    seen: dict[str, MeanBoxes] = collections.defaultdict(MeanBoxes)
    for record in records:
        _scale(record)  # also where there are no boxes
        seen[record.finding or record.question].add(box_fractions(record))
    if not seen:
        raise UserError("no training records: there are no boxes to take the mean of")
    means = {subject: boxes.most_frequent() for subject, boxes in seen.items()}

    def say(record: QARecord) -> Said:
        subject = record.finding or record.question
        boxes = means.get(subject, _NO_BOXES)
        shown = CODECS["paligemma"].encode(boxes, 1, 1)
        text = f"{subject}: {shown}" if shown else f"There is no {subject}."
        return Said(text, boxes, [subject] * len(boxes))

    return say


def learn_question(records: Iterable[QARecord]) -> Callable[[QARecord], Said]:
    """Learns what is answered to questions in their words, and where what they name is.

    Raises:
        UserError: no record has an answer.
    """
    known = [BlindQuestion.answered(record) for record in records if record.answers]
    if not known:
        raise UserError("training records without answers: there is nothing to learn from them")
    say = _placed(known, QuestionPriors(known))
    return lambda record: say(BlindQuestion.of(record)).in_form_of(record.dataset)


def learn_reader(
    records: Iterable[QARecord], rad_id: str, source: str
) -> Callable[[QARecord], Said]:
    """Answers as a reader did, from records of the same images.

    Args:
        source: of the records, for error messages.

    Raises:
        UserError: no record has such a reader, or one has no image size.
    """
    marks: dict[str, Marks] = {}
    others: set[str] = set()
    for record in records:
        readers = record.readers or {}
        others.update(readers)
        if rad_id in readers and record.image_id not in marks:
            marks[record.image_id] = _marks_of(record)[rad_id]
    if not marks:
        raise UserError(
            f"{source}: no image was read by {rad_id!r}; expected one of {sorted(others)}"
            if others
            else f"{source}: its records have no readers; expected some with `readers`"
        )
    return lambda record: reader_answer(record.finding, marks.get(record.image_id))


# Baselines from the references.


class Baselines:
    """Predictions of the baselines, from references that are read one by one."""

    def __init__(self) -> None:
        self._questions: list[BlindQuestion] = []
        self._marks: dict[str, dict[str, Marks]] = {}
        # Many records have the same words and labels.
        self._known: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._questions)

    def add(self, record: QARecord) -> None:
        """Reads a reference."""
        sized = record.image_hw is not None
        if record.readers and sized and record.image_id not in self._marks:
            self._marks[record.image_id] = _marks_of(record)
        one = BlindQuestion.answered(record)
        alike = ("question", "choices", "labels", "said", "text")
        shared = {name: self._same(getattr(one, name)) for name in alike}
        self._questions.append(dataclasses.replace(one, **shared))

    def leave_out(self, question_ids: Collection[str]) -> None:
        """Forgets questions that are not scored."""
        self._questions = [q for q in self._questions if q.question_id not in question_ids]

    def _same(self, value: Any) -> Any:
        return self._known.setdefault(value, value)

    def systems(
        self, asked: Callable[[str], str | None] | None, seed: int, classes: Sequence[str]
    ) -> Iterator[tuple[str, list[Prediction]]]:
        """Yields (name, predictions) of each baseline, made on demand.

        Args:
            asked: question id -> the class it asks about; None: as the records say.
            seed: of random answers.
            classes: that an answer to an open question may name.
        """
        known = self._questions
        if asked is not None:
            known = [dataclasses.replace(q, finding=asked(q.question_id)) for q in known]
        for name, say in _baselines(known, seed, classes):
            yield name, [_prediction(q, say(q).in_form_of(q.dataset)) for q in known]
        if self._marks:
            drawn = {
                image: readers[random.Random(f"{seed}/{image}/reader").choice(sorted(readers))]
                for image, readers in self._marks.items()
            }
            said = ((q, reader_answer(q.finding, drawn.get(q.image_id))) for q in known)
            yield PERSON, [_prediction(q, answer, PERSON) for q, answer in said]


def _prediction(question: BlindQuestion, said: Said, where: str = SHARED) -> Prediction:
    some = len(said.boxes) > 0
    return Prediction(
        question_id=question.question_id,
        text=said.text,
        boxes=said.boxes,
        labels=tuple(said.labels_for(question.finding)) if some else None,
        parse=said.parse,
        box_scores=np.full(len(said.boxes), said.score) if some else None,
        where=where,
    )


def _baselines(
    known: Sequence[BlindQuestion], seed: int, classes: Sequence[str]
) -> Iterator[tuple[str, Callable[[BlindQuestion], Said]]]:
    """Each baseline that sees no image: its name, and its answer to a question."""
    priors = QuestionPriors(known)
    yield "question", lambda one: Said(priors.answer(one))
    if all(map(is_report, known)):
        return
    most = collections.Counter(label for one in known for label in one.labels)
    every = f"There is {', '.join(sorted(most))}." if most else "Yes."
    yield "constant yes", lambda one: Said(_constant(one, True, every))
    yield "constant no", lambda one: Said(_constant(one, False, ""))
    common = _Common()
    for one in known:
        common.add((one.kind, one.finding), one.said, one.text)

    def majority(one: BlindQuestion) -> Said:
        if one.finding is None and one.labels and most:
            return Said(f"There is {most.most_common(1)[0][0]}.")
        return Said(common.most_frequent((one.kind, one.finding))[1])

    yield "majority", majority
    if any(len(one.boxes) for one in known):
        yield "named place", _placed(known, priors)
        yield "mean box", lambda one: Said(priors.answer(one), priors.mean_boxes(one))
        typical = _typical_boxes(known)
        best = _best_of_all(known, [boxes[0][1] for boxes in typical.values()])
        hits, looked_for = _hits(known, typical, lambda one: one.image_id)

        def prior(one: BlindQuestion) -> Said:
            subject = one.finding or one.kind
            score = hits[subject] / looked_for[subject] if subject in typical else 0.0
            return _boxed(one, typical.get(subject, ()), score)

        yield "prior box", prior
        closest = _typical_boxes(known, by_closeness=True)
        yield "closest box", lambda one: _boxed(one, closest.get(one.finding or one.kind, ()))
        yield "constant box", lambda one: _boxed(one, (("", best),))
        for name, named, to_open in _easy(known, typical, hits, looked_for):
            yield name, functools.partial(_only, named=named, to_open=to_open, typical=typical)
    yield "random", lambda one: draw(one, seed, classes)


# Subject -> (image, box [1, 4]) of its most typical box, and of the best one of another image,
# which serves the first one's.
_Typical = Mapping[str, Sequence[tuple[str, np.ndarray]]]


def _placed(
    known: Sequence[BlindQuestion], priors: QuestionPriors
) -> Callable[[BlindQuestion], Said]:
    """Answers by `priors`, with the typical box of what each question names."""
    named = _typical_boxes(known, named_place)
    plain = _typical_boxes(known)

    def say(one: BlindQuestion) -> Said:
        boxes = named.get(named_place(one)) or plain.get(one.finding or one.kind, ())
        shown = _of_others(one, boxes) if priors.shows_box(one) else _NO_BOXES
        return Said(priors.answer(one), shown)

    return say


def _subject(one: BlindQuestion) -> str:
    return one.finding or one.kind


def _typical_boxes(
    known: Sequence[BlindQuestion],
    subject_of: Callable[[BlindQuestion], str] = _subject,
    by_closeness: bool = False,
) -> _Typical:
    """The boxes that overlap most of other images' boxes of the same subject.

    Args:
        by_closeness: of those that hit a tenth as many as the best, the one with the highest mean
            IoU with what it hits.
    """
    seen: dict[str, dict[tuple[str, bytes], np.ndarray]] = collections.defaultdict(dict)
    for one in known:
        for box in one.boxes:
            seen[subject_of(one)][one.image_id, box.tobytes()] = box
    typical = {}
    for subject, found in seen.items():
        images = np.array([image for image, _ in found])
        boxes = np.array(list(found.values()))
        every = np.linspace(0, len(boxes) - 1, min(len(boxes), _MOST_BOXES)).astype(int)
        images, boxes = images[every], boxes[every]
        overlaps = np.asarray(pairwise_iou(boxes, boxes), np.float64)
        overlaps[images[:, None] == images[None, :]] = 0.0
        hits = sum((overlaps > least).sum(axis=0) for least in _IOUS)
        order = np.lexsort((-overlaps.sum(axis=0), -hits))
        if by_closeness:
            hit = overlaps > _IOUS[0]
            counts = hit.sum(axis=0)
            mean = (overlaps * hit).sum(axis=0) / np.maximum(counts, 1)
            order = np.lexsort((-mean, counts < max(counts.max() / 10, 2)))
        others = [n for n in order if images[n] != images[order[0]]]
        chosen = (order[0], *others[:1])
        typical[subject] = [(str(images[n]), boxes[n : n + 1].round(6)) for n in chosen]
    return typical


def _best_of_all(known: Sequence[BlindQuestion], candidates: Sequence[np.ndarray]) -> np.ndarray:
    """The box with the highest mean, over images, of the best IoU with a reference box."""
    boxes = np.concatenate([one.boxes for one in known])
    images = np.repeat(
        np.unique([one.image_id for one in known], return_inverse=True)[1],
        [len(one.boxes) for one in known],
    )

    def mean_best(candidate: np.ndarray) -> float:
        best = np.zeros(int(images.max(initial=0)) + 1)
        np.maximum.at(best, images, np.asarray(pairwise_iou(boxes, candidate))[:, 0])
        return float(best.mean())

    return max(candidates, key=mean_best)


def _hits(
    known: Sequence[BlindQuestion], typical: _Typical, unit: Callable[[BlindQuestion], str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Subject -> the number of units (images or questions) in which its typical box hits a
    reference box, and in which it is asked for."""
    hit: dict[str, set[str]] = {name: set() for name in typical}
    # To an open question every class may be named.
    every = {unit(q) for q in known if q.finding is None and not (q.closed or q.choices)}
    asked = {name: set(every) for name in typical}
    for one in known:
        subject = one.finding or one.kind
        if subject not in typical:
            continue
        asked[subject].add(unit(one))
        box = _of_others(one, typical[subject])
        overlaps = np.asarray(pairwise_iou(one.boxes, box))
        if overlaps.max(initial=0.0) > _IOUS[0]:
            hit[subject].add(unit(one))
    hits, times = ({name: len(units) for name, units in of.items()} for of in (hit, asked))
    return hits, times


def _easy(
    known: Sequence[BlindQuestion],
    typical: _Typical,
    hits: dict[str, int],
    looked_for: dict[str, int],
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Baseline, the classes that it affirms where they are asked about, and those that it names
    to an open question."""
    asked = [one for one in known if one.finding]
    classes = sorted(typical.keys() & {one.finding for one in asked})
    if not classes:
        return
    best_class = [max(classes, key=lambda name: (hits[name], hits[name] / looked_for[name]))]
    yield "one class", best_class, best_class
    there = {(one.image_id, box.tobytes()) for one in known for box in one.boxes}
    easy = _easiest(classes, hits, looked_for, len(there))
    yield "easy classes", easy, easy
    # What is asked about is there more often than what may be named.
    counts = _hits(asked, typical, lambda one: one.question_id)
    yield "easy questions", _easiest(classes, *counts, sum(len(one.boxes) for one in asked)), []


def _easiest(
    classes: list[str], hits: dict[str, int], asked: dict[str, int], there: int
) -> list[str]:
    """The classes whose box hits most often where it is asked for, up to the highest F1 beside
    that many reference boxes."""
    order = sorted(classes, key=lambda name: -hits[name] / asked[name])
    tp, given = (np.cumsum([of[name] for name in order]) for of in (hits, asked))
    return order[: 1 + int(np.argmax(2 * tp / (given + there)))]


def _constant(one: BlindQuestion, yes: bool, common: str) -> str:
    if one.choices:
        return one.choices[0 if yes else -1].partition(":")[0].strip()
    if one.finding is not None or one.closed:
        return yes_or_no(yes, one.finding)
    return common if yes else "There is no finding."


def _boxed(one: BlindQuestion, boxes: Sequence[tuple[str, np.ndarray]], score: float = 1.0) -> Said:
    """Yes, with the first of the boxes that is of another image."""
    text = _constant(one, one.finding is not None or one.closed, "")
    return Said(text, _of_others(one, boxes), score=score)


def _only(
    one: BlindQuestion, named: Sequence[str], to_open: Sequence[str], typical: _Typical
) -> Said:
    """Affirms the named classes, each with its box, and no other."""
    names = named if one.finding else to_open
    there = one.finding in names if one.finding else bool(names)
    text = _constant(one, there, f"There is {', '.join(names)}.")
    said = [name for name in names if there and one.finding in (None, name)]
    found = {name: _of_others(one, typical[name]) for name in said}
    labels = [name for name, box in found.items() for _ in box]
    return Said(text, np.concatenate([_NO_BOXES, *found.values()]), labels)


def _of_others(one: BlindQuestion, boxes: Sequence[tuple[str, np.ndarray]]) -> np.ndarray:
    return next((box for image, box in boxes if image != one.image_id), _NO_BOXES)
