"""Tags and boxes of scene graphs against people's labels, in the layouts these are published in."""

import csv
import gzip
import json

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from bench.cxr_qba_validation import human_labels, main
from bench.cxr_qba_validation.boxes import CXR_QBA_BOXES
from bench.cxr_qba_validation.tags import CXR_QBA_TAGS
from cxrjax.errors import UserError
from cxrjax.evaluation.counted import PAPER, STRICT
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.cxr_qba.native import StudySceneGraph
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.records_io.quality import QualityLog
from cxrjax.simulation.studies.build import TRUTH
from tests.papers.cases import cases, data, differing, write_files
from tests.papers.cxr_qba import builds

CLASSES = human_labels.load_label_classes()


def options(gt_mode):
    return ScoreOptions(gt_mode=gt_mode, bootstrap=Bootstrap(resamples=0))


def figures_of(validation, labels, graphs, mode):
    return validation.score_files(labels, {"x": graphs}, options(mode)).figures["x"][PAPER]


def write_graph(root, study, nodes):
    """A study p<study>/s<study> of nodes (finding, positive, {image: boxes})."""
    observations = {}
    for n, (finding, positive, places) in enumerate(nodes):
        boxes = {image: {"image_id": image, "bboxes": own} for image, own in places.items()}
        node = {"obs_id": f"O{n:02d}", "name": finding, "obs_entities": [finding]}
        node |= {"positiveness": "pos" if positive else "neg", "localization": boxes}
        observations[node["obs_id"]] = node
    graph = {"patient_id": f"p{study}", "study_id": f"s{study}", "observations": observations}
    graph["top_level_obs_ids"] = list(observations)
    builds.write_graph(root, StudySceneGraph.model_validate(graph))


