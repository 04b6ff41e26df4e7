import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.images.geometry import letterbox_geometry

CODEC = CODECS["radvlm"]
HEIGHT, WIDTH = 3000, 2000
TEXT = "[0.55, 0.45, 0.70, 0.56]"
BOX = np.array([0.55, 0.45, 0.70, 0.56])


def read(text, strict):
    boxes, failures = CODEC.decode(text, HEIGHT, WIDTH, strict=strict)
    return boxes, [failure.category for failure in failures]


def test_fractions_with_two_decimals():
    for strict in (True, False):
        boxes, failures = read(f"The opacity is at {TEXT} and {TEXT}.", strict)
        np.testing.assert_allclose(boxes, [BOX, BOX], rtol=1e-6)
        assert failures == []
    assert CODEC.encode(BOX[None], HEIGHT, WIDTH) == TEXT
    geometry = letterbox_geometry(HEIGHT, WIDTH, 448, 448)
    assert CODEC.encode(BOX[None], HEIGHT, WIDTH, geometry) == TEXT
    edges = np.array([[0, 0, 1, 1], [0.004, 0.02, 0.096, 1]])
    assert CODEC.encode(edges, HEIGHT, WIDTH) == (
        "[0.00, 0.00, 1.00, 1.00] [0.00, 0.02, 0.10, 1.00]"
    )


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("text", "categories"),
    [
        ("The answer is [B, C].", ["no_box"]),
        ("at [", ["truncated"]),
        ("at [0.55, 0.4", ["truncated"]),
        ("at [0.55, 0.45, 0.70, 0.56", ["truncated"]),
        ("at [0.55, 0.45, 0.70, 0.56 of the image", ["malformed"]),
        ("at [0.55, 0.45, 0.70]", ["wrong_arity"]),
        ("at [0.5.5, 0.45, 0.70, 0.56]", ["malformed"]),
        ("at [0.55, 0.45, 0.55, 0.56]", ["degenerate"]),
        ("at [1.55, 1.45, 1.70, 1.56]", ["out_of_range"]),
        ("at [26, 119, 217, 183]", ["malformed", "out_of_range"]),
    ],
)
def test_failures_of_both_modes(text, categories, strict):
    boxes, failed = read(text, strict)
    assert not len(boxes)
    # Pixels are no fractions; strictly they are not even written like some.
    assert failed == (categories if len(categories) == 1 else [categories[not strict]])


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("[0.55,0.45,0.70,0.56]", "malformed"),
        ("[0.550, .45, 0.7, 0.56]", "malformed"),
        ("[ 0.55 0.45; 0.70 0.56 ]", "malformed"),
        ("[0.70, 0.56, 0.55, 0.45]", "degenerate"),
    ],
)
def test_repaired_when_lenient(text, category):
    boxes, failed = read(text, strict=False)
    np.testing.assert_allclose(boxes, BOX[None], atol=1e-6)
    assert failed == []
    assert read(text, strict=True)[1] == [category]


def test_whole_numbers_of_the_corner_are_fractions_too():
    np.testing.assert_allclose(read("[0, 0, 1, 1]", strict=False)[0], [[0, 0, 1, 1]])
