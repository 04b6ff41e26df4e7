"""Chest ImaGenome scene graphs of phantom views (silver format, one JSON per frontal image)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from cxrjax.phantoms.regions import region_boxes
from cxrjax.phantoms.studies.plan import PhantomStudy
from cxrjax.phantoms.studies.report import PhantomFact, PhantomReport, grammar
from cxrjax.phantoms.studies.views import DrawnView

_FRAME = 224
# Concept ids (UMLS) where they are beyond doubt.
_SYNSETS = {"right lung": ["C0225706"], "left lung": ["C0225730"]}
_PREDICATES = {"no change": "No status change", "improved": "Better", "worsened": "Worse"}


def letterbox(height: int, width: int) -> tuple[float, float, float]:
    """(scale, left, top) from pixels to the 224 frame: the aspect is kept, the picture centred."""
    scale = _FRAME / max(height, width)
    return scale, (_FRAME - width * scale) / 2, (_FRAME - height * scale) / 2


def scene_graph(
    study: PhantomStudy, picture: DrawnView, report: PhantomReport, before: str | None
) -> dict[str, Any]:
    """The file's content.

    Args:
        before: dicom_id of the first frontal view of the patient's study before, if any.
    """
    if picture.canvas is None:
        raise ValueError("a lateral view has no scene graph")
    image_id = picture.view.dicom_id
    boxes = region_boxes(picture.view.film, picture.canvas)
    height, width = picture.image.shape
    decade = study.age // 10 * 10
    return {
        "image_id": image_id,
        "viewpoint": picture.view.position,
        "patient_id": study.subject_id,
        "study_id": study.study_id,
        "gender": "F" if study.body.female else "M",
        "age_decile": f"{decade}-{decade + 10}",
        "reason_for_exam": report.reason,
        "StudyOrder": study.order,
        "StudyDateTime": study.time.strftime("%Y-%m-%d %H:%M:%S UTC"),
        "objects": [_object(image_id, name, box, height, width) for name, box in boxes.items()],
        "attributes": _attributes(image_id, study.study_id, report, boxes),
        "relationships": _relationships(image_id, before, study.study_id, report, boxes),
    }


def _object(
    image_id: str, name: str, box: Float[np.ndarray, "4"], height: int, width: int
) -> dict[str, Any]:
    edges = box * (width, height, width, height)
    original = [round(float(edge)) for edge in edges]
    scale, left, top = letterbox(height, width)
    small = [round(float(e)) for e in edges * scale + (left, top, left, top)]
    content: dict[str, Any] = {
        "object_id": f"{image_id}_{name}",
        "bbox_name": name,
        "name": name.capitalize(),
        "synsets": _SYNSETS.get(name, []),
    }
    for prefix, corners, limit in (
        ("", small, (_FRAME, _FRAME)),
        ("original_", original, (width, height)),
    ):
        x1, x2 = _span(corners[0], corners[2], limit[0])
        y1, y2 = _span(corners[1], corners[3], limit[1])
        values = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "width": x2 - x1, "height": y2 - y1}
        content |= {f"{prefix}{key}": value for key, value in values.items()}
    return content


def _span(low: int, high: int, size: int) -> tuple[int, int]:
    """Two edges inside the frame, at least a pixel apart."""
    start = min(max(low, 0), size - 1)
    return start, min(max(high, start + 1), size)


def _parents(regions: Sequence[str]) -> list[str]:
    """The regions, and the lungs that their zones and angles are part of."""
    named = list(regions)
    for region in regions:
        side, _, part = region.partition(" ")
        if part.endswith("zone") or part == "costophrenic angle":
            named.append(f"{side} lung")
    return list(dict.fromkeys(named))


def _labels(fact: PhantomFact) -> list[str]:
    """`category|yes/no|finding` of a fact; an uncertain one counts as yes, as in the source."""
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
    """One entry per region that a sentence speaks of, in the order of the objects."""
    entries: dict[str, dict[str, Any]] = {}
    for n, sentence in enumerate(report.sentences, start=1):
        by_region: dict[str, list[PhantomFact]] = {}
        for fact in sentence.facts:
            for region in _parents(fact.regions):
                by_region.setdefault(region, []).append(fact)
        for region, facts in by_region.items():
            entry = entries.setdefault(
                region,
                {
                    region: True,
                    "bbox_name": region,
                    "synsets": _SYNSETS.get(region, []),
                    "name": region.capitalize(),
                    "object_id": f"{image_id}_{region}",
                },
            )
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
    """Region to the same region of the view before, for each sentence that compares."""
    if before is None:
        return []
    found = []
    for n, sentence in enumerate(report.sentences, start=1):
        for fact in sentence.facts:
            if fact.change not in _PREDICATES:
                continue
            for region in _parents(fact.regions):
                if region not in boxes:
                    continue
                found.append(
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
                )
    return found
