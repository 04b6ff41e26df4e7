"""Random access to records; the look at every record before a run."""

import json
import os
import pickle
import tracemalloc

import pytest

from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource, default_image_root
from cxrjax.input_pipeline.usable_records import check_records
from cxrjax.records import format_record, read_records, write_records


def test_elements_are_images_with_their_questions_of_which_some_make_several(records_file):
    source = RecordSource(records_file, questions_per_image=4)
    records = list(read_records(records_file))
    assert source.num_records == source.num_questions == len(records) == 15
    seen = []
    for element in range(len(source)):
        image = source[element]
        assert 1 <= len(image.records) <= 4
        assert len({record.image_id for record in image.records}) == 1
        assert list(image.indices) == sorted(image.indices)
        assert [records[index] for index in image.indices] == list(image.records)
        assert image.image_path.is_file()
        seen.extend(image.indices)
    assert sorted(seen) == list(range(len(records)))
    source = RecordSource(records_file, questions_per_image=2)
    ids = [[record.question_id for record in source[k].records] for k in range(len(source))]
    assert source.num_images == len({record.image_id for record in read_records(records_file)})
    assert ids[:4] == [["i0q0", "i0q1"], ["i0q2", "i0q3"], ["i0q4"], ["i1q0", "i1q1"]]


def test_records_come_back_whole_whatever_is_excluded_or_blank(records_file):
    whole = RecordSource(records_file)
    source = whole.without({0, 3})
    positions = {index: record.question_id for index, record in source.records()}
    expected = {index: record.question_id for index, record in whole.records()}
    assert positions == {index: name for index, name in expected.items() if index not in (0, 3)}
    assert source.num_records == whole.num_records
    assert source.without({5}).exclude == {0, 3, 5}
    expected = list(read_records(records_file))
    lines = records_file.read_text().splitlines()
    records_file.write_text("\n" + "\n\n".join(lines))
    source = RecordSource(records_file)
    assert [source.record(index) for index in range(source.num_records)] == expected


def test_other_elements_are_made_without_reading_the_file_again(records_file, monkeypatch):
    anew = RecordSource(records_file, questions_per_image=2, exclude={0, 3})
    whole = RecordSource(records_file)

    def read_again(line, where):
        raise AssertionError(f"{where} was read again")

    monkeypatch.setattr("cxrjax.input_pipeline.record_index.parse_record", read_again)
    derived = whole.regrouped(2, {0, 3})
    assert (derived.fingerprint, derived.num_images) == (anew.fingerprint, anew.num_images)
    assert len(whole) == whole.num_images and not whole.exclude


def test_findings_and_fingerprints_are_of_each_source(records_file):
    source = RecordSource(records_file)
    asked = {record.finding for _, record in source.records()}
    assert source.findings == asked and len(asked) > 2
    assert source.without(range(14)).findings == asked
    source = RecordSource(records_file)
    assert RecordSource(records_file).fingerprint == source.fingerprint
    assert source.without({1}).fingerprint != source.fingerprint
    assert RecordSource(records_file, questions_per_image=1).fingerprint != source.fingerprint
    records_file.write_text(records_file.read_text().replace("Is there any", "Is there one"))
    assert RecordSource(records_file).fingerprint != source.fingerprint


def test_records_that_are_none_missing_empty_or_all_excluded_are_user_errors(
    tmp_path, records_file
):
    with pytest.raises(UserError, match="cannot read records"):
        RecordSource(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="no records to read"):
        RecordSource(tmp_path / "empty.jsonl")
    with pytest.raises(UserError, match=r"15 were rejected"):
        RecordSource(records_file, exclude=range(15))
    with open(records_file, "a", encoding="utf-8") as file:
        file.write('\n{"dataset": "custom"}\n')
    with pytest.raises(UserError, match=rf"{records_file}:17: split"):
        RecordSource(records_file)


def test_pickled_sources_read_the_same_from_the_root_beside_their_folder(records_file, tmp_path):
    source = RecordSource(records_file)
    source.record(0)
    copy = pickle.loads(pickle.dumps(source))
    assert copy[1] == source[1]
    descriptor = source._descriptor
    del source
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert copy[1].records
    assert default_image_root(tmp_path / "records/train.jsonl") == tmp_path
    assert default_image_root(tmp_path / "questions/train.jsonl") == tmp_path
    assert default_image_root(tmp_path / "mine/train.jsonl") == tmp_path / "mine"


