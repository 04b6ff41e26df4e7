"""Building from every kind of source."""

import gzip
import json

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.build import SPLIT_NOT_FOLLOWED, QbaBuilder, QbaOptions
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.papers.cxr_qba.metadata import COLUMNS
from cxrjax.papers.cxr_qba.records import from_records
from cxrjax.papers.cxr_qba.study_files import StudyFiles
from cxrjax.records import read_records
from cxrjax.records_io.quality import QualityLog

OPENI = """<?xml version="1.0" encoding="utf-8"?>
<eCitation><uId id="CXR7"/><Abstract>
<AbstractText Label="INDICATION">Cough.</AbstractText>
<AbstractText Label="FINDINGS">{findings}</AbstractText>
<AbstractText Label="IMPRESSION"/></Abstract>
<parentImage id="CXR7_1"/><parentImage id="CXR7_2"/></eCitation>
"""


def in_order(content):
    """JSON with sorted keys: equal texts are equal up to the order of keys."""
    return json.dumps(content, sort_keys=True)


def built(source, out, **flags):
    QbaBuilder(QbaOptions(source, out, **flags)).build()
    return {
        path.stem: list(read_records(path)) for path in sorted((out / "records").glob("*.jsonl"))
    }


def test_from_reports_and_boxes(sample, tmp_path):
    records = built(sample / "reports", tmp_path)
    # The lateral study of the validation split has no frontal image.
    assert set(records) == {"train", "validation"} and not records["validation"]
    assert {r.image_id for r in records["train"]} == {
        "synthetic-0001",
        "synthetic-0002",
        "synthetic-0004",
    }
    assert all(r.image_hw and r.grade is None and r.view in ("PA", "AP") for r in records["train"])
    assert any(r.boxes for r in records["train"])
    statistics = json.loads((tmp_path / "statistics.json").read_text())
    assert statistics["studies"]["value"] == 3
    assert statistics["studies"]["paper"] == 227_239
    assert statistics["grade/unrated"]["value"] == statistics["questions"]["value"]
    for level in COLUMNS:
        assert (tmp_path / "metadata" / f"{level}_metadata.parquet").is_file()
    quality = json.loads((tmp_path / "quality.json").read_text())
    assert quality["warnings"]["studies without a frontal image, not exported"] == 1


def test_images_are_decoded_and_only_usable_ones_asked_about(sample, tmp_path):
    """One is as the tables say, one is of another size, the others are damaged or not there."""
    plain = built(sample / "reports", tmp_path / "plain")["train"]
    by_image = {record.image_id: record for record in plain}
    images = tmp_path / "images"
    for number, name in enumerate(("synthetic-0001", "synthetic-0002", "synthetic-0004")):
        height, width = by_image[name].image_hw
        file = images / by_image[name].image_path
        file.parent.mkdir(parents=True, exist_ok=True)
        if number < 2:
            pixels = np.full((height + number, width), 7, np.uint8)
            Image.fromarray(pixels).save(file, format="png")
        else:
            file.write_bytes(b"\x89PNG\r\n\x1a\n of no use")
    out = tmp_path / "audited"
    records = built(sample / "reports", out, images=images)["train"]
    assert {record.image_id for record in records} == {"synthetic-0001"}
    expected = [r for r in plain if r.image_id == "synthetic-0001"]
    assert [r.question_id for r in records] == [r.question_id for r in expected]
    assert all((out / record.image_path).is_file() for record in records)
    assert (out / "image_checks.jsonl").is_file()
    quality = json.loads((out / "quality.json").read_text())
    assert quality["counts"]["size_mismatch"] == 1
    assert quality["counts"]["missing_image"] == 2  # the lateral ones
    assert sum(quality["counts"].values()) == 4


def test_what_was_built_reads_as_the_release(sample, tmp_path):
    first = built(sample / "reports", tmp_path / "first")
    second = built(tmp_path / "first" / "native", tmp_path / "second")
    asked = {r.question_id.rsplit("/", 1)[0] for r in first["train"]}
    again = {r.question_id.rsplit("/", 1)[0] for rs in second.values() for r in rs}
    assert asked <= again


def test_same_input_same_bytes(sample, tmp_path):
    for name in ("a", "b"):
        built(sample / "reports", tmp_path / name)
    for path in sorted((tmp_path / "a").rglob("*")):
        if path.is_file():
            other = tmp_path / "b" / path.relative_to(tmp_path / "a")
            assert path.read_bytes() == other.read_bytes(), path


