"""The look at every record before a run: each defect is set aside under its own name."""

import json

import pytest

from cxrjax.input_pipeline.quality import REASONS, check_records
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import read_records, write_records

CLASSES = {"synthetic": ("Cardiomegaly", "Pleural effusion", "Nodule/Mass", "ILD", "Pneumothorax")}


def with_answer(record, text, boxes=()):
    answer = record.answers[0].model_copy(
        update={"text": text, "boxes_by_image": {record.image_id: [list(box) for box in boxes]}}
    )
    return record.model_copy(update={"answers": [answer]})


DEFECTS = {
    "image_missing": lambda r: r.model_copy(update={"image_path": "images/none.png"}),
    "image_unreadable": lambda r: r.model_copy(update={"image_path": "records/train.jsonl"}),
    "image_hw_null": lambda r: r.model_copy(update={"image_hw": None}),
    "image_hw_differs": lambda r: r.model_copy(update={"image_hw": r.image_hw[::-1]}),
    "box_outside_image": lambda r: with_answer(r, "Yes.", [(0, 0, 999, 10)]),
    "box_degenerate": lambda r: with_answer(r, "Yes.", [(5, 5, 5, 10)]),
    "answer_boxes_unparsed": lambda r: with_answer(r, "Yes, at <loc_1_2_3>."),
    "unknown_class": lambda r: r.model_copy(update={"gt_finding": "Dragon"}),
}


def test_sound_records_all_pass(records_file):
    quality = check_records(RecordSource(records_file), classes=CLASSES)
    assert quality.records == 15 and not quality.set_aside and not quality.indices
    assert quality.to_json() == {"records": 15, "kept": 15, "set_aside": {}}


@pytest.mark.parametrize("reason", REASONS)
def test_each_defect_is_set_aside_counted_and_named(records_file, reason):
    records = list(read_records(records_file))
    records[3] = DEFECTS[reason](records[3])
    write_records(records_file, records)
    source = RecordSource(records_file)
    quality = check_records(source, classes=CLASSES)
    assert list(quality.set_aside) == [reason]
    (entry,) = quality.set_aside[reason]
    question_id = records[3].question_id
    assert (entry.index, entry.question_id) == (3, question_id) and entry.detail
    report = json.loads(json.dumps(quality.to_json()))
    assert report["kept"] == 14 and report["set_aside"][reason]["count"] == 1
    assert report["set_aside"][reason]["records"][0]["question_id"] == question_id
    kept = source.without(quality.indices)
    assert kept.num_questions == 14
    assert all(record.question_id != question_id for _, record in kept.records())


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
