"""Tags and boxes of scene graphs against people's labels, in the layouts these are published in."""

import csv
import gzip
import io
import json

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from cxrjax import score
from cxrjax.errors import UserError
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.cxr_qba.build import QbaBuilder, QbaOptions
from cxrjax.papers.cxr_qba.native import StudySceneGraph
from cxrjax.papers.cxr_qba.study_files import write_study
from cxrjax.papers.cxr_qba.validation.boxes import CXR_QBA_BOXES, score_boxes
from cxrjax.papers.cxr_qba.validation.human_labels import (
    load_label_classes,
    read_label_table,
    read_ms_cxr,
    read_reflacx,
)
from cxrjax.papers.cxr_qba.validation.tags import CXR_QBA_TAGS, score_tags
from cxrjax.phantoms.studies.build import TRUTH, StudiesBuilder, StudiesOptions
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.records_io.quality import QualityLog
from cxrjax.scoring.scores import PAPER, STRICT, ScoreOptions

CLASSES = load_label_classes()


def options(gt_mode):
    return ScoreOptions(gt_mode=gt_mode, bootstrap=Bootstrap(resamples=0))


def write_graph(root, study, nodes):
    """A study p<study>/s<study> of nodes (finding, positive, {image: boxes})."""
    observations = {
        f"O{n:02d}": {
            "obs_id": f"O{n:02d}",
            "name": finding,
            "obs_entities": [finding],
            "positiveness": "pos" if positive else "neg",
            "localization": {
                image: {"image_id": image, "bboxes": boxes} for image, boxes in places.items()
            },
        }
        for n, (finding, positive, places) in enumerate(nodes)
    }
    graph = {
        "patient_id": f"p{study}",
        "study_id": f"s{study}",
        "observations": observations,
        "top_level_obs_ids": list(observations),
    }
    write_study(root, StudySceneGraph.model_validate(graph))


