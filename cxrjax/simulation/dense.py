"""Dense questions about simulated images: every class that is there, with all of its boxes, and
absent ones for balance.
"""

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.asking import (
    CLASS_QUESTION_TYPES,
    MAX_BOXES,
    negative_kind,
    stream,
)
from cxrjax.papers.vindr_cxr_vqa.construct.plan import PlannedQuestion, Wording, difficulty
from cxrjax.papers.vindr_cxr_vqa.construct.templates import format_box, load_templates
from cxrjax.radiology_text.english import capital, join
from cxrjax.records_io.quality import PixelBox

# 41.7 % and 58.3 % (abstract) are 5/12 and 7/12: 20,880 questions (section 3.1) split 8,700 to
# 12,180.
POSITIVE, NEGATIVE = 5, 7


def plan_dense(images: Sequence[ImageAnnotation], seed: int) -> Iterator[PlannedQuestion]:
    """Plans every class present with all of its boxes, absent classes for balance, one "What".

    Args:
        images: a whole split: the balance of positive and negative is struck over all of them.
            None may have more than `MAX_BOXES` boxes of one class.
    """
    for image, negatives in zip(images, deal_negatives(images, seed), strict=True):
        present = tuple(image.present)
        asked: list[tuple[str, tuple[str, ...], dict[str, tuple[PixelBox, ...]], int]]
        asked = [("What", present, {}, len(present))]
        for kind, label in dense_order(image, negatives, seed)[0]:
            boxes = tuple(image.boxes_of(label))
            if len(boxes) > MAX_BOXES:
                found = f"{len(boxes)} boxes of {label}, at most {MAX_BOXES}"
                raise ValueError(f"{image.image_id}: {found}")
            asked.append((kind, (label,), {label: boxes} if boxes else {}, len(boxes)))
        for number, (kind, labels, shown, count) in enumerate(asked):
            question_id = f"{image.image_id}-{number}"
            absent = None if count else negative_kind(image)
            yield PlannedQuestion(
                image, question_id, kind, "dense", labels, shown, count, negative_kind=absent
            )


def dense_order(
    image: ImageAnnotation, negatives: int, seed: int
) -> tuple[list[tuple[str, str]], random.Random]:
    """Returns (kind, class) of the questions about each present class and `negatives` absent ones,
    mixed; and the stream that decided it, which then chooses their words."""
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
    """Returns the number of absent classes to ask about of each image.

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


_EASY_BOXES = 1


class DenseWriter:
    """Words dense plans; a `Writer`.

    The stream that decided what to ask about an image also chooses the words: a shipped checkpoint
    was trained on what came of it. So an image's plans must come together, in order.
    """

    name = "templates"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._templates = load_templates("5")
        self.version = self._templates.version

    def write(self, plans: Iterable[PlannedQuestion]) -> Iterator[tuple[PlannedQuestion, Wording]]:
        """Yields each plan with its words, in order."""
        for image_id, group in itertools.groupby(plans, key=lambda plan: plan.image.image_id):
            what, *about_classes = group
            yield what, self._word(what, stream(self._seed, image_id, "what"))
            negatives = sum(plan.negative_kind is not None for plan in about_classes)
            _, rng = dense_order(what.image, negatives, self._seed)
            for plan in about_classes:
                yield plan, self._word(plan, rng)

    def _word(self, plan: PlannedQuestion, rng: random.Random) -> Wording:
        boxes = [format_box(box) for of_label in plan.boxes.values() for box in of_label]
        if plan.kind == "What":
            finding, reason = "", "named" if plan.labels else "normal"
        else:
            finding, reason = plan.labels[0], "marked" if boxes else "absent"
        question, template_id = self._templates.question(plan.kind, rng, finding=finding)
        slots = {"finding": finding, "findings": join(plan.labels)}
        shown = {"boxes": " ".join(boxes), "boxes_and": join(boxes), "count": str(plan.count)}
        answer = self._templates.answer("dense", plan.kind, rng, plan.count, **slots, **shown)
        # Each has one wording; drawing it would move the stream.
        (wording,) = self._templates.reasons[reason]
        filled = capital(wording.format(**slots))
        return Wording(question, answer, filled, difficulty(plan, _EASY_BOXES), template_id)
