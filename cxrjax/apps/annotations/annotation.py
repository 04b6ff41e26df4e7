"""The annotation: what every importer yields, and all that checks know of a source."""

import collections
import dataclasses
import functools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cxrjax.apps.annotations.coordinates import Form, Units
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import read_packaged
from cxrjax.records_io.quality import PixelBox, QualityLog, Unusable
from cxrjax.untrusted.names import plain_name, shown, shown_value

WORDS = read_packaged("cxrjax.apps.annotations", "words.toml")
# Of the words for a reader each may have another behind it, as in "radiologist_name".
WORDS["columns"]["reader"] = [
    word + end for end in WORDS["reader_ends"]["ends"] for word in WORDS["columns"]["reader"]
]
_LONGEST_LABEL = 200
_PARTS = re.compile(r"^\d{1,3}[_. -]+|[/(),;]| - ")  # such as "0_Normal" and "Normal (no TB)"
DENIED = "entries whose class a field beside them denies"
_SIDE = 1_000_000  # pixels that no image has
_Names = TypeVar("_Names", tuple[str, ...], dict[str, str])
ANY = "*"  # stands for a class that is not known
# Entries rejected for these reasons show something on their image all the same.
_STILL_THERE = (
    *("bad_box", "box_outside_image", "wrong_frame", "missing_box", "unknown_class"),
    *("malformed_row", "bad_encoding", "invalid_record", "not_a_mask", "mask_size", "withdrawn"),
)
_NORMAL, _NEGATED, _MODEL, _PEOPLE, _DENIED, _WITHDRAWN = (
    re.compile(WORDS["patterns"][key])
    for key in ("normal", "negated", "model", "people", "denied", "withdrawn")
)


class Shape(NamedTuple):
    """A region of an image as four numbers.

    Attributes:
        numbers: four, in `form` and `units`.
        form: None: detected from all boxes of the source.
        units: None: detected too.
        degrees: it is turned by, clockwise.
        pivot: of the turn: "centre" or "corner" (the upper left one).
        ellipse: an ellipse in the box, which turns otherwise.
        exact: the format leaves no doubt of form and units.
    """

    numbers: tuple[float, ...]
    form: Form | None = "xyxy"
    units: Units | None = "pixels"
    degrees: float = 0.0
    pivot: str = "centre"
    ellipse: bool = False
    exact: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Annotation:
    """One entry of a source: a region, a class without a region, or an image that was inspected.

    Attributes:
        image: its name in the source; in a task of several images, that of this one.
        file: of annotations, as messages name it.
        place: in the file, such as ":3" or ": images[4]".
        shape: None where nothing is located.
        label: class as in the source; "" where the entry is about the image alone.
        reader: who marked it; "" where the source does not state it.
        split: "train", "validation" or "test" of the source, or "".
        confidence: beside it in the source.
        prediction: a model made it.
        image_hw: (height, width) that the shape refers to; None: those of the image's file.
        patient: "" where it is not known.
    """

    image: str
    file: str
    place: str = ""
    shape: Shape | None = None
    label: str = ""
    reader: str = ""
    split: str = ""
    confidence: float | None = None
    prediction: bool = False
    image_hw: tuple[int, int] | None = None
    patient: str = ""

    @property
    def where(self) -> str:
        """File and line."""
        return self.file + self.place

    @property
    def box(self) -> PixelBox:
        """The shape's four numbers, which are corners in pixels once the source was read."""
        assert self.shape is not None
        x_min, y_min, x_max, y_max = self.shape.numbers
        return x_min, y_min, x_max, y_max


class Rejected(NamedTuple):
    """An entry that cannot be used.

    Attributes:
        why: reason and what was found.
        image, label: "" where none is known.
    """

    file: str
    place: str
    why: Unusable
    image: str = ""
    label: str = ""


Entry = Annotation | Rejected
Entries = Iterator[Entry]


def attempt(about: Annotation, place: str, read: Callable[..., dict[str, Any]], *of: Any) -> Entry:
    """The annotation with the fields that a function reads, or why it has none."""
    try:
        return dataclasses.replace(about, place=place, **read(*of))
    except (Unusable, ForeignError) as error:
        return Rejected(about.file, place, as_unusable(error), about.image, about.label)


