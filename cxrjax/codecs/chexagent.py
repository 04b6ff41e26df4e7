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

from cxrjax.codecs.base import Candidate, Codec
from cxrjax.codecs.frames import Frame, ImageSteps
from cxrjax.codecs.reading import WHOLE, four_numbers

# Bounded repeats throughout: the time is linear in the text, whatever the text.
_OPEN, _CLOSE = r"<\s{0,3}\|?box\|?\s{0,3}>", r"<\s{0,3}\|?/\s{0,3}box\|?\s{0,3}>"
_INSIDE = r"[-+0-9.,;\s]"
_NUMBERS = re.compile(
    rf"\((?P<x_min>{WHOLE}),(?P<y_min>{WHOLE})\),\((?P<x_max>{WHOLE}),(?P<y_max>{WHOLE})\)"
)
_EXACT = re.compile(rf"<\|box\|>\({WHOLE},{WHOLE}\),\({WHOLE},{WHOLE}\)<\|/box\|>")
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


class CheXagent(Codec):
    """The `chexagent` codec. The grid is hundredths of the image, its far edges included."""

    name: ClassVar[str] = "chexagent"
    frame: ClassVar[Frame] = ImageSteps(100)
    separator: ClassVar[str] = ""
    number_pattern: ClassVar[re.Pattern[str]] = _NUMBERS
    max_digits: ClassVar[int] = 3

    def _write(self, grid: list[int]) -> str:
        x_min, y_min, x_max, y_max = grid
        return f"<|box|>({x_min},{y_min}),({x_max},{y_max})<|/box|>"

    def _candidates(self, text: str) -> Iterator[Candidate]:
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
            numbers = four_numbers(body, _SEPARATOR)
            if isinstance(numbers, str):
                cut = numbers == "wrong_arity" and not closed and end == len(text)
                yield Candidate(start, end, "truncated" if cut else numbers)
            else:
                exact = _EXACT.fullmatch(text, start, end) is not None
                label = (item["label"] or "").strip() or None
                yield Candidate(start, end, None, numbers, exact, label)
