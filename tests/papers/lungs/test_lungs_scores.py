"""Scores of lung boxes against values by hand; answers with planted faults."""

import pytest

from cxrjax.errors import UserError
from cxrjax.records import Answer, QARecord, write_records
from tests.evaluation import made

CASES = made.cases_of(__file__)
RIGHT, LEFT = [20, 10, 80, 90], [110, 10, 170, 90]
# As fractions: what a system says that is right.
TRUE = {"right": [[0.1, 0.1, 0.4, 0.9]], "left": [[0.55, 0.1, 0.85, 0.9]]}
TRUE["lungs"] = TRUE["right"] + TRUE["left"]
IMAGES = ("a", "b")


def record(image: str, name: str, boxes: list[list[int]], **changes) -> QARecord:
    finding = name if name in ("lungs", "normal") else f"{name} lung"
    told = {"kind": "Where", "answer": {"polarity": "pos"}}
    if name == "normal":
        told = {"kind": "Yes_No", "answer": {"polarity": "neg" if image == "b" else "pos"}}
    told |= {"dataset": "lungs", "negative_kind": None}
    return made.record_of(image, name, finding, boxes, **told, **changes)


@pytest.fixture
def folder(tmp_path):
    """A folder with the references."""
    asked = {"right": [RIGHT], "left": [LEFT], "lungs": [RIGHT, LEFT], "normal": []}
    records = [record(image, name, boxes) for image in IMAGES for name, boxes in asked.items()]
    write_records(tmp_path / "records.jsonl", records)
    return tmp_path


def says(**changed) -> list[dict]:
    """Lines of a system that is right but for these: question of both images -> its boxes."""
    lines = [
        {"question_id": f"{i}-{name}", "text": "", "boxes": boxes, "labels": [None] * len(boxes)}
        for i in IMAGES
        for name, boxes in (TRUE | changed).items()
        if boxes is not None
    ]
    normal = (("a", "Yes."), ("b", "No, it shows pneumonia."))
    return lines + [{"question_id": f"{i}-normal", "text": t, "boxes": []} for i, t in normal]


def scored(folder, lines, **flags) -> tuple[dict[str, dict[str, float | None]], str]:
    """Protocol -> metric -> value of one system, and the tables."""
    made.write_lines(folder / "p.jsonl", lines)
    metrics, tables = made.run_score(folder, "p", benchmark="lungs", **flags)
    of = metrics["p"].items()
    return {p: {name: f["value"] for name, f in named.items()} for p, named in of}, tables


def test_the_true_boxes_in_either_order_are_right(folder):
    figures, tables = scored(folder, says(lungs=TRUE["left"] + TRUE["right"]))
    for named in figures.values():
        for finding in ("", "/right lung", "/left lung", "/lungs"):
            assert named[f"lungs/mean_iou{finding}"] == pytest.approx(1)
            assert named[f"lungs/iou_above@0.75{finding}"] == 1
        for fault in ("border_slivers", "same_box", "other_side"):
            assert named[f"lungs/{fault}"] == 0
        assert named["normal/balanced_accuracy"] == 1
        assert named["parse_failure_rate"] == 0
    assert "| p | strict | 1.000" in tables


@pytest.mark.parametrize(("fault", "changed", "expected"), CASES["faults"])
def test_a_planted_fault_is_seen(fault, changed, expected, folder):
    figures, _ = scored(folder, says(**changed))
    found = {name: figures["strict"][f"lungs/{name}"] for name in expected}
    assert found == pytest.approx(expected)


def test_expected_ious_are_held_against_those_found(folder):
    half = [[0.1, 0.1, 0.25, 0.9]]  # of the right lung
    lines = says(right=half, lungs=None)
    scores = {"right": 0.5, "left": 0.9}
    for line in lines:
        if line["boxes"]:
            line["box_scores"] = [scores[line["question_id"].partition("-")[2]]]
    figures, tables = scored(folder, lines)
    named = {k.partition("/")[2]: v for k, v in figures["strict"].items() if "calibration" in k}
    # Right lungs are as good as they are said to be, left ones are found wholly.
    assert named["mean_box_score"] == pytest.approx(0.7)
    assert named["mean_box_iou"] == pytest.approx(0.75)
    assert named["box_ece"] == pytest.approx(0.05)
    assert named["score_iou_correlation"] == pytest.approx(1)
    assert "| p | strict | 0.700" in tables
    curve = made.read_json(folder, "out", "curves.json")["p"]["iou_by_score"]
    assert curve["x"] == pytest.approx([0.5, 0.9]) and curve["y"] == pytest.approx([0.5, 1])


def test_other_records_are_refused_and_what_has_no_boxes_counts_in_strict(folder, tmp_path):
    figures, _ = scored(folder, says(left=[], right=None))
    assert figures["paper"]["lungs/mean_iou"] is None
    assert figures["paper"]["lungs/mean_iou/lungs"] == pytest.approx(1)
    assert figures["strict"]["lungs/mean_iou"] == 0
    problems = made.read_json(folder, "out", "score.json")["problems"]["p"]
    assert problems["missing_prediction"] == problems["blank_answer"] == 2
    answer = Answer(text="x", labels=["right lung"], polarity="pos")
    for changes in ({"variables": {"finding": "mass"}}, {"image_hw": None}, {"answers": [answer]}):
        write_records(tmp_path / "records.jsonl", [record("a", "right", [RIGHT], **changes)])
        told = r"a-right asks about .* expected one of .*dataset=lungs"
        with pytest.raises(UserError, match=told):
            scored(tmp_path, [])


def test_floors_of_one_box_are_as_good_as_they_can_be(folder):
    scored(folder, says(), floors="auto")
    floors = made.read_json(folder, "out", "floors.json")["figures"]
    value = {
        name: {metric: figure["value"] for metric, figure in of["strict"].items()}
        for name, of in floors.items()
    }
    # Both images have the same lungs: another image's box is right.
    assert value["prior box"]["lungs/mean_iou"] == pytest.approx(1)
    assert value["prior box"]["lungs/same_box"] == 0
    assert value["constant box"]["lungs/mean_iou"] == pytest.approx(0.5)
    assert value["constant box"]["lungs/other_side"] == 0.5
    for name, sensitivity, specificity in (("constant yes", 0, 1), ("constant no", 1, 0)):
        assert value[name]["normal/sensitivity"] == sensitivity
        assert value[name]["normal/specificity"] == specificity
