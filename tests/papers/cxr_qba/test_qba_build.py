"""Building from every kind of source."""

import gzip
import json

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.build import SPLIT_NOT_FOLLOWED
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.papers.cxr_qba.metadata import COLUMNS
from cxrjax.papers.cxr_qba.records import from_records
from cxrjax.papers.cxr_qba.study_files import StudyFiles
from cxrjax.records_io.quality import QualityLog
from tests.papers.cases import cases, data, write_files

TEXTS = data(__file__)


def test_from_reports_and_boxes(plain):
    # The lateral study of the validation split has no frontal image.
    assert set(plain.splits) == {"train", "validation"} and not plain.splits["validation"]
    train = plain.splits["train"]
    assert {r.image_id for r in train} == {f"synthetic-000{n}" for n in (1, 2, 4)}
    assert all(r.image_hw and r.grade is None and r.view in ("PA", "AP") for r in train)
    assert any(r.boxes for r in train)
    statistics = plain.statistics
    assert (statistics["studies"]["value"], statistics["studies"]["paper"]) == (3, 227_239)
    assert statistics["grade/unrated"]["value"] == statistics["questions"]["value"]
    for level in COLUMNS:
        assert (plain.out / "metadata" / f"{level}_metadata.parquet").is_file()
    assert plain.quality["warnings"]["studies without a frontal image, not exported"] == 1


def test_images_are_decoded_and_only_usable_ones_asked_about(sample, plain, built, tmp_path):
    """One is as the tables say, one is of another size, the others are damaged or not there."""
    by_image = {record.image_id: record for record in plain.records}
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
    audited = built(sample / "reports", tmp_path / "audited", images=images)
    records = audited.splits["train"]
    assert {record.image_id for record in records} == {"synthetic-0001"}
    expected = [r for r in plain.records if r.image_id == "synthetic-0001"]
    assert [r.question_id for r in records] == [r.question_id for r in expected]
    assert all((audited.out / record.image_path).is_file() for record in records)
    assert (audited.out / "image_checks.jsonl").is_file()
    counts = audited.quality["counts"]
    assert counts["size_mismatch"] == 1
    assert counts["missing_image"] == 2  # the lateral ones
    assert sum(counts.values()) == 4


def test_what_was_built_reads_as_the_release(plain, built, tmp_path):
    second = built(plain.out / "native", tmp_path / "second")
    asked, again = (
        {r.question_id.rsplit("/", 1)[0] for r in one.records} for one in (plain, second)
    )
    assert asked <= again


def test_same_input_same_bytes(sample, plain, built, tmp_path):
    built(sample / "reports", tmp_path / "again")
    for path in sorted(plain.out.rglob("*")):
        if path.is_file():
            other = tmp_path / "again" / path.relative_to(plain.out)
            assert path.read_bytes() == other.read_bytes(), path


def test_from_the_release(sample, built, tmp_path):
    splits = built(sample / "release", tmp_path, include_unmentioned=True).splits
    assert set(splits) == {"train"}
    assert {r.image_hw for r in splits["train"]} == {(1200, 1000), (900, 1100), (1024, 1024)}
    studies = from_records(splits["train"])
    native = sample / "release" / "p19" / "p19990001" / "s59990001.qa.json"
    texts = (studies[0].to_json(), json.loads(native.read_text()))
    assert len({json.dumps(text, sort_keys=True) for text in texts}) == 1


def test_export_by_the_surrogate_grade(sample, built, tmp_path):
    surrogate = {"rate_with": "surrogate"}
    every = built(sample / "reports", tmp_path / "all", **surrogate).splits["train"]
    chosen = built(sample / "reports", tmp_path / "good", least_grade="A", **surrogate)
    good = chosen.splits["train"]
    assert 0 < len(good) < len(every)
    assert {r.quality["surrogate_grade"] for r in good} <= {"A++", "A+", "A"}
    assert all(r.grade is None for r in good)
    assert (chosen.manifest["grades"], chosen.manifest["least_grade"]) == ("surrogate", "A")
    with pytest.raises(UserError, match="add --rate_with=surrogate"):
        built(sample / "reports", tmp_path / "none", least_grade="A")