def guarded(entries: Entries, file: str, place: str) -> Entries:
    """Yields entries, and a rejection in place of those behind an error."""
    try:
        yield from entries
    except (Unusable, ForeignError) as error:
        yield Rejected(file, place, as_unusable(error))


def as_unusable(error: Unusable | ForeignError) -> Unusable:
    """The rejection that an error means."""
    return error if isinstance(error, Unusable) else Unusable("invalid_record", str(error))


@dataclasses.dataclass
class Annotations:
    """Everything that was read, and the account of it: entries = kept + rejected, file by file.

    Attributes:
        quality: rejected entries.
        kept: entries that are in use.
        told: how the source was read, for people.
        doubts: what may have been misread; nothing is written until somebody has inspected it.
        examined: file -> entries in it.
        rejected: file -> reason -> entries.
        unlocated: image -> classes that it shows and that nothing locates, which are not denied;
            `ANY` where a box was rejected and its class is not known.
    """

    quality: QualityLog
    kept: list[Annotation] = dataclasses.field(default_factory=list)
    told: list[str] = dataclasses.field(default_factory=list)
    doubts: list[str] = dataclasses.field(default_factory=list)
    examined: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    rejected: dict[str, collections.Counter[str]] = dataclasses.field(default_factory=dict)
    unlocated: dict[str, set[str]] = dataclasses.field(default_factory=dict)

    def add(self, entry: Annotation | Rejected) -> None:
        """Counts an entry and keeps it if its names can be used."""
        self.examined[entry.file] += 1
        self.quality.examined["entries"] += 1
        if isinstance(entry, Rejected):
            self.reject(entry, entry.why)
            return
        try:
            usable_image(entry.image)
            label = label_of(entry.label) if entry.label or entry.shape else ""
        except Unusable as why:
            self.reject(entry, why)
            return
        # A copy takes as long as all the rest, and there may be a hundred thousand.
        same = label == entry.label
        self.kept.append(entry if same else dataclasses.replace(entry, label=label))

    def reject(self, entry: Entry, why: Unusable) -> None:
        """Rejects an entry that was counted; whoever does it leaves it out of `kept`."""
        self.rejected.setdefault(entry.file, collections.Counter())[why.reason] += 1
        item = entry.image.encode("ascii", "backslashreplace").decode()
        self.quality.set_aside(why.reason, item or "?", entry.file + entry.place, why.found)
        known = entry.label or why.reason != "missing_box"  # points and lines are no lesions
        if entry.image and known and why.reason in _STILL_THERE:
            label = " ".join(entry.label.split())[:_LONGEST_LABEL] or ANY
            self.unlocated.setdefault(entry.image, set()).add(label)

    @property
    def boxes(self) -> list[Annotation]:
        """Entries with a shape."""
        return [entry for entry in self.kept if entry.shape is not None]

    @property
    def images_by_class(self) -> dict[str, set[str]]:
        """Class -> images with boxes of it."""
        found: dict[str, set[str]] = collections.defaultdict(set)
        for one in self.boxes:
            found[one.label].add(one.image)
        return found

    def account(self) -> dict[str, dict[str, Any]]:
        """File -> entries, kept ones, and rejected ones by reason."""
        kept = collections.Counter(entry.file for entry in self.kept)
        return {
            file: {
                "entries": count,
                "kept": kept[file],
                "rejected": dict(sorted(self.rejected.get(file, {}).items())),
            }
            for file, count in sorted(self.examined.items())
        }


@dataclasses.dataclass(frozen=True)
class Stated:
    """Properties of a source that the user states because the files do not.

    Attributes:
        box_form, units: as in `coordinates`; None: detected.
        columns: role -> column's name, of a table.
        label: the class of all boxes, if the source names none.
        classes: names by number.
    """

    box_form: Form | None = None
    units: Units | None = None
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    label: str = ""
    classes: tuple[str, ...] = ()


def agreed(lists: Mapping[Path, _Names]) -> _Names:
    """The list of classes that files agree on.

    Raises:
        UserError: two disagree.
    """
    first, names = next(iter(lists.items()))
    for path, others in lists.items():
        if others != names:
            raise UserError(
                f"{first} and {path}: lists of classes that disagree; remove the wrong one, or "
                "pass --classes=NAME,NAME in the order of their numbers"
            )
    return names


