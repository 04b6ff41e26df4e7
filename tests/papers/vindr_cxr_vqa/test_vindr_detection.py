"""VinDr-CXR-VQA's sweep, ranking, negatives and groups of true boxes, case by case."""

import numpy as np
import pytest

from cxrjax.evaluation.ranked_boxes import rank_last_where_missing
from cxrjax.metrics.detection import SWEEP
from cxrjax.papers.vindr_cxr_vqa.boxes import BOX_PLACES, BOX_SIZES
from cxrjax.papers.vindr_cxr_vqa.figures import VINDR_CXR_VQA
from cxrjax.papers.vindr_cxr_vqa.truth import read_references
from tests.evaluation import made

CASES = made.cases_of(__file__)
SIDE = 100
BOX, FAR = [10.0, 10.0, 50.0, 50.0], [60, 60, 90, 90]


def _record(image, number=0, asked="ILD", boxes=(), **fields):
    return made.record_of(image, number, asked, boxes, image_hw=(SIDE, SIDE), **fields)


def _said(record, text="Yes.", boxes=(), **fields):
    """An answer with boxes in pixels."""
    return made.line_of(record, text, [[value / SIDE for value in b] for b in boxes], **fields)


def _shrunk(share):
    """A box whose IoU with `BOX` is this."""
    return [10.0, 10.0, 10.0 + 40 * share, 50.0]


def test_sweep_by_hand():
    """Three images with IoUs of 0.9, 0.52 and 0.33: hits drop out one by one."""
    records = [_record(f"i{n}", boxes=[BOX]) for n in range(3)]
    ious = (0.9, 0.52, 0.33)
    lines = [_said(r, boxes=[_shrunk(iou)]) for r, iou in zip(records, ious, strict=True)]
    scores = made.scores_of(records, lines)
    curves = scores.curves["s"]
    f1 = [sum(iou > threshold for iou in ious) / 3 for threshold in SWEEP]
    for protocol in ("strict", "strict_agnostic", "paper"):
        for metric in ("precision", "recall", "f1"):
            curve = curves[f"sweep/{protocol}/{metric}"]
            assert curve["x"] == list(SWEEP)
            assert curve["y"] == pytest.approx(f1)
        means = [np.mean([iou for iou in ious if iou > threshold]) for threshold in SWEEP]
        assert curves[f"sweep/{protocol}/miou_tp"]["y"] == pytest.approx(means)
    prefixes = (("strict", "detection"), ("strict", "detection_agnostic"), ("paper", "detection"))
    for protocol, prefix in prefixes:
        named = scores.figures["s"][protocol]
        assert named[f"{prefix}/f1@0.3"].value == pytest.approx(1)
        assert named[f"{prefix}/f1@0.4"].value == pytest.approx(2 / 3)
        assert named[f"{prefix}/recall@0.5"].value == pytest.approx(2 / 3)
        assert named[f"{prefix}/precision@0.75"].value == pytest.approx(1 / 3)
        assert named[f"{prefix}/miou_tp@0.75"].value == pytest.approx(0.9)
        area = np.trapezoid(f1, SWEEP) / 0.65
        assert named[f"{prefix}/f1_area"].value == pytest.approx(area)


def test_two_right_answers_that_differ_by_a_pixel_are_no_error():
    """To the union of the image they are a hit and a false box, question by question two hits."""
    record, again = (_record("i0", number=n, boxes=[BOX]) for n in range(2))
    absent = _record("i0", number=2, asked="Consolidation")
    jittered = [11.0, 10.0, 50.0, 50.0]
    lines = [_said(record, boxes=[BOX]), _said(again, boxes=[jittered])]
    found = made.values_of([record, again, absent], [*lines, _said(absent, "No.")])
    assert found["detection/precision@0.3"] == 0.5
    assert found["grounding/precision@0.3"] == found["grounding/recall@0.3"] == 1
    assert found["grounding/f1@0.5"] == 1
    assert found["grounding/miou_tp@0.3"] == pytest.approx((1 + 39 / 40) / 2)
    # A box where there is nothing is an error, and so is one of another class.
    found = made.values_of([record, again, absent], [*lines, _said(absent, "No.", boxes=[BOX])])
    assert found["grounding/precision@0.3"] == pytest.approx(2 / 3)
    found = made.values_of([record], [_said(record, boxes=[BOX], labels=["Consolidation"])])
    assert found["grounding/f1@0.3"] == 0


def test_what_is_undefined_of_sweeps_and_rankings_without_hits():
    records = [_record("i0", boxes=[BOX])]
    curves = made.scores_of(records, [_said(records[0], boxes=[FAR])]).curves["s"]
    assert curves["sweep/strict/f1"]["y"] == [0] * len(SWEEP)
    assert curves["sweep/strict/miou_tp"]["y"] == [None] * len(SWEEP)
    silent = made.scores_of(records, [_said(records[0])]).curves["s"]
    assert silent["sweep/strict/precision"]["y"] == [None] * len(SWEEP)
    assert silent["sweep/strict/recall"]["y"] == [0] * len(SWEEP)
    scores = made.scores_of(records, [_said(records[0], "No.")])
    strict = scores.figures["s"]["strict"]
    assert strict["ap/constant_scores"].value is None
    assert strict["ap/voc@0.4"].value == strict["froc/mean_sensitivity"].value == 0
    assert "all box scores are equal" not in VINDR_CXR_VQA.markdown(scores)


