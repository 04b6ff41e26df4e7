"""What has changed between two studies."""

import collections
import json

import pytest

from cxrjax.papers.cxr_qba.build import QbaBuilder, QbaOptions
from cxrjax.papers.cxr_qba.construct.comparison import CONFLICT, Comparer, find_changes
from cxrjax.papers.cxr_qba.native import LONGITUDINAL_TYPES
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.records import read_records

DEFINITIONS = load_definitions()


def changes(graph_of, earlier, later):
    warnings = collections.Counter()
    found = find_changes(graph_of(earlier), graph_of(later), DEFINITIONS, warnings)
    return {(c.finding, c.kind, c.certainty) for c in found}, warnings


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        ("No pneumothorax.", "Small left pneumothorax.", {("pneumothorax", "new", "certain")}),
        ("Left pneumothorax.", "No pneumothorax.", {("pneumothorax", "resolved", "certain")}),
        (
            "Small left pleural effusion.",
            "Large left pleural effusion.",
            {("pleural effusion", "worse", "likely")},
        ),
        (
            "Severe pulmonary edema.",
            "Mild pulmonary edema.",
            {("pulmonary edema", "better", "likely")},
        ),
        (
            "Left pleural effusion.",
            "Unchanged left pleural effusion.",
            {("pleural effusion", "unchanged", "certain")},
        ),
        (
            "Endotracheal tube 5 cm above the carina.",
            "Endotracheal tube 2 cm above the carina.",
            {("endotracheal tube", "moved", "certain")},
        ),
        # One report is silent, or doubts, or speaks of the other side, or of what is acute.
        ("Clear lungs.", "Left pneumothorax.", set()),
        ("No pneumothorax.", "Possible left pneumothorax.", set()),
        ("Right pleural effusion.", "Left pleural effusion.", set()),
        ("No acute fracture.", "Rib fracture.", set()),
        ("Left pleural effusion.", "Left pleural effusion.", set()),
    ],
)
def test_changes(graph_of, earlier, later, expected):
    assert changes(graph_of, earlier, later)[0] == expected


def test_reports_that_tell_it_differently_are_counted(graph_of):
    found, warnings = changes(graph_of, "No pneumothorax.", "Unchanged left pneumothorax.")
    assert not found and warnings == {CONFLICT: 1}


def test_questions(graph_of):
    earlier = graph_of("No pneumothorax. Small left pleural effusion.")
    later = graph_of("New small right pneumothorax. No pleural effusion.")
    made = list(
        Comparer(earlier, later, DEFINITIONS, 0, {"earlier_study": "s0"}).questions(
            collections.Counter()
        )
    )
    assert {q.question_type for q in made} == {
        "L01_describe_changes",
        "L02_how_has_finding_changed",
        "L04_has_finding_changed",
    }
    texts = {a.text for q in made for a in q.answers}
    assert {"The right pneumothorax is new.", "The pleural effusion has resolved."} <= texts
    for question in made:
        assert question.variables["earlier_study"] == "s0" and "{" not in question.question
        assert question.question_strategy == "longitudinal"
        for answer in question.answers:
            opened = answer.text.split(",")[0]
            if question.question_type.startswith("L04"):
                assert (opened == "Yes") == (answer.positiveness == "pos")


def test_a_build_compares_studies_of_a_patient_by_date(tmp_path):
    def study(number, date, findings):
        image = {"image_id": f"i{number}", "image_hw": [100, 100], "view": "PA"}
        image["boxes"] = {"left lung": [[50, 10, 90, 80]], "right lung": [[5, 10, 45, 80]]}
        return {
            "patient_id": "p1",
            "study_id": f"s{number}",
            "date": date,
            "sections": {"findings": findings},
            "images": [image],
        }

    source = tmp_path / "studies.jsonl"
    lines = [
        study(2, "2020-02-01", "Consolidation in the left lung."),
        study(1, "2020-01-01", "No consolidation in the left lung."),
        study(3, "", "No consolidation."),
    ]
    source.write_text("\n".join(map(json.dumps, lines)))
    out = tmp_path / "out"
    options = QbaOptions(source, out, longitudinal=True, rate_with="surrogate")
    QbaBuilder(options).build()
    records = [r for f in out.glob("records/*.jsonl") for r in read_records(f)]
    compared = [r for r in records if r.question_type in LONGITUDINAL_TYPES]
    assert {r.study_id for r in compared} == {"s2"}
    assert {r.variables["earlier_image"] for r in compared} == {"i1"}
    assert {r.earlier.image_id for r in compared if r.earlier} == {"i1"}
    assert all((r.earlier is not None) == (r in compared) for r in records)
    (how,) = [r for r in compared if r.question_type.startswith("L02")]
    assert how.answers[0].text == "The left consolidation is new."
    assert how.answers[0].boxes_by_image["i2"]
    quality = json.loads((out / "quality.json").read_text())
    assert quality["warnings"]["studies without a date, not compared"] == 1
