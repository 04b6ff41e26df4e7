"""AP and FROC: against pycocotools and scikit-learn, and what must hold for any boxes."""

import contextlib
import io
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from sklearn.metrics import precision_recall_curve

from cxrjax.metrics import ranking
from cxrjax.metrics.detection import NO_CLASS, TOLERANCE, ImageBoxes, find_overlaps
from cxrjax.metrics.ranking import COCO_THRESHOLDS, VOC_THRESHOLD, sensitivity_at

CLASSES = 3

corner, side = st.integers(0, 8), st.integers(1, 8)
box = st.tuples(corner, corner, side, side).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))
# Boxes of three images on a coarse grid, so that ties of IoU and double hits come up often.
labelled = st.lists(st.tuples(st.integers(0, 2), box, st.integers(0, CLASSES - 1)), max_size=14)
seeds = st.integers(0, 2**32 - 1)


def _boxes(items, images=3):
    items = sorted(items, key=lambda item: item[0])
    boxes = np.array([b for _, b, _ in items], np.float64).reshape(-1, 4)
    of, classes = (np.array([item[k] for item in items], np.int64) for k in (0, 2))
    return ImageBoxes(boxes, classes, of, images)


def _overlaps(predicted, truth):
    return find_overlaps(_boxes(predicted), _boxes(truth))


def _voc(overlaps, scores, classes, threshold=VOC_THRESHOLD, weights=None):
    rankings = ranking.voc_rankings(overlaps, scores, classes, threshold)
    return ranking.voc_average_precision(rankings, weights)


def _coco(overlaps, scores, classes, weights=None):
    return ranking.coco_average_precision(ranking.coco_rankings(overlaps, scores, classes), weights)


def _froc(overlaps, scores, threshold, weights=None):
    (curve,) = ranking.froc_ranking(overlaps, scores, threshold).curves(weights)
    return curve


def _distinct(count, seed):
    return np.random.default_rng(seed).permutation(count) / max(count, 1)


def _random_set(rng, images, apart=False):
    """Predicted boxes near the true ones, some of the wrong class, some twice, some anywhere."""
    truth, predicted = [], []
    for image in range(images):
        for place in range(rng.integers(0, 7)):
            x, y = (200 * (place % 3), 200 * (place // 3)) if apart else rng.integers(0, 300, 2)
            width, height = rng.integers(20, 190, 2)
            label = int(rng.integers(CLASSES))
            truth.append((image, (x, y, x + width, y + height), label))
            for _ in range(rng.integers(0, 3)):
                dx, dy, dw, dh = rng.normal(0, 12, 4).round()
                right, bottom = x + width + dw, y + height + dh
                if apart:  # within its own cell of the grid
                    dx, dy = max(dx, 0), max(dy, 0)
                    right, bottom = min(right, x + 199), min(bottom, y + 199)
                if right > x + dx and bottom > y + dy:
                    guess = label if rng.random() < 0.8 else int(rng.integers(CLASSES))
                    predicted.append((image, (x + dx, y + dy, right, bottom), guess))
    return predicted, truth


def _pycocotools(predicted, scores, truth, thresholds=None, images=3):
    """AP by pycocotools, [thresholds, classes], NaN where a class has no true boxes."""

    def annotations(boxes, extra):
        corners = zip(boxes.image, boxes.boxes.tolist(), boxes.classes, extra, strict=True)
        for number, (image, (x0, y0, x1, y1), label, score) in enumerate(corners, start=1):
            side = {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0)}
            owner = {"id": number, "image_id": int(image) + 1, "category_id": int(label) + 1}
            yield {**side, **owner, "iscrowd": 0, "score": float(score)}

    given_, true = _boxes(predicted, images), _boxes(truth, images)
    with contextlib.redirect_stdout(io.StringIO()):
        coco, results = COCO(), COCO()
        for side_, boxes, extra in ((coco, true, np.ones(len(true))), (results, given_, scores)):
            side_.dataset = {
                "images": [{"id": i + 1} for i in range(images)],
                "categories": [{"id": c + 1} for c in range(CLASSES)],
                "annotations": list(annotations(boxes, extra)),
            }
            side_.createIndex()
        evaluation = COCOeval(coco, results, "bbox")
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.params.maxDets = [100]
        if thresholds is not None:
            evaluation.params.iouThrs = np.array(thresholds)
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, 0]
    return np.where((precision == -1).any(axis=1), np.nan, precision.mean(axis=1))


@pytest.mark.parametrize("seed", range(4))
def test_coco_on_random_sets_is_pycocotools(seed):
    rng = np.random.default_rng(seed)
    predicted, truth = _random_set(rng, 40)
    scores = _distinct(len(predicted), seed)
    overlaps = find_overlaps(_boxes(predicted, 40), _boxes(truth, 40))
    ours = _coco(overlaps, scores, CLASSES)
    theirs = _pycocotools(predicted, scores, truth, images=40)
    assert 0.05 < np.nanmean(theirs) < 0.95
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