def test_ranking_by_hand():
    """A surer box beside the lesion halves AP; a less sure one costs nothing."""
    records = [_record("i0", boxes=[BOX]), _record("i1", boxes=[BOX])]

    def figures(beside):
        lines = [_said(records[0], boxes=[BOX, FAR], box_scores=[0.6, beside])]
        return made.values_of(records, [*lines, _said(records[1], boxes=[BOX], box_scores=[0.5])])

    surer, unsure = figures(0.9), figures(0.1)
    for name in ("ap/voc@0.4", "ap/coco", "ap/coco@0.5", "by_class/ap/voc@0.4/ILD"):
        assert unsure[name] == pytest.approx(1)
        assert surer[name] == pytest.approx(2 / 3)  # 1 of 2, then 2 of 3, interpolated
    assert unsure["froc/sensitivity@0.125"] == unsure["froc/mean_sensitivity"] == 1
    assert [surer[f"froc/sensitivity@{rate}"] for rate in ("0.25", "0.5", "8")] == [0, 1, 1]
    assert surer["ap/constant_scores"] == 0
    assert surer["by_class/ap/coco/Cardiomegaly"] is None


def test_a_box_that_several_answers_give_has_its_highest_score():
    records = [_record("i0", 0, boxes=[BOX]), _record("i0", 1), _record("i1", boxes=[BOX])]
    lines = [
        _said(records[0], boxes=[BOX, FAR], box_scores=[0.2, 0.5]),
        _said(records[1], boxes=[BOX], box_scores=[0.9]),
        _said(records[2], boxes=[BOX], box_scores=[0.8]),
    ]
    assert made.values_of(records, lines)["ap/voc@0.4"] == 1
    lines[1] = _said(records[1])
    assert made.values_of(records, lines)["ap/voc@0.4"] < 1


@pytest.mark.parametrize("fields", [{}, {"box_scores": [0.4]}, {"box_scores": [None]}])
def test_equal_and_missing_scores_are_flagged(fields):
    records = [_record("i0", boxes=[BOX]), _record("i1", boxes=[BOX])]
    lines = [_said(record, boxes=[BOX], **fields) for record in records]
    scores = made.scores_of(records, lines)
    assert scores.figures["s"]["strict"]["ap/constant_scores"].value == 1
    assert "s: all box scores are equal or there are none." in VINDR_CXR_VQA.markdown(scores)


def test_a_box_without_a_score_ranks_last():
    assert rank_last_where_missing(np.array([0.2, np.nan, 0.1])).tolist() == [1, 0, 0.5]
    for scale in (1e-300, -1, -1e17, 5e307):
        scores = np.array([2, np.nan, 1, 1]) * scale
        ranked = rank_last_where_missing(scores)
        assert ranked.argmin() == 1 and ranked[2] == ranked[3] > 0
        assert (ranked[0] > ranked[2]) == (scale > 0)
    assert rank_last_where_missing(np.array([np.nan, np.nan])).tolist() == [0, 0]
    records = [_record("i0", boxes=[BOX])]
    for score_, expected in ((None, 1), (0.9, 0.5)):
        line = _said(records[0], boxes=[BOX, FAR], box_scores=[0.3, score_])
        assert made.values_of(records, [line])["ap/voc@0.4"] == expected


def test_negatives_by_hand():
    """Two questions about an absent class beside findings, two on an image without any."""
    records = [
        _record("i0", 0, "ILD", [BOX]),
        _record("i0", 1, "Cardiomegaly"),
        _record("i0", 2, "Pneumothorax"),
        _record("i1", 0, "ILD", negative_kind="no_finding_image"),
        _record("i1", 1, "Atelectasis", negative_kind="no_finding_image"),
    ]
    lines = [
        _said(records[0], "Yes.", [BOX]),
        _said(records[1], "Yes, Cardiomegaly.", [BOX]),
        _said(records[2], "No."),
        _said(records[3], "Yes, ILD.", [BOX, FAR]),
        _said(records[4], ""),  # wrong, but names nothing
    ]
    scores = made.scores_of(records, lines)
    figures = scores.figures["s"]["strict"]
    expected = CASES["negatives"]
    assert {name: figures[name].value for name in expected} == pytest.approx(expected)
    assert figures["negative/false_yes_rate/no_finding_image"].n == 2