def write_csv(path, header, rows):
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    content = text.getvalue().encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read_csv(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_every_class_has_tags_that_are_findings():
    known = load_definitions().findings
    for classes in (CLASSES.classes, *CLASSES.boxes.values()):
        for name, which in classes.items():
            assert which.tags and which.tags <= known.keys(), name
    sizes = {name: len(members) for name, members in CLASSES.groups.items()}
    assert sizes == {"CXP-5": 5, "CXP-7": 7, "CXP-13": 13, "LT-only": 12}
    assert {name for group in CLASSES.groups.values() for name in group} == set(CLASSES.classes)


@pytest.fixture
def cohort(tmp_path):
    """40 studies with random tags, and a CXR-LT table of random labels of them."""
    rng = np.random.default_rng(3)
    names = list(CLASSES.classes)
    tagged = rng.random((40, len(names))) < 0.4
    labelled = rng.choice([1, 0, -1], p=[0.35, 0.5, 0.15], size=tagged.shape)
    rows = []
    for n, (tags, labels) in enumerate(zip(tagged, labelled, strict=True)):
        study = 50000000 + n
        nodes = [
            (sorted(CLASSES.classes[name].tags)[0], bool(there), {})
            for name, there in zip(names, tags, strict=True)
        ]
        write_graph(tmp_path / "native", study, nodes)
        blank = ["" if value == 0 and n % 2 else f"{value}.0" for value in labels]
        rows.append([study, *blank])
    table = write_csv(tmp_path / "gold.csv.gz", ["study_id", *names], rows)
    return tmp_path / "native", table, labelled


def tagged_by(folder, names):
    """Which classes each study has, worked out from its file alone."""
    definitions = load_definitions()
    found = []
    for path in sorted(folder.rglob("*.scene_graph.json")):
        nodes = json.loads(path.read_text())["observations"].values()
        own = {e for node in nodes if node["positiveness"] == "pos" for e in node["obs_entities"]}
        above = {a for name in own for a in definitions.finding_ancestors(name)}
        found.append(
            [
                bool(CLASSES.classes[n].tags & (own | above if CLASSES.classes[n].special else own))
                for n in names
            ]
        )
    return np.array(found)


@pytest.mark.parametrize("uncertain", ["exclude", "positive", "negative"])
def test_correlation_against_scikit_learn(cohort, uncertain):
    folder, table, labelled = cohort
    names = list(CLASSES.classes)
    scores = score_tags(table, {"ours": folder}, options(uncertain))
    figures = scores.figures["ours"][PAPER]
    said = tagged_by(folder, names)
    kept = labelled != -1 if uncertain == "exclude" else np.full(labelled.shape, True)
    truth = (labelled == 1) | ((labelled == -1) & (uncertain == "positive"))
    each = {}
    for n, name in enumerate(names):
        rows = kept[:, n]
        each[name] = matthews_corrcoef(truth[rows, n], said[rows, n])
        assert figures[f"tags/mcc/{name}"].value == pytest.approx(each[name])
        assert figures[f"tags/mcc/{name}"].n == rows.sum()
    for group in ("CXP-5", "CXP-7", "CXP-13", "LT-only"):
        expected = np.mean([each[name] for name in CLASSES.groups[group]])
        assert figures[f"tags/mcc/{group}"].value == pytest.approx(expected)
    assert figures["tags/mcc/CXR-LT"].value == pytest.approx(np.mean(list(each.values())))
    micro = matthews_corrcoef(truth[kept], said[kept])
    assert figures["tags/mcc/micro"].value == pytest.approx(micro)
    assert figures["tags/sensitivity/micro"].value == pytest.approx(said[kept][truth[kept]].mean())
    assert figures["tags/ppv/micro"].value == pytest.approx(truth[kept][said[kept]].mean())
    assert scores.settings["labels"] == "CXR-LT 2024"


def test_a_more_special_finding_has_the_class_and_a_denied_one_has_not(tmp_path):
    write_graph(tmp_path, 50000001, [("granuloma", True, {})])  # a lung nodule, a lung lesion
    write_graph(tmp_path, 50000002, [("consolidation", True, {}), ("fracture", False, {})])
    names = ["Lung Lesion", "Lung Opacity", "Fracture"]
    table = write_csv(
        tmp_path / "t.csv", ["study_id", *names], [["s50000001", 1, 0, ""], [50000002, 0, 1, 0]]
    )
    figures = score_tags(table, {"x": tmp_path}, options("exclude")).figures["x"][PAPER]
    assert figures["tags/mcc/Lung Lesion"].value == 1
    assert figures["tags/sensitivity/Lung Opacity"].value == 0  # read as named, not as implied
    assert figures["tags/specificity/Fracture"].value == 1
    assert figures["tags/mcc/Fracture"].value is None


def test_images_of_a_study_are_joined_and_names_are_spelled_in_ways(tmp_path):
    rows = [["d1", "50000001", 0, 1], ["d2", "50000001", -1, 1], ["d3", "50000002", "", 0]]
    table = write_csv(
        tmp_path / "t.csv", ["dicom_id", "Study_id", "Airspace Opacity", "Mass"], rows
    )
    quality = QualityLog()
    read = read_label_table(table, quality)
    assert read.studies == {"50000001": {"Lung Opacity": -1, "Mass": 1}, "50000002": {"Mass": 0}}
    assert read.classes == ("Lung Opacity", "Mass")
    assert quality.warnings["images of one study labelled differently"] == 1


def test_lines_of_labels_that_cannot_be_used_are_set_aside(tmp_path):
    rows = [["50000001", 2], ["x", 1], ["50000002", 1], ["50000003"]]
    table = write_csv(tmp_path / "t.csv", ["study_id", "Mass"], rows)
    quality = QualityLog()
    assert list(read_label_table(table, quality).studies) == ["50000002"]
    assert quality.counts()["malformed_row"] == 3


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (["study", "Mass"], [], "no usable line"),
        (["id", "Mass"], [["1", 1]], "column study_id is missing"),
        (["study_id", "Weather"], [["1", 1]], "no column is a known class"),
    ],
)
def test_label_tables_that_are_refused(tmp_path, header, rows, message):
    with pytest.raises(UserError, match=message):
        read_label_table(write_csv(tmp_path / "t.csv", header, rows), QualityLog())


