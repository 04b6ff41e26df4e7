import numpy as np
import pytest

from cxrjax.codecs import CODECS, transcode
from cxrjax.images.geometry import letterbox_geometry

CODEC = CODECS["gemex"]
HEIGHT, WIDTH = 3000, 2000
BOX = np.array([26, 119, 217, 183]) / 224
ANSWER = "<answer> ['B', 'C'] <reason> Both bases are dense. <location> [[26, 119, 217, 183]]"


def read(text, strict):
    boxes, failures = CODEC.decode(text, HEIGHT, WIDTH, strict=strict)
    return boxes, [failure.category for failure in failures]


def test_the_papers_examples():
    """Tables 12 and 13 of arXiv 2411.16778."""
    for strict in (True, False):
        boxes, failures = read("<answer>[B, C] <location>[[26, 119, 217, 183]]", strict)
        np.testing.assert_allclose(boxes, BOX[None], rtol=1e-6)
        assert failures == []
        boxes, failures = read("<location> [[48, 48, 175, 180], [0,0,224,224]]", strict)
        np.testing.assert_allclose(boxes * 224, [[48, 48, 175, 180], [0, 0, 224, 224]], atol=1e-4)
        assert failures == []
    assert CODEC.encode(BOX[None], HEIGHT, WIDTH) == "<location>[[26, 119, 217, 183]]"


def test_the_frame_is_the_conventions_own():
    geometry = letterbox_geometry(HEIGHT, WIDTH, 448, 448)
    assert CODEC.encode(BOX[None], HEIGHT, WIDTH, geometry) == "<location>[[26, 119, 217, 183]]"


def test_a_list_leaves_nothing_behind_when_it_is_rewritten():
    one = transcode(ANSWER, "gemex", "paligemma", HEIGHT, WIDTH)
    assert one.startswith("<answer> ['B', 'C'] <reason> Both bases are dense. <loc")
    assert one.endswith(">") and "[" not in one.split("dense.")[1]
    two = transcode("<location> [[1, 2, 3, 4], [5, 6, 7, 8]]", "gemex", "vindr_px", 224, 224)
    assert two == "<loc_1_2_3_4>, <loc_5_6_7_8>"


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("text", "categories"),
    [
        ("<location>[]", ["no_box"]),
        ("<answer>[B, C] <reason>None.", ["no_box"]),
        ("<location>", ["truncated"]),
        ("<location>[[", ["truncated"]),
        ("<answer>No. <loca", ["truncated"]),
        ("<location>[[26, 119", ["truncated"]),
        ("<location>[[26, 119, 217]]", ["wrong_arity"]),
        ("<location>[[26, 119, 217, 183, 4]]", ["wrong_arity"]),
        ("<location>[[26, 11-9, 217, 183]]", ["malformed"]),
        ("<location>[[26, 119, 26, 183]]", ["degenerate"]),
        ("<location>[[300, 300, 400, 400]]", ["out_of_range"]),
    ],
)
def test_failures_of_both_modes(text, categories, strict):
    boxes, failed = read(text, strict)
    assert not len(boxes)
    assert failed == categories


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("[26, 119, 217, 183]", "malformed"),
        ("[[26, 119, 217, 183]]", "malformed"),
        ("<Location>: [[26, 119, 217, 183]]", "malformed"),
        ("<location>[26, 119, 217, 183]", "malformed"),
        ("<location>[[26.0, 119, 217, 183]]", "malformed"),
        ("<location>[[217, 183, 26, 119]]", "degenerate"),
    ],
)
def test_repaired_when_lenient(text, category):
    boxes, failed = read(text, strict=False)
    np.testing.assert_allclose(boxes, BOX[None], atol=1e-6)
    assert failed == []
    assert read(text, strict=True)[1] == [category]