def test_truths_have_no_bias_and_every_metric_of_the_tables_exists():
    records = [_record(f"i{n}", boxes=[BOX] if n % 2 else []) for n in range(6)]
    lines = [_said(r, r.answer_text, r.boxes) for r in records]
    strict = made.values_of(records, lines)
    assert strict["vqa/yes_bias"] == strict["vqa/hallucination_rate"] == 0
    assert strict["negative/false_yes_rate/absent_class"] == 0
    assert strict["negative/false_yes_rate/no_finding_image"] is None
    records = [_record("i0", boxes=[BOX], difficulty="Easy", view="PA", sex="F", age=50.0)]
    scores = made.scores_of(records, [_said(records[0], boxes=[BOX], box_scores=[0.5])])
    text = VINDR_CXR_VQA.markdown(scores)
    for heading in ("By difficulty", "By size of the true box", "By view", "By age"):
        assert f"## {heading}" in text
    tables = {row["table"] for row in VINDR_CXR_VQA.rows(scores)}
    assert tables >= {"by_box_size", "by_box_place", "by_view"}


def test_true_boxes_by_size_and_place():
    """Twenty boxes, two in each tenth by size: the small ones upper left, the large lower right."""
    records, lines = [], []
    for number in range(20):
        side = 5.0 + 2 * number
        x = 0.0 if number < 10 else 99 - side
        records.append(_record(f"i{number}", boxes=[[x, x, x + side, x + side]]))
        # What is larger than the fourth tenth is found, exactly.
        lines.append(_said(records[-1], boxes=records[-1].boxes if number >= 8 else ()))
    scores = made.scores_of(records, lines)
    strict = scores.figures["s"]["strict"]
    for number, name in enumerate(BOX_SIZES):
        figure = strict[f"by_box_size/detection/recall@0.3/{name}"]
        assert (figure.value, figure.n) == (float(number >= 4), 2)
    assert strict["by_box_size/detection/miou_tp@0.3/tenth 1"].value is None
    assert strict["by_box_size/detection/miou_tp@0.3/tenth 9"].value == pytest.approx(1)
    limits = scores.settings["box_size_limits"]
    assert len(limits) == 9 and sorted(limits) == list(limits)
    found = {name: strict[f"by_box_place/detection/recall@0.3/{name}"] for name in BOX_PLACES}
    assert found["upper left"].value == pytest.approx(0.2) and found["upper left"].n == 10
    assert sum(figure.n for figure in found.values()) == 20
    assert found["upper right"].value is None and found["upper right"].n == 0


def test_groups_of_true_boxes_hold_every_hit():
    rng = np.random.default_rng(0)
    records, lines = [], []
    for number in range(30):
        boxes = [[x, y, x + 20, y + 30] for x, y in rng.integers(0, 70, (3, 2)).tolist()]
        records.append(_record(f"i{number}", boxes=boxes))
        moved = [[x + 4, y, right, bottom] for x, y, right, bottom in boxes[:2]]
        lines.append(_said(records[-1], boxes=moved))
    references = read_references(records, "exact", "r.jsonl")
    strict = made.score_lines(records, lines)[0]["strict"]
    truths = len(references.truth)
    hits = strict["detection/recall@0.3"].value * truths
    for grouping, names in (("box_place", BOX_PLACES), ("box_size", BOX_SIZES)):
        found = 0.0
        for name in names:
            recall = strict[f"by_{grouping}/detection/recall@0.3/{name}"].value
            found += (recall or 0) * _true_boxes(references, grouping, name)
        assert found == pytest.approx(hits)


def _true_boxes(references, grouping, name):
    """How many true boxes a group has, found without the code under test."""
    boxes = references.truth.boxes
    if grouping == "box_size":
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        limits = np.quantile(areas, np.arange(1, 10) / 10)
        return sum((area > limits).sum() == BOX_SIZES.index(name) for area in areas)
    third, half = name.split()
    x, y = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
    low = {"upper": 0, "middle": 1 / 3, "lower": 2 / 3}[third]
    return ((y >= low) & (y < low + 1 / 3) & ((x >= 0.5) == (half == "right"))).sum()


def test_ranked_figures_have_intervals_unless_that_takes_too_long(monkeypatch):
    records = [_record(f"i{number}", boxes=[BOX]) for number in range(8)]
    found = [BOX, BOX, FAR, BOX, BOX, FAR, BOX, BOX]
    lines = [
        _said(record, boxes=[box], box_scores=[0.9 - 0.1 * rank])
        for rank, (record, box) in enumerate(zip(records, found, strict=True))
    ]
    named = ("ap/voc@0.4", "ap/coco", "froc/mean_sensitivity", "by_class/ap/coco/ILD")
    strict = made.scores_of(records, lines, bootstrap=made.FEW).figures["s"]["strict"]
    for name in named:
        assert strict[name].ci_low < strict[name].value < strict[name].ci_high <= 1
    monkeypatch.setattr("cxrjax.evaluation.ranked_boxes.MOST_WORK", 8 * (20 + 8) - 1)
    scores = made.scores_of(records, lines, bootstrap=made.FEW)
    without = scores.figures["s"]["strict"]
    for name in named:
        assert without[name].value == strict[name].value
        assert without[name].ci_low is without[name].ci_high is None
    told = (strict["ap/intervals_left_out"].value, without["ap/intervals_left_out"].value)
    assert told == (0, 1)
    assert "s: AP and FROC without intervals" in VINDR_CXR_VQA.markdown(scores)
