"""Planned questions, the interface of writers, and records made of a plan and its words."""

import dataclasses
import heapq
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Protocol

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.templates import QUESTION_TYPES, format_box
from cxrjax.records import Answer, DatasetName, GeneratorInfo, Provenance, QARecord, ReaderBox
from cxrjax.records_io.quality import PixelBox


@dataclasses.dataclass(frozen=True)
class PlannedQuestion:
    """One question without its words.

    Attributes:
        question_id: of the record it becomes.
        kind: one of `QUESTION_TYPES`.
        style: "one_box": like the release, about one finding and one of its boxes; "dense": about
            all boxes of a class; "list_all": every finding of the image with its boxes.
        labels: the findings it is about; those of the image where it asks for all of them.
        boxes: label -> boxes that the answer shows, all of them, in this order; pixels of the
            original image.
        count: what "How many" is answered with: the boxes that the reader of the box shown drew of
            this class, all boxes of the class where `style` is "dense".
        rad_id: the reader whose box is shown, None where boxes are of several readers.
        negative_kind: None where what it asks about is there.
    """

    image: ImageAnnotation
    question_id: str
    kind: str
    style: Literal["one_box", "dense", "list_all"]
    labels: tuple[str, ...]
    boxes: dict[str, tuple[PixelBox, ...]]
    count: int
    rad_id: str | None = None
    negative_kind: Literal["no_finding_image", "absent_class"] | None = None


# Table 2: fewest and most words of a reason.
REASON_WORDS = (150, 250)


@dataclasses.dataclass(frozen=True)
class Wording:
    """A question in words: Table 2's fields that come from the generator, type excepted.

    Attributes:
        answer: holds every box of the plan as `<loc_x_min_y_min_x_max_y_max>`, and no other; where
            `style` is "list_all", one sentence for each label, in the plan's order.
        template_id: which wording of a data file it is, None for a language model's.
    """

    question: str
    answer: str
    reason: str
    difficulty: Literal["Easy", "Medium"]
    template_id: str | None = None


# Difficulty, a rule of ours (Table 3 has 49.1 % Easy and no rule): Easy asks whether or where,
# about a class of which the reader drew few boxes; Medium asks for a name, a number or a choice, or
# is about a class that was marked over and over.
EASY_KINDS = ("Where", "Is_there", "Yes_No")


def difficulty(plan: PlannedQuestion, most_boxes: int) -> Literal["Easy", "Medium"]:
    """Easy where the kind is and the class was marked at most `most_boxes` times."""
    return "Easy" if plan.kind in EASY_KINDS and plan.count <= most_boxes else "Medium"


class Writer(Protocol):
    """Words for planned questions.

    Attributes:
        name, version: what the records' `generator` says.
    """

    name: str
    version: str

    def write(self, plans: Iterable[PlannedQuestion]) -> Iterator[tuple[PlannedQuestion, Wording]]:
        """Each plan with its words, in order. A plan that cannot be worded is set aside in the
        writer's quality log, and left out."""
        ...


@dataclasses.dataclass(frozen=True)
class Assembly:
    """Makes records of plans; holds what those of one build have in common.

    Attributes:
        writer: gives words to the plans.
        source: file the annotations come from.
    """

    dataset: DatasetName
    writer: Writer
    source: Provenance | None = None

    @property
    def generator(self) -> GeneratorInfo:
        """The source of words that the records name."""
        return GeneratorInfo(name=self.writer.name, version=self.writer.version)

    def records(self, plans: Iterable[PlannedQuestion], split: str) -> Iterator[QARecord]:
        """Records of the plans that the writer has words for, in order."""
        for plan, wording in self.writer.write(plans):
            yield self.record(plan, wording, split)

    def record(self, plan: PlannedQuestion, wording: Wording, split: str) -> QARecord:
        """Truth from the plan, words from the wording.

        Raises:
            ValueError: the answer to "list_all" has not one sentence for each label, its boxes.
        """
        image = plan.image
        about_a_class = plan.kind != "What"
        # Of several findings or none, the two fields of the release have nothing to say.
        located = len(plan.labels) == 1 and bool(plan.boxes) and plan.style != "list_all"
        boxes = [box for of_label in plan.boxes.values() for box in of_label]
        return QARecord(
            dataset=self.dataset,
            split=split,
            image_id=image.image_id,
            image_path=image.image_path,
            image_hw=image.image_hw,
            question_id=plan.question_id,
            question=wording.question,
            question_type=plan.kind,
            difficulty=wording.difficulty,
            template_id=wording.template_id,
            variables={"finding": plan.labels[0]} if about_a_class else None,
            answers=_answers(plan, wording),
            reason=wording.reason,
            gt_finding=plan.labels[0] if located else None,
            gt_location=" ".join(map(format_box, boxes)) if located else None,
            negative_kind=plan.negative_kind,
            # Dense questions are many: there the readers stand once an image.
            readers=reader_boxes(image) if plan.style != "dense" or not about_a_class else None,
            generator=self.generator,
            provenance=self.source,
        )


