"""Tables with a row a box: columns found by their names, or by their content.

What is guessed is reported. Cells are separated by commas, semicolons, tabs or bars; a decimal
comma is read where commas do not separate. A row without numbers means that nothing is marked.
Cells may hold JSON, lists of boxes, or Kaggle's runs of class, confidence and corners. Each line is
parsed for itself, so that a quote that is not closed costs one line.
"""

import codecs
import csv
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.annotation import Annotation, Rejected, Shape, plain
from cxrjax.apps.annotations.coordinates import Form, Units
from cxrjax.apps.annotations.folder import IMAGE_ENDINGS, Folder, split_of
from cxrjax.apps.annotations.keys import four_of, shape_of, value_of_cell
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.foreign_files import MIB, decode_text, read_bytes
from cxrjax.untrusted.names import shown

_SEPARATORS = (",", ";", "\t", "|")
_SAID_SEPARATOR = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
_SAMPLE = 50  # rows that tell the separator and the content of columns
_MOST_COLUMNS = 4_096
_NAMES: dict[str, list[str]] = an.WORDS["columns"]
ROLES = (*_NAMES, "box")
_CELL = tuple(an.WORDS["cells"]["box"])
_SHAPES = "regionshapeattributes"
_CELL_FORMS: dict[str, Form] = {"xywh": "xywh", "xyxy": "xyxy", "cxcywh": "cxcywh"}
_NUMBER = re.compile(r"[-+]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][-+]?\d+)?")
# RSNA's table of 2018 has boxes of one class, marked by 1.
_RSNA = ("patientid", "x", "y", "width", "height", "target")
_RSNA_CLASS = "Lung opacity"


class _Columns(NamedTuple):
    """Indices of the columns; `box` are four columns, or one that has boxes."""

    image: int
    box: tuple[int, ...]
    form: Form | None
    others: dict[str, int]
    label: str = ""
    guessed: bool = False


class _Rows(NamedTuple):
    """A table's cells with the line of each row, and lines that are no rows."""

    header: list[str]
    rows: list[tuple[int, list[str]]]
    broken: list[tuple[int, str]]
    separator: str


def looks_like_boxes(path: Path, folder: Folder) -> bool:
    """Returns whether the first lines of a table have boxes."""
    try:
        with reading(path):
            _guess(_table(path, folder, _SAMPLE), folder, an.Stated(label="box"), path)
    except UserError:
        return False
    return True


