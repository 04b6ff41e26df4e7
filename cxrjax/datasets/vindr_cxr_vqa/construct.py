"""Questions and answers out of annotations, in two modes.

`vqa`    like the release: four questions about an image with findings, their categories rotating
         through the six; each asks about one finding and answers with one box.
`dense`  the phantoms' benchmark: every class that is present is asked about once and the answer
         lists all of its boxes in reading order; absent classes are asked about until 5/12 of the
         questions are positive (the abstract's 41.7 %); one "What" question an image names the
         findings without boxes.

Labels and boxes are copied from the annotation (the paper's provenance rule, section 2.1); only
wording is made here. Everything about an image is decided by (seed, image_id), except how many
absent classes the dense mode asks about, which a whole split settles together.
"""

import dataclasses
import heapq
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cxrjax.datasets.quality import PixelBox
from cxrjax.datasets.vindr_cxr_vqa.annotation import Finding, ImageAnnotation
from cxrjax.datasets.vindr_cxr_vqa.classes import CLASSES
from cxrjax.datasets.vindr_cxr_vqa.templates import (
    QUESTION_TYPES,
    Templates,
    format_box,
    join,
    load_templates,
)
from cxrjax.records import Answer, DatasetName, Generator, Provenance, QARecord, ReaderBox

QUESTIONS_PER_IMAGE = 4  # Table 3: 17,597 questions on 4,394 images
MAX_BOXES = 6  # in one answer of the dense mode
# 41.7 % and 58.3 % (abstract) are 5/12 and 7/12: 20,880 questions (section 3.1) split 8,700 to
# 12,180.
POSITIVE, NEGATIVE = 5, 7
CLASS_QUESTION_TYPES = tuple(name for name in QUESTION_TYPES if name != "What")
# Difficulty, a rule of ours (Table 3 has 49.1 % Easy): Easy asks whether or where and shows at most
# one box; Medium asks for a name, a number or a choice, or shows several boxes.
EASY_TYPES = ("Where", "Is_there", "Yes_No")


@dataclasses.dataclass(frozen=True)
class Construction:
    """What the records of one build have in common.

    Attributes:
        seed: decides phrasings, categories and which findings are asked about.
        dataset: the records' `dataset`.
        source: file the annotations come from.
    """

    seed: int
    dataset: DatasetName
    source: Provenance | None = None
    templates: Templates = dataclasses.field(default_factory=load_templates)

    def rng(self, image: ImageAnnotation, purpose: str) -> random.Random:
        """A generator for one image; a text seed gives the same stream on every platform."""
        return random.Random(f"{self.seed}/{image.image_id}/{purpose}")

    def record(
        self, image: ImageAnnotation, split: str, number: int, answer: Answer, **fields: Any
    ) -> QARecord:
        """One record; `fields` are those that differ between the questions of an image."""
        kind = fields["question_type"]
        boxes = answer.boxes_by_image.get(image.image_id, [])
        return QARecord(
            dataset=self.dataset,
            split=split,
            image_id=image.image_id,
            image_path=image.image_path,
            image_hw=image.image_hw,
            question_id=f"{image.image_id}-{number}",
            answers=[answer],
            difficulty="Easy" if kind in EASY_TYPES and len(boxes) <= 1 else "Medium",
            generator=Generator(name="templates", version=self.templates.version),
            provenance=self.source,
            **fields,
        )


def construct_vqa(
    images: Iterable[ImageAnnotation], split: str, build: Construction
) -> Iterator[QARecord]:
    """Four questions about each image with findings; images without are passed over.

    Findings rotate over the image's classes, so a class is asked about twice only when all others
    had their turn; the box shown is one of the class's boxes. "How many" counts the boxes of the
    reader whose box is shown: other readers' boxes are of the same lesions.
    """
    for image in images:
        if image.findings:
            yield from _vqa_questions(image, split, build)


def _vqa_questions(image: ImageAnnotation, split: str, build: Construction) -> Iterator[QARecord]:
    rng = build.rng(image, "vqa")
    texts = build.templates
    readers = reader_boxes(image)
    labels = rng.sample(image.present, len(image.present))
    first_type = rng.randrange(len(QUESTION_TYPES))
    for number in range(QUESTIONS_PER_IMAGE):
        kind = QUESTION_TYPES[(first_type + number) % len(QUESTION_TYPES)]
        label = labels[number % len(labels)]
        rad_id, box = rng.choice(_marked(image, label))
        count = sum(finding.label == label for finding in image.readers[rad_id])
        category = "What_one" if kind == "What" else kind
        question, template_id = texts.question(category, rng, label)
        yield build.record(
            image,
            split,
            number,
            Answer(
                text=texts.answer("vqa", category, rng, label, boxes=[box], count=count),
                labels=[label],
                polarity="pos",
                boxes_by_image={image.image_id: [list(box)]},
            ),
            question=question,
            question_type=kind,
            template_id=template_id,
            variables=None if kind == "What" else {"finding": label},
            reason=texts.reason(
                "box",
                rad_id=rad_id,
                finding=label,
                boxes=format_box(box),
                votes=image.votes(label),
                readers=len(image.readers),
            ),
            gt_finding=label,
            gt_location=format_box(box),
            readers=readers,
        )