@settings(max_examples=60)
@given(labelled.filter(len), labelled.filter(len), seeds)
def test_coco_on_crowded_grids_is_pycocotools(predicted, truth, seed):
    scores = _distinct(len(predicted), seed)
    ours = _coco(_overlaps(predicted, truth), scores, CLASSES)
    # A hair below, as ours: an IoU of exactly 0.6 is at its threshold, whatever rounding says.
    theirs = _pycocotools(predicted, scores, truth, np.array(COCO_THRESHOLDS) - 1e-9)
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


@settings(max_examples=60)
@given(labelled.filter(len), labelled.filter(len), seeds, st.integers(1, 3))
def test_pycocotools_rules_are_pycocotools_with_ties_of_score_and_iou(
    predicted, truth, seed, levels
):
    scores = np.random.default_rng(seed).integers(0, levels, len(predicted)) / 4
    predicted.sort(key=lambda item: item[0])
    truth.sort(key=lambda item: item[0])
    rankings = ranking.pycocotools_rankings(_overlaps(predicted, truth), scores, CLASSES)
    ours = ranking.coco_average_precision(rankings)
    theirs = _pycocotools(predicted, scores, truth, np.array(COCO_THRESHOLDS) - 1e-9)
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


def _voc_in_words(predicted, scores, truth, label):
    """VOC 2010 as its development kit describes it, box by box."""
    given_, true = _boxes(predicted), _boxes(truth)
    taken, hits = set(), []
    for index in np.argsort(-scores):
        if given_.classes[index] != label:
            continue
        best, best_at = 0.0, None
        for at, (image, other) in enumerate(zip(true.image, true.boxes, strict=True)):
            if image != given_.image[index] or true.classes[at] != label:
                continue
            ax0, ay0, ax1, ay1 = given_.boxes[index]
            bx0, by0, bx1, by1 = other
            inter = max(min(ax1, bx1) - max(ax0, bx0), 0) * max(min(ay1, by1) - max(ay0, by0), 0)
            union = (ax1 - ax0) * (ay1 - ay0) + (bx1 - bx0) * (by1 - by0) - inter
            if inter / union > best:
                best, best_at = inter / union, at
        hits.append(best > VOC_THRESHOLD + TOLERANCE and best_at not in taken)
        if hits[-1]:
            taken.add(best_at)
    return np.array(hits, bool), int((true.classes == label).sum())


@settings(max_examples=60)
@given(labelled, labelled, seeds)
def test_voc_against_its_wording_and_scikit_learns_curve(predicted, truth, seed):
    scores = _distinct(len(predicted), seed)
    ours = _voc(_overlaps(predicted, truth), scores, CLASSES)
    for label in range(CLASSES):
        hits, truths = _voc_in_words(predicted, scores, truth, label)
        if not truths:
            assert np.isnan(ours[label])
        elif not hits.any():
            assert ours[label] == 0
        else:
            precision, recall, _ = precision_recall_curve(hits, -np.arange(len(hits)))
            # From the highest recall down; scikit-learn's recall is of the hits there are.
            envelope = np.maximum.accumulate(precision)
            area = -(np.diff(recall) * envelope[:-1]).sum() * hits.sum() / truths
            assert ours[label] == pytest.approx(area)


@given(labelled.filter(len))
def test_identity_is_the_maximum(items):
    overlaps = _overlaps(items, items)
    scores = _distinct(len(items), 1)
    present = np.isin(np.arange(CLASSES), [c for _, _, c in items])
    coco = _coco(overlaps, scores, CLASSES)
    assert (coco[:, present] == 1).all() and np.isnan(coco[:, ~present]).all()
    np.testing.assert_array_equal(np.isnan(coco[0]), ~present)
    curve = _froc(overlaps, scores, 0.3)
    assert curve.recall[-1] == 1
    # Identical true boxes are one best box to VOC: only the first on it is a hit.
    if len(set(items)) == len(items):
        assert (_voc(overlaps, scores, CLASSES)[present] == 1).all()
        assert (sensitivity_at(curve, 3) == 1).all()


