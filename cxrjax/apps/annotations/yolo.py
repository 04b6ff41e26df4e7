"""YOLO: a text file an image, a line a box: class number, centre and size as fractions.

Lines with more numbers are outlines, whose box is around them. Names of classes are in data.yaml,
classes.txt or obj.names, or said by --classes.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cxrjax.apps.annotations import table
from cxrjax.apps.annotations.coordinates import Four, in_pixels, settle
from cxrjax.apps.annotations.folder import Folder
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.foreign_files import MIB, read_lines, read_text
from cxrjax.untrusted.names import shown

_NAME_FILES = ("classes.txt", "obj.names", "labels.txt", "class_names.txt")
_NO_LABELS = {*_NAME_FILES, "train.txt", "val.txt", "valid.txt", "test.txt", "notes.txt"}
_CLASS = re.compile(r"\d{1,6}")
# Of a list in one line: a number, if there is one, and a name, in quotes where a comma is in it.
_ITEM = re.compile(r"""\s*(?:(\d+)\s*:\s*)?("[^"]*"|'[^']*'|[^,\s][^,]*)\s*(?:,|$)""")
_NUMBERED = re.compile(r"\s+(?:-\s*|(\d+)\s*:\s*)(.+)")


def label_files(folder: Folder) -> list[Path]:
    """Files of a folder that hold a line a box of an image of their name."""
    texts = [path for path in folder.files if path.suffix.lower() == ".txt"]
    named = {path.stem.lower() for path in folder.images}
    return [
        path
        for path in texts
        if path.name.lower() not in _NO_LABELS
        and (path.stem.lower() in named or path.parent.name.lower() == "labels")
        and not path.name.lower().startswith("readme")
    ]


def read(folder: Folder, files: list[Path], said: table.Stated, found: table.Annotations) -> None:
    """Reads all files; an empty one says that nothing is there.

    Raises:
        UserError: names of classes are missing, or a file is not YOLO's.
    """
    names = list(said.classes) or _names(folder)
    boxes: list[tuple[str, str, Four]] = []
    for path in files:
        where = folder.where(path)
        name = path.with_suffix("").as_posix()
        if folder.root in path.parents:
            name = path.relative_to(folder.root).with_suffix("").as_posix()
        # labels/train/a.txt belongs to images/train/a.png.
        name = re.sub(r"(^|/)labels(/|$)", r"\1images\2", name)
        found.add_image(table.MarkedImage(name, where))
        with reading(path):
            lines = list(read_lines(path))
        for number, line in lines:
            found.quality.examined["boxes"] += 1
            at = f"{where}:{number}"
            try:
                label, numbers = _line(line, names, at)
                if len(numbers) in (4, 5):  # the fifth is a confidence
                    boxes.append((name, label, Four(numbers[:4], folder.size_or_none(name), at)))
                else:
                    points = zip(numbers[::2], numbers[1::2], strict=True)
                    x_min, y_min, x_max, y_max = table.bounds(points)
                    four = ((x_min + x_max) / 2, (y_min + y_max) / 2, x_max - x_min, y_max - y_min)
                    boxes.append((name, label, Four(four, folder.size_or_none(name), at)))
            except Unusable as why:
                found.set_aside(why, name, at)
    fours = [one for _, _, one in boxes]
    if not fours:
        return
    settled = settle(fours, "YOLO", "cxcywh", "fractions", said.box_form, said.units)
    found.told.append(f"YOLO: {settled.why}; classes {', '.join(names[:20])}")
    for name, label, one in boxes:
        if one.image_hw is None:
            # Told once for the image, by whoever opens it.
            continue
        box = in_pixels(one.numbers, settled, one.image_hw)
        found.boxes.append(table.MarkedBox(name, label, box, one.where))


def _line(line: bytes, names: Sequence[str], at: str) -> tuple[str, tuple[float, ...]]:
    """The class and the numbers of a line.

    Raises:
        Unusable: it is none of YOLO's.
    """
    words = line.decode("utf-8", "replace").split()
    first = words[0].removesuffix(".0")
    if not _CLASS.fullmatch(first):
        raise Unusable("malformed_row", f"{shown(words[0])} is not a class number")
    count = len(words) - 1
    if count < 4 or (count > 5 and count % 2):
        raise Unusable(
            "malformed_row", f"{count} numbers after the class; expected 4, or an outline"
        )
    if int(first) >= len(names):
        told = f"class {first}, and there are {len(names)} names"
        raise Unusable("unknown_class", told)
    return table.label_of(names[int(first)]), table.numbers_of(words[1:])


def _names(folder: Folder) -> list[str]:
    """Names of classes by number.

    Raises:
        UserError: there are none.
    """
    for path in folder.files:
        if path.name.lower() in _NAME_FILES:
            with reading(path):
                found = [line.strip() for line in read_text(path, MIB).splitlines()]
            while found and not found[-1]:
                found.pop()
            if found:
                return found
    for path in folder.files:
        if path.suffix.lower() in (".yaml", ".yml"):
            with reading(path):
                found = list(_yaml_names(read_text(path, MIB)))
            if found:
                return found
    raise UserError(
        f"{folder.root}: YOLO's labels, and no names of classes in data.yaml, classes.txt or "
        "obj.names; pass --classes=NAME,NAME in the order of their numbers"
    )


def _yaml_names(text: str) -> Iterator[str]:
    """Yields the names under `names:`: a list on one line, a list, or a mapping from numbers."""
    lines = [line.split(" #")[0].rstrip() for line in text.splitlines()]
    if any(line.startswith("kpt_shape:") for line in lines):
        raise ForeignError("labels of poses (kpt_shape); expected boxes or outlines")
    start = next((place for place, line in enumerate(lines) if line.startswith("names:")), None)
    if start is None:
        return
    inline = lines[start].removeprefix("names:").strip()
    place = start + 1
    if inline.startswith(("[", "{")):
        while place < len(lines) and not inline.endswith(("]", "}")):
            inline += " " + lines[place].strip()
            place += 1
        if not inline.endswith(("]", "}")):
            raise ForeignError("names: a list without an end", start + 1)
        for expected, item in enumerate(_ITEM.finditer(inline[1:-1])):
            if (inline[0] == "{") != (item[1] == str(expected)):
                raise ForeignError("names: expected numbers 0, 1, 2 and so on", start + 1)
            yield _unquoted(item[2])
        return
    expected = 0
    for line in lines[place:]:
        found = _NUMBERED.fullmatch(line if line.startswith(" ") else f" {line}")
        if not line.strip():
            continue
        if found is None or (not line.startswith((" ", "-"))):
            return
        if found[1] is not None and int(found[1]) != expected:
            raise ForeignError(f"names: number {found[1]} where {expected} was expected", start + 1)
        expected += 1
        yield _unquoted(found[2])


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
