"""Columns of a table by role: found by their names, or by their content where there are none."""

import contextlib
import re
from typing import NamedTuple

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.annotation import by_whom, plain
from cxrjax.apps.annotations.coordinates import Form
from cxrjax.apps.annotations.folder import Folder, flagged_split, names_split, split_of
from cxrjax.apps.annotations.json_paths import said_of
from cxrjax.apps.annotations.keys import four_of, listed, value_of_cell
from cxrjax.apps.annotations.tables import SAMPLE, SEPARATORS, Rows, is_number
from cxrjax.errors import UserError
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.names import shown

_NAMES: dict[str, list[str]] = an.WORDS["columns"]
_OPTIONAL = (
    "label",
    "image_height",
    "image_width",
    "reader",
    "confidence",
    "split",
    "source",
    "predicted",
)
_CELLS: dict[str, list[str]] = dict(an.WORDS["cells"])
_MAYBE = _CELLS.pop("maybe")
_ORDERS: dict[str, str] = an.WORDS["orders"]
_SHAPES = "regionshapeattributes"
_RUNS = "predictionstring"
_VIA3 = "spatialcoordinates"
_CODED = re.compile(r"[012](?: \d+(?:\.\d+)?){4}")
# RSNA's table of 2018 has boxes of one class, marked by 1.
_RSNA = ("patientid", "x", "y", "width", "height", "target")
_NO_SPLIT = ("UNASSIGNED", "")
_UNNAMED = "split that names none"
_RSNA_CLASS = "Lung opacity"
_UNIT_WORD = re.compile(an.WORDS["patterns"]["unit"])
Flags = tuple[tuple[int, str], ...]


