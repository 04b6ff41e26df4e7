"""Records checked by rules of their own: none of a build contradicts itself, planted faults do."""

import pytest

from cxrjax.papers.cxr_qba.record_checks import check_record, check_study
from tests.papers.cases import cases

CHECKED = 2_000


@pytest.fixture(scope="module")
def records(phantoms):
    return phantoms[1].records


def test_none_of_two_thousand_records_contradicts_itself(records):
    assert len(records) >= CHECKED
    assert sum(len(r.boxes) for r in records) > CHECKED / 2
    assert [f for record in records for f in check_record(record)] == []


def test_no_study_contradicts_itself_nor_openi(records, plain):
    studies = {}
    for record in records:
        studies.setdefault((record.study_id, record.image_id), []).append(record)
    assert [fault for own in studies.values() for fault in check_study(own)] == []
    assert plain.records and [f for record in plain.records for f in check_record(record)] == []


def first(records, kind, **about):
    return next(
        r.model_copy(deep=True)
        for r in records
        if r.question_type == kind
        and r.answers[0].boxes_by_image
        and all(getattr(r.answers[0], name) == value for name, value in about.items())
    )


def test_planted_faults_are_found(records):
    there = first(records, "D02_has_finding", polarity="pos")
    there.answers[0].text = there.answers[0].text.replace("Yes", "No")
    assert any("against its parts" in fault for fault in check_record(there))
    sided = next(
        r.model_copy(deep=True)
        for r in records
        if r.question_type == "D01_describe_finding"
        and r.answers[0].polarity == "pos"
        and r.answers[0].regions
        and all(name.startswith("left ") for name in r.answers[0].regions)
        and len(r.answers) == 1
        and r.boxes
    )
    _, width = sided.image_hw
    mirrored = sided.model_copy(deep=True)
    mirrored.answers[0].boxes_by_image = {
        sided.image_id: [[width - x1, y0, width - x0, y1] for x0, y0, x1, y1 in sided.boxes]
    }
    assert any("image's left" in fault for fault in check_record(mirrored))
    sided.answers[0].text = "There is a right pleural effusion."
    assert any("regions of the left" in fault for fault in check_record(sided))
    sure = first(records, "D02_has_finding", polarity="neg", certainty="likely")
    sure.answers[0].certainty = "certain"
    assert any("surer than" in fault or "doubted" in fault for fault in check_record(sure))


@cases("text")
def test_planted_grammar_is_found(records, text):
    record = first(records, "D01_describe_finding", polarity="pos")
    record.answers[0].text = text
    assert check_record(record)
