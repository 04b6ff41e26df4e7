import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cxrjax.codecs import CODECS
from cxrjax.codecs.tokens import NUM_BINS, PaliGemma, bin_centers
from cxrjax.errors import UserError
from cxrjax.images.geometry import Geometry, letterbox_geometry

CODEC = PaliGemma()
A = "<loc0100><loc0200><loc0300><loc0400>"
B = "<loc0500><loc0600><loc0700><loc0800>"
BOX_A = (np.array([200, 100, 400, 300]) + 0.5) / 1024
BOX_B = (np.array([600, 500, 800, 700]) + 0.5) / 1024

unhurried = settings(deadline=None)


def bins_of(boxes):
    """The bins that are written for boxes of the model's input, as x_min, y_min, x_max, y_max."""
    tokens = re.findall(r"<loc([0-9]{4})>", CODEC.encode(boxes, 1, 1))
    return np.array(tokens, int).reshape(-1, 4)[:, [1, 0, 3, 2]]


def read(text, strict):
    boxes, failures = CODEC.decode(text, 1000, 1000, strict=strict)
    return boxes, [failure.category for failure in failures]


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


@unhurried
@given(st.lists(st.integers(0, 1024), min_size=4, max_size=4, unique=True))
def test_a_bin_holds_its_lower_edge(edges):
    x = sorted(edges[:2])
    y = sorted(edges[2:])
    (bins,) = bins_of(np.array([[x[0], y[0], x[1], y[1]]]) / 1024)
    if max(x[1] - x[0], y[1] - y[0]) > 1 and min(x[1] - x[0], y[1] - y[0]) > 1:
        np.testing.assert_array_equal(bins, np.minimum([x[0], y[0], x[1], y[1]], 1023))


@unhurried
@given(hnp.arrays(np.int32, (5, 4), elements=st.integers(0, 1023)))
def test_bins_to_fractions_to_bins(bins):
    bins = np.concatenate(
        [np.minimum(bins[:, :2], bins[:, 2:]), np.maximum(bins[:, :2], bins[:, 2:])], axis=1
    )
    bins = bins[(bins[:, :2] < bins[:, 2:]).all(axis=1)]
    np.testing.assert_array_equal(bins_of(CODEC.from_bins(bins)), bins)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (10.1, 10.3, (9, 10)),
        (10.6, 10.9, (10, 11)),
        (0.1, 0.2, (0, 1)),
        (1023.6, 1024, (1022, 1023)),
    ],
)
def test_a_box_within_a_bin_gets_the_one_it_leans_to(low, high, expected):
    (bins,) = bins_of(np.array([[low, 100, high, 200]]) / 1024)
    assert tuple(bins[[0, 2]]) == expected


def test_geometry_places_the_bins():
    """A portrait image in a square: the sides are margin."""
    geometry = letterbox_geometry(200, 100, 64, 64)
    box = np.array([[0.0, 0.25, 0.5, 0.75]])
    text = CODEC.encode(box, 200, 100, geometry)
    assert text == "<loc0256><loc0256><loc0768><loc0512>"
    decoded = CODEC.decode(text, 200, 100, geometry, strict=True)
    assert np.abs(decoded.boxes - box).max() <= 1 / 1024 + 1e-6  # half a bin, twice as wide in x
    assert decoded.failures == []


@pytest.mark.parametrize(
    ("x_min", "x_max", "strict", "lenient"),
    [
        (255, 400, None, [0.0, (400.5 - 256) / 512]),  # half a bin off
        (254, 400, "out_of_range", [0.0, (400.5 - 256) / 512]),
        (200, 400, "out_of_range", [0.0, (400.5 - 256) / 512]),
        (170, 345, "out_of_range", [0.0, (345.5 - 256) / 512]),  # 51% on the image
        (160, 340, "out_of_range", None),  # 47%
        (0, 200, "out_of_range", None),
        (600, 768, None, [(600.5 - 256) / 512, 1.0]),  # half a bin off
        (600, 769, "out_of_range", [(600.5 - 256) / 512, 1.0]),
    ],
)
def test_boxes_in_the_margin(x_min, x_max, strict, lenient):
    geometry = letterbox_geometry(200, 100, 64, 64)
    text = f"<loc0100><loc{x_min:04d}><loc0900><loc{x_max:04d}>"
    for mode, expected in ((True, strict), (False, None if lenient else "out_of_range")):
        boxes, failures = CODEC.decode(text, 200, 100, geometry, strict=mode)
        assert [failure.category for failure in failures] == ([expected] if expected else [])
        if expected is None:
            np.testing.assert_allclose(boxes[0, [0, 2]], lenient, atol=1e-6)


def test_a_box_off_the_models_input_is_refused():
    right_half = Geometry(scale_x=2.0, offset_x=-1.0)
    with pytest.raises(UserError, match="model's input"):
        CODEC.encode(np.array([[0.1, 0.1, 0.4, 0.4]]), 100, 100, right_half)
    assert CODEC.encode(np.array([[0.1, 0.0, 0.75, 1.0]]), 100, 100, right_half) == (
        "<loc0000><loc0000><loc1023><loc0512>"
    )