def test_a_filter_that_leaves_nothing_ends_in_one_line(sample, built, tmp_path):
    with pytest.raises(UserError, match=r"no question left to export: .* 10 questions without"):
        built(sample / "release", tmp_path / "release", least_grade="B")
    assert not (tmp_path / "release" / "manifest.json").exists()
    lines = (sample / "reports" / "studies.jsonl").read_text().splitlines()
    (tmp_path / "studies.jsonl").write_text(lines[2] + "\n")  # the lateral one
    with pytest.raises(UserError, match=r"no question left to export: 1 studies without a frontal"):
        built(tmp_path, tmp_path / "out")


def test_from_openi(built, tmp_path):
    told = {"7.xml": TEXTS["openi"].format(findings="Small left effusion.")}
    told["8.xml"] = TEXTS["openi"].format(findings="").replace("CXR7", "CXR8")
    source = write_files(tmp_path / "in", told)
    (source / "9.xml").write_bytes(b"<eCitation>\xff")
    made = built(source, tmp_path / "out")
    assert {r.image_id for r in made.records} == {"CXR7_1"}
    counts = made.quality["counts"]
    assert (counts["empty_report"], counts["bad_encoding"]) == (1, 1)


def mimic(root):
    """A study in the layouts of MIMIC-CXR-JPG, Chest ImaGenome and CXAS."""
    return write_files(root, TEXTS["mimic"])


def change_masks(root, change):
    path = mimic(root) / "cxas" / "d1.json"
    content = json.loads(path.read_text())
    change(content["annotations"])
    path.write_text(json.dumps(content))


def read(root):
    """(The only study, why what was set aside)."""
    quality = QualityLog()
    (study,) = read_studies(root, quality)
    list(study.images[0].masks)  # read when they are asked for
    return study, [entry.reason for entry in quality.entries]


def test_from_reports_scene_graphs_and_masks(built, tmp_path):
    splits = built(mimic(tmp_path / "in"), tmp_path / "out").splits
    assert set(splits) == {"validation"}
    opacity = next(
        r
        for r in splits["validation"]
        if r.question_type == "D01_describe_finding" and r.variables["finding"] == "lung opacity"
    )
    assert opacity.image_path == "files/p19/p19990009/s59990009/d1.jpg"
    assert opacity.answers[0].boxes_by_image == {"d1": [[110, 30, 190, 200]]}
    with StudyFiles(tmp_path / "out/native", QualityLog()) as files:
        graph, _ = files.read(("p19990009", "s59990009"))
    place = graph.regions["left lung"].localization["d1"]
    assert place.localization_quality == "BBOX_AND_MASK_LOCALIZATION"
    study, _ = read(tmp_path / "in")
    assert study.report.sections["findings"] == "Opacity in the left\n lung.  No effusion."


@cases("change, reason")
def test_boxes_in_a_wrong_frame(tmp_path, change, reason):
    path = mimic(tmp_path) / "chest_imagenome/silver_dataset/scene_graph/d1_SceneGraph.json"
    graph = json.loads(path.read_text())
    graph["objects"].append({**graph["objects"][0], "bbox_name": "carina", **change})
    path.write_text(json.dumps(graph))
    study, reasons = read(tmp_path)
    assert reasons == [reason]
    assert list(study.images[0].boxes) == ["cardiac silhouette"]


@pytest.mark.parametrize("name", ["chest_imagenome/silver_dataset/scene_graph", "cxas"])
@pytest.mark.parametrize("raw", [b"\xff", b"[]", b"{", b"{}", b'{"objects": 1, "categories": [1]}'])
def test_region_files_that_are_none(tmp_path, name, raw):
    (path,) = (mimic(tmp_path) / name).glob("d1*")
    path.write_bytes(raw)
    study, reasons = read(tmp_path)
    assert not (study.images[0].masks if name == "cxas" else study.images[0].boxes)
    assert set(reasons) == {"invalid_graph"}


def test_a_structure_in_two_parts(tmp_path):
    part = np.zeros((300, 200), np.uint8, order="F")
    part[210:220, 10:30] = 1
    outline = {"size": [300, 200], "counts": coco.encode(part)["counts"].decode()}
    second = {"category_id": 3, "segmentation": outline}
    change_masks(tmp_path, lambda annotations: annotations.append(second))
    study, _ = read(tmp_path)
    assert study.images[0].masks["left lung"].sum() == 170 * 80 + 10 * 20


