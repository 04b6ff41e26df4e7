"""The release file: a lossless round trip, every broken entry; and --benchmark=own."""

import copy
import csv
import json
from pathlib import Path

import pytest

from cxrjax.commands.report import main as report
from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.native import pixel_boxes, read_native, to_native, write_native
from cxrjax.papers.vindr_cxr_vqa.source import find_source
from cxrjax.records import format_record, parse_record, strip_answers, write_records
from cxrjax.records_io.quality import QualityLog
from tests.evaluation import made

CASES = made.cases_of(__file__)

SAMPLE = Path(__file__).parents[3] / "data" / "vindr_cxr_vqa" / "sample" / "data_v1.json"
CONTENT = json.loads(SAMPLE.read_text())


def _read(folder: Path, content: object) -> tuple[list, QualityLog]:
    path = folder / "data_v1.json"
    path.write_text(json.dumps(content))
    quality = QualityLog()
    return read_native(path, quality), quality


def test_record_fields():
    quality = QualityLog()
    record = read_native(SAMPLE, quality)[0]
    assert quality.entries == [] and quality.warnings == {}
    assert quality.examined == {"images": 2, "questions": 6}
    assert record.question_id == "sample_heart-0"
    assert record.variables == {"finding": "Cardiomegaly"}
    assert record.answers[0].labels == ["Cardiomegaly"]
    assert record.answers[0].polarity == "pos"
    assert record.boxes == [[691.0, 1375.0, 1653.0, 1831.0]]
    assert record.gt_location == "<loc_691_1375_1653_1831>"
    assert record.image_hw is None


def test_round_trip_loses_nothing(tmp_path):
    records = read_native(SAMPLE, QualityLog())
    assert to_native(records) == CONTENT
    # Through our own file as well.
    again = [parse_record(format_record(record), "here") for record in records]
    assert again == records and to_native(again) == CONTENT
    write_native(tmp_path / "data_v1.json", records)
    assert (tmp_path / "data_v1.json").read_text() == SAMPLE.read_text()


