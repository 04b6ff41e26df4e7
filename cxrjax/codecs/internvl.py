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

import numpy as np
from jaxtyping import Float, Int

from cxrjax.codecs.base import Candidate, Codec, Geometry

_LARGEST = 1000

# Bounded repeats throughout: the time is linear in the text, whatever the text.
_WHOLE = r"(?:0|-?[1-9][0-9]{0,8})"
_NUMBERS = re.compile(
    rf"\[(?P<x_min>{_WHOLE}), (?P<y_min>{_WHOLE}), (?P<x_max>{_WHOLE}), (?P<y_max>{_WHOLE})\]"
)
_EXACT_BOX = r"\[" + ", ".join([_WHOLE] * 4) + r"\]"
_EXACT = re.compile(rf"(?:<box>\[)?{_EXACT_BOX}(?:\]</box>)?")
_OPEN, _CLOSE = r"<\s{0,3}box\s{0,3}>", r"<\s{0,3}/\s{0,3}box\s{0,3}>"
_ITEM = re.compile(
    r"(?:<ref>(?P<label>[^<>]{0,300})</ref>\s{0,9})?"
    rf"(?P<box>(?P<open>{_OPEN}\s{{0,9}}(?:\[\s{{0,9}}(?=\[))?)?"
    # What begins like a number: letters in brackets are the options of an answer.
    r"\[\s{0,9}(?:(?=[-+.0-9])|(?=\Z))(?P<body>[-+0-9.,;\s]{0,200})(?P<end>\])?"
    rf"(?P<close>\s{{0,9}}\]?\s{{0,9}}{_CLOSE})?"
    rf"|{_OPEN}\s{{0,9}}\[{{0,2}}\Z)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"\s{0,9},\s{0,9}")
_SEPARATOR = re.compile(r"[,;\s]+")
# Longer ones are no coordinates, and parsing them would take more than linear time.
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})")


class InternVl(Codec):
    """The `internvl` codec. The grid is thousandths of the image, its far edges included."""

    name: ClassVar[str] = "internvl"
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
        listed: list[re.Match[str]] = []
        for item in _ITEM.finditer(text):
            if listed and not (
                listed[-1]["close"] is None
                and item["open"] is None
                and _BETWEEN.fullmatch(text, listed[-1].end(), item.start())
            ):
                yield from _read_list(text, listed)
                listed = []
            listed.append(item)
        yield from _read_list(text, listed)


def _read_list(text: str, items: list[re.Match[str]]) -> Iterator[Candidate]:
    """The boxes of one list; exact where all of them and the tags around them are."""
    if not items:
        return
    whole = text[items[0].start("box") : items[-1].end()]
    exact = whole.startswith("<box>[[") and whole.endswith("]]</box>")
    label = (items[0]["label"] or "").strip() or None
    for item in items:
        start, end = item.span("box")
        if item["body"] is None or item["end"] is None:
            yield Candidate(start, end, "truncated" if end == len(text) else "malformed")
            continue
        parts = [part for part in _SEPARATOR.split(item["body"]) if part]
        if not parts or not all(map(_NUMBER.fullmatch, parts)):
            yield Candidate(start, end, "malformed")
        elif len(parts) != 4:
            yield Candidate(start, end, "wrong_arity")
        else:
            own = exact and _EXACT.fullmatch(text, start, end) is not None
            yield Candidate(start, end, None, tuple(map(float, parts)), own, label)
