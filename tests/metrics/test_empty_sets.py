"""The table of `cxrjax.metrics`, row by row, computed by the functions themselves."""

import numpy as np
import pytest

import cxrjax.metrics
from cxrjax.metrics import classification
from cxrjax.metrics.detection import (
    TOLERANCE,
    find_duplicates,
    find_overlaps,
    join_images,
    match_one_to_one,
    mean_iou_of_hits,
)
from cxrjax.metrics.localization import (
    localize,
    region_areas,
    region_iop,
    region_iot,
    region_iou,
    v_score,
)
from cxrjax.metrics.ranking import (
    coco_average_precision,
    coco_rankings,
    froc_ranking,
    sensitivity_at,
    voc_average_precision,
    voc_rankings,
)

NONE = np.zeros((0, 4))
HERE, THERE = np.array([[0.1, 0.1, 0.3, 0.3]]), np.array([[0.6, 0.6, 0.9, 0.9]])
CASES = {
    "none, none true": (NONE, NONE),
    "none, some true": (NONE, HERE),
    "some, none true": (HERE, NONE),
    "no overlap": (THERE, HERE),
}


def _overlaps(predicted, truth):
    return find_overlaps(
        *(join_images([(boxes, np.zeros(len(boxes), np.int64))]) for boxes in (predicted, truth))
    )


def _counts(predicted, truth):
    overlaps = _overlaps(predicted, truth)
    hits = match_one_to_one(overlaps, (0.3,))[0].sum()
    return hits, len(predicted) - hits, len(truth) - hits


def _any_precision(predicted, truth):
    hits = (_overlaps(predicted, truth).best_of_predicted > 0.3 + TOLERANCE).sum()
    return classification.ratio(hits, len(predicted))


def _any_recall(predicted, truth):
    found = (_overlaps(predicted, truth).best_of_truth > 0.3 + TOLERANCE).sum()
    return classification.ratio(found, len(truth))


def _mean_iou_of_hits(predicted, truth):
    overlaps = _overlaps(predicted, truth)
    (pairs,) = match_one_to_one(overlaps, (0.3,))
    return mean_iou_of_hits(overlaps.iou[pairs].sum(), pairs.sum(), 0.3)


def _mean_iou_of_all(predicted, truth):
    placed = localize(_overlaps(predicted, truth))
    return classification.ratio(placed.iou_sum.sum(), placed.predictions.sum())


def _duplicates(predicted, truth):
    boxes = _overlaps(predicted, truth).predicted
    return classification.ratio(find_duplicates(boxes).sum(), len(boxes))


def _scores(predicted):
    return np.linspace(1, 0.5, len(predicted))


def _scored(predicted, truth):
    return _overlaps(predicted, truth), _scores(predicted), 1


def _froc(predicted, truth):
    (curve,) = froc_ranking(_overlaps(predicted, truth), _scores(predicted), 0.3).curves()
    (sensitivity,) = set(np.nan_to_num(sensitivity_at(curve, 1), nan=-1).tolist())
    return np.nan if sensitivity == -1 else sensitivity


def _names(predicted, truth):
    """The boxes' corners as names of what is there."""
    sides = (frozenset(map(tuple, side.tolist())) for side in (predicted, truth))
    return classification.set_counts(*sides)


FIGURES = {
    "precision of boxes": lambda p, t: classification.precision(*_counts(p, t)[:2]),
    "recall of boxes": lambda p, t: classification.recall(*_counts(p, t)[::2]),
    "F1 of boxes": lambda p, t: classification.f1(*_counts(p, t)),
    "any-overlap precision": _any_precision,
    "any-overlap recall": _any_recall,
    "any-overlap F1": lambda p, t: classification.harmonic_mean(
        _any_precision(p, t), _any_recall(p, t)
    ),
    "mean IoU of true positives": _mean_iou_of_hits,
    "share of images well localized": lambda p, t: localize(_overlaps(p, t)).acceptable.mean(),
    "mean IoU of all predictions": _mean_iou_of_all,
    "share of duplicates": _duplicates,
    "VOC AP": lambda p, t: voc_average_precision(voc_rankings(*_scored(p, t)))[0],
    "COCO AP": lambda p, t: coco_average_precision(coco_rankings(*_scored(p, t))).mean(),
    "FROC sensitivity": _froc,
    "V-score, strict": lambda p, t: v_score(p, t).strict,
    "V-score, lenient": lambda p, t: v_score(p, t).lenient,
    "V-score, truth": lambda p, t: v_score(p, t).truth,
    "region IoU": lambda p, t: region_iou(*region_areas(p, t)),
    "region IoP": lambda p, t: region_iop(*region_areas(p, t)[:2]),
    "region IoT": lambda p, t: region_iot(*region_areas(p, t)[::2]),
    "precision of names": lambda p, t: classification.precision(*_names(p, t)[:2]),
    "recall of names": lambda p, t: classification.recall(*_names(p, t)[::2]),
    "F1 of names": lambda p, t: classification.f1(*_names(p, t)),
}


def _table():
    """(figure, case) -> value, of the Markdown table in the docstring."""
    lines = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in cxrjax.metrics.__doc__.splitlines()
        if line.startswith("|")
    ]
    header, _, *rows = lines
    values = {"undefined": np.nan, "0": 0.0, "1": 1.0}
    return {
        (row[0], case): values[cell]
        for row in rows
        for case, cell in zip(header[1:], row[1:], strict=True)
    }


def test_table_is_complete():
    assert {name for name, _ in _table()} == set(FIGURES)
    assert {case for _, case in _table()} == set(CASES)


@pytest.mark.parametrize(("name", "case"), list(_table()))
def test_value_is_as_tabled(name, case):
    np.testing.assert_array_equal(float(FIGURES[name](*CASES[case])), _table()[name, case])
