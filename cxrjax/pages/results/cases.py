"""Collects single questions for the page: texts, boxes and outcomes, image by image.

The references are streamed: once to count them and, where there are more images than are to be
shown, to rank those; once to take the texts of the images chosen.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.pages.results.marks import Marker, Piece, mark_words
from cxrjax.records import QARecord, read_records
from cxrjax.scoring.benchmark import Benchmark
from cxrjax.scoring.overlays import TUNED
from cxrjax.scoring.predictions import Prediction, read_boxes, read_predictions
from cxrjax.scoring.scores import Outcome

SAMPLE_SEED = 0


@dataclass(frozen=True)
class LabelledBox:
    """A box as fractions of the original image (xyxy), and the class it is about."""

    label: str
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class SystemAnswer:
    """What one system said, and the reference with what this answer lacks set apart."""

    text: list[Piece]
    reference: list[Piece]
    parse: str
    outcome: Outcome
    boxes: list[LabelledBox]


@dataclass
class Question:
    """One question; `answers` has no entry for a system without a prediction for it."""

    question_id: str
    text: str
    question_type: str
    subjects: list[str]
    choices: list[str]
    reference: list[Piece]
    boxes: list[LabelledBox]
    answers: dict[str, SystemAnswer] = field(default_factory=dict)


@dataclass
class Case:
    """One image with its questions; `about`: view, sex and age, where they are known."""

    image_id: str
    image_path: str
    image_hw: tuple[int, int] | None
    about: str
    sampled: bool
    questions: list[Question] = field(default_factory=list)


@dataclass
class Overview:
    """What the references hold as a whole."""

    images: int = 0
    questions: int = 0
    boxes: int = 0
    datasets: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)
    generators: Counter[str] = field(default_factory=Counter)

    def add(self, record: QARecord) -> None:
        self.questions += 1
        self.boxes += len(record.boxes)
        self.datasets[record.dataset] += 1
        self.splits[record.split] += 1
        if record.generator is not None:
            self.generators[f"{record.generator.name} {record.generator.version}"] += 1


def ranked_system(systems: Sequence[str]) -> str | None:
    """The system whose worst cases come first: `tuned`, else the last one."""
    return TUNED if TUNED in systems else (systems[-1] if systems else None)


def collect_cases(
    references: Path,
    predictions: Mapping[str, Path],
    max_images: int,
    benchmark: Benchmark[Any] | None,
    codec: Codec | None,
    marker: Marker = mark_words,
) -> tuple[list[Case], Overview]:
    """Gathers what is shown of at most `max_images` images, in the order of the references.

    Where there are more, half of those shown are a random sample of all (SAMPLE_SEED), and half the
    images on which the ranked system does worst.

    Args:
        benchmark: says what came of each question; None: nobody does.
        codec: reads boxes from the text of predictions that have none of their own.
        marker: sets apart what differs between an answer and its reference.

    Raises:
        UserError: a file cannot be read, a line is not what the contract says, boxes of an image
            whose `image_hw` is null, or a system that answers none of the questions.
    """
    answers = {
        system: {line.question_id: line for line in read_predictions(path)}
        for system, path in predictions.items()
    }
    maker = _QuestionMaker(references, predictions, benchmark, codec)
    overview, known = Overview(), Counter[str]()
    images: dict[str, None] = {}
    for record in read_records(references):
        overview.add(record)
        images[record.image_id] = None
        known.update(system for system, lines in answers.items() if record.question_id in lines)
    overview.images = len(images)
    for system, path in predictions.items():
        if not known[system]:
            raise UserError(
                f"{path}: answers none of the {overview.questions} questions of {references}: give "
                "the predictions and the references of one split"
            )
    # Where nothing has boxes, predictions need none either.
    maker.text_alone = not overview.boxes
    sampled = set(images)
    chosen = set(images)
    if len(images) > max_images:
        sampled, chosen = _choose(maker, references, answers, images, max_images)

    cases: dict[str, Case] = {}
    progress = tqdm(
        read_records(references),
        desc="page",
        total=overview.questions,
        unit=" questions",
        disable=None,
    )
    for record in progress:
        name = record.image_id
        if name in chosen:
            case = cases.setdefault(
                name,
                Case(name, record.image_path, record.image_hw, _about(record), name in sampled),
            )
            case.questions.append(maker.question(record, answers, marker))
    return list(cases.values()), overview


def _choose(
    maker: "_QuestionMaker",
    references: Path,
    answers: Mapping[str, Mapping[str, Prediction]],
    images: Mapping[str, None],
    max_images: int,
) -> tuple[set[str], set[str]]:
    """The random sample, and all that is shown: the sample and the worst."""
    system = ranked_system(list(answers))
    size = max_images if system is None else (max_images + 1) // 2
    sampled = set(random.Random(f"{SAMPLE_SEED}/page/images").sample(sorted(images), size))
    if system is None:
        return sampled, sampled
    goodness: dict[str, list[float]] = {name: [] for name in images if name not in sampled}
    for record in read_records(references):
        if (values := goodness.get(record.image_id)) is None:
            continue
        prediction = answers[system].get(record.question_id)
        value = 0.0 if prediction is None else _goodness(maker.outcome(record, prediction))
        if value is not None:
            values.append(value)

    def worst_first(name: str) -> tuple[bool, float, str]:
        """Images of which nothing is known come last."""
        values = goodness[name]
        return not values, sum(values) / max(len(values), 1), name

    worst = sorted(goodness, key=worst_first)[: max_images - size]
    return sampled, sampled | set(worst)


def _goodness(outcome: Outcome) -> float | None:
    """Of one answer, 0 to 1: the mean of right or wrong and its IoU, of what there is of them."""
    parts = [float(value) for value in (outcome.right, outcome.iou) if value is not None]
    return sum(parts) / len(parts) if parts else None


class _QuestionMaker:
    """Makes `Question`s; knows what to call the files in errors."""

    def __init__(
        self,
        references: Path,
        predictions: Mapping[str, Path],
        benchmark: Benchmark[Any] | None,
        codec: Codec | None,
    ) -> None:
        self.references = references
        self.predictions = predictions
        self.codec = codec
        self.text_alone = False
        self._outcome = benchmark.outcome if benchmark else None

    def outcome(self, record: QARecord, prediction: Prediction) -> Outcome:
        if self._outcome is None:
            return Outcome(None, None, "")
        return self._outcome(record, prediction, self.codec)

    def question(
        self,
        record: QARecord,
        answers: Mapping[str, Mapping[str, Prediction]],
        marker: Marker,
    ) -> Question:
        question = Question(
            question_id=record.question_id,
            text=record.question,
            question_type=record.question_type,
            subjects=_subjects(record),
            choices=record.choices or [],
            reference=marker(record.answer_text, "", record.lang)[0],
            boxes=self._truth(record),
        )
        for system, lines in answers.items():
            if (prediction := lines.get(record.question_id)) is not None:
                boxes, parse = self._boxes(record, prediction, self.predictions[system])
                text, reference = marker(prediction.text, record.answer_text, record.lang)
                outcome = self.outcome(record, prediction)
                question.answers[system] = SystemAnswer(text, reference, parse, outcome, boxes)
        return question

    def _truth(self, record: QARecord) -> list[LabelledBox]:
        """The boxes of the reference answer: each with its label, else the class asked about."""
        found = []
        for answer in record.answers:
            boxes = answer.boxes_by_image.get(record.image_id, [])
            if not boxes:
                continue
            height, width = self._size(record)
            labels: Sequence[str | None] = answer.labels
            if len(labels) != len(boxes):
                named = ", ".join(answer.labels or answer.regions)
                labels = [record.finding or record.gt_finding or named] * len(boxes)
            for label, (x0, y0, x1, y1) in zip(labels, boxes, strict=True):
                box = x0 / width, y0 / height, x1 / width, y1 / height
                found.append(LabelledBox(label or "", box))
        return found

    def _boxes(
        self, record: QARecord, prediction: Prediction, path: Path
    ) -> tuple[list[LabelledBox], str]:
        """The boxes of an answer, with the class as for truth, and how its parsing ended."""
        if self.text_alone and not (prediction.boxes is not None and len(prediction.boxes)):
            return [], prediction.parse or "ok"
        read = read_boxes(prediction, self.codec, *self._size(record), where=str(path))
        labels = prediction.labels or [None] * len(read.boxes)
        boxes = [
            LabelledBox(label or record.finding or "", (box[0], box[1], box[2], box[3]))
            for label, box in zip(labels, read.boxes.tolist(), strict=True)
        ]
        return boxes, read.parse

    def _size(self, record: QARecord) -> tuple[int, int]:
        if record.image_hw is None:
            raise UserError(
                f"{self.references}: question {record.question_id}: image_hw is null, so its boxes "
                "cannot be drawn: join the image sizes to the records first"
            )
        return record.image_hw


def _subjects(record: QARecord) -> list[str]:
    """What a question can be found by: its classes, else its regions."""
    named = {label for answer in record.answers for label in answer.labels}
    if record.finding is not None:
        named.add(record.finding)
    return sorted(named or {region for answer in record.answers for region in answer.regions})


def _about(record: QARecord) -> str:
    age = None if record.age is None else f"{record.age:g} years"
    return ", ".join(filter(None, [record.view, record.sex, age]))
