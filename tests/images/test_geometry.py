import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cxrjax.images.geometry import (
    IDENTITY,
    Geometry,
    is_resize,
    letterbox,
    letterbox_geometry,
    resize,
)
from tests.papers.cases import cases

EPS = np.finfo(np.float32).eps

sides = st.integers(1, 4000)
fractions = st.floats(0, 1, width=32)
boxes = st.lists(st.tuples(fractions, fractions, fractions, fractions), min_size=1, max_size=5)
geometries = st.builds(
    Geometry,
    scale_x=st.floats(0.05, 20),
    scale_y=st.floats(0.05, 20),
    offset_x=st.floats(-5, 5),
    offset_y=st.floats(-5, 5),
)


def there_and_back_tolerance(geometry: Geometry) -> float:
    # Each of the two steps rounds numbers as large as offset + scale; going back divides by scale.
    largest = max(
        (abs(offset) + scale) / scale
        for offset, scale in (
            (geometry.offset_x, geometry.scale_x),
            (geometry.offset_y, geometry.scale_y),
        )
    )
    return 4 * EPS * (1 + largest)


@given(geometries, boxes)
def test_invert_undoes_apply(geometry, box_list):
    original = np.array(box_list, np.float32)
    back = geometry.invert(geometry.apply(original))
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, original, rtol=0, atol=there_and_back_tolerance(geometry))


@given(sides, sides, st.integers(1, 1000), st.integers(1, 1000), boxes)
def test_letterbox_inverse_is_exact_to_rounding(height, width, out_height, out_width, box_list):
    geometry = letterbox_geometry(height, width, out_height, out_width)
    original = np.array(box_list, np.float32)
    inside = geometry.apply(original)
    assert (inside >= -EPS).all() and (inside <= 1 + EPS).all()
    np.testing.assert_allclose(
        geometry.invert(inside), original, rtol=0, atol=there_and_back_tolerance(geometry)
    )


@given(sides, sides, st.sampled_from((2, 4, 8)), st.integers(1, 1000), st.integers(1, 1000))
def test_an_exact_reduction_letterboxes_alike(height, width, factor, out_height, out_width):
    whole = letterbox_geometry(height * factor, width * factor, out_height, out_width)
    assert letterbox_geometry(height, width, out_height, out_width) == whole


@given(
    st.integers(300, 4000),
    st.integers(300, 4000),
    st.integers(300, 2048),
    st.sampled_from((round, math.floor, math.ceil)),
)
def test_a_resized_copy_is_known_and_letterboxes_alike(height, width, long_side, rounding):
    scale = long_side / max(height, width)
    copy = max(1, rounding(height * scale)), max(1, rounding(width * scale))
    assert is_resize(copy, (height, width)) and is_resize((height, width), (height, width))
    whole, part = (letterbox_geometry(*size, 224, 224) for size in ((height, width), copy))
    # A pixel of the copy, and the output's own rounding to whole pixels.
    bound = 1 / min(copy) + 1 / 224
    np.testing.assert_allclose(dataclasses.astuple(part), dataclasses.astuple(whole), atol=bound)


@cases("size, original")
def test_other_proportions_are_no_resize(size, original):
    assert not is_resize(size, original)


@given(sides, sides, st.integers(1, 1000), st.integers(1, 1000))
def test_letterbox_fills_one_side_and_keeps_the_aspect_to_a_pixel(height, width, out_h, out_w):
    geometry = letterbox_geometry(height, width, out_h, out_w)
    assert max(geometry.scale_x, geometry.scale_y) == 1
    scale = min(out_h / height, out_w / width)
    for covered, ideal in (
        (geometry.scale_y * out_h, height * scale),
        (geometry.scale_x * out_w, width * scale),
    ):
        covered = round(covered, 6)
        assert abs(covered - ideal) <= 0.5 + 1e-6 or (covered == 1 and ideal < 1)


def test_boxes_in_the_padding_and_arrays_of_jax_come_back():
    geometry = letterbox_geometry(100, 200, 200, 200)
    back = geometry.invert(np.array([0.1, 0.0, 0.5, 0.1], np.float32))
    assert back[1] < 0 and back[3] < 0
    jnp = pytest.importorskip("jax.numpy")
    geometry = letterbox_geometry(300, 200, 224, 224)
    original = np.array([[0.1, 0.2, 0.7, 0.9]], np.float32)
    moved = geometry.apply(jnp.asarray(original))
    assert isinstance(moved, jnp.ndarray) and moved.dtype == jnp.float32
    np.testing.assert_allclose(moved, geometry.apply(original), atol=EPS)
    np.testing.assert_allclose(geometry.invert(moved), original, atol=8 * EPS)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_no_mirror_and_no_collapse(scale):
    with pytest.raises(ValueError, match="above 0"):
        Geometry(scale_x=scale)


