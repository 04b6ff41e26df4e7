"""What rounding costs, on boxes whose rounding can be told by hand."""

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.records import Answer, QARecord, write_records
from cxrjax.tools import codec_ceiling as ceiling


def _record(number, boxes, image_hw=(1000, 1000), image_id="i"):
    return QARecord(
        dataset="custom",
        split="train",
        image_id=image_id,
        image_path="i.png",
        image_hw=image_hw,
        question_id=f"q{number}",
        question="Where?",
        question_type="Where",
        answers=[Answer(text="", boxes_by_image={image_id: boxes})],
    )


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


def test_the_command_says_what_it_left_out(tmp_path, capsys):
    path = tmp_path / "records.jsonl"
    write_records(path, [_record(1, [[10, 10, 90, 90], [10, 10, 900, 90]], None)])
    ceiling.main([f"--references={path}", "--size=100x200"])
    out = capsys.readouterr().out
    assert "| `maira2` |" in out
    assert "1 boxes do not fit 100x200 and were left out" in out


@pytest.mark.parametrize(
    ("record", "size", "message"),
    [
        (_record(1, [[1, 1, 5, 5]], None), None, "q1: image_hw is null"),
        (_record(1, [[1, 1, 5000, 5]]), None, "image i: box .* is not inside 1000 x 1000"),
        (_record(1, [[-1, 1, 5, 5]]), None, "image i: box .* is not inside 1000 x 1000"),
        (_record(1, []), None, "no boxes"),
        (_record(1, [[1, 1, 5, 5]]), "12", "expected HEIGHTxWIDTH"),
    ],
)
def test_unusable_input_is_refused_in_one_line(tmp_path, record, size, message):
    path = tmp_path / "records.jsonl"
    write_records(path, [record])
    with pytest.raises(UserError, match=message):
        ceiling.main([f"--references={path}", *([f"--size={size}"] if size else [])])