class Columns(NamedTuple):
    """Indices of the columns by role.

    Attributes:
        box: four columns, or one that has boxes.
        order: of the numbers of a box in one cell.
        flags: columns that state splits, such as "is_test", or deny or withdraw classes, such as
            "present" and "deleted", with the name that states it.
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
    flags: Flags = ()


def columns_of(rows: Rows, folder: Folder, said: an.Stated) -> Columns:
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
    taken = {*map(found.get, ("image", "label", "patient", "reader")), *where.box}
    return where._replace(roles=found, label=label, flags=_find_flags(rows, found, taken))


def _find_flags(rows: Rows, found: dict[str, int], used: set[int | None]) -> Flags:
    """Returns columns of flags, and adds that of splits: a named one, else one of splits alone."""
    cells = [
        {of[place] for _, of in rows.rows[:SAMPLE] if place < len(of)} - {*_NO_SPLIT}
        for place in range(len(rows.header))
    ]
    named = found.get("split")
    if named is None or not any(map(split_of, cells[named])):
        free = (p for p in range(len(cells)) if p not in used and cells[p])
        place = next((p for p in free if all(map(names_split, cells[p]))), None)
        if named is not None:
            found[_UNNAMED] = found.pop("split")
        if place is not None:
            found["split"] = place
    free = (place for place in range(len(cells)) if place not in used and cells[place])
    by = next((p for p in free if all(by_whom(cell) for cell in cells[p])), None)
    if "source" not in found and by is not None:
        found["source"] = by
    named_flags = ((place, _flag(rows, place)) for place in range(len(cells)) if place not in used)
    return tuple(
        (place, name)
        for place, name in named_flags
        if an.may_deny(name) or any(flagged_split({name: cell}) for cell in cells[place])
    )


def _flag(rows: Rows, place: int) -> str:
    """The name of a column, which says what it means where its own has two meanings."""
    name = rows.header[place]
    if plain(name) != "isvalid":
        return name
    return an.word_for_valid(of[place] for _, of in rows.rows if place < len(of))


def _named(rows: Rows, name: str) -> int:
    if name not in rows.header:
        found = ", ".join(map(shown, rows.header[:30]))
        raise rows.fault(f"--columns names {shown(name)}, and there are {found}")
    return rows.header.index(name)


def _box_columns(rows: Rows, names: list[str], said: an.Stated) -> Columns:
    """The columns of boxes, and what their names state."""
    if "box" in said.columns:
        places = tuple(_named(rows, name) for name in said.columns["box"].split("+"))
        if len(places) not in (1, 4):
            raise UserError("--columns: box expects one column, or four joined by +")
        return _one_cell(rows, places[0]) if len(places) == 1 else Columns(places, None, {})
    for spelled in (names, [_UNIT_WORD.sub("", name) for name in names]):
        if found := four_of(spelled):
            rest = ["" if place in found[0] else name for place, name in enumerate(spelled)]
            bare = [re.sub(r"(?<=.)\d$", "", name) for name in rest]
            if not four_of(rest) and (second := four_of(bare)):
                told = ", ".join(shown(rows.header[place]) for place in second[0])
                raise rows.fault(f"columns {told} hold a second box; expected one box a row")
            return Columns(*found, {})
    if _SHAPES in names:
        return Columns((names.index(_SHAPES),), None, {})
    for kind, words in _CELLS.items():
        for place, name in enumerate(names):
            if name in words or (kind == "box" and name.startswith(tuple(words))):
                return _one_cell(rows, place, kind)
    if _RUNS in names:
        return Columns((names.index(_RUNS),), "xyxy", {})
    for place in (place for place, name in enumerate(names) if name in _MAYBE):
        cell = _first_cell(rows, place)
        if _CODED.match(cell):
            return Columns((place,), "xyxy", {}, kind="coded")
        if re.match(r"[\[{(]", cell):
            return _one_cell(rows, place)
    raise rows.fault("no columns of boxes", "box")


def _first_cell(rows: Rows, place: int) -> str:
    cells = (cells[place] for _, cells in rows.rows if place < len(cells))
    return next((cell for cell in cells if cell not in ("", "[]", "{}")), "")


def _labelled(rows: Rows, columns: Columns) -> bool:
    """Returns whether boxes in cells have their classes with them."""
    with contextlib.suppress(Unusable):
        value = listed(value_of_cell(_first_cell(rows, columns.box[0])))
        return any(bool(said_of(one, "label")) for one in value[:1])
    return False


def _one_cell(rows: Rows, place: int, kind: str = "box") -> Columns:
    """A column of boxes, whose header may state the order of their numbers."""
    name = rows.header[place]
    if plain(name) == _VIA3 or kind != "box":
        return Columns((place,), None, {}, kind="via3" if plain(name) == _VIA3 else kind)
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
        return Columns(tuple(place + number for number in order), form, {})
    return Columns((place,), form, {}, order=order)


def _by_content(rows: Rows, folder: Folder, said: an.Stated) -> Columns:
    """A table without a header: the image is what names one, the box four numbers in a row."""
    sample = [cells for _, cells in rows.rows[:SAMPLE]]
    # Columns without anything in them are left out: AutoML has four between the corners.
    places = [p for p in range(min(map(len, sample))) if any(of[p] for of in sample)]
    splits = [p for p in places if all(split_of(of[p]) or of[p] in _NO_SPLIT for of in sample)]
    places = [p for p in places if p not in splits]
    numeric = {p for p in places if all(not of[p] or is_number(of[p]) for of in sample)}
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
        return Columns(four, "xyxy" if listed else None, roles, said.label)
    return Columns(four, None, roles, said.label, guessed=True)


def told_of(rows: Rows, columns: Columns) -> str:
    def names(*places: int) -> str:
        return ", ".join(rows.header[p] if rows.header else f"number {p + 1}" for p in places)

    roles = columns.roles
    parts = {"image is column": names(roles["image"])}
    if columns.label or "label" in roles:
        label = f"{columns.label} of all boxes" if columns.label else names(roles["label"])
        parts["class is"] = label
    parts["box is"] = names(*columns.box)
    kinds = ("patient", "reader", "confidence", "split", _UNNAMED)
    parts |= {f"{role} is": names(roles[role]) for role in kinds if role in roles}
    if columns.flags:
        parts["flags are"] = ", ".join(name for _, name in columns.flags)
    if {"image_height", "image_width"} <= roles.keys():
        parts["size of images is"] = names(roles["image_width"], roles["image_height"])
    sign = SEPARATORS.get(rows.separator, f"'{rows.separator}'")
    told = "; ".join(f"{what} {name}" for what, name in parts.items())
    return f"{told} (cells end at a {sign})"
