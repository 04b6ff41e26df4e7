"""A plan and its words as a record."""

import dataclasses
import re
from collections.abc import Iterable, Iterator

from cxrjax.datasets.vindr_cxr_vqa.annotation import Finding, ImageAnnotation
from cxrjax.datasets.vindr_cxr_vqa.plan import PlannedQuestion, Wording, Writer
from cxrjax.datasets.vindr_cxr_vqa.templates import format_box
from cxrjax.records import Answer, DatasetName, Generator, Provenance, QARecord, ReaderBox


@dataclasses.dataclass(frozen=True)
class Assembly:
    """What the records of one build have in common.

    Attributes:
        writer: gives words to the plans.
        source: file the annotations come from.
    """

    dataset: DatasetName
    writer: Writer
    source: Provenance | None = None

    @property
    def generator(self) -> Generator:
        """What the records name as the source of their words."""
        return Generator(name=self.writer.name, version=self.writer.version)

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
    """What each reader marked, as records have it."""

    def boxes(marked: Iterable[Finding]) -> list[ReaderBox]:
        return [ReaderBox(label=finding.label, box=list(finding.box)) for finding in marked]

    return {rad_id: boxes(marked) for rad_id, marked in image.readers.items()}
