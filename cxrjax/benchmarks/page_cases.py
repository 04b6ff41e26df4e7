"""Which radiographs the page shows, and the questions, answers and boxes of each.

The references are streamed twice: once to rank every image by its boxes alone, once to take the
text of the chosen images. Only boxes and ids are kept of the rest, since references may be large.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float

from cxrjax.benchmarks.overlays import TRUTH, TUNED
from cxrjax.benchmarks.predictions import Prediction, read_boxes, read_predictions
from cxrjax.boxes import pairwise_iou
from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.records import QARecord, read_records

SAMPLE_SEED = 0
RANDOM, WORST, BEST = "random", "worst", "best"


@dataclass(frozen=True)
class LabelledBox:
    """A box as fractions of the original image (xyxy), and the class it is about."""

    label: str
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class SystemAnswer:
    """What one system said; `text` is None where its file has no line for the question."""

    text: str | None
    parse: str = "ok"


@dataclass
class Question:
    """One question with its reference, the systems' answers, and boxes by system and TRUTH."""

    question_id: str
    text: str
    question_type: str
    classes: list[str]
    reference: str
    answers: dict[str, SystemAnswer] = field(default_factory=dict)
    boxes: dict[str, list[LabelledBox]] = field(default_factory=dict)


@dataclass
class Case:
    """One radiograph to show. `agreement` is None where nobody, truth included, has a box."""

    image_id: str
    image_path: str
    groups: list[str]
    agreement: float | None
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
        self.datasets[record.dataset] += 1
        self.splits[record.split] += 1
        if record.generator is not None:
            self.generators[f"{record.generator.name} {record.generator.version}"] += 1


@dataclass(frozen=True)
class _Asked:
    """What reading an answer needs of its question; `size` is (height, width) of the image."""

    image_id: str
    finding: str | None
    size: tuple[int, int]


def agreement(truth: Iterable[LabelledBox], predicted: Iterable[LabelledBox]) -> float | None:
    """How well two sets of boxes cover each other, in [0, 1].

    The mean, over all boxes of both sides, of the highest IoU with a box of the same class on the
    other side. It only orders the pictures; it is no metric of the benchmark.
    """
    sides = list(truth), list(predicted)
    best: list[float] = []
    for mine, other in (sides, sides[::-1]):
        for box in mine:
            rivals = [o.box for o in other if o.label == box.label]
            overlaps = pairwise_iou(_array([box.box]), _array(rivals)) if rivals else np.zeros(1)
            best.append(float(np.max(overlaps)))
    return sum(best) / len(best) if best else None


def collect_cases(
    references: Path, predictions: Mapping[str, Path], max_images: int, codec: Codec | None
) -> tuple[list[Case], Overview, str | None]:
    """Chooses at most `max_images` radiographs and gathers what is shown of them.

    Half are a random sample of all images (SAMPLE_SEED), a quarter each the images on which the
    ranked system agrees least and most with the truth; an image can be in several groups.

    Args:
        codec: reads boxes from the text of predictions that have none of their own.

    Returns:
        The cases (random sample first, then worst, then best), an overview of the references, and
        the name of the ranked system (`tuned`, else the last one; None without predictions).

    Raises:
        UserError: a file cannot be read, a line is not what the contract says, `image_hw` is null,
            or a system answers none of the questions.
    """
    ranked_system = TUNED if TUNED in predictions else next(reversed(list(predictions)), None)
    truth: dict[str, set[LabelledBox]] = {}
    asked: dict[str, _Asked] = {}
    overview = Overview()
    for record in read_records(references):
        truth.setdefault(record.image_id, set()).update(_truth(record, references))
        asked[record.question_id] = _Asked(
            record.image_id, _finding(record), _size(record, references)
        )
        overview.add(record)
    overview.images = len(truth)
    overview.boxes = sum(len(boxes) for boxes in truth.values())

    scores: dict[str, float | None] = dict.fromkeys(truth)
    if ranked_system is not None:
        predicted: dict[str, list[LabelledBox]] = {name: [] for name in truth}
        file = predictions[ranked_system]
        for prediction, boxes, _ in _answers(file, asked, references, codec):
            predicted[asked[prediction.question_id].image_id] += boxes
        scores = {name: agreement(truth[name], predicted[name]) for name in truth}
    groups = _choose(scores, max_images, ranked_system is not None)

    cases: dict[str, Case] = {}
    questions: dict[str, Question] = {}
    for record in read_records(references):
        name = record.image_id
        if name in groups:
            new = Case(name, record.image_path, groups[name], scores[name])
            question = _question(record, references)
            cases.setdefault(name, new).questions.append(question)
            questions[record.question_id] = question
    for system, path in predictions.items():
        for question in questions.values():
            question.answers[system] = SystemAnswer(text=None)
        for prediction, boxes, parse in _answers(path, asked, references, codec):
            if (shown := questions.get(prediction.question_id)) is not None:
                shown.boxes[system] = boxes
                shown.answers[system] = SystemAnswer(prediction.text, parse)
    for case in cases.values():
        # Questions with boxes first: they are what the picture is about.
        case.questions.sort(key=lambda question: not any(question.boxes.values()))
    return [cases[name] for name in groups], overview, ranked_system


