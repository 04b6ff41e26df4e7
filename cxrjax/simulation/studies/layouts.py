"""Layouts of published data sets in which phantom studies are written.

MIMIC-CXR's and MIMIC-CXR-JPG's lists; Chest ImaGenome's splits and scene graphs (silver format, one
JSON per frontal image); masks of single structures in CXAS' manner (COCO JSON, one file per image).
"""

import csv
import gzip
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from pycocotools import mask as coco

from cxrjax.files import read_packaged
from cxrjax.simulation import anatomy, regions
from cxrjax.simulation.anatomy import LEFT, SIDES, Patient
from cxrjax.simulation.builder import pixel_span
from cxrjax.simulation.canvas import Canvas, ellipse
from cxrjax.simulation.regions import Shapes, region_boxes
from cxrjax.simulation.studies.plan import PhantomStudy
from cxrjax.simulation.studies.report import PhantomFact, PhantomReport, grammar
from cxrjax.simulation.studies.views import RenderedView

_DATA = read_packaged("cxrjax.simulation.studies", "layouts.toml")
_COLUMNS: dict[str, list[str]] = _DATA["columns"]
CHEXPERT = _COLUMNS["mimic-cxr-2.0.0-chexpert.csv.gz"][2:]
_PROCEDURES = {"LATERAL": "CHEST (PA AND LAT)", "PA": "CHEST (SINGLE VIEW)"}
_VIEW_CODES = {"PA": "postero-anterior", "AP": "antero-posterior", "LATERAL": "lateral"}
_IMAGENOME_SPLITS = {"train": "train", "validate": "valid", "test": "test"}


def image_folder(subject_id: int, study_id: int) -> str:
    """Returns the folder of a study's images; the report is this with `.txt`."""
    subject = f"p{subject_id}"
    return f"files/{subject[:3]}/{subject}/s{study_id}"


def chexpert_labels(sentences: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the report's facts as labels of the 14 classes: 1.0, 0.0, -1.0 or blank.

    Present outweighs uncertain, uncertain outweighs absent; "No Finding" is 1.0 where nothing but a
    device is present or uncertain.
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
    """Writes all tables from the studies' entries, as `build` stores them."""
    tables: list[list[list[Any]]] = [[] for _ in range(5)]
    metadata, splits, chexpert, records, reports = tables
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
    for name, table in zip(_COLUMNS, tables, strict=False):
        _write(out / name, _COLUMNS[name], table)
    for name, rows in imagenome.items():
        file = out / "chest_imagenome" / "silver_dataset" / "splits" / f"{name}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, _COLUMNS["chest_imagenome"], rows)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a CSV file, compressed if its name ends in .gz; the same bytes every time."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    content = text.getvalue().encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    path.write_bytes(content)


_FRAME = 224
# Concept ids (UMLS) where they are beyond doubt.
_SYNSETS = {"right lung": ["C0225706"], "left lung": ["C0225730"]}
_PREDICATES = {"no change": "No status change", "improved": "Better", "worsened": "Worse"}


def letterbox(height: int, width: int) -> tuple[float, float, float]:
    """Returns (scale, left, top) from pixels to the centred frame of 224 with equal aspect."""
    scale = _FRAME / max(height, width)
    return scale, (_FRAME - width * scale) / 2, (_FRAME - height * scale) / 2


def scene_graph(
    study: PhantomStudy, rendered: RenderedView, report: PhantomReport, before: str | None
) -> dict[str, Any]:
    """Returns the file's content.

    Args:
        before: dicom_id of the first frontal view of the patient's study before, if any.
    """
    if rendered.canvas is None:
        raise ValueError("a lateral view has no scene graph")
    image_id = rendered.view.dicom_id
    boxes = region_boxes(rendered.view.film, rendered.canvas)
    decade = study.age // 10 * 10
    size = rendered.image.shape
    return {
        "image_id": image_id,
        "viewpoint": rendered.view.position,
        "patient_id": study.subject_id,
        "study_id": study.study_id,
        "gender": "F" if study.body.female else "M",
        "age_decile": f"{decade}-{decade + 10}",
        "reason_for_exam": report.reason,
        "StudyOrder": study.order,
        "StudyDateTime": study.time.strftime("%Y-%m-%d %H:%M:%S UTC"),
        "objects": [_object(image_id, name, box, *size) for name, box in boxes.items()],
        "attributes": _attributes(image_id, study.study_id, report, boxes),
        "relationships": _relationships(image_id, before, study.study_id, report, boxes),
    }


def _object(
    image_id: str, name: str, box: Float[np.ndarray, "4"], height: int, width: int
) -> dict[str, Any]:
    original = box * (width, height, width, height)
    scale, left, top = letterbox(height, width)
    small = original * scale + (left, top, left, top)
    object_id, synsets = f"{image_id}_{name}", _SYNSETS.get(name, [])
    content: dict[str, Any] = {"object_id": object_id, "bbox_name": name}
    content |= {"name": name.capitalize(), "synsets": synsets}
    frames = (("", small, (_FRAME, _FRAME)), ("original_", original, (width, height)))
    for prefix, edges, limit in frames:
        corners = [round(float(edge)) for edge in edges]
        x1, x2 = pixel_span(corners[0], corners[2], limit[0])
        y1, y2 = pixel_span(corners[1], corners[3], limit[1])
        values = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "width": x2 - x1, "height": y2 - y1}
        content |= {f"{prefix}{key}": value for key, value in values.items()}
    return content


