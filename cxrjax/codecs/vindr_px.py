"""VinDr-CXR-VQA's boxes: pixels of the original image, within the answer's prose.

    The Lung Opacity is located at <loc_1365_1304_1772_1646>.    x_min y_min x_max y_max

Whole pixels; an x lies in [0, width], a y in [0, height], both edges included, as corners of pixels
rather than pixels are meant. Frame and grammar: VinDr-CXR-VQA (arXiv 2511.00504v2), section 2.1 and
figure 2. The model's input plays no part, so `geometry` changes nothing.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from cxrjax.codecs.base import Candidate, Codec, Geometry

_ATTEMPT = re.compile(r"<\s{0,3}loc([-+0-9._,;:\s]*)(>?)|<\s{0,3}(?:lo?)?\Z", re.IGNORECASE)
_SEPARATOR = re.compile(r"[_,;:\s]+")
# Longer ones are no pixels, and parsing them would take more than linear time.
_NUMBER = re.compile(r"[-+]?[0-9]{1,9}(?:\.[0-9]{0,9})?")
# The sign is for `out_of_range`: -3 is a number that is off the image, not a broken one.
_WHOLE = r"(?:0|-?[1-9][0-9]{0,8})"
_EXACT = re.compile(
    rf"<loc_(?P<x_min>{_WHOLE})_(?P<y_min>{_WHOLE})_(?P<x_max>{_WHOLE})_(?P<y_max>{_WHOLE})>"
)


class VinDrPixels(Codec):
    """The `vindr_px` codec. The grid is the corners of the original image's pixels."""

    name: ClassVar[str] = "vindr_px"
    separator: ClassVar[str] = " "
    number_pattern: ClassVar[re.Pattern[str]] = _EXACT
    max_digits: ClassVar[int] = 5

    def _write(self, grid: list[int]) -> str:
        return "<loc_" + "_".join(str(value) for value in grid) + ">"

    def _largest(self, height: int, width: int) -> Int[np.ndarray, "2"]:
        return np.array([width, height])

    def _to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: Geometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return boxes * np.array([width, height, width, height], np.float64)

    def _from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: Geometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return grid / np.array([width, height, width, height], np.float64)

    def _candidates(self, text: str) -> Iterator[Candidate]:
        text = text.rstrip()
        for attempt in _ATTEMPT.finditer(text):
            start, end = attempt.span()
            body, closed = attempt.groups()
            if not closed:
                yield Candidate(start, end, "truncated" if end == len(text) else "malformed")
                continue
            parts = [part for part in _SEPARATOR.split(body) if part]
            if not parts or not all(map(_NUMBER.fullmatch, parts)):
                yield Candidate(start, end, "malformed")
            elif len(parts) != 4:
                yield Candidate(start, end, "wrong_arity")
            else:
                exact = _EXACT.fullmatch(text, start, end) is not None
                yield Candidate(start, end, None, tuple(map(float, parts)), exact)
