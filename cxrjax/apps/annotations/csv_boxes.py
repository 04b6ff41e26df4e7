"""Tables with a row a box: columns told by their names, or by what stands in them.

What is guessed is said. Cells are separated by commas, semicolons, tabs or bars; a decimal comma is
read where commas do not separate. A row without numbers says that nothing is marked there.
"""

import codecs
import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cxrjax.apps.annotations.coordinates import Form, Four, Units, in_pixels, settle
from cxrjax.apps.annotations.folder import Folder
from cxrjax.apps.annotations.table import (
    NOTHING,
    Annotations,
    MarkedBox,
    MarkedImage,
    Stated,
    label_of,
    numbers_of,
    plain,
    size_of_entry,
)
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.foreign_files import decode_text, read_bytes
from cxrjax.untrusted.names import shown

_SEPARATORS = (",", ";", "\t", "|")
_SAID_SEPARATOR = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
_SAMPLE = 50  # rows that tell the separator and what stands in columns
_MOST_COLUMNS = 4_096
# Role -> names that a column may have, as `plain` has them, the likeliest first.
_NAMES: dict[str, tuple[str, ...]] = {
    "image": (
        *("image", "imageid", "imagename", "imagepath", "imagefile", "imageindex", "filename"),
        *("filepath", "file", "path", "img", "imgid", "imgname", "imgpath", "dicomid", "dicom"),
        *("bild", "bildname", "bilddatei", "dateiname", "datei"),
        *("sopinstanceuid", "id", "studyinstanceuid", "patientid"),
    ),
    "label": (
        *("label", "class", "classname", "labelname", "finding", "findinglabel", "findingname"),
        *("category", "categoryname", "disease", "diagnosis", "pathology", "lesion", "name"),
        *("findings", "lesiontype", "object", "classes", "labels", "classlabel"),
        *("klasse", "befund", "diagnose", "target"),
    ),
    "patient": ("patientid", "patient", "subjectid", "subject", "mrn", "caseid", "patientennummer"),
    "image_width": ("imagewidth", "imgwidth", "imgw", "columns", "originalwidth", "dim1"),
    "image_height": ("imageheight", "imgheight", "imgh", "rows", "originalheight", "dim0"),
}
_LEFT = ("xmin", "x0", "left", "xtl", "xleft", "bboxxmin", "boxxmin", "bbxmin", "minx", "links")
_TOP = ("ymin", "y0", "top", "ytl", "ytop", "bboxymin", "boxymin", "bbymin", "miny", "oben")
_RIGHT = ("xmax", "right", "xbr", "xright", "bboxxmax", "boxxmax", "bbxmax", "maxx", "rechts")
_BOTTOM = ("ymax", "bottom", "ybr", "ybottom", "bboxymax", "boxymax", "bbymax", "maxy", "unten")
_WIDE = ("w", "width", "bw", "bboxw", "bboxwidth", "boxwidth", "boxw", "breite")
_HIGH = ("h", "height", "bh", "bboxh", "bboxheight", "boxheight", "boxh", "höhe", "hoehe")
_X = ("x", "bboxx", "boxx")
_Y = ("y", "bboxy", "boxy")
# Names of the four columns -> the form that they say.
_FOURS: tuple[tuple[tuple[tuple[str, ...], ...], Form], ...] = (
    ((_LEFT, _TOP, _RIGHT, _BOTTOM), "xyxy"),
    ((("x0",), ("y0",), ("x1",), ("y1",)), "xyxy"),
    ((("x1",), ("y1",), ("x2",), ("y2",)), "xyxy"),
    ((("x1",), ("y1",), _WIDE, _HIGH), "xywh"),
    ((_X, _Y, _WIDE, _HIGH), "xywh"),
    ((_LEFT, _TOP, _WIDE, _HIGH), "xywh"),
    (
        (
            ("cx", "xcenter", "xcentre", "centerx", "centrex", "xc"),
            ("cy", "ycenter", "ycentre", "centery", "centrey", "yc"),
            _WIDE,
            _HIGH,
        ),
        "cxcywh",
    ),
)
_CELL = ("bbox", "box", "boundingbox", "bboxes", "boxes", "coordinates", "coords", "rect")
_CELL_FORMS: dict[str, Form] = {"xywh": "xywh", "xyxy": "xyxy", "cxcywh": "cxcywh"}
_NUMBER = re.compile(r"[-+]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][-+]?\d+)?")


class _Columns(NamedTuple):
    """Indices of the columns; `box` are four columns, or one that has four numbers."""

    image: int
    label: int | None
    box: tuple[int, ...]
    form: Form | None
    patient: int | None = None
    height: int | None = None
    width: int | None = None
    guessed: bool = False


class _Rows(NamedTuple):
    """A table's cells with the line that each row begins in."""

    header: list[str]
    rows: list[tuple[int, list[str]]]
    separator: str


def looks_like_boxes(path: Path, folder: Folder) -> bool:
    """Returns whether the first lines of a table have boxes."""
    try:
        with reading(path):
            _guess(_table(path, _SAMPLE), folder, Stated(label="box"), path)
    except UserError:
        return False
    return True


