"""V-score: its three denominators, against every way of pairing and on empty sides."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.boxes import pairwise_iou
from cxrjax.metrics.localization import VScore, v_score

corner = st.integers(0, 12)
box = st.tuples(corner, corner, st.integers(1, 8), st.integers(1, 8)).map(
    lambda b: (b[0] / 20, b[1] / 20, (b[0] + b[2]) / 20, (b[1] + b[3]) / 20)
)
boxes = st.lists(box, max_size=5).map(lambda b: np.array(b, np.float64).reshape(-1, 4))
some_boxes = boxes.filter(len)


@settings(deadline=None)
@given(some_boxes, some_boxes)
def test_sum_is_the_largest_of_all_pairings(predicted, truth):
    overlap = pairwise_iou(predicted, truth)
    if len(predicted) > len(truth):
        overlap = overlap.T
    rows = range(len(overlap))
    largest = max(
        sum(overlap[row, column] for row, column in zip(rows, chosen, strict=True))
        for chosen in itertools.permutations(range(overlap.shape[1]), len(overlap))
    )
    score = v_score(predicted, truth)
    assert score.strict * max(overlap.shape) == pytest.approx(largest)
    assert score.lenient * min(overlap.shape) == pytest.approx(largest)
    assert score.truth * len(truth) == pytest.approx(largest)


@settings(deadline=None)
@given(boxes)
def test_identity_is_the_maximum(same):
    assert v_score(same, same)[:3] == pytest.approx((1, 1, 1))


@settings(deadline=None)
@given(boxes, boxes, st.randoms())
def test_order_and_scale_do_not_matter(predicted, truth, random):
    order = random.sample(range(len(predicted)), len(predicted))
    scale = np.array([3000, 0.5, 3000, 0.5])
    there = v_score(predicted[order] * scale, truth * scale)
    assert there[:3] == pytest.approx(v_score(predicted, truth)[:3])


@settings(deadline=None)
@given(boxes, some_boxes, st.integers(0, 4))
def test_a_box_too_many_never_helps_strict_beyond_the_truths_number(predicted, truth, which):
    far = np.array([[5.0, 5.0, 6.0, 6.0]])
    before = v_score(predicted, truth)
    after = v_score(np.concatenate([predicted, far]), truth)
    assert after.strict <= before.strict + 1e-12
    assert after.truth == pytest.approx(before.truth)
    if len(predicted) >= len(truth):
        # Every truth has its pair already, and a copy of one box overlaps nothing that it didn't.
        copy = predicted[[which % len(predicted)]]
        apart = np.triu(pairwise_iou(truth, truth), 1).max() == 0
        if apart and (pairwise_iou(copy, truth) > 0).sum() <= 1:
            assert v_score(np.concatenate([predicted, copy]), truth).strict <= before.strict + 1e-12


def test_empty_sides():
    none, one = np.zeros((0, 4)), np.array([[0.1, 0.1, 0.5, 0.5]])
    assert v_score(none, none) == VScore(1, 1, 1, both_empty=True)
    assert v_score(none, one) == VScore(0, 0, 0, both_empty=False)
    assert v_score(one, none) == VScore(0, 0, 0, both_empty=False)


def test_the_denominators_differ_by_hand():
    truth = np.array([[0.0, 0.0, 1.0, 1.0], [2.0, 0.0, 3.0, 1.0]])
    predicted = np.array([[0.0, 0.0, 1.0, 0.5]])  # half of the first, the second missed
    assert v_score(predicted, truth)[:3] == pytest.approx((0.25, 0.5, 0.25))
    assert v_score(truth, predicted)[:3] == pytest.approx((0.25, 0.5, 0.5))
