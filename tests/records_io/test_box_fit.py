"""Boxes that reach beyond their images or are none."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.records_io.quality import GivenBox, Unusable, cut_box, fit_boxes

HW = (80, 100)
NUMBERS = st.one_of(
    st.integers(-30, 130), st.floats(-30, 130), st.floats(), st.integers(-(10**400), 10**400)
)
BOXES = st.one_of(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), st.just((10, 10, 50, 60)))


def _given(boxes, image_hw=HW):
    return [GivenBox(n, box, image_hw, f"box{n}") for n, box in enumerate(boxes)]


@given(st.lists(BOXES, max_size=12))
def test_every_box_lies_on_its_image_or_is_told_of(boxes):
    try:
        fitted = fit_boxes(_given(boxes))
    except Unusable as fault:
        assert fault.reason == "wrong_frame" and len(boxes) > 1
        return
    assert fitted.boxes.keys() | fitted.faults.keys() == set(range(len(boxes)))
    assert not fitted.boxes.keys() & fitted.faults.keys() and fitted.cut <= fitted.boxes.keys()
    for n, (x_min, y_min, x_max, y_max) in fitted.boxes.items():
        assert 0 <= x_min < x_max <= HW[1] and 0 <= y_min < y_max <= HW[0]
        assert (n in fitted.cut) == ((x_min, y_min, x_max, y_max) != boxes[n])
        # Nothing is added: the cut box is where the image and the given one are.
        assert x_min >= boxes[n][0] and y_max <= boxes[n][3]
    for n in fitted.faults:
        x_min, y_min, x_max, y_max = boxes[n]
        lies = min(x_max, HW[1]) > max(x_min, 0) and min(y_max, HW[0]) > max(y_min, 0)
        assert not lies or max(boxes[n]) <= 1 or not all(abs(v) < 1e9 for v in boxes[n])


@given(BOXES)
def test_a_box_that_was_cut_is_not_cut_again(box):
    try:
        cut = cut_box(box, HW)
    except Unusable:
        return
    assert cut_box(cut, HW) == cut
    assert [type(v) for v in cut_box((1, 2.5, 3, 4), HW)] == [int, float, int, int]


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ((10, 10, 10, 50), "bad_box"),
        ((50, 10, 10, 50), "bad_box"),
        ((math.nan, 10, 20, 50), "bad_box"),
        ((10, 10, math.inf, 50), "bad_box"),
        ((10, 10, 10**400, 50), "bad_box"),
        ((100, 10, 120, 50), "box_outside_image"),
        ((-20, 10, 0, 50), "box_outside_image"),
        ((0.1, 0.1, 0.5, 0.5), "wrong_frame"),
    ],
)
def test_a_box_that_is_none_is_left_out_alone(box, reason):
    for boxes in ([box], [box, (1, 1, 20, 20)]):
        fitted = fit_boxes(_given(boxes))
        assert {n: fault.reason for n, fault in fitted.faults.items()} == {0: reason}
        assert list(fitted.boxes) == list(range(1, len(boxes))) and not fitted.cut
        assert len(fitted.faults[0].found) < 300


@pytest.mark.parametrize("scale", [3, 0.001, -1])
def test_boxes_on_another_frame(scale):
    right = [(10, 10, 50, 60), (60, 10, 90, 60), (40, 30, 80, 75)]
    boxes = [tuple(sorted(v * scale for v in box)) for box in right]
    assert fit_boxes(_given(right)).cut == set()
    with pytest.raises(Unusable, match=r"wrong_frame.*[23] of 3 boxes do not fit, the first: box0"):
        fit_boxes(_given(boxes))


def test_rounding_is_no_sign_of_another_frame():
    boxes = [(-1, 0, 50, 60), (0, 0, 100.5, 70), (10, 0, 60, 81)]
    assert fit_boxes(_given(boxes)).cut == {0, 1, 2}
    with pytest.raises(Unusable, match="2 of 3 boxes"):
        fit_boxes(_given([(-2, 0, 50, 60), (0, 0, 101.5, 70), (10, 0, 60, 81)]))


def test_without_a_size_only_the_first_edges_are_known():
    assert cut_box((-5, 3, 5000, 7), None) == (0, 3, 5000, 7)
    with pytest.raises(Unusable, match=r"beside the image'"):
        cut_box((-5, 3, -1, 7), None)
