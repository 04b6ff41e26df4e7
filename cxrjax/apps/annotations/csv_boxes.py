"""Tables with a row a box, whose columns are guessed; what is guessed is reported.

A decimal comma is read where commas do not separate. A row without numbers means that nothing is
marked. Cells may hold JSON, lists of boxes, or Kaggle's runs of class, confidence and corners.
"""

import collections
import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations import masks
from cxrjax.apps.annotations.annotation import Annotation, Rejected, Shape
from cxrjax.apps.annotations.columns import Columns, columns_of, told_of
from cxrjax.apps.annotations.folder import Folder, flagged_split, split_of
from cxrjax.apps.annotations.json_paths import fields_of, said_of
from cxrjax.apps.annotations.keys import (
    cell_of,
    listed,
    shape_of,
    shape_of_via3,
    units_in,
    value_of_cell,
)
from cxrjax.apps.annotations.tables import NUMBER, SAMPLE, Rows, is_number, table
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.names import shown

_MOST_CLASSES = 20_000
_NUMBERED = ("classid", "categoryid", "labelid", "clsid", "classnumber", "classno")
_PAIR = re.compile(r"([A-Za-z_]\w{0,20})\s{0,3}[:=]\s{0,3}(-?[\d.]+)")
_NUMBERS = re.compile(NUMBER.pattern.replace("[.,]", r"\."))


class _Mark(NamedTuple):
    """A class that a row marks, where it is, and how sure a model is of it."""

    label: str
    shape: Shape | None = None
    confidence: float | None = None
    why: Unusable | None = None


def looks_like_boxes(path: Path, folder: Folder) -> bool:
    """Returns whether the first lines of a table have boxes."""
    with contextlib.suppress(UserError), reading(path):
        columns_of(table(path, folder, SAMPLE), folder, an.Stated(label="box"))
        return True
    return False


