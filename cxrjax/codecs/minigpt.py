"""MiniGPT-v2's boxes, which MiniGPT-Med kept: four numbers in tags within braces, hundredths.

    <p>opacity</p> {<12><30><55><71>}    x_min y_min x_max y_max

Whole numbers from 0 to 100, both included, of the image stretched to the model's square (arXiv
2310.09478, section 2.3), so that `geometry` changes nothing. A phrase between `<p>` tags right
before a box is read as its label; it stays where a box is replaced. Between boxes of one phrase
stands `<delim>`. Read leniently, spaces may be added and commas stand for tags.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from cxrjax.codecs.base import Candidate, Codec
from cxrjax.codecs.frames import Frame, ImageSteps
from cxrjax.codecs.reading import WHOLE, four_numbers, unclosed

# Bounded repeats throughout: the time is linear in the text, whatever the text.
_NUMBERS = re.compile(
    rf"\{{<(?P<x_min>{WHOLE})><(?P<y_min>{WHOLE})><(?P<x_max>{WHOLE})><(?P<y_max>{WHOLE})>\}}"
)
_ITEM = re.compile(
    r"(?:<p>(?P<label>[^<>]{0,300})</p>\s{0,9})?"
    r"(?P<box>\{\s{0,9}(?:(?=[<\-+.0-9])|(?=\Z))(?P<body>[-+0-9.,;<>\s]{0,120})(?P<end>\})?)"
)
_SEPARATOR = re.compile(r"[<>,;\s]+")


class MiniGpt(Codec):
    """The `minigpt` codec. The grid is hundredths of the image, its far edges included."""

    name: ClassVar[str] = "minigpt"
    frame: ClassVar[Frame] = ImageSteps(100)
    separator: ClassVar[str] = "<delim>"
    number_pattern: ClassVar[re.Pattern[str]] = _NUMBERS
    max_digits: ClassVar[int] = 3

    def _write(self, grid: list[int]) -> str:
        return "{" + "".join(f"<{value}>" for value in grid) + "}"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        for item in _ITEM.finditer(text):
            start, end = item.span("box")
            if item["end"] is None:
                yield unclosed(text, start, end)
                continue
            numbers = four_numbers(item["body"], _SEPARATOR)
            if isinstance(numbers, str):
                yield Candidate(start, end, numbers)
            else:
                exact = _NUMBERS.fullmatch(text, start, end) is not None
                label = (item["label"] or "").strip() or None
                yield Candidate(start, end, None, numbers, exact, label)