MS_CXR = [
    "category_name",
    "label_text",
    "path",
    "dicom_id",
    "x",
    "y",
    "w",
    "h",
    "image_width",
    "image_height",
    "split",
]


def ms_cxr(path, marks):
    """MS-CXR's CSV of (class, image, x, y, w, h)."""
    rows = [[n, "", f"files/{i}.jpg", i, *place, 100, 100, "test"] for n, i, *place in marks]
    return write_csv(path, MS_CXR, rows)


@pytest.fixture
def boxed(tmp_path):
    """Three studies: right, half right on two images, and tagged without a box."""
    root = tmp_path / "native"
    write_graph(root, 1, [("pneumothorax", True, {"a": [[0, 0, 10, 10]]})])
    write_graph(
        root,
        2,
        [
            ("pleural effusion", True, {"b": [[0, 0, 10, 10]], "c": [[0, 0, 20, 10]]}),
            ("hemothorax", True, {"b": [[10, 0, 20, 10]]}),
            ("pneumothorax", False, {"b": [[0, 0, 10, 10]]}),
        ],
    )
    write_graph(root, 3, [("pneumonia", True, {}), ("cardiomegaly", True, {"d": [[0, 0, 5, 5]]})])
    marks = [
        ("Pneumothorax", "a", 0, 0, 10, 10),
        ("Pleural Effusion", "b", 0, 0, 10, 10),
        ("Pleural Effusion", "c", 50, 50, 10, 10),
        ("Pneumothorax", "b", 0, 0, 10, 10),  # the graph denies it: no pair
        ("Pneumonia", "d", 0, 0, 10, 10),
    ]
    return root, ms_cxr(tmp_path / "MS_CXR_Local_Alignment_v1.1.0.csv", marks)


def test_overlap_by_hand(boxed):
    root, labels = boxed
    scores = score_boxes(labels, {"ours": root}, options("exact"))
    paper, strict = (scores.figures["ours"][p] for p in (PAPER, STRICT))
    # Effusion, both images: ours 200 + 200, theirs 100 + 100, 100 in both.
    assert paper["boxes/iou/Pleural Effusion"].value == pytest.approx(100 / 500)
    assert paper["boxes/iop/Pleural Effusion"].value == pytest.approx(100 / 400)
    assert paper["boxes/iot/Pleural Effusion"].value == pytest.approx(100 / 200)
    assert paper["boxes/iou/Pneumothorax"].n == 1
    assert paper["boxes/iou@0.3/micro"].value == pytest.approx(1 / 2)
    assert paper["boxes/iop@0.3/micro"].value == pytest.approx(1 / 2)
    assert paper["boxes/iot@0.3/micro"].value == 1
    assert strict["boxes/iou@0.3/micro"].value == pytest.approx(1 / 3)
    assert strict["boxes/iot@0.3/micro"].value == pytest.approx(2 / 3)
    assert strict["boxes/iop@0.3/micro"].n == 2  # nothing to divide by where we have no box


def test_exactly_three_tenths_count(tmp_path):
    write_graph(tmp_path / "g", 1, [("pneumothorax", True, {"a": [[0, 0, 10, 3]]})])
    labels = ms_cxr(tmp_path / "m.csv", [("Pneumothorax", "a", 0, 0, 10, 10)])
    figures = score_boxes(labels, {"x": tmp_path / "g"}, options("exact")).figures["x"][PAPER]
    assert figures["boxes/iou@0.3/micro"].value == 1


