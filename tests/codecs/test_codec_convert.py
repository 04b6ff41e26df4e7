import re

import numpy as np
import pytest

from cxrjax.boxes import iou
from cxrjax.codecs import CODECS, codec_iou_ceiling, transcode
from cxrjax.errors import UserError
from cxrjax.images.geometry import letterbox_geometry

HEIGHT, WIDTH = 1024, 2048
ANSWER = "Right: <loc_200_100_400_300>; left: <loc_1000_100_2048_1024>, so two."


def test_prose_stays_and_boxes_move():
    assert transcode(ANSWER, "vindr_px", "paligemma", HEIGHT, WIDTH) == (
        "Right: <loc0100><loc0100><loc0300><loc0200>; "
        "left: <loc0100><loc0500><loc1023><loc1023>, so two."
    )
    geometry = letterbox_geometry(HEIGHT, WIDTH, 64, 64)
    assert "<loc0306><loc0100><loc0406><loc0200>" in transcode(
        ANSWER, "vindr_px", "paligemma", HEIGHT, WIDTH, geometry
    )


def test_there_and_back_is_within_a_bin():
    there = transcode(ANSWER, "vindr_px", "paligemma", HEIGHT, WIDTH)
    back = transcode(there, "paligemma", "vindr_px", HEIGHT, WIDTH)
    assert re.sub("<[^>]*>", "", back) == re.sub("<[^>]*>", "", ANSWER)
    boxes = [
        CODECS["vindr_px"].decode(text, HEIGHT, WIDTH, strict=True)[0] for text in (ANSWER, back)
    ]
    pixels = np.abs(boxes[0] - boxes[1]) * [WIDTH, HEIGHT, WIDTH, HEIGHT]
    assert pixels.max() <= 1 + 1e-3  # half a bin is one pixel along x


def test_to_the_same_codec_changes_nothing():
    assert transcode(ANSWER, "vindr_px", "vindr_px", HEIGHT, WIDTH) == ANSWER


@pytest.mark.parametrize("text", ["", "No finding.", "I'm sorry, I cannot help."])
def test_without_boxes_nothing_changes(text):
    assert transcode(text, "vindr_px", "paligemma", HEIGHT, WIDTH) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("at <loc_1_2_3>", "wrong_arity"),
        ("at <loc_400_100_200_300>", "degenerate"),
        ("at <loc_1_2_3_9999>", "out_of_range"),
        ("at <loc_1_2_30_40> and <loc 1 2 3 4>", "malformed"),
    ],
)
def test_a_box_is_never_left_behind(text, reason):
    with pytest.raises(UserError, match=f"vindr_px box of a 2048 x 1024 image: {reason}"):
        transcode(text, "vindr_px", "paligemma", HEIGHT, WIDTH)


def test_unknown_codec():
    with pytest.raises(UserError, match="did you mean"):
        transcode("", "vindr", "paligemma", HEIGHT, WIDTH)


def test_ceiling():
    boxes = np.array(
        [[0.1, 0.1, 0.1 + side, 0.1 + side] for side in (0.5, 0.05, 0.005)], np.float32
    )
    for name, codec in CODECS.items():
        ceiling = codec_iou_ceiling(name, boxes, 3000, 3000)
        assert ceiling.shape == (3,)
        decoded = codec.decode(codec.encode(boxes, 3000, 3000), 3000, 3000).boxes
        np.testing.assert_allclose(ceiling, iou(boxes, decoded))
    # Each side is off by at most a bin of 1/1024 in all.
    ceiling = codec_iou_ceiling("paligemma", boxes, 3000, 3000)
    assert (ceiling >= [0.99, 0.92, 0.44]).all()
    assert (np.diff(ceiling) < 0).all()
    whole = np.array([[600, 300, 900, 1200]]) / 3000
    assert codec_iou_ceiling("vindr_px", whole, 3000, 3000) == pytest.approx(1)
