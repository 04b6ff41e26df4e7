"""RadVLM's boxes: a list of four fractions of the image, with two decimals, within the prose.

    The opacity is located at [0.12, 0.30, 0.55, 0.71].    x_min y_min x_max y_max

From 0.00 to 1.00, of the whole image: RadVLM's own code (its data preparation) writes them so. The
model's input plays no part, so `geometry` changes nothing. Read leniently, there may be more or
fewer decimals, and other separators.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from cxrjax.codecs.base import Candidate, Codec, Geometry

_STEPS = 100

# The sign is for `out_of_range`: -0.10 is a number that is off the image, not a broken one.
_EXACT_NUMBER = r"-?(?:0|[1-9][0-9]{0,8})\.[0-9]{2}"
_EXACT = re.compile(r"\[" + ", ".join([_EXACT_NUMBER] * 4) + r"\]")
# What begins like a number: letters in brackets are something else.
_ITEM = re.compile(
    r"\[\s{0,9}(?:(?=[-+.]?[0-9])|(?=[-+.]?\Z))(?P<body>[-+0-9.,;\s]{0,200})(?P<end>\])?"
)
_SEPARATOR = re.compile(r"[,;\s]+")
# Longer ones are no coordinates, and parsing them would take more than linear time.
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})")


class RadVlm(Codec):
    """The `radvlm` codec. The grid is hundredths of the image, its far edges included."""

    name: ClassVar[str] = "radvlm"
    separator: ClassVar[str] = " "

    def _write(self, grid: list[int]) -> str:
        return "[" + ", ".join(f"{value // _STEPS}.{value % _STEPS:02d}" for value in grid) + "]"

    def _largest(self, height: int, width: int) -> Int[np.ndarray, "2"]:
        return np.full(2, _STEPS)

    def _to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: Geometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return boxes * float(_STEPS)

    def _from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: Geometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return grid / float(_STEPS)

    def _candidates(self, text: str) -> Iterator[Candidate]:
        text = text.rstrip()
        for item in _ITEM.finditer(text):
            start, end = item.span()
            if item["end"] is None:
                yield Candidate(start, end, "truncated" if end == len(text) else "malformed")
                continue
            parts = [part for part in _SEPARATOR.split(item["body"]) if part]
            if not parts or not all(map(_NUMBER.fullmatch, parts)):
                yield Candidate(start, end, "malformed")
            elif len(parts) != 4:
                yield Candidate(start, end, "wrong_arity")
            else:
                exact = _EXACT.fullmatch(text, start, end) is not None
                yield Candidate(start, end, None, [float(part) * _STEPS for part in parts], exact)
