"""Structure, source and reasons of finished questions: faults are listed by their question."""

import pytest

from cxrjax.apps.review.record_checks import reason_words
from cxrjax.papers.vindr_cxr_vqa.annotation import FindingBox, ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.construct import verify
from cxrjax.records_io.quality import QualityLog
from tests.evaluation import made
from tests.papers.cases import data

CASES = made.cases_of(__file__)

BOX = (691.0, 1375.0, 1653.0, 1831.0)
TEXT = "<loc_691_1375_1653_1831>"


def _record(answer=(), **fields):
    own = {"text": f"The heart is at {TEXT}."} | dict(answer)
    told = {"gt_finding": "Cardiomegaly", "gt_location": TEXT, "difficulty": "Easy"}
    told |= {"reason": "A wide heart.", "image_hw": None, "kind": "Where"}
    return made.record_of(asked="Cardiomegaly", boxes=[BOX], answer=own, **told | fields)


NEGATIVE = data(__file__)["negative"]


def _faults(*records):
    log = QualityLog()
    verify.verify_structure(records, log, "r.jsonl")
    assert log.examined["questions"] == len(records)
    return [(entry.reason, entry.item, entry.found) for entry in log.entries]


def test_sound_records_have_no_fault_and_agree_with_the_table():
    assert _faults(_record()) == []
    assert _faults(_record(**NEGATIVE)) == []
    several = {"labels": ["Cardiomegaly", "ILD"], "text": "Two.", "boxes_by_image": {}}
    assert _faults(_record(answer=several, gt_finding=None, gt_location=None)) == []
    assert [fault[0] for fault in _faults(_record(), _record())] == ["duplicate_id"]
    assert _mismatches(_record()) == []
    other = {"text": "No.", "labels": ["ILD"], "polarity": "neg", "boxes_by_image": {}}
    assert _mismatches(_record(**NEGATIVE | {"answer": other})) == []
    counted = {"images_with_findings": 1, "asked_about": 0, "not_asked_about": 1}
    assert verify.coverage([], [IMAGE, NORMAL]) == counted


@pytest.mark.parametrize(("fields", "reason", "found"), CASES["faults"])
def test_each_fault_is_listed_by_its_question(fields, reason, found):
    faults = _faults(_record(**fields))
    assert any(r == reason and item == "i0-0" and found in text for r, item, text in faults)


HEART = [FindingBox("Cardiomegaly", BOX)]
IMAGE = ImageAnnotation("i0", "", None, HEART, {"R1": HEART, "R2": []})
NORMAL = ImageAnnotation("i1", "", None, [], {"R1": [], "R2": []})


def _mismatches(record, images=(IMAGE, NORMAL)):
    log = QualityLog()
    verify.verify_source([record], {image.image_id: image for image in images}, log, "r.jsonl")
    assert {entry.reason for entry in log.entries} <= {"source_mismatch"}
    return [entry.found for entry in log.entries]


@pytest.mark.parametrize(("fields", "found"), CASES["mismatches"])
def test_each_mismatch_with_the_table_is_listed(fields, found):
    (mismatch,) = _mismatches(_record(**fields))
    assert found in mismatch


def test_words_of_reasons_are_counted_and_none_is_dropped():
    records = [_record(reason="word " * n) for n in (0, 5, 149, 150, 250, 251)]
    counted = reason_words(records)
    assert counted["reasons"] == 6
    assert counted["share_within_150_to_250"] == pytest.approx(2 / 6)
    shares = {"none": 1, "1-49": 1, "50-99": 0, "100-149": 1, "150-250": 2, "over 250": 1}
    assert counted["distribution"] == shares
    assert counted["quantiles"]["max"] == 251
    assert reason_words([]) == {"reasons": 0}
