"""Systems that do not look at the picture, made from the references: what any figure stands above.

| floor | says |
|---|---|
| `constant yes` | yes; to an open question that every class is there; the first choice |
| `constant no` | no; to an open question that there is no finding; the last choice |
| `majority` | the most frequent answer to questions of this type about this class; to an open one \
  the most frequent class |
| `prior box` | yes, and the class's most typical box in other images, as sure as it hits often |
| `constant box` | yes, and the same box each time: of the classes' typical ones the best |
| `one class` | as `prior box` for the class whose box hits most images, and no to all others |
| `easy classes` | the same for the classes that make the F1 of boxes highest |
| `easy questions` | the same by question, and that nothing is there to an open one |
| `random` | any of the answers that the question leaves open, all as likely |
| `one reader` | what one of the image's readers marked, drawn by chance: no floor, a person |

They know the references' answers, which no system may: better constants there are none. A system
called `blind`, `shuffled` or `noise`, or something that ends so, did not look either.
"""

import collections
import dataclasses
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from cxrjax.boxes import pairwise_iou
from cxrjax.codecs import CODECS
from cxrjax.evaluation.predictions import SHARED, Prediction, parse_prediction
from cxrjax.evaluation.scores import PERSON
from cxrjax.evaluation.systems import baselines
from cxrjax.records import QARecord

_NO_BOXES = np.zeros((0, 4))
_GEMEX = CODECS["gemex"]
# Boxes of a class among which the typical one is looked for, and IoUs above which it is a hit.
_MOST_BOXES = 400
_IOUS = (0.3, 0.5, 0.75)


@dataclasses.dataclass(frozen=True, slots=True)
class _Question:
    """What is kept of a record. `said` is the key of its answer, in `text` without boxes."""

    question_id: str
    image_id: str
    dataset: str
    kind: str
    finding: str | None
    choices: tuple[str, ...]
    closed: bool
    labels: tuple[str, ...]
    said: object
    text: str
    boxes: np.ndarray


