"""MAIRA-2's boxes: four tokens between tags, 100 bins of the model's input.

    <obj>Small left effusion. <box><x55><y45><x70><y56></box></obj>    x_min y_min x_max y_max

Bin b holds the fractions from b/100 up to (b+1)/100 and is read as its middle, as the model's own
public processor does. That model sees a square cut from the middle of the image, so that `geometry`
matters here (`images.geometry.center_crop_geometry` is its own). Boxes of one phrase follow each
other without a gap; the phrase is read as each one's label. It is prose for all that: it stays
where a box is replaced, and writing boxes adds none. Read leniently, tags and neatness may be
missing, as long as four tokens x, y, x, y stand together.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from cxrjax.codecs.base import Candidate, Codec, FailureCategory
from cxrjax.codecs.frames import BoxGeometry, Frame, InputBins
from cxrjax.images.geometry import center_crop_geometry

# Bounded repeats throughout: the time is linear in the text, whatever the text.
_OPEN, _CLOSE = r"<\s{0,3}box\s{0,3}>", r"<\s{0,3}/\s{0,3}box\s{0,3}>"
_TOKEN = r"<\s{0,3}[xy]\s{0,3}[0-9]{1,9}\s{0,3}>"
_ITEM = re.compile(
    rf"(?P<phrase><obj>(?P<label>[^<>]{{0,300}})(?=<))"
    rf"|(?:{_OPEN}\s{{0,3}})?(?P<tokens>{_TOKEN}(?:[ \t,]{{0,3}}{_TOKEN})*)"
    rf"(?P<cut>[ \t,]{{0,3}}<\s{{0,3}}(?:[xy][0-9\s]{{0,9}})?\Z)?(?P<close>\s{{0,3}}{_CLOSE})?"
    r"|(?P<end>(?:<\s{0,3}box\s{0,3}>\s{0,3})?<\s{0,3}(?:b(?:ox?)?|[xy]\s{0,3}[0-9]{0,9})?\Z)"
    rf"|(?P<broken>{_OPEN}[^<>]{{0,100}}(?P<over>{_CLOSE})?)"
    r"|(?P<done></obj>)",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"([xy])\s{0,3}([0-9]{1,9})", re.IGNORECASE)
_WHOLE = r"(?:0|[1-9][0-9]{0,8})"
_EXACT = re.compile(rf"<box><x{_WHOLE}><y{_WHOLE}><x{_WHOLE}><y{_WHOLE}></box>")


class Maira2(Codec):
    """The `maira2` codec. The grid is the bins; whole numbers are their middles."""

    name: ClassVar[str] = "maira2"
    frame: ClassVar[Frame] = InputBins(100)
    separator: ClassVar[str] = ""

    def makers_geometry(self, height: int, width: int) -> BoxGeometry:
        return center_crop_geometry(height, width)

    def _write(self, grid: list[int]) -> str:
        x_min, y_min, x_max, y_max = grid
        return f"<box><x{x_min}><y{y_min}><x{x_max}><y{y_max}></box>"

    def _candidates(self, text: str) -> Iterator[Candidate]:
        label = None
        for item in _ITEM.finditer(text):
            start, end = item.span()
            if item["phrase"] is not None:
                label = item["label"].strip() or None
            elif item["done"] is not None:
                label = None
            elif item["tokens"] is None:
                cut = end == len(text) and item["over"] is None
                yield Candidate(start, end, "truncated" if cut else "malformed")
            else:
                yield _read(text, item, label)


def _read(text: str, item: re.Match[str], label: str | None) -> Candidate:
    start, end = item.span()
    found = _NUMBERED.findall(item["tokens"])
    failure: FailureCategory | None = None
    if item["cut"] is not None or (len(found) < 4 and item["close"] is None and end == len(text)):
        failure = "truncated"
    elif len(found) != 4:
        failure = "wrong_arity"
    elif [axis.lower() for axis, _ in found] != ["x", "y", "x", "y"]:
        failure = "malformed"
    if failure is not None:
        return Candidate(start, end, failure)
    exact = _EXACT.fullmatch(text, start, end) is not None
    return Candidate(start, end, None, [float(number) for _, number in found], exact, label)
