"""GEMeX's boxes: a list of lists at the end of an answer, on a frame of 224 by 224.

    <location>[[26, 119, 217, 183], [30, 34, 185, 178]]    x_min y_min x_max y_max

Whole numbers from 0 to 224, both included, of the image stretched to a square (its released boxes;
arXiv 2411.16778, Tables 10 to 13). The frame belongs to the convention, so `geometry` changes
nothing. Exact is the tag and a list of lists, with or without the spaces of the released files;
`<location>[]` says that there is no box. Read leniently, the tag and the outer brackets may be
missing. A list of several boxes is shared out among their spans, tag and brackets with the first
and the last, so that text with the spans replaced has no rest of it.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from cxrjax.codecs.base import Candidate, Codec
from cxrjax.codecs.frames import Frame, ImageSteps
from cxrjax.codecs.reading import WHOLE, four_numbers, lists_of, unclosed

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
