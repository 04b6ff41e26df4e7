"""How many true boxes predicted ones cover, by hand; several boxes of an answer."""

import pytest

from cxrjax.errors import UserError
from cxrjax.records import write_records
from cxrjax.tools import coverage
from tests.evaluation import made

ASKED = {
    "q0": ("ILD", [[20, 20, 60, 80]]),
    "q1": ("Consolidation", [[20, 20, 60, 80], [100, 20, 140, 80]]),
    "q2": ("Consolidation", []),
}


@pytest.fixture
def files(tmp_path):
    records = [
        made.record_of(name, asked=finding, boxes=boxes, question_id=name, dataset="grafts")
        for name, (finding, boxes) in ASKED.items()
    ]
    write_records(tmp_path / "records.jsonl", records)

    def told(**said):
        lines = [
            {"question_id": name, "text": "", "boxes": boxes, "margins": [[0.1] * 4] * len(boxes)}
            for name, boxes in said.items()
        ]
        path, out = made.write_lines(tmp_path / "predictions.jsonl", lines), tmp_path / "out.json"
        flags = [f"--predictions={path}", f"--references={tmp_path / 'records.jsonl'}"]
        coverage.main([*flags, f"--out={out}", "--resamples=20"])
        return made.read_json(out)

    return told


def test_a_box_is_covered_by_one_that_holds_all_of_it(files):
    whole, short = [0.1, 0.2, 0.3, 0.8], [0.1, 0.2, 0.29, 0.8]
    found = files(q0=[whole], q1=[short, [0.4, 0.1, 0.9, 0.9]], q2=[[0, 0, 1, 1]])
    assert found["covered"]["value"] == pytest.approx(2 / 3) and found["covered"]["n"] == 3
    by_finding = {name: one["value"] for name, one in found["by_finding"].items()}
    assert by_finding == {"ILD": 1, "Consolidation": 0.5}
    # Two halves that hold it together hold it not.
    left, right = [0.1, 0.2, 0.2, 0.8], [0.2, 0.2, 0.3, 0.8]
    assert files(q0=[left, right], q1=[], q2=[])["covered"]["value"] == 0
    assert found["asked"] is None and found["made"] == "synthetic lesion, real radiograph"


def test_a_question_without_a_line_is_said(files):
    with pytest.raises(UserError, match="no prediction for q1"):
        files(q0=[], q2=[])
