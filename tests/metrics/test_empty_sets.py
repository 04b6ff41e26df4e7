"""The table of docs/protocols.md, row by row, computed by the functions themselves."""

from pathlib import Path

import numpy as np

from cxrjax.metrics import classification, detection, localization, ranking

NONE = np.zeros((0, 4))
HERE, THERE = np.array([[0.1, 0.1, 0.3, 0.3]]), np.array([[0.6, 0.6, 0.9, 0.9]])
CASES = {
    "none, none true": (NONE, NONE),
    "none, some true": (NONE, HERE),
    "some, none true": (HERE, NONE),
    "no overlap": (THERE, HERE),
}


def _overlaps(predicted, truth):
    sides = ([(boxes, np.zeros(len(boxes), np.int64))] for boxes in (predicted, truth))
    return detection.find_overlaps(*map(detection.join_images, sides))


def _counts(predicted, truth):
    hits = detection.match_one_to_one(_overlaps(predicted, truth), (0.3,))[0].sum()
    return hits, len(predicted) - hits, len(truth) - hits


def _any_precision(predicted, truth):
    hits = (_overlaps(predicted, truth).best_of_predicted > 0.3 + detection.TOLERANCE).sum()
    return classification.ratio(hits, len(predicted))


def _any_recall(predicted, truth):
    found = (_overlaps(predicted, truth).best_of_truth > 0.3 + detection.TOLERANCE).sum()
    return classification.ratio(found, len(truth))


def _any_f1(predicted, truth):
    figures = _any_precision(predicted, truth), _any_recall(predicted, truth)
    return classification.harmonic_mean(*figures)


def _mean_iou_of_hits(predicted, truth):
    overlaps = _overlaps(predicted, truth)
    (pairs,) = detection.match_one_to_one(overlaps, (0.3,))
    return detection.mean_iou_of_hits(overlaps.iou[pairs].sum(), pairs.sum(), 0.3)


def _well_localized(predicted, truth):
    return localization.localize(_overlaps(predicted, truth)).acceptable.mean()


def _mean_iou_of_all(predicted, truth):
    placed = localization.localize(_overlaps(predicted, truth))
    return classification.ratio(placed.iou_sum.sum(), placed.predictions.sum())


def _duplicates(predicted, truth):
    boxes = _overlaps(predicted, truth).predicted
    return classification.ratio(detection.find_duplicates(boxes).sum(), len(boxes))


def _scored(predicted, truth):
    return _overlaps(predicted, truth), np.linspace(1, 0.5, len(predicted))


def _voc(predicted, truth):
    return ranking.voc_average_precision(ranking.voc_rankings(*_scored(predicted, truth), 1))[0]


def _coco(predicted, truth):
    rankings = ranking.coco_rankings(*_scored(predicted, truth), 1)
    return ranking.coco_average_precision(rankings).mean()


def _froc(predicted, truth):
    (curve,) = ranking.froc_ranking(*_scored(predicted, truth), 0.3).curves()
    (sensitivity,) = set(np.nan_to_num(ranking.sensitivity_at(curve, 1), nan=-1).tolist())
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
    "any-overlap F1": _any_f1,
    "mean IoU of true positives": _mean_iou_of_hits,
    "share of images well localized": _well_localized,
    "mean IoU of all predictions": _mean_iou_of_all,
    "share of duplicates": _duplicates,
    "VOC AP": _voc,
    "COCO AP": _coco,
    "FROC sensitivity": _froc,
    "V-score, strict": lambda p, t: localization.v_score(p, t).strict,
    "V-score, lenient": lambda p, t: localization.v_score(p, t).lenient,
    "V-score, truth": lambda p, t: localization.v_score(p, t).truth,
    "region IoU": lambda p, t: localization.region_iou(*localization.region_areas(p, t)),
    "region IoP": lambda p, t: localization.region_iop(*localization.region_areas(p, t)[:2]),
    "region IoT": lambda p, t: localization.region_iot(*localization.region_areas(p, t)[::2]),
    "precision of names": lambda p, t: classification.precision(*_names(p, t)[:2]),
    "recall of names": lambda p, t: classification.recall(*_names(p, t)[::2]),
    "F1 of names": lambda p, t: classification.f1(*_names(p, t)),
}


def _table():
    """(figure, case) -> value, of the page's table."""
    page = (Path(__file__).parents[2] / "docs/protocols.md").read_text("utf-8")
    lines = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in page.split("## Empty sides")[1].split("\n## ")[0].splitlines()
        if line.startswith("|")
    ]
    header, _, *rows = lines
    values = {"undefined": np.nan, "0": 0.0, "1": 1.0}
    return {
        (row[0], case): values[cell]
        for row in rows
        for case, cell in zip(header[1:], row[1:], strict=True)
    }


def test_table_is_complete_and_every_value_as_tabled(subtests):
    assert {name for name, _ in _table()} == set(FIGURES)
    assert {case for _, case in _table()} == set(CASES)
    for (name, case), value in _table().items():
        with subtests.test(name, case=case):
            np.testing.assert_array_equal(float(FIGURES[name](*CASES[case])), value)