def write_csv(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


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
        firsts = (min(CLASSES.classes[name].tags) for name in names)
        nodes = [(tag, bool(there), {}) for tag, there in zip(firsts, tags, strict=True)]
        write_graph(tmp_path / "native", study, nodes)
        blank = ["" if value == 0 and n % 2 else f"{value}.0" for value in labels]
        rows.append([study, *blank])
    table = write_csv(tmp_path / "gold.csv.gz", ["study_id", *names], rows)
    return tmp_path / "native", table, labelled


def tagged_by(folder, names):
    """Which classes each study has, worked out from its file alone."""
    definitions = load_definitions()
    found, classes = [], [CLASSES.classes[name] for name in names]
    for path in sorted(folder.rglob("*.scene_graph.json")):
        nodes = json.loads(path.read_text())["observations"].values()
        own = {e for node in nodes if node["positiveness"] == "pos" for e in node["obs_entities"]}
        every = own | {a for name in own for a in definitions.finding_ancestors(name)}
        found.append([bool(one.tags & (every if one.special else own)) for one in classes])
    return np.array(found)


@pytest.mark.parametrize("uncertain", ["exclude", "positive", "negative"])
def test_correlation_against_scikit_learn(cohort, uncertain):
    folder, table, labelled = cohort
    names = list(CLASSES.classes)
    scores = CXR_QBA_TAGS.score_files(table, {"ours": folder}, options(uncertain))
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
    figures = CXR_QBA_TAGS.score_files(table, {"x": tmp_path}, options("exclude")).figures["x"][
        PAPER
    ]
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
    read = human_labels.read_label_table(table, quality)
    assert read.studies == {"50000001": {"Lung Opacity": -1, "Mass": 1}, "50000002": {"Mass": 0}}
    assert read.classes == ("Lung Opacity", "Mass")
    assert quality.warnings["images of one study labelled differently"] == 1


def test_labels_and_boxes_that_cannot_be_used_are_set_aside(tmp_path):
    rows = [["50000001", 2], ["x", 1], ["50000002", 1], ["50000003"]]
    table = write_csv(tmp_path / "t.csv", ["study_id", "Mass"], rows)
    quality = QualityLog()
    assert list(human_labels.read_label_table(table, quality).studies) == ["50000002"]
    assert quality.counts()["malformed_row"] == 3
    marks = [("Pneumothorax", "a", 0, 0, width, 10) for width in (10, -1, "nan")]
    labels = ms_cxr(tmp_path / "m.csv", [*marks, ("Weather", "a", 0, 0, 10, 10)])
    quality = QualityLog()
    read = human_labels.read_ms_cxr(labels, quality)
    assert read == {"a": {"Pneumothorax": [(0, 0, 10, 10)]}}
    assert (quality.counts()["bad_box"], quality.counts()["unknown_class"]) == (2, 1)


@cases("header, rows, message")
def test_label_tables_that_are_refused(tmp_path, header, rows, message):
    with pytest.raises(UserError, match=message):
        human_labels.read_label_table(write_csv(tmp_path / "t.csv", header, rows), QualityLog())


MS_CXR = "category_name label_text path dicom_id x y w h image_width image_height split"


def ms_cxr(path, marks):
    """MS-CXR's CSV of (class, image, x, y, w, h)."""
    rows = [[n, "", f"files/{i}.jpg", i, *place, 100, 100, "test"] for n, i, *place in marks]
    return write_csv(path, MS_CXR.split(), rows)


@pytest.fixture
def boxed(tmp_path):
    """Three studies: right, half right on two images, and tagged without a box."""
    root, boxed = tmp_path / "native", data(__file__)["boxed"]
    for study, nodes in enumerate(boxed["nodes"], 1):
        write_graph(root, study, nodes)
    return root, ms_cxr(tmp_path / "MS_CXR_Local_Alignment_v1.1.0.csv", boxed["marks"])


def test_overlap_by_hand_counts_exactly_three_tenths(boxed, tmp_path):
    root, labels = boxed
    scores = CXR_QBA_BOXES.score_files(labels, {"ours": root}, options("exact"))
    for protocol, expected in data(__file__)["overlap_by_hand"].items():
        named = scores.figures["ours"][protocol].items()
        assert differing({name: figure.value for name, figure in named}, expected) == {}
    assert scores.figures["ours"][PAPER]["boxes/iou/Pneumothorax"].n == 1
    # Nothing to divide by where we have no box.
    assert scores.figures["ours"][STRICT]["boxes/iop@0.3/micro"].n == 2
    write_graph(tmp_path / "g", 1, [("pneumothorax", True, {"a": [[0, 0, 10, 3]]})])
    labels = ms_cxr(tmp_path / "m.csv", [("Pneumothorax", "a", 0, 0, 10, 10)])
    figures = CXR_QBA_BOXES.score_files(labels, {"x": tmp_path / "g"}, options("exact")).figures[
        "x"
    ][PAPER]
    assert figures["boxes/iou@0.3/micro"].value == 1


def test_ms_cxr_as_coco_reads_as_its_table(boxed, tmp_path):
    _, table = boxed
    rows = read_csv(table)
    images = {name: n for n, name in enumerate(sorted({row["dicom_id"] for row in rows}))}
    classes = {name: n for n, name in enumerate(sorted({row["category_name"] for row in rows}))}
    marks = [
        {"image_id": images[row["dicom_id"]], "category_id": classes[row["category_name"]]}
        | {"bbox": [float(row[k]) for k in "xywh"]}
        for row in rows
    ]
    coco = {
        "images": [{"id": n, "file_name": f"{name}.jpg"} for name, n in images.items()],
        "categories": [{"id": n, "name": name} for name, n in classes.items()],
        "annotations": marks,
    }
    path = tmp_path / "MS_CXR_Local_Alignment_v1.1.0.json"
    path.write_text(json.dumps(coco))
    read = [human_labels.read_ms_cxr(one, QualityLog()) for one in (path, table)]
    assert read[0] == read[1]


def test_reflacx_readings(tmp_path):
    folder = write_files(tmp_path / "main_data", data(__file__)["reflacx"])
    quality = QualityLog()
    large = [(5, 5, 20, 20)]
    read = {"Mass": [(0, 0, 10, 10)], "Lung nodule or mass": large, "Pleural abnormality": large}
    for root in (folder, tmp_path):
        assert human_labels.read_reflacx(root, quality) == {"a": read}
    assert quality.counts()["bad_box"] == quality.counts()["dangling_id"] == 2
    # Without a certainty, and a cell short: of both folders.
    assert quality.counts()["malformed_row"] == 4
    write_graph(tmp_path / "g", 1, [("lung nodule", True, {"a": [[5, 5, 20, 20]]})])
    scores = CXR_QBA_BOXES.score_files(tmp_path, {"x": tmp_path / "g"}, options("exact"))
    assert scores.settings["labels"] == "REFLACX"
    figures = scores.figures["x"][PAPER]
    assert figures["boxes/iou/Lung nodule or mass"].value == 1
    assert figures["boxes/iou/Mass"].n == 0  # a nodule is no mass


def test_refusals(boxed, tmp_path):
    root, labels = boxed
    (tmp_path / "empty").mkdir()
    other = ms_cxr(tmp_path / "o.csv", [("Edema", "zz", 0, 0, 1, 1)])
    for table, graphs, message in (
        (root, root, r"no metadata_phase_\*\.csv"),
        (labels, tmp_path / "empty", r"no <study>\.scene_graph\.json"),
        (other, root, "no study of"),
    ):
        with pytest.raises(UserError, match=message):
            CXR_QBA_BOXES.score_files(table, {"x": graphs}, options("exact"))
    with pytest.raises(UserError, match="--codec"):
        CXR_QBA_BOXES.score_files(labels, {"x": root}, ScoreOptions("exact", codec="paligemma"))
    with pytest.raises(UserError, match="expected 'exclude'"):
        CXR_QBA_TAGS.score_files(labels, {"x": root}, options("raw"))
    (tmp_path / "m.json").write_text('{"images": []}')
    with pytest.raises(UserError, match="not COCO's layout"):
        human_labels.read_ms_cxr(tmp_path / "m.json", QualityLog())
    with pytest.raises(UserError, match="no usable box"):
        human_labels.read_ms_cxr(ms_cxr(tmp_path / "e.csv", []), QualityLog())


def test_the_command_puts_ours_beside_the_pages(cohort, tmp_path):
    folder, table, _ = cohort
    flags = [f"--labels={table}", f"--graphs={folder}", "--name=ours", "--resamples=20"]
    main(["--of=tags", *flags, f"--out={tmp_path}/out"])
    tables = (tmp_path / "out" / "tables.md").read_text()
    assert "\nData: MIMIC-Ext-CXR-QBA (" in tables
    assert "| CXR-QBA (the page) | as printed | 0.65 | 0.57 | 0.71 | 0.64 | 0.67 |" in tables
    rows = read_csv(tmp_path / "out" / "tables.csv")
    (row,) = (r for r in rows if r["metric"] == "tags/mcc/LT-only" and r["protocol"] == "paper")
    assert float(row["difference"]) == pytest.approx(float(row["ours"]) - 0.71)
    assert float(row["ci_low"]) <= float(row["ours"]) <= float(row["ci_high"])


def test_tags_read_from_phantoms_reports_are_what_these_say(phantoms):
    source, graphs = phantoms[0], phantoms[1].out / "native"
    table = source / "mimic-cxr-2.0.0-chexpert.csv.gz"
    figures = figures_of(CXR_QBA_TAGS, table, graphs, "exclude")
    assert figures["tags/mcc/CXP-5"].value > 0.85
    assert figures["tags/specificity/micro"].value > 0.95
    blind = CXR_QBA_TAGS.score_files(swapped(table), {"x": graphs}, options("exclude")).figures[
        "x"
    ][PAPER]
    assert blind["tags/mcc/CXP-5"].value < 0.4  # labels of other studies


def swapped(table):
    """The table with every study's labels given to the next."""
    lines = gzip.decompress(table.read_bytes()).decode().splitlines()
    header, *rows = [line.split(",") for line in lines]
    moved = [[*row[:2], *rows[n - 1][2:]] for n, row in enumerate(rows)]
    return write_csv(table.with_name("swapped.csv"), header, moved)


def test_regions_of_phantoms_findings_hold_the_lesions_drawn(phantoms):
    source, graphs = phantoms[0], phantoms[1].out / "native"
    classes = {"Cardiomegaly", "Consolidation", "Pleural effusion", "Pneumothorax", "Atelectasis"}
    truth = [json.loads(line) for line in (source / TRUTH).read_text().splitlines()]
    marks = []
    for image in (image for study in truth for image in study["images"]):
        for lesion in (one for one in image["lesions"] if one["finding"] in classes):
            x0, y0, x1, y1 = lesion["box"]
            name = lesion["finding"].replace("effusion", "Effusion")
            marks.append((name, image["dicom_id"], x0, y0, x1 - x0, y1 - y0))
    labels = ms_cxr(source / "ms_cxr.csv", marks)
    figures = figures_of(CXR_QBA_BOXES, labels, graphs, "exact")
    assert figures["boxes/iot@0.3/micro"].n >= 15
    assert figures["boxes/iot@0.3/micro"].value > 0.9  # regions hold what lies in them
    assert figures["boxes/iou@0.3/Cardiomegaly"].value == 1  # the organ itself
    assert figures["boxes/iou@0.3/micro"].value < 1  # a lesion is smaller than its region
