"""Margins of boxes: what they cover, of patients whose boxes are alike, and what is refused."""

import numpy as np
import pytest
from scipy import stats

from cxrjax.errors import UserError
from cxrjax.evaluation import conformal
from cxrjax.evaluation.conformal import AnsweredBoxes, find_margins
from cxrjax.records import write_records
from tests.evaluation import made

CASES = made.cases_of(__file__)

TRUTH = np.array([0.1, 0.2, 0.3, 0.8])


def _patients(rng, count, first=0):
    """Boxes of patients: those with more images are harder, and a patient's errors are alike."""
    for patient in range(first, first + count):
        images = 1 + rng.geometric(0.5)
        hard = rng.lognormal(0, 0.6) * (1 + 0.3 * images)
        for _ in range(images):
            near, size = rng.uniform(0.1, 0.4, (2, 2)), rng.uniform(0.2, 0.4, (2, 2))
            truth = np.concatenate([near, near + size], axis=1)
            spread = 0.005 + 0.01 * rng.random((2, 4))
            boxes = truth + hard * spread * rng.standard_t(4, (2, 4))
            yield AnsweredBoxes(patient, truth, boxes, spread)


def _covered(found, margin):
    return np.concatenate([one.needed() for one in found]) <= margin


@pytest.mark.parametrize(
    ("calibration", "cover"),
    [
        (40, 0.9),
        (200, 0.8),
        pytest.param(40, 0.8, marks=pytest.mark.slow),
        pytest.param(200, 0.9, marks=pytest.mark.slow),
    ],
)
def test_many_draws_cover_what_is_asked(calibration, cover):
    shares = []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        found = list(_patients(rng, calibration))
        margins = find_margins(found, cover, True, "x")
        shares.append(_covered(_patients(rng, 100, calibration), margins.margin).mean())
    error = 2.6 * np.std(shares) / np.sqrt(len(shares))
    assert cover - error < np.mean(shares) < cover + 0.02


def test_one_box_a_patient_is_the_textbook_quantile():
    rng = np.random.default_rng(5)
    truth = np.array([[0.4, 0.4, 0.6, 0.6]])
    out = np.sort(rng.random(19))
    found = [
        AnsweredBoxes(i, truth, truth + [[x, 0, 0, 0]], np.ones((1, 4))) for i, x in enumerate(out)
    ]
    # ceil((n + 1) * 0.9) = 18 of 19, and the largest of fewer than 9 is not enough.
    assert find_margins(found, 0.9, False, "x").margin == pytest.approx(out[17])
    assert find_margins(found[:9], 0.9, False, "x").margin == pytest.approx(out[8])
    with pytest.raises(UserError, match=r"no margins cover 90%: .* at most 0.88"):
        find_margins(found[:8], 0.9, False, "x")
    # Exactly: the share that is covered is Beta(18, 2) over draws.
    assert stats.beta(18, 2).mean() == pytest.approx(0.9)


def test_patients_of_many_boxes_count_as_what_they_are():
    """The next patient's twenty boxes are as unknown as one would be."""
    truth = np.tile([[0.4, 0.4, 0.6, 0.6]], (20, 1))
    found = [
        AnsweredBoxes(i, truth, truth + [[x, 0, 0, 0]], np.ones((20, 4)))
        for i, x in enumerate(np.linspace(0.01, 0.19, 19))
    ]
    assert find_margins(found, 0.9, False, "x").margin == pytest.approx(0.18)
    # Of eleven: 0.9 * (220 + 20) boxes are 198 + 18, and 199 with one box to come.
    assert find_margins(found[:11], 0.9, False, "x").margin == pytest.approx(0.11)


def _record(patient, question, boxes=((20, 20, 60, 80),)):
    return made.record_of(f"image {patient}", boxes=boxes, patient_id=patient, question_id=question)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    records = [_record(f"p{i}", f"q{i}") for i in range(30)]
    records.append(_record("p30", "no box", ()))
    write_records(tmp_path / "records.jsonl", records)

    def near():
        return (TRUTH + 0.02 * rng.standard_normal(4)).tolist()

    lines = [
        made.line_of(
            record,
            boxes=[near(), [0.9, 0.9, 0.95, 0.95]],
            box_spreads=[[0.02, 0.02, 0.01, 0.01]] * 2,
        )
        for record in records[:30]
    ]

    def write():
        made.write_lines(tmp_path / "predictions.jsonl", lines)
        return tmp_path

    write.lines, write.records = lines, records
    return write