def test_the_file_is_read_where_the_index_says_and_not_held(tmp_path, make_records):
    records = [
        record.model_copy(update={"question": f"Tràn dịch màng phổi {k}?"})
        for k, record in enumerate(make_records())
    ]
    path = tmp_path / "vi.jsonl"
    path.write_text("\r\n".join(map(format_record, records)), encoding="utf-8")
    source = RecordSource(path)
    assert [source.record(k) for k in range(len(records))] == records
    record = make_records()[1]
    padded = record.model_copy(update={"reason": "x" * 20_000})
    path = tmp_path / "big.jsonl"
    write_records(path, (padded for _ in range(500)))
    assert path.stat().st_size > 10_000_000
    tracemalloc.start()
    source = RecordSource(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    assert source.record(499) == padded
    assert len(pickle.dumps(source)) < 50_000


def with_answer(record, text, boxes=()):
    answer = record.answers[0].model_copy(
        update={"text": text, "boxes_by_image": {record.image_id: [list(box) for box in boxes]}}
    )
    return record.model_copy(update={"answers": [answer]})


DEFECTS = {
    "no such file": ("missing_image", lambda r: {"image_path": "images/none.png"}),
    "no image": ("unreadable_image", lambda r: {"image_path": "records/train.jsonl"}),
    "size unknown": ("size_mismatch", lambda r: {"image_hw": None}),
    "size differs": ("size_mismatch", lambda r: {"image_hw": r.image_hw[::-1]}),
    "box outside": (
        "box_outside_image",
        lambda r: {"answers": with_answer(r, "Yes.", [(0, 0, 999, 10)]).answers},
    ),
    "empty box": ("bad_box", lambda r: {"answers": with_answer(r, "Yes.", [(5, 5, 5, 9)]).answers}),
    "broken text": ("box_text", lambda r: {"answers": with_answer(r, "At <loc_1_2_3>.").answers}),
    "unknown truth": ("unknown_class", lambda r: {"gt_finding": "Dragon"}),
    "unknown question": ("unknown_class", lambda r: {"variables": {"finding": "Dragon"}}),
}


def test_sound_records_all_pass_at_the_border_and_with_classes_of_their_own(records_file):
    check = check_records(RecordSource(records_file))
    assert not check.indices and not check.quality.entries
    assert check.quality.to_json()["examined"] == {"images": 5, "questions": 15}
    records = list(read_records(records_file))
    height, width = records[0].image_hw
    records[0] = with_answer(records[0], "Yes.", [(0, 0, width, height)])
    write_records(records_file, records)
    assert not check_records(RecordSource(records_file)).indices
    records = [r.model_copy(update={"dataset": "custom"}) for r in read_records(records_file)]
    records[0] = records[0].model_copy(update={"gt_finding": "Dragon"})
    write_records(records_file, records)
    assert not check_records(RecordSource(records_file)).indices


@pytest.mark.parametrize("name", DEFECTS)
def test_each_defect_is_set_aside_counted_and_named(records_file, name):
    reason, change = DEFECTS[name]
    records = list(read_records(records_file))
    records[3] = records[3].model_copy(update=change(records[3]))
    write_records(records_file, records)
    source = RecordSource(records_file)
    quality, indices = check_records(source)
    assert indices == {3}
    report = json.loads(json.dumps(quality.to_json()))
    assert report["counts"][reason] == report["total"] == 1
    (entry,) = report["set_aside"]
    assert entry["reason"] == reason and entry["found"]
    assert entry["item"] == records[3].question_id and entry["where"] == f"{records_file}:4"
    kept = source.without(indices)
    assert kept.num_questions == 14
    assert all(record.question_id != records[3].question_id for _, record in kept.records())


def _opened(path):
    source = RecordSource(path, record_codec="vindr_px")
    return source, check_records(source)


def test_a_resume_parses_no_record_and_opens_no_image_that_is_as_before(
    records_file, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    records = list(read_records(records_file))
    records[3] = with_answer(records[3], "At <loc_1_2_3>.")
    write_records(records_file, records)
    (first, found), plain = _opened(records_file), check_records(RecordSource(records_file))
    assert found.indices == {3} and found.quality.to_json() == plain.quality.to_json()
    with monkeypatch.context() as unread:
        for name in ("record_index.parse_record", "usable_records.image_size"):
            unread.setattr(f"cxrjax.input_pipeline.{name}", None)
        again, seen = _opened(records_file)
        shared = again.identities().shared_with([first.identities()])
    assert seen.quality.to_json() == found.quality.to_json()
    assert again.fingerprint == first.fingerprint and again.findings == first.findings
    assert shared == {"question": 15, "image": 5} | (
        {"patient": len({r.patient_id for r in records})} if records[0].patient_id else {}
    )
    os.remove(first[0].image_path)
    assert len(_opened(records_file)[1].indices) > 1
    for file in (tmp_path / "cache").rglob("*.*"):  # half a file is as none
        file.write_bytes(file.read_bytes()[:100])
    assert _opened(records_file)[0].fingerprint == first.fingerprint
    write_records(records_file, records[:3])
    assert _opened(records_file)[0].num_records == 3


def test_what_is_shared_is_counted_by_id_and_by_file(records_file):
    source = RecordSource(records_file)
    own = source.identities()
    assert not own.shared_with([own._replace(**{n: own.question + 1 for n in own._fields})])
    elsewhere = own._replace(
        question=own.question + 1, image=own.image + 1, patient=own.patient * 0
    )
    assert own.shared_with([elsewhere]) == {"image": 5}
    unknown = own._replace(**{name: own.question * 0 for name in own._fields})
    assert not unknown.shared_with([own, unknown])