def _parents(regions: Sequence[str]) -> list[str]:
    """Returns the regions, and the lungs that their zones and angles belong to."""
    named = list(regions)
    for region in regions:
        side, _, part = region.partition(" ")
        if part.endswith("zone") or part == "costophrenic angle":
            named.append(f"{side} lung")
    return list(dict.fromkeys(named))


def _labels(fact: PhantomFact) -> list[str]:
    """Returns `category|yes/no|finding` of a fact; uncertain counts as yes, as in the source."""
    if fact.finding is None:
        return ["nlp|yes|normal"]
    category, label = grammar()["findings"][fact.finding]["attribute"].split("|")
    if fact.polarity == "negative":
        return [f"{category}|no|{label}"]
    labels = [f"{category}|yes|{label}"]
    if category == "anatomicalfinding" and "opacity" not in label:
        chexpert = grammar()["findings"][fact.finding]["chexpert"]
        if set(chexpert) & {"Consolidation", "Atelectasis", "Lung Opacity", "Lung Lesion"}:
            labels.append("anatomicalfinding|yes|lung opacity")
    return [*labels, "nlp|yes|abnormal"]


def _cues(facts: Sequence[PhantomFact]) -> dict[str, list[str]]:
    change = [f"comparison|yes|{f.change}" for f in facts if f.change in _PREDICATES]
    severity = [f"severity|yes|{f.severity}" for f in facts if f.severity]
    temporal = ["temporal|yes|acute" for f in facts if f.change == "new"]
    return {
        "comparison_cues": list(dict.fromkeys(change)),
        "temporal_cues": list(dict.fromkeys(temporal)),
        "severity_cues": list(dict.fromkeys(severity)),
        "texture_cues": [],
    }