def read(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of one table.

    Raises:
        ForeignError: it is no table.
        UserError: the roles of its columns are not clear.
    """
    table = _table(path, folder)
    columns = _guess(table, folder, said, path)
    where = folder.where(path)
    found.told.append(f"{where}: {_told(table, columns)}")
    if columns.guessed:
        found.doubts.append(
            f"{where}: columns were detected by their content; pass --columns to set them"
        )
    for line, why in table.broken:
        yield Rejected(where, f":{line}", Unusable("malformed_row", why))
    read_so_far = list(_read_rows(where, table, columns))
    labels = {one.label for one in read_so_far if isinstance(one, Annotation) and one.shape}
    if labels and all(map(_is_number, labels)):
        place = columns.others.get("label")
        column = table.header[place] if table.header and place is not None else ""
        raise UserError(
            f"{path}:1: the column of classes, {shown(column)}, contains only numbers, such as "
            f"{shown(min(labels))}; {_which(table, 'label')}, or --label=NAME if all boxes are of "
            "one"
        )
    yield from read_so_far


def _table(path: Path, folder: Folder, most: int | None = None) -> _Rows:
    """The rows of a file; the first is the header unless it holds a box or names an image.

    Raises:
        ForeignError: it is no table.
    """
    text = _decode(read_bytes(path))
    if "\0" in text:
        raise ForeignError("zero bytes in it; save the table as UTF-8")
    lines = text.splitlines()
    begun = 1
    # Excel's own first line states what separates cells.
    said = _SAID_SEPARATOR.fullmatch(lines[0].strip()) if lines else None
    if said:
        lines, begun = lines[1:], 2
    separator = said[1] if said else _separator(lines)
    rows: list[tuple[int, list[str]]] = []
    broken: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=begun):
        if not line.strip(f" \t{separator}"):
            continue
        try:
            cells = next(csv.reader([line], delimiter=separator, strict=True))
        except (csv.Error, StopIteration) as error:
            broken.append((number, f"{error}; is a quote not closed?"))
            continue
        rows.append((number, [cell.strip() for cell in cells]))
        if most and len(rows) > most:
            break
    if not rows:
        raise ForeignError("an empty table")
    first = rows[0][1]
    if len(first) > _MOST_COLUMNS:
        raise ForeignError(f"{len(first):,} columns")
    if sum(map(_is_number, first)) >= 4 or any(_names_image(cell, folder) for cell in first):
        return _Rows([], rows, broken, separator)
    return _Rows(first, rows[1:], broken, separator)


def _names_image(cell: str, folder: Folder) -> bool:
    return cell.lower().endswith(IMAGE_ENDINGS) and folder.has(cell)


def _decode(content: bytes) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            return content.decode("utf-16")
        except UnicodeDecodeError:
            raise ForeignError("not UTF-16, as its first bytes suggest; save it as UTF-8") from None
    return decode_text(content)


def _separator(lines: Sequence[str]) -> str:
    """Returns the most frequent separator of the first line, outside of quotes and brackets."""
    first = next((line for line in lines if line.strip()), "")[:MIB]
    counts = dict.fromkeys(_SEPARATORS, 0)
    depth, quoted = 0, False
    for sign in first:
        quoted ^= sign == '"'
        depth = max(0, depth + (sign in "[(") - (sign in "])"))
        if sign in counts and not depth and not quoted:
            counts[sign] += 1
    return max(_SEPARATORS, key=lambda sign: counts[sign])


def _is_number(cell: str) -> bool:
    return bool(_NUMBER.fullmatch(cell))


def _guess(table: _Rows, folder: Folder, said: an.Stated, path: Path) -> _Columns:
    """Finds the column of each role.

    Raises:
        UserError: a role has none.
    """
    if not table.header:
        return _by_content(table, folder, said, path)
    names = [plain(name) for name in table.header]
    for name in table.header:
        if name and table.header.count(name) > 1:
            raise UserError(f"{path}:1: column {shown(name)} occurs twice; remove one of them")
    chosen = {
        role: _named(table.header, name, path)
        for role, name in said.columns.items()
        if role != "box"
    }
    used: set[int] = set(chosen.values())
    box, form = _box_columns(table, names, said, path)
    used |= set(box)

    def first(role: str) -> int | None:
        if role in chosen:
            return chosen[role]
        places = [names.index(name) for name in _NAMES[role] if name in names]
        return next((place for place in places if place not in used), None)

    patient, image = first("patient"), first("image")
    if image is not None and image == patient:
        patient = None  # RSNA's patientId names its images
    if image is None:
        raise UserError(f"{path}:1: no column names the image; {_which(table, 'image')}")
    used.add(image)
    others = {} if patient is None else {"patient": patient}
    used |= {*others.values()}
    label = first("label")
    constant = said.label or _RSNA_CLASS * (set(_RSNA) <= set(names))
    if label is None and not constant and "predictionstring" not in names:
        raise UserError(
            f"{path}:1: no column names the class; {_which(table, 'label')}, or --label=NAME if "
            "all boxes are of one"
        )
    for role in ("label", "image_height", "image_width", "reader", "confidence", "split"):
        if (place := first(role)) is not None:
            others[role] = place
            used.add(place)
    if "image_height" not in others and "image_width" not in others:
        # Beside corners these are the image's.
        sides = [names.index(name) for name in ("height", "width") if name in names]
        if len(sides) == 2 and not {*sides} & used:
            others |= dict(zip(("image_height", "image_width"), sides, strict=True))
    return _Columns(image, box, form, others, constant)


def _named(header: Sequence[str], name: str, path: Path) -> int:
    if name not in header:
        found = ", ".join(map(shown, header[:30]))
        raise UserError(f"{path}:1: --columns names {shown(name)}, and there are {found}")
    return header.index(name)


def _box_columns(
    table: _Rows, names: list[str], said: an.Stated, path: Path
) -> tuple[tuple[int, ...], Form | None]:
    header = table.header
    if "box" in said.columns:
        places = tuple(_named(header, name, path) for name in said.columns["box"].split("+"))
        if len(places) not in (1, 4):
            raise UserError("--columns: box expects one column, or four joined by +")
        return places, None
    if found := four_of(names):
        return found
    if _SHAPES in names:
        return (names.index(_SHAPES),), None
    # NIH's header breaks at the commas in its brackets: "Bbox [x", "y", "w", "h]".
    for place, name in enumerate(header):
        inside = re.search(r"[\[(](.*)$", name)
        if plain(name).startswith(_CELL) or plain(name) in _CELL:
            together = plain("".join(header[place : place + 4])).removeprefix(plain(name))
            written = plain(inside[1]) if inside else ""
            across = _CELL_FORMS.get(written + together)
            if across and len(header) >= place + 4 and not written.endswith(("h", "y", "y2")):
                return tuple(range(place, place + 4)), across
            return (place,), _CELL_FORMS.get(written)
    if "predictionstring" in names:
        return (names.index("predictionstring"),), "xyxy"
    raise UserError(f"{path}:1: no columns of boxes; {_which(table, 'box')}")


def _which(table: _Rows, role: str) -> str:
    found = ", ".join(map(shown, table.header[:30]))
    value = "'A+B+C+D'" if role == "box" else "NAME"
    return f"found {found}; pass --columns={role}={value}"


def _by_content(table: _Rows, folder: Folder, said: an.Stated, path: Path) -> _Columns:
    """A table without a header: the image is what names one, the box four numbers in a row."""
    sample = [cells for _, cells in table.rows[:_SAMPLE]]
    count = min(map(len, sample))
    image = next(
        (place for place in range(count) if any(folder.has(cells[place]) for cells in sample)), None
    )
    numeric = [
        all(_is_number(cells[place]) or not cells[place] for cells in sample)
        for place in range(count)
    ]
    box = next((p for p in range(count - 3) if all(numeric[p : p + 4]) and image != p), None)
    label = next((p for p in range(count) if not numeric[p] and p != image), None)
    if image is None or box is None or (label is None and not said.label):
        missing = "image" if image is None else "box" if box is None else "class"
        raise UserError(
            f"{path}: no header, and no column is seen to be the {missing}; put a first line "
            "with names of columns, such as image,label,x_min,y_min,x_max,y_max"
        )
    others = {} if label is None else {"label": label}
    return _Columns(image, tuple(range(box, box + 4)), None, others, said.label, guessed=True)


def _told(table: _Rows, columns: _Columns) -> str:
    def name(place: int) -> str:
        return table.header[place] if table.header else f"number {place + 1}"

    signs = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar"}
    parts = [f"image is column {name(columns.image)}"]
    if columns.label:
        parts.append(f"class is {columns.label} of all boxes")
    elif "label" in columns.others:
        parts.append(f"class is {name(columns.others['label'])}")
    parts.append(f"box is {', '.join(map(name, columns.box))}")
    for role in ("patient", "reader", "confidence", "split"):
        if role in columns.others:
            parts.append(f"{role} is {name(columns.others[role])}")
    if "image_height" in columns.others and "image_width" in columns.others:
        sides = name(columns.others["image_width"]), name(columns.others["image_height"])
        parts.append(f"size of images is {', '.join(sides)}")
    sign = signs.get(table.separator, f"'{table.separator}'")
    return f"{'; '.join(parts)} (cells end at a {sign})"


def _read_rows(where: str, table: _Rows, columns: _Columns) -> an.Entries:
    seen: set[tuple[str, ...]] = set()
    units = _units_of(table, columns)
    for line, cells in table.rows:
        place = f":{line}"
        name = cells[columns.image] if columns.image < len(cells) else ""
        try:
            if len(cells) <= max(columns.image, *columns.box) or not name:
                told = f"{len(cells)} cells, expected an image and a box as in the header"
                raise Unusable("malformed_row", told)
            if "\ufffd" in "".join(cells):
                raise Unusable("bad_encoding", "characters that were lost in another program")
            if tuple(cells) in seen:
                raise Unusable("duplicate_row", "the same row occurred before")
            seen.add(tuple(cells))
            for label, shape in _marked(cells, columns, table.separator):
                if shape is not None and shape.units is None and not shape.exact:
                    shape = shape._replace(units=units)
                yield dataclasses.replace(
                    _entry(cells, columns, name, where, place), label=label, shape=shape
                )
        except Unusable as why:
            yield Rejected(where, place, why, name)


def _entry(
    cells: Sequence[str], columns: _Columns, name: str, where: str, place: str
) -> Annotation:
    """The content of a row besides class and box."""

    def cell(role: str) -> str:
        found = columns.others.get(role)
        return cells[found] if found is not None and found < len(cells) else ""

    return Annotation(
        name,
        where,
        place,
        reader=cell("reader"),
        split=split_of(cell("split")),
        confidence=an.number_or_none(cell("confidence")),
        image_hw=an.size_of_entry(cell("image_height"), cell("image_width")),
        patient=cell("patient"),
    )


def _marked(
    cells: Sequence[str], columns: _Columns, separator: str
) -> list[tuple[str, Shape | None]]:
    """(class, shape) of what a row marks.

    Raises:
        Unusable: its cells hold something else.
    """
    place = columns.others.get("label")
    written = cells[place] if place is not None and place < len(cells) else ""
    if len(columns.box) == 1 and (alone := _run(cells[columns.box[0]])):
        return alone
    shapes = _shapes(cells, columns, separator)
    run = _run(written)
    if run and len(run) == len(shapes):
        labels = [label for label, _ in run]
    else:
        label = an.class_of(value_of_cell(written)) if written.startswith("{") else written
        labels = [columns.label or label] * len(shapes)
    if not shapes:
        label = columns.label if an.number_or_none(written) == 1 else written
        if run or written.startswith("{"):
            label = run[0][0] if run else an.class_of(value_of_cell(written))
        return [("" if an.is_normal(label) or _is_number(label) else label, None)]
    return list(zip(labels, shapes, strict=True))


def _run(text: str) -> list[tuple[str, Shape | None]] | None:
    """Boxes of Kaggle's text, runs of class, confidence and corners; None of other text."""
    words = text.split()
    if len(words) < 6 or len(words) % 6 or not all(map(_is_number, words[1:6])):
        return None
    found: list[tuple[str, Shape | None]] = []
    for start in range(0, len(words), 6):
        label, *numbers = words[start : start + 6]
        shape = Shape(an.numbers_of(numbers[1:], 4), "xyxy", exact=False)
        found.append(("", None) if an.is_normal(label) else (label, shape))
    return found


def _units_of(table: _Rows, columns: _Columns) -> Units | None:
    """Returns the units that column names such as "x_center_norm" imply, if any."""
    if not table.header:
        return None
    together = " ".join(table.header[place].lower() for place in columns.box)
    if "norm" in together or "frac" in together or "rel" in together:
        return "fractions"
    return "percent" if "percent" in together or "%" in together else None


def _shapes(cells: Sequence[str], columns: _Columns, separator: str) -> list[Shape]:
    """The boxes of a row; none where their cells are empty.

    Raises:
        Unusable: they are something else.
    """
    texts = [cells[place] for place in columns.box]
    if all(an.is_normal(text) for text in texts):
        return []
    if len(texts) == 1:
        return _shapes_of_cell(texts[0], columns.form)
    texts = [text.replace(",", ".") if separator != "," else text for text in texts]
    label = columns.others.get("label")
    marked = cells[label] if label is not None and label < len(cells) else "x"
    numbers = an.numbers_of(texts, 4)
    if an.is_normal(marked) and not any(numbers):
        return []  # zeros beside "No finding"
    return [Shape(numbers, columns.form, None, exact=False)]


def _shapes_of_cell(text: str, form: Form | None) -> list[Shape]:
    if text.startswith("{") or text.startswith(("[{", "[[", "[(", "[ {", "[ [")):
        value = value_of_cell(text)
        found = [shape_of(one, form) for one in (value if isinstance(value, list) else [value])]
        return [shape for shape in found if shape is not None]
    shapes = []
    for part in filter(str.strip, re.split(r"[;|]", text)):
        numbers = re.findall(_NUMBER.pattern.replace("[.,]", r"\."), part)
        if len(numbers) != 4:
            raise Unusable("bad_box", f"{shown(part)} has {len(numbers)} numbers, expected 4")
        shapes.append(Shape(an.numbers_of(numbers, 4), form, None, exact=False))
    return shapes