@cases("change, reason")
def test_masks_that_are_none(tmp_path, change, reason):
    change_masks(tmp_path, lambda own: own.insert(0, {**own[0], **change}))
    study, reasons = read(tmp_path)
    assert list(study.images[0].masks) == ["left lung"] and reasons == [reason]


def test_reports_that_are_none(built, tmp_path):
    folder = mimic(tmp_path) / "files" / "p19" / "p19990009"
    (folder / "s59990010.txt").write_text("FINDINGS: " + "Clear lungs. " * 80_000)
    # A megabyte that ends within a letter.
    (folder / "s59990013.txt").write_text("FINDINGS: x" + "é" * (1 << 20))
    (folder / "s59990011.txt").write_bytes(b"FINDINGS: \xff")
    (folder / "s59990012.txt").write_text("FINDINGS:\n\nIMPRESSION:\n")
    counts = built(tmp_path, tmp_path / "out").quality["counts"]
    reasons = ("report_too_long", "bad_encoding", "empty_report")
    assert [counts[reason] for reason in reasons] == [2, 1, 1]


@cases("table, text, message")
def test_tables_that_are_none(tmp_path, table, text, message):
    with gzip.open(mimic(tmp_path) / f"mimic-cxr-2.0.0-{table}.csv.gz", "wt") as file:
        file.write(text.replace("d1,1,2", "d1,19990009,2"))
    with pytest.raises(UserError, match=message):
        list(read_studies(tmp_path, QualityLog()))


def test_a_mimic_report_without_headers_is_read_and_counted(built, tmp_path):
    folder = mimic(tmp_path / "in") / "files" / "p19" / "p19990009"
    (folder / "s59990009.txt").write_text(TEXTS["without_headers"])
    made = built(tmp_path / "in", tmp_path / "out")
    described = [r for r in made.splits["validation"] if r.question_type == "D01_describe_finding"]
    assert "pleural effusion" in {r.variables["finding"] for r in described}
    assert made.quality["warnings"]["reports read from their text without a header"] == 1


GOOD = {"patient_id": "p", "study_id": "s", "sections": {"findings": "Clear lungs."}}


def write(path, *lines):
    """One's own studies."""
    path.mkdir(parents=True, exist_ok=True)
    raw = (one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines)
    (path / "studies.jsonl").write_bytes(b"\n".join(raw) + b"\n")
    return path


def test_lines_of_ones_own(built, tmp_path):
    good = {**GOOD, "sections": {"Findings": "Clear lungs."}}
    write(tmp_path, good, b'{"patient_id": 1}', b'{"a": "\xff"}', b"{", good)
    made = built(tmp_path, tmp_path / "out")
    assert made.records
    reasons = ("invalid_record", "bad_encoding", "duplicate_id")
    assert [made.quality["counts"][reason] for reason in reasons] == [2, 1, 1]


def test_ids_that_would_lead_out_of_the_folder(built, tmp_path):
    names = ["../../outside", "/outside", "..", "a/b", "", "a\\b", "a\nb"]
    lines = [{**GOOD, key: name} for key in ("patient_id", "study_id") for name in names]
    source = write(tmp_path / "in", GOOD, *lines)
    made = built(source, tmp_path / "deep" / "er" / "out")
    assert made.quality["counts"]["invalid_record"] == len(lines)
    assert {path.name for path in tmp_path.iterdir()} == {"in", "deep"}
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["out"]


def test_splits_that_only_some_studies_have_are_not_followed(built, tmp_path):
    findings = {"Findings": "Clear lungs. Small left pleural effusion."}
    lines = [
        {"patient_id": f"p{n}", "study_id": f"s{n}", "sections": findings, "split": "test"}
        for n in range(4)
    ]
    del lines[0]["split"]
    made = built(write(tmp_path, *lines), tmp_path / "out")
    assert set(made.splits) == {"train", "validation"}
    assert made.quality["warnings"][SPLIT_NOT_FOLLOWED] == 3


def test_nothing_to_read(built, tmp_path):
    with pytest.raises(UserError, match="found neither"):
        built(tmp_path, tmp_path / "out")
    write(tmp_path, {**GOOD, "sections": {"findings": ""}})
    with pytest.raises(UserError, match=r"no study left; rejected: .*empty_report"):
        built(tmp_path, tmp_path / "out")
