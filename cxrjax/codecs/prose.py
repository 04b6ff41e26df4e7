"""Boxes within an answer's prose: VinDr-CXR-VQA's pixels, and GEMeX's lists.

VinDr-CXR-VQA's (`vindr_px`):

    The Lung Opacity is located at <loc_1365_1304_1772_1646>.    x_min y_min x_max y_max

Whole pixels; an x lies in [0, width], a y in [0, height], both edges included, as corners of pixels
rather than pixels are meant. Frame and grammar: VinDr-CXR-VQA (arXiv 2511.00504v2), section 2.1 and
figure 2. The model's input plays no part, so `geometry` changes nothing.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from cxrjax.codecs.base import Candidate, Codec
from cxrjax.codecs.frames import Frame, ImagePixels, ImageSteps
from cxrjax.codecs.reading import WHOLE, four_numbers, lists_of, unclosed

_ATTEMPT = re.compile(r"<\s{0,3}loc([-+0-9._,;:\s]*)(>?)|<\s{0,3}(?:lo?)?\Z", re.IGNORECASE)
_SEPARATOR = re.compile(r"[_,;:\s]+")
_EXACT = re.compile(
    rf"<loc_(?P<x_min>{WHOLE})_(?P<y_min>{WHOLE})_(?P<x_max>{WHOLE})_(?P<y_max>{WHOLE})>"
)


class VinDrPixels(Codec):
    """The `vindr_px` codec. The grid is the corners of the original image's pixels."""

    name: ClassVar[str] = "vindr_px"
    frame: ClassVar[Frame] = ImagePixels()
    separator: ClassVar[str] = " "
    number_pattern: ClassVar[re.Pattern[str]] = _EXACT
    max_digits: ClassVar[int] = 5

    def _write(self, grid: list[int]) -> str:
        return "<loc_" + "_".join(str(value) for value in grid) + ">"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        for attempt in _ATTEMPT.finditer(text):
            start, end = attempt.span()
            body, closed = attempt.groups()
            if not closed:
                yield unclosed(text, start, end)
                continue
            numbers = four_numbers(body, _SEPARATOR)
            if isinstance(numbers, str):
                yield Candidate(start, end, numbers)
            else:
                exact = _EXACT.fullmatch(text, start, end) is not None
                yield Candidate(start, end, None, numbers, exact)


SIDE = 224

# Bounded repeats throughout: the time is linear in the text, whatever the text.
_TAG = r"<\s{0,3}location\s{0,3}>"
_BOX = r"\[" + ", ?".join([WHOLE] * 4) + r"\]"
_ITEM = re.compile(
    rf"(?P<open>(?i:{_TAG})\s{{0,60}}(?:\[\s{{0,9}}(?=\[))?)?"
    rf"(?:(?P<exact>{_BOX})"
    # What begins like a number: letters in brackets are the options of an answer.
    r"|\[\s{0,9}(?:(?=[-+.0-9])|(?=\Z))(?P<body>[-+0-9.,;\s]{0,200})(?P<end>\])?)"
    r"(?P<close>\s{0,9}\])?"
    # The end of the text before a number.
    rf"|(?i:{_TAG})\s{{0,60}}(?:\[\s{{0,9}}){{0,2}}\Z|<(?:l(?:o(?:c(?:a(?:t(?:i(?:on?)?)?)?)?)?)?)?\Z",
)
_NUMBERS = re.compile(
    rf"\[(?P<x_min>{WHOLE}), ?(?P<y_min>{WHOLE}), ?(?P<x_max>{WHOLE}), ?(?P<y_max>{WHOLE})\]"
)
_OPENED = re.compile(r"<location> ?\[")


class Gemex(Codec):
    """The `gemex` codec. The grid is the corners of the 224-pixel frame's pixels."""

    name: ClassVar[str] = "gemex"
    frame: ClassVar[Frame] = ImageSteps(SIDE)
    # Between the boxes of one list.
    separator: ClassVar[str] = ", "
    number_pattern: ClassVar[re.Pattern[str]] = _NUMBERS
    max_digits: ClassVar[int] = 3

    def _write_all(self, boxes: list[tuple[list[int], str | None]]) -> str:
        if not boxes:
            return ""
        listed = self.separator.join(self._write(grid) for grid, _ in boxes)
        return f"<location>[{listed}]"

    def _write(self, grid: list[int]) -> str:
        return "[" + ", ".join(map(str, grid)) + "]"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        for listed in lists_of(text, _ITEM.finditer(text)):
            yield from _read_list(text, listed)


def _read_list(text: str, items: list[re.Match[str]]) -> Iterator[Candidate]:
    """The boxes of one list; exact where all of them, the tag and the brackets are."""
    opened = items[0]["open"] is not None and _OPENED.fullmatch(items[0]["open"]) is not None
    exact = opened and items[-1]["close"] is not None and all(item["exact"] for item in items)
    for item in items:
        start, end = item.span()
        if item["exact"] is None and item["end"] is None:
            yield unclosed(text, start, end)
            continue
        numbers = four_numbers(item["exact"][1:-1] if item["exact"] else item["body"])
        if isinstance(numbers, str):
            yield Candidate(start, end, numbers)
        else:
            yield Candidate(start, end, None, numbers, exact)