def edges(profile):
    """Where a profile of pixel values rises and falls through half of 255, in pixels."""
    centres = np.arange(len(profile)) + 0.5
    bright = profile > 127.5
    first, last = np.flatnonzero(bright)[[0, -1]]

    def crossing(i, j):
        a, b = float(profile[i]), float(profile[j])
        return centres[i] + (127.5 - a) / (b - a) * (centres[j] - centres[i])

    return crossing(first - 1, first), crossing(last, last + 1)


@st.composite
def drawn_rectangles(draw):
    """An image size, an output size, and a rectangle that stays visible and off the border."""
    height, width = draw(st.integers(40, 500)), draw(st.integers(40, 500))
    out = draw(st.integers(40, 300)), draw(st.integers(40, 300))
    x = sorted(draw(st.lists(st.integers(0, width), min_size=2, max_size=2, unique=True)))
    y = sorted(draw(st.lists(st.integers(0, height), min_size=2, max_size=2, unique=True)))
    return height, width, out, (x[0], y[0], x[1], y[1])


@pytest.mark.parametrize("transform", [resize, letterbox])
@pytest.mark.parametrize("channels", [(), (3,)])
@settings(max_examples=60)
@given(case=drawn_rectangles())
def test_a_drawn_rectangle_lands_where_apply_says(transform, channels, case):
    height, width, (out_height, out_width), (x0, y0, x1, y1) = case
    image = np.zeros((height, width, *channels), np.uint8)
    image[y0:y1, x0:x1] = 255
    out, geometry = transform(image, out_height, out_width)
    assert out.shape == (out_height, out_width, *channels) and out.dtype == np.uint8

    box = np.array([x0 / width, y0 / height, x1 / width, y1 / height], np.float32)
    expected = geometry.apply(box) * np.array([out_width, out_height] * 2)
    content = geometry.apply(np.array([0, 0, 1, 1], np.float32))
    content = content * np.array([out_width, out_height] * 2)
    # The rectangle and its surroundings must be wide enough to have edges at all, in the output
    # and, where that is finer, in the input.
    gap_x = 5 * max(1, out_width * geometry.scale_x / width)
    gap_y = 5 * max(1, out_height * geometry.scale_y / height)
    assume(expected[2] - expected[0] > gap_x and expected[3] - expected[1] > gap_y)
    assume((np.abs(expected - content) > [gap_x, gap_y] * 2).all())

    plane = out[..., 0] if channels else out
    row = plane[int((expected[1] + expected[3]) / 2)]
    column = plane[:, int((expected[0] + expected[2]) / 2)]
    # An edge between two pixels can be told to about a tenth of the coarser pixel.
    slack_x, slack_y = 0.05 * gap_x, 0.05 * gap_y
    np.testing.assert_allclose(edges(row), expected[[0, 2]], rtol=0, atol=slack_x)
    np.testing.assert_allclose(edges(column), expected[[1, 3]], rtol=0, atol=slack_y)


def test_letterbox_centres_on_black_antialiased():
    out, _ = letterbox(np.full((50, 100, 3), 200, np.uint8), 80, 80)
    assert (out[:20] == 0).all() and (out[60:] == 0).all()
    assert (out[20:60] == 200).all()
    out, geometry = letterbox(np.full((1, 3000), 255, np.uint8), 20, 20)
    assert (out > 0).any(axis=1).sum() == 1
    assert geometry.scale_y == 1 / 20
    image = np.zeros((31, 57, 3), np.uint8)
    assert resize(image, 24, 18)[1] == IDENTITY
    assert letterbox(image, 24, 18)[1] == letterbox_geometry(31, 57, 24, 18)
    stripes = np.zeros((600, 600), np.uint8)
    stripes[:, ::2] = 255
    out, _ = resize(stripes, 224, 224)
    # Picking pixels would leave stripes of 0 and 255.
    assert np.abs(out.astype(int) - 127).max() < 20