def _attributes(
    image_id: str, study_id: int, report: PhantomReport, boxes: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns one entry per region that a sentence mentions, in the order of the objects."""
    entries: dict[str, dict[str, Any]] = {}
    for n, sentence in enumerate(report.sentences, start=1):
        by_region: dict[str, list[PhantomFact]] = {}
        for fact in sentence.facts:
            for region in _parents(fact.regions):
                by_region.setdefault(region, []).append(fact)
        for region, facts in by_region.items():
            head = {region: True, "bbox_name": region, "synsets": _SYNSETS.get(region, [])}
            head |= {"name": region.capitalize(), "object_id": f"{image_id}_{region}"}
            entry: dict[str, Any] = entries.setdefault(region, head)
            labels = list(dict.fromkeys(label for fact in facts for label in _labels(fact)))
            item: dict[str, Any] = {
                "attributes": labels,
                "attributes_ids": ["" for _ in labels],
                "phrases": sentence.text,
                "phrase_IDs": f"{study_id}|{n}",
                "sections": "finalreport",
                **_cues(facts),
            }
            for key, value in item.items():
                entry.setdefault(key, []).append(value)
    return [entries[name] for name in boxes if name in entries]


def _relationships(
    image_id: str,
    before: str | None,
    study_id: int,
    report: PhantomReport,
    boxes: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Relates regions to those of the view before, for each sentence that compares."""
    if before is None:
        return []
    return [
        {
            "relationship_id": f"{study_id}|{n}_{region}_{fact.change}",
            "predicate": f"['{_PREDICATES[fact.change]}']",
            "synsets": [],
            "relationship_names": [f"comparison|yes|{fact.change}"],
            "relationship_contexts": [1.0],
            "phrase": sentence.text,
            "attributes": _labels(fact),
            "bbox_name": region,
            "subject_id": f"{image_id}_{region}",
            "object_id": f"{before}_{region}",
        }
        for n, sentence in enumerate(report.sentences, start=1)
        for fact in sentence.facts
        if fact.change in _PREDICATES
        for region in _parents(fact.regions)
        if region in boxes
    ]


_FROM_REGIONS: dict[str, str] = _DATA["structures"]
_ORDINALS = ("1st", "2nd", "3rd", *(f"{k}th" for k in range(4, 11)))
# Names of the first bands of `anatomy.ribs`.
_RIBS = {
    part: [f"{part} {one} rib {side}" for side in ("right", "left") for one in _ORDINALS[:count]]
    for part, count in (("posterior", 10), ("anterior", 7))
}
STRUCTURES = (
    *_FROM_REGIONS,
    *(name for names in _RIBS.values() for name in names),
    *("scapula right", "scapula left", "humerus right", "humerus left"),
    *("thoracic spine", "stomach", "breast right", "breast left"),
)


def structure_shapes(patient: Patient) -> dict[str, Shapes]:
    """Returns structure -> its outlines in body coordinates, for all that this patient has."""
    regional = regions.region_shapes(patient)
    found = {name: regional[region] for name, region in _FROM_REGIONS.items()}
    for names, bands in zip(_RIBS.values(), anatomy.ribs(patient), strict=True):
        found |= {name: [(band, 1)] for name, (band, _) in zip(names, bands, strict=False)}
    shoulder = [shape for shape, _ in anatomy.shoulder_bones(patient)]
    for at, side in ((0, "right"), (len(shoulder) // 2, "left")):
        blade, spine, shaft, head = shoulder[at : at + 4]
        found[f"scapula {side}"] = [(blade, 1), (spine, 1)]
        found[f"humerus {side}"] = [(shaft, 1), (head, 1)]
    column, _ = anatomy.vertebrae(patient)[0]
    height = patient.lung_height
    found["thoracic spine"] = [(regions.cut(column, 1, -0.05 * height, 1.08 * height), 1)]
    x, rx, ry = patient.stomach
    found["stomach"] = [(ellipse(x, patient.dome_level(LEFT, x) + 0.07 + ry, rx, ry), 1)]
    if patient.female:
        for sign, name in SIDES.items():
            found[f"breast {name}"] = [(anatomy.breast(patient, sign), 1)]
    return {name: found[name] for name in STRUCTURES if name in found}


def coco_masks(patient: Patient, canvas: Canvas, file_name: str) -> dict[str, Any]:
    """Returns the file's content. Structures outside the image have no annotation."""
    annotations: list[dict[str, Any]] = []
    size = [canvas.height, canvas.width]
    for name, shapes in structure_shapes(patient).items():
        mask = regions.hard_mask(canvas, shapes)
        if not mask.any():
            continue
        lengths = coco.encode(np.asfortranarray(mask, dtype=np.uint8))
        annotations.append(
            {
                "id": len(annotations) + 1,
                "image_id": 1,
                "category_id": STRUCTURES.index(name),
                "segmentation": {"size": size, "counts": lengths["counts"].decode()},
                "area": int(mask.sum()),
                "bbox": coco.toBbox(lengths).tolist(),
                "iscrowd": 0,
            }
        )
    image = {"id": 1, "file_name": file_name, "height": canvas.height, "width": canvas.width}
    categories = [{"supercategory": one, "id": k, "name": one} for k, one in enumerate(STRUCTURES)]
    return {
        "info": {"description": "phantom: synthetic, from geometry"},
        "licenses": [],
        "images": [image],
        "categories": categories,
        "annotations": annotations,
    }