def read(folder: Folder, files: list[Path], said: Stated, found: Annotations) -> None:
    """Reads all tables, each with columns of its own.

    Raises:
        UserError: one cannot be read, or what its columns are is not clear.
    """
    for path in files:
        with reading(path):
            table = _table(path)
        columns = _guess(table, folder, said, path)
        found.told.append(f"{folder.where(path)}: {_told(table, columns)}")
        if columns.guessed:
            found.doubts.append(
                f"{folder.where(path)}: columns were detected by their content; pass --columns "
                "to set them"
            )
        _read_rows(folder, path, table, columns, said, found)


def _table(path: Path, most: int | None = None) -> _Rows:
    """The rows of a file; the first is the header unless it holds numbers of a box.

    Raises:
        ForeignError: it is no table.
    """
    text = _decode(read_bytes(path))
    if "\0" in text:
        raise ForeignError("zero bytes in it; save the table as UTF-8")
    lines = text.splitlines(keepends=True)
    line = 1
    # Excel's own first line says what divides cells.
    said = _SAID_SEPARATOR.fullmatch(lines[0].strip()) if lines else None
    if said:
        lines, line = lines[1:], 2
    separator = said[1] if said else _separator(text)
    begun = line
    try:
        reader = csv.reader(lines, delimiter=separator)
        rows: list[tuple[int, list[str]]] = []
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append((line, [cell.strip() for cell in cells]))
            line = reader.line_num + begun
            if most and len(rows) > most:
                break
    except csv.Error as error:
        raise ForeignError(f"{error}; is a quote not closed?", reader.line_num) from None
    if not rows:
        raise ForeignError("an empty table")
    if len(rows[0][1]) > _MOST_COLUMNS:
        raise ForeignError(f"{len(rows[0][1]):,} columns")
    if sum(map(_is_number, rows[0][1])) >= 4:
        return _Rows([], rows, separator)
    return _Rows(rows[0][1], rows[1:], separator)


def _decode(content: bytes) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            return content.decode("utf-16")
        except UnicodeDecodeError:
            raise ForeignError("not UTF-16, as its first bytes suggest; save it as UTF-8") from None
    return decode_text(content)


