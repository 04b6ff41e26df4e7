"""Collects single questions for the page, texts, boxes and outcomes image by image, as JSON too.

The references are streamed: once to count them and, where there are more images than are to be
shown, to rank those; once to take the texts of the images chosen.

What the page reads (`page_cases.js`) is an index with what filters and orders need of every
question, in columns, and parts with texts, boxes and images of `IMAGES_PER_PART` images.
"""

import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cxrjax.apps.results.errors import errors_of
from cxrjax.apps.results.marks import Marker, Piece, in_words, mark_words
from cxrjax.apps.results.pictures import CasePicture
from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import Benchmark
from cxrjax.evaluation.counted import Outcome
from cxrjax.evaluation.overlays import TUNED
from cxrjax.evaluation.predictions import Prediction, read_boxes, read_predictions
from cxrjax.files import replace_text
from cxrjax.input_pipeline.wording import says_unknown
from cxrjax.progress import progress_bar, waiting
from cxrjax.records import QARecord, read_records

SAMPLE_SEED = 0


@dataclass(frozen=True)
class LabelledBox:
    """A box as fractions of the original image (xyxy), and the class it is about."""

    label: str
    box: tuple[float, float, float, float]
    confidence: float | None = None


@dataclass(frozen=True)
class SystemAnswer:
    """One system's answer, and the reference with the words set apart that this answer lacks."""

    text: list[Piece]
    reference: list[Piece]
    parse: str
    outcome: Outcome
    boxes: list[LabelledBox]
    errors: int = 0


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
    """Counts of the references as a whole."""

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


