"""CXR-QBA's boxes against MS-CXR's and REFLACX's, study by study and finding by finding.

    python -m cxrjax.score --benchmark=cxr_qba_boxes --out=DIR --name=ours \\
        --references=MS_CXR_Local_Alignment_v1.1.0.csv --predictions=BUILD/native

`--references` is MS-CXR's CSV or JSON, or REFLACX's folder. For a study and a class that both sides
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

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cxrjax.evaluation.counted import PAPER, STRICT
from cxrjax.evaluation.figures import share
from cxrjax.evaluation.scores import ScoreOptions, Scores
from cxrjax.evaluation.tables import FEW
from cxrjax.evaluation.text_tables import grid
from cxrjax.metrics import localization
from cxrjax.papers.cxr_qba.native import StudySceneGraph
from cxrjax.papers.cxr_qba.validation import human_labels
from cxrjax.papers.cxr_qba.validation.studies import (
    OVERLAPS,
    PROTOCOLS,
    DataValidation,
    Named,
    Row,
    Tags,
    beside,
    how,
    problems_markdown,
    score_studies,
    with_n,
)
from cxrjax.records_io.quality import QualityLog

GT_MODE = "exact"
THRESHOLD = 0.3
_OVERLAPS = ("iou", "iop", "iot")


def score_boxes(labels: Path, graphs: Mapping[str, Path], options: ScoreOptions) -> Scores:
    """Boxes of scene graphs against a set of human boxes.

    Raises:
        UserError: a file is unusable, or no image is in both.
    """
    quality = QualityLog()
    box_set = "REFLACX" if labels.is_dir() else "MS-CXR"
    boxes = (human_labels.read_reflacx if labels.is_dir() else human_labels.read_ms_cxr)(
        labels, quality
    )
    known = human_labels.load_label_classes()
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
        "benchmark": "cxr_qba_boxes",
        "labels": box_set,
        "classes": list(classes),
        "threshold": THRESHOLD,
        "version_of_classes": known.version,
        "images_with_labels": len(boxes),
        "labels_set_aside": {reason: n for reason, n in quality.counts().items() if n},
    }
    figures = {protocol: _figures(protocol, [*classes, "micro"]) for protocol in PROTOCOLS}
    scores = score_studies(labels, graphs, options, count, None, figures, settings, pooled)
    missing = {"images_not_in_the_data_set": len(boxes.keys() - seen)}
    return dataclasses.replace(scores, settings={**scores.settings, **missing})


_PARTS = ("pairs", *(f"{o}{part}" for o in _OVERLAPS for part in ("", f"@{THRESHOLD}", "/n")))


def images_of(graph: StudySceneGraph) -> Sequence[str]:
    """Ids of the images on which the graph says that something is."""
    named = dict.fromkeys(graph.study_img_localization_quality)
    for observation in graph.observations.values():
        named |= dict.fromkeys(observation.localization)
    for region in graph.regions.values():
        named |= dict.fromkeys(region.localization)
    return list(named)


def _pairs(
    graph: StudySceneGraph,
    images: Sequence[str],
    boxes: human_labels.ImageBoxes,
    classes: Mapping[str, human_labels.ClassTags],
) -> Row:
    """A study's pairs: of each class that both sides say is there."""
    tags = Tags(graph)
    row: Row = {}
    for name, which in classes.items():
        marked = [image for image in images if name in boxes[image]]
        nodes = tags.nodes(which)
        if not marked or not nodes:
            continue
        areas = []
        for image in marked:
            places = [node.localization[image] for node in nodes if image in node.localization]
            ours = [box for place in places for box in place.bboxes]
            areas.append(
                localization.region_areas(
                    np.array(ours, np.float64).reshape(-1, 4), np.array(boxes[image][name])
                )
            )
        total = localization.RegionAreas(*np.sum(areas, axis=0).tolist())
        row |= _pair(f"{STRICT}/{name}", total)
        if total.predicted:
            row |= _pair(f"{PAPER}/{name}", total)
    return row


def _pair(prefix: str, areas: localization.RegionAreas) -> Row:
    row = {f"{prefix}/pairs": 1.0}
    for name, value in areas.shares().items():
        row |= {
            f"{prefix}/{name}": value,
            f"{prefix}/{name}@{THRESHOLD}": float(value >= THRESHOLD),
            f"{prefix}/{name}/n": 1.0,
        }
    return row


def _figures(protocol: str, names: Sequence[str]) -> Named:
    figures: Named = {}
    for name in names:
        for overlap in _OVERLAPS:
            column = f"{protocol}/{name}/{overlap}"
            for suffix in (f"@{THRESHOLD}", ""):
                figures[f"boxes/{overlap}{suffix}/{name}"] = share(
                    f"{column}{suffix}", f"{column}/n"
                )
    return figures


def boxes_markdown(scores: Scores) -> str:
    """tables.md of the boxes."""
    settings = scores.settings
    columns = {overlap: f"boxes/{overlap}/micro" for overlap in OVERLAPS}
    about = (
        f"Labels: {settings['labels']}, {len(settings['classes'])} classes. Paper: pairs of study "
        "and class with boxes on both sides; strict: a tag without a box counts as one that "
        "overlaps nothing. The authors leave classes out and don't say which."
    )
    lines = [["", *(f"{title}, {s}" for title in OVERLAPS.values() for s in scores.figures)]]
    for name in settings["classes"]:
        cells = [
            with_n(scores.figures[system][PAPER][f"boxes/{overlap}/{name}"])
            for overlap in OVERLAPS
            for system in scores.figures
        ]
        lines.append([name, *cells])
    return "\n".join(
        [
            f"# CXR-QBA's boxes\n\n{about} {how(scores)}\n",
            f"## Overlap of unions of boxes\n\n{beside(scores, columns, (PAPER, STRICT))}",
            f"## By class, paper\n\n{grid(lines)}\nIn italics: fewer than {FEW}.\n",
            problems_markdown(scores),
        ]
    )


CXR_QBA_BOXES = DataValidation(
    "cxr_qba_boxes", (GT_MODE,), score_boxes, boxes_markdown, printed_as="boxes/{}/micro"
)
