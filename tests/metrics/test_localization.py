"""Table 6's parts on one image."""

import numpy as np
import pytest

from cxrjax.metrics.localization import Localization, localize

TRUTH = np.array([[0.0, 0.0, 0.4, 0.4], [0.6, 0.6, 1.0, 1.0]])
NONE = np.zeros((0, 4))


def test_identity_is_the_maximum():
    assert localize(TRUTH, TRUTH) == Localization(True, True, 2.0, 2)


def test_every_prediction_counts_with_its_best_box():
    # Half of the first true box, and something on nothing.
    predicted = np.array([[0.0, 0.0, 0.4, 0.2], [0.5, 0.0, 0.6, 0.1]])
    good, acceptable, iou_sum, predictions = localize(predicted, TRUTH)
    assert (good, acceptable, predictions) == (False, True, 2)  # IoU 0.5 is not above 0.5
    assert iou_sum == pytest.approx(0.5)


def test_empty_sides():
    assert localize(NONE, NONE) == Localization(False, False, 0.0, 0)
    assert localize(NONE, TRUTH) == Localization(False, False, 0.0, 0)
    # A box on an image without any has overlap 0 with the truth, and is a prediction all the same.
    assert localize(TRUTH, NONE) == Localization(False, False, 0.0, 2)


@pytest.mark.parametrize("scale", [0.01, 3000.0])
def test_scale_does_not_matter(scale):
    predicted = np.array([[0.05, 0.0, 0.4, 0.3]])
    there = localize(predicted * scale, TRUTH * scale)
    np.testing.assert_allclose(there, localize(predicted, TRUTH))
