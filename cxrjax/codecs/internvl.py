"""InternVL's boxes: a list of lists between tags, thousandths of the image.

    <ref>opacity</ref><box>[[120, 300, 550, 710]]</box>    x_min y_min x_max y_max

Whole numbers from 0 to 1,000, both included, of the image as it is, whatever tiles the model cuts
it into (InternVL's public documentation), so that `geometry` changes nothing. A phrase between
`<ref>` tags before the list is read as the label of its boxes; it stays where a box is replaced.
Read leniently, the tags and the outer brackets may be missing. A list of several boxes is shared
out among their spans, tags and brackets with the first and the last.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from cxrjax.codecs.base import Candidate, Codec
from cxrjax.codecs.frames import Frame, ImageSteps
from cxrjax.codecs.reading import WHOLE, four_numbers, lists_of, unclosed

# Bounded repeats throughout: the time is linear in the text, whatever the text.
_NUMBERS = re.compile(
    rf"\[(?P<x_min>{WHOLE}), (?P<y_min>{WHOLE}), (?P<x_max>{WHOLE}), (?P<y_max>{WHOLE})\]"
)
_EXACT_BOX = r"\[" + ", ".join([WHOLE] * 4) + r"\]"
_EXACT = re.compile(rf"(?:<box>\[)?{_EXACT_BOX}(?:\]</box>)?")
_OPEN, _CLOSE = r"<\s{0,3}box\s{0,3}>", r"<\s{0,3}/\s{0,3}box\s{0,3}>"
_ITEM = re.compile(
    r"(?:<ref>(?P<label>[^<>]{0,300})</ref>\s{0,9})?"
    rf"(?P<box>(?P<open>{_OPEN}\s{{0,9}}(?:\[\s{{0,9}}(?=\[))?)?"
    # What begins like a number: letters in brackets are the options of an answer.
    r"\[\s{0,9}(?:(?=[-+.0-9])|(?=\Z))(?P<body>[-+0-9.,;\s]{0,200})(?P<end>\])?"
    rf"(?P<close>\s{{0,9}}\]?\s{{0,9}}{_CLOSE})?"
    # The end of the text before a number.
    rf"|{_OPEN}\s{{0,9}}\[{{0,2}}\Z|<(?:b(?:ox?)?)?\Z)",
    re.IGNORECASE,
)


class InternVl(Codec):
    """The `internvl` codec. The grid is thousandths of the image, its far edges included."""

    name: ClassVar[str] = "internvl"
    frame: ClassVar[Frame] = ImageSteps(1000)
    # Between the boxes of one list.
    separator: ClassVar[str] = ", "
    number_pattern: ClassVar[re.Pattern[str]] = _NUMBERS
    max_digits: ClassVar[int] = 4

    def _write_all(self, boxes: list[tuple[list[int], str | None]]) -> str:
        if not boxes:
            return ""
        return f"<box>[{self.separator.join(self._write(grid) for grid, _ in boxes)}]</box>"

    def _write(self, grid: list[int]) -> str:
        return "[" + ", ".join(map(str, grid)) + "]"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        for listed in lists_of(text, _ITEM.finditer(text)):
            yield from _read_list(text, listed)


def _read_list(text: str, items: list[re.Match[str]]) -> Iterator[Candidate]:
    """The boxes of one list; exact where all of them and the tags around them are."""
    whole = text[items[0].start("box") : items[-1].end()]
    exact = whole.startswith("<box>[[") and whole.endswith("]]</box>")
    label = (items[0]["label"] or "").strip() or None
    for item in items:
        start, end = item.span("box")
        if item["body"] is None or item["end"] is None:
            yield unclosed(text, start, end)
            continue
        numbers = four_numbers(item["body"])
        if isinstance(numbers, str):
            yield Candidate(start, end, numbers)
        else:
            own = exact and _EXACT.fullmatch(text, start, end) is not None
            yield Candidate(start, end, None, numbers, own, label)