def ranked_system(systems: Sequence[str], run: str = "") -> str | None:
    """The system whose worst cases come first: `tuned`, of a further run its, else the last one."""
    wanted = f"{run}/{TUNED}" if run else TUNED
    return wanted if wanted in systems else (systems[-1] if systems else None)


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
    with waiting("reading questions and answers"):
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
                f"{path}: answers none of the {overview.questions} questions of {references}; "
                "pass predictions and references of the same split"
            )
    # Where nothing has boxes, predictions need none either.
    maker.text_alone = not overview.boxes
    sampled = set(images)
    chosen = set(images)
    if len(images) > max_images:
        sampled, chosen = _choose(maker, references, answers, images, max_images)

    cases: dict[str, Case] = {}
    progress = progress_bar(
        read_records(references),
        desc="page",
        total=overview.questions,
        unit="question",
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
    """One answer's mark, 0 to 1: the mean of being right and of its IoU, where there are any."""
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
        found = Outcome(None, None, "")
        if self._outcome is not None:
            found = self._outcome(record, prediction, self.codec)
        if says_unknown(prediction.text):
            notes = filter(None, ["the model says that it does not know this", found.note])
            found = replace(found, note="; ".join(notes))
        return found

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
            reference=in_words(marker(record.answer_text, "", record.lang)[0]),
            boxes=self._truth(record),
        )
        for system, lines in answers.items():
            if (prediction := lines.get(record.question_id)) is not None:
                boxes, parse = self._boxes(record, prediction, self.predictions[system])
                text, reference = marker(prediction.text, record.answer_text, record.lang)
                outcome = self.outcome(record, prediction)
                errors = errors_of(
                    [one.box for one in question.boxes], [one.box for one in boxes], outcome.right
                )
                question.answers[system] = SystemAnswer(
                    in_words(text), in_words(reference), parse, outcome, boxes, errors
                )
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
        labels = read.labels or read.named or [None] * len(read.boxes)
        boxes = [
            LabelledBox(
                label or record.finding or "",
                (box[0], box[1], box[2], box[3]),
                None if math.isnan(score) else score,
            )
            for label, box, score in zip(
                labels, read.boxes.tolist(), read.scores.tolist(), strict=True
            )
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
    """Names that a question can be found by: its classes, else its regions."""
    named = {label for answer in record.answers for label in answer.labels}
    if record.finding is not None:
        named.add(record.finding)
    return sorted(named or {region for answer in record.answers for region in answer.regions})


def _about(record: QARecord) -> str:
    age = None if record.age is None else f"{record.age:g} years"
    return ", ".join(filter(None, [record.view, record.sex, age]))


IMAGES_PER_PART = 25
# Coordinates are whole numbers, of so many to an image's side.
SCALE = 10_000
_NO_PREDICTION, _UNDECIDED = "n", "u"


class _Names:
    """Strings as numbers, in the order of their first use."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.numbers = {name: number for number, name in enumerate(known)}

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))


class CaseData:
    """Index and parts of some cases.

    Args:
        cases: in the order in which the page knows them.
        systems: names, in the order of their columns.
    """

    def __init__(self, cases: Sequence[Case], systems: Sequence[str]) -> None:
        self._cases = cases
        self._systems = systems
        asked = [question for case in cases for question in case.questions]
        self._types = _Names(sorted({question.question_type for question in asked}))
        self._subjects = _Names(sorted({name for question in asked for name in question.subjects}))
        self._texts, self._parses, self._labels = _Names(), _Names(["ok"]), _Names()
        self._notes = _Names()  # thousands of answers have the same few

    def parts(self, pictures: Iterable[CasePicture]) -> Iterator[list[dict[str, Any]]]:
        """The parts in order; all are to be taken before `index` is.

        Args:
            pictures: of each case.
        """
        part: list[dict[str, Any]] = []
        for case, picture in zip(self._cases, pictures, strict=True):
            questions = [self._question(question) for question in case.questions]
            full = {} if picture.full is None else {"full": picture.full}
            size = [picture.width, picture.height]
            part.append({"src": picture.address, **full, "size": size, "q": questions})
            if len(part) == IMAGES_PER_PART:
                yield part
                part = []
        if part:
            yield part

    def index(self) -> dict[str, Any]:
        """The index, which is needed before anything is shown."""
        asked = [(image, q) for image, case in enumerate(self._cases) for q in case.questions]
        questions = [question for _, question in asked]
        return {
            "perPart": IMAGES_PER_PART,
            "scale": SCALE,
            "images": {
                "id": [case.image_id for case in self._cases],
                "about": [case.about for case in self._cases],
                "sampled": "".join("1" if case.sampled else "0" for case in self._cases),
            },
            "questions": {
                "id": [question.question_id for question in questions],
                "image": [image for image, _ in asked],
                "text": [self._texts.number(question.text) for question in questions],
                "type": [self._types.number(question.question_type) for question in questions],
                "subjects": [
                    [self._subjects.number(name) for name in question.subjects]
                    for question in questions
                ],
                "right": [
                    "".join(_right(q.answers.get(s)) for q in questions) for s in self._systems
                ],
                "errors": [
                    [a.errors if (a := q.answers.get(s)) else 0 for q in questions]
                    for s in self._systems
                ],
                "iou": [[_iou(q.answers.get(s)) for q in questions] for s in self._systems],
                "parse": [
                    [self._parse(q.answers.get(s)) for q in questions] for s in self._systems
                ],
            },
            "texts": list(self._texts.numbers),
            "types": list(self._types.numbers),
            "subjects": list(self._subjects.numbers),
            "parses": list(self._parses.numbers),
            "labels": list(self._labels.numbers),
            "notes": list(self._notes.numbers),
        }

    def _question(self, question: Question) -> dict[str, Any]:
        found: dict[str, Any] = {
            "ref": question.reference,
            "boxes": self._boxes(question.boxes),
            "answers": [
                self._answer(question.answers.get(system), question) for system in self._systems
            ],
        }
        return found | ({"choices": question.choices} if question.choices else {})

    def _answer(self, answer: SystemAnswer | None, question: Question) -> dict[str, Any] | None:
        if answer is None:
            return None
        found: dict[str, Any] = {"text": answer.text, "boxes": self._boxes(answer.boxes)}
        if answer.outcome.note:
            found["note"] = self._notes.number(answer.outcome.note)
        if answer.reference != question.reference:
            found["ref"] = answer.reference
        return found

    def _boxes(self, boxes: Sequence[LabelledBox]) -> list[list[float]]:
        """Corners, the label's number, and the confidence where there is one."""
        found: list[list[float]] = []
        for one in boxes:
            found.append([*map(_whole, one.box), self._labels.number(one.label)])
            if one.confidence is not None:
                found[-1].append(round(one.confidence, 2))
        return found

    def _parse(self, answer: SystemAnswer | None) -> int:
        return self._parses.number("ok" if answer is None else answer.parse)


def script_json(content: Any) -> str:
    """JSON that may stand in a <script> element: nothing in it can end the element."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # As JSON escapes, which no reader can tell from the characters.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _whole(value: float) -> int:
    # A box may lie far outside its image; the image has only what is near.
    return round(SCALE * min(max(value, -1.0), 2.0))


def _right(answer: SystemAnswer | None) -> str:
    if answer is None:
        return _NO_PREDICTION
    outcome: Outcome = answer.outcome
    return _UNDECIDED if outcome.right is None else "r" if outcome.right else "w"


def _iou(answer: SystemAnswer | None) -> int:
    """IoU in per cent; -1 if there is none."""
    return -1 if answer is None or answer.outcome.iou is None else round(100 * answer.outcome.iou)


def write_part(folder: Path, number: int, content: Any) -> None:
    """A part as a script: a page that is opened from a disk may read scripts and nothing else."""
    text = f"cxrjaxPart({number}, {script_json(content)});\n"
    replace_text(folder / f"part-{number}.js", text)
