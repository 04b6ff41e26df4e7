"""Reads studies to construct from: OpenI's reports, MIMIC-like folders, or custom JSON Lines.

*.xml, NLMCXR_reports.tgz, torchxrayvision-*.whl     OpenI: reports, and the names of images
files/p1x/p1xxxxxxx/sxxxxxxxx.txt                    MIMIC-CXR: reports
mimic-cxr-*-metadata.csv.gz, -split.csv.gz           views, sizes, splits
chest_imagenome/silver_dataset/scene_graph/<dicom_id>_SceneGraph.json    boxes of 29 regions
cxas/<dicom_id>.json                                 masks, COCO run lengths
studies.jsonl                                        data/cxr_qba/README.md
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import pydantic

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.papers.cxr_qba.construct.extraction import Box, ReportSections, SourceStudy, StudyImage
from cxrjax.papers.cxr_qba.construct.masks import MaskFile, read_lists
from cxrjax.papers.sources import mimic_tables
from cxrjax.papers.sources.chest_imagenome import box_on_image, original_box
from cxrjax.papers.sources.openi import is_openi, read_openi
from cxrjax.papers.sources.report import parse_sections, text_without_header
from cxrjax.records import LARGEST_SIDE
from cxrjax.records_io.quality import QualityLog, Unusable, usable_json, usable_name, usable_path
from cxrjax.untrusted.foreign_files import MIB, decode_text, open_foreign, read_lines
from cxrjax.untrusted.names import shown

JSONL = "studies.jsonl"
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_MOST_SHOWN = 1_000  # characters of a fault
_LONGEST_LINE = 16 * MIB
_MAX_REPORT = 1 << 20

Wanted = Callable[[str], bool]


def read_studies(
    source: Path, quality: QualityLog, wanted: Wanted = lambda patient_id: True
) -> Iterator[SourceStudy]:
    """Yields the studies of a source.

    Args:
        wanted: selects by patient id (where that cannot be read, by file or line). The rest costs
            little and leaves no trace in `quality`, so that the parts of a source add up.

    Raises:
        UserError: nothing there can be read.
    """
    if (source / JSONL).is_file() or source.suffix == ".jsonl":
        studies = _read_lines(source if source.is_file() else source / JSONL, quality, wanted)
    elif (source / "files").is_dir():
        studies = _read_mimic(source, quality, wanted)
    elif source.exists() and is_openi(source):
        studies = _read_openi(source, quality, wanted)
    else:
        raise UserError(
            f"{source}: found neither the release's *.qa.json, nor files/ (MIMIC-CXR), "
            f"nor OpenI's reports, nor {JSONL}"
        )
    for study in studies:
        # Ids become names of folders and files.
        if bad := [i for i in (study.patient_id, study.study_id) if not _ID.fullmatch(i)]:
            found = f"id {shown(bad[0])}; expected 100 letters, digits, - . _, no dot in front"
            quality.set_aside("invalid_record", shown(bad[0]), str(source), found)
            continue
        with quality.rejecting(study.study_id, str(source)):
            for image in study.images:
                usable_name(image.image_id)
                usable_path(image.path)
            usable_name(study.split or "train")
            yield study


def _read_openi(source: Path, quality: QualityLog, wanted: Wanted) -> Iterator[SourceStudy]:
    every = QualityLog()
    for report in read_openi(source, every):
        if not wanted(report.report_id):
            continue
        quality.examined["reports"] += 1
        sections = {
            name: getattr(report, name) for name in ("indication", "findings", "impression")
        }
        # OpenI says which images belong to a report, not from where they were taken.
        images = tuple(StudyImage(one, path=f"{one}.png") for one in report.image_ids)
        yield SourceStudy(report.report_id, report.report_id, ReportSections(sections), images)
    for entry in every.entries:
        if wanted(entry.item):
            quality.examined["reports"] += 1
            quality.entries.append(entry)


_Side = Annotated[int, pydantic.Field(ge=1, le=LARGEST_SIDE)]


class _LineImage(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    image_id: str
    image_hw: tuple[_Side, _Side] | None = None
    view: str = ""
    path: str = ""
    boxes: dict[str, tuple[Box, ...]] = {}


class _Line(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    patient_id: str
    study_id: str
    split: str = ""
    date: str = ""
    sections: dict[str, str]
    images: list[_LineImage] = []

    def study(self) -> SourceStudy:
        sections = {name.lower(): text for name, text in self.sections.items()}
        images = tuple(
            StudyImage(i.image_id, i.image_hw, i.view, boxes=i.boxes, path=i.path or i.image_id)
            for i in self.images
        )
        ids, report = (self.patient_id, self.study_id), ReportSections(sections)
        return SourceStudy(*ids, report, images, self.split, self.date)


def _read_lines(path: Path, quality: QualityLog, wanted: Wanted) -> Iterator[SourceStudy]:
    with reading(path, "studies"):
        for number, raw in read_lines(path, _LONGEST_LINE):
            where = f"{path.name}:{number}"
            fault = None
            try:
                line = _Line.model_validate(usable_json(raw))
            except Unusable as error:
                fault = error
            except ValueError as error:
                found = str(error).replace("\n", " ")[:_MOST_SHOWN]
                fault = Unusable("invalid_record", found)
            if not wanted(where if fault else line.patient_id):
                continue
            quality.examined["reports"] += 1
            if fault:
                quality.set_aside(fault.reason, where, where, fault.found)
            else:
                yield line.study()


def _read_mimic(source: Path, quality: QualityLog, wanted: Wanted) -> Iterator[SourceStudy]:
    images: dict[str, list[StudyImage]] = {}
    dates: dict[str, str] = {}
    columns = ("dicom_id", "subject_id", "study_id", "Rows", "Columns")
    for where, row in mimic_tables.first_rows([source], mimic_tables.METADATA_PATTERN, columns):
        if wanted(f"p{row['subject_id']}"):
            images.setdefault(row["study_id"], []).append(mimic_image(row, where))
            dates[row["study_id"]] = _date(row)
    split_columns = ("study_id", "split")
    splits = {
        row["study_id"]: mimic_tables.SPLIT_NAMES.get(row["split"], row["split"])
        for _, row in mimic_tables.first_rows([source], mimic_tables.SPLIT_PATTERN, split_columns)
    }
    folders = (f for f in (source / "files").glob("p*/p*") if wanted(f.name))
    for path in (report for f in sorted(folders) for report in sorted(f.glob("s*.txt"))):
        quality.examined["reports"] += 1
        patient_id, study_id = path.parent.name, path.stem
        with reading(path), open_foreign(path) as file:
            content = file.read(_MAX_REPORT + 1)
        if len(content) > _MAX_REPORT:
            found = f"more than {_MAX_REPORT} bytes"
            quality.set_aside("report_too_long", study_id, path.name, found)
            continue
        try:
            text = decode_text(content)
        except ForeignError as error:
            quality.set_aside("bad_encoding", study_id, path.name, str(error))
            continue
        sections = parse_sections(text)
        if not {"findings", "impression"} & sections.keys() and (rest := text_without_header(text)):
            quality.warnings["reports read from their text without a header"] += 1
            sections["findings"] = rest
        plain = study_id.removeprefix("s")
        yield SourceStudy(
            patient_id,
            study_id,
            ReportSections(sections),
            tuple(_with_regions(source, path, one, quality) for one in images.get(plain, [])),
            splits.get(plain, ""),
            dates.get(plain, ""),
        )


def _date(row: Mapping[str, str]) -> str:
    """Returns day and time of a study, digits that sort; "" without a day."""
    day, clock = row.get("StudyDate") or "", row.get("StudyTime") or ""
    return f"{day} {clock.partition('.')[0]:0>6}" if day else ""


def mimic_image(row: Mapping[str, str], where: str) -> StudyImage:
    """Returns the image of a row of MIMIC-CXR-JPG's metadata, without its path.

    Raises:
        UserError: the size is none.
    """
    return StudyImage(
        row["dicom_id"],
        mimic_tables.size_of(row, where),
        row.get("ViewPosition") or "",
        row.get("PatientOrientationCodeSequence_CodeMeaning") or "",
    )


def _with_regions(source: Path, report: Path, image: StudyImage, quality: QualityLog) -> StudyImage:
    """Returns the image with its path, boxes and masks."""
    path = (report.parent / report.stem / f"{image.image_id}.jpg").relative_to(source)
    folder = source / "chest_imagenome" / "silver_dataset" / "scene_graph"
    graph_path = folder / f"{image.image_id}_SceneGraph.json"
    mask_path = source / "cxas" / f"{image.image_id}.json"
    masks = MaskFile(mask_path, image.image_id, image.image_hw, quality)
    return dataclasses.replace(
        image,
        boxes=_graph_boxes(graph_path, image, quality),
        masks=masks,
        path=path.as_posix(),
        regions_key="/".join([image.image_id, *map(_stamp, (graph_path, mask_path))]),
    )


def _stamp(path: Path) -> str:
    """Returns size and time of change of a file, "" where there is none."""
    found = path.stat() if path.is_file() else None
    return f"{found.st_size}-{found.st_mtime_ns}" if found else ""


def _graph_boxes(path: Path, image: StudyImage, quality: QualityLog) -> dict[str, tuple[Box, ...]]:
    """Reads region -> box in pixels from a scene graph; rejects boxes that fit no frame.

    They may reach beyond the image, and are cut where regions are made of them.
    """
    boxes: dict[str, tuple[Box, ...]] = {}
    (objects,) = read_lists(path, image.image_id, ("objects",), quality)
    for entry in objects:
        with quality.rejecting(image.image_id, path.name):
            box = original_box(entry)
            if image.image_hw:
                box_on_image(entry, image.image_hw)
            boxes[str(entry.get("bbox_name"))] = (box,)
    return boxes
