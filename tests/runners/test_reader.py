"""A radiologist as a system."""

import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.records import ReaderBox
from cxrjax.runners.baselines import reader_line, reader_marks


@pytest.fixture
def marks(record):
    boxes = [
        ReaderBox(label="Nodule/Mass", box=[20, 10, 60, 50]),
        ReaderBox(label="ILD", box=[0, 0, 200, 100]),
    ]
    return reader_marks(
        [
            record(1, image_id="a", readers={"R8": boxes, "R9": []}),
            record(2, image_id="b", readers={"R8": [], "R9": boxes}),
            record(3, image_id="c", readers={"R9": boxes}),
        ],
        "R8",
        "records.jsonl",
    )


def test_a_question_about_a_finding_gets_its_boxes_any_other_all(record, marks):
    nodule = reader_line(record(4, finding="Nodule/Mass"), marks["a"])
    np.testing.assert_allclose(nodule["boxes"], [[0.1, 0.1, 0.3, 0.5]])
    assert nodule["text"] == "Yes, there is Nodule/Mass."
    what = reader_line(record(5), marks["a"])
    assert what["labels"] == ["Nodule/Mass", "ILD"] and len(what["boxes"]) == 2
    assert reader_line(record(6, finding="ILD"), marks["b"])["text"] == "No, there is no ILD."
    assert reader_line(record(7), marks["b"])["text"] == "There is no finding."


def test_an_image_that_they_did_not_read_is_said_to_be_such(record, marks):
    line = reader_line(record(8, finding="ILD"), marks.get("c"))
    assert (line["text"], line["boxes"], line["parse"]) == ("", [], "not_read")


def test_unusable_records_are_refused(record):
    some = record(1, readers={"R9": [ReaderBox(label="ILD", box=[1, 2, 3, 4])]})
    with pytest.raises(UserError, match=r"no image was read by 'R8'; expected one of \['R9'\]"):
        reader_marks([some], "R8", "x.jsonl")
    with pytest.raises(UserError, match="have no readers"):
        reader_marks([record(2)], "R8", "x.jsonl")
    with pytest.raises(UserError, match="q1: image_hw is null"):
        reader_marks([some.model_copy(update={"image_hw": None})], "R9", "x.jsonl")