def test_from_the_release(sample, tmp_path):
    records = built(sample / "release", tmp_path)
    assert set(records) == {"train"}
    assert {r.image_hw for r in records["train"]} == {(1200, 1000), (900, 1100), (1024, 1024)}
    studies = from_records(records["train"])
    native = sample / "release" / "p19" / "p19990001" / "s59990001.qa.json"
    assert in_order(studies[0].to_json()) == in_order(json.loads(native.read_text()))


def test_export_by_the_surrogate_grade(sample, tmp_path):
    every = built(sample / "reports", tmp_path / "all", rate_with="surrogate")["train"]
    good = built(sample / "reports", tmp_path / "good", rate_with="surrogate", least_grade="A")[
        "train"
    ]
    assert 0 < len(good) < len(every)
    assert {r.quality["surrogate_grade"] for r in good} <= {"A++", "A+", "A"}
    assert all(r.grade is None for r in good)
    manifest = json.loads((tmp_path / "good" / "manifest.json").read_text())
    assert (manifest["grades"], manifest["least_grade"]) == ("surrogate", "A")
    with pytest.raises(UserError, match="add --rate_with=surrogate"):
        built(sample / "reports", tmp_path / "none", least_grade="A")


def test_a_filter_that_leaves_nothing_ends_in_one_line(sample, tmp_path):
    with pytest.raises(UserError, match=r"no question left to export: .* 10 questions without"):
        built(sample / "release", tmp_path / "release", least_grade="B")
    assert not (tmp_path / "release" / "manifest.json").exists()
    lines = (sample / "reports" / "studies.jsonl").read_text().splitlines()
    (tmp_path / "studies.jsonl").write_text(lines[2] + "\n")  # the lateral one
    with pytest.raises(UserError, match=r"no question left to export: 1 studies without a frontal"):
        built(tmp_path, tmp_path / "out")


def test_from_openi(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "7.xml").write_text(OPENI.format(findings="Small left effusion."))
    (source / "8.xml").write_text(OPENI.format(findings="").replace("CXR7", "CXR8"))
    (source / "9.xml").write_bytes(b"<eCitation>\xff")
    records = built(source, tmp_path / "out")
    asked = [r for rs in records.values() for r in rs]
    assert {r.image_id for r in asked} == {"CXR7_1"}
    counts = json.loads((tmp_path / "out" / "quality.json").read_text())["counts"]
    assert (counts["empty_report"], counts["bad_encoding"]) == (1, 1)


def mimic(root):
    """A study in the layouts of MIMIC-CXR-JPG, Chest ImaGenome and CXAS."""
    folder = root / "files" / "p19" / "p19990009"
    folder.mkdir(parents=True)
    (folder / "s59990009.txt").write_text(
        "                 FINAL REPORT\n INDICATION:  Cough.\n\n FINDINGS:\n\n Opacity in the left"
        "\n lung.  No effusion.\n\n IMPRESSION:  Cardiomegaly.\n"
    )
    tables = {
        "metadata": "dicom_id,subject_id,study_id,ViewPosition,Rows,Columns\n"
        "d1,19990009,59990009,PA,300,200\nd2,19990009,59990009,LATERAL,300,200\n",
        "split": "dicom_id,study_id,subject_id,split\nd1,59990009,19990009,validate\n",
    }
    for name, text in tables.items():
        with gzip.open(root / f"mimic-cxr-2.0.0-{name}.csv.gz", "wt") as file:
            file.write(text)
    graphs = root / "chest_imagenome" / "silver_dataset" / "scene_graph"
    graphs.mkdir(parents=True)
    box = {"original_x1": 60, "original_y1": 120, "original_x2": 160, "original_y2": 240}
    box |= {"x1": 67, "y1": 90, "x2": 179, "y2": 179}  # on the frame of 224
    (graphs / "d1_SceneGraph.json").write_text(
        json.dumps({"objects": [{"bbox_name": "cardiac silhouette", **box}]})
    )
    mask = np.zeros((300, 200), np.uint8, order="F")
    mask[30:200, 110:190] = 1
    lengths = coco.encode(mask)
    (root / "cxas").mkdir()
    (root / "cxas" / "d1.json").write_text(
        json.dumps(
            {
                "categories": [{"id": 3, "name": "left lung"}],
                "annotations": [
                    {
                        "category_id": 3,
                        "segmentation": {"size": [300, 200], "counts": lengths["counts"].decode()},
                    }
                ],
            }
        )
    )
    return root


