"""Studies to construct from: OpenI's reports, MIMIC-like folders, or JSON Lines of one's own.

*.xml, NLMCXR_reports.tgz, torchxrayvision-*.whl     OpenI: reports, and the names of images
files/p1x/p1xxxxxxx/sxxxxxxxx.txt                    MIMIC-CXR: reports
mimic-cxr-2.0.0-metadata.csv.gz, -split.csv.gz       views, sizes, splits
chest_imagenome/silver_dataset/scene_graph/<dicom_id>_SceneGraph.json    boxes of 29 regions
cxas/<dicom_id>.json                                 masks, COCO run lengths
studies.jsonl                                        data/cxr_qba/README.md
"""

import csv
import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from pycocotools import mask as coco

from cxrjax.datasets.cxr_qba.extraction import Report
from cxrjax.datasets.cxr_qba.study import Box, Study, StudyImage
from cxrjax.datasets.openi import is_openi, read_openi
from cxrjax.datasets.quality import QualityLog
from cxrjax.errors import UserError

JSONL = "studies.jsonl"
_HEADER = re.compile(r"^\s*([A-Z][A-Z /]{2,40}):", re.MULTILINE)
_SECTIONS = {"INDICATION": "indication", "REASON FOR EXAM": "indication", "HISTORY": "indication",
             "CLINICAL INFORMATION": "indication", "FINDINGS": "findings",
             "IMPRESSION": "impression", "CONCLUSION": "impression"}  # fmt: skip
_SPLITS = {"train": "train", "validate": "validation", "test": "test"}
_MAX_REPORT = 1 << 20

Wanted = Callable[[str], bool]


def _all(patient_id: str) -> bool:
    del patient_id
    return True


def read_studies(source: Path, quality: QualityLog, wanted: Wanted = _all) -> Iterator[Study]:
    """Studies of a source, one at a time.

    Args:
        wanted: asked of a patient id (of what has none that can be read, of file or line): whether
            to read it. The rest costs little and leaves no trace in `quality`, so that the parts
            of a source add up to the whole.

    Raises:
        UserError: nothing there can be read.
    """
    if (source / JSONL).is_file() or source.suffix == ".jsonl":
        yield from _read_lines(source if source.is_file() else source / JSONL, quality, wanted)
    elif (source / "files").is_dir():
        yield from _read_mimic(source, quality, wanted)
    elif source.exists() and is_openi(source):
        yield from _read_openi(source, quality, wanted)
    else:
        raise UserError(
            f"{source}: found neither the release's *.scene_graph.json, nor files/ (MIMIC-CXR), "
            f"nor OpenI's reports, nor {JSONL}"
        )


def _read_openi(source: Path, quality: QualityLog, wanted: Wanted) -> Iterator[Study]:
    every = QualityLog()
    for report in read_openi(source, every):
        if not wanted(report.report_id):
            continue
        quality.examined["reports"] += 1
        sections = {
            "indication": report.indication,
            "findings": report.findings,
            "impression": report.impression,
        }
        # OpenI says which images belong to a report, not from where they were taken.
        images = tuple(
            StudyImage(image_id, path=f"{image_id}.png") for image_id in report.image_ids
        )
        yield Study(report.report_id, report.report_id, Report(sections), images)
    for entry in every.entries:
        if wanted(entry.item):
            quality.examined["reports"] += 1
            quality.entries.append(entry)


