"""Common output of all readers of annotations: images, and boxes with labels in pixels."""

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cxrjax.errors import ForeignError
from cxrjax.records_io.quality import PixelBox, QualityLog, Unusable
from cxrjax.untrusted.names import shown, shown_value

_LONGEST_LABEL = 200
# What people write where nothing is marked, as `plain` has it.
NOTHING = frozenset(
    (
        *("", "normal", "none", "nan", "null", "nofinding", "nofindings", "background", "negative"),
        *("keinbefund", "ohnebefund", "unauffällig", "normalbefund"),
    )
)


class MarkedBox(NamedTuple):
    """One box.

    Attributes:
        image: name, as the annotations have it.
        label: as they have it.
        box: pixels of the image that they speak of, (x_min, y_min, x_max, y_max).
        where: file and line.
    """

    image: str
    label: str
    box: PixelBox
    where: str


class MarkedImage(NamedTuple):
    """One image that somebody has looked at, with boxes or without.

    Attributes:
        image_hw: (height, width) as the annotations say; None: that of the file.
        patient: "" where it is not known.
    """

    name: str
    where: str
    image_hw: tuple[int, int] | None = None
    patient: str = ""


@dataclasses.dataclass
class Annotations:
    """All that was read.

    Attributes:
        images: name -> image; boxes are of these alone.
        told: how it was read, for people: columns, the form of boxes, and by what evidence.
        doubts: what may have been read wrongly; nothing is written before somebody has looked.
        quality: what was set aside.
    """

    quality: QualityLog
    images: dict[str, MarkedImage] = dataclasses.field(default_factory=dict)
    boxes: list[MarkedBox] = dataclasses.field(default_factory=list)
    told: list[str] = dataclasses.field(default_factory=list)
    doubts: list[str] = dataclasses.field(default_factory=list)

    def add_image(self, image: MarkedImage) -> None:
        """An image; what is known of one that was added before is kept."""
        known = self.images.get(image.name)
        if known is None:
            self.images[image.name] = image
        else:
            self.images[image.name] = known._replace(
                image_hw=known.image_hw or image.image_hw, patient=known.patient or image.patient
            )

    def set_aside(self, why: Unusable, image: str, where: str) -> None:
        """Notes a box or an image that cannot be used."""
        self.quality.set_aside(why.reason, image, where, why.found)


def plain(name: str) -> str:
    """A name without case, spaces and signs, to tell spellings of one from another."""
    return re.sub(r"[^\w]|_", "", name.lower())


def label_of(value: Any) -> str:
    """A class's name.

    Raises:
        Unusable: it is no text, empty, or too long.
    """
    text = " ".join(str(value).split()) if isinstance(value, str | int) else ""
    if not text or len(text) > _LONGEST_LABEL or not text.isprintable():
        found = f"a box whose class is {shown_value(value)}; expected a name"
        raise Unusable("unknown_class", found)
    if "<" in text or ">" in text:
        raise Unusable("unknown_class", f"the class {shown(text)} contains < or >; rename it")
    return text


def numbers_of(values: Sequence[Any], count: int | None = None) -> tuple[float, ...]:
    """Finite numbers.

    Raises:
        Unusable: `bad_box`.
    """
    try:
        found = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        found = (math.nan,)
    wrong = count is not None and len(found) != count
    if wrong or not found or not all(map(math.isfinite, found)):
        told = shown_value(list(values))
        raise Unusable("bad_box", f"{told}; expected {count or 'a row of'} numbers")
    return found


def bounds(points: Iterable[Sequence[float]]) -> PixelBox:
    """The box around points (x, y).

    Raises:
        Unusable: there are none.
    """
    xs, ys = zip(*points, strict=True) if (points := list(points)) else ((), ())
    if len(xs) < 2:
        raise Unusable("bad_box", "an outline of less than two points")
    return min(xs), min(ys), max(xs), max(ys)


def turned_box(edges: Sequence[float], degrees: float) -> PixelBox:
    """The box around a box that is turned about its middle."""
    x_min, y_min, x_max, y_max = edges
    if degrees % 360 == 0:
        return x_min, y_min, x_max, y_max
    cos, sin = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
    across, down = (x_max - x_min) / 2, (y_max - y_min) / 2
    return _around(
        ((x_min + x_max) / 2, (y_min + y_max) / 2),
        across * cos + down * sin,
        across * sin + down * cos,
    )


def turned_ellipse(ellipse: Sequence[float], degrees: float) -> PixelBox:
    """The box around an ellipse (middle, half axes across and down) turned about its middle."""
    x, y, across, down = ellipse
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return _around(
        (x, y), math.hypot(across * cos, down * sin), math.hypot(across * sin, down * cos)
    )


def _around(middle: tuple[float, float], across: float, down: float) -> PixelBox:
    x, y = middle
    return (
        round(x - across, 2),
        round(y - down, 2),
        round(x + across, 2),
        round(y + down, 2),
    )


def size_of_entry(height: Any, width: Any) -> tuple[int, int] | None:
    """(height, width) as an annotation has them; None where it has none, or none that can be."""
    try:
        size = int(float(height)), int(float(width))
    except (TypeError, ValueError, OverflowError):
        return None
    return size if min(size) > 0 and max(size) < 1_000_000 else None


def fields(value: Any, what: str) -> dict[str, Any]:
    """An object of JSON.

    Raises:
        ForeignError: it is something else.
    """
    if not isinstance(value, dict):
        raise ForeignError(f"{what} is {shown_value(value)}; expected an object")
    return value


def entries(value: Any, what: str) -> list[Any]:
    """A list of JSON.

    Raises:
        ForeignError: it is something else.
    """
    if not isinstance(value, list):
        raise ForeignError(f"{what} is {shown_value(value)}; expected a list")
    return value


@dataclasses.dataclass(frozen=True)
class Stated:
    """Properties of a source that the user states because the files do not.

    Attributes:
        box_form, units: as in `coordinates`; None: detected.
        columns: role -> column's name, of a table.
        label: the class of all boxes, if the source names none.
        classes: names by number.
    """

    box_form: Any = None
    units: Any = None
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    label: str = ""
    classes: tuple[str, ...] = ()
