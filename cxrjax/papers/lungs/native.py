"""A folder of radiographs with lung masks: what belongs together, read from names and a table.

    FOLDER/images/NAME.jpeg     or NORMAL/ and PNEUMONIA/, as published, within folders or not
    FOLDER/masks/NAME.png       both lungs; or NAME_left.png and NAME_right.png, or masks/left/...
    FOLDER/lungs.csv            may miss: file, and of patient, finding, width, height, right_lung,
                                left_lung, view, split, image and v7_mask what there is

`width` and `height` are the original's, of which the file may be a squeezed copy; `right_lung` and
`left_lung` are boxes as fractions, x0 y0 x1 y1, finer than those of a mask that was scaled down;
`image` is a path relative to FOLDER where the image is not in images/. A mask or a row that names
an image without its folder or its ending belongs to it if no other image has that name. Without a
table every image is its own patient and nothing is known of findings, unless its name and folders
are those of Kermany's chest X-rays.
"""

import collections
import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.records_io.csv_table import TableRow, parse_size, read_table
from cxrjax.records_io.quality import QualityLog, Unusable, usable_name
from cxrjax.untrusted.names import path_inside

TABLE = "lungs.csv"
IMAGES, MASKS = "images", "masks"
SPLITS = ("train", "validation", "test")
# A name's ending that says what of its image a mask shows.
_ENDING = re.compile(r"[_-](?:(left|right)(?:[_-]?(?:lung|mask)){0,2}|(?:lungs?[_-]?)?mask)$", re.I)
_SIDE_FOLDER = re.compile(r"(left|right)[_ -]?(?:lungs?|masks?)?$", re.I)
_LATERAL = re.compile(r"(?:^|[^a-z])(?:lat|lateral)(?:[^a-z]|$)", re.I)
_LATERAL_VIEWS = ("l", "ll", "rl", "lat", "lateral")
# Kermany: person1_bacteria_1, IM-0115-0001, NORMAL2-IM-0012-0001-0002.
_KERMANY = re.compile(r"(person\d+)_(bacteria|virus)_|((?:NORMAL\d*-)?IM-\d+)-\d")
_FINDINGS = {"bacteria": "bacterial", "virus": "viral"}
# Folders of Kermany's chest X-rays where there is no images/.
_PUBLISHED = ("NORMAL", "PNEUMONIA", "train", "test", "val", "chest_xray")


@dataclasses.dataclass(frozen=True)
class LungImage:
    """An image with what is known of it before it is opened."""

    image_id: str
    name: str  # of the file, relative to its folder
    image: Path
    masks: Mapping[str, Path]  # side that its name says, "" where it says none -> file
    patient: str
    finding: str = ""  # as the table has it; "" where it is not known
    # (height, width) of the image that `image` is a copy of, None where not known.
    original_hw: tuple[int, int] | None = None
    # Of the right and the left lung as the table has them, fractions.
    boxes: tuple[Float[np.ndarray, "4"], Float[np.ndarray, "4"]] | None = None
    lateral: bool = False
    where: str = ""  # file and line, for messages
    split: str = ""  # as the table has it; "" where it says none


def patient_of(stem: str) -> str:
    """The patient in a name of Kermany's chest X-rays; another name is its own patient."""
    found = _KERMANY.match(stem)
    return (found[1] or found[3]) if found else stem


def finding_of(name: str) -> str:
    """Returns the finding that a name of Kermany's chest X-rays states; "" for other files."""
    *folders, stem = _stem(name).split("/")
    found = _KERMANY.match(stem)
    if found and found[2]:
        return _FINDINGS[found[2]]
    # A name such as IM-0001-0001 is any DICOM export's: the folder decides.
    named = {folder.upper() for folder in folders}
    return "normal" if "NORMAL" in named else "pneumonia" if "PNEUMONIA" in named else ""


def is_published(source: Path) -> bool:
    """Returns whether a folder's table is of V7's masks of Kermany's chest X-rays, CC BY 4.0."""
    rows = read_table(source / TABLE, ["file"]) if (source / TABLE).is_file() else iter(())
    return any("v7_mask" in row.cells and row.cells["v7_mask"] for row in rows)


def read_folder(source: Path, quality: QualityLog) -> Iterator[LungImage]:
    """The images, in the order of their names; what belongs to none is set aside.

    Raises:
        UserError: there is no folder of images, or the table cannot be read or puts a patient into
            two splits.
    """
    table = source / TABLE
    splits: dict[str, str] = {}
    files = _published(source)
    aliases = _aliases(files)
    rows: dict[str, TableRow] = {}
    for row in read_table(table, ["file"]) if table.is_file() else ():
        quality.examined["rows"] += 1
        name = row.cells["file"]
        name = name if name in files else aliases.get(name, name)
        if row.fault is not None:
            quality.set_aside(row.fault.reason, name or "?", row.where, row.fault.found)
        elif name in rows:
            found = f"file {name!r} stood there before, in {rows[name].where}"
            quality.set_aside("duplicate_id", name, row.where, found)
        else:
            rows[name] = row
    files |= {name: path for name, row in rows.items() if (path := _elsewhere(source, row))}
    if not files:
        raise UserError(
            f"{source}: no images in {IMAGES}/ of it; expected {IMAGES}/, {MASKS}/ and perhaps "
            f"{TABLE} (data/lungs/README.md)"
        )
    masks = _masks(source / MASKS, files)
    seen: dict[str, str] = {}
    for name in sorted(files.keys() | rows.keys()):
        quality.examined["images"] += 1
        own_masks = masks.pop(_stem(name), {})
        where = rows[name].where if name in rows else f"{IMAGES}/{name}"
        with quality.rejecting(name, where):
            if name not in files:
                raise Unusable("missing_image", f"{IMAGES}/{name} is not there")
            other = seen.setdefault(_stem(name), name)
            if other != name:
                raise Unusable("duplicate_id", f"{name} and {other} have one name; rename one")
            image = _image(name, files[name], own_masks, rows.get(name), where)
            split = splits.setdefault(image.patient, image.split)
            if split != image.split:
                raise UserError(
                    f"{table}: {where}: patient {image.patient} is of split {image.split!r} here "
                    f"and of {split!r} before; give all images of a patient one split"
                )
            yield image
    for stem, left in sorted(masks.items()):
        for path in left.values():
            found = f"no image in {IMAGES}/ is named {stem}; expected one for each mask"
            name = path.relative_to(source).as_posix()
            quality.set_aside("unmatched_mask", stem, name, found)


