"""The table of boxes behind VinDr-CXR-VQA: one row per reader's box, or per reader's "No finding".

Columns (Kaggle's train.csv): image_id, class_name, class_id, rad_id, x_min, y_min, x_max, y_max;
pixels of the original image, blank for "No finding". Mirrors add width and height. PhysioNet's
files may spell rad_ID and have no class_id; those of its test images have no reader either, since
five readers agreed on them. The torchxrayvision wheel carries the Kaggle table.
"""

import csv
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.annotation import (
    CLASS_IDS,
    CLASSES,
    NO_FINDING,
    OTHER_LOCAL_CLASSES,
    FindingBox,
    ImageAnnotation,
)
from cxrjax.paths import to_path
from cxrjax.records_io.csv_table import TableRow, parse_size, read_table
from cxrjax.records_io.quality import PixelBox, QualityLog, Unusable, check_box, usable_name

WHEEL_MEMBER = "torchxrayvision/data/vinbigdata-train.csv.gz"
COLUMNS = ("image_id", "class_name", "class_id", "rad_id", "x_min", "y_min", "x_max", "y_max")
SPELLINGS = {"rad_ID": "rad_id"}
_COORDINATES = COLUMNS[4:]
_REQUIRED = ("image_id", "class_name", "rad_id", *_COORDINATES)
# Names in lower case -> as they are written.
_KNOWN = {name.casefold(): name for name in (*CLASS_IDS, *OTHER_LOCAL_CLASSES)}
# Faults that leave an image's other rows as true as they were.
_ROW_ALONE = ("class_not_selected", "duplicate_row")


@dataclasses.dataclass(frozen=True)
class BoxRow:
    """One row. `finding` is None for "No finding"; `where` is file and line."""

    image_id: str
    rad_id: str
    finding: FindingBox | None
    image_hw: tuple[int, int] | None
    where: str


def _box(cells: Mapping[str, str]) -> PixelBox:
    try:
        x_min, y_min, x_max, y_max = (float(cells[name]) for name in _COORDINATES)
    except ValueError:
        found = ", ".join(f"{name}={cells[name]!r}" for name in _COORDINATES)
        raise Unusable("bad_box", f"{found}; expected four numbers") from None
    return x_min, y_min, x_max, y_max


def _image_hw(cells: Mapping[str, str]) -> tuple[int, int] | None:
    if not cells.get("width") or not cells.get("height"):
        return None
    return parse_size(cells["height"], cells["width"])


def _row(row: TableRow, reader: str | None) -> BoxRow:
    """One row from its cells; raises `Unusable` where it cannot be used."""
    if row.fault:
        raise row.fault
    cells = {name: cell.strip() for name, cell in row.cells.items()}
    named = cells["class_name"]
    label, image_hw = _KNOWN.get(named.casefold(), named), _image_hw(cells)
    for name in ("image_id",) if reader else ("image_id", "rad_id"):
        if not cells[name]:
            raise Unusable("malformed_row", f"{name} is blank")
    usable_name(cells["image_id"])
    if label in OTHER_LOCAL_CLASSES:
        raise Unusable("class_not_selected", label)
    if label not in CLASS_IDS:
        raise Unusable("unknown_class", f"class_name {label!r}; expected one of {list(CLASS_IDS)}")
    class_id = cells.get("class_id")
    # "3.0" is how a table with blank ids comes out of pandas.
    if class_id and class_id.removesuffix(".0") != str(CLASS_IDS[label]):
        raise Unusable("class_id_mismatch", f"{label} with class_id {class_id}, not its own")
    finding = None
    if label != NO_FINDING:
        box = _box(cells)
        check_box(box, image_hw, label)
        finding = FindingBox(label, box)
    elif any(cells[name] for name in _COORDINATES):
        raise Unusable("bad_box", f"{NO_FINDING!r} with a box; expected blank coordinates")
    return BoxRow(cells["image_id"], reader or cells["rad_id"], finding, image_hw, row.where)


class _Earlier:
    """Remembers rows, to notice those that repeat or contradict them."""

    def __init__(self) -> None:
        self._rows: set[tuple[str, str, FindingBox | None]] = set()
        self._normal: dict[tuple[str, str], bool] = {}
        self._sizes: dict[str, tuple[int, int] | None] = {}

    def check(self, row: BoxRow) -> None:
        """Raises `Unusable` where an earlier row says the same or the opposite."""
        size = self._sizes.setdefault(row.image_id, row.image_hw)
        if size != row.image_hw:
            raise Unusable("size_mismatch", f"height, width {row.image_hw}, further up {size}")
        content = (row.image_id, row.rad_id, row.finding)
        if content in self._rows:
            what = f"{row.finding.label} box {list(row.finding.box)}" if row.finding else NO_FINDING
            raise Unusable("duplicate_row", f"reader {row.rad_id}, {what}")
        self._rows.add(content)
        normal = row.finding is None
        if self._normal.setdefault((row.image_id, row.rad_id), normal) != normal:
            found = f"reader {row.rad_id} has {NO_FINDING!r} and a box on this image"
            raise Unusable("contradictory_rows", found)


