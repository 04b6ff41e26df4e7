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

import numpy as np
from jaxtyping import Float, Int

from cxrjax.codecs.base import Candidate, Codec, Geometry

SIDE = 224

# Bounded repeats throughout: the time is linear in the text, whatever the text.
_TAG = r"<\s{0,3}location\s{0,3}>"
# The sign is for `out_of_range`, as in vindr_px.
_WHOLE = r"(?:0|-?[1-9][0-9]{0,8})"
_BOX = r"\[" + ", ?".join([_WHOLE] * 4) + r"\]"
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
    rf"\[(?P<x_min>{_WHOLE}), ?(?P<y_min>{_WHOLE}), ?(?P<x_max>{_WHOLE}), ?(?P<y_max>{_WHOLE})\]"
)
_OPENED = re.compile(r"<location> ?\[")
_BETWEEN = re.compile(r"\s{0,9},\s{0,9}")
_SEPARATOR = re.compile(r"[,;\s]+")
# Longer ones are no coordinates, and parsing them would take more than linear time.
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})")


class Gemex(Codec):
    """The `gemex` codec. The grid is the corners of the 224-pixel frame's pixels."""

    name: ClassVar[str] = "gemex"
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

    def _largest(self, height: int, width: int) -> Int[np.ndarray, "2"]:
        return np.full(2, SIDE)

    def _to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: Geometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return boxes * float(SIDE)

    def _from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: Geometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return grid / float(SIDE)

    def _candidates(self, text: str) -> Iterator[Candidate]:
        text = text.rstrip()
        listed: list[re.Match[str]] = []
        for item in _ITEM.finditer(text):
            if item["exact"] is None and item["body"] is None:
                yield from _read_list(text, listed)
                listed = []
                yield Candidate(*item.span(), "truncated")
                continue
            if listed and not _continues(text, listed[-1], item):
                yield from _read_list(text, listed)
                listed = []
            listed.append(item)
        yield from _read_list(text, listed)


def _continues(text: str, before: re.Match[str], item: re.Match[str]) -> bool:
    """Whether two boxes stand in one list."""
    if before["close"] is not None or item["open"] is not None:
        return False
    return _BETWEEN.fullmatch(text, before.end(), item.start()) is not None


def _read_list(text: str, items: list[re.Match[str]]) -> Iterator[Candidate]:
    """The boxes of one list; exact where all of them, the tag and the brackets are."""
    if not items:
        return
    opened = items[0]["open"] is not None and _OPENED.fullmatch(items[0]["open"]) is not None
    exact = opened and items[-1]["close"] is not None and all(item["exact"] for item in items)
    for item in items:
        start, end = item.span()
        body = item["exact"][1:-1] if item["exact"] else item["body"]
        if item["exact"] is None and item["end"] is None:
            yield Candidate(start, end, "truncated" if end == len(text) else "malformed")
            continue
        parts = [part for part in _SEPARATOR.split(body) if part]
        if not parts or not all(map(_NUMBER.fullmatch, parts)):
            yield Candidate(start, end, "malformed")
        elif len(parts) != 4:
            yield Candidate(start, end, "wrong_arity")
        else:
            yield Candidate(start, end, None, tuple(map(float, parts)), exact)
