"""Reads what people said of MIMIC-CXR's studies, in the layouts it is published in.

Label tables, a line for each study (or image of it), a column for each class, 1 there, 0 not, -1
uncertain, blank not mentioned: MIMIC-CXR-JPG's `mimic-cxr-2.1.0-test-set-labeled.csv` and CXR-LT
2024's gold labels. Boxes: MS-CXR's CSV or COCO JSON, REFLACX's folder of readings.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.files import read_packaged
from cxrjax.papers.sources.ms_cxr import read_marks, to_number
from cxrjax.records_io.csv_table import TableRow, read_table
from cxrjax.records_io.quality import PixelBox, QualityLog, Unusable

STUDY = "study_id"
_SPELLINGS = dict.fromkeys(("Study_id", "Study_ID", "StudyID", "study", "StudyInstanceUid"), STUDY)
_VALUES = {"": None, "1": 1, "1.0": 1, "0": 0, "0.0": 0, "-1": -1, "-1.0": -1}
# REFLACX's readers gave certainties of 1 to 5; 3 is "possibly".
LEAST_CERTAINTY = 3
_ELLIPSES = "anomaly_location_ellipses.csv"
_CORNERS = ("xmin", "ymin", "xmax", "ymax")

# {image: {class: boxes in pixels}}.
ImageBoxes = dict[str, dict[str, list[PixelBox]]]


@dataclasses.dataclass(frozen=True)
class ClassTags:
    """Findings that mean a class; `special`: what is more special than one of them too."""

    tags: frozenset[str]
    special: bool


@dataclasses.dataclass(frozen=True)
class LabelClasses:
    """The maps of `label_classes.json`.

    Attributes:
        classes: of label tables.
        groups: name -> classes that are averaged.
        boxes: box set -> its classes.
        spellings: other name of a class -> its name here.
    """

    classes: Mapping[str, ClassTags]
    groups: Mapping[str, Sequence[str]]
    boxes: Mapping[str, Mapping[str, ClassTags]]
    spellings: Mapping[str, str]
    version: str


@dataclasses.dataclass(frozen=True)
class LabelTable:
    """A label table.

    Attributes:
        studies: study's digits -> class -> 1, 0 or -1; what is blank is not there.
        classes: that it has columns of.
    """

    studies: Mapping[str, Mapping[str, int]]
    classes: tuple[str, ...]


@functools.cache
def load_label_classes() -> LabelClasses:
    """The maps in the package."""
    data = read_packaged(str(__package__), "reference/label_classes.json")

    def tags(classes: Mapping[str, Any]) -> dict[str, ClassTags]:
        return {
            name: ClassTags(frozenset(entry["tags"]), entry.get("special", True))
            for name, entry in classes.items()
        }

    return LabelClasses(
        tags(data["classes"]),
        data["groups"],
        {name: tags(classes) for name, classes in data["boxes"].items()},
        data["spellings"],
        data["version"],
    )


def read_label_table(path: Path, quality: QualityLog) -> LabelTable:
    """Labels by study; columns that are no known class are passed over.

    Lines on one study (its images) are joined: said to be there outweighs uncertain, and that not
    there; where lines differ so, `warnings` counts it.

    Raises:
        UserError: the table cannot be read, has no column of a known class, or no usable line.
    """
    known = load_label_classes()
    spellings = {**_SPELLINGS, **known.spellings}
    labels: dict[str, dict[str, int]] = {}
    columns: list[str] = []
    for row in read_table(path, (STUDY,), spellings):
        quality.examined["rows"] += 1
        columns = columns or [name for name in row.cells if name in known.classes]
        if not columns:
            raise UserError(
                f"{path}:1: no column is a known class; expected some of "
                f"{', '.join(list(known.classes)[:5])}, ..."
            )
        study = row.cells[STUDY].strip().removeprefix("s")
        if row.fault is not None:
            quality.set_aside(row.fault.reason, study or "?", row.where, row.fault.found)
            continue
        values = {name: row.cells[name].strip() for name in columns}
        wrong = [(name, value) for name, value in values.items() if value not in _VALUES]
        if not study.isdigit() or wrong:
            found = f"{wrong[0][0]} is {wrong[0][1]!r}" if wrong else f"study_id is {study!r}"
            expected = "expected 1, 0, -1 or blank" if wrong else "expected digits"
            quality.set_aside("malformed_row", study or "?", row.where, f"{found}; {expected}")
            continue
        said = {name: label for name in columns if (label := _VALUES[values[name]]) is not None}
        _join(labels.setdefault(study, {}), said, quality)
    if not labels:
        raise UserError(f"{path}: no usable line; expected study_id and columns of classes")
    return LabelTable(labels, tuple(name for name in known.classes if name in columns))


def _join(known: dict[str, int], said: Mapping[str, int], quality: QualityLog) -> None:
    weight = {1: 2, -1: 1, 0: 0}
    for name, label in said.items():
        before = known.get(name)
        if before is not None and before != label:
            quality.warnings["images of one study labelled differently"] += 1
        if before is None or weight[label] > weight[before]:
            known[name] = label


def read_ms_cxr(path: Path, quality: QualityLog) -> ImageBoxes:
    """MS-CXR's boxes by image, from its CSV or its COCO JSON.

    Raises:
        UserError: the file cannot be read, or lacks what it should have.
    """
    known = load_label_classes().boxes["MS-CXR"]
    return _collect(_ms_cxr_marks(path, quality), known, quality, path)


def _ms_cxr_marks(path: Path, quality: QualityLog) -> Iterator[tuple[str, str, PixelBox, str]]:
    for mark in read_marks(path):
        if mark.fault is not None:
            quality.set_aside(mark.fault.reason, mark.image_id, mark.where, mark.fault.found)
            continue
        yield mark.image_id, mark.category, mark.box, mark.where


def read_reflacx(folder: Path, quality: QualityLog) -> ImageBoxes:
    """REFLACX's ellipses as boxes by image, from all readings and phases.

    An ellipse counts where its certainty is at least "possibly"; its box is what holds it.

    Raises:
        UserError: the folder lacks its tables, or one cannot be read.
    """
    tables = sorted([*folder.glob("metadata_phase_*.csv"), *folder.glob("*/metadata_phase_*.csv")])
    if not tables:
        raise UserError(
            f"{folder}: no metadata_phase_*.csv; expected REFLACX's folder, with <id>/{_ELLIPSES}"
        )
    known = load_label_classes().boxes["REFLACX"]
    return _collect(_reflacx_marks(tables, quality), known, quality, folder)


def _reflacx_marks(
    tables: Sequence[Path], quality: QualityLog
) -> Iterator[tuple[str, str, PixelBox, str]]:
    for table in tables:
        for reading in read_table(table, ("id", "dicom_id")):
            if reading.fault is not None:
                fault = reading.fault
                quality.set_aside(fault.reason, reading.cells["id"], reading.where, fault.found)
                continue
            file = table.parent / reading.cells["id"] / _ELLIPSES
            if not file.is_file():
                quality.set_aside("dangling_id", reading.cells["id"], reading.where, f"no {file}")
                continue
            for row in read_table(file, (*_CORNERS, "certainty")):
                where = f"{reading.cells['id']}/{row.where}"
                yield from _ellipse_marks(row, reading.cells["dicom_id"], where, quality)


def _ellipse_marks(
    row: TableRow, image_id: str, where: str, quality: QualityLog
) -> Iterator[tuple[str, str, PixelBox, str]]:
    names = [
        name
        for name in load_label_classes().boxes["REFLACX"]
        if row.cells.get(name, "").strip().lower() in ("true", "1", "1.0")
    ]
    certainty = to_number(row.cells["certainty"])
    fault = row.fault
    if fault is None and names and math.isnan(certainty):
        found = f"certainty is {row.cells['certainty']!r}; expected 1 to 5"
        fault = Unusable("malformed_row", found)
    if fault is not None:
        quality.set_aside(fault.reason, image_id, where, fault.found)
    elif certainty >= LEAST_CERTAINTY:
        corners = [to_number(row.cells[name]) for name in _CORNERS]
        for name in names:
            yield image_id, name, (corners[0], corners[1], corners[2], corners[3]), where


def _collect(
    marks: Iterator[tuple[str, str, PixelBox, str]],
    known: Mapping[str, ClassTags],
    quality: QualityLog,
    path: Path,
) -> ImageBoxes:
    boxes: ImageBoxes = {}
    for image_id, name, box, where in marks:
        quality.examined["boxes"] += 1
        if name not in known:
            quality.set_aside("unknown_class", image_id, where, f"class {name!r}")
        elif not (box[0] < box[2] and box[1] < box[3]):
            quality.set_aside("bad_box", image_id, where, f"{box}; expected corners of an area")
        else:
            boxes.setdefault(image_id, {}).setdefault(name, []).append(box)
    if not boxes:
        raise UserError(f"{path}: no usable box of a known class")
    return boxes
