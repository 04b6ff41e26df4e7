"""Where boxes and their class names stand on a picture of the page (SVG view-box units)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cxrjax.benchmarks.overlays import TRUTH
from cxrjax.benchmarks.page_cases import Case, LabelledBox
from cxrjax.boxes import pairwise_iou

# About a picture's width on a phone, so that its text is legible there and not huge elsewhere.
VIEW_WIDTH = 400
# Of the class names, as the style sheet sets them. Wider than most glyphs, to be on the safe side.
_GLYPH_WIDTH, _LINE_HEIGHT = 6.1, 11.5
# A box that overlaps a named one of its class this much needs no name of its own.
_SAME_PLACE = 0.3


@dataclass(frozen=True)
class BoxView:
    """A box and its name. `echo`: the name is hidden at first, for room or because truth has it."""

    x: float
    y: float
    width: float
    height: float
    label: str
    label_x: float
    label_y: float
    anchor: str
    echo: bool
    question: int


@dataclass(frozen=True)
class _Extent:
    """The rectangle that a name covers, its baseline `y` and the side of `x` it extends to."""

    left: float
    right: float
    y: float
    anchor: str

    def meets(self, other: "_Extent") -> bool:
        apart = self.right <= other.left or other.right <= self.left
        return not apart and abs(self.y - other.y) < _LINE_HEIGHT


def box_layers(case: Case, systems: Sequence[str], view_height: float) -> dict[str, list[BoxView]]:
    """The boxes of truth and of each system, in a view of VIEW_WIDTH x `view_height`.

    Names are placed one after the other, truth first, at the first corner of their box where they
    fit in the picture and cover no name placed before.
    """
    placed: list[_Extent] = []
    named: list[LabelledBox] = []
    layers: dict[str, list[BoxView]] = {}
    for system in (TRUTH, *systems):
        layers[system] = []
        for place, question in enumerate(case.questions):
            for labelled in question.boxes.get(system, []):
                x0, x1 = sorted(VIEW_WIDTH * value for value in labelled.box[::2])
                y0, y1 = sorted(view_height * value for value in labelled.box[1::2])
                corners = _corners(labelled.label, x0, y0, x1, y1)
                fitting = [c for c in corners if _inside(c, view_height)]
                free = [c for c in fitting if not any(c.meets(other) for other in placed)]
                echo = not free or any(_same_place(labelled, other) for other in named)
                extent = (free or fitting or corners)[0]
                if not echo:
                    placed.append(extent)
                    named.append(labelled)
                layers[system].append(
                    BoxView(
                        x=round(x0, 1),
                        y=round(y0, 1),
                        width=round(x1 - x0, 1),
                        height=round(y1 - y0, 1),
                        label=labelled.label,
                        label_x=round(extent.left if extent.anchor == "start" else extent.right, 1),
                        label_y=round(extent.y, 1),
                        anchor=extent.anchor,
                        echo=echo,
                        question=place,
                    )
                )
    return layers


def _corners(label: str, x0: float, y0: float, x1: float, y1: float) -> list[_Extent]:
    """Above and below the box, then inside it; flush left, then flush right."""
    length = _GLYPH_WIDTH * len(label)
    return [
        _Extent(x0, x0 + length, y, "start") if flush_left else _Extent(x1 - length, x1, y, "end")
        for y in (y0 - 4, y1 + 11, y0 + 12, y1 - 5)
        for flush_left in (True, False)
    ]


def _inside(extent: _Extent, view_height: float) -> bool:
    across = extent.left >= 0 and extent.right <= VIEW_WIDTH
    return across and _LINE_HEIGHT <= extent.y + 2 <= view_height


def _same_place(a: LabelledBox, b: LabelledBox) -> bool:
    if a.label != b.label:
        return False
    pair = np.array([a.box], np.float32), np.array([b.box], np.float32)
    return float(pairwise_iou(*pair)[0, 0]) > _SAME_PLACE
