"""ViX-Ray's records checked by rules of their own: none of the grammar's contradicts itself."""

import random

import pytest

from cxrjax.papers.vix_ray.record_checks import check_record, check_study
from cxrjax.papers.vix_ray.records import VixRayStudy, records
from cxrjax.simulation.vix_ray import LesionCentre, word_report
from tests.evaluation import made

CASES = made.cases_of(__file__)

STUDIES = 500  # of four records each
LABELS = (
    "Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Consolidation", "ILD",
    "Infiltration", "Lung Opacity", "Nodule/Mass", "Other lesion", "Pleural effusion",
    "Pleural thickening", "Pneumothorax", "Pulmonary fibrosis",
)  # fmt: skip


def study(number):
    rng = random.Random(number)
    lesions = [
        LesionCentre(label, rng.uniform(0.15, 0.85), rng.uniform(0.2, 0.9))
        for label in rng.sample(LABELS, rng.choice((0, 0, 1, 1, 2, 3)))
        for _ in range(rng.choice((1, 1, 2)))
    ]
    report = word_report(lesions, rng)
    return VixRayStudy(
        image_id=f"image-{number}", split="train", where=f"row {number}",
        findings=report.findings, impression=report.impression,
        view=rng.choice(("PA", "AP", "LATERAL", None)), sex=rng.choice(("M", "F", None)),
        age=rng.choice((None, 70.0, 3.0)), note="", image_path=f"{number}.jpg", image_sha256="",
        native={"file": "f", "row": number, "columns": {}},
    )  # fmt: skip


@pytest.fixture(scope="module")
def studies():
    return [list(records(study(number))) for number in range(STUDIES)]


def test_none_of_two_thousand_records_contradicts_itself(studies):
    assert sum(map(len, studies)) == 2_000
    assert {one[0].image_id: told for one in studies if (told := check_study(one))} == {}


def changed(studies, old, new, kind=None):
    """Studies in which the texts of a kind have something replaced; of those that have it."""
    for one in studies:
        copies = [record.model_copy(deep=True) for record in one]
        for record in copies:
            if kind in (None, record.question_type) and old in record.answers[0].text:
                record.answers[0].text = record.answers[0].text.replace(old, new)
        if copies != one:
            yield copies


@pytest.mark.parametrize(("old", "new", "kind", "told"), CASES["planted"])
def test_planted_contradictions_are_found(studies, old, new, kind, told):
    own = [check_study(one) for one in changed(studies, old, new, kind)]
    found = [any(told in fault for fault in faults) for faults in own]
    # Findings may name a sign where the impression names its cause, or deny what is nowhere else.
    few = "none" in told or "on the" in told
    assert sum(found) >= (10 if few else 0.8 * len(own)), (sum(found), len(own))


@pytest.mark.parametrize(("fields", "told"), CASES["other_patients"])
def test_a_question_of_another_patient_is_found(studies, fields, told):
    record = next(r for one in studies for r in one if (r.view, r.sex, r.age) == ("PA", "M", 70.0))
    assert check_record(record) == []
    assert any(told in fault for fault in check_record(record.model_copy(update=fields)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Ngoài ra tim to.", "goes on from another"),
        ("tim to.", "without a capital"),
        ("Tim to", "without a mark"),
        ("Tim to \N{REPLACEMENT CHARACTER}.", "stray marks"),
        ("Tràn di\u0323ch.", "NFC"),
    ],
)
def test_marks_and_unicode(studies, text, told):
    record = studies[0][0].model_copy(deep=True)
    record.answers[0].text = text
    assert any(told in fault for fault in check_record(record))


def test_stages_that_differ_are_found(studies):
    one = [record.model_copy(deep=True) for record in studies[3]]
    one[2].answers[0].text = "Tim to."
    assert any("different ones" in fault for fault in check_study(one))
    other = [record.model_copy(deep=True) for record in studies[3]]
    other[3].history[0].answer = "Tim to."
    assert any("history" in fault for fault in check_study(other))
