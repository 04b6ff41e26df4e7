"""Tables with a row a box: columns found by their names, or by their content.

What is guessed is reported. Cells are separated by commas, semicolons, tabs or bars; a decimal
comma is read where commas do not separate. A row without numbers means that nothing is marked.
Cells may hold JSON, lists of boxes, or Kaggle's runs of class, confidence and corners. Each line is
parsed for itself, so that a quote that is not closed costs one line.
"""

import codecs
import contextlib
import csv
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations import masks
from cxrjax.apps.annotations.annotation import Annotation, Rejected, Shape, plain
from cxrjax.apps.annotations.coordinates import Form
from cxrjax.apps.annotations.folder import IMAGE_ENDINGS, Folder, split_of
from cxrjax.apps.annotations.json_paths import said_of
from cxrjax.apps.annotations.keys import four_of, shape_of, shape_of_via3, units_in, value_of_cell
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.foreign_files import MIB, decode_text, read_bytes
from cxrjax.untrusted.names import shown

_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_SAID_SEPARATOR = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
_SAMPLE = 50  # rows that tell the separator and the content of columns
_MOST_COLUMNS = 4_096
_MOST_CLASSES = 20_000
_NAMES: dict[str, list[str]] = an.WORDS["columns"]
_OPTIONAL = ("label", "image_height", "image_width", "reader", "confidence", "split", "source")
_CELLS: dict[str, list[str]] = dict(an.WORDS["cells"])
_MAYBE = _CELLS.pop("maybe")
_ORDERS: dict[str, str] = an.WORDS["orders"]
_SHAPES = "regionshapeattributes"
_RUNS = "predictionstring"
_VIA3 = "spatialcoordinates"
_VIA3_HEADER = "# CSV_HEADER ="
_NUMBER = re.compile(r"[-+]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][-+]?\d+)?")
_CODED = re.compile(r"[012](?: \d+(?:\.\d+)?){4}")
_NUMBERS = re.compile(_NUMBER.pattern.replace("[.,]", r"\."))
# RSNA's table of 2018 has boxes of one class, marked by 1.
_RSNA = ("patientid", "x", "y", "width", "height", "target")
_NO_SPLIT = ("UNASSIGNED", "")
_RSNA_CLASS = "Lung opacity"
_UNIT_WORD = re.compile(an.WORDS["patterns"]["unit"])


class _Mark(NamedTuple):
    """A class that a row marks, where it is, and how sure a model is of it."""

    label: str
    shape: Shape | None = None
    confidence: float | None = None


class _Columns(NamedTuple):
    """Indices of the columns by role.

    Attributes:
        box: four columns, or one that has boxes.
        order: of the numbers of a box in one cell.
        kind: of the one column: "outline", "runs", "via3" or "coded" (a number for the kind of a
            shape before it); "" of boxes.
    """

    box: tuple[int, ...]
    form: Form | None
    roles: dict[str, int]
    label: str = ""
    guessed: bool = False
    order: tuple[int, ...] = (0, 1, 2, 3)
    kind: str = ""


class Rows(NamedTuple):
    """A table's cells with the line of each row, and lines that are no rows."""

    header: list[str]
    rows: list[tuple[int, list[str]]]
    broken: list[tuple[int, str]]
    separator: str
    path: Path

    def fault(self, told: str, role: str = "") -> UserError:
        """An error about the header that lists its columns where a flag can name one."""
        value = "'A+B+C+D'" if role == "box" else "NAME"
        found = ", ".join(map(shown, self.header[:30]))
        listed = f"; found {found}; pass --columns={role}={value}" if role else ""
        return UserError(f"{self.path}:1: {told}{listed}")


def looks_like_boxes(path: Path, folder: Folder) -> bool:
    """Returns whether the first lines of a table have boxes."""
    try:
        with reading(path):
            _guess(table(path, folder, _SAMPLE), folder, an.Stated(label="box"))
    except UserError:
        return False
    return True