@settings(max_examples=200)
@given(labelled, labelled, seeds, st.integers(1, 3))
def test_order_and_scale_do_not_matter(predicted, truth, seed, levels):
    """Nor does the order of true boxes; also where scores are equal."""
    rng = np.random.default_rng(seed)
    predicted.sort(key=lambda item: item[0])
    scores = rng.integers(0, levels, len(predicted)) / 4
    order = rng.permutation(len(predicted))
    order = order[np.argsort([predicted[i][0] for i in order], kind="stable")]
    shuffled = [predicted[i] for i in order]
    shuffled_truth = [truth[i] for i in rng.permutation(len(truth))]

    def figures(items, points, true, scale):
        def scaled(side):
            return [(i, tuple(np.array(b) * scale), c) for i, b, c in side]

        overlaps = _overlaps(scaled(items), scaled(true))
        ranked = _voc(overlaps, points, CLASSES), _coco(overlaps, points, CLASSES)
        return [*ranked, sensitivity_at(_froc(overlaps, points, 0.3), 3)]

    here = figures(predicted, scores, truth, 1)
    same = figures(predicted, scores, shuffled_truth, 1)
    there = figures(shuffled, scores[order], shuffled_truth, [1 / 2000, 3, 1 / 2000, 3])
    for a, b, c in zip(here, same, there, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c)


@given(labelled.filter(len), labelled.filter(len), seeds)
def test_a_far_away_box_never_raises_a_figure(predicted, truth, seed):
    scores = np.random.default_rng(seed).random(len(predicted) + 1)
    predicted.sort(key=lambda item: item[0])
    far = [*predicted, (2, (900, 900, 950, 950), truth[0][2])]
    before, after = _overlaps(predicted, truth), _overlaps(far, truth)
    for metric in (_voc, _coco):
        old, new = metric(before, scores[:-1], CLASSES), metric(after, scores, CLASSES)
        assert not (new > old + 1e-12).any()
    curves = _froc(before, scores[:-1], 0.3), _froc(after, scores, 0.3)
    assert not (sensitivity_at(curves[1], 3) > sensitivity_at(curves[0], 3) + 1e-12).any()


def test_copies_are_false_boxes_and_a_hundred_count():
    truth = [(0, (0, 0, 10, 10), 0)]
    once, twice = _overlaps(truth, truth), _overlaps(truth * 2, truth)
    assert _voc(once, np.array([0.5]), CLASSES)[0] == 1
    assert _voc(twice, np.array([0.5, 0.5]), CLASSES)[0] == 0.5
    assert (_coco(twice, np.array([0.5, 0.5]), CLASSES)[:, 0] == 0.5).all()
    curve = _froc(twice, np.array([0.9, 0.8]), 0.3)
    assert (curve.hits.tolist(), curve.misses.tolist()) == ([1], [0])
    many = [(0, (20 + i, 0, 25 + i, 5), 0) for i in range(100)]
    scores = np.append(np.linspace(1, 0.5, 100), 0.1)
    overlaps = _overlaps([*many, truth[0]], truth)
    assert _voc(overlaps, scores, CLASSES)[0] == 0
    assert _voc(_overlaps([*many[1:], truth[0]], truth), scores[1:], 1)[0] == 0.01
    assert (_pycocotools([*many, truth[0]], scores, truth)[:, 0] == 0).all()
    assert (_coco(overlaps, scores, CLASSES)[:, 0] == 0).all()


@given(labelled.filter(len), labelled.filter(len))
def test_equal_scores_give_precision_times_recall(predicted, truth):
    scores = np.full(len(predicted), 0.7)
    assert ranking.constant_scores(scores)
    overlaps = _overlaps(predicted, truth)
    rank = ranking.rank_by_score(overlaps.predicted, scores)
    hits = ranking.take_best_free(overlaps, rank, 0.5 - TOLERANCE)
    ours = _coco(overlaps, scores, CLASSES)[0]
    for label in range(CLASSES):
        of_class = overlaps.predicted.classes == label
        truths = (overlaps.truth.classes == label).sum()
        if truths and of_class.any():
            precision, recall = hits[of_class].mean(), hits[of_class].sum() / truths
            # At the 101 recalls of the grid that are reached.
            reached = (np.linspace(0, 1, 101) <= recall).mean()
            assert ours[label] == pytest.approx(precision * reached)


