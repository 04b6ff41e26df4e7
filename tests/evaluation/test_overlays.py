"""Boxes drawn into pixels, and pictures packed into a page."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from cxrjax.evaluation.overlays import COLOURS, jpeg_data_uri, overlay, system_colours

GREY = np.full((200, 300), 90, np.uint8)
BOX = np.array([[0.1, 0.2, 0.5, 0.7]], np.float32)  # pixels x 30..150, y 40..140


def _is_drawn(image: np.ndarray, y: int, x: int, colour: tuple[int, int, int]) -> bool:
    return tuple(int(v) for v in image[y, x]) == colour


def test_outlines_are_drawn_where_boxes_are_later_colours_above():
    drawn = overlay(GREY, {"#ff0000": BOX})
    assert drawn.shape == (200, 300, 3) and drawn.dtype == np.uint8
    for y, x in ((40, 90), (140, 90), (90, 30), (90, 150)):
        assert _is_drawn(drawn, y, x, (255, 0, 0))
    for y, x in ((90, 90), (20, 90), (170, 90), (90, 10), (90, 200)):
        assert _is_drawn(drawn, y, x, (90, 90, 90))
    drawn = overlay(GREY, {"#ff0000": np.array([[-0.5, 0.0, 1.0, 1.7]])})
    for y, x in ((0, 150), (199, 150), (100, 0), (100, 299)):
        assert _is_drawn(drawn, y, x, (255, 0, 0))
    assert (overlay(GREY, {"red": BOX[:, [2, 3, 0, 1]]}) == overlay(GREY, {"red": BOX})).all()
    assert (overlay(GREY, {"red": np.array([[0.5, 0.5, 0.5, 0.5]])}) != 90).any()
    drawn = overlay(GREY, {"#00ff00": BOX, "#ff0000": BOX})
    assert _is_drawn(drawn, 40, 90, (255, 0, 0))
    assert not (drawn == (0, 255, 0)).all(-1).any()


def test_the_input_stays_as_it_is_and_colours_are_known():
    image = np.stack([GREY] * 3, axis=-1)
    overlay(image, {"red": BOX})
    assert (image == 90).all()
    assert (overlay(GREY, {}) == 90).all()
    assert (overlay(GREY, {"red": np.zeros((0, 4), np.float32)}) == 90).all()
    with pytest.raises(ValueError, match="no-such-colour"):
        overlay(GREY, {"no-such-colour": BOX})
    colours = system_colours(["other", "tuned", "base", "more"])
    assert colours["base"] == COLOURS["base"] and colours["tuned"] == COLOURS["tuned"]
    assert len(set(colours.values()) | {COLOURS["truth"]}) == 5
    assert list(system_colours(["a", "b"]).values()) == [COLOURS["base"], COLOURS["tuned"]]


@pytest.mark.parametrize("boxes", [np.zeros(4), np.zeros((2, 5)), np.zeros((1, 2, 4))])
def test_boxes_of_another_shape_are_refused(boxes):
    with pytest.raises(ValueError, match="expected \\(n, 4\\)"):
        overlay(GREY, {"red": boxes})


def _decode(uri: str) -> Image.Image:
    head, _, body = uri.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(body)))


def test_size_and_mode_of_a_stored_picture():
    ramp = np.tile(np.linspace(0, 255, 1200).astype(np.uint8), (600, 1))
    picture = _decode(jpeg_data_uri(ramp, long_side=512))
    assert picture.size == (512, 256)
    expected = np.asarray(Image.fromarray(ramp).resize((512, 256)), np.float32)
    assert np.abs(np.asarray(picture, np.float32) - expected).max() < 12
    assert _decode(jpeg_data_uri(GREY, long_side=512)).size == (300, 200)
    rgb = np.stack([GREY] * 3, axis=-1)
    assert _decode(jpeg_data_uri(rgb)).mode == "L"
    rgb[..., 0] = 200
    assert _decode(jpeg_data_uri(rgb)).mode == "RGB"