def read(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of one table."""
    rows = table(path, folder)
    columns = columns_of(rows, folder, said)
    where = folder.where(path)
    found.told.append(f"{where}: {told_of(rows, columns)}")
    if columns.guessed:
        found.doubts.append(
            f"{where}: columns were detected by their content; pass --columns to set them"
        )
    found.doubts += _number_doubts(where, rows, columns)
    if rows.doubt:
        found.doubts.append(
            f"{where}: not UTF-8, read as Windows-1252 ({rows.doubt}); save it as UTF-8 if "
            "letters are wrong"
        )
    for line, why in rows.broken:
        yield Rejected(where, f":{line}", Unusable("malformed_row", why))
    entries = list(_read_rows(folder, where, rows, columns, found))
    labels = {one.label for one in entries if isinstance(one, Annotation) and one.shape}
    names = _names_of(labels, folder, path, said)
    if not names and labels and all(map(is_number, labels)):
        place = columns.roles.get("label")
        column = rows.header[place] if rows.header and place is not None else ""
        told = f"the column of classes, {shown(column)}, contains only numbers, such as "
        more = ", or --label=NAME if all boxes are of one"
        raise UserError(f"{rows.fault(told + shown(min(labels)), 'label')}{more}")
    for one in entries:
        if isinstance(one, Annotation) and one.label in names:
            one = dataclasses.replace(one, label=names[one.label])
        yield one


def _number_doubts(where: str, rows: Rows, columns: Columns) -> Iterator[str]:
    """Yields doubts about numbers of classes that have several names in another column."""
    place, name = columns.roles.get("label", 0), -1
    for at, header in enumerate(rows.header):
        name = at if an.plain(header) in _NUMBERED and at != place else name
    names: dict[str, set[str]] = collections.defaultdict(set)
    for _, cells in rows.rows if name >= 0 else ():
        if max(place, name) < len(cells) and cells[place] and cells[name]:
            names[cells[name]].add(an.plain(cells[place]))
    if two := next((key for key, of in names.items() if len(of) > 1), ""):
        listed = ", ".join(map(shown, sorted(names[two])[:3]))
        yield f"{where}: {shown(rows.header[name])} {shown(two)} has several names: {listed}"


def _names_of(labels: set[str], folder: Folder, path: Path, said: an.Stated) -> dict[str, str]:
    """Number or code of a class -> its name, by --classes or a table of two columns."""
    if not labels or not all(is_number(label) or label.startswith("/") for label in labels):
        return {}
    if said.classes:
        return {f"{n}{end}": name for n, name in enumerate(said.classes) for end in ("", ".0")}
    found: dict[Path, dict[str, str]] = {}
    for other in folder.files:
        if other == path or other.suffix.lower() not in (".csv", ".tsv"):
            continue
        with contextlib.suppress(OSError, ForeignError):
            rows = table(other, folder, _MOST_CLASSES)
            listed = [rows.header, *(cells for _, cells in rows.rows)]
            pairs = {cells[0]: cells[1] for cells in listed if len(cells) == 2}
            for names in (pairs, {name: key for key, name in pairs.items()}):
                if labels <= names.keys() and not any(is_number(names[one]) for one in labels):
                    found[other] = {one: names[one] for one in labels}
    return an.agreed(found) if found else {}


def _read_rows(
    folder: Folder, where: str, rows: Rows, columns: Columns, found: an.Annotations
) -> an.Entries:
    seen: set[tuple[str, ...]] = set()
    together = " ".join(rows.header[p].lower() for p in columns.box) if rows.header else ""
    units = units_in(together)
    for line, cells in rows.rows:
        row = {role: cells[p] for role, p in columns.roles.items() if p < len(cells)}
        about = Annotation(
            _one_name(row.get("image", "")),
            where,
            f":{line}",
            label="" if is_number(row.get("label", "")) else row.get("label", ""),
            reader=row.get("reader", ""),
            image_hw=an.size_of_entry(row.get("image_height"), row.get("image_width")),
            patient=row.get("patient", ""),
            prediction=an.by_model(row.get("source", ""), row.get("predicted", "")),
        )
        try:
            too_many = rows.header and any(cells[len(rows.header) :])
            if too_many or len(cells) <= max(columns.box) or not about.image:
                told = f"{len(cells)} cells, expected an image and a box as in the header"
                raise Unusable("malformed_row", told)
            if "\ufffd" in "".join(cells):
                raise Unusable("bad_encoding", "characters that were lost in another program")
            if tuple(cells) in seen:
                raise Unusable("duplicate_row", "the same row occurred before")
            seen.add(tuple(cells))
            flags = {name: cells[p] for p, name in columns.flags if p < len(cells)}
            attributes = _attributes(row, rows.options)
            is_denied = an.is_denied(flags, attributes)
            split = split_of(row.get("split", "")) or flagged_split(flags)
            about = dataclasses.replace(about, split=split)
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
            if is_denied:
                marked = [_Mark("")]
                found.quality.warnings[an.DENIED] += 1
            stated = row.get("confidence", "")
            if attributes and not stated:
                stated = said_of(attributes, "confidence")
            beside = _confidences(stated, len(marked))
        except Unusable as why:
            yield Rejected(where, about.place, why, about.image, about.label)
            continue
        for (label, shape, confidence, fault), sure in zip(marked, beside, strict=True):
            if fault:
                yield Rejected(where, about.place, fault, about.image, label or about.label)
                continue
            if shape is not None and shape.units is None and not shape.exact:
                shape = shape._replace(units=units)
            sure = sure if confidence is None else confidence
            yield dataclasses.replace(about, label=label, shape=shape, confidence=sure)


def _attributes(row: dict[str, str], options: Any) -> Any:
    """The attributes in the cell of the class, whose options get their names there."""
    found = value_of_cell(row["label"]) if row.get("label", "").startswith("{") else {}
    if options and isinstance(found, dict):
        found = an.described(found, options)
        row["label"] = json.dumps(found)
    return found


def _confidences(cell: str, count: int) -> list[float | None]:
    """Confidences of a row's marks, of a cell with a number or a list."""
    numbers = [an.confidence_of(one) for one in listed(cell_of(cell))] or [None]
    return numbers if len(numbers) == count else numbers[:1] * count


def _one_name(cell: str) -> str:
    """The name of an image in a cell, which may be a list of one."""
    with contextlib.suppress(Unusable):
        names = cell_of(cell)
        return names[0] if isinstance(names, list) and len(names) == 1 else cell
    return cell


def _marked(row: Mapping[str, str], marks: list[_Mark], columns: Columns) -> list[_Mark]:
    """Marks of a row, with the classes of its cell."""
    written = row.get("label", "")
    if (run := _run(written)) and len(run) == len(marks):
        return [mark._replace(label=one.label) for one, mark in zip(run, marks, strict=True)]
    if columns.label and (marks or an.number_or_none(written) == 1):
        return [mark._replace(label=columns.label) for mark in marks] or [_Mark(columns.label)]
    labels = [run[0].label] if run else _labels(written, len(marks))
    if not marks:
        usable = ("" if an.is_normal(one) or is_number(one) else one for one in labels)
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
        value = cell_of(cell)
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            return value
    parts = [part.strip() for part in re.split(r"[;|]", cell) if part.strip()]
    if len(parts) == 1 and 1 < boxes == cell.count(",") + 1:
        parts = [part.strip() for part in cell.split(",")]
    return parts or [""]


def _run(text: str) -> list[_Mark] | None:
    """Boxes of Kaggle's text, runs of class, confidence and corners; None of other text."""
    words = text.split()
    if len(words) < 6 or len(words) % 6 or not all(map(is_number, words[1:6])):
        return None
    found: list[_Mark] = []
    for label, sure, *numbers in zip(*[iter(words)] * 6, strict=True):
        shape = Shape(an.numbers_of(numbers, 4), "xyxy", exact=False)
        is_normal = an.is_normal(label)
        found.append(_Mark("") if is_normal else _Mark(label, shape, an.number_or_none(sure)))
    return found


def _shapes(texts: list[str], columns: Columns, has_commas: bool, label: str) -> list[_Mark]:
    """The boxes of a row, with classes that their own cell has; none where cells are empty."""
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
        items = [value] if is_one else listed(value)
        marks = [_object(one, columns) for one in items]
        return [mark for mark in marks if mark.shape is not None or mark.why]
    if len(pairs := _PAIR.findall(text)) > 3:
        fours = (dict(pairs[at : at + 4]) for at in range(0, len(pairs), 4))
        return [_Mark("", shape_of(four, columns.form)) for four in fours]
    found = []
    for part in filter(str.strip, re.split(r"[;|\n]", text)):
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


def _object(one: Any, columns: Columns) -> _Mark:
    """A box of a cell of JSON, with its class where no column has it."""
    label = said_of(one, "label") if "label" not in columns.roles else ""
    try:
        if an.is_denied(*fields_of(one)):
            return _Mark("")
    except Unusable as why:
        return _Mark(label, why=why)
    shape = shape_of(_ordered(one, columns.order), columns.form)
    return _Mark(label, shape, an.confidence_of(said_of(one, "confidence")))


def _ordered(numbers: Any, order: tuple[int, ...]) -> Any:
    """Four numbers in the usual order; anything else as it is."""
    if not isinstance(numbers, list) or len(numbers) != 4:
        return numbers
    return [numbers[place] for place in order]