class Floors:
    """Makes the floors' predictions, from records that are read one by one."""

    def __init__(self) -> None:
        self._questions: list[_Question] = []
        self._marks: dict[str, dict[str, list[tuple[str, np.ndarray]]]] = {}
        # The same words and labels stand in many records.
        self._known: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._questions)

    def add(self, record: QARecord) -> None:
        """Notes what a record's answer is."""
        boxes = _NO_BOXES
        if record.boxes and record.image_hw is not None:
            height, width = record.image_hw
            boxes = np.array(record.boxes, np.float64) / [width, height, width, height]
        if record.readers and record.image_hw is not None and record.image_id not in self._marks:
            height, width = record.image_hw
            scale = np.array([width, height, width, height], np.float64)
            self._marks[record.image_id] = {
                rad_id: [(mark.label, np.array(mark.box) / scale) for mark in marks]
                for rad_id, marks in record.readers.items()
            }
        present = (answer for answer in record.answers if answer.polarity != "neg")
        labels = tuple(dict.fromkeys(label for answer in present for label in answer.labels))
        self._questions.append(
            _Question(
                record.question_id,
                record.image_id,
                record.dataset,
                record.question_type,
                record.finding,
                self._same(tuple(record.choices or ())),
                baselines.is_closed(record),
                self._same(labels),
                self._same(baselines.answer_identity(record)),
                self._same(baselines.answer_words(record)),
                boxes,
            )
        )

    def systems(
        self,
        asked: Callable[[str], str | None] | None,
        seed: int,
        classes: Sequence[str],
    ) -> Iterator[tuple[str, list[Prediction]]]:
        """(name, predictions) of each floor, made as they are asked for.

        Args:
            asked: question id -> the class it asks about; None: as the records say.
            seed: of what is drawn.
            classes: that an answer to an open question may name.
        """
        findings = [
            asked(question.question_id) if asked else question.finding
            for question in self._questions
        ]
        pairs = list(zip(self._questions, findings, strict=True))
        most = collections.Counter(label for one, _ in pairs for label in one.labels)
        common = f"There is {', '.join(sorted(most))}." if most else "Yes."
        yield "constant yes", self._said(pairs, lambda q, f: _constant(q, f, True, common))
        yield "constant no", self._said(pairs, lambda q, f: _constant(q, f, False, ""))
        yield "majority", self._majority(pairs, most)
        if any(len(one.boxes) for one in self._questions):
            typical = self._typical_boxes(pairs)
            best = self._best_of_all([boxes[0][1] for boxes in typical.values()])
            hits, looked_for = self._hits(pairs, typical, lambda one: one.image_id)
            scores = {name: hits[name] / looked_for[name] for name in typical}

            def prior(one: _Question, finding: str | None) -> Prediction:
                subject = finding or one.kind
                return _boxed(one, finding, typical.get(subject, ()), scores.get(subject, 0.0))

            yield "prior box", [prior(one, f) for one, f in pairs]
            yield "constant box", [_boxed(one, f, (("", best),)) for one, f in pairs]
            for name, named, to_open in self._easy(pairs, typical, hits, looked_for):
                yield name, [_only(one, f, named if f else to_open, typical) for one, f in pairs]
        yield "random", self._said(pairs, lambda q, f: _drawn(q, f, seed, classes))
        if self._marks:
            yield PERSON, self._reader(pairs, seed)

    def _same(self, value: Any) -> Any:
        return self._known.setdefault(value, value)

    def _said(
        self,
        pairs: Sequence[tuple[_Question, str | None]],
        say: Callable[[_Question, str | None], str],
    ) -> list[Prediction]:
        return [_line(one, finding, say(one, finding), _NO_BOXES) for one, finding in pairs]

    def _majority(
        self, pairs: Sequence[tuple[_Question, str | None]], most: collections.Counter[str]
    ) -> list[Prediction]:
        counts: dict[Any, collections.Counter[Any]] = collections.defaultdict(collections.Counter)
        texts: dict[Any, str] = {}
        for one, finding in pairs:
            counts[one.kind, finding][one.said] += 1
            texts.setdefault((one.kind, finding, one.said), one.text)

        def say(one: _Question, finding: str | None) -> str:
            if finding is None and one.labels and most:
                return f"There is {most.most_common(1)[0][0]}."
            ((said, _),) = counts[one.kind, finding].most_common(1)
            return texts[one.kind, finding, said]

        return self._said(pairs, say)

    def _typical_boxes(
        self, pairs: Sequence[tuple[_Question, str | None]]
    ) -> dict[str, list[tuple[str, np.ndarray]]]:
        """Subject -> (image, box [1, 4]) of the box that overlaps most of other images' boxes of
        it, and of the best one of another image, which serves the first one's."""
        seen: dict[str, dict[tuple[str, bytes], np.ndarray]] = collections.defaultdict(dict)
        for one, finding in pairs:
            for box in one.boxes:
                seen[finding or one.kind][one.image_id, box.tobytes()] = box
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
            others = [n for n in order if images[n] != images[order[0]]]
            chosen = (order[0], *others[:1])
            typical[subject] = [(str(images[n]), boxes[n : n + 1].round(6)) for n in chosen]
        return typical

    def _best_of_all(self, candidates: Sequence[np.ndarray]) -> np.ndarray:
        """The box that lies best on the images' true ones, by the mean of each image's best IoU."""
        boxes = np.concatenate([one.boxes for one in self._questions])
        images = np.repeat(
            np.unique([one.image_id for one in self._questions], return_inverse=True)[1],
            [len(one.boxes) for one in self._questions],
        )

        def mean_best(candidate: np.ndarray) -> float:
            best = np.zeros(int(images.max(initial=0)) + 1)
            np.maximum.at(best, images, np.asarray(pairwise_iou(boxes, candidate))[:, 0])
            return float(best.mean())

        return max(candidates, key=mean_best)

    def _hits(
        self,
        pairs: Sequence[tuple[_Question, str | None]],
        typical: dict[str, list[tuple[str, np.ndarray]]],
        unit: Callable[[_Question], str],
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Subject -> in how many units, which are images or questions, its typical box lies on a
        true one, and is asked for."""
        hit: dict[str, set[str]] = {name: set() for name in typical}
        # To an open question every class may be named.
        every = {unit(one) for one, f in pairs if f is None and not (one.closed or one.choices)}
        asked = {name: set(every) for name in typical}
        for one, finding in pairs:
            subject = finding or one.kind
            if subject not in typical:
                continue
            asked[subject].add(unit(one))
            box = _of_others(one, typical[subject])
            overlaps = np.asarray(pairwise_iou(one.boxes, box))
            if overlaps.max(initial=0.0) > _IOUS[0]:
                hit[subject].add(unit(one))
        hits, times = ({name: len(images) for name, images in of.items()} for of in (hit, asked))
        return hits, times

    def _easy(
        self,
        pairs: Sequence[tuple[_Question, str | None]],
        typical: dict[str, list[tuple[str, np.ndarray]]],
        hits: dict[str, int],
        looked_for: dict[str, int],
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """Floor, the classes that it says are there where they are asked about, and those that it
        names to an open question."""
        asked = [(one, finding) for one, finding in pairs if finding]
        classes = {finding for _, finding in asked}
        order = _easiest_first(hits, looked_for, classes)
        if not order:
            return
        best_class = [max(order, key=lambda name: hits[name])]
        yield "one class", best_class, best_class
        there = {(one.image_id, box.tobytes()) for one, _ in pairs for box in one.boxes}
        easy = _easiest(order, hits, looked_for, len(there))
        yield "easy classes", easy, easy
        # What is asked about is there more often than what may be named.
        counts = self._hits(asked, typical, lambda one: one.question_id)
        order = _easiest_first(*counts, classes)
        there_by_question = sum(len(one.boxes) for one, _ in asked)
        yield "easy questions", _easiest(order, *counts, there_by_question), []

    def _reader(self, pairs: Sequence[tuple[_Question, str | None]], seed: int) -> list[Prediction]:
        drawn = {
            image: random.Random(f"{seed}/{image}/reader").choice(sorted(readers))
            for image, readers in self._marks.items()
        }
        lines = []
        for one, finding in pairs:
            marks = self._marks.get(one.image_id, {}).get(drawn.get(one.image_id, ""))
            lines.append(
                parse_prediction(baselines.reader_line(_record(one, finding), marks), PERSON)
            )
        return lines


def _easiest_first(
    hits: dict[str, int], asked: dict[str, int], classes: Collection[str]
) -> list[str]:
    """The classes with a typical box, that which hits most often where it is asked for first."""
    return sorted((n for n in hits if n in classes), key=lambda n: (-hits[n] / asked[n], n))


def _easiest(
    order: list[str], hits: dict[str, int], asked: dict[str, int], there: int
) -> list[str]:
    """The first classes of these, as many as make F1 highest beside that many true boxes."""
    tp, given = (np.cumsum([of[name] for name in order]) for of in (hits, asked))
    return order[: 1 + int(np.argmax(2 * tp / (given + there)))]


def _constant(one: _Question, finding: str | None, yes: bool, common: str) -> str:
    if one.choices:
        return one.choices[0 if yes else -1].partition(":")[0].strip()
    if finding is not None or one.closed:
        return baselines.yes_or_no(yes, finding)
    return common if yes else "There is no finding."


def _boxed(
    one: _Question,
    finding: str | None,
    boxes: Sequence[tuple[str, np.ndarray]],
    score: float = 1.0,
) -> Prediction:
    """Yes, with the first of the boxes that is of another image."""
    text = _constant(one, finding, finding is not None or one.closed, "")
    return _line(one, finding, text, _of_others(one, boxes), score)


def _only(
    one: _Question,
    finding: str | None,
    names: Sequence[str],
    typical: dict[str, list[tuple[str, np.ndarray]]],
) -> Prediction:
    """That the named classes are there, each with its box, and no other."""
    there = finding in names if finding else bool(names)
    text = _constant(one, finding, there, f"There is {', '.join(names)}.")
    said = [name for name in names if there and finding in (None, name)]
    found = {name: _of_others(one, typical[name]) for name in said}
    labels = tuple(name for name, box in found.items() for _ in box)
    line = _line(one, None, text, np.concatenate([_NO_BOXES, *found.values()]))
    return dataclasses.replace(line, labels=labels or None)


def _of_others(one: _Question, boxes: Sequence[tuple[str, np.ndarray]]) -> np.ndarray:
    return next((box for image, box in boxes if image != one.image_id), _NO_BOXES)


def _drawn(one: _Question, finding: str | None, seed: int, classes: Sequence[str]) -> str:
    drawn = random.Random(f"{seed}/{one.question_id}/random_answer")
    closed, several = one.closed or finding is not None, one.kind == "multi_choice"
    return baselines.draw_text(one.choices, several, closed, finding, drawn, classes)


def _record(one: _Question, finding: str | None) -> QARecord:
    return QARecord.model_construct(
        question_id=one.question_id,
        question_type="closed_ended" if one.closed and not one.choices else one.kind,
        question="",
        choices=list(one.choices) or None,
        variables={"finding": finding} if finding else None,
    )


def _line(
    one: _Question, finding: str | None, text: str, boxes: np.ndarray, score: float = 1.0
) -> Prediction:
    if one.dataset == "gemex":
        # Its answers end in their boxes, on a frame that needs no image's size.
        text = f"{text} {_GEMEX.encode(boxes, 1, 1) or '<location>[]'}"
    some = len(boxes) > 0
    return Prediction(
        question_id=one.question_id,
        text=text,
        boxes=boxes,
        labels=(finding,) * len(boxes) if some else None,
        parse="ok",
        box_scores=np.full(len(boxes), score) if some else None,
        where=SHARED,
    )