def read(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of one table.

    Raises:
        ForeignError: it is no table.
        UserError: the roles of its columns are not clear.
    """
    rows = table(path, folder)
    columns = _guess(rows, folder, said)
    where = folder.where(path)
    found.told.append(f"{where}: {_told(rows, columns)}")
    if columns.guessed:
        found.doubts.append(
            f"{where}: columns were detected by their content; pass --columns to set them"
        )
    for line, why in rows.broken:
        yield Rejected(where, f":{line}", Unusable("malformed_row", why))
    entries = list(_read_rows(folder, where, rows, columns))
    labels = {one.label for one in entries if isinstance(one, Annotation) and one.shape}
    if names := _names_of(labels, folder, path, said):
        entries = [
            dataclasses.replace(one, label=names[one.label])
            if isinstance(one, Annotation) and one.label in names
            else one
            for one in entries
        ]
    elif labels and all(map(_is_number, labels)):
        place = columns.roles.get("label")
        column = rows.header[place] if rows.header and place is not None else ""
        told = f"the column of classes, {shown(column)}, contains only numbers, such as "
        more = ", or --label=NAME if all boxes are of one"
        raise UserError(f"{rows.fault(told + shown(min(labels)), 'label')}{more}")
    yield from entries


def _names_of(labels: set[str], folder: Folder, path: Path, said: an.Stated) -> dict[str, str]:
    """Number or code of a class -> its name, out of --classes or a table of two columns.

    Raises:
        UserError: two tables disagree.
    """
    if not labels or not all(_is_number(label) or label.startswith("/") for label in labels):
        return {}
    if said.classes:
        return {str(number): name for number, name in enumerate(said.classes)}
    found: dict[Path, dict[str, str]] = {}
    for other in folder.files:
        if other == path or other.suffix.lower() not in (".csv", ".tsv"):
            continue
        try:
            rows = table(other, folder, _MOST_CLASSES)
        except (OSError, ForeignError):
            continue
        listed = [rows.header, *(cells for _, cells in rows.rows)]
        pairs = {cells[0]: cells[1] for cells in listed if len(cells) == 2}
        for names in (pairs, {name: key for key, name in pairs.items()}):
            if labels <= names.keys() and not any(_is_number(names[one]) for one in labels):
                found[other] = {one: names[one] for one in labels}
    for other, names in found.items():
        if names != next(iter(found.values())):
            told = "lists of classes that disagree; remove the wrong one, or pass --classes"
            raise UserError(f"{next(iter(found))} and {other}: {told}")
    return next(iter(found.values()), {})


def table(path: Path, folder: Folder, most: int | None = None) -> Rows:
    """The rows of a file; the first is the header unless it holds a box or names an image.

    Raises:
        ForeignError: it is no table.
    """
    lines = _decode(read_bytes(path)).splitlines()
    start = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    header = next((one for one in lines[: min(start, _SAMPLE)] if one.startswith(_VIA3_HEADER)), "")
    if header:
        start -= 1
        lines[start] = header.removeprefix(_VIA3_HEADER).strip()
    # Excel's own first line states what separates cells.
    said = _SAID_SEPARATOR.fullmatch(lines[0].strip()) if lines else None
    separator = said[1] if said else _separator(lines[start:])
    rows: list[tuple[int, list[str]]] = []
    broken: list[tuple[int, str]] = []
    start = max(start, bool(said))
    for number, line in enumerate(lines[start:], start=start + 1):
        if not line.strip(f" \t{separator}"):
            continue
        try:
            reader = csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True)
            cells = next(reader)
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
    names_image = any(one.lower().endswith(IMAGE_ENDINGS) and folder.has(one) for one in first)
    if sum(map(_is_number, first)) >= 4 or names_image:
        return Rows([], rows, broken, separator, path)
    return Rows(first, rows[1:], broken, separator, path)


def _decode(content: bytes) -> str:
    try:
        marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = content.decode("utf-16") if marked else decode_text(content)
    except UnicodeDecodeError:
        raise ForeignError("not UTF-16, as its first bytes suggest; save it as UTF-8") from None
    if "\0" in text:
        raise ForeignError("zero bytes in it; save the table as UTF-8")
    return text


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
    return max(counts, key=counts.__getitem__)


def _is_number(cell: str) -> bool:
    return bool(_NUMBER.fullmatch(cell))


def _guess(rows: Rows, folder: Folder, said: an.Stated) -> _Columns:
    """Finds the column of each role.

    Raises:
        UserError: a role has none.
    """
    if not rows.header:
        return _by_content(rows, folder, said)
    names = [plain(name) for name in rows.header]
    if twice := next((n for n in rows.header if n and rows.header.count(n) > 1), ""):
        raise rows.fault(f"column {shown(twice)} occurs twice; remove one of them")
    roles = {role: _named(rows, name) for role, name in said.columns.items() if role != "box"}
    where = _box_columns(rows, names, said)
    used = {*roles.values(), *where.box}

    def find(role: str) -> int | None:
        places = (names.index(name) for name in _NAMES[role] if name in names)
        return roles.get(role, next((place for place in places if place not in used), None))

    patient, image = find("patient"), find("image")
    if image is None:
        raise rows.fault("no column names the image", "image")
    found = {"image": image}
    if patient is not None and patient != image:  # RSNA's patientId names its images
        found["patient"] = patient
    for role in _OPTIONAL:
        used |= {*found.values()}
        if (place := find(role)) is not None:
            found[role] = place
    label = said.label or _RSNA_CLASS * (set(_RSNA) <= set(names))
    if "label" not in found and not label and _RUNS not in names and not _labelled(rows, where):
        told = rows.fault("no column names the class", "label")
        raise UserError(f"{told}, or --label=NAME if all boxes are of one")
    if not {"image_height", "image_width"} & found.keys():
        # Beside corners these are the image's.
        sides = {names.index(n): n for n in ("height", "width") if n in names}
        if len(sides) == 2 and not sides.keys() & {*used, *found.values()}:
            found |= {f"image_{name}": place for place, name in sides.items()}
    return where._replace(roles=found, label=label)


def _named(rows: Rows, name: str) -> int:
    if name not in rows.header:
        found = ", ".join(map(shown, rows.header[:30]))
        raise rows.fault(f"--columns names {shown(name)}, and there are {found}")
    return rows.header.index(name)


def _box_columns(rows: Rows, names: list[str], said: an.Stated) -> _Columns:
    """The columns of boxes, and what their names state."""
    if "box" in said.columns:
        places = tuple(_named(rows, name) for name in said.columns["box"].split("+"))
        if len(places) not in (1, 4):
            raise UserError("--columns: box expects one column, or four joined by +")
        return _one_cell(rows, places[0]) if len(places) == 1 else _Columns(places, None, {})
    for spelled in (names, [_UNIT_WORD.sub("", name) for name in names]):
        if found := four_of(spelled):
            rest = ["" if place in found[0] else name for place, name in enumerate(spelled)]
            bare = [re.sub(r"(?<=.)\d$", "", name) for name in rest]
            if not four_of(rest) and (second := four_of(bare)):
                told = ", ".join(shown(rows.header[place]) for place in second[0])
                raise rows.fault(f"columns {told} hold a second box; expected one box a row")
            return _Columns(*found, {})
    if _SHAPES in names:
        return _Columns((names.index(_SHAPES),), None, {})
    for kind, words in _CELLS.items():
        for place, name in enumerate(names):
            if name in words or (kind == "box" and name.startswith(tuple(words))):
                return _one_cell(rows, place, kind)
    if _RUNS in names:
        return _Columns((names.index(_RUNS),), "xyxy", {})
    for place in (place for place, name in enumerate(names) if name in _MAYBE):
        cell = _first_cell(rows, place)
        if _CODED.match(cell):
            return _Columns((place,), "xyxy", {}, kind="coded")
        if re.match(r"[\[{(]", cell):
            return _one_cell(rows, place)
    raise rows.fault("no columns of boxes", "box")


def _first_cell(rows: Rows, place: int) -> str:
    cells = (cells[place] for _, cells in rows.rows if place < len(cells))
    return next((cell for cell in cells if cell not in ("", "[]", "{}")), "")


def _labelled(rows: Rows, columns: _Columns) -> bool:
    """Returns whether boxes in cells have their classes with them."""
    cell = _first_cell(rows, columns.box[0])
    if not cell.startswith(("[", "{")):
        return False
    with contextlib.suppress(Unusable):
        value = value_of_cell(cell)
        return bool(said_of(value[0] if isinstance(value, list) and value else value, "label"))
    return False


def _one_cell(rows: Rows, place: int, kind: str = "box") -> _Columns:
    """A column of boxes, whose header may state the order of their numbers."""
    name = rows.header[place]
    if plain(name) == _VIA3 or kind != "box":
        return _Columns((place,), None, {}, kind="via3" if plain(name) == _VIA3 else kind)
    # NIH's header breaks at the commas in its brackets: "Bbox [x", "y", "w", "h]".
    ends = [p for p, one in enumerate(rows.header[place : place + 4]) if re.search(r"[\])]", one)]
    across = ends == [3] and re.search(r"[\[(]", name)
    written = ",".join(rows.header[place : place + 4]) if across else name
    inside = re.search(r"[\[(](.*)$", written)
    word = next((word for word in _CELLS["box"] if plain(name).startswith(word)), "")
    listed = inside[1] if inside else plain(name).removeprefix(word)
    listed = _ORDERS.get(plain(listed), listed)
    found = four_of([plain(one) for one in re.split(r"[\s,;+]+", listed) if plain(one)])
    order, form = found or ((0, 1, 2, 3), None)
    if across:
        return _Columns(tuple(place + number for number in order), form, {})
    return _Columns((place,), form, {}, order=order)


def _by_content(rows: Rows, folder: Folder, said: an.Stated) -> _Columns:
    """A table without a header: the image is what names one, the box four numbers in a row."""
    sample = [cells for _, cells in rows.rows[:_SAMPLE]]
    # Columns without anything in them are left out: AutoML has four between the corners.
    places = [p for p in range(min(map(len, sample))) if any(of[p] for of in sample)]
    splits = [p for p in places if all(split_of(of[p]) or of[p] in _NO_SPLIT for of in sample)]
    places = [p for p in places if p not in splits]
    numeric = {p for p in places if all(not of[p] or _is_number(of[p]) for of in sample)}
    image = next((p for p in places if any(folder.has(of[p]) for of in sample)), None)
    fours = zip(*(places[start:] for start in range(4)), strict=False)
    four = next((one for one in fours if numeric.issuperset(one) and image not in one), None)
    label = next((p for p in places if p not in numeric and p != image), None)
    if image is None or four is None or (label is None and not said.label):
        missing = "image" if image is None else "box" if four is None else "class"
        raise UserError(
            f"{rows.path}: no header, and no column is seen to be the {missing}; put a first line "
            "with names of columns, such as image,label,x_min,y_min,x_max,y_max"
        )
    roles = {"image": image} | ({} if label is None else {"label": label})
    roles |= dict(zip(["split"], splits, strict=False))
    if (image, four[0], label) == (0, 1, 5) and {len(of) for of in sample} == {6}:
        # keras-retinanet's order: path, corners, class, beside a list of classes.
        listed = any("class" in one.name.lower() for one in rows.path.parent.glob("*.csv"))
        return _Columns(four, "xyxy" if listed else None, roles, said.label)
    return _Columns(four, None, roles, said.label, guessed=True)


def _told(rows: Rows, columns: _Columns) -> str:
    def names(*places: int) -> str:
        listed = (rows.header[p] if rows.header else f"number {p + 1}" for p in places)
        return ", ".join(listed)

    roles = columns.roles
    parts = {"image is column": names(roles["image"])}
    if columns.label:
        parts["class is"] = f"{columns.label} of all boxes"
    elif "label" in roles:
        parts["class is"] = names(roles["label"])
    parts["box is"] = names(*columns.box)
    kinds = ("patient", "reader", "confidence", "split")
    parts |= {f"{role} is": names(roles[role]) for role in kinds if role in roles}
    if {"image_height", "image_width"} <= roles.keys():
        parts["size of images is"] = names(roles["image_width"], roles["image_height"])
    sign = _SEPARATORS.get(rows.separator, f"'{rows.separator}'")
    told = "; ".join(f"{what} {name}" for what, name in parts.items())
    return f"{told} (cells end at a {sign})"


def _read_rows(folder: Folder, where: str, rows: Rows, columns: _Columns) -> an.Entries:
    seen: set[tuple[str, ...]] = set()
    together = " ".join(rows.header[p].lower() for p in columns.box) if rows.header else ""
    units = units_in(together)
    for line, cells in rows.rows:
        row = {role: cells[p] for role, p in columns.roles.items() if p < len(cells)}
        about = Annotation(
            _one_name(row.get("image", "")),
            where,
            f":{line}",
            label="" if _is_number(row.get("label", "")) else row.get("label", ""),
            reader=row.get("reader", ""),
            split=split_of(row.get("split", "")),
            image_hw=an.size_of_entry(row.get("image_height"), row.get("image_width")),
            patient=row.get("patient", ""),
            prediction=an.by_model(row.get("source", "")),
        )
        try:
            if len(cells) <= max(columns.box) or not about.image:
                told = f"{len(cells)} cells, expected an image and a box as in the header"
                raise Unusable("malformed_row", told)
            if "\ufffd" in "".join(cells):
                raise Unusable("bad_encoding", "characters that were lost in another program")
            if tuple(cells) in seen:
                raise Unusable("duplicate_row", "the same row occurred before")
            seen.add(tuple(cells))
            texts = [cells[place] for place in columns.box]
            if columns.kind == "runs":
                size = about.image_hw or folder.size(about.image)
                marks = [_Mark("", Shape(box)) for box in masks.boxes_of_runs(texts[0], size)]
                marked = _marked(row, marks, columns)
            elif len(texts) == 1 and not columns.kind and (alone := _run(texts[0])):
                marked = alone
            else:
                marks = _shapes(texts, columns, rows.separator != ",", row.get("label", "x"))
                marked = _marked(row, marks, columns)
            beside = _confidences(row, len(marked))
        except Unusable as why:
            yield Rejected(where, about.place, why, about.image, about.label)
            continue
        for (label, shape, confidence), sure in zip(marked, beside, strict=True):
            if shape is not None and shape.units is None and not shape.exact:
                shape = shape._replace(units=units)
            sure = sure if confidence is None else confidence
            yield dataclasses.replace(about, label=label, shape=shape, confidence=sure)


def _confidences(row: Mapping[str, str], count: int) -> list[float | None]:
    """Confidences of a row's marks: a number or a list in a cell, or among a region's attributes.

    Raises:
        Unusable: a cell begins as a list or an object, and is none.
    """
    cell, label = row.get("confidence", ""), row.get("label", "")
    if not cell and label.startswith("{"):
        cell = said_of(value_of_cell(label), "confidence")
    listed = value_of_cell(cell) if cell.startswith("[") else [cell]
    numbers = [an.confidence_of(one) for one in listed] or [None]
    return numbers if len(numbers) == count else numbers[:1] * count


def _one_name(cell: str) -> str:
    """The name of an image in a cell, which may be a list of one."""
    if not cell.startswith("["):
        return cell
    with contextlib.suppress(Unusable):
        names = value_of_cell(cell)
        if isinstance(names, list) and len(names) == 1 and isinstance(names[0], str):
            return names[0]
    return cell


def _marked(row: Mapping[str, str], marks: list[_Mark], columns: _Columns) -> list[_Mark]:
    """Marks of a row, with the classes of its cell.

    Raises:
        Unusable: its cells hold something else.
    """
    written = row.get("label", "")
    if (run := _run(written)) and len(run) == len(marks):
        return [mark._replace(label=one.label) for one, mark in zip(run, marks, strict=True)]
    if columns.label and (marks or an.number_or_none(written) == 1):
        return [mark._replace(label=columns.label) for mark in marks] or [_Mark(columns.label)]
    labels = [run[0].label] if run else _labels(written, len(marks))
    if not marks:
        usable = ("" if an.is_normal(one) or _is_number(one) else one for one in labels)
        return [_Mark(one) for one in dict.fromkeys(usable)]
    if len(labels) == len(marks):
        return [m._replace(label=m.label or one) for one, m in zip(labels, marks, strict=True)]
    if len(labels) > 1 < len(marks):
        raise Unusable("unknown_class", f"{len(labels)} classes of {len(marks)} boxes")
    return [m._replace(label=m.label or one) for m in marks for one in labels]


def _labels(cell: str, boxes: int) -> list[str]:
    """The classes in a cell: one, or several in a list or between semicolons or bars."""
    if cell.startswith("{"):
        return [an.class_of(value_of_cell(cell))]
    with contextlib.suppress(Unusable):
        value = value_of_cell(cell) if cell.startswith("[") else None
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            return value
    parts = [part.strip() for part in re.split(r"[;|]", cell) if part.strip()]
    if len(parts) == 1 and 1 < boxes == cell.count(",") + 1:
        parts = [part.strip() for part in cell.split(",")]
    return parts or [""]


def _run(text: str) -> list[_Mark] | None:
    """Boxes of Kaggle's text, runs of class, confidence and corners; None of other text."""
    words = text.split()
    if len(words) < 6 or len(words) % 6 or not all(map(_is_number, words[1:6])):
        return None
    found: list[_Mark] = []
    for label, sure, *numbers in zip(*[iter(words)] * 6, strict=True):
        shape = Shape(an.numbers_of(numbers, 4), "xyxy", exact=False)
        is_normal = an.is_normal(label)
        found.append(_Mark("") if is_normal else _Mark(label, shape, an.number_or_none(sure)))
    return found


def _shapes(texts: list[str], columns: _Columns, has_commas: bool, label: str) -> list[_Mark]:
    """The boxes of a row, with classes that their own cell has; none where cells are empty.

    Raises:
        Unusable: they are something else.
    """
    if all(map(an.is_normal, texts)):
        return []
    if len(texts) > 1:
        numbers = an.numbers_of([t.replace(",", ".") if has_commas else t for t in texts], 4)
        if (an.is_normal(label) or label == "0") and not any(numbers):
            return []  # zeros beside "No finding", or beside 0 of NODE21
        return [_Mark("", Shape(numbers, columns.form, None, exact=False))]
    text = texts[0]
    if columns.kind == "via3":
        return [_Mark("", one) for one in [shape_of(shape_of_via3(value_of_cell(text)))] if one]
    if text.startswith("{") or re.match(r"\[ ?[{(\[]", text):
        value = value_of_cell(text)
        # An outline is a list of points, several are a list of these or of numbers in a row.
        first = value[0] if isinstance(value, list) and value else None
        is_one = isinstance(first, list) and len(first) == 2 and columns.kind == "outline"
        items = value if isinstance(value, list) and not is_one else [value]
        marks = [
            _Mark(
                said_of(one, "label") if "label" not in columns.roles else "",
                shape_of(_ordered(one, columns.order), columns.form),
                an.confidence_of(said_of(one, "confidence")),
            )
            for one in items
        ]
        return [mark for mark in marks if mark.shape is not None]
    found = []
    for part in filter(str.strip, re.split(r"[;|]", text)):
        numbers_in = _NUMBERS.findall(part)
        if columns.kind == "coded" and len(numbers_in) % 2:
            numbers_in = numbers_in[1:]
            one = shape_of([float(number) for number in numbers_in], "xyxy", "pixels")
            found += [_Mark("", one)]
            continue
        if columns.kind == "outline" and len(numbers_in) > 5 and len(numbers_in) % 2 == 0:
            found += [_Mark("", shape_of(list(map(float, numbers_in))))]
            continue
        if len(numbers_in) != 4:
            raise Unusable("bad_box", f"{shown(part)} has {len(numbers_in)} numbers, expected 4")
        numbers = an.numbers_of(_ordered(numbers_in, columns.order), 4)
        found.append(_Mark("", Shape(numbers, columns.form, None, exact=False)))
    return found


def _ordered(numbers: Any, order: tuple[int, ...]) -> Any:
    """Four numbers in the usual order; anything else as it is."""
    if not isinstance(numbers, list) or len(numbers) != 4:
        return numbers
    return [numbers[place] for place in order]