def construct_dense(
    images: Sequence[ImageAnnotation], split: str, build: Construction
) -> Iterator[QARecord]:
    """Every class present once with all of its boxes, absent classes for balance, one "What".

    The readers' marks stand on the "What" question, once an image.

    Args:
        images: a whole split: the balance of positive and negative is struck over all of them.
            None may have more than `MAX_BOXES` boxes of one class.
    """
    for image, negatives in zip(images, deal_negatives(images, build), strict=True):
        yield _what_question(image, split, build)
        yield from _class_questions(image, negatives, split, build)


def deal_negatives(images: Sequence[ImageAnnotation], build: Construction) -> list[int]:
    """How many absent classes to ask about on each image.

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
        (count + 1, build.rng(image, "deal").random(), index)
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


def _class_questions(
    image: ImageAnnotation, negatives: int, split: str, build: Construction
) -> Iterator[QARecord]:
    """One question for each present class and for `negatives` absent ones, in mixed order."""
    rng = build.rng(image, "dense")
    present = image.present
    absent = [label for label in CLASSES if label not in present]
    absent = rng.sample(absent, len(absent))[:negatives]
    # Positive and negative questions rotate through the categories each on their own, so that the
    # category tells nothing about the answer.
    asked = []
    for labels in (rng.sample(present, len(present)), absent):
        first = rng.randrange(len(CLASS_QUESTION_TYPES))
        for number, label in enumerate(labels):
            kind = CLASS_QUESTION_TYPES[(first + number) % len(CLASS_QUESTION_TYPES)]
            asked.append((kind, label))
    for number, (kind, label) in enumerate(rng.sample(asked, len(asked)), start=1):
        yield _class_question(image, number, kind, label, split, build, rng)


def _class_question(
    image: ImageAnnotation,
    number: int,
    kind: str,
    label: str,
    split: str,
    build: Construction,
    rng: random.Random,
) -> QARecord:
    texts = build.templates
    boxes = image.boxes_of(label)
    if len(boxes) > MAX_BOXES:
        raise ValueError(f"{image.image_id}: {len(boxes)} boxes of {label}, at most {MAX_BOXES}")
    question, template_id = texts.question(kind, rng, label)
    answer = Answer(
        text=texts.answer("dense", kind, rng, label, boxes=boxes, count=len(boxes)),
        labels=[label],
        polarity="pos" if boxes else "neg",
        boxes_by_image={image.image_id: [list(box) for box in boxes]} if boxes else {},
    )
    reason = texts.reason(
        "marked" if boxes else "absent",
        finding=label,
        votes=image.votes(label),
        readers=len(image.readers),
    )
    return build.record(
        image,
        split,
        number,
        answer,
        question=question,
        question_type=kind,
        template_id=template_id,
        variables={"finding": label},
        reason=reason,
        gt_finding=label if boxes else None,
        gt_location=" ".join(map(format_box, boxes)) if boxes else None,
        negative_kind=_negative_kind(image, positive=bool(boxes)),
    )


def _what_question(image: ImageAnnotation, split: str, build: Construction) -> QARecord:
    rng = build.rng(image, "what")
    texts = build.templates
    present = image.present
    question, template_id = texts.question("What", rng)
    return build.record(
        image,
        split,
        0,
        Answer(
            text=texts.answer("dense", "What", rng, findings=present, count=len(present)),
            labels=present,
            polarity="pos" if present else "neg",
        ),
        question=question,
        question_type="What",
        template_id=template_id,
        reason=texts.reason("named" if present else "normal", findings=join(present)),
        negative_kind=_negative_kind(image, positive=bool(present)),
        readers=reader_boxes(image),
    )


def _negative_kind(image: ImageAnnotation, positive: bool) -> str | None:
    if positive:
        return None
    return "absent_class" if image.findings else "no_finding_image"


def _marked(image: ImageAnnotation, label: str) -> list[tuple[str, PixelBox]]:
    """(reader, box) of every box of a class, in the annotation's order."""
    return [
        (rad_id, finding.box)
        for rad_id, marked in image.readers.items()
        for finding in marked
        if finding.label == label
    ]


def reader_boxes(image: ImageAnnotation) -> dict[str, list[ReaderBox]]:
    """What each reader marked, as records have it."""

    def boxes(marked: Iterable[Finding]) -> list[ReaderBox]:
        return [ReaderBox(label=finding.label, box=list(finding.box)) for finding in marked]

    return {rad_id: boxes(marked) for rad_id, marked in image.readers.items()}
