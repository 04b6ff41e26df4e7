"""Boxes of an image against its true ones without classes: parts, regions and V-score."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.boxes import pairwise_iou
from cxrjax.metrics import localization
from cxrjax.metrics.detection import find_overlaps, join_images

TRUTH = np.array([[0.0, 0.0, 0.4, 0.4], [0.6, 0.6, 1.0, 1.0]])
NONE = np.zeros((0, 4))


def _localize(*images):
    sides = (
        join_images((boxes, np.zeros(len(boxes), np.int64)) for boxes in side)
        for side in zip(*images, strict=True)
    )
    return [part.tolist() for part in localization.localize(find_overlaps(*sides))]


def test_every_prediction_counts_with_its_best_box_and_empty_sides_too():
    # Half of the first true box, and something on nothing.
    predicted = np.array([[0.0, 0.0, 0.4, 0.2], [0.5, 0.0, 0.6, 0.1]])
    good, acceptable, iou_sum, predictions = _localize((predicted, TRUTH))
    assert (good, acceptable, predictions) == ([False], [True], [2])  # IoU 0.5 is not above 0.5
    assert iou_sum == pytest.approx([0.5])
    # A box on an image without any has overlap 0 with the truth, and is a prediction all the same.
    good, acceptable, iou_sum, predictions = _localize(
        (NONE, NONE), (NONE, TRUTH), (TRUTH, NONE), (TRUTH, TRUTH)
    )
    assert good == acceptable == [False, False, False, True]
    assert (iou_sum, predictions) == ([0.0, 0.0, 0.0, 2.0], [0, 0, 2, 2])


@pytest.mark.parametrize("scale", [0.01, 3000.0])
def test_scale_does_not_matter(scale):
    predicted = np.array([[0.05, 0.0, 0.4, 0.3]])
    there = _localize((predicted * scale, TRUTH * scale))
    np.testing.assert_allclose(there, _localize((predicted, TRUTH)))


SIDE = 40

pixel = st.integers(0, SIDE)
pixel_box = st.tuples(*[pixel] * 4).map(
    lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))
)
pixel_boxes = st.lists(pixel_box, max_size=6).map(lambda b: np.array(b, np.int64).reshape(-1, 4))


def _drawn(items):
    mask = np.zeros((SIDE, SIDE), bool)
    for x0, y0, x1, y1 in items:
        mask[y0:y1, x0:x1] = True
    return mask


@settings(max_examples=200)
@given(pixel_boxes, pixel_boxes)
def test_areas_are_the_masks_numbers_of_pixels(predicted, truth):
    a, b = _drawn(predicted), _drawn(truth)
    assert localization.region_areas(predicted, truth) == ((a & b).sum(), a.sum(), b.sum())


@given(pixel_boxes, pixel_boxes, st.randoms())
def test_order_copies_and_scale_do_not_matter(predicted, truth, random):
    shuffled = predicted[random.sample(range(len(predicted)), len(predicted))]
    scale = np.array([1 / 3000, 7, 1 / 3000, 7])
    there = localization.region_areas(np.concatenate([shuffled, shuffled]) * scale, truth * scale)
    here = localization.region_areas(predicted, truth)
    np.testing.assert_allclose(there, np.array(here) * 7 / 3000, atol=1e-9)


def test_areas_of_several_images_add_up_and_empty_sides_have_a_v_score():
    """Micro: the study's mask is the masks of its images together."""
    first = localization.region_areas(np.array([[0, 0, 10, 10]]), np.array([[0, 0, 10, 20]]))
    second = localization.region_areas(np.array([[0, 0, 10, 10]]), np.array([[5, 0, 10, 10]]))
    whole = np.add(first, second)
    assert localization.region_iou(*whole) == pytest.approx(150 / 300)
    assert localization.region_iop(*whole[:2]) == pytest.approx(150 / 200)
    assert localization.region_iot(whole[0], whole[2]) == pytest.approx(150 / 250)
    none, one = np.zeros((0, 4)), np.array([[0.1, 0.1, 0.5, 0.5]])
    assert localization.v_score(none, none) == localization.VScore(1, 1, 1, both_empty=True)
    assert localization.v_score(none, one) == localization.VScore(0, 0, 0, both_empty=False)
    assert localization.v_score(one, none) == localization.VScore(0, 0, 0, both_empty=False)


corner = st.integers(0, 12)
box = st.tuples(corner, corner, st.integers(1, 8), st.integers(1, 8)).map(
    lambda b: (b[0] / 20, b[1] / 20, (b[0] + b[2]) / 20, (b[1] + b[3]) / 20)
)
boxes = st.lists(box, max_size=5).map(lambda b: np.array(b, np.float64).reshape(-1, 4))
some_boxes = boxes.filter(len)


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
    score = localization.v_score(predicted, truth)
    assert score.strict * max(overlap.shape) == pytest.approx(largest)
    assert score.lenient * min(overlap.shape) == pytest.approx(largest)
    assert score.truth * len(truth) == pytest.approx(largest)


@given(boxes, boxes, st.randoms())
def test_order_and_scale_do_not_matter(predicted, truth, random):
    order = random.sample(range(len(predicted)), len(predicted))
    scale = np.array([3000, 0.5, 3000, 0.5])
    there = localization.v_score(predicted[order] * scale, truth * scale)
    assert there[:3] == pytest.approx(localization.v_score(predicted, truth)[:3])
