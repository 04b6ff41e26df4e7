"""BERTScore and mean average precision, against torchmetrics."""

import sys
import types

import numpy as np
import pytest

from cxrjax.evaluation.text_scores.bert_score import BertScorer, BertScoreSettings
from cxrjax.metrics.detection import ImageBoxes, find_overlaps
from cxrjax.metrics.ranking import COCO_THRESHOLDS, coco_average_precision, pycocotools_rankings

pytestmark = pytest.mark.parity

_CLASSES, _IMAGES = 3, 40


def _boxes(rng, truth=None):
    """(boxes, classes, images): true ones, or others near them, some of another class.

    In whole pixels, which torchmetrics' float32 holds exactly.
    """
    if truth is None:
        images = np.sort(rng.integers(0, _IMAGES, 120))
        corners = rng.uniform(0, 300, (120, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(20, 180, (120, 2))], axis=1)
        return boxes.round(), rng.integers(0, _CLASSES, 120), images
    boxes, classes, images = truth
    kept = np.sort(rng.choice(len(boxes), 150))
    moved = boxes[kept] + rng.normal(0, 10, (150, 4))
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 5)
    other = rng.random(150) < 0.2
    return (
        moved.round(),
        np.where(other, rng.integers(0, _CLASSES, 150), classes[kept]),
        images[kept],
    )


def _to_width_and_height(boxes, in_fmt, out_fmt):
    assert (in_fmt, out_fmt) == ("xyxy", "xywh")
    return boxes - np.pad(boxes[:, :2].numpy(), ((0, 0), (2, 0)))


@pytest.mark.parametrize("seed", range(3))
def test_mean_average_precision_is_torchmetrics(seed, monkeypatch):
    import torch
    from torchmetrics.detection import mean_ap

    # It asks for torchvision, a large package, of which it takes this one function of four lines.
    monkeypatch.setattr(mean_ap, "_TORCHVISION_AVAILABLE", True)
    ops = types.SimpleNamespace(box_convert=_to_width_and_height)
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(ops=ops))
    monkeypatch.setitem(sys.modules, "torchvision.ops", ops)
    rng = np.random.default_rng(seed)
    truth = _boxes(rng)
    predicted = _boxes(rng, truth)
    scores = rng.permutation(150) / 150
    overlaps = find_overlaps(ImageBoxes(*predicted, _IMAGES), ImageBoxes(*truth, _IMAGES))
    ours = coco_average_precision(pycocotools_rankings(overlaps, scores, _CLASSES))
    sides = []
    for boxes, classes, images in (predicted, truth):
        sides.append(
            [
                {
                    "boxes": torch.tensor(boxes[images == image]),
                    "labels": torch.tensor(classes[images == image]),
                    "scores": torch.tensor(scores[images == image] if len(boxes) == 150 else []),
                }
                for image in range(_IMAGES)
            ]
        )
    metric = mean_ap.MeanAveragePrecision(
        box_format="xyxy",
        class_metrics=True,
        # Its own are float32, which differ from pycocotools' where a recall is one of them.
        iou_thresholds=list(COCO_THRESHOLDS),
        rec_thresholds=np.linspace(0, 1, 101).tolist(),
    )
    metric.update(*sides)
    theirs = metric.compute()
    assert ours.mean() == pytest.approx(float(theirs["map"]), abs=1e-6)
    assert ours[0].mean() == pytest.approx(float(theirs["map_50"]), abs=1e-6)
    assert ours[5].mean() == pytest.approx(float(theirs["map_75"]), abs=1e-6)
    assert ours.mean(axis=0) == pytest.approx(theirs["map_per_class"].numpy(), abs=1e-6)


def test_bert_score_is_torchmetrics(bert_folder):
    from torchmetrics.functional.text import bert_score

    pairs = [
        ("there is a small effusion .", "there is no effusion ."),
        ("no effusion , lung clear", "heart large , lung clear and fluid left"),
        ("heart large .", "heart large ."),
    ]
    folder = bert_folder(sorted({word for pair in pairs for text in pair for word in text.split()}))
    found = BertScorer(BertScoreSettings(folder, 2, None))(pairs)
    candidates, references = map(list, zip(*pairs, strict=True))
    # One pair at a time: in a batch torchmetrics scores them in the order of their lengths.
    for row, (said, true) in enumerate(zip(candidates, references, strict=True)):
        theirs = bert_score(
            [said], [true], model_name_or_path=str(folder), num_layers=2, truncation=True
        )
        expected = [float(theirs[name]) for name in ("precision", "recall", "f1")]
        assert list(found[row]) == pytest.approx(expected, abs=1e-5), pairs[row]
