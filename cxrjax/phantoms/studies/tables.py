"""The tables beside the images: MIMIC-CXR's and MIMIC-CXR-JPG's lists, Chest ImaGenome's splits."""

import csv
import gzip
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax.phantoms.studies.report import grammar

CHEXPERT = (
    *("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum"),
    *("Fracture", "Lung Lesion", "Lung Opacity", "No Finding", "Pleural Effusion"),
    *("Pleural Other", "Pneumonia", "Pneumothorax", "Support Devices"),
)
_PROCEDURES = {"LATERAL": "CHEST (PA AND LAT)", "PA": "CHEST (SINGLE VIEW)"}
_VIEW_CODES = {"PA": "postero-anterior", "AP": "antero-posterior", "LATERAL": "lateral"}
_IMAGENOME_SPLITS = {"train": "train", "validate": "valid", "test": "test"}


def image_folder(subject_id: int, study_id: int) -> str:
    """Of a study's images, relative to the root; the report is this with `.txt`."""
    subject = f"p{subject_id}"
    return f"files/{subject[:3]}/{subject}/s{study_id}"


def chexpert_labels(sentences: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What the report's facts say about the 14 classes: 1.0, 0.0, -1.0 or blank.

    Said to be there outweighs uncertain, and that absent; "No Finding" is 1.0 where nothing but a
    device is there or uncertain.
    """
    ranks = {"positive": 2, "uncertain": 1, "negative": 0}
    values = {2: "1.0", 1: "-1.0", 0: "0.0"}
    said: dict[str, int] = {}
    for fact in (fact for sentence in sentences for fact in sentence["facts"]):
        if fact["finding"] is None:
            if "cardiac silhouette" in fact["regions"]:
                said.setdefault("Cardiomegaly", 0)
            continue
        classes = grammar()["findings"][fact["finding"]]["chexpert"]
        # A denied enlarged heart says nothing about the mediastinum.
        for name in classes if fact["polarity"] != "negative" else classes[:1]:
            said[name] = max(said.get(name, 0), ranks[fact["polarity"]])
    labels = {name: values[rank] for name, rank in said.items()}
    if not any(rank for name, rank in said.items() if name != "Support Devices"):
        labels["No Finding"] = "1.0"
    return labels


def write_tables(out: Path, studies: Iterable[Mapping[str, Any]]) -> None:
    """Writes all tables from the studies' entries, as `build` keeps them."""
    metadata, splits, chexpert, records, reports = [], [], [], [], []
    imagenome: dict[str, list[list[Any]]] = {name: [] for name in _IMAGENOME_SPLITS.values()}
    for study in studies:
        subject, number = study["subject_id"], study["study_id"]
        folder = image_folder(subject, number)
        reports.append([subject, number, f"{folder}.txt"])
        labels = chexpert_labels(study["sentences"])
        chexpert.append([subject, number, *(labels.get(name, "") for name in CHEXPERT)])
        lateral = any(image["view"] == "LATERAL" for image in study["images"])
        date, clock = study["time"][:10].replace("-", ""), study["time"][11:].replace(":", "")
        for image in study["images"]:
            view, dicom_id = image["view"], image["dicom_id"]
            procedure = _PROCEDURES["LATERAL"] if lateral else _PROCEDURES.get(view, "")
            procedure = procedure or "CHEST (PORTABLE AP)"
            path = f"{folder}/{dicom_id}.dcm"
            metadata.append(
                [
                    *(dicom_id, subject, number, procedure, view),
                    *(image["height"], image["width"], date, f"{clock}.000", procedure),
                    *(_VIEW_CODES[view], "Recumbent" if view == "AP" else "Erect"),
                ]
            )
            splits.append([dicom_id, number, subject, study["split"]])
            records.append([subject, number, dicom_id, path])
            if view != "LATERAL":
                rows = imagenome[_IMAGENOME_SPLITS[study["split"]]]
                rows.append([len(rows), subject, number, dicom_id, path, view])
    mimic = "mimic-cxr-2.0.0"
    header = "dicom_id subject_id study_id PerformedProcedureStepDescription ViewPosition Rows"
    header += " Columns StudyDate StudyTime ProcedureCodeSequence_CodeMeaning"
    header += " ViewCodeSequence_CodeMeaning PatientOrientationCodeSequence_CodeMeaning"
    _write(out / f"{mimic}-metadata.csv.gz", header.split(), metadata)
    header = "dicom_id study_id subject_id split"
    _write(out / f"{mimic}-split.csv.gz", header.split(), splits)
    _write(out / f"{mimic}-chexpert.csv.gz", ["subject_id", "study_id", *CHEXPERT], chexpert)
    header = "subject_id study_id dicom_id path"
    _write(out / "cxr-record-list.csv.gz", header.split(), records)
    _write(out / "cxr-study-list.csv.gz", ["subject_id", "study_id", "path"], reports)
    folder_of_splits = out / "chest_imagenome" / "silver_dataset" / "splits"
    folder_of_splits.mkdir(parents=True, exist_ok=True)
    header = "subject_id study_id dicom_id path ViewPosition"
    for name, rows in imagenome.items():
        _write(folder_of_splits / f"{name}.csv", ["", *header.split()], rows)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A CSV file, compressed where its name says so; the same bytes whenever it is written."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    content = text.getvalue().encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    path.write_bytes(content)