def _separator(text: str) -> str:
    """Returns the most frequent separator of the first line, outside of quotes and brackets."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]|\([^)]*\)', "", first)
    counts = {sign: bare.count(sign) for sign in _SEPARATORS}
    return max(_SEPARATORS, key=lambda sign: counts[sign])


def _is_number(cell: str) -> bool:
    return bool(_NUMBER.fullmatch(cell))


def _guess(table: _Rows, folder: Folder, said: Stated, path: Path) -> _Columns:
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

    patient = first("patient")
    image = first("image")
    if image is not None and image == patient:
        patient = None  # RSNA's patientId names its images
    if image is None:
        raise UserError(f"{path}:1: no column names the image; {_which(table, 'image')}")
    used |= {image} | ({patient} if patient is not None else set())
    label = first("label")
    if label is None and not said.label:
        raise UserError(
            f"{path}:1: no column names the class; {_which(table, 'label')}, or --label=NAME if "
            "all boxes are of one"
        )
    height, width = first("image_height"), first("image_width")
    if height is None and width is None:
        # Beside corners these are the image's.
        places = [names.index(name) if name in names else None for name in ("height", "width")]
        if None not in places and not {*places} & used:
            height, width = places
    return _Columns(image, None if said.label else label, box, form, patient, height, width)


def _named(header: Sequence[str], name: str, path: Path) -> int:
    if name not in header:
        found = ", ".join(map(shown, header[:30]))
        raise UserError(f"{path}:1: --columns names {shown(name)}, and there are {found}")
    return header.index(name)


def _box_columns(
    table: _Rows, names: list[str], said: Stated, path: Path
) -> tuple[tuple[int, ...], Form | None]:
    header = table.header
    if "box" in said.columns:
        places = tuple(_named(header, name, path) for name in said.columns["box"].split("+"))
        if len(places) not in (1, 4):
            raise UserError("--columns: box expects one column, or four joined by +")
        return places, None
    for four, form in _FOURS:
        found = [next((names.index(n) for n in group if n in names), None) for group in four]
        places = tuple(place for place in found if place is not None)
        if len(places) == 4:
            return places, form
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
    raise UserError(f"{path}:1: no columns of boxes; {_which(table, 'box')}")


def _which(table: _Rows, role: str) -> str:
    found = ", ".join(map(shown, table.header[:30]))
    value = "'A+B+C+D'" if role == "box" else "NAME"
    return f"found {found}; pass --columns={role}={value}"


def _by_content(table: _Rows, folder: Folder, said: Stated, path: Path) -> _Columns:
    """A table without a header: the image is what names one, the box four numbers in a row."""
    sample = [cells for _, cells in table.rows[:_SAMPLE]]
    count = min(map(len, sample))
    image = next(
        (
            place
            for place in range(count)
            if any(folder.size_or_none(cells[place]) for cells in sample)
        ),
        None,
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
    places = tuple(range(box, box + 4))
    return _Columns(image, None if said.label else label, places, None, guessed=True)


def _told(table: _Rows, columns: _Columns) -> str:
    def name(place: int) -> str:
        return table.header[place] if table.header else f"number {place + 1}"

    sign = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar"}[table.separator]
    parts = [f"image is column {name(columns.image)}"]
    if columns.label is not None:
        parts.append(f"class is {name(columns.label)}")
    parts.append(f"box is {', '.join(map(name, columns.box))}")
    if columns.patient is not None:
        parts.append(f"patient is {name(columns.patient)}")
    if columns.height is not None and columns.width is not None:
        parts.append(f"size of images is {name(columns.width)}, {name(columns.height)}")
    return f"{'; '.join(parts)} (cells end at a {sign})"


def _read_rows(
    folder: Folder, path: Path, table: _Rows, columns: _Columns, said: Stated, found: Annotations
) -> None:
    where = folder.where(path)
    given: list[tuple[str, str, Four]] = []
    needed = max(columns.image, columns.label or 0, *columns.box)
    seen: set[tuple[str, ...]] = set()
    for line, cells in table.rows:
        at = f"{where}:{line}"
        found.quality.examined["rows"] += 1
        name = cells[columns.image] if columns.image < len(cells) else ""
        try:
            if len(cells) <= needed or not name:
                told = f"{len(cells)} cells, expected an image and a box as in the header"
                raise Unusable("malformed_row", told)
            if any("\n" in cell for cell in cells):
                told = "a cell of several lines; is a quote not closed?"
                raise Unusable("malformed_row", told)
            if "\ufffd" in "".join(cells):
                raise Unusable("bad_encoding", "characters that were lost in another program")
            if tuple(cells) in seen:
                raise Unusable("duplicate_row", "the same row occurred before")
            seen.add(tuple(cells))
            size = _size(cells, columns)
            found.add_image(MarkedImage(name, at, size, _cell(cells, columns.patient)))
            numbers = _numbers(cells, columns, table.separator)
            label = said.label or _cell(cells, columns.label)
            if not numbers or (plain(label) in NOTHING and not any(numbers)):
                if plain(label) not in NOTHING and not said.label and not _is_number(label):
                    found.quality.warnings["rows that name a class and have no box"] += 1
                continue
            if plain(label) in NOTHING:
                raise Unusable("unknown_class", f"a box of class {shown(label)}")
            four = Four(numbers_of(numbers, 4), size or folder.size_or_none(name), at)
            given.append((name, label_of(label), four))
        except Unusable as why:
            found.set_aside(why, name or "?", at)
    fours = [four for _, _, four in given]
    if not fours:
        return
    if all(_is_number(label) for _, label, _ in given):
        column = table.header[columns.label] if table.header and columns.label is not None else ""
        raise UserError(
            f"{path}:1: the column of classes, {shown(column)}, contains only numbers, such as "
            f"{shown(given[0][1])}; {_which(table, 'label')}, or --label=NAME if all boxes are of "
            "one"
        )
    settled = settle(
        fours, where, columns.form, _units_of(table, columns), said.box_form, said.units
    )
    found.told.append(f"{where}: {settled.why}")
    for name, label, four in given:
        if four.image_hw is None and settled.units != "pixels":
            continue  # told once for the image, by whoever opens it
        box = in_pixels(four.numbers, settled, four.image_hw)
        found.boxes.append(MarkedBox(name, label, box, four.where))


def _cell(cells: Sequence[str], place: int | None) -> str:
    return cells[place] if place is not None and place < len(cells) else ""


def _size(cells: Sequence[str], columns: _Columns) -> tuple[int, int] | None:
    return size_of_entry(_cell(cells, columns.height), _cell(cells, columns.width))


def _units_of(table: _Rows, columns: _Columns) -> Units | None:
    """Returns the units that column names such as "x_center_norm" imply, if any."""
    if not table.header:
        return None
    together = " ".join(table.header[place].lower() for place in columns.box)
    if "norm" in together or "frac" in together or "rel" in together:
        return "fractions"
    return "percent" if "percent" in together or "%" in together else None


def _numbers(cells: Sequence[str], columns: _Columns, separator: str) -> list[str]:
    """The four numbers as text; none where their cells are empty.

    Raises:
        Unusable: they are others.
    """
    texts = [cells[place] for place in columns.box]
    if len(texts) == 1:
        if plain(texts[0]) in NOTHING:
            return []
        texts = re.findall(_NUMBER.pattern.replace("[.,]", r"\."), texts[0])
        if len(texts) != 4:
            found = f"{shown(cells[columns.box[0]])} has {len(texts)} numbers, expected 4"
            raise Unusable("bad_box", found)
        return texts
    if all(plain(text) in NOTHING for text in texts):
        return []
    comma = separator != ","
    return [text.replace(",", ".") if comma else text for text in texts]
