"""YOLO: a text file an image, a line a box: class number, centre and size as fractions.

Lines with more numbers are outlines, whose box is around them; a fifth number is a model's
confidence. Names of classes are in data.yaml, classes.txt or obj.names of the folder or of one
above it, or stated by --classes.
"""

import collections
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.folder import Folder
from cxrjax.apps.annotations.yaml_lists import lists_of
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.foreign_files import MIB, read_lines, read_text
from cxrjax.untrusted.names import shown

_NAME_FILES = ("classes.txt", "obj.names", "labels.txt", "class_names.txt", "_darknet.labels")
_NOTES = "notes.json"  # Label Studio's, beside classes.txt
_YAML = (".yaml", ".yml")
_NO_LABELS = {*_NAME_FILES, "train.txt", "val.txt", "valid.txt", "test.txt", "notes.txt"}
_ALIKE = 3  # lines
_CLASS = re.compile(r"\d{1,6}")
_NUMBER = re.compile(r"(?i)[-+]?(?:\d[\d.]*|\.\d+|nan|inf)(?:e[-+]?\d+)?")
_HEAD = re.compile(r"(?i)(?:imagesource|gsd):")  # DOTA's first lines
# Numbers of a line that names its class -> first number of the shape, how many (KITTI, DOTA).
_NAMED = {4: (0, 4), 8: (0, 8), 9: (0, 8), 14: (3, 4), 15: (3, 4)}


def label_files(folder: Folder) -> list[Path]:
    """Files of a folder that hold a line a box of an image of their name."""
    named = {path.stem.lower() for path in folder.images}
    return [
        path
        for path in folder.files
        if path.suffix.lower() == ".txt"
        and path.name.lower() not in _NO_LABELS
        and (path.stem.lower() in named or path.parent.name.lower() == "labels")
        and not path.name.lower().startswith("readme")
    ]


