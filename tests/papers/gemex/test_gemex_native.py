"""The released files: read, written back, their boxes' convention decided by evidence."""

import copy
import json

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cxrjax.errors import UserError
from cxrjax.papers.gemex import native, native_files
from cxrjax.papers.gemex.native import Evidence, decide, to_corners, weigh
from cxrjax.records import QARecord
from cxrjax.records_io.quality import QualityLog, Unusable
from tests.papers.cases import cases


def rows_of(path):
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else list(map(json.loads, text.splitlines()))


def write(path, rows):
    """A file of test rows; texts are lines as they are."""
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in rows))
    return path


def read(path, split="test", quality=None, **options):
    return list(native_files.read_native(path, split, quality or QualityLog(), **options))


def sifted(path, split="test", **options):
    """(number of records, [(reason, where)] of what was set aside)."""
    quality = QualityLog()
    records = read(path, split, quality, **options)
    return len(records), [(entry.reason, entry.where) for entry in quality.entries]


@pytest.fixture
def files(sample):
    tests = sorted(sample.glob(f"test/{native_files.TEST_PATTERN}"))
    return {sample / native_files.TRAIN_FILE: "train"} | dict.fromkeys(tests, "test")


def test_native_files_and_those_in_sizes_come_back_as_they_were(files, sample, tmp_path):
    """Reports are dropped unless they are asked for."""
    for path, split in files.items():
        records = read(path, split, keep_reports=True)
        assert [native.to_native(record) for record in records] == rows_of(path)
        for record in read(path, split):
            assert "MADE-UP REPORT" not in record.model_dump_json()
            assert native.REPORT_FIELD not in native.to_native(record)
    rows = rows_of(sample / "test/multi_choice_question.jsonl")
    rows[0]["visual_locations"] = [[150, 150, 40, 60], [10, 10, 20, 30]]
    (record,) = read(write(tmp_path / "multi_choice_question.jsonl", rows), keep_reports=True)
    assert "[[150, 150, 190, 210], [10, 10, 30, 40]]" in record.answer_text
    assert [native.to_native(record)] == rows


def test_what_a_record_says(sample):
    record = read(sample / "test/multi_choice_question.jsonl")[0]
    assert record.answer_key == ["A", "C"]
    assert record.answers[0].regions == ["trachea", "spine"]
    assert record.patient_id == "p10000001" and record.study_id == "s50000001"
    assert record.image_hw is None and record.boxes == []
    located = native.locate(record, (448, 112))
    assert located.boxes == [[50.0, 20.0, 60.0, 140.0], [47.5, 10.0, 65.0, 400.0]]
    single = read(sample / "test/single_choice_question.jsonl")[0]
    assert single.answers[0].regions == ["cardiac silhouette"]  # the row has "cardiac region"
    train = read(sample / native_files.TRAIN_FILE, "train")
    assert [r.answer_key for r in train] == ["A small effusion.", "Small.", "No.", "B", ["A", "C"]]
    assert train[4].choices[2] == "C: Atelectasis"


def test_rows_of_one_image_share_its_row_id_and_all_are_read(sample, tmp_path):
    train = read(sample / native_files.TRAIN_FILE, "train")
    kinds = ("open_ended-18-0", "open_ended-18-1", "closed_ended-18-0", "single_choice-18-0")
    ids = [f"train-{kind}" for kind in (*kinds, "multi_choice-18-0")]
    assert [r.question_id for r in train] == ids
    test = read(sample / "test/open_ended_question.jsonl")
    assert [r.question_id for r in test] == ["test-open_ended-0", "test-open_ended-1"]
    # A row that stands there twice is one question, and a q_id belongs to one.
    rows = rows_of(sample / "test/open_ended_question.jsonl")
    rows += [rows[0], {**rows[1], "question": "Why?"}]
    path = write(tmp_path / "open_ended_question.jsonl", rows)
    found = [("duplicate_row", f"{path.name}:3"), ("duplicate_id", f"{path.name}:4")]
    assert sifted(path) == (2, found)


def test_rows_of_a_build_have_the_releases_names_and_boxes_end_with_the_image(sample):
    record = read(sample / "test/single_choice_question.jsonl")[0]
    built = record.model_copy(update={"quality": {}, "image_path": "../../images/x.jpg"})
    row = native.to_native(built)
    image = "00000000-00000001-00000002-00000003-00000004"
    assert row["image_path"] == f"p10/p10000001/s50000001/{image}.jpg"
    assert row["visual_regions"] == ["cardiac region"]
    assert row["row_id"] == image and row["q_id"] == record.question_id
    record = read(sample / "test/multi_choice_question.jsonl")[0]
    record.answers[0] = record.answers[0].model_copy(
        update={"text": "<location>[[0, 0, 224, 224]]"}
    )
    for side in range(1, 4000):
        assert native.locate(record, (side, 239)).boxes == [[0, 0, 239, side]]


