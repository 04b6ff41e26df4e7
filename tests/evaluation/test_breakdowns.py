"""Figures by attribute of question and image, and how sure answers are, through VinDr's scores."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss

from cxrjax.evaluation.figures import age_band, boxes_band, break_down, joined_columns
from cxrjax.evaluation.text_tables import grid, split_rows
from cxrjax.metrics.bootstrap import Estimate, Figure
from cxrjax.papers.vindr_cxr_vqa.figures import VINDR_CXR_VQA
from tests.evaluation import made


def _records(images=24):
    """A class there on two images of three; seen from the front and the side, of old and young."""
    return [
        made.record_of(
            f"i{i}",
            boxes=[made.BOX] if i % 3 else [],
            patient_id=f"p{i // 2}",
            view="LATERAL" if i % 4 == 1 else "PA",
            sex="FM"[i % 2] if i < 20 else None,
            age=5 * i,
            difficulty=("Easy", "Hard")[i % 2],
        )
        for i in range(images)
    ]


def _lines(records):
    """Right on the frontal images; sure of it where it is."""
    for record in records:
        right = record.view == "PA"
        yes = bool(record.boxes) == right
        boxes, sure = [made.FRACTIONS] if yes else [], math.log(0.9 if right else 0.3)
        yield made.line_of(record, "Yes, ILD." if yes else "No ILD.", boxes, answer_logprob=sure)


def test_every_cell_is_the_figure_of_its_images_alone():
    records = _records()
    strict = made.score_lines(records, _lines(records))[0]["strict"]
    for attribute, of in (
        ("view", lambda r: r.view),
        ("sex", lambda r: r.sex),
        ("age", lambda r: age_band(r.age)),
        ("difficulty", lambda r: r.difficulty),
    ):
        values = {of(record) for record in records} - {None}
        named = {key.rsplit("/", 1)[1] for key in strict if key.startswith(f"by_{attribute}/")}
        assert named == values
        for value in values:
            group = [record for record in records if of(record) == value]
            alone = made.score_lines(group, _lines(group))[0]["strict"]
            cells = [key for key in strict if key.startswith(f"by_{attribute}/")]
            for key in (key for key in cells if key.endswith(f"/{value}")):
                metric = key.removeprefix(f"by_{attribute}/").removesuffix(f"/{value}")
                assert strict[key].value == pytest.approx(alone[metric].value)
                assert strict[key].n == alone[metric].n == len(group)
    assert strict["by_view/vqa/balanced_accuracy/PA"].value == 1
    assert strict["by_view/detection/f1@0.3/LATERAL"].value == 0
    assert strict["by_true_boxes/vqa/f1/1"].n == sum(bool(r.boxes) for r in records)
    # Without any image of the kind there is no such cell; a class nobody asks about has one.
    assert not any(key.startswith("by_region") for key in strict)
    assert strict["by_class/vqa/mcc/Pneumothorax"] == Estimate(None, None, None, 0)


def test_small_cells_are_marked_and_answers_without_a_probability_left_out():
    records = _records()
    scores = made.scores_of(records, _lines(records))
    text = VINDR_CXR_VQA.markdown(scores)
    assert "## By view (strict" in text
    rows = [row for row in VINDR_CXR_VQA.rows(scores) if row["table"] == "by_view"]
    small = {row["column"]: row["small"] for row in rows}
    assert small == {"LATERAL": "true", "PA": "false"}
    section = text.split("## By view")[1].split("##")[0]
    lateral, frontal = (line for line in section.splitlines() if line.startswith(("| L", "| P")))
    assert lateral.count("*") == 2 * frontal.count("n = ")
    assert "*" not in frontal
    lines = [
        line if i % 2 else {**line, "answer_logprob": None}
        for i, line in enumerate(_lines(records))
    ]
    assert made.score_lines(records, lines)[0]["strict"]["calibration/ece"].n == 12


def test_how_sure_answers_are_is_held_against_whether_they_are_right():
    records = _records()
    lines = list(_lines(records))
    scores = made.scores_of(records, lines)
    strict = scores.figures["s"]["strict"]
    right = [record.view == "PA" for record in records]
    sure = [math.exp(line["answer_logprob"]) for line in lines]
    assert strict["calibration/brier"].value == pytest.approx(brier_score_loss(right, sure))
    assert strict["calibration/accuracy"].value == strict["vqa/exact_set"].value
    # 18 answers at 0.9 all right, 6 at 0.3 all wrong.
    assert strict["calibration/ece"].value == pytest.approx((18 * 0.1 + 6 * 0.3) / 24)
    expected = np.mean([max(0, k - 18) / k for k in range(1, 25)])
    assert strict["calibration/aurc"].value == pytest.approx(expected)
    assert strict["calibration/brier"].n == 24
    assert {"reliability", "risk_coverage"} <= scores.curves["s"].keys()
    for line in lines:
        del line["answer_logprob"]
    silent = made.scores_of(records, lines)
    assert silent.figures["s"]["strict"]["calibration/ece"] == Estimate(None, None, None, 0)
    assert not {"reliability", "risk_coverage"} & silent.curves["s"].keys()


def test_how_sure_boxes_are_is_held_against_how_well_they_lie():
    records = _records()
    lines = []
    for number, line in enumerate(_lines(records)):
        if line["boxes"]:  # the further off, the less sure
            shift = 0.01 * number
            line["boxes"] = [[0.1 + shift, 0.1, 0.5 + shift, 0.5]]
            line["box_scores"] = [1 / (1 + shift)]
        lines.append(line)
    scores = made.scores_of(
        [r for r in records if r.view == "PA"],
        [line for line, r in zip(lines, records, strict=True) if r.view == "PA"],
    )
    figure = scores.figures["s"]["strict"]["calibration/score_iou_correlation"]
    assert figure.value == pytest.approx(1)
    assert figure.n == sum(bool(r.boxes) for r in records if r.view == "PA")
    assert "iou_by_score" in scores.curves["s"]


BANDS = {0: "00-19", 19.9: "00-19", 20: "20-39", 79: "60-79", 80: "80 and more", 102: "80 and more"}


def test_bands_of_age_and_rows_that_nothing_has():
    assert age_band(None) is None
    assert {age: age_band(age) for age in BANDS} == BANDS
    figure = Figure(lambda sums: sums["a"], "a")
    cells = break_down({"m": figure}, "class", ["x", None, "x"], keys=["x", "y"])
    assert cells["by_class/m/x"] == replace(figure, within=("class", "x"))
    assert cells["by_class/m/y"] == Estimate(None, None, None, 0)
    records = [r.model_copy(update={"view": None, "sex": None, "age": None}) for r in _records(6)]
    text = VINDR_CXR_VQA.markdown(made.scores_of(records, _lines(records)))
    assert "By sex" not in text
    assert "By number of true boxes" in text


@given(st.integers(0, 40))
def test_boxes_bands_cover_every_number(boxes):
    band = boxes_band(boxes)
    first, _, last = band.replace(" and more", "-999").partition("-")
    assert int(first) <= boxes <= int(last or first)


def test_units_are_one_list_and_names_stay_within_their_cells():
    joined = joined_columns({"boxes": np.array([1.0, 2])}, {"right": np.array([1.0, 0, 1])})
    columns = {name: column.tolist() for name, column in joined.items()}
    assert columns == {"boxes": [1, 2, 0, 0, 0], "right": [0, 0, 1, 0, 1]}
    assert len(joined) == 2
    names = ["a\n| b |", "\u2028", "c|d", "e\r\nf", ""]
    table = grid([["name", "n"], *([name, "1"] for name in names)])
    cells = [row[0] for row in split_rows(table.splitlines())[1:]]
    assert cells == ["a | b |", "", "c|d", "e f", ""]