def test_ms_cxr_as_coco_reads_as_its_table(boxed, tmp_path):
    _, table = boxed
    rows = read_csv(table)
    images = {name: n for n, name in enumerate(sorted({row["dicom_id"] for row in rows}))}
    classes = {name: n for n, name in enumerate(sorted({row["category_name"] for row in rows}))}
    coco = {
        "images": [{"id": n, "file_name": f"{name}.jpg"} for name, n in images.items()],
        "categories": [{"id": n, "name": name} for name, n in classes.items()],
        "annotations": [
            {
                "image_id": images[row["dicom_id"]],
                "category_id": classes[row["category_name"]],
                "bbox": [float(row[k]) for k in "xywh"],
            }
            for row in rows
        ],
    }
    path = tmp_path / "MS_CXR_Local_Alignment_v1.1.0.json"
    path.write_text(json.dumps(coco))
    assert read_ms_cxr(path, QualityLog()) == read_ms_cxr(table, QualityLog())


def test_reflacx_readings(tmp_path):
    folder = tmp_path / "main_data"
    corners = ["xmin", "ymin", "xmax", "ymax", "certainty"]
    for phase, ids in ((1, ["P1"]), (3, ["P3", "P4"])):
        readings = [[name, "a", "x"] for name in ids]
        table = folder / f"metadata_phase_{phase}.csv"
        write_csv(table, ["id", "dicom_id", "image"], readings)
    first = [[0, 0, 10, 10, 3, "True", "False"], [0, 0, 9, 9, 2, "True", "False"]]
    first += [[0, 0, 8, 8, "", "True", "False"], [0, 0, 7, 7, 5, "True"]]
    write_csv(
        folder / "P1" / "anomaly_location_ellipses.csv",
        [*corners, "Mass", "Pleural effusion"],
        first,
    )
    write_csv(
        folder / "P3" / "anomaly_location_ellipses.csv",
        [*corners, "Lung nodule or mass", "Pleural abnormality", "Support devices"],
        [[5, 5, 20, 20, 5, "True", "True", "True"], [9, 9, 9, 12, 5, "True", "False", "False"]],
    )
    quality = QualityLog()
    for root in (folder, tmp_path):
        assert read_reflacx(root, quality) == {
            "a": {
                "Mass": [(0, 0, 10, 10)],
                "Lung nodule or mass": [(5, 5, 20, 20)],
                "Pleural abnormality": [(5, 5, 20, 20)],
            }
        }
    assert quality.counts()["bad_box"] == quality.counts()["dangling_id"] == 2
    # Without a certainty, and a cell short: of both folders.
    assert quality.counts()["malformed_row"] == 4
    write_graph(tmp_path / "g", 1, [("lung nodule", True, {"a": [[5, 5, 20, 20]]})])
    scores = score_boxes(tmp_path, {"x": tmp_path / "g"}, options("exact"))
    assert scores.settings["labels"] == "REFLACX"
    figures = scores.figures["x"][PAPER]
    assert figures["boxes/iou/Lung nodule or mass"].value == 1
    assert figures["boxes/iou/Mass"].n == 0  # a nodule is no mass


def test_boxes_that_cannot_be_used_are_set_aside(tmp_path):
    marks = [
        ("Pneumothorax", "a", 0, 0, 10, 10),
        ("Pneumothorax", "a", 0, 0, -1, 10),
        ("Pneumothorax", "a", 0, 0, "nan", 10),
        ("Weather", "a", 0, 0, 10, 10),
    ]
    quality = QualityLog()
    assert read_ms_cxr(ms_cxr(tmp_path / "m.csv", marks), quality) == {
        "a": {"Pneumothorax": [(0, 0, 10, 10)]}
    }
    assert (quality.counts()["bad_box"], quality.counts()["unknown_class"]) == (2, 1)


def test_refusals(boxed, tmp_path):
    root, labels = boxed
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no metadata_phase_\*\.csv"):
        score_boxes(root, {"x": root}, options("exact"))
    with pytest.raises(UserError, match=r"no <study>\.scene_graph\.json"):
        score_boxes(labels, {"x": tmp_path / "empty"}, options("exact"))
    with pytest.raises(UserError, match="no study of"):
        score_boxes(
            ms_cxr(tmp_path / "o.csv", [("Edema", "zz", 0, 0, 1, 1)]),
            {"x": root},
            options("exact"),
        )
    with pytest.raises(UserError, match="--codec"):
        CXR_QBA_BOXES.score_files(labels, {"x": root}, ScoreOptions("exact", codec="paligemma"))
    with pytest.raises(UserError, match="expected 'exclude'"):
        CXR_QBA_TAGS.score_files(labels, {"x": root}, options("raw"))
    broken = tmp_path / "m.json"
    broken.write_text('{"images": []}')
    with pytest.raises(UserError, match="not COCO's layout"):
        read_ms_cxr(broken, QualityLog())
    with pytest.raises(UserError, match="no usable box"):
        read_ms_cxr(ms_cxr(tmp_path / "e.csv", []), QualityLog())