def read(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of one file; an empty one means that nothing is marked."""
    lines = [(number, line.decode("utf-8", "replace").split()) for number, line in read_lines(path)]
    lines = [(number, words) for number, words in lines if not _HEAD.match(" ".join(words[:1]))]
    named = bool(lines) and all(_name_of(words) for _, words in lines)
    names, names_from = said.classes, "--classes"
    if not names and lines and not named:
        key = ("names", path.parent)
        if key not in folder.cache:
            folder.cache[key] = _names_for(folder, path.parent)
        names, names_from = folder.cache[key]
    told = f"YOLO: classes of {names_from}: {', '.join(map(shown, names[:20]))}"
    if names and told not in found.told:
        found.told.append(told)
    where = folder.where(path)
    name = path.with_suffix("").as_posix()
    if folder.root in path.parents:
        name = path.relative_to(folder.root).with_suffix("").as_posix()
    # labels/train/a.txt belongs to images/train/a.png.
    name = re.sub(r"(^|/)labels(/|$)", r"\1images\2", name)
    image = an.Annotation(name, where)
    yield image
    if not named:
        _doubt_poses(folder, [len(words) - 1 for _, words in lines], found)
    for number, words in lines:
        if named:
            yield an.attempt(image, f":{number}", _named_line, words)
        else:
            yield an.attempt(image, f":{number}", _line, words, names, names_from)


def _doubt_poses(folder: Folder, counts: Sequence[int], found: an.Annotations) -> None:
    """Doubts outlines that all have as many points: boxes with points of a pose look the same."""
    of_lines = folder.cache.setdefault("numbers of lines", collections.Counter())
    of_lines.update(counts)
    told = "YOLO: every line has as many numbers: outlines, or boxes with the points of a pose?"
    numbers, lines = next(iter(of_lines.items()), (0, 0))
    doubtful = len(of_lines) == 1 and numbers > 8 and lines >= _ALIKE
    found.doubts[:] = [one for one in found.doubts if one != told] + [told] * doubtful


def _name_of(words: Sequence[str]) -> str:
    """The class that stands before a line's numbers, or (DOTA) behind eight; "" if none does."""
    is_name = [not _NUMBER.fullmatch(word) for word in words]
    start = 8 if not any(is_name[:8]) else 0
    end = next((n for n in range(start, len(words)) if not is_name[n]), len(words))
    return " ".join(words[start:end])


def _named_line(words: Sequence[str]) -> dict[str, Any]:
    """Class and shape of a line that names its class: KITTI's, DOTA's, or a name and numbers."""
    label = _name_of(words)
    numbers = [word for word in words if _NUMBER.fullmatch(word)]
    start, count = _NAMED.get(len(numbers), (0, 0))
    if not count or len(numbers) + len(label.split()) != len(words):
        told = f"{shown(' '.join(words))}: {len(numbers)} numbers beside a class; expected 4"
        raise Unusable("malformed_row", told)
    four = an.numbers_of(numbers[start : start + count])
    confidence = an.numbers_of(numbers[-1:])[0] if len(numbers) == 15 else None
    shape = an.Shape(four, None, None, exact=False)
    if count == 8:
        shape = an.Shape(an.bounds(zip(four[::2], four[1::2], strict=True)), exact=False)
    elif len(numbers) > 4:
        shape = an.Shape(four, "xyxy", "pixels", exact=False)
    return {"label": label, "shape": shape, "confidence": confidence}


def _line(words: Sequence[str], names: Sequence[str], names_from: str) -> dict[str, Any]:
    """Class, shape and confidence of a line."""
    first = words[0].removesuffix(".0") if words else ""
    if not _CLASS.fullmatch(first):
        raise Unusable("malformed_row", f"{shown(first)} is not a class number")
    count = len(words) - 1
    if count < 4 or (count > 5 and count % 2):
        told = f"{count} numbers after the class; expected 4, or an outline"
        raise Unusable("malformed_row", told)
    if int(first) >= len(names):
        told = f"class {first}, and {names_from} has {len(names)} names"
        raise Unusable("unknown_class", told)
    numbers = an.numbers_of(words[1:])
    four, confidence = numbers[:4], numbers[4] if count == 5 else None
    if count > 5:
        x_min, y_min, x_max, y_max = an.bounds(zip(numbers[::2], numbers[1::2], strict=True))
        four = ((x_min + x_max) / 2, (y_min + y_max) / 2, x_max - x_min, y_max - y_min)
    shape = an.Shape(four, "cxcywh", "fractions", exact=False)
    return {"label": names[int(first)], "shape": shape, "confidence": confidence}


def _names_for(folder: Folder, of: Path) -> tuple[tuple[str, ...], str]:
    """Names of classes by number for the label files of a folder, and the file they are in.

    Lists in the folder and in those above it hold; where there is none, those beside do.

    Raises:
        UserError: there are none, or two lists disagree.
    """
    if "names" not in folder.cache:
        folder.cache["names"] = dict(_lists(folder))
    every: dict[Path, tuple[str, ...]] = folder.cache["names"]
    places = {of, *of.parents}
    above = {path: names for path, names in every.items() if path.parent in places} or every
    if not above:
        raise UserError(
            f"{folder.root}: YOLO's labels, and no names of classes in data.yaml, classes.txt "
            "or obj.names; pass --classes=NAME,NAME in the order of their numbers"
        )
    return an.agreed(above), folder.where(next(iter(above)))


def _lists(folder: Folder) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yields each list of classes and its file."""
    for path in folder.files:
        is_yaml = path.suffix.lower() in _YAML
        if not is_yaml and path.name.lower() not in (*_NAME_FILES, _NOTES):
            continue
        with reading(path):
            text = read_text(path, MIB)
            names = list(_yaml_names(text)) if is_yaml else list(map(str.strip, text.splitlines()))
            if path.name.lower() == _NOTES:
                names = list(_noted_names(folder.json(path)))
        while names and not names[-1]:
            names.pop()
        if names:
            yield path, tuple(names)


def _noted_names(notes: Any) -> Iterator[str]:
    """Yields the names of Label Studio's categories in the order of their ids."""
    listed = notes.get("categories") if isinstance(notes, dict) else None
    named = [one for one in listed or () if isinstance(one, dict)] if listed else []
    if all(isinstance(one.get("id"), int) for one in named):
        yield from (str(one.get("name")) for one in sorted(named, key=lambda one: one["id"]))


def _yaml_names(text: str) -> Iterator[str]:
    """Yields the names under `names:`, whose numbers have no gaps."""
    found = lists_of(text)
    if "kpt_shape" in found:
        raise ForeignError("labels of poses (kpt_shape); expected boxes or outlines")
    count, names = (found.get("nc") or [(None, "")])[0][1], found.get("names", ())
    if names and count.isdecimal() and count.strip("0") and count != str(len(names)):
        raise ForeignError(f"nc is {shown(count)}, and names has {len(names)}; correct one of them")
    for expected, (number, name) in enumerate(names):
        if number is not None and number != str(expected):
            told = f"names: number {shown(number)} where {expected} was expected"
            raise ForeignError(told.replace("'", ""))
        yield name
