"""Boxes against boxes: the matching against brute force, and what must hold for any boxes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.boxes import pairwise_iou
from cxrjax.metrics import detection
from cxrjax.metrics.detection import NO_CLASS, SWEEP, TOLERANCE, find_overlaps, join_images

THRESHOLD = 0.3

# Boxes on a coarse grid: overlaps, nesting, touching and equal boxes all come up often.
corner = st.integers(0, 6)
box = st.tuples(corner, corner, st.integers(1, 4), st.integers(1, 4)).map(
    lambda b: (b[0] / 10, b[1] / 10, (b[0] + b[2]) / 10, (b[1] + b[3]) / 10)
)
labelled = st.lists(st.tuples(box, st.sampled_from([NO_CLASS, 0, 1])), max_size=5)


def _arrays(items):
    boxes = np.array([b for b, _ in items], np.float64).reshape(-1, 4)
    return boxes, np.array([c for _, c in items], np.int64)


def _of_images(images):
    """Overlaps of (predicted, truth) of several images."""
    return find_overlaps(*(join_images(_arrays(pair[k]) for pair in images) for k in (0, 1)))


def _overlaps(predicted, truth):
    return _of_images([(predicted, truth)])


def _one_to_one(predicted, truth, threshold=THRESHOLD, with_classes=True):
    """(true positives, false positives, false negatives, sum of IoU) of one image."""
    overlaps = _overlaps(predicted, truth)
    (pairs,) = detection.match_one_to_one(overlaps, (threshold,), with_classes)
    hits = int(pairs.sum())
    return np.array([hits, len(predicted) - hits, len(truth) - hits, overlaps.iou[pairs].sum()])


def _any_overlap(predicted, truth, threshold=THRESHOLD):
    """(hits, found, sum of IoU) of one image."""
    overlaps = _overlaps(predicted, truth)
    hits = overlaps.best_of_predicted > threshold + TOLERANCE
    found = overlaps.best_of_truth > threshold + TOLERANCE
    return int(hits.sum()), int(found.sum()), overlaps.best_of_predicted[hits].sum()


def _plain_iou(a, b):
    """IoU by its definition, in whole tenths so that 3/10 is 3/10."""
    ax0, ay0, ax1, ay1 = (round(v * 10) for v in a)
    bx0, by0, bx1, by1 = (round(v * 10) for v in b)
    width, height = min(ax1, bx1) - max(ax0, bx0), min(ay1, by1) - max(ay0, by0)
    inter = max(width, 0) * max(height, 0)
    union = (ax1 - ax0) * (ay1 - ay0) + (bx1 - bx0) * (by1 - by0) - inter
    return inter, union


def _above(a, b, threshold):
    inter, union = _plain_iou(a, b)
    return 20 * inter > round(20 * threshold) * union


def _best_by_enumeration(predicted, truth, threshold, with_classes):
    """(most pairs, and the largest total IoU with that many), over all ways to pair."""
    best = (0, 0.0)
    short, long = sorted((predicted, truth), key=len)
    for chosen in itertools.permutations(range(len(long)), len(short)):
        pairs, total = 0, 0.0
        for (a, a_class), index in zip(short, chosen, strict=True):
            b, b_class = long[index]
            may = a_class == b_class != NO_CLASS or not with_classes
            if may and _above(a, b, threshold):
                inter, union = _plain_iou(a, b)
                pairs, total = pairs + 1, total + inter / union
        best = max(best, (pairs, total))
    return best


@settings(max_examples=200)
@given(labelled, labelled, st.sampled_from(SWEEP), st.booleans())
def test_matching_is_the_best_there_is(predicted, truth, threshold, with_classes):
    """Also of copies and of equal sides; a box of unknown class matches nothing."""
    tp, fp, fn, iou_sum = _one_to_one(predicted, truth, threshold, with_classes)
    pairs, total = _best_by_enumeration(predicted, truth, threshold, with_classes)
    assert (tp, fp, fn) == (pairs, len(predicted) - pairs, len(truth) - pairs)
    assert iou_sum == pytest.approx(total)


@given(labelled, labelled, st.sampled_from(SWEEP))
def test_any_overlap_against_its_wording(predicted, truth, threshold):
    """Which rewards ten copies of a good box."""
    overlaps = np.array(
        [[_above(p, t, threshold) for t, _ in truth] for p, _ in predicted], bool
    ).reshape(len(predicted), len(truth))
    hits, found, iou_sum = _any_overlap(predicted, truth, threshold)
    assert (hits, found) == (overlaps.any(axis=1).sum(), overlaps.any(axis=0).sum())
    best = (
        max(i / u for i, u in (_plain_iou(p, t) for t, _ in truth)) for p, _ in predicted if truth
    )
    assert iou_sum == pytest.approx(sum(iou for iou in best if iou > threshold + TOLERANCE))


@given(st.lists(st.tuples(labelled, labelled), max_size=4), st.booleans())
def test_many_images_and_thresholds_at_once_are_as_one_by_one(images, with_classes):
    overlaps = _of_images(images)
    matched = detection.match_one_to_one(overlaps, SWEEP, with_classes)
    for threshold, pairs in zip(SWEEP, matched, strict=True):
        kept = np.flatnonzero(pairs)
        assert len(set(overlaps.rows[kept])) == len(set(overlaps.columns[kept])) == len(kept)
        for number, (predicted, truth) in enumerate(images):
            here = kept[overlaps.image[kept] == number]
            alone = _one_to_one(predicted, truth, threshold, with_classes)
            assert len(here) == alone[0]
            assert overlaps.iou[here].sum() == pytest.approx(alone[3])


@given(st.lists(st.tuples(labelled, labelled), max_size=4), st.integers(1, 7))
def test_pairs_are_those_of_every_image(images, chunk):
    expected = []
    for number, (predicted, truth) in enumerate(images):
        overlap = pairwise_iou(_arrays(predicted)[0], _arrays(truth)[0])
        expected += [(number, *at, overlap[at]) for at in zip(*np.nonzero(overlap), strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cxrjax.metrics.detection._CHUNK", chunk)
        found = _of_images(images)
    places = [found.image]
    for side, rows in ((found.predicted, found.rows), (found.truth, found.columns)):
        first = np.cumsum(side.per_image) - side.per_image
        places.append(rows - first[found.image])
    assert list(zip(*places, found.iou, strict=True)) == expected


@given(labelled, labelled, st.sampled_from([0.001, 7.0, 3000.0]), st.sampled_from([0.5, 2200.0]))
def test_scale_does_not_matter(predicted, truth, scale_x, scale_y):
    def scaled(items):
        return [
            ((x * scale_x, y * scale_y, z * scale_x, w * scale_y), c) for (x, y, z, w), c in items
        ]

    for count in (_one_to_one, _any_overlap):
        there = count(scaled(predicted), scaled(truth))
        np.testing.assert_allclose(there, count(predicted, truth), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_iou_of_exactly_the_threshold_does_not_count(dtype):
    # 3 of 10 equal cells: IoU is 0.3, which floating point may make 0.30000001.
    def count(right, scale):
        image, zero = np.zeros(1, np.int64), np.zeros(1, np.int64)
        truth, predicted = (
            detection.ImageBoxes(np.array([[0, 0, x, 1]], dtype) * dtype(scale), zero, image, 1)
            for x in (10, right)
        )
        overlaps = find_overlaps(predicted, truth)
        return (
            detection.match_one_to_one(overlaps, (THRESHOLD,)).sum(),
            (overlaps.best_of_predicted > THRESHOLD + TOLERANCE).sum(),
        )

    for scale in (1.0, 1 / 3, 1 / 2021, 7e-4):
        assert count(3, scale) == (0, 0)
        assert count(3.001, scale) == (1, 1)


@given(labelled, labelled)
def test_hits_fall_and_their_mean_rises_with_the_threshold(predicted, truth):
    overlaps = _overlaps(predicted, truth)
    matched = detection.match_one_to_one(overlaps, SWEEP)
    hits = matched.sum(axis=1)
    assert (np.diff(hits) <= 0).all()
    for threshold, pairs, count in zip(SWEEP, matched, hits, strict=True):
        mean = detection.mean_iou_of_hits(overlaps.iou[pairs].sum(), count, threshold)
        assert np.isnan(mean) if not count else mean > threshold


def test_duplicates_are_counted_and_sides_that_cannot_be_refused():
    box_ = [0.1, 0.1, 0.3, 0.3]
    nearly = [0.1, 0.1, 0.3, 0.305]
    other = [0.1, 0.1, 0.3, 0.4]
    lists = [np.array([box_, other, nearly, box_]), np.array([box_]), np.zeros((0, 4))]
    joined = join_images((boxes, np.zeros(len(boxes), np.int64)) for boxes in lists)
    assert detection.find_duplicates(joined).tolist() == [False, False, True, True, False]
    assert pairwise_iou(np.array([box_]), np.array([nearly]))[0, 0] > 0.9
    with pytest.raises(ValueError, match="1 images against those of 2"):
        find_overlaps(join_images([_arrays([])]), join_images([_arrays([])] * 2))
    assert detection.mean_iou_of_hits(np.array([0.9, 0.0]), np.array([1, 0]), 0.3)[0] == 0.9
    with pytest.raises(AssertionError, match=r"0\.036 is not above 0\.3"):
        detection.mean_iou_of_hits(0.072, 2, 0.3)