def plain(name: str) -> str:
    """A name without case, spaces and signs, to match spellings."""
    return re.sub(r"[^\w]|_", "", name.lower())


@functools.lru_cache(65_536)
def is_normal(label: str) -> bool:
    """Returns whether a class's name means that nothing is marked."""
    label = unicodedata.normalize("NFC", label)
    if _NORMAL.fullmatch(plain(label)) or _NEGATED.search(label.lower().strip()):
        return True
    parts = [part for part in map(str.strip, _PARTS.split(label)) if part]
    return len(parts) > 0 and parts != [label] and all(map(is_normal, parts))


def by_model(source: str, flag: str = "") -> bool:
    """Returns whether a word for who made a box, or a flag of predictions, means a model."""
    return bool(_MODEL.fullmatch(plain(source))) or is_on(flag)


def by_whom(word: str) -> bool:
    """Returns whether a word says who made a box: a model or people."""
    return by_model(word) or bool(_PEOPLE.fullmatch(plain(word)))


def is_on(flag: Any) -> bool:
    return WORDS["flags"]["values"].get(str(flag).lower().removesuffix(".0")) is True


def is_denied(*objects: Any) -> bool:
    """Returns whether a field such as "present": 0 denies the class beside it.

    Raises:
        Unusable: one such as "deleted": 1 or "valid": 0 withdraws it.
    """
    fields = [pair for one in objects if isinstance(one, dict) for pair in one.items()]
    inner = [(key, of) for key, of in fields if isinstance(of, dict)]
    fields += [(f"{key}{name}", value) for key, of in inner for name, value in of.items()]
    stated = [_verdict(key, str(value)[:99].lower()) for key, value in fields if may_deny(key)]
    if found := next((one for one in stated if isinstance(one, str)), ""):
        raise Unusable("withdrawn", f"the source says {shown(found)}")
    return any(stated)


@functools.lru_cache(4_096)
def _verdict(key: str, value: str) -> bool | str:
    """Returns whether a field denies a class; the field where it withdraws one."""
    field = f"{plain(key)}={value}"
    return field if _WITHDRAWN.fullmatch(field) else bool(_DENIED.fullmatch(field))


@functools.lru_cache(4_096)
def may_deny(key: str) -> bool:
    """Returns whether a field of this name may deny or withdraw the class beside it."""
    return any(_verdict(key, value) for value in ("absent", "0", "1", "rejected"))


def word_for_valid(values: Iterable[Any]) -> str:
    """Returns what "is_valid" means: usable where most are, else (fastai) of the validation set."""
    on = list(map(is_on, values))
    return "valid" if 2 * sum(on) > len(on) or len(on) < 2 else "is_validation"


def usable_image(name: str) -> str:
    """The name of an image; Unusable if no file can have it, or it has control characters."""
    try:
        return plain_name(name, 2_000)
    except ForeignError as error:
        raise Unusable("invalid_record", f"an image's name: {error}") from None


def label_of(value: Any) -> str:
    """A class's name; Unusable if it is no text, empty, or too long."""
    text = " ".join(str(value).split()) if isinstance(value, str | int) else ""
    text = unicodedata.normalize("NFC", text)
    if not text or len(text) > _LONGEST_LABEL or not text.isprintable():
        found = f"a box whose class is {shown_value(value)}; expected a name"
        raise Unusable("unknown_class", found)
    if "<" in text or ">" in text:
        raise Unusable("unknown_class", f"the class {shown(text)} contains < or >; rename it")
    return text


def class_of(attributes: Any) -> str:
    """A class out of attributes by name, as VIA and others have them; "" if there are none.

    Raises:
        Unusable: none of several attributes is called a class.
    """
    if not isinstance(attributes, dict):
        return attributes if isinstance(attributes, str) else ""
    chosen = {
        key: [name for name, on in value.items() if on is True or on == "true"]
        if isinstance(value, dict)
        else [value]
        for key, value in attributes.items()
        if value not in ("", None)
    }
    named = {
        key: names for key, names in chosen.items() if plain(key) in WORDS["columns"]["label"]
    } or chosen
    if len(named) > 1:
        told = f"attributes {shown_value(list(named))}; expected one that is called class or label"
        raise Unusable("unknown_class", told)
    names = next(iter(named.values()), [])
    if len(names) > 1:
        raise Unusable("unknown_class", f"{len(names)} classes of one box: {shown_value(names)}")
    return str(names[0]) if names and isinstance(names[0], str | int) else ""


