"""Counts what was rejected while a data set was read or built, by reason; replaces nothing."""

import collections
import contextlib
import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import pydantic

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import read_packaged
from cxrjax.images.files import ImageError
from cxrjax.untrusted.foreign_files import decode_text
from cxrjax.untrusted.json_text import parse_json
from cxrjax.untrusted.names import file_name, path_inside

PixelBox = tuple[float, float, float, float]

# No image has as many pixels on a side.
_LARGEST = 1e9
# More than any source has, and as many as memory holds with ease.
_MOST_ENTRIES = 1_000_000
# Characters of a box in a message: a whole number may have thousands of digits.
_MAX_SHOWN = 200

_TOLD = read_packaged("cxrjax.records_io", "quality_reasons.toml")
# Why something was rejected, as quality.json explains it.
REASONS: dict[str, str] = _TOLD["reasons"]
# Left out by rule from sound input: no defect, and nothing that --strict stops at.
BY_RULE = frozenset(_TOLD["by_rule"]["reasons"])


class Unusable(Exception):  # noqa: N818 - a verdict on the input, no error of the program
    """Rejection of a part of the input.

    Attributes:
        reason: a key of `REASONS`.
        found: what was there, and what was expected.
    """

    def __init__(self, reason: str, found: str) -> None:
        super().__init__(reason, found)
        self.reason = reason
        self.found = found


def usable_json(content: bytes, reason: str = "invalid_record") -> Any:
    """Parses JSON; raises `Unusable`: `bad_encoding` where it is not UTF-8, else `reason`."""
    try:
        text = decode_text(content)
    except ForeignError as error:
        raise Unusable("bad_encoding", str(error)) from None
    try:
        return parse_json(text)
    except ForeignError as error:
        raise Unusable(reason, str(error)) from None


@contextlib.contextmanager
def usable_record() -> Iterator[None]:
    """Turns what pydantic refuses of a record that is made here into `Unusable`."""
    try:
        yield
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise Unusable("invalid_record", f"{place}: {first['msg']}") from None


def usable_name(name: Any) -> str:
    """An id as text, where it can be the name of a file; raises `Unusable`: `invalid_record`."""
    try:
        return file_name(str(name))
    except ForeignError as error:
        raise Unusable("invalid_record", f"an id that is no name: {error}") from None


def usable_path(path: Any) -> str:
    """The path, where it leads to somewhere in its folder; raises `Unusable`: `invalid_record`."""
    if not isinstance(path, str):
        raise Unusable("invalid_record", "the image's path is no text")
    try:
        path_inside(Path(), path)
    except ForeignError as error:
        raise Unusable("invalid_record", f"an image's path: {error}") from None
    return path


@dataclasses.dataclass(frozen=True, slots=True)
class SetAside:
    """One thing rejected: why, which (an image or question id), where it was read, what was
    found."""

    reason: str
    item: str
    where: str
    found: str


@dataclasses.dataclass
class QualityLog:
    """Everything rejected so far, and how much was looked at.

    Attributes:
        examined: kind of thing -> how many were looked at ("rows", "images", "questions").
        warnings: what was kept and looks odd -> how often.
        reasons: those that there are, and what they mean; a data set may add its own.
        balance: the rule by which questions with no were chosen beside those with yes, and split ->
            class -> how many there are of each.
    """

    entries: list[SetAside] = dataclasses.field(default_factory=list)
    examined: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    warnings: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    balance: dict[str, Any] = dataclasses.field(default_factory=dict)
    reasons: Mapping[str, str] = dataclasses.field(default_factory=lambda: REASONS)

    def set_aside(self, reason: str, item: str, where: str, found: str) -> None:
        """Notes one thing.

        Args:
            reason: a key of `reasons`.
            item: the image or question id.
            where: file and line.
            found: what was there, and what was expected.

        Raises:
            UserError: a million things were rejected before.
        """
        if reason not in self.reasons:
            raise KeyError(f"{reason!r} is not a reason that quality.json explains")
        if len(self.entries) >= _MOST_ENTRIES:
            raise UserError(
                f"{where}: more than {_MOST_ENTRIES:,} things cannot be used, this one: {reason}: "
                f"{found[:_MAX_SHOWN]}; is the source the right one?"
            )
        self.entries.append(SetAside(reason, item, where, found))

    @contextlib.contextmanager
    def rejecting(self, item: str, where: str, layout: str = "") -> Iterator[None]:
        """Rejects an item that turns out to be `Unusable` in this block.

        Args:
            layout: file that describes how a source is laid out; with it, content of another form
                and images that cannot be read are rejected, too.
        """
        try:
            yield
        except Unusable as fault:
            self.set_aside(fault.reason, item, where, fault.found)
        except (ImageError, KeyError, TypeError, ValueError, AttributeError) as fault:
            if not layout:
                raise
            reason = "unreadable_image" if isinstance(fault, ImageError) else "invalid_record"
            found = f"not in the layout of {layout}: {type(fault).__name__}: {fault}"
            self.set_aside(reason, item, where, " ".join(found.split())[:300])

    def extend(self, content: Mapping[str, Any]) -> None:
        """Adds what a quality.json of an earlier part of the same run rejected."""
        known = {(entry.reason, entry.item) for entry in self.entries}
        for entry in content.get("set_aside", []):
            if (entry["reason"], entry["item"]) not in known:
                self.entries.append(SetAside(**entry))

    def merge(self, content: Mapping[str, Any]) -> None:
        """Adds the quality.json of another part of the same source."""
        self.entries.extend(SetAside(**entry) for entry in content["set_aside"])
        self.examined.update(content["examined"])
        self.warnings.update(content["warnings"])

    def counts(self) -> dict[str, int]:
        """Reason -> how many, for every reason there is: a zero says it was looked for."""
        counted = collections.Counter(entry.reason for entry in self.entries)
        return {reason: counted[reason] for reason in sorted(self.reasons)}

    def to_json(self) -> dict[str, Any]:
        """The content of quality.json."""
        return {
            "examined": dict(sorted(self.examined.items())),
            "total": len(self.entries),
            "counts": self.counts(),
            "reasons": dict(sorted(self.reasons.items())),
            "warnings": dict(sorted(self.warnings.items())),
            **({"balance": self.balance} if self.balance else {}),
            "set_aside": [
                # `asdict` takes ten times as long, and there may be 100,000.
                {"reason": e.reason, "item": e.item, "where": e.where, "found": e.found}
                for e in self.entries
            ],
        }


