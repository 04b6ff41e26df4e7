import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cxrjax.codecs import CODECS
from cxrjax.codecs.tokens import NUM_BINS, PaliGemma, bin_centers
from cxrjax.errors import UserError
from cxrjax.images.geometry import Geometry, letterbox_geometry
from tests.codecs.test_codec_readings import TABLES

CODEC = PaliGemma()


def bins_of(boxes):
    """The bins that are written for boxes of the model's input, as x_min, y_min, x_max, y_max."""
    tokens = re.findall(r"<loc([0-9]{4})>", CODEC.encode(boxes, 1, 1))
    return np.array(tokens, int).reshape(-1, 4)[:, [1, 0, 3, 2]]


def test_y_comes_first():
    text = CODEC.encode(np.array([[456.5, 123.5, 1023.5, 789.5]]) / 1024, 1, 1)
    assert text == "<loc0123><loc0456><loc0789><loc1023>"
    tokens = [int(text[k + 4 : k + 8]) for k in range(0, 36, 9)]
    canonical = [456, 123, 1023, 789]
    assert tokens == [canonical[k] for k in CODEC.coordinate_order]
    assert CODECS["paligemma"].coordinate_order == (1, 0, 3, 2)


def test_bin_centers_are_what_tokens_are_read_as():
    centers = bin_centers()
    assert centers.shape == (NUM_BINS,)
    assert centers.dtype == np.float32
    assert centers[0] == 0.5 / 1024
    assert centers[-1] == 1023.5 / 1024
    boxes = CODEC.decode("<loc0123><loc0456><loc0789><loc1023>", 10, 10, strict=True).boxes
    np.testing.assert_array_equal(boxes[0], centers[[456, 123, 1023, 789]])
    np.testing.assert_array_equal(CODEC.from_bins(np.arange(1024)), centers)


def test_the_far_edge_is_not_1024():
    assert CODEC.encode(np.array([[0, 0, 1, 1]]), 7, 7) == "<loc0000><loc0000><loc1023><loc1023>"


@given(st.lists(st.integers(0, 1024), min_size=4, max_size=4, unique=True))
def test_a_bin_holds_its_lower_edge(edges):
    x = sorted(edges[:2])
    y = sorted(edges[2:])
    (bins,) = bins_of(np.array([[x[0], y[0], x[1], y[1]]]) / 1024)
    if max(x[1] - x[0], y[1] - y[0]) > 1 and min(x[1] - x[0], y[1] - y[0]) > 1:
        np.testing.assert_array_equal(bins, np.minimum([x[0], y[0], x[1], y[1]], 1023))


@given(hnp.arrays(np.int32, (5, 4), elements=st.integers(0, 1023)))
def test_bins_to_fractions_to_bins(bins):
    bins = np.concatenate(
        [np.minimum(bins[:, :2], bins[:, 2:]), np.maximum(bins[:, :2], bins[:, 2:])], axis=1
    )
    bins = bins[(bins[:, :2] < bins[:, 2:]).all(axis=1)]
    np.testing.assert_array_equal(bins_of(CODEC.from_bins(bins)), bins)


def test_a_box_within_a_bin_gets_the_one_it_leans_to():
    for low, high, expected in TABLES["thin"]:
        (bins,) = bins_of(np.array([[low, 100, high, 200]]) / 1024)
        assert [*bins[[0, 2]]] == expected


def test_geometry_places_the_bins():
    """A portrait image in a square: the sides are margin."""
    geometry = letterbox_geometry(200, 100, 64, 64)
    box = np.array([[0.0, 0.25, 0.5, 0.75]])
    text = CODEC.encode(box, 200, 100, geometry)
    assert text == "<loc0256><loc0256><loc0768><loc0512>"
    decoded = CODEC.decode(text, 200, 100, geometry, strict=True)
    assert np.abs(decoded.boxes - box).max() <= 1 / 1024 + 1e-6  # half a bin, twice as wide in x
    assert decoded.failures == []


def test_boxes_in_the_margin(subtests):
    geometry = letterbox_geometry(200, 100, 64, 64)
    for x_min, x_max, *outcomes in TABLES["margins"]:
        text = f"<loc0100><loc{x_min:04d}><loc0900><loc{x_max:04d}>"
        on_the_image = np.clip((np.array([x_min, x_max]) + 0.5 - 256) / 512, 0, 1)
        for mode, expected in zip((True, False), outcomes, strict=True):
            with subtests.test(text, strict=mode):
                boxes, failures = CODEC.decode(text, 200, 100, geometry, strict=mode)
                assert [failure.category for failure in failures] == expected.split()
                assert len(boxes) == (not expected)
                for box in boxes:
                    np.testing.assert_allclose(box[[0, 2]], on_the_image, atol=1e-6)


def test_a_box_off_the_models_input_is_refused():
    right_half = Geometry(scale_x=2.0, offset_x=-1.0)
    with pytest.raises(UserError, match="model's input"):
        CODEC.encode(np.array([[0.1, 0.1, 0.4, 0.4]]), 100, 100, right_half)
    assert CODEC.encode(np.array([[0.1, 0.0, 0.75, 1.0]]), 100, 100, right_half) == (
        "<loc0000><loc0000><loc1023><loc0512>"
    )