def _choose(
    scores: Mapping[str, float | None], max_images: int, ranked: bool
) -> dict[str, list[str]]:
    """image_id -> its groups, in the order of showing."""
    names = sorted(scores)
    # Without predictions there is nothing to rank by: all that is shown is the random sample.
    size = min(len(names), (max_images + 1) // 2 if ranked else max_images)
    chosen: dict[str, list[str]] = {
        name: [RANDOM] for name in random.Random(SAMPLE_SEED).sample(names, size)
    }
    if ranked:
        order = sorted((score, name) for name, score in scores.items() if score is not None)
        extreme = min(max_images // 4, len(order) // 2)
        for group, members in ((WORST, order[:extreme]), (BEST, order[::-1][:extreme])):
            for _, name in members:
                chosen.setdefault(name, []).append(group)
    return chosen


def _question(record: QARecord, references: Path) -> Question:
    finding = _finding(record)
    named = {label for answer in record.answers for label in answer.labels}
    return Question(
        question_id=record.question_id,
        text=record.question,
        question_type=record.question_type,
        classes=sorted(named | ({finding} if finding else set())),
        reference=record.answer_text,
        boxes={TRUTH: _truth(record, references)},
    )


def _finding(record: QARecord) -> str | None:
    """The class the question asks about; None for open questions ("What")."""
    return (record.variables or {}).get("finding")


def _size(record: QARecord, references: Path) -> tuple[int, int]:
    if record.image_hw is None:
        raise UserError(
            f"{references}: question {record.question_id}: image_hw is null, so its boxes cannot "
            "be drawn: join the image sizes to the records first"
        )
    return record.image_hw


def _truth(record: QARecord, references: Path) -> list[LabelledBox]:
    """The boxes of the reference answer: each with its label, else the class asked about."""
    height, width = _size(record, references)
    found = []
    for answer in record.answers:
        boxes = answer.boxes_by_image.get(record.image_id, [])
        labels: Sequence[str | None] = answer.labels
        if len(labels) != len(boxes):
            finding = _finding(record) or record.gt_finding or ", ".join(answer.labels)
            labels = [finding] * len(boxes)
        for label, (x0, y0, x1, y1) in zip(labels, boxes, strict=True):
            box = x0 / width, y0 / height, x1 / width, y1 / height
            found.append(LabelledBox(label or "", box))
    return found


def _answers(
    path: Path, asked: Mapping[str, _Asked], references: Path, codec: Codec | None
) -> Iterator[tuple[Prediction, list[LabelledBox], str]]:
    """A system's predictions for questions of the references: boxes with the class as for truth,
    and how the parsing ended."""
    known = 0
    for prediction in read_predictions(path):
        if (question := asked.get(prediction.question_id)) is None:
            continue
        known += 1
        read = read_boxes(prediction, codec, *question.size, where=str(path))
        labels = prediction.labels or [None] * len(read.boxes)
        boxes = [
            LabelledBox(label or question.finding or "", (box[0], box[1], box[2], box[3]))
            for label, box in zip(labels, read.boxes.tolist(), strict=True)
        ]
        yield prediction, boxes, read.parse
    if not known:
        raise UserError(
            f"{path}: answers none of the {len(asked)} questions of {references}: give the "
            "predictions and the references of one split"
        )


def _array(boxes: Sequence[tuple[float, float, float, float]]) -> Float[np.ndarray, "n 4"]:
    return np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
