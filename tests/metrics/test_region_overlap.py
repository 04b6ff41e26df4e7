"""Areas of unions of boxes, against masks drawn pixel by pixel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.boxes import iou
from cxrjax.metrics.localization import (
    RegionAreas,
    region_areas,
    region_iop,
    region_iot,
    region_iou,
)

SIDE = 40

corner = st.integers(0, SIDE)
box = st.tuples(corner, corner, corner, corner).map(
    lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))
)
boxes = st.lists(box, max_size=6).map(lambda b: np.array(b, np.int64).reshape(-1, 4))


def _drawn(items):
    mask = np.zeros((SIDE, SIDE), bool)
    for x0, y0, x1, y1 in items:
        mask[y0:y1, x0:x1] = True
    return mask


@settings(max_examples=200, deadline=None)
@given(boxes, boxes)
def test_areas_are_the_masks_numbers_of_pixels(predicted, truth):
    a, b = _drawn(predicted), _drawn(truth)
    assert region_areas(predicted, truth) == ((a & b).sum(), a.sum(), b.sum())


@settings(deadline=None)
@given(boxes, boxes, st.randoms())
def test_order_copies_and_scale_do_not_matter(predicted, truth, random):
    shuffled = predicted[random.sample(range(len(predicted)), len(predicted))]
    scale = np.array([1 / 3000, 7, 1 / 3000, 7])
    there = region_areas(np.concatenate([shuffled, shuffled]) * scale, truth * scale)
    here = region_areas(predicted, truth)
    np.testing.assert_allclose(there, np.array(here) * 7 / 3000, atol=1e-9)


@settings(deadline=None)
@given(boxes)
def test_identity_is_the_maximum(same):
    both, predicted, truth = region_areas(same, same)
    figures = [region_iou(both, predicted, truth), region_iop(both, predicted)]
    assert all(np.isnan(f) if predicted == 0 else f == 1 for f in figures)
    assert both == truth


@settings(deadline=None)
@given(box, box)
def test_of_single_boxes_it_is_their_iou(a, b):
    areas = region_areas(np.array([a]), np.array([b]))
    expected = iou(np.array(a, np.float64), np.array(b, np.float64))
    assert np.nan_to_num(region_iou(*areas)) == pytest.approx(float(expected))


@settings(deadline=None)
@given(boxes, boxes)
def test_a_far_away_box_never_raises_precision_or_iou(predicted, truth):
    far = np.array([[SIDE + 5, 0, SIDE + 9, 9]])
    before = region_areas(predicted, truth)
    after = region_areas(np.concatenate([predicted, far]), truth)
    assert not region_iop(*after[:2]) > region_iop(*before[:2])
    assert not region_iou(*after) > region_iou(*before)
    assert after.intersection == before.intersection


def test_empty_sides():
    none, one = np.zeros((0, 4)), np.array([[1.0, 1.0, 3.0, 4.0]])
    flat = np.array([[1.0, 1.0, 1.0, 4.0]])
    for empty in (none, flat):
        assert region_areas(empty, empty) == RegionAreas(0, 0, 0)
        assert region_areas(empty, one) == RegionAreas(0, 0, 6)
        assert region_areas(one, empty) == RegionAreas(0, 6, 0)
    assert np.isnan([region_iou(0, 0, 0), region_iop(0, 0), region_iot(0, 0)]).all()
    assert region_iou(0, 0, 6) == region_iot(0, 6) == region_iou(0, 6, 0) == region_iop(0, 6) == 0


def test_areas_of_several_images_add_up():
    """Micro: the study's mask is the masks of its images together."""
    first = region_areas(np.array([[0, 0, 10, 10]]), np.array([[0, 0, 10, 20]]))
    second = region_areas(np.array([[0, 0, 10, 10]]), np.array([[5, 0, 10, 10]]))
    whole = np.add(first, second)
    assert region_iou(*whole) == pytest.approx(150 / 300)
    assert region_iop(*whole[:2]) == pytest.approx(150 / 200)
    assert region_iot(whole[0], whole[2]) == pytest.approx(150 / 250)