def test_tied_scores_are_read_in_the_least_favourable_order():
    """pycocotools with ties broken against the hits: order within a tie is worth nothing here.

    One box a lesion, since of two the one that is tried first is the hit.
    """
    rng = np.random.default_rng(5)
    predicted, truth = _random_set(rng, 20, apart=True)
    cells = {(image, b[0] // 200, b[1] // 200): (image, b, c) for image, b, c in predicted}
    predicted = list(cells.values())
    overlaps = find_overlaps(_boxes(predicted, 20), _boxes(truth, 20))
    coarse = rng.integers(0, 4, len(predicted)) / 4
    ours = _coco(overlaps, coarse, CLASSES)
    assert not ranking.constant_scores(coarse)
    rank = ranking.rank_by_score(overlaps.predicted, coarse)
    for row, threshold in enumerate(COCO_THRESHOLDS):
        hits = ranking.take_best_free(overlaps, rank, threshold - TOLERANCE)
        broken = coarse - 0.01 * hits - 1e-5 * rank
        theirs = _pycocotools(predicted, broken, truth, [threshold - 1e-9], images=20)
        np.testing.assert_allclose(ours[row], theirs[0], atol=1e-12)


def test_steps_of_curves_and_hits_at_the_threshold():
    scores, hits = np.array([0.9, 0.5, 0.2, 0.2, 0.1]), np.array([[1, 0, 1, 0, 0]], bool)
    (curve,) = ranking.Ranking(scores, hits, np.zeros(5, int), np.array([4])).curves()
    assert (curve.hits.tolist(), curve.misses.tolist()) == ([1, 2], [0, 2])
    assert curve.recall.tolist() == [0.25, 0.5]
    assert curve.precision.tolist() == [1, 0.5]
    for scores, constant in (([], 0), ([0.3], 1), ([0.3, 0.3], 1), ([0.3, 0.31], 0)):
        assert ranking.constant_scores(np.array(scores, float)) == constant, scores
    for scale in (1, 1 / 3, 1 / 2021):
        for width, threshold in ((5, 0.5), (4, VOC_THRESHOLD)):
            predicted, true = (
                _boxes([(0, (0, 0, right * scale, scale), 0)]) for right in (width, 10)
            )
            overlaps = find_overlaps(predicted, true)
            score = np.array([0.5])
            assert _coco(overlaps, score, 1)[0, 0] == (width == 5)
            assert _voc(overlaps, score, 1, threshold)[0] == 0


def test_froc_by_hand():
    """Two lesions on two images: found at 0.9, and at 0.4 after two false boxes."""
    truth = [(0, (0, 0, 10, 10), 0), (1, (0, 0, 10, 10), 1)]
    predicted = [
        (0, (0, 0, 10, 9), 0),
        (0, (50, 50, 60, 60), 0),
        (1, (50, 50, 60, 60), NO_CLASS),
        (1, (0, 0, 10, 9), 1),
    ]
    overlaps = find_overlaps(_boxes(predicted, 2), _boxes(truth, 2))
    curve = _froc(overlaps, np.array([0.9, 0.7, 0.6, 0.4]), 0.3)
    assert sensitivity_at(curve, 2).tolist() == [0.5, 0.5, 0.5, 1, 1, 1, 1]
    assert sensitivity_at(curve, 2, (0.99, 1.0)).tolist() == [0.5, 1]
    # One score for all is one cut: nothing is found at fewer than one false box an image.
    constant = _froc(overlaps, np.ones(4), 0.3)
    assert sensitivity_at(constant, 2).tolist() == [0, 0, 0, 1, 1, 1, 1]


@given(labelled, labelled.filter(len), seeds)
def test_froc_rises_and_ends_at_the_recall(predicted, truth, seed):
    overlaps = _overlaps(predicted, truth)
    curve = _froc(overlaps, _distinct(len(predicted), seed), 0.3)
    reached = sensitivity_at(curve, 3, (*ranking.RATES, 100))
    assert (np.diff(reached) >= 0).all()
    assert reached[-1] == (curve.recall[-1] if curve.hits.size else 0)


@given(labelled, labelled, seeds, st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_a_weight_is_so_many_copies_of_the_image(predicted, truth, seed, copies):
    scores = np.random.default_rng(seed).integers(0, 4, len(predicted)) / 4
    order = sorted(range(len(predicted)), key=lambda row: predicted[row][0])
    predicted, scores = [predicted[row] for row in order], scores[: len(order)]
    sources = [image for image, number in enumerate(copies) for _ in range(number)]

    def copied(items):
        return [(new, *items[row][1:]) for new, row in _rows_of(sources, items)]

    rows = [row for _, row in _rows_of(sources, predicted)]
    again = find_overlaps(
        _boxes(copied(predicted), len(sources)), _boxes(copied(truth), len(sources))
    )
    before, weights = _overlaps(predicted, truth), np.array([copies, [1, 1, 1]], float)
    for measure in (_voc, _coco):
        found = measure(before, scores, CLASSES, weights=weights)
        np.testing.assert_allclose(found[0], measure(again, scores[rows], CLASSES), atol=1e-12)
        np.testing.assert_array_equal(found[1], measure(before, scores, CLASSES))
    both = _froc(before, scores, 0.3, weights)
    curves = (_froc(again, scores[rows], 0.3), len(sources)), (_froc(before, scores, 0.3), 3)
    expected = [sensitivity_at(*curve) for curve in curves]
    np.testing.assert_allclose(sensitivity_at(both, weights.sum(axis=1)), expected, atol=1e-12)


def _rows_of(sources, items):
    """(new image, row of `items`) of every copy."""
    pairs = itertools.product(enumerate(sources), enumerate(items))
    return [(new, row) for (new, source), (row, item) in pairs if item[0] == source]
