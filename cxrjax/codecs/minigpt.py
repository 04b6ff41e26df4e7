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

import numpy as np
from jaxtyping import Float, Int

from cxrjax.codecs.base import Candidate, Codec, Geometry

_LARGEST = 100

# Bounded repeats throughout: the time is linear in the text, whatever the text.
# The sign is for `out_of_range`, as in vindr_px.
_WHOLE = r"(?:0|-?[1-9][0-9]{0,8})"
_NUMBERS = re.compile(
    rf"\{{<(?P<x_min>{_WHOLE})><(?P<y_min>{_WHOLE})><(?P<x_max>{_WHOLE})><(?P<y_max>{_WHOLE})>\}}"
)
_ITEM = re.compile(
    r"(?:<p>(?P<label>[^<>]{0,300})</p>\s{0,9})?"
    r"(?P<box>\{\s{0,9}(?:(?=[<\-+.0-9])|(?=\Z))(?P<body>[-+0-9.,;<>\s]{0,120})(?P<end>\})?)"
)
_SEPARATOR = re.compile(r"[<>,;\s]+")
# Longer ones are no coordinates, and parsing them would take more than linear time.
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})")


class MiniGpt(Codec):
    """The `minigpt` codec. The grid is hundredths of the image, its far edges included."""

    name: ClassVar[str] = "minigpt"
    separator: ClassVar[str] = "<delim>"
    number_pattern: ClassVar[re.Pattern[str]] = _NUMBERS
    max_digits: ClassVar[int] = 3

    def _write(self, grid: list[int]) -> str:
        return "{" + "".join(f"<{value}>" for value in grid) + "}"

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
            if item["end"] is None:
                yield Candidate(start, end, "truncated" if end == len(text) else "malformed")
                continue
            parts = [part for part in _SEPARATOR.split(item["body"]) if part]
            if not parts or not all(map(_NUMBER.fullmatch, parts)):
                yield Candidate(start, end, "malformed")
            elif len(parts) != 4:
                yield Candidate(start, end, "wrong_arity")
            else:
                exact = _NUMBERS.fullmatch(text, start, end) is not None
                label = (item["label"] or "").strip() or None
                yield Candidate(start, end, None, tuple(map(float, parts)), exact, label)