@pytest.mark.parametrize("scaled", [True, False])
def test_wider_boxes_hold_the_true_ones(folder, scaled):
    if not scaled:
        for line in folder.lines:
            del line["box_spreads"]
    margins, found = conformal.calibrate(folder(), 0.9, [_record("other", "q")])
    assert margins.scaled == scaled and (margins.boxes, margins.patients) == (30, 30)
    assert len(found) == 30
    assert "covers 90% of true boxes, by 30 boxes of 30 other patients" in margins.describe()
    wide = list(margins.widen(folder.lines))
    held = [
        any((box[:2] <= TRUTH[:2]).all() and (box[2:] >= TRUTH[2:]).all() for box in boxes)
        for boxes in (np.array(line["boxes"]) + 1e-6 * np.array([-1, -1, 1, 1]) for line in wide)
    ]
    assert sum(held) == 28  # ceil(0.9 * 31)
    for line, before in zip(wide, folder.lines, strict=True):
        assert np.abs(line["boxes"]).max() <= 1
        moved = np.array(line["boxes"]) + np.array(line["margins"]) * [1, 1, -1, -1]
        np.testing.assert_allclose(moved, before["boxes"], atol=2e-6)


@pytest.mark.parametrize(("change", "message"), CASES["unusable_margins"])
def test_what_cannot_be_used_is_refused(folder, change, message):
    folder.lines[0] |= change.get("line", {})
    del folder.lines[: change.get("drop", 0)]
    for line in folder.lines[: change.get("no boxes", 0)]:
        line |= {"boxes": [], "box_spreads": []}
    asked = [_record(patient, "q") for patient in change.get("asked", ["new"])]
    with pytest.raises(UserError, match=message):
        conformal.calibrate(folder(), change.get("cover", 0.9), asked)


def test_a_margin_below_zero_turns_no_box_inside_out(folder):
    for line in folder.lines:
        line["boxes"] = [[0.0, 0.0, 1.0, 1.0]]
        line["box_spreads"] = [[0.02] * 4]
    margins, _ = conformal.calibrate(folder(), 0.9, [])
    assert margins.margin < 0
    thin = {"question_id": "q", "boxes": [[0.5, 0.5, 0.52, 0.9]], "box_spreads": [[0.02] * 4]}
    ((x0, y0, x1, y1),) = next(margins.widen([thin]))["boxes"]
    assert x0 == x1 and y0 < y1


def test_what_is_read_is_in_fractions(folder):
    folder.lines[1]["box_spreads"] = [None, [0.02, 0.02, 0.01, 0.01]]
    found, _ = conformal.read_answered(
        folder() / "predictions.jsonl", {r.question_id: r for r in folder.records}
    )
    np.testing.assert_allclose(found[0].truth, [TRUTH])
    # Of a box without a spread, that of a uniform distribution.
    uniform = stats.uniform.std() + 0.01
    np.testing.assert_allclose(found[1].scale, [[uniform] * 4, [0.03, 0.03, 0.02, 0.02]])


def test_coverage_is_looked_at_on_other_patients():
    found = list(_patients(np.random.default_rng(1), 200))
    rows = conformal.check_coverage(found, find_margins(found, 0.9, True, "x"))
    assert [row.cover for row in rows] == [0.8, 0.9, 0.95]
    for row in rows:
        assert row.cover - 0.01 < row.covered < row.cover + 0.02
        assert row.low < row.covered < row.high
    assert rows[0].margin < rows[1].margin < rows[2].margin
    assert "| 90.0% | 9" in conformal.coverage_table(rows)
    # Two patients' margins cover no 80 %.
    assert conformal.check_coverage(found[:4], find_margins(found, 0.9, True, "x")) == []
