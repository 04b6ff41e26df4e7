"""Boxes against boxes: the matching against brute force, and what must hold for any boxes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.boxes import pairwise_iou
from cxrjax.metrics import classification
from cxrjax.metrics.detection import (
    NO_CLASS,
    count_any_overlap,
    count_duplicates,
    count_one_to_one,
    match_one_to_one,
    one_box_recall_ceiling,
)

THRESHOLD = 0.3
CLASSES = 2

# Boxes on a coarse grid: overlaps, nesting, touching and equal boxes all come up often.
corner = st.integers(0, 6)
box = st.tuples(corner, corner, st.integers(1, 4), st.integers(1, 4)).map(
    lambda b: (b[0] / 10, b[1] / 10, (b[0] + b[2]) / 10, (b[1] + b[3]) / 10)
)
labelled = st.lists(st.tuples(box, st.integers(0, CLASSES - 1)), max_size=5)
some_labelled = st.lists(st.tuples(box, st.integers(0, CLASSES - 1)), min_size=1, max_size=5)


def _arrays(items):
    boxes = np.array([b for b, _ in items], np.float64).reshape(-1, 4)
    return boxes, np.array([c for _, c in items], np.int64)


def _count(predicted, truth):
    (boxes, classes), (true_boxes, true_classes) = _arrays(predicted), _arrays(truth)
    return count_one_to_one(boxes, classes, true_boxes, true_classes, THRESHOLD, CLASSES)


def _f1(rows):
    tp, fp, fn, _ = rows.sum(axis=0)
    return classification.f1(tp, fp, fn)


def _plain_iou(a, b):
    """IoU by its definition, in whole tenths so that 3/10 is 3/10."""
    ax0, ay0, ax1, ay1 = (round(v * 10) for v in a)
    bx0, by0, bx1, by1 = (round(v * 10) for v in b)
    width, height = min(ax1, bx1) - max(ax0, bx0), min(ay1, by1) - max(ay0, by0)
    inter = max(width, 0) * max(height, 0)
    union = (ax1 - ax0) * (ay1 - ay0) + (bx1 - bx0) * (by1 - by0) - inter
    return inter, union


def _best_by_enumeration(predicted, truth):
    """(most pairs, and the largest total IoU with that many), over all ways to pair."""
    best = (0, 0.0)
    short, long = sorted((predicted, truth), key=len)
    for chosen in itertools.permutations(range(len(long)), len(short)):
        pairs, total = 0, 0.0
        for (a, a_class), index in zip(short, chosen, strict=True):
            b, b_class = long[index]
            inter, union = _plain_iou(a, b)
            if a_class == b_class and 10 * inter > 3 * union:
                pairs, total = pairs + 1, total + inter / union
        best = max(best, (pairs, total))
    return best


@settings(max_examples=150, deadline=None)
@given(labelled, labelled)
def test_matching_is_the_best_there_is(predicted, truth):
    tp, fp, fn, iou_sum = _count(predicted, truth).sum(axis=0)
    pairs, total = _best_by_enumeration(predicted, truth)
    assert tp == pairs
    assert (fp, fn) == (len(predicted) - pairs, len(truth) - pairs)
    assert iou_sum == pytest.approx(total)


@given(labelled, labelled)
@settings(deadline=None)
def test_any_overlap_against_its_wording(predicted, truth):
    overlaps = np.array(
        [[10 * i > 3 * u for i, u in (_plain_iou(p, t) for t, _ in truth)] for p, _ in predicted]
    ).reshape(len(predicted), len(truth))
    counted = count_any_overlap(_arrays(predicted)[0], _arrays(truth)[0], THRESHOLD)
    assert counted.hits == overlaps.any(axis=1).sum()
    assert counted.found == overlaps.any(axis=0).sum()
    assert counted.hits + counted.misses == len(predicted)
    assert counted.found + counted.lost == len(truth)


def test_more_pairs_beat_a_better_pair():
    # Box 0 fits truth 0 best, but then box 1 has nothing: the second pairing has two hits.
    iou = np.array([[0.9, 0.4], [0.4, 0.0]])
    rows, columns = match_one_to_one(iou, iou > THRESHOLD)
    assert sorted(zip(rows.tolist(), columns.tolist(), strict=True)) == [(0, 1), (1, 0)]


@given(some_labelled)
@settings(deadline=None)
def test_identity_is_the_maximum(items):
    tp, fp, fn, iou_sum = _count(items, items).sum(axis=0)
    assert (tp, fp, fn) == (len(items), 0, 0)
    assert iou_sum == pytest.approx(len(items))


@given(labelled, labelled, st.randoms())
@settings(deadline=None)
def test_order_does_not_matter(predicted, truth, random):
    shuffled, shuffled_truth = (
        random.sample(predicted, len(predicted)),
        random.sample(truth, len(truth)),
    )
    np.testing.assert_allclose(_count(predicted, truth), _count(shuffled, shuffled_truth))


@given(some_labelled, some_labelled)
@settings(deadline=None)
def test_a_far_away_box_never_raises_precision(predicted, truth):
    far = ((0.99, 0.99, 1.0, 1.0), 0)
    before, after = _count(predicted, truth).sum(axis=0), _count([*predicted, far], truth).sum(0)
    assert classification.precision(after[0], after[1]) <= classification.precision(*before[:2])
    old = count_any_overlap(_arrays(predicted)[0], _arrays(truth)[0], THRESHOLD)
    new = count_any_overlap(_arrays([*predicted, far])[0], _arrays(truth)[0], THRESHOLD)
    assert classification.precision(new.hits, new.misses) <= classification.precision(
        old.hits, old.misses
    )


@given(some_labelled, labelled, st.integers(0, 4))
@settings(deadline=None)
def test_a_copy_raises_f1_only_where_it_finds_another_lesion(predicted, truth, which):
    """A copy can be the second box of two lesions that lie together, but never a second hit of
    one: where no lesion overlaps a second lesion, F1 falls."""
    copy = predicted[which % len(predicted)]
    before, after = _count(predicted, truth), _count([*predicted, copy], truth)
    apart = all(_plain_iou(a, b)[0] == 0 for (a, _), (b, _) in itertools.combinations(truth, 2))
    if apart and truth:
        rivals = [
            t for t in truth if 10 * _plain_iou(copy[0], t[0])[0] > 3 * _plain_iou(copy[0], t[0])[1]
        ]
        if len(rivals) <= 1:
            assert _f1(after) <= _f1(before)


def test_ten_copies_of_a_good_box():
    truth = [((0.1, 0.1, 0.3, 0.3), 0)]
    assert _count(truth * 10, truth).sum(axis=0)[:3].tolist() == [1, 9, 0]
    # ... and that the paper's wording rewards them.
    assert count_any_overlap(_arrays(truth * 10)[0], _arrays(truth)[0], THRESHOLD)[:2] == (10, 0)


@given(labelled, labelled, st.sampled_from([0.001, 7.0, 3000.0]), st.sampled_from([0.5, 2200.0]))
@settings(deadline=None)
def test_scale_does_not_matter(predicted, truth, scale_x, scale_y):
    def scaled(items):
        boxes, classes = _arrays(items)
        return boxes * [scale_x, scale_y, scale_x, scale_y], classes

    (boxes, classes), (true_boxes, true_classes) = scaled(predicted), scaled(truth)
    there = count_one_to_one(boxes, classes, true_boxes, true_classes, THRESHOLD, CLASSES)
    np.testing.assert_allclose(there, _count(predicted, truth), atol=1e-6)


def test_empty_sides():
    """H07: the table of the module's docstring."""
    one = [((0.1, 0.1, 0.3, 0.3), 0)]
    far = [((0.6, 0.6, 0.9, 0.9), 0)]
    expected = {
        "none/none": ([], [], [np.nan] * 4),
        "none/some": ([], one, [np.nan, 0, 0, np.nan]),
        "some/none": (one, [], [0, np.nan, 0, np.nan]),
        "no hit": (far, one, [0, 0, 0, np.nan]),
    }
    for name, (predicted, truth, figures) in expected.items():
        tp, fp, fn, iou = _count(predicted, truth).sum(axis=0)
        strict = [
            classification.precision(tp, fp),
            classification.recall(tp, fn),
            classification.f1(tp, fp, fn),
            classification.ratio(iou, tp),
        ]
        np.testing.assert_array_equal(strict, figures, err_msg=name)
        any_ = count_any_overlap(_arrays(predicted)[0], _arrays(truth)[0], THRESHOLD)
        precision = classification.precision(any_.hits, any_.misses)
        recall = classification.recall(any_.found, any_.lost)
        paper = [
            precision,
            recall,
            classification.harmonic_mean(precision, recall),
            classification.ratio(any_.iou_sum, any_.hits),
        ]
        np.testing.assert_array_equal(paper, figures, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_iou_of_exactly_the_threshold_does_not_count(dtype):
    # 3 of 10 equal cells: IoU is 0.3, which floating point may make 0.30000001.
    for scale in (1.0, 1 / 3, 1 / 2021, 7e-4):
        truth = np.array([[0, 0, 10, 1]], dtype) * dtype(scale)
        predicted = np.array([[0, 0, 3, 1]], dtype) * dtype(scale)
        zero = np.zeros(1, np.int64)
        assert count_one_to_one(predicted, zero, truth, zero, THRESHOLD, 1)[0, 0] == 0
        assert count_any_overlap(predicted, truth, THRESHOLD).hits == 0
        wider = np.array([[0, 0, 3.001, 1]], dtype) * dtype(scale)
        assert count_one_to_one(wider, zero, truth, zero, THRESHOLD, 1)[0, 0] == 1


def test_class_counts():
    here, there = (0.1, 0.1, 0.3, 0.3), (0.6, 0.6, 0.9, 0.9)
    predicted = [(here, 1), (there, 1), (there, NO_CLASS)]
    truth = [(here, 0), (there, 1)]
    rows = _count(predicted, truth)
    assert rows[:, :3].tolist() == [[0, 0, 1], [1, 1, 0], [0, 1, 0]]  # class 0, class 1, unclassed


def test_a_box_of_unknown_class_matches_nothing():
    items = [((0.1, 0.1, 0.3, 0.3), NO_CLASS)]
    assert _count(items, items)[-1, :3].tolist() == [0, 1, 1]


def test_duplicates_are_counted_within_one_list():
    box_ = [0.1, 0.1, 0.3, 0.3]
    nearly = [0.1, 0.1, 0.3, 0.305]
    other = [0.1, 0.1, 0.3, 0.4]
    assert count_duplicates(np.array([box_, other, nearly, box_])) == 2
    assert count_duplicates(np.array([box_])) == 0
    assert count_duplicates(np.zeros((0, 4))) == 0
    assert pairwise_iou(np.array([box_]), np.array([nearly]))[0, 0] > 0.9


def test_recall_ceiling_of_one_box_per_question():
    """A11: about 2,639 questions on 659 validation images with 5,471 boxes."""
    assert one_box_recall_ceiling(17597 * 659 / 4394, 5471) == pytest.approx(0.482, abs=5e-4)
    assert one_box_recall_ceiling(4, 2) == 1
    assert np.isnan(one_box_recall_ceiling(4, 0))
