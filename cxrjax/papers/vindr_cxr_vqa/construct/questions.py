"""Plans questions out of annotations: what each asks about, which boxes answer it.

`plan_one_box`   like the release: four questions about an image with findings, their kinds rotating
                 through the six; each is about one finding and shows one box.
`plan_list_all`  every finding of an image with all of its boxes, in one answer.
`plan_dense`     the phantoms' benchmark: every class that is present is asked about once, with all
                 of its boxes in reading order; absent classes until 5/12 of the questions are
                 positive (the abstract's 41.7 %); one "What" an image names the findings without
                 boxes.

Labels and boxes are copied from the annotation (the paper's provenance rule, section 2.1). What is
asked about an image is decided by (seed, image_id), except for what a whole set of images settles
together: the kind that an image begins with, and how many absent classes are asked about.
"""

import heapq
import random
from collections.abc import Iterator, Sequence
from typing import Literal

from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.classes import CLASSES
from cxrjax.papers.vindr_cxr_vqa.construct.plan import PlannedQuestion
from cxrjax.papers.vindr_cxr_vqa.construct.templates import QUESTION_TYPES
from cxrjax.records_io.quality import PixelBox

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
    """Why a class is not there: nothing is, or other classes are."""
    return "absent_class" if image.findings else "no_finding_image"


def _marked(image: ImageAnnotation, label: str) -> list[tuple[str, PixelBox]]:
    """(reader, box) of every box of a class, in the annotation's order."""
    return [
        (rad_id, finding.box)
        for rad_id, marked in image.readers.items()
        for finding in marked
        if finding.label == label
    ]