def _answers(plan: PlannedQuestion, wording: Wording) -> list[Answer]:
    if plan.style != "list_all":
        return [_answer(plan, wording.answer, plan.labels)]
    # Boxes of one answer are of one class: each sentence is an answer of its own.
    sentences = re.split(r"(?<=>\.) ", wording.answer)
    if len(sentences) != len(plan.labels):
        raise ValueError(
            f"{plan.question_id}: {len(sentences)} sentences with boxes, expected one for each of "
            f"{', '.join(plan.labels)}"
        )
    return [
        _answer(plan, sentence, (label,), answer_id=f"a{number}")
        for number, (sentence, label) in enumerate(zip(sentences, plan.labels, strict=True))
    ]


def _answer(
    plan: PlannedQuestion, text: str, labels: tuple[str, ...], answer_id: str = "a0"
) -> Answer:
    boxes = [list(box) for label in labels for box in plan.boxes.get(label, ())]
    if any(format_box((box[0], box[1], box[2], box[3])) not in text for box in boxes):
        raise ValueError(f"{plan.question_id}: {text!r} lacks a box of {', '.join(labels)}")
    return Answer(
        answer_id=answer_id,
        text=text,
        labels=list(labels),
        polarity="neg" if plan.negative_kind else "pos",
        boxes_by_image={plan.image.image_id: boxes} if boxes else {},
    )


def reader_boxes(image: ImageAnnotation) -> dict[str, list[ReaderBox]]:
    """Each reader's marks, as records have them."""

    def boxes(marked: Iterable[FindingBox]) -> list[ReaderBox]:
        return [ReaderBox(label=finding.label, box=list(finding.box)) for finding in marked]

    return {rad_id: boxes(marked) for rad_id, marked in image.readers.items()}


QUESTIONS_PER_IMAGE = 4  # Table 3: 17,597 questions on 4,394 images
MAX_BOXES = 6  # in one answer of the dense questions
# 41.7 % and 58.3 % (abstract) are 5/12 and 7/12: 20,880 questions (section 3.1) split 8,700 to
# 12,180.
POSITIVE, NEGATIVE = 5, 7
CLASS_QUESTION_TYPES = tuple(name for name in QUESTION_TYPES if name != "What")


def stream(seed: int, key: str, purpose: str) -> random.Random:
    """A generator for one purpose; a text seed gives the same stream on every platform."""
    return random.Random(f"{seed}/{key}/{purpose}")


def plan_one_box(images: Sequence[ImageAnnotation], seed: int) -> Iterator[PlannedQuestion]:
    """Four questions about each image with findings; images without are passed over.

    Findings rotate over the image's classes, so a class is asked about twice only when all others
    had their turn; the box shown is one of the class's boxes. "How many" counts the boxes of the
    reader whose box is shown: other readers' boxes are of the same lesions. The kind to begin with
    is dealt over the images, so that all six come equally often.
    """
    images = [image for image in images if image.findings]
    ids = sorted(image.image_id for image in images)
    rng = random.Random(f"{seed}/kinds")
    rng.shuffle(ids)
    start = rng.randrange(len(QUESTION_TYPES))
    first_kind = {
        image_id: number % len(QUESTION_TYPES) for number, image_id in enumerate(ids, start)
    }
    for image in images:
        rng = stream(seed, image.image_id, "vqa")
        labels = rng.sample(image.present, len(image.present))
        for number in range(QUESTIONS_PER_IMAGE):
            label = labels[number % len(labels)]
            rad_id, box = rng.choice(_marked(image, label))
            yield PlannedQuestion(
                image,
                f"{image.image_id}-{number}",
                QUESTION_TYPES[(first_kind[image.image_id] + number) % len(QUESTION_TYPES)],
                "one_box",
                (label,),
                {label: (box,)},
                sum(finding.label == label for finding in image.readers[rad_id]),
                rad_id,
            )


def plan_list_all(image: ImageAnnotation, question_id: str) -> PlannedQuestion:
    """The question for every finding of an image that has some, with all boxes of all readers.

    Classes in alphabetical order, boxes in reading order; a box that two readers drew alike is
    listed once.
    """
    boxes = {label: tuple(dict.fromkeys(image.boxes_of(label))) for label in image.present}
    count = sum(map(len, boxes.values()))
    return PlannedQuestion(
        image, question_id, "What", "list_all", tuple(image.present), boxes, count
    )


