"""What changes in a system's answers when it is shown other pictures."""

import pytest

from cxrjax.evaluation.counted import code
from cxrjax.evaluation.image_reliance import own_system
from cxrjax.records import write_records
from tests.evaluation import made

CASES = made.cases_of(__file__)

RECORDS = [made.record_of(f"i{number}", boxes=[made.BOX] * (number < 12)) for number in range(20)]


def _score(folder, **systems):
    """Lines of image_reliance.json by (system, measure), and tables.md."""
    write_records(folder / "records.jsonl", RECORDS)
    for name, texts in systems.items():
        lines = map(made.line_of, RECORDS, texts)
        made.write_lines(folder / f"{name}.jsonl", lines)
    _, tables = made.run_score(folder, *systems, resamples=50)
    told = folder / "out" / "image_reliance.json"
    rows = made.read_json(told) if told.exists() else []
    return {(row["system"], row["measure"]): row for row in rows}, tables


def test_answers_that_change_are_counted_by_what_was_said_before(tmp_path):
    """Twelve yes, three of which turn to no, one into other words; eight no, two turn to yes."""
    seen = ["Yes."] * 12 + ["No."] * 8
    blind = ["No."] * 3 + ["Yes, there is."] + ["Yes."] * 8 + ["Yes."] * 2 + ["No."] * 6
    rows, tables = _score(tmp_path, own=seen, own_blind=blind, other=["Yes."] * 20)
    assert {system for system, _ in rows} == {"own_blind"}
    counted = {
        "changed/words": (6 / 20, 20),
        "changed/decision": (5 / 20, 20),
        "changed/decision_yes": (3 / 12, 12),
        "changed/decision_no": (2 / 8, 8),
    }
    for measure, (value, n) in counted.items():
        row = rows["own_blind", measure]
        assert row["own"] == "own" and row["n"] == n
        assert row["value"] == pytest.approx(value)
        assert row["ci_low"] < value < row["ci_high"]
    # Sensitivity 9/12 and specificity 6/8 in place of 1 and 1.
    assert rows["own_blind", "strict/vqa/balanced_accuracy"]["value"] == pytest.approx(-0.25)
    assert "## Image reliance" in tables and "Other decisions, of those that were no" in tables


def test_who_does_not_look_changes_nothing_under_any_name(tmp_path):
    rows, _ = _score(tmp_path, own=["Yes."] * 20, own_shuffled=["Yes."] * 20)
    shares = {m: row["value"] for (_, m), row in rows.items() if m.startswith("changed/")}
    assert shares == {"changed/words": 0, "changed/decision": 0, "changed/decision_yes": 0}
    assert rows["own_shuffled", "strict/vqa/balanced_accuracy"]["value"] == 0.0
    rows, tables = _score(tmp_path, own=["Yes."] * 20, others_blind=["No."] * 20)
    assert not rows and "Image reliance" not in tables
    assert own_system("blind", ["tuned", "blind", "noise"]) == "tuned"
    assert len({code(said) for said in ("yes", "no", "undecided", "", "\ud800")}) == 5
    assert 0 not in {code(said) for said in ("yes", "no", "")}


@pytest.mark.parametrize(("name", "own"), CASES["own_systems"])
def test_a_system_on_changed_pictures_belongs_to_the_one_it_is_called_after(name, own):
    assert own_system(name, ["base", "tuned", name]) == own