def test_from_reports_scene_graphs_and_masks(tmp_path):
    records = built(mimic(tmp_path / "in"), tmp_path / "out")
    (split,) = records
    assert split == "validation"
    opacity = next(
        r
        for r in records[split]
        if r.question_type == "D01_describe_finding" and r.variables["finding"] == "lung opacity"
    )
    assert opacity.image_path == "files/p19/p19990009/s59990009/d1.jpg"
    assert opacity.answers[0].boxes_by_image == {"d1": [[110, 30, 190, 200]]}
    with StudyFiles(tmp_path / "out/native", QualityLog()) as files:
        graph, _ = files.read(("p19990009", "s59990009"))
    place = graph.regions["left lung"].localization["d1"]
    assert place.localization_quality == "BBOX_AND_MASK_LOCALIZATION"
    (study,) = read_studies(tmp_path / "in", QualityLog())
    assert study.report.sections["findings"] == "Opacity in the left\n lung.  No effusion."


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"original_x2": 9000}, "wrong_frame"),
        ({"x2": 300}, "wrong_frame"),
        ({"x1": 60, "x2": 160}, "wrong_frame"),  # neither stretched nor centred
        ({"original_x1": "60"}, "bad_box"),
        ({"original_x1": 160}, "wrong_frame"),
    ],
)
def test_boxes_in_a_wrong_frame(tmp_path, change, reason):
    path = mimic(tmp_path) / "chest_imagenome/silver_dataset/scene_graph/d1_SceneGraph.json"
    graph = json.loads(path.read_text())
    graph["objects"].append({**graph["objects"][0], "bbox_name": "carina", **change})
    path.write_text(json.dumps(graph))
    quality = QualityLog()
    (study,) = read_studies(tmp_path, quality)
    assert [entry.reason for entry in quality.entries] == [reason]
    assert list(study.images[0].boxes) == ["cardiac silhouette"]


@pytest.mark.parametrize("name", ["chest_imagenome/silver_dataset/scene_graph", "cxas"])
@pytest.mark.parametrize("raw", [b"\xff", b"[]", b"{", b"{}", b'{"objects": 1, "categories": [1]}'])
def test_region_files_that_are_none(tmp_path, name, raw):
    (path,) = (mimic(tmp_path) / name).glob("d1*")
    path.write_bytes(raw)
    quality = QualityLog()
    (study,) = read_studies(tmp_path, quality)
    assert not (study.images[0].masks if name == "cxas" else study.images[0].boxes)
    assert {entry.reason for entry in quality.entries} == {"invalid_graph"}


def test_a_structure_in_two_parts(tmp_path):
    path = mimic(tmp_path) / "cxas" / "d1.json"
    content = json.loads(path.read_text())
    part = np.zeros((300, 200), np.uint8, order="F")
    part[210:220, 10:30] = 1
    counts = coco.encode(part)["counts"].decode()
    second = {"category_id": 3, "segmentation": {"size": [300, 200], "counts": counts}}
    content["annotations"].append(second)
    path.write_text(json.dumps(content))
    (study,) = read_studies(tmp_path, QualityLog())
    assert study.images[0].masks["left lung"].sum() == 170 * 80 + 10 * 20


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"segmentation": {"size": [10**6, 10**6], "counts": "01"}}, "wrong_frame"),
        ({"segmentation": {"size": [300, 200], "counts": "zz!"}}, "invalid_record"),
        ({"segmentation": {"size": [300, 200], "counts": [1, 2]}}, "invalid_record"),
        ({"segmentation": None}, "invalid_record"),
        ({"category_id": 9}, "invalid_record"),
    ],
)
def test_masks_that_are_none(tmp_path, change, reason):
    path = mimic(tmp_path) / "cxas" / "d1.json"
    content = json.loads(path.read_text())
    content["annotations"].insert(0, {**content["annotations"][0], **change})
    path.write_text(json.dumps(content))
    quality = QualityLog()
    (study,) = read_studies(tmp_path, quality)
    assert list(study.images[0].masks) == ["left lung"]
    assert [entry.reason for entry in quality.entries] == [reason]


def test_reports_that_are_none(tmp_path):
    folder = mimic(tmp_path) / "files" / "p19" / "p19990009"
    (folder / "s59990010.txt").write_text("FINDINGS: " + "Clear lungs. " * 80_000)
    # A megabyte that ends within a letter.
    (folder / "s59990013.txt").write_text("FINDINGS: x" + "é" * (1 << 20))
    (folder / "s59990011.txt").write_bytes(b"FINDINGS: \xff")
    (folder / "s59990012.txt").write_text("FINDINGS:\n\nIMPRESSION:\n")
    built(tmp_path, tmp_path / "out")
    counts = json.loads((tmp_path / "out" / "quality.json").read_text())["counts"]
    reasons = ("report_too_long", "bad_encoding", "empty_report")
    assert [counts[reason] for reason in reasons] == [2, 1, 1]