def read_box_table(
    path: str | Path, quality: QualityLog | None = None, reader: str | None = None
) -> list[ImageAnnotation]:
    """Images in order of first appearance, normal ones too, with what every reader marked.

    Args:
        path: csv, csv.gz or the torchxrayvision wheel.
        quality: where to note what cannot be used. An image with a row that cannot be used is set
            aside whole, for without that row its truth would be another; a row of a class that is
            not selected, or that stands there twice, only drops that row. Without a log the first
            such row is an error.
        reader: who marked everything in a table without readers; by default readers are required.

    Raises:
        UserError: the file cannot be read, a column is missing, or (without `quality`) a row
            cannot be used.
    """
    log = QualityLog() if quality is None else quality
    rows: list[BoxRow] = []
    spoilt: set[str] = set()
    other_findings: set[str] = set()
    earlier = _Earlier()
    for row in _table(path, reader):
        log.examined["rows"] += 1
        image_id = row.cells["image_id"].strip()
        try:
            read = _row(row, reader)
            earlier.check(read)
            rows.append(read)
        except Unusable as fault:
            log.set_aside(fault.reason, image_id, row.where, fault.found)
            if fault.reason not in _ROW_ALONE:
                spoilt.add(image_id)
            elif fault.reason == "class_not_selected":
                # The reader did look at the image: keep the reader, without this finding.
                rad_id = reader or row.cells["rad_id"].strip()
                rows.append(BoxRow(image_id, rad_id, None, _image_hw(row.cells), row.where))
                other_findings.add(image_id)
    if quality is None and log.entries:
        one = log.entries[0]
        raise UserError(f"{one.where}: {one.item}: {one.reason}: {one.found}")
    images = _group(row for row in rows if row.image_id not in spoilt)
    return [
        dataclasses.replace(image, other_findings=image.image_id in other_findings)
        for image in images
    ]


def _table(path: str | Path, reader: str | None) -> Iterator[TableRow]:
    required = [name for name in _REQUIRED if reader is None or name != "rad_id"]
    return read_table(to_path(path), required, SPELLINGS, WHEEL_MEMBER)


def _group(rows: Iterable[BoxRow]) -> list[ImageAnnotation]:
    """Rows gathered by image."""
    images: dict[str, ImageAnnotation] = {}
    for row in rows:
        image = images.get(row.image_id)
        if image is None:
            image = images[row.image_id] = ImageAnnotation(
                row.image_id, f"images/{row.image_id}.dicom", row.image_hw, [], {}
            )
        marked = image.readers.setdefault(row.rad_id, [])
        if row.finding is not None:
            marked.append(row.finding)
            image.findings.append(row.finding)
    return list(images.values())


def write_box_table(path: Path, annotations: Iterable[ImageAnnotation]) -> int:
    """Writes what the readers marked as a Kaggle table with width and height; returns the rows."""
    count = 0
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*COLUMNS, "width", "height"])
        for image in annotations:
            height, width = image.image_hw or ("", "")
            for rad_id, marked in image.readers.items():
                findings: list[FindingBox | None] = [*marked] or [None]
                for finding in findings:
                    label = finding.label if finding else NO_FINDING
                    box = [_number(value) for value in finding.box] if finding else [""] * 4
                    writer.writerow(
                        [image.image_id, label, CLASS_IDS[label], rad_id, *box, width, height]
                    )
                    count += 1
    return count


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


# What a cell may say; blank counts as absent.
_VALUES = {"": False, "0": False, "0.0": False, "1": True, "1.0": True}


def check_image_labels(
    path: Path,
    images: Iterable[ImageAnnotation],
    quality: QualityLog,
    reader: str | None = None,
) -> None:
    """Counts, as warnings, where labels and boxes of a reader differ.

    Compared are the 14 selected classes, and "No finding" against having any box. (The global
    labels have no boxes, so that a reader without boxes may still have seen something.)

    Args:
        images: as the table of boxes has them.
        quality: takes the warnings; rows that cannot be used are set aside.
        reader: who labelled everything, for a file without readers.

    Raises:
        UserError: the file cannot be read, or a column is missing.
    """
    marked = {
        (image.image_id, rad_id): {finding.label for finding in findings}
        for image in images
        for rad_id, findings in image.readers.items()
    }
    required = ["image_id", *CLASSES, NO_FINDING] + ([] if reader else ["rad_id"])
    seen: set[tuple[str, str]] = set()
    for row in read_table(path, required, SPELLINGS):
        quality.examined["rows of image labels"] += 1
        key = (row.cells["image_id"], reader or row.cells["rad_id"])
        with quality.rejecting(key[0], row.where):
            labelled = _labelled(row)
            if key in seen:
                raise Unusable("duplicate_row", f"reader {key[1]} labelled this image further up")
            seen.add(key)
            if key not in marked:
                quality.warnings["image labels of an image and reader without rows of boxes"] += 1
                continue
            for label in sorted(labelled & set(CLASSES) - marked[key]):
                quality.warnings[f"image labels: {label} labelled, without a box"] += 1
            for label in sorted(marked[key] - labelled):
                quality.warnings[f"image labels: {label} boxed, and not labelled"] += 1
            if NO_FINDING in labelled and marked[key]:
                quality.warnings[f"image labels: {NO_FINDING}, with boxes"] += 1
    missing = len(marked.keys() - seen)
    if missing:
        quality.warnings["rows of boxes of an image and reader without image labels"] += missing


def _labelled(row: TableRow) -> set[str]:
    """Classes of the row that are 1; raises `Unusable` where a cell is neither 0 nor 1."""
    if row.fault:
        raise row.fault
    labelled = set()
    for name in (*CLASSES, NO_FINDING):
        cell = row.cells[name]
        if cell not in _VALUES:
            raise Unusable("malformed_row", f"{name} is {cell!r}; expected 0 or 1")
        if _VALUES[cell]:
            labelled.add(name)
    return labelled