def _names(folder: Path) -> Iterator[str]:
    """Files in a folder and below it, relative to it; hidden ones are none."""
    with reading(folder, "the folder"):
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.is_file() and not path.name.startswith("."):
                yield path.relative_to(folder).as_posix()


def _published(source: Path) -> dict[str, Path]:
    """Name -> file of the images in images/, or in folders as Kermany's are published."""
    if (source / IMAGES).is_dir():
        return {name: source / IMAGES / name for name in _names(source / IMAGES)}
    return {
        f"{folder}/{name}": source / folder / name
        for folder in _PUBLISHED
        for name in _names(source / folder)
    }


def _aliases(files: Iterable[str]) -> dict[str, str]:
    """Returns unique further names of images: without folders, without suffix, or both."""
    named: dict[str, set[str]] = collections.defaultdict(set)
    for name in files:
        own = name.rpartition("/")[2]
        for alias in {_stem(name), own, _stem(own)}:
            named[alias].add(name)
    return {alias: next(iter(names)) for alias, names in named.items() if len(names) == 1}


def _elsewhere(source: Path, row: TableRow) -> Path | None:
    """The image of a row that says where it is."""
    named = row.cells.get("image", "")
    try:
        return path_inside(source, named) if named else None
    except ForeignError as error:
        raise UserError(f"{source / TABLE}: {row.where}: image: {error}") from None


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def _masks(folder: Path, files: Collection[str]) -> dict[str, dict[str, Path]]:
    """Stem of an image -> its masks by side. A mask named like an image belongs to that one."""
    images, aliases = {_stem(name) for name in files}, _aliases(files)
    found: dict[str, dict[str, Path]] = collections.defaultdict(dict)
    for name in _names(folder):
        if name.endswith((".csv", ".json", ".txt", ".md")):
            continue
        stem, side = _stem(name), ""
        first, slash, rest = stem.partition("/")
        if slash and (in_folder := _SIDE_FOLDER.match(first)):
            stem, side = rest, in_folder[1].lower()
        if stem not in images and stem not in aliases and (ending := _ENDING.search(stem)):
            stem, side = stem[: ending.start()], (ending[1] or side).lower()
        if stem not in images and stem in aliases:
            stem = _stem(aliases[stem])
        # A second mask of one side has a place of its own, so that it is not overlooked.
        while side in found[stem]:
            side += "+"
        found[stem][side] = folder / name
    return dict(found)


def _image(
    name: str, path: Path, masks: Mapping[str, Path], row: TableRow | None, where: str
) -> LungImage:
    cells = row.cells if row else {}
    stem = _stem(name)
    width, height = cells.get("width", ""), cells.get("height", "")
    boxes = [_box(cells, side) for side in ("right_lung", "left_lung")]
    return LungImage(
        usable_name(stem.replace("/", "-")),
        name,
        path,
        masks,
        cells.get("patient") or patient_of(stem.rpartition("/")[2]),
        cells.get("finding", "").strip().lower() or finding_of(name),
        parse_size(height, width) if width or height else None,
        (boxes[0], boxes[1]) if boxes[0] is not None and boxes[1] is not None else None,
        bool(_LATERAL.search(stem)) or cells.get("view", "").strip().lower() in _LATERAL_VIEWS,
        where,
        _split(cells, where),
    )


def _split(cells: Mapping[str, str], where: str) -> str:
    split = cells.get("split", "").strip().lower()
    if split and split not in SPLITS:
        raise UserError(f"{where}: split is {split!r}; expected one of {', '.join(SPLITS)} or none")
    return split


def _box(cells: Mapping[str, str], side: str) -> Float[np.ndarray, "4"] | None:
    if not (written := cells.get(side, "")):
        return None
    try:
        x_min, y_min, x_max, y_max = map(float, written.split())
    except ValueError:
        x_min, y_min, x_max, y_max = 1.0, 0.0, 0.0, 0.0
    if not (0 <= x_min < x_max <= 1 and 0 <= y_min < y_max <= 1):
        raise Unusable("bad_box", f"{side} is {written!r}; expected x0 y0 x1 y1 as fractions")
    return np.array([x_min, y_min, x_max, y_max])
