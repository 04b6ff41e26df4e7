import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.codecs import CODECS
from cxrjax.images.geometry import letterbox_geometry

CODEC = CODECS["vindr_px"]
HEIGHT, WIDTH = 3000, 2000
BOX = np.array([691 / WIDTH, 1375 / HEIGHT, 1653 / WIDTH, 1831 / HEIGHT])


def read(text, strict):
    boxes, failures = CODEC.decode(text, HEIGHT, WIDTH, strict=strict)
    return boxes, [failure.category for failure in failures]


def test_the_papers_example():
    text = "The Lung Opacity is located at <loc_691_1375_1653_1831>. Reasoning: see <loc_1_2_30_40>"
    for strict in (True, False):
        boxes, failures = read(text, strict)
        np.testing.assert_allclose(boxes[0], BOX, rtol=1e-6)
        assert len(boxes) == 2
        assert failures == []
    assert CODEC.encode(BOX[None], HEIGHT, WIDTH) == "<loc_691_1375_1653_1831>"


@settings(deadline=None)
@given(st.data(), st.integers(1, 4000), st.integers(1, 4000))
def test_pixels_survive_float32_exactly(data, height, width):
    x = sorted(data.draw(st.lists(st.integers(0, width), min_size=2, max_size=2, unique=True)))
    y = sorted(data.draw(st.lists(st.integers(0, height), min_size=2, max_size=2, unique=True)))
    text = f"<loc_{x[0]}_{y[0]}_{x[1]}_{y[1]}>"
    boxes = CODEC.decode(text, height, width, strict=True).boxes
    assert CODEC.encode(boxes, height, width) == text


def test_geometry_plays_no_part():
    geometry = letterbox_geometry(HEIGHT, WIDTH, 224, 224)
    assert CODEC.encode(BOX[None], HEIGHT, WIDTH, geometry) == "<loc_691_1375_1653_1831>"
    boxes = CODEC.decode("<loc_691_1375_1653_1831>", HEIGHT, WIDTH, geometry).boxes
    np.testing.assert_allclose(boxes[0], BOX, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "clipped"),
    [
        ("<loc_1000_600_2001_900>", [0.5, 0.2, 1.0, 0.3]),
        ("<loc_-3_600_1000_900>", [0.0, 0.2, 0.5, 0.3]),
        ("<loc_1000_2400_1500_3500>", [0.5, 0.8, 0.75, 1.0]),
    ],
)
def test_mostly_on_the_image_is_clipped_when_lenient(text, clipped):
    boxes, failed = read(text, strict=False)
    np.testing.assert_allclose(boxes, [clipped], atol=1e-6)
    assert failed == []
    assert read(text, strict=True)[1] == ["out_of_range"]


def test_the_far_edges_are_on_the_image():
    boxes, failed = read(f"<loc_0_0_{WIDTH}_{HEIGHT}>", strict=True)
    assert boxes.tolist() == [[0, 0, 1, 1]]
    assert failed == []
    assert CODEC.encode(boxes, HEIGHT, WIDTH) == f"<loc_0_0_{WIDTH}_{HEIGHT}>"


def test_failures_say_what_and_where():
    text = "Left <loc_1_2_3>, right <loc_5_5_5_5>."
    failures = CODEC.decode(text, HEIGHT, WIDTH).failures
    assert [(f.text, f.start) for f in failures] == [("<loc_1_2_3>", 5), ("<loc_5_5_5_5>", 24)]
