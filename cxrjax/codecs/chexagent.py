"""CheXagent's boxes: two corners between tags, hundredths of the image.

    <|ref|>small left effusion<|/ref|><|box|>(55,45),(70,56)<|/box|>    (x_min,y_min),(x_max,y_max)

Whole numbers from 0 to 100, both included, of the whole image; CheXagent-2's own code divides them
by 100 and multiplies by width and height. The model's input plays no part, so `geometry` changes
nothing. A phrase between `<|ref|>` tags right before a box is read as its label. It is prose for
all that: it stays where a box is replaced, and writing boxes adds none. Read leniently, bars, tags
and parentheses may be missing, as long as tags or two pairs of parentheses say that it is a box.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from cxrjax.codecs.base import Candidate, Codec, Geometry

_LARGEST = 100

# Bounded repeats throughout: the time is linear in the text, whatever the text.
_OPEN, _CLOSE = r"<\s{0,3}\|?box\|?\s{0,3}>", r"<\s{0,3}\|?/\s{0,3}box\|?\s{0,3}>"
_INSIDE = r"[-+0-9.,;\s]"
# The sign is for `out_of_range`, as in vindr_px.
_WHOLE = r"(?:0|-?[1-9][0-9]{0,8})"
_NUMBERS = re.compile(
    rf"\((?P<x_min>{_WHOLE}),(?P<y_min>{_WHOLE})\),\((?P<x_max>{_WHOLE}),(?P<y_max>{_WHOLE})\)"
)
_EXACT = re.compile(rf"<\|box\|>\({_WHOLE},{_WHOLE}\),\({_WHOLE},{_WHOLE}\)<\|/box\|>")
_ITEM = re.compile(
    r"(?:<\|ref\|>(?P<label>[^<>]{0,300})<\|/ref\|>\s{0,3})?"
    rf"(?P<box>(?P<open>{_OPEN})(?P<tagged>[-+0-9.,;()\[\]\s]{{0,120}})"
    # What the end of the text may have left of the closing tag.
    rf"(?:(?P<close>{_CLOSE})|<\s{{0,3}}\|?/?\s{{0,3}}(?:b(?:ox?)?)?\|?\Z)?"
    rf"|\(\s{{0,9}}(?P<first>[-+.0-9]{_INSIDE}{{0,40}})\)\s{{0,3}},?\s{{0,3}}"
    rf"\((?P<second>{_INSIDE}{{0,40}})(?P<end>\))?"
    r"|<\s{0,3}(?:\|(?:b(?:o(?:x\|?)?)?)?)?\Z)",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(r"[,;()\[\]\s]+")
# Longer ones are no coordinates, and parsing them would take more than linear time.
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})")


class CheXagent(Codec):
    """The `chexagent` codec. The grid is hundredths of the image, its far edges included."""

    name: ClassVar[str] = "chexagent"
    separator: ClassVar[str] = ""
    number_pattern: ClassVar[re.Pattern[str]] = _NUMBERS
    max_digits: ClassVar[int] = 3

    def _write(self, grid: list[int]) -> str:
        x_min, y_min, x_max, y_max = grid
        return f"<|box|>({x_min},{y_min}),({x_max},{y_max})<|/box|>"

    def _largest(self, height: int, width: int) -> Int[np.ndarray, "2"]:
        return np.full(2, _LARGEST)

    def _to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: Geometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return boxes * float(_LARGEST)

    def _from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: Geometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return grid / float(_LARGEST)

    def _candidates(self, text: str) -> Iterator[Candidate]:
        text = text.rstrip()
        for item in _ITEM.finditer(text):
            start, end = item.span("box")
            body = item["tagged"]
            if body is None and item["first"] is not None:
                body = f"{item['first']} {item['second']}"
            closed = item["close"] is not None or item["end"] is not None
            if body is None or (
                not closed and end == len(text) and not body.rstrip().endswith(")")
            ):
                yield Candidate(start, end, "truncated")
                continue
            numbers = [part for part in _SEPARATOR.split(body) if part]
            if not numbers or not all(map(_NUMBER.fullmatch, numbers)):
                yield Candidate(start, end, "malformed")
            elif len(numbers) != 4:
                cut = not closed and end == len(text)
                yield Candidate(start, end, "truncated" if cut else "wrong_arity")
            else:
                exact = _EXACT.fullmatch(text, start, end) is not None
                label = (item["label"] or "").strip() or None
                yield Candidate(start, end, None, tuple(map(float, numbers)), exact, label)