def described(attributes: dict[str, Any], table: Any) -> dict[str, Any]:
    """VIA's attributes, by its table with names and the descriptions of options by number."""
    found = {}
    for key, value in attributes.items():
        known = table.get(key) if isinstance(table, dict) else None
        options = known.get("options") if isinstance(known, dict) else None
        texts = options if isinstance(options, dict) else {}
        names = {str(n): text for n, text in texts.items() if str(n).isdigit() and text}
        if isinstance(value, dict):
            value = {str(names.get(one, one)): on for one, on in value.items()}
        elif names:
            value = ", ".join(str(names.get(one, one)) for one in str(value).split(","))
        found[str(known.get("aname", key)) if isinstance(known, dict) else key] = value
    return found


def numbers_of(values: Sequence[Any], count: int | None = None) -> tuple[float, ...]:
    """Finite numbers, else Unusable (`bad_box`)."""
    try:
        found = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        found = (math.nan,)
    wrong = count is not None and len(found) != count
    if wrong or not found or not all(map(math.isfinite, found)):
        told = shown_value(list(values) if isinstance(values, list | tuple) else values)
        raise Unusable("bad_box", f"{told}; expected {count or 'a row of'} numbers")
    return found


def number_or_none(value: Any) -> float | None:
    """A finite number; None for anything else."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def confidence_of(value: Any) -> float | None:
    """A confidence, also of a text in percent or with a decimal comma; None of anything else."""
    if not isinstance(value, str):
        return number_or_none(value)
    found = number_or_none(value.replace(",", ".").rstrip("% "))
    return found / 100 if found is not None and "%" in value else found


def counted(count: int, noun: str) -> str:
    """A number and what it counts, in the plural unless it is 1."""
    if count != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else noun + "es" * noun.endswith(("s", "x"))
        noun += "s" * (not noun.endswith("s"))
    return f"{count:,} {noun}"


def bounds(points: Iterable[Sequence[float]]) -> PixelBox:
    """The box around points (x, y); Unusable of less than two."""
    xs, ys = zip(*points, strict=True) if (points := list(points)) else ((), ())
    if len(xs) < 2:
        raise Unusable("bad_box", "an outline of less than two points")
    return min(xs), min(ys), max(xs), max(ys)


def turned(box: Sequence[float], shape: Shape) -> PixelBox:
    """The box around a shape that fills a box in pixels and is turned."""
    x_min, y_min, x_max, y_max = box
    if shape.degrees % 360 == 0:
        return x_min, y_min, x_max, y_max
    cos, sin = math.cos(math.radians(shape.degrees)), math.sin(math.radians(shape.degrees))
    across, down = (x_max - x_min) / 2, (y_max - y_min) / 2
    x, y = (x_min + x_max) / 2, (y_min + y_max) / 2
    if shape.pivot == "corner":
        x, y = x_min + across * cos - down * sin, y_min + across * sin + down * cos
    if shape.ellipse:
        wide = math.hypot(across * cos, down * sin)
        high = math.hypot(across * sin, down * cos)
    else:
        wide = across * abs(cos) + down * abs(sin)
        high = across * abs(sin) + down * abs(cos)
    return round(x - wide, 2), round(y - high, 2), round(x + wide, 2), round(y + high, 2)


def size_of_entry(height: Any, width: Any) -> tuple[int, int] | None:
    """(height, width) as an annotation has them; None where it has none, or none that can be."""
    high, wide = number_or_none(height), number_or_none(width)
    if high is None or wide is None or not (1 <= high < _SIDE and 1 <= wide < _SIDE):
        return None
    return int(high), int(wide)


def fields(value: Any, what: str) -> dict[str, Any]:
    """An object of JSON, else a ForeignError."""
    if not isinstance(value, dict):
        raise ForeignError(f"{what} is {shown_value(value)}; expected an object")
    return value


def entries(value: Any, what: str) -> list[Any]:
    """A list of JSON, else a ForeignError."""
    if not isinstance(value, list):
        raise ForeignError(f"{what} is {shown_value(value)}; expected a list")
    return value
