"""Random access to records: grouping, order, positions, memory, and what it refuses."""

import os
import pickle
import tracemalloc

import pytest

from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource, default_image_root
from cxrjax.records import format_record, read_records, write_records


def test_elements_are_images_with_their_questions_in_file_order(records_file):
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


def test_images_with_more_questions_make_several_elements(records_file):
    source = RecordSource(records_file, questions_per_image=2)
    ids = [[record.question_id for record in source[k].records] for k in range(len(source))]
    assert source.num_images == len({record.image_id for record in read_records(records_file)})
    assert ids[:4] == [["i0q0", "i0q1"], ["i0q2", "i0q3"], ["i0q4"], ["i1q0", "i1q1"]]


def test_excluded_records_are_gone_and_the_others_keep_their_positions(records_file):
    whole = RecordSource(records_file)
    source = whole.without({0, 3})
    positions = {index: record.question_id for index, record in source.records()}
    expected = {index: record.question_id for index, record in whole.records()}
    assert positions == {index: name for index, name in expected.items() if index not in (0, 3)}
    assert source.num_records == whole.num_records
    assert source.without({5}).exclude == {0, 3, 5}


def test_other_elements_are_made_without_reading_the_file_again(records_file, monkeypatch):
    anew = RecordSource(records_file, questions_per_image=2, exclude={0, 3})
    whole = RecordSource(records_file)

    def read_again(line, where):
        raise AssertionError(f"{where} was read again")

    monkeypatch.setattr("cxrjax.input_pipeline.sources.parse_record", read_again)
    derived = whole.regrouped(2, {0, 3})
    assert (derived.fingerprint, derived.num_images) == (anew.fingerprint, anew.num_images)
    assert len(whole) == whole.num_images and not whole.exclude


def test_findings_are_known_without_reading_records_again(records_file):
    source = RecordSource(records_file)
    asked = {record.finding for _, record in source.records()}
    assert source.findings == asked and len(asked) > 2
    assert source.without(range(14)).findings == asked


def test_fingerprint_tells_sources_apart(records_file):
    source = RecordSource(records_file)
    assert RecordSource(records_file).fingerprint == source.fingerprint
    assert source.without({1}).fingerprint != source.fingerprint
    assert RecordSource(records_file, questions_per_image=1).fingerprint != source.fingerprint
    records_file.write_text(records_file.read_text().replace("Is there any", "Is there one"))
    assert RecordSource(records_file).fingerprint != source.fingerprint


def test_blank_lines_do_not_count(records_file):
    expected = list(read_records(records_file))
    lines = records_file.read_text().splitlines()
    records_file.write_text("\n" + "\n\n".join(lines))
    source = RecordSource(records_file)
    assert [source.record(index) for index in range(source.num_records)] == expected


def test_a_line_that_is_no_record_is_named(records_file):
    with open(records_file, "a", encoding="utf-8") as file:
        file.write('\n{"dataset": "custom"}\n')
    with pytest.raises(UserError, match=rf"{records_file}:17: split"):
        RecordSource(records_file)


def test_missing_and_empty_files_are_user_errors(tmp_path):
    with pytest.raises(UserError, match="cannot read records"):
        RecordSource(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="no records to read"):
        RecordSource(tmp_path / "empty.jsonl")


def test_a_source_of_which_all_is_excluded_says_so(records_file):
    with pytest.raises(UserError, match=r"15 were set aside"):
        RecordSource(records_file, exclude=range(15))


def test_image_root_is_beside_the_records_folder(tmp_path):
    assert default_image_root(tmp_path / "records/train.jsonl") == tmp_path
    assert default_image_root(tmp_path / "questions/train.jsonl") == tmp_path
    assert default_image_root(tmp_path / "mine/train.jsonl") == tmp_path / "mine"


def test_pickled_sources_read_the_same_and_share_no_descriptor(records_file):
    source = RecordSource(records_file)
    source.record(0)
    copy = pickle.loads(pickle.dumps(source))
    assert copy[1] == source[1]
    descriptor = source._descriptor
    del source
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert copy[1].records


def test_the_file_is_not_held_in_memory(tmp_path, make_records):
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


def test_records_beyond_ascii_start_where_the_index_says(tmp_path, make_records):
    records = [
        record.model_copy(update={"question": f"Tràn dịch màng phổi {k}?"})
        for k, record in enumerate(make_records())
    ]
    path = tmp_path / "vi.jsonl"
    path.write_text("\r\n".join(map(format_record, records)), encoding="utf-8")
    source = RecordSource(path)
    assert [source.record(k) for k in range(len(records))] == records
