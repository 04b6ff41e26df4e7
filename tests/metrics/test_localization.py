"""Table 6's parts of each image."""

import numpy as np
import pytest

from cxrjax.metrics.detection import find_overlaps, join_images
from cxrjax.metrics.localization import localize

TRUTH = np.array([[0.0, 0.0, 0.4, 0.4], [0.6, 0.6, 1.0, 1.0]])
NONE = np.zeros((0, 4))


def _localize(*images):
    sides = (
        join_images((boxes, np.zeros(len(boxes), np.int64)) for boxes in side)
        for side in zip(*images, strict=True)
    )
    return [part.tolist() for part in localize(find_overlaps(*sides))]


def test_identity_is_the_maximum():
    assert _localize((TRUTH, TRUTH)) == [[True], [True], [2.0], [2]]


def test_every_prediction_counts_with_its_best_box():
    # Half of the first true box, and something on nothing.
    predicted = np.array([[0.0, 0.0, 0.4, 0.2], [0.5, 0.0, 0.6, 0.1]])
    good, acceptable, iou_sum, predictions = _localize((predicted, TRUTH))
    assert (good, acceptable, predictions) == ([False], [True], [2])  # IoU 0.5 is not above 0.5
    assert iou_sum == pytest.approx([0.5])


def test_empty_sides():
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
