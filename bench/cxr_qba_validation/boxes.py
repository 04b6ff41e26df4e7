"""CXR-QBA's boxes against MS-CXR's and REFLACX's, study by study and finding by finding.

    python -m bench.cxr_qba_validation --of=boxes --out=DIR --name=ours \\
        --labels=MS_CXR_Local_Alignment_v1.1.0.csv --graphs=BUILD/native

`--labels` is MS-CXR's CSV or JSON, or REFLACX's folder. For a study and a class that both sides
say is there: the union of the boxes of all nodes with one of the class's tags (or something more
special) against the union of the humans' boxes, on the images that a human marked; areas are summed
over the study's images. `boxes/iou@0.3/micro` is the share of such pairs, of all classes together,
with an IoU of 30 % and more; IoP is the share of the nodes' area that is right, IoT that of the
humans' that is found.

`paper`: both sides have boxes there. `strict`: a node without a box on those images counts too,
with an IoU and IoT of 0. The authors used 6 of MS-CXR's 8 classes and 18 of REFLACX's and don't
say which: here it is all that have a tag, listed by class. REFLACX's ellipses count as the boxes
that hold them, all readings of an image together.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.cxr_qba_validation import human_labels
from bench.cxr_qba_validation.studies import PROTOCOLS, DataValidation, Labels, Row, tagged
from cxrjax.evaluation.counted import PAPER, STRICT
from cxrjax.evaluation.figures import share
from cxrjax.metrics import localization
from cxrjax.papers.cxr_qba.native import StudySceneGraph
from cxrjax.records_io.quality import QualityLog

THRESHOLD = 0.3
_OVERLAPS = {"iou": "IoU", "iop": "IoP", "iot": "IoT"}
_PARTS = ("pairs", *(f"{o}{part}" for o in _OVERLAPS for part in ("", f"@{THRESHOLD}", "/n")))


def read_boxes(path: Path, mode: str, quality: QualityLog) -> Labels:
    """Reads a set of human boxes, and counts boxes of scene graphs against it.

    Raises:
        UserError: the file is unusable.
    """
    box_set = "REFLACX" if path.is_dir() else "MS-CXR"
    read = human_labels.read_reflacx if path.is_dir() else human_labels.read_ms_cxr
    boxes, known = read(path, quality), human_labels.load_label_classes()
    classes = {
        name: tags
        for name, tags in known.boxes[box_set].items()
        if any(name in marks for marks in boxes.values())
    }
    seen: set[str] = set()

    def count(study: str, graph: StudySceneGraph) -> Row | None:
        marked = [image for image in images_of(graph) if image in boxes]
        seen.update(marked)
        return _pairs(graph, marked, boxes, classes) if marked else None

    pooled = {
        f"{protocol}/micro/{part}": [f"{protocol}/{name}/{part}" for name in classes]
        for protocol in PROTOCOLS
        for part in _PARTS
    }
    settings = {
        "labels": box_set,
        "classes": list(classes),
        "threshold": THRESHOLD,
        "version_of_classes": known.version,
        "images_with_labels": len(boxes),
    }
    figures = {
        protocol: {
            f"boxes/{overlap}{suffix}/{name}": share(f"{column}{suffix}", f"{column}/n")
            for name in (*classes, "micro")
            for overlap in _OVERLAPS
            for column in [f"{protocol}/{name}/{overlap}"]
            for suffix in (f"@{THRESHOLD}", "")
        }
        for protocol in PROTOCOLS
    }
    return Labels(
        count,
        figures,
        pooled,
        settings,
        closing=lambda: {"images_not_in_the_data_set": len(boxes.keys() - seen)},
    )


def images_of(graph: StudySceneGraph) -> Sequence[str]:
    """Ids of the images on which the graph says that something is."""
    named = dict.fromkeys(graph.study_img_localization_quality)
    for place in (*graph.observations.values(), *graph.regions.values()):
        named |= dict.fromkeys(place.localization)
    return list(named)


def _pairs(
    graph: StudySceneGraph,
    images: Sequence[str],
    boxes: human_labels.ImageBoxes,
    classes: Mapping[str, human_labels.ClassTags],
) -> Row:
    """A study's pairs: of each class that both sides say is there."""
    row: Row = {}
    for name, which in classes.items():
        marked = [image for image in images if name in boxes[image]]
        nodes = tagged(graph, which)
        if not marked or not nodes:
            continue
        areas = []
        for image in marked:
            places = [node.localization[image] for node in nodes if image in node.localization]
            ours = np.array([box for place in places for box in place.bboxes], np.float64)
            theirs = np.array(boxes[image][name])
            areas.append(localization.region_areas(ours.reshape(-1, 4), theirs))
        total = localization.RegionAreas(*np.sum(areas, axis=0).tolist())
        for protocol in (STRICT, PAPER) if total.predicted else (STRICT,):
            prefix = f"{protocol}/{name}"
            row[f"{prefix}/pairs"] = 1.0
            for overlap, value in total.shares().items():
                row |= {
                    f"{prefix}/{overlap}": value,
                    f"{prefix}/{overlap}@{THRESHOLD}": float(value >= THRESHOLD),
                    f"{prefix}/{overlap}/n": 1.0,
                }
    return row


_ABOUT = (
    ". Paper: pairs of study and class with boxes on both sides; strict: a tag without a box "
    "counts as one that overlaps nothing. The authors leave classes out and don't say which."
)

CXR_QBA_BOXES = DataValidation(
    "cxr_qba_boxes",
    "CXR-QBA's boxes",
    "Overlap of unions of boxes",
    ("exact",),
    read_boxes,
    "boxes/{}/micro",
    {f"boxes/{o}@{THRESHOLD}/{{}}": f"{title} ≥ {THRESHOLD}" for o, title in _OVERLAPS.items()},
    PROTOCOLS,
    lambda settings: _ABOUT,
)
