"""What a question is about, before anybody words it.

Findings, boxes and counts are planned from the annotation alone; a writer gives words to a plan and
can change nothing of it (the paper's provenance rule, section 2.1). `construct.py` plans, writers
word, `assemble.py` puts both together.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

from cxrjax.datasets.quality import PixelBox
from cxrjax.datasets.vindr_cxr_vqa.annotation import ImageAnnotation


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