@pytest.mark.parametrize(
    ("table", "text", "message"),
    [
        (
            "metadata",
            "dicom_id,subject_id\nd1,1\n",
            "metadata.csv.gz:1: column study_id is missing",
        ),
        (
            "metadata",
            "dicom_id,subject_id,study_id,ViewPosition,Rows,Columns\nd1,1,2,PA,x,200\n",
            "metadata.csv.gz:2: Rows 'x'",
        ),
        ("split", "study_id\n1\n", "split.csv.gz:1: column split is missing"),
    ],
)
def test_tables_that_are_none(tmp_path, table, text, message):
    with gzip.open(mimic(tmp_path) / f"mimic-cxr-2.0.0-{table}.csv.gz", "wt") as file:
        file.write(text.replace("d1,1,2", "d1,19990009,2"))
    with pytest.raises(UserError, match=message):
        list(read_studies(tmp_path, QualityLog()))


def test_a_mimic_report_without_headers_is_read_and_counted(tmp_path):
    folder = mimic(tmp_path / "in") / "files" / "p19" / "p19990009"
    (folder / "s59990009.txt").write_text(
        "                  FINAL REPORT\n CHEST RADIOGRAPH\n \n INDICATION:  Cough.\n \n"
        " COMPARISON:  None.\n \n There is a large left pleural effusion.\n"
    )
    records = built(tmp_path / "in", tmp_path / "out")["validation"]
    found = {r.variables["finding"] for r in records if r.question_type == "D01_describe_finding"}
    assert "pleural effusion" in found
    quality = json.loads((tmp_path / "out" / "quality.json").read_text())
    assert quality["warnings"]["reports read from their text without a header"] == 1


def test_lines_of_ones_own(tmp_path):
    good = {"patient_id": "p", "study_id": "s", "sections": {"Findings": "Clear lungs."}}
    lines = [json.dumps(good).encode(), b'{"patient_id": 1}', b'{"a": "\xff"}', b"{"]
    (tmp_path / "studies.jsonl").write_bytes(b"\n".join([*lines, lines[0]]) + b"\n")
    records = built(tmp_path, tmp_path / "out")
    assert sum(map(len, records.values())) > 0
    counts = json.loads((tmp_path / "out" / "quality.json").read_text())["counts"]
    assert counts["invalid_record"] == 2
    assert (counts["bad_encoding"], counts["duplicate_id"]) == (1, 1)


@pytest.mark.parametrize("name", ["../../outside", "/outside", "..", "a/b", "", "a\\b", "a\nb"])
def test_ids_that_would_lead_out_of_the_folder(tmp_path, name):
    good = {"patient_id": "p", "study_id": "s", "sections": {"findings": "Clear lungs."}}
    lines = [good, {**good, "patient_id": name}, {**good, "study_id": name}]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "studies.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    built(tmp_path / "in", tmp_path / "deep" / "er" / "out")
    counts = json.loads((tmp_path / "deep" / "er" / "out" / "quality.json").read_text())["counts"]
    assert counts["invalid_record"] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"in", "deep"}
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["out"]


def test_splits_that_only_some_studies_have_are_not_followed(tmp_path):
    findings = {"Findings": "Clear lungs. Small left pleural effusion."}
    lines = [
        {"patient_id": f"p{n}", "study_id": f"s{n}", "sections": findings, "split": "test"}
        for n in range(4)
    ]
    del lines[0]["split"]
    (tmp_path / "studies.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert set(built(tmp_path, tmp_path / "out")) == {"train", "validation"}
    quality = json.loads((tmp_path / "out" / "quality.json").read_text())
    assert quality["warnings"][SPLIT_NOT_FOLLOWED] == 3


def test_nothing_to_read(tmp_path):
    with pytest.raises(UserError, match="found neither"):
        built(tmp_path, tmp_path / "out")
    (tmp_path / "studies.jsonl").write_text(
        '{"patient_id": "p", "study_id": "s", "sections": {"findings": ""}}\n'
    )
    with pytest.raises(UserError, match=r"no study left to use; set aside: .*empty_report"):
        built(tmp_path, tmp_path / "out")