def check_box(box: PixelBox, image_hw: tuple[int, int] | None, label: str = "") -> None:
    """Refuses a box that has no area or is not inside its image.

    Args:
        box: pixels, (x_min, y_min, x_max, y_max); an edge may lie on the image's border.
        image_hw: the image's (height, width); without it only order and sign are checked.
        label: the box's class, for the message.

    Raises:
        Unusable: `bad_box` or `box_outside_image`.
    """
    check_area(box, label)
    x_min, y_min, x_max, y_max = box
    name = f"{label} box {list(box)}".strip()
    if x_min < 0 or y_min < 0:
        raise Unusable("box_outside_image", f"{name} begins outside the image")
    if image_hw is not None and (x_max > image_hw[1] or y_max > image_hw[0]):
        size = f"{image_hw[0]}x{image_hw[1]} (height x width)"
        raise Unusable("box_outside_image", f"{name} ends outside the image of {size}")


def check_area(box: PixelBox, label: str = "") -> None:
    """Refuses a box that has no area, wherever it lies.

    Raises:
        Unusable: `bad_box`.
    """
    x_min, y_min, x_max, y_max = box
    name = f"{label} box {list(box)}"[:_MAX_SHOWN].strip()
    # A whole number may be too long for a float.
    if not all(-_LARGEST < value < _LARGEST for value in box):
        raise Unusable("bad_box", f"{name} is not finite, or larger than any image")
    if x_min >= x_max or y_min >= y_max:
        raise Unusable("bad_box", f"{name} has no area; expected x_min < x_max and y_min < y_max")


# What quality.json says of boxes that reached beyond their image.
CUT = "boxes cut at an edge of their image"
# Ours: pixels that a box may reach beyond its image by rounding, no sign of a wrong frame.
ROUNDING = 1.0

Key = TypeVar("Key", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class GivenBox(Generic[Key]):
    """A box as a source has it."""

    key: Key  # what tells it from others
    box: PixelBox  # pixels, (x_min, y_min, x_max, y_max)
    image_hw: tuple[int, int] | None  # the image's (height, width), None where it is not known
    label: str  # whose it is, for messages


@dataclasses.dataclass(frozen=True)
class FittedBoxes(Generic[Key]):
    """Every given box is in `boxes` or in `faults`."""

    boxes: dict[Key, PixelBox]  # those that lie on their images
    cut: set[Key]  # which of them were cut
    faults: dict[Key, Unusable]  # those left out, and why


def cut_box(box: PixelBox, image_hw: tuple[float, float] | None, label: str = "") -> PixelBox:
    """A box cut at its image's edges; one that fits as it is, whole numbers included.

    Args:
        box: pixels, (x_min, y_min, x_max, y_max).
        image_hw: the image's (height, width); without it only the left and upper edge are known.
        label: the box's class, for the message.

    Raises:
        Unusable: `bad_box`, it has no area; `box_outside_image`, it lies beside the image.
    """
    check_area(box, label)
    x_min, y_min, x_max, y_max = box
    height, width = image_hw or (float("inf"), float("inf"))
    left, top, right, bottom = max(x_min, 0), max(y_min, 0), min(x_max, width), min(y_max, height)
    if left >= right or top >= bottom:
        size = f" of {image_hw[0]:g}x{image_hw[1]:g} (height x width)" if image_hw else ""
        name = f"{label} box {list(box)}".strip()
        raise Unusable("box_outside_image", f"{name} lies beside the image{size}")
    return left, top, right, bottom


def fit_boxes(given: Iterable[GivenBox[Key]]) -> FittedBoxes[Key]:
    """Boxes that belong together, each on its image.

    A box of at most one pixel in the first corner is one of fractions among pixels, and left out.

    Raises:
        Unusable: `wrong_frame`: more than one and most of them are left out, or are cut by more
            than rounding explains.
    """
    boxes: dict[Key, PixelBox] = {}
    cut: set[Key] = set()
    faults: dict[Key, Unusable] = {}
    misfits: list[str] = []
    for one in given:
        try:
            fitted = cut_box(one.box, one.image_hw, one.label)
            if max(one.box) <= 1:
                name = f"{one.label} box {list(one.box)}".strip()
                raise Unusable("wrong_frame", f"{name} looks like fractions; expected pixels")
        except Unusable as fault:
            faults[one.key] = fault
            misfits.append(fault.found)
            continue
        boxes[one.key] = fitted
        beyond = max(abs(old - new) for old, new in zip(one.box, fitted, strict=True))
        if beyond:
            cut.add(one.key)
        if beyond > ROUNDING:
            found = f"{one.label} box {list(one.box)}".strip()
            misfits.append(f"{found} reaches {beyond:g} pixels beyond the image")
    total = len(boxes) + len(faults)
    if len(misfits) > 1 and 2 * len(misfits) > total:
        raise Unusable(
            "wrong_frame", f"{len(misfits)} of {total} boxes do not fit, the first: {misfits[0]}"
        )
    return FittedBoxes(boxes, cut, faults)
