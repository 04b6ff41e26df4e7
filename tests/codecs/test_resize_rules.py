"""Boxes go from pixels of the original to what a model is told, and back, at any size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.boxes import iou
from cxrjax.codecs import get_codec
from cxrjax.codecs.resize_rules import RESIZE_RULES

# Beside the published ones, inputs that are not square, and several of them.
RULES = RESIZE_RULES | {
    "qwen2.5_vl_portrait": RESIZE_RULES["qwen2.5_vl"].on_grids((560, 448)),
    "qwen2.5_vl_square": RESIZE_RULES["qwen2.5_vl"].on_grids((560, 560)),
    "qwen3_vl_landscape": RESIZE_RULES["qwen3_vl"].on_grids((448, 1024)),
    "qwen2.5_vl_grids": RESIZE_RULES["qwen2.5_vl"].on_grids((448, 448), (560, 448), (448, 560)),
    "qwen3_vl_grids": RESIZE_RULES["qwen3_vl"].on_grids((512, 512), (576, 448), (448, 576)),
}
# Seventeen families share the code that is tried.
unhurried = settings(max_examples=40)
each_family = pytest.mark.parametrize("family", RULES)
sides = st.integers(1, 5000)
fractions = st.tuples(*[st.floats(0, 1)] * 4)


def _box(fraction, height, width):
    x = sorted((fraction[0] * width, fraction[2] * width))
    y = sorted((fraction[1] * height, fraction[3] * height))
    return np.array([[x[0], y[0], x[1], y[1]]])


def _shown(height, width):
    """Letterboxes of anything thinner show nothing."""
    return max(height, width) <= 100 * min(height, width)


@each_family
def test_its_codec_is_found_by_name(family):
    assert get_codec(RULES[family].codec).name == RULES[family].codec


@each_family
@unhurried
@given(height=sides, width=sides, fraction=fractions)
def test_a_box_round_trips_at_any_size_and_aspect(family, height, width, fraction):
    rule = RULES[family]
    box = _box(fraction, height, width)
    told = rule.told(box, height, width)
    again = rule.original(told, height, width)
    np.testing.assert_allclose(again, box, atol=1e-3 * max(box.max(), 1))
    if not _shown(height, width):
        return
    # Whole numbers, which are all that a model writes, are off by half a step at most.
    back = rule.original(np.round(told), height, width)
    assert (np.abs(back - box) <= (0.5 + 1e-3) * rule.step(height, width) + 1e-3).all()


@each_family
@unhurried
@given(height=sides, width=sides, fraction=fractions)
def test_numbers_name_the_place_that_the_model_sees(family, height, width, fraction):
    """The image's way into the input and the numbers' way agree within a pixel of the input."""
    rule = RULES[family]
    if not _shown(height, width):
        return
    box = _box(fraction, height, width)
    input_height, input_width = rule.input_size(height, width)
    input_size = np.array([input_width, input_height] * 2)
    size = np.array([width, height] * 2)
    seen = np.asarray(rule.geometry(height, width).apply(box / size)) * input_size
    told = rule.told(box, height, width)
    if family == "paligemma":
        named = (told + 0.5) / 1024 * input_size
    elif family.startswith("qwen2.5_vl"):
        named = told
    else:  # steps of the padded square, or of the image, which fills the input
        named = told / rule.frame.largest(height, width).max() * input_size
    # The letterbox has whole pixels on each side, the square whole ones of the original.
    padded = 1.001 + 0.5 * max(input_height / height, input_width / width)
    assert (np.abs(named - seen) <= (padded if rule.placing == "letterbox" else 1e-2)).all()


@each_family
@pytest.mark.parametrize("size", [(3072, 2540), (2048, 500), (333, 1999), (64, 64)])
def test_the_family_s_codec_writes_these_numbers(family, size):
    rule, (height, width) = RULES[family], size
    box = np.array([[0.2 * width, 0.1 * height, 0.7 * width, 0.8 * height]])
    of_image = (box / np.array([width, height] * 2)).astype(np.float32)
    codec, geometry = get_codec(rule.codec), rule.geometry(height, width)
    text = codec.encode(of_image, height, width, geometry)
    found = codec.decode(text, height, width, geometry).boxes
    by_rule = rule.original(np.round(rule.told(box, height, width)), height, width)
    by_rule = (by_rule / np.array([width, height] * 2)).astype(np.float32)
    step = rule.step(height, width) / np.array([width, height] * 2)
    assert (np.abs(found - by_rule) <= step + 1e-4).all() and iou(found, of_image)[0] > 0.9