def test_the_command_puts_ours_beside_the_pages(cohort, tmp_path):
    folder, table, _ = cohort
    flags = [f"--references={table}", f"--predictions={folder}", "--name=ours", "--resamples=20"]
    score.main(["--benchmark=cxr_qba_tags", *flags, f"--out={tmp_path}/out"])
    tables = (tmp_path / "out" / "tables.md").read_text()
    assert "\nData: MIMIC-Ext-CXR-QBA (" in tables
    assert "| CXR-QBA (the page) | as printed | 0.65 | 0.57 | 0.71 | 0.64 | 0.67 |" in tables
    rows = read_csv(tmp_path / "out" / "tables.csv")
    (row,) = (r for r in rows if r["metric"] == "tags/mcc/LT-only" and r["protocol"] == "paper")
    assert float(row["difference"]) == pytest.approx(float(row["ours"]) - 0.71)
    assert float(row["ci_low"]) <= float(row["ours"]) <= float(row["ci_high"])


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    """30 phantom studies, whose truth is known, and the scene graphs built from their reports."""
    source, out = tmp_path_factory.mktemp("studies"), tmp_path_factory.mktemp("qba")
    StudiesBuilder(StudiesOptions(source, 30, seed=5, long_side=192)).build()
    QbaBuilder(QbaOptions(source, out)).build()
    return source, out / "native"


def test_tags_read_from_phantoms_reports_are_what_these_say(phantoms):
    source, graphs = phantoms
    table = source / "mimic-cxr-2.0.0-chexpert.csv.gz"
    figures = score_tags(table, {"x": graphs}, options("exclude")).figures["x"][PAPER]
    assert figures["tags/mcc/CXP-5"].value > 0.85
    assert figures["tags/specificity/micro"].value > 0.95
    blind = score_tags(swapped(table), {"x": graphs}, options("exclude")).figures["x"][PAPER]
    assert blind["tags/mcc/CXP-5"].value < 0.4  # labels of other studies


def swapped(table):
    """The table with every study's labels given to the next."""
    lines = gzip.decompress(table.read_bytes()).decode().splitlines()
    header, *rows = [line.split(",") for line in lines]
    moved = [[*row[:2], *rows[n - 1][2:]] for n, row in enumerate(rows)]
    return write_csv(table.with_name("swapped.csv"), header, moved)


def test_regions_of_phantoms_findings_hold_the_lesions_drawn(phantoms):
    source, graphs = phantoms
    classes = {"Cardiomegaly", "Consolidation", "Pleural effusion", "Pneumothorax", "Atelectasis"}
    marks = []
    for line in (source / TRUTH).read_text().splitlines():
        for image in json.loads(line)["images"]:
            for lesion in image["lesions"]:
                if lesion["finding"] in classes:
                    x0, y0, x1, y1 = lesion["box"]
                    name = lesion["finding"].replace("effusion", "Effusion")
                    marks.append((name, image["dicom_id"], x0, y0, x1 - x0, y1 - y0))
    labels = ms_cxr(source / "ms_cxr.csv", marks)
    figures = score_boxes(labels, {"x": graphs}, options("exact")).figures["x"][PAPER]
    assert figures["boxes/iot@0.3/micro"].n >= 15
    assert figures["boxes/iot@0.3/micro"].value > 0.9  # regions hold what lies in them
    assert figures["boxes/iou@0.3/Cardiomegaly"].value == 1  # the organ itself
    assert figures["boxes/iou@0.3/micro"].value < 1  # a lesion is smaller than its region
