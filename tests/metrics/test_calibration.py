"""Calibration against scikit-learn and against sums by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from cxrjax.evaluation.figures import BOX_NAMES, answer_calibration, box_calibration
from cxrjax.metrics import calibration
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.metrics.calibration import reliability, risk_coverage
from tests.metrics.sums import estimate

SURE = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def area_under_risk_coverage(confidence, right):
    _, risk = risk_coverage(confidence, right)
    return risk.mean() if len(risk) else np.nan


def _answers(seed, count=500):
    rng = np.random.default_rng(seed)
    confidence = rng.beta(2, 1, size=count)
    return confidence, (rng.random(count) < confidence**2).astype(float)


def _ece(confidence, right):
    n, *means = reliability(confidence, right)
    assert n.sum() == len(confidence)
    return float(calibration.expected_calibration_error(n, *(n * mean for mean in means)))


@pytest.mark.parametrize("seed", range(4))
def test_the_reliability_table_is_scikit_learns(seed):
    confidence, right = _answers(seed)
    theirs = calibration_curve(right, confidence, n_bins=10, strategy="quantile")
    n, sure, outcome = reliability(confidence, right)
    np.testing.assert_allclose(outcome, theirs[0])
    np.testing.assert_allclose(sure, theirs[1])
    assert n.tolist() == [50] * 10
    assert _ece(confidence, right) == pytest.approx(np.abs(theirs[0] - theirs[1]).mean())


def test_ties_share_a_bin_and_expected_ious_are_calibrated():
    confidence = np.array([0.2] * 7 + [0.9] * 3)
    right = np.array([1, 0, 0, 0, 0, 0, 0, 1, 1, 1.0])
    assert sorted(reliability(confidence, right)[0]) == [3, 7]
    # 7 answers are right 1/7 of the time, said 0.2; 3 always, said 0.9.
    expected = (7 * abs(1 / 7 - 0.2) + 3 * 0.1) / 10
    assert _ece(confidence, right) == pytest.approx(expected)
    columns, figures, curves = answer_calibration([], [], [], range(5), Bootstrap())
    assert (columns, curves) == ({}, {})
    assert {(f.value, f.n) for f in figures.values()} == {(None, 0)}
    rng = np.random.default_rng(3)
    score = rng.uniform(0.2, 0.9, 4000)
    iou = np.clip(score + rng.normal(0, 0.08, 4000), 0, 1)
    for scores, least, most in ((score, 0, 0.01), (np.sqrt(score), 0.1, 0.3)):
        columns, figures, _ = box_calibration(scores, iou, np.arange(4000) % 50, 50)
        sums = {name: np.asarray(column).sum(keepdims=True) for name, column in columns.items()}
        assert least <= figures["calibration/box_ece"].formula(sums)[0] < most


def test_risk_and_coverage_by_hand_and_of_ties():
    # From the surest: right, wrong, right, wrong.
    coverage, risk = risk_coverage(np.array([0.6, 0.9, 0.7, 0.1]), np.array([1, 1, 0, 0]))
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert risk == pytest.approx(np.array([0, 1 / 2, 1 / 3, 1 / 2]))
    aurc = area_under_risk_coverage(np.array([0.6, 0.9, 0.7, 0.1]), np.array([1, 1, 0, 0]))
    assert aurc == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 4)
    rng = np.random.default_rng(1)
    confidence = rng.integers(0, 4, size=40) / 4
    right = (rng.random(40) < 0.5).astype(float)
    _, ours = risk_coverage(confidence, right)
    drawn = []
    for jitter in rng.uniform(0, 0.1, size=(3000, 40)):
        drawn.append(risk_coverage(confidence + jitter, right)[1])
    np.testing.assert_allclose(ours, np.mean(drawn, axis=0), atol=0.03)


@given(SURE, st.integers(0, 100))
def test_no_order_is_better_than_the_truths_own(confidence, seed):
    sure = np.array(confidence)
    right = (np.random.default_rng(seed).random(len(sure)) < 0.5).astype(float)
    aurc = area_under_risk_coverage(sure, right)
    assert area_under_risk_coverage(right, right) - 1e-12 <= aurc
    assert aurc <= area_under_risk_coverage(-right, right) + 1e-12
    constant = area_under_risk_coverage(np.full(len(sure), 0.5), right)
    assert constant == pytest.approx(1 - right.mean())
    assert 0 <= _ece(sure, right) <= 1


@given(SURE, SURE)
def test_the_rank_correlation_with_a_constant_is_undefined(first, second):
    count = min(len(first), len(second))
    one, two = np.array(first[:count]), np.array(second[:count])
    constant = count < 2 or np.ptp(one) == 0 or np.ptp(two) == 0
    assert np.isnan(calibration.rank_correlation(one, two)) == constant


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), min_size=1))
def test_an_answer_that_counts_several_times_is_as_several_answers(answers):
    confidence, right, times = (np.array(column, float) for column in zip(*answers, strict=True))
    copies = times.astype(int)
    expected = area_under_risk_coverage(np.repeat(confidence, copies), np.repeat(right, copies))
    found = calibration.reweighted_area(confidence, right, np.stack([times, np.ones(len(times))]))
    np.testing.assert_allclose(found[0], expected)
    np.testing.assert_allclose(found[1], area_under_risk_coverage(confidence, right))


def test_figures_and_intervals():
    confidence, right = _answers(7)
    images = np.random.default_rng(7).integers(0, 60, size=500)
    columns, figures, curves = answer_calibration(confidence, right, images, range(60), Bootstrap())
    named = estimate(columns, list(range(60)), {"strict": figures}, Bootstrap())["strict"]
    assert named["calibration/brier"].value == pytest.approx(brier_score_loss(right, confidence))
    assert named["calibration/ece"].value == pytest.approx(_ece(confidence, right))
    assert named["calibration/accuracy"].value == pytest.approx(right.mean())
    assert named["calibration/mean_confidence"].value == pytest.approx(confidence.mean())
    for name in ("brier", "accuracy", "mean_confidence", "aurc"):
        figure = named[f"calibration/{name}"]
        assert figure.ci_low < figure.value < figure.ci_high
    assert {figure.n for figure in named.values()} == {500}
    assert named["calibration/aurc"].value == pytest.approx(
        area_under_risk_coverage(confidence, right)
    )
    assert curves["risk_coverage"]["x"][-1] == 1
    assert curves["risk_coverage"]["y"][-1] == pytest.approx(1 - right.mean())
    assert len(curves["risk_coverage"]["x"]) <= 200
    assert sum(curves["reliability"]["n"]) == 500


def test_boxes_that_lie_better_the_surer_they_are():
    rng = np.random.default_rng(8)
    iou = rng.random(300)
    units = [*range(300), 0]
    columns, figures, curves = box_calibration([*(iou**2), np.nan], [*iou, 0.5], units, 300)
    figure = figures["calibration/score_iou_correlation"]
    assert (figure.value, figure.n) == (pytest.approx(1), 300)
    assert curves["iou_by_score"]["y"] == sorted(curves["iou_by_score"]["y"])
    sums = {name: np.asarray(column).sum(keepdims=True) for name, column in columns.items()}
    by = {name: figures[f"calibration/{name}"].formula(sums)[0] for name in BOX_NAMES}
    # Of one sign in all bins: the distance of the means.
    assert by["box_ece"] == pytest.approx(iou.mean() - (iou**2).mean())
    assert by["mean_box_score"] == pytest.approx((iou**2).mean())
    assert by["mean_box_iou"] == pytest.approx(iou.mean())
    same = box_calibration([0.5] * 4, [0, 1, 0.5, 1], range(4), 4)[1]
    assert same["calibration/score_iou_correlation"].value is None
    assert box_calibration([0.5, 7.0], [0, 1], range(2), 2)[1]["calibration/box_ece"].value is None
    columns, figures, curves = box_calibration([], [], [], 4)
    assert (columns, curves) == ({}, {})
    assert {figure.value for figure in figures.values()} == {None}
