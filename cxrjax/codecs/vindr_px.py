"""VinDr-CXR-VQA's boxes: pixels of the original image, within the answer's prose.

    The Lung Opacity is located at <loc_1365_1304_1772_1646>.    x_min y_min x_max y_max

Whole pixels; an x lies in [0, width], a y in [0, height], both edges included, as corners of pixels
rather than pixels are meant. Frame and grammar: VinDr-CXR-VQA (arXiv 2511.00504v2), section 2.1 and
figure 2. The model's input plays no part, so `geometry` changes nothing.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from cxrjax.codecs.base import Candidate, Codec
from cxrjax.codecs.frames import Frame, ImagePixels
from cxrjax.codecs.reading import WHOLE, four_numbers, unclosed

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
