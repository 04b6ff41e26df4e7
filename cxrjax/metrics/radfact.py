"""RadFact's arithmetic (MAIRA-2, arXiv 2406.04449, section 3.3; github.com/microsoft/RadFact).

Two texts are lists of statements, some with boxes. A statement is entailed where some of the other
text bear it out, its evidence. Of the answer's statements shares are called precision, of the
reference's recall:

    logical     entailed, of all
    grounding   whose boxes are entailed too, of the entailed ones that have boxes
    spatial     the same, of all that have boxes

Boxes are entailed where more than half of the area that they cover is covered by boxes of the
evidence. RadFact counts pixels of a mask of 224 x 224; here the areas are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from cxrjax.metrics.detection import TOLERANCE
from cxrjax.metrics.localization import region_areas, region_iop

COVERED = 0.5
KINDS = ("logical", "grounding", "spatial")

Boxes = Float[np.ndarray, "_ 4"]


@dataclass(frozen=True)
class Statement:
    """A statement as it was judged.

    Attributes:
        boxes: xyxy in any unit; empty where it has none.
        evidence: indices of those of the other text that entail it; empty where none do.
    """

    boxes: Boxes
    evidence: tuple[int, ...]


class Entailed(NamedTuple):
    """Counts of one text's statements.

    Attributes:
        entailed_boxed: entailed ones that have boxes.
        grounded: those of them whose boxes are entailed too.
    """

    statements: int
    entailed: int
    boxed: int
    entailed_boxed: int
    grounded: int

    def share(self, kind: str) -> tuple[int, int]:
        """(numerator, denominator) of a kind of `KINDS`."""
        return {
            "logical": (self.entailed, self.statements),
            "grounding": (self.grounded, self.entailed_boxed),
            "spatial": (self.grounded, self.boxed),
        }[kind]


def count_entailed(statements: Sequence[Statement], others: Sequence[Statement]) -> Entailed:
    """Counts one text's statements; `others` are the other text's, which evidence points to."""
    boxed = [one for one in statements if len(one.boxes)]
    entailed = [one for one in boxed if one.evidence]
    return Entailed(
        statements=len(statements),
        entailed=sum(bool(one.evidence) for one in statements),
        boxed=len(boxed),
        entailed_boxed=len(entailed),
        grounded=sum(
            boxes_entailed(one.boxes, np.concatenate([others[n].boxes for n in one.evidence]))
            for one in entailed
        ),
    )


def boxes_entailed(boxes: Boxes, evidence: Boxes) -> bool:
    """Says whether boxes of the evidence cover more than half of these; False without area."""
    areas = region_areas(boxes, evidence)
    return bool(region_iop(areas.intersection, areas.predicted) > COVERED + TOLERANCE)
