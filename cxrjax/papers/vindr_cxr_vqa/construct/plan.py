"""Planned questions, the interface of writers, and records made of a plan and its words."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Protocol

from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct.templates import format_box
from cxrjax.radiology_text.english import capital, join
from cxrjax.records import Answer, GeneratorInfo, Provenance, QARecord, ReaderBox
from cxrjax.records_io.quality import PixelBox


@dataclasses.dataclass(frozen=True)
class PlannedQuestion:
    """One question without its words."""

    image: ImageAnnotation
    question_id: str
    kind: str  # one of `QUESTION_TYPES`
    # "lesions": about one finding and all of its lesions, a box each; "dense": about all boxes of a
    # class; "list_all": every finding of the image with its boxes.
    style: Literal["lesions", "dense", "list_all"]
    # The findings it is about; those of the image where it asks for all of them.
    labels: tuple[str, ...]
    # Label -> all boxes that the answer shows, in this order; pixels of the original.
    boxes: dict[str, tuple[PixelBox, ...]]
    count: int  # of boxes that it is about, the answer to "How many"
    # The fewest and the most that a reader counted who marked the class; (0, 0): none.
    counts: tuple[int, int] = (0, 0)
    place: str | None = None  # of the boxes, in words
    # The other classes that readers marked, which are as right an answer to "What".
    others: tuple[str, ...] = ()
    # None where what it asks about is there.
    negative_kind: Literal["no_finding_image", "absent_class"] | None = None


# Table 2: fewest and most words of a reason.
REASON_WORDS = (150, 250)


@dataclasses.dataclass(frozen=True)
class Wording:
    """A question in words: Table 2's fields that come from the generator, type excepted."""

    question: str
    # Holds every box of the plan as `<loc_x_min_y_min_x_max_y_max>`, and no other; where `style` is
    # "list_all", one sentence for each label, in the plan's order.
    answer: str
    reason: str
    difficulty: Literal["Easy", "Medium"]
    template_id: str | None = None  # None for a language model's words
    others: str = ""  # the sentence about `others` of a plan that has some


# Difficulty, a rule of ours (Table 3 has 49.1 % Easy and no rule): Easy asks whether or where,
# about a class that stands in few places; Medium asks for a name, a number or a choice, or is about
# a class that is spread over many.
EASY_KINDS = ("Where", "Is_there", "Yes_No")


def difficulty(plan: PlannedQuestion, most_boxes: int) -> Literal["Easy", "Medium"]:
    """Easy where the kind is and the class was marked at most `most_boxes` times."""
    return "Easy" if plan.kind in EASY_KINDS and plan.count <= most_boxes else "Medium"


class Writer(Protocol):
    """Words for planned questions."""

    name: str
    version: str

    def write(self, plans: Iterable[PlannedQuestion]) -> Iterator[tuple[PlannedQuestion, Wording]]:
        """Yields each plan with its words, in order, without those that cannot be worded, which the
        writer's quality log has."""
        ...


@dataclasses.dataclass(frozen=True)
class Assembly:
    """Makes records of plans; holds what those of one build have in common."""

    dataset: str
    writer: Writer
    source: Provenance | None = None

    @property
    def generator(self) -> GeneratorInfo:
        """Source of words that the records name."""
        return GeneratorInfo(name=self.writer.name, version=self.writer.version)

    def records(self, plans: Iterable[PlannedQuestion], split: str) -> Iterator[QARecord]:
        """Yields records of the plans that the writer has words for, in order."""
        for plan, wording in self.writer.write(plans):
            yield self.record(plan, wording, split)

    def record(self, plan: PlannedQuestion, wording: Wording, split: str) -> QARecord:
        """Returns a record: ground truth from the plan, words from the wording.

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
            answer_key=_answer_key(plan),
            reason=wording.reason,
            gt_finding=plan.labels[0] if located else None,
            # The release's schema has one box, the answer all; dense records, which no release has,
            # name all of them here, as shipped checkpoints were trained.
            gt_location=" ".join(map(format_box, boxes if plan.style == "dense" else boxes[:1]))
            if located
            else None,
            negative_kind=plan.negative_kind,
            # Dense questions are many: there the readers stand once an image.
            readers=reader_boxes(image) if plan.style != "dense" or not about_a_class else None,
            generator=self.generator,
            provenance=self.source,
        )


def _answers(plan: PlannedQuestion, wording: Wording) -> list[Answer]:
    if plan.style != "list_all":
        answer = _answer(plan, wording.answer, plan.labels)
        if not plan.others:
            return [answer]
        text = wording.others or f"{capital(join(plan.others))} {are(plan.others)} seen as well."
        labels = list(plan.others)
        return [answer, Answer(answer_id="a1", text=text, labels=labels, polarity="pos")]
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


def _answer_key(plan: PlannedQuestion) -> list[str] | None:
    """Returns the right answers where there are several: every class marked; every number from
    the fewest to the most that readers, and all of them together, counted."""
    if plan.style != "lesions" or plan.negative_kind:
        return None
    if plan.kind == "What":
        return [*plan.labels, *plan.others]
    if plan.kind != "How_many":
        return None
    counts = [count for count in (plan.count, *plan.counts) if count]
    return [str(number) for number in range(min(counts), max(counts) + 1)]


def are(names: Sequence[str]) -> str:
    """Returns `is` or `are`."""
    return "are" if len(names) > 1 else "is"


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
    """Returns each reader's marks, as records have them."""
    return {
        rad_id: [ReaderBox(label=finding.label, box=list(finding.box)) for finding in marked]
        for rad_id, marked in image.readers.items()
    }