class _LineImage(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    image_id: str
    image_hw: tuple[int, int] | None = None
    view: str = ""
    path: str = ""
    boxes: dict[str, list[tuple[float, float, float, float]]] = {}


class _Line(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    patient_id: str
    study_id: str
    split: str = ""
    sections: dict[str, str]
    images: list[_LineImage] = []


def _read_lines(path: Path, quality: QualityLog, wanted: Wanted) -> Iterator[Study]:
    try:
        with open(path, "rb") as lines:
            for number, raw in enumerate(lines, start=1):
                if not raw.strip():
                    continue
                where = f"{path.name}:{number}"
                try:
                    line = _Line.model_validate(json.loads(raw.decode("utf-8")))
                except UnicodeDecodeError as error:
                    fault = ("bad_encoding", f"byte {error.start} is not UTF-8")
                    _set_aside_line(fault, where, quality, wanted)
                    continue
                except ValueError as error:
                    fault = ("invalid_record", str(error).replace("\n", " "))
                    _set_aside_line(fault, where, quality, wanted)
                    continue
                if not wanted(line.patient_id):
                    continue
                quality.examined["reports"] += 1
                yield Study(
                    line.patient_id,
                    line.study_id,
                    Report({name.lower(): text for name, text in line.sections.items()}),
                    tuple(
                        StudyImage(
                            image.image_id,
                            image.image_hw,
                            image.view,
                            boxes={name: tuple(boxes) for name, boxes in image.boxes.items()},
                            path=image.path or image.image_id,
                        )
                        for image in line.images
                    ),
                    line.split,
                )
    except OSError as error:
        raise UserError(f"{path}: cannot read studies: {error.strerror}") from None


def _set_aside_line(
    fault: tuple[str, str], where: str, quality: QualityLog, wanted: Wanted
) -> None:
    if wanted(where):
        quality.examined["reports"] += 1
        quality.set_aside(fault[0], where, where, fault[1])


def parse_sections(text: str) -> dict[str, str]:
    """The sections of a report as MIMIC-CXR writes them, those that are used, by their kind."""
    headers = list(_HEADER.finditer(text))
    sections: dict[str, str] = {}
    ends = [header.start() for header in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends, strict=False):
        kind = _SECTIONS.get(header[1].strip())
        if kind is None:
            continue
        body = text[header.end() : end].strip()
        sections[kind] = f"{sections[kind]}\n{body}" if sections.get(kind) else body
    return sections


def _read_mimic(source: Path, quality: QualityLog, wanted: Wanted) -> Iterator[Study]:
    images: dict[str, list[dict[str, str]]] = {}
    for row in _table(source / "mimic-cxr-2.0.0-metadata.csv.gz"):
        if wanted(f"p{row.get('subject_id')}"):
            images.setdefault(row["study_id"], []).append(row)
    splits = {
        row["study_id"]: _SPLITS.get(row["split"], row["split"])
        for row in _table(source / "mimic-cxr-2.0.0-split.csv.gz")
    }
    folders = (f for f in (source / "files").glob("p*/p*") if wanted(f.name))
    for path in (report for f in sorted(folders) for report in sorted(f.glob("s*.txt"))):
        quality.examined["reports"] += 1
        patient_id, study_id = path.parent.name, path.stem
        try:
            with open(path, "rb") as file:
                text = file.read(_MAX_REPORT + 1).decode("utf-8")
        except UnicodeDecodeError as error:
            found = f"byte {error.start} is not UTF-8"
            quality.set_aside("bad_encoding", study_id, path.name, found)
            continue
        except OSError as error:
            raise UserError(f"{path}: cannot read: {error.strerror}") from None
        rows = images.get(study_id.removeprefix("s"), [])
        yield Study(
            patient_id,
            study_id,
            Report(parse_sections(text)),
            tuple(_mimic_image(source, path, row, quality) for row in rows),
            splits.get(study_id.removeprefix("s"), ""),
        )


def _mimic_image(
    source: Path, report: Path, row: dict[str, str], quality: QualityLog
) -> StudyImage:
    dicom_id = row["dicom_id"]
    folder = source / "chest_imagenome" / "silver_dataset" / "scene_graph"
    boxes: dict[str, tuple[Box, ...]] = {}
    for entry in _json(folder / f"{dicom_id}_SceneGraph.json", quality).get("objects", []):
        corners = [entry[f"original_{name}"] for name in ("x1", "y1", "x2", "y2")]
        boxes[entry["bbox_name"]] = ((corners[0], corners[1], corners[2], corners[3]),)
    path = (report.parent / report.stem / f"{dicom_id}.jpg").relative_to(source)
    return StudyImage(
        dicom_id,
        (int(row["Rows"]), int(row["Columns"])),
        row.get("ViewPosition", ""),
        row.get("PatientOrientationCodeSequence_CodeMeaning", ""),
        boxes,
        _masks(_json(source / "cxas" / f"{dicom_id}.json", quality)),
        path.as_posix(),
    )


def _masks(content: dict[str, Any]) -> dict[str, np.ndarray]:
    """Structure -> [height, width] bool, of a COCO file."""
    names = {entry["id"]: entry["name"] for entry in content.get("categories", [])}
    return {
        names[entry["category_id"]]: coco.decode(entry["segmentation"]).astype(bool)
        for entry in content.get("annotations", [])
    }


def _json(path: Path, quality: QualityLog) -> dict[str, Any]:
    """A file's object; empty where there is none (lateral views have no regions)."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        quality.set_aside("invalid_graph", path.stem, path.name, f"not JSON: {error}")
        return {}


def _table(path: Path) -> Iterator[dict[str, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
    except FileNotFoundError:
        return
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the table: {error}") from None
