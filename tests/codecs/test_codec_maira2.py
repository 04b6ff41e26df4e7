import numpy as np
import pytest

from cxrjax.codecs import CODECS, transcode
from cxrjax.errors import UserError
from cxrjax.images.geometry import center_crop_geometry, letterbox_geometry

CODEC = CODECS["maira2"]
HEIGHT, WIDTH = 3000, 2000
TEXT = "<box><x55><y45><x70><y56></box>"
# What the model's own processor makes of it: (bin + 0.5) / 100.
BOX = np.array([0.555, 0.455, 0.705, 0.565])


def read(text, strict):
    boxes, failures = CODEC.decode(text, HEIGHT, WIDTH, strict=strict)
    return boxes, [failure.category for failure in failures]


def test_bins_are_read_at_their_middles():
    for strict in (True, False):
        boxes, failures = read(TEXT, strict)
        np.testing.assert_allclose(boxes, BOX[None], rtol=1e-6)
        assert failures == []
    assert CODEC.encode(BOX[None], HEIGHT, WIDTH) == TEXT
    # The far edge belongs to the last bin, of which there is no <x100>.
    assert CODEC.encode(np.array([[0, 0, 1, 1]]), HEIGHT, WIDTH) == (
        "<box><x0><y0><x99><y99></box>"
    )


def test_the_phrase_of_a_grounded_report_is_each_of_its_boxes_label():
    text = (
        "<obj>Both bases are dense. <box><x1><y2><x3><y4></box><box><x5><y6><x7><y8></box></obj>"
        "<obj>No pneumothorax.</obj><box><x9><y9><x20><y20></box>"
    )
    spans = CODEC.find(text, HEIGHT, WIDTH, strict=True)
    assert [span.label for span in spans] == [
        "Both bases are dense.",
        "Both bases are dense.",
        None,
    ]
    assert transcode(text, "maira2", "maira2", HEIGHT, WIDTH) == text


def test_the_frame_is_what_the_model_sees():
    """The processor's own way back: offsets of the square, then pixels of the image."""
    geometry = center_crop_geometry(HEIGHT, WIDTH)
    boxes, _ = CODEC.decode(TEXT, HEIGHT, WIDTH, geometry)
    x, y = BOX[[0, 2]] * WIDTH, BOX[[1, 3]] * WIDTH + 500
    np.testing.assert_allclose(
        boxes[0], [x[0] / WIDTH, y[0] / HEIGHT, x[1] / WIDTH, y[1] / HEIGHT], rtol=1e-5
    )
    assert CODEC.encode(boxes, HEIGHT, WIDTH, geometry) == TEXT
    with pytest.raises(UserError, match="outside the model's input"):
        CODEC.encode(np.array([[0.1, 0.01, 0.9, 0.1]]), HEIGHT, WIDTH, geometry)
    letterboxed = CODEC.encode(BOX[None], HEIGHT, WIDTH, letterbox_geometry(HEIGHT, WIDTH, 90, 90))
    assert letterboxed == "<box><x53><y45><x63><y56></box>"


def test_the_crop_is_centred_and_leaves_the_smaller_half_first():
    geometry = center_crop_geometry(7, 10)
    np.testing.assert_allclose(geometry.apply(np.array([0.1, 0, 0.8, 1])), [0, 0, 1, 1], atol=1e-6)
