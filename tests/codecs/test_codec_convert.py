"""From one notation to another, and what rounding costs."""

import re

import numpy as np
import pytest

from bench import codec_ceiling as ceiling
from cxrjax.codecs import CODECS, transcode
from cxrjax.errors import UserError
from cxrjax.images.geometry import letterbox_geometry
from cxrjax.records import write_records
from tests.codecs.test_codec_readings import TABLES
from tests.input_pipeline.conftest import make_record

HEIGHT, WIDTH = 1024, 2048
ANSWER = "Right: <loc_200_100_400_300>; left: <loc_1000_100_2048_1024>, so two."


def test_prose_stays_boxes_move_and_the_command_counts_what_it_left_out(tmp_path, capsys):
    assert transcode(ANSWER, "vindr_px", "paligemma", HEIGHT, WIDTH) == (
        "Right: <loc0100><loc0100><loc0300><loc0200>; "
        "left: <loc0100><loc0500><loc1023><loc1023>, so two."
    )
    geometry = letterbox_geometry(HEIGHT, WIDTH, 64, 64)
    assert "<loc0306><loc0100><loc0406><loc0200>" in transcode(
        ANSWER, "vindr_px", "paligemma", HEIGHT, WIDTH, geometry
    )
    assert transcode(ANSWER, "vindr_px", "vindr_px", HEIGHT, WIDTH) == ANSWER
    for text in ("", "No finding.", "I'm sorry, I cannot help."):
        assert transcode(text, "vindr_px", "paligemma", HEIGHT, WIDTH) == text
    path = tmp_path / "records.jsonl"
    write_records(path, [_record(1, [[10, 10, 90, 90], [10, 10, 900, 90]], None)])
    ceiling.main([f"--references={path}", "--size=100x200"])
    out = capsys.readouterr().out
    assert "| `maira2` |" in out
    assert "1 boxes do not fit 100x200 and were left out" in out


def test_nothing_is_left_behind_and_there_and_back_is_within_a_bin():
    for text, reason in TABLES["left_behind"]:
        with pytest.raises(UserError, match=f"vindr_px box of a 2048 x 1024 image: {reason}"):
            transcode(text, "vindr_px", "paligemma", HEIGHT, WIDTH)
    with pytest.raises(UserError, match="did you mean"):
        transcode("", "vindr", "paligemma", HEIGHT, WIDTH)
    there = transcode(ANSWER, "vindr_px", "paligemma", HEIGHT, WIDTH)
    back = transcode(there, "paligemma", "vindr_px", HEIGHT, WIDTH)
    assert re.sub("<[^>]*>", "", back) == re.sub("<[^>]*>", "", ANSWER)
    boxes = [
        CODECS["vindr_px"].decode(text, HEIGHT, WIDTH, strict=True)[0] for text in (ANSWER, back)
    ]
    pixels = np.abs(boxes[0] - boxes[1]) * [WIDTH, HEIGHT, WIDTH, HEIGHT]
    assert pixels.max() <= 1 + 1e-3  # half a bin is one pixel along x


def _record(number, boxes, image_hw=(1000, 1000), image_id="i"):
    names = {"question_id": f"q{number}", "image_id": image_id}
    return make_record("", boxes, image_hw=image_hw, **names)


def test_rounding_by_hand():
    """A thousand pixels: 250 is on the grid of hundredths, 254 is rounded down by 4 pixels."""
    records = [
        _record(1, [[250, 250, 750, 750]]),
        _record(2, [[254, 250, 754, 750], [250, 250, 750, 750]]),
        _record(3, [[500, 500, 504, 504]], image_id="j"),
    ]
    images, outside = ceiling.distinct_boxes(records)
    assert outside == 0 and [len(image.boxes) for image in images] == [2, 1]
    table = ceiling.ceilings(images)
    assert set(table) == set(CODECS)
    found = table["radvlm"]
    shifted = 496 / 504
    assert found["0.4 to 1"].mean == pytest.approx((1 + shifted) / 2, rel=1e-5)
    # A box of 4 pixels is widened to one step of 10.
    assert found["0 to 0.02"].mean == pytest.approx(16 / 100, rel=1e-5)
    assert found["all"].below_half == pytest.approx(1 / 3)
    assert found["all"].percentile_5 == pytest.approx(
        np.percentile([1, shifted, 16 / 100], 5), rel=1e-5
    )
    assert table["vindr_px"]["all"].mean == pytest.approx(1, rel=1e-5)
    assert found["0.1 to 0.2"].mean is None
    assert "| none |" in ceiling.markdown(table)
