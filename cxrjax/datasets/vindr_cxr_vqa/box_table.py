"""The table of boxes behind VinDr-CXR-VQA: one row per reader's box, or per reader's "No finding".

Columns (Kaggle's train.csv): image_id, class_name, class_id, rad_id, x_min, y_min, x_max, y_max;
pixels of the original image, blank for "No finding". Mirrors add width and height; PhysioNet's
files spell rad_ID and have no class_id. The torchxrayvision wheel carries the Kaggle table.
"""

import csv
import dataclasses
import gzip
import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from cxrjax.datasets.quality import PixelBox, QualityLog, Unusable, check_box
from cxrjax.datasets.vindr_cxr_vqa.annotation import Finding, ImageAnnotation
from cxrjax.datasets.vindr_cxr_vqa.classes import (
    CLASS_IDS,
    NO_FINDING,
    OTHER_LOCAL_CLASSES,
)
from cxrjax.errors import UserError

WHEEL_MEMBER = "torchxrayvision/data/vinbigdata-train.csv.gz"
COLUMNS = ("image_id", "class_name", "class_id", "rad_id", "x_min", "y_min", "x_max", "y_max")
_COORDINATES = COLUMNS[4:]
_REQUIRED = ("image_id", "class_name", "rad_id", *_COORDINATES)


@dataclasses.dataclass(frozen=True)
class Row:
    """One row. `finding` is None for "No finding"; `where` is file and line."""

    image_id: str
    rad_id: str
    finding: Finding | None
    image_hw: tuple[int, int] | None
    where: str


def _open_text(path: Path) -> TextIO:
    """The table as text, out of a csv, a csv.gz or the torchxrayvision wheel."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            if WHEEL_MEMBER not in wheel.namelist():
                raise UserError(f"{path}: no {WHEEL_MEMBER} in it; expected torchxrayvision 1.5.7")
            packed = io.BytesIO(wheel.read(WHEEL_MEMBER))
        return io.TextIOWrapper(gzip.open(packed), encoding="utf-8-sig", newline="")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def _box(cells: dict[str, str]) -> PixelBox:
    try:
        x_min, y_min, x_max, y_max = (float(cells[name]) for name in _COORDINATES)
    except ValueError:
        found = ", ".join(f"{name}={cells[name]!r}" for name in _COORDINATES)
        raise Unusable("bad_box", f"{found}; expected four numbers") from None
    return x_min, y_min, x_max, y_max


def _image_hw(cells: dict[str, str]) -> tuple[int, int] | None:
    if not cells.get("width") or not cells.get("height"):
        return None
    try:
        height, width = int(float(cells["height"])), int(float(cells["width"]))
    except ValueError:
        height = width = 0
    if height < 1 or width < 1:
        found = f"width={cells['width']!r}, height={cells['height']!r}; expected pixels"
        raise Unusable("bad_box", found)
    return height, width


def _row(cells: dict[str, str], where: str) -> Row:
    """One row from its cells; raises `Unusable` where it cannot be used."""
    label, image_hw = cells["class_name"], _image_hw(cells)
    if label in OTHER_LOCAL_CLASSES:
        raise Unusable("class_not_selected", label)
    if label not in CLASS_IDS:
        raise Unusable("unknown_class", f"class_name {label!r}; expected one of {list(CLASS_IDS)}")
    class_id = cells.get("class_id")
    if class_id and class_id != str(CLASS_IDS[label]):
        raise Unusable("class_id_mismatch", f"{label} with class_id {class_id}, not its own")
    finding = None
    if label != NO_FINDING:
        box = _box(cells)
        check_box(box, image_hw, label)
        finding = Finding(label, box)
    elif any(cells[name] for name in _COORDINATES):
        raise Unusable("bad_box", f"{NO_FINDING!r} with a box; expected blank coordinates")
    return Row(cells["image_id"], cells["rad_id"], finding, image_hw, where)


def _cells(path: Path) -> Iterator[tuple[dict[str, str], str]]:
    """(cells by column name, file and line) of each row; column names as `COLUMNS` spells them."""
    try:
        with _open_text(path) as text:
            reader = csv.reader(text)
            header = ["rad_id" if c == "rad_ID" else c for c in next(reader, [])]
            missing = [name for name in _REQUIRED if name not in header]
            if missing:
                raise UserError(
                    f"{path}:1: column {missing[0]} is missing; found {header}, "
                    f"expected {', '.join(COLUMNS)}"
                )
            for values in reader:
                where = f"{path.name}:{reader.line_num}"
                if len(values) != len(header):
                    raise UserError(
                        f"{where}: {len(values)} cells, expected {len(header)} as in the header"
                    )
                yield dict(zip(header, values, strict=True)), where
    except (OSError, EOFError, zipfile.BadZipFile, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot read the box table: {reason}") from None


def read_rows(path: str | Path) -> Iterator[Row]:
    """The rows one at a time.

    Args:
        path: csv, csv.gz or the torchxrayvision wheel.

    Raises:
        UserError: the file cannot be read, a column is missing, or a row cannot be used (names
            file, line, what was found).
    """
    for cells, where in _cells(Path(path)):
        try:
            yield _row(cells, where)
        except Unusable as fault:
            raise UserError(
                f"{where}: {cells['image_id']}: {fault.reason}: {fault.found}"
            ) from None


def read_box_table(path: str | Path, quality: QualityLog | None = None) -> list[ImageAnnotation]:
    """Images in order of first appearance, normal ones too, with what every reader marked.

    Args:
        path: csv, csv.gz or the torchxrayvision wheel.
        quality: where to note what cannot be used. An image with a row that cannot be used is set
            aside whole, for without that row its truth would be another; a row of a class that is
            not selected only drops that row. Without a log the first such row is an error.

    Raises:
        UserError: the file cannot be read, a column is missing, or (without `quality`) a row
            cannot be used.
    """
    if quality is None:
        return _group(read_rows(path), set())
    rows: list[Row] = []
    spoilt: set[str] = set()
    for cells, where in _cells(Path(path)):
        quality.examined["rows"] += 1
        try:
            rows.append(_row(cells, where))
        except Unusable as fault:
            quality.set_aside(fault.reason, cells["image_id"], where, fault.found)
            if fault.reason == "class_not_selected":
                # The reader did look at the image: keep the reader, without this finding.
                hw = _image_hw(cells)
                rows.append(Row(cells["image_id"], cells["rad_id"], None, hw, where))
            else:
                spoilt.add(cells["image_id"])
    return _group(rows, spoilt)


def _group(rows: Iterable[Row], spoilt: set[str]) -> list[ImageAnnotation]:
    """Rows gathered by image; images in `spoilt` left out."""
    images: dict[str, ImageAnnotation] = {}
    for row in rows:
        if row.image_id in spoilt:
            continue
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


def write_box_table(path: str | Path, annotations: Iterable[ImageAnnotation]) -> int:
    """Writes what the readers marked as a Kaggle table with width and height; returns the rows."""
    count = 0
    with open(path, "w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*COLUMNS, "width", "height"])
        for image in annotations:
            height, width = image.image_hw or ("", "")
            for rad_id, marked in image.readers.items():
                findings: list[Finding | None] = [*marked] or [None]
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