def plan_denied(
    image: ImageAnnotation, question_id: str, kind: str, label: str | None
) -> PlannedQuestion:
    """A question whose answer is no: about a class that is absent, or, without a label, "What" on
    an image without findings."""
    return PlannedQuestion(
        image,
        question_id,
        kind,
        "one_box",
        (label,) if label else (),
        {},
        0,
        negative_kind=negative_kind(image),
    )


def plan_dense(images: Sequence[ImageAnnotation], seed: int) -> Iterator[PlannedQuestion]:
    """Every class present once with all of its boxes, absent classes for balance, one "What".

    Args:
        images: a whole split: the balance of positive and negative is struck over all of them.
            None may have more than `MAX_BOXES` boxes of one class.
    """
    for image, negatives in zip(images, deal_negatives(images, seed), strict=True):
        present = tuple(image.present)
        yield PlannedQuestion(
            image,
            f"{image.image_id}-0",
            "What",
            "dense",
            present,
            {},
            len(present),
            negative_kind=None if present else "no_finding_image",
        )
        asked, _ = dense_order(image, negatives, seed)
        for number, (kind, label) in enumerate(asked, start=1):
            boxes = tuple(image.boxes_of(label))
            if len(boxes) > MAX_BOXES:
                found = f"{len(boxes)} boxes of {label}, at most {MAX_BOXES}"
                raise ValueError(f"{image.image_id}: {found}")
            yield PlannedQuestion(
                image,
                f"{image.image_id}-{number}",
                kind,
                "dense",
                (label,),
                {label: boxes} if boxes else {},
                len(boxes),
                negative_kind=None if boxes else negative_kind(image),
            )


def dense_order(
    image: ImageAnnotation, negatives: int, seed: int
) -> tuple[list[tuple[str, str]], random.Random]:
    """(kind, class) of the questions about each present class and `negatives` absent ones, mixed;
    and the stream that decided it, which goes on to choose their words."""
    rng = stream(seed, image.image_id, "dense")
    present = image.present
    absent = [label for label in CLASSES if label not in present]
    absent = rng.sample(absent, len(absent))[:negatives]
    # Positive and negative questions rotate through the kinds each on their own, so that the kind
    # tells nothing about the answer.
    asked = []
    for labels in (rng.sample(present, len(present)), absent):
        first = rng.randrange(len(CLASS_QUESTION_TYPES))
        for number, label in enumerate(labels):
            kind = CLASS_QUESTION_TYPES[(first + number) % len(CLASS_QUESTION_TYPES)]
            asked.append((kind, label))
    return rng.sample(asked, len(asked)), rng


def deal_negatives(images: Sequence[ImageAnnotation], seed: int) -> list[int]:
    """Numbers of absent classes to ask about, an image each.

    Positive questions are one for each class present and the "What" of an abnormal image; the
    "What" of a normal image is negative. Negatives are dealt one at a time to the image with the
    fewest questions so far, so that images carry about equally many, until POSITIVE : NEGATIVE is
    struck or every absent class is taken.
    """
    present = [len(image.present) for image in images]
    normal = present.count(0)
    positives = sum(present) + len(images) - normal
    wanted = max(round(positives * NEGATIVE / POSITIVE) - normal, 0)
    dealt = [0] * len(images)
    # The tie-break is drawn by image id: with one by position the first images would get more.
    heap = [
        (count + 1, stream(seed, image.image_id, "deal").random(), index)
        for index, (image, count) in enumerate(zip(images, present, strict=True))
        if count < len(CLASSES)
    ]
    heapq.heapify(heap)
    for _ in range(wanted):
        if not heap:
            break
        count, tie, index = heap[0]
        dealt[index] += 1
        if present[index] + dealt[index] < len(CLASSES):
            heapq.heapreplace(heap, (count + 1, tie, index))
        else:
            heapq.heappop(heap)
    return dealt


def negative_kind(image: ImageAnnotation) -> Literal["no_finding_image", "absent_class"]:
    """Tells an image without findings from one with other classes."""
    return "absent_class" if image.findings else "no_finding_image"


def _marked(image: ImageAnnotation, label: str) -> list[tuple[str, PixelBox]]:
    """(reader, box) of every box of a class, in the annotation's order."""
    return [
        (rad_id, finding.box)
        for rad_id, marked in image.readers.items()
        for finding in marked
        if finding.label == label
    ]