def test_written_files_are_read_back(files, tmp_path):
    for path, split in files.items():
        records = read(path, split, keep_reports=True)
        if split == "train":
            native_files.write_train(tmp_path / native_files.TRAIN_FILE, records)
        else:
            native_files.write_test(tmp_path, records)
        assert rows_of(tmp_path / path.name) == rows_of(path)
    native_files.write_train(tmp_path / "none.json", [])
    assert rows_of(tmp_path / "none.json") == []


def test_evidence_decides():
    both = [10, 10, 50, 50]  # xyxy and xywh alike
    only_corners = [126, 110, 203, 167]
    only_size = [150, 150, 40, 60]
    assert weigh([both, only_corners, only_size, [1, 2], [300, 0, 1, 1]]) == Evidence(1, 1, 1, 2)
    assert decide(weigh([both, only_corners]), "f") == "xyxy"
    assert decide(weigh([both, only_size]), "f") == "xywh"
    assert decide(weigh([both]), "f") == "xyxy"
    with pytest.raises(UserError, match="and 1 only"):
        decide(weigh([only_corners, only_size]), "f")
    assert to_corners(only_size, "xywh") == (150, 150, 190, 210)
    with pytest.raises(Unusable, match="wrong_frame"):
        to_corners(only_size, "xyxy")


def test_mixed_evidence_is_refused_and_an_explicit_format_sets_aside(sample, tmp_path):
    rows = rows_of(sample / "test/open_ended_question.jsonl")
    rows[1]["visual_locations"] = [[150, 150, 40, 60]]
    path = write(tmp_path / "open_ended_question.jsonl", rows)
    with pytest.raises(UserError, match="--coord_format"):
        read(path)
    assert sifted(path, coord_format="xyxy") == (1, [("wrong_frame", f"{path.name}:2")])


@cases("change, reason")
def test_broken_rows_are_set_aside(sample, tmp_path, change, reason):
    good, bad = rows_of(sample / native_files.TRAIN_FILE)[:2]
    gpt = change.pop("gpt", None)
    if gpt:
        bad["conversations"][1]["value"] = gpt
    path = tmp_path / native_files.TRAIN_FILE
    path.write_text(json.dumps([good, {**bad, **change}, "no row"]))
    count, found = sifted(path, "train", coord_format="xyxy")
    assert count == 1 and [why for why, _ in found] == [reason, "invalid_record"]


def test_broken_files(sample, tmp_path):
    lines = (sample / "test/closed_ended_question.jsonl").read_bytes()
    path = tmp_path / "closed_ended_question.jsonl"
    endless = b"[" * 100_000 + b"]" * 100_000
    path.write_bytes(b"\n".join([lines + b"\xff\xfe", b"{", endless, lines]))
    count, found = sifted(path)
    why = ["bad_encoding", "invalid_record", "invalid_record", "duplicate_row"]
    assert count == 1 and [reason for reason, _ in found] == why
    for text in (b'[{"a": 1}, {"b"', b'[{"a": "\xff"}]'):
        (tmp_path / native_files.TRAIN_FILE).write_bytes(text)
        with pytest.raises(UserError, match="not a whole JSON array") as caught:
            read(tmp_path / native_files.TRAIN_FILE, "train")
        assert "\n" not in str(caught.value) and '"a"' not in str(caught.value)
    (tmp_path / "essay_question.jsonl").write_bytes(lines)
    with pytest.raises(UserError, match="tells no question type"):
        read(tmp_path / "essay_question.jsonl")


# What a damaged or hand-edited file may hold in the place of a field.
_ODD = [None, "", [], {}, -1, True, "x", [""], ["A: x"], [[1, 2, 3]], [None], "\ud800"]
_ODD += [float("nan"), 10**400, 1e308, "<answer>", {"value": 3}, "p1/../../x", [[["deep"]]]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_stands_in_a_field_the_row_is_read_or_set_aside(files, tmp_path, data):
    file = data.draw(st.sampled_from(list(files)))
    rows = rows_of(file)
    key = data.draw(st.sampled_from(sorted(rows[0])))
    odd = data.draw(st.sampled_from(_ODD))
    if training := files[file] == "train":
        # An array with these is no JSON as a whole, and is refused.
        assume(odd != "\ud800")
        assume(not (isinstance(odd, float | int) and not -1e9 < odd < 1e9))
    rows[0][key] = copy.deepcopy(odd)
    path = tmp_path / file.name
    lines = map(json.dumps, rows)
    path.write_text(f"[{','.join(lines)}]" if training else "\n".join(lines))
    quality = QualityLog()
    records = read(path, files[file], quality)
    assert len(records) + len(quality.entries) == len(rows)
    native_files.write_train(tmp_path / "written.json", records)
    native_files.write_test(tmp_path / "written", records)
    assert [QARecord.model_validate_json(r.model_dump_json()) for r in records] == records
