"""The look at every record before a run: each defect is set aside under its own name."""

import json

import pytest

from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.usable_records import check_records
from cxrjax.records import read_records, write_records

CLASSES = {"synthetic": ("Cardiomegaly", "Pleural effusion", "Nodule/Mass", "ILD", "Pneumothorax")}


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


def test_sound_records_all_pass(records_file):
    check = check_records(RecordSource(records_file), classes=CLASSES)
    assert not check.indices and not check.quality.entries
    assert check.quality.to_json()["examined"] == {"images": 5, "questions": 15}


@pytest.mark.parametrize("name", DEFECTS)
def test_each_defect_is_set_aside_counted_and_named(records_file, name):
    reason, change = DEFECTS[name]
    records = list(read_records(records_file))
    records[3] = records[3].model_copy(update=change(records[3]))
    write_records(records_file, records)
    source = RecordSource(records_file)
    quality, indices, _ = check_records(source, classes=CLASSES)
    assert indices == {3}
    report = json.loads(json.dumps(quality.to_json()))
    assert report["counts"][reason] == report["total"] == 1
    (entry,) = report["set_aside"]
    assert entry["reason"] == reason and entry["found"]
    assert entry["item"] == records[3].question_id and entry["where"] == f"{records_file}:4"
    kept = source.without(indices)
    assert kept.num_questions == 14
    assert all(record.question_id != records[3].question_id for _, record in kept.records())


def test_classes_of_other_datasets_are_theirs(records_file):
    records = [r.model_copy(update={"dataset": "custom"}) for r in read_records(records_file)]
    records[0] = records[0].model_copy(update={"gt_finding": "Dragon"})
    write_records(records_file, records)
    assert not check_records(RecordSource(records_file), classes=CLASSES).indices


def test_boxes_may_touch_the_border(records_file):
    records = list(read_records(records_file))
    height, width = records[0].image_hw
    records[0] = with_answer(records[0], "Yes.", [(0, 0, width, height)])
    write_records(records_file, records)
    assert not check_records(RecordSource(records_file)).indices
