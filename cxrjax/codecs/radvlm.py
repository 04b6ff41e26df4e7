"""RadVLM's boxes: a list of four fractions of the image, with two decimals, within the prose.

    The opacity is located at [0.12, 0.30, 0.55, 0.71].    x_min y_min x_max y_max

From 0.00 to 1.00, of the whole image: RadVLM's own code (its data preparation) writes them so. The
model's input plays no part, so `geometry` changes nothing. Read leniently, there may be more or
fewer decimals, and other separators.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from cxrjax.codecs.base import Candidate, Codec
from cxrjax.codecs.frames import Frame, ImageSteps
from cxrjax.codecs.reading import four_numbers, unclosed

STEPS = 100

# The sign is for `out_of_range`, as in reading.py.
_EXACT_NUMBER = r"-?(?:0|[1-9][0-9]{0,8})\.[0-9]{2}"
_EXACT = re.compile(r"\[" + ", ".join([_EXACT_NUMBER] * 4) + r"\]")
# What begins like a number: letters in brackets are something else.
_ITEM = re.compile(
    r"\[\s{0,9}(?:(?=[-+.]?[0-9])|(?=[-+.]?\Z))(?P<body>[-+0-9.,;\s]{0,200})(?P<end>\])?"
)


class RadVlm(Codec):
    """The `radvlm` codec. The grid is hundredths of the image, its far edges included."""

    name: ClassVar[str] = "radvlm"
    frame: ClassVar[Frame] = ImageSteps(STEPS)
    separator: ClassVar[str] = " "

    def _write(self, grid: list[int]) -> str:
        return "[" + ", ".join(f"{value // STEPS}.{value % STEPS:02d}" for value in grid) + "]"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        for item in _ITEM.finditer(text):
            start, end = item.span()
            if item["end"] is None:
                yield unclosed(text, start, end)
                continue
            numbers = four_numbers(item["body"])
            if isinstance(numbers, str):
                yield Candidate(start, end, numbers)
            else:
                exact = _EXACT.fullmatch(text, start, end) is not None
                yield Candidate(start, end, None, [number * STEPS for number in numbers], exact)