def test_a_release_as_a_table_is_the_same(tmp_path):
    path = tmp_path / "vqa.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as out:
        rows = [
            {"image_id": image["image_id"], **pair} for image in CONTENT for pair in image["vqa"]
        ]
        table = csv.DictWriter(out, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    quality = QualityLog()
    assert to_native(read_native(path, quality)) == CONTENT and not quality.entries
    assert find_source(path).release == find_source(tmp_path).release == path
    with path.open("a", encoding="utf-8") as out:
        out.write("../up,Where?,Here.,So.,Where,Easy,,\nb,Where?\n")
    assert to_native(read_native(path, quality)) == CONTENT
    assert [(one.reason, one.item) for one in quality.entries] == [
        ("malformed_row", "b"),
        ("invalid_record", "../up"),
    ]


def test_a_release_beside_a_table_is_found_by_either_name(tmp_path):
    (tmp_path / "train.csv").write_bytes(SAMPLE.with_name("train.csv").read_bytes())
    (tmp_path / "vqa.json").write_bytes(b"\xef\xbb\xbf" + SAMPLE.read_bytes())
    source = find_source(tmp_path)
    assert source.table == tmp_path / "train.csv" and source.release == tmp_path / "vqa.json"
    assert to_native(read_native(tmp_path / "vqa.json", QualityLog())) == CONTENT


def test_round_trip_keeps_nulls_unicode_and_unknown_fields(tmp_path):
    content = copy.deepcopy(CONTENT)
    pair = content[0]["vqa"][0]
    pair.update(
        answer="Không có tổn thương.", gt_finding=None, gt_location=None, reviewer={"id": [1, None]}
    )
    content[0]["vqa"][1].update(gt_finding="No finding", gt_location="", answer="No finding.")
    content[1]["source"] = "here"
    records, quality = _read(tmp_path, content)
    assert quality.entries == []
    assert to_native(records) == content
    assert [r.answers[0].polarity for r in records[:3]] == ["neg", "neg", "pos"]
    assert [r.negative_kind for r in records[:2]] == [None, "no_finding_image"]
    # A field nobody knows may tell the answer.
    assert "reviewer" not in format_record(strip_answers(records[0]))


def _changed(**fields):
    content = copy.deepcopy(CONTENT)
    for name, value in fields.items():
        if value == "missing":
            del content[0]["vqa"][1][name]
        else:
            content[0]["vqa"][1][name] = value
    return content


@pytest.mark.parametrize(("fields", "reason", "found"), CASES["broken_questions"])
def test_broken_questions_are_set_aside_alone(tmp_path, fields, reason, found):
    records, quality = _read(tmp_path, _changed(**fields))
    assert len(records) == 5
    (entry,) = quality.entries
    assert (entry.reason, entry.item) == (reason, "sample_heart-1")
    assert entry.where == "data_v1.json[0].vqa[1]"
    assert found in entry.found


def test_broken_images_are_set_aside_whole(tmp_path):
    wrong_count = copy.deepcopy(CONTENT[0]) | {"image_id": "wrong_count", "num_questions": 4}
    empty = {"image_id": "empty", "num_questions": 0, "vqa": []}
    content = [*CONTENT, CONTENT[0], wrong_count, empty, {"image_id": "x"}, "text"]
    records, quality = _read(tmp_path, content)
    assert len(records) == 6
    assert [(e.item, e.reason) for e in quality.entries] == [
        ("sample_heart", "duplicate_id"),
        ("wrong_count", "invalid_record"),
        ("empty", "invalid_record"),
        ("x", "invalid_record"),
        ("", "invalid_record"),
    ]
    assert quality.examined["images"] == 7


def test_warnings(tmp_path):
    _, quality = _read(tmp_path, _changed(gt_location="<loc_1_2_3_4>", type="Whence"))
    assert quality.entries == []
    assert quality.warnings.total() == 2
    assert any("Whence" in text for text in quality.warnings)


def test_unreadable_files(tmp_path):
    path = tmp_path / "data_v1.json"
    with pytest.raises(UserError, match="cannot be read"):
        read_native(path, QualityLog())
    path.write_text("[{")
    with pytest.raises(UserError, match="not a whole JSON array"):
        read_native(path, QualityLog())
    path.write_text("{}")
    with pytest.raises(UserError, match="expected a JSON list"):
        read_native(path, QualityLog())


def test_pixels_are_exact():
    text = "<loc_0_1_65535_65536> and <loc_691_1375_1653_1831>"
    assert pixel_boxes(text) == [[0, 1, 65535, 65536], [691, 1375, 1653, 1831]]
    assert pixel_boxes("No, there is no Pneumothorax.") == []


def _record(number, asked, there):
    boxes = [[10.0, 10.0, 60.0, 60.0]] if there else []
    return made.record_of(f"i{number}", 0, asked, boxes, dataset="custom", image_hw=(100, 100))


@pytest.fixture
def files(tmp_path):
    classes = ["Feeding tube", "Pacemaker"] * 6
    records = [_record(n, asked, n % 2 == 0) for n, asked in enumerate(classes)]
    records += [_record(20, "Pacemaker", True), _record(21, "Swallowed coin", False)]
    write_records(tmp_path / "records.jsonl", records)
    right = [[0.1, 0.1, 0.6, 0.6]]
    lines = [made.line_of(r, r.answer_text, right if r.boxes else []) for r in records]
    made.write_lines(tmp_path / "mine.jsonl", lines)
    return tmp_path


def score(files, **flags):
    return made.run_score(files, "mine", benchmark="own", **flags)


def test_tables_have_the_users_classes_and_title_alone(files):
    metrics, text = score(files, title="Devices of our ward", floors="auto", resamples=5)
    assert text.startswith("# Devices of our ward\n")
    for of_paper in ("VinDr-CXR-VQA", "the paper", "Table 4", "Cardiomegaly", "as printed", "[1]"):
        assert of_paper not in text, of_paper
    assert "| mine | strict | 1.000" in text
    strict = metrics["mine"]["strict"]
    named = {n.split("/")[-1] for n in strict if n.startswith("by_class/detection/f1")}
    assert named == {"Feeding tube", "Pacemaker", "Swallowed coin"}
    # Nothing has the coin: no row of boxes, but one of answers.
    boxes, answers = (
        text.split(f"## {title}")[1].split("## ")[0] for title in ("Boxes by class", "There or not")
    )
    assert "Pacemaker" in boxes and "Swallowed coin" not in boxes and "Swallowed coin" in answers
    with open(files / "out" / "tables.csv", newline="") as lines:
        assert {row["paper"] for row in csv.DictReader(lines)} == {""}


def test_the_page_has_the_title(files):
    score(files, title="Devices of our ward")
    out = files / "out"
    report(
        [
            *(f"--workdir={out}", f"--out={out}", f"--references={files / 'records.jsonl'}"),
            *(f"--predictions={files / 'mine.jsonl'}", "--name=mine", "--pictures=none"),
        ]
    )
    page = (out / "index.html").read_text()
    assert "Devices of our ward" in page and "VinDr-CXR-VQA" not in page


def test_records_without_classes_are_refused(files):
    bare = _record(0, "x", True).model_copy(update={"variables": None})
    bare.answers[0].labels.clear()
    write_records(files / "records.jsonl", [bare])
    with pytest.raises(UserError, match="name no class"):
        score(files)
