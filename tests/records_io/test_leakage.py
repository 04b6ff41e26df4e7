"""What two splits must not share, and what they may."""

import numpy as np
import pytest
from PIL import Image

from cxrjax.errors import UserError
from cxrjax.records import Answer, QARecord
from cxrjax.records_io.leakage import find_leakage


def _record(split, image, number=0, **fields):
    boxes = fields.pop("boxes", None)
    text = fields.pop("text", f"It is at <loc_1_2_3_{image[1:]}>.")
    return QARecord(
        dataset="vindr_cxr_vqa",
        split=split,
        image_id=image,
        image_path=f"{image}.png",
        question_id=fields.pop("question_id", f"{image}-{number}"),
        question=fields.pop("question", "Where is the ILD?"),
        question_type="Where",
        answers=[Answer(text=text, boxes_by_image={image: boxes} if boxes else {})],
        **fields,
    )


def _leaks(train, validation, root=None):
    return find_leakage({"train": train, "validation": validation}, root)


def test_disjoint_splits_leak_nothing_although_they_ask_the_same():
    found = _leaks([_record("train", "i1")], [_record("validation", "i2")])
    assert found["leaks"] == []
    shared = found["shared_text"]["train/validation"]
    assert (shared["same_question"], shared["same_answer"]) == (1, 0)
    assert found["records_that_state"] == {
        "patient_id": 0,
        "study_id": 0,
        "image_id": 2,
        "question_id": 2,
    }


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("patient_id", {"patient_id": "p"}),
        ("study_id", {"study_id": "s"}),
        ("question_id", {"question_id": "q"}),
    ],
)
def test_each_identity_that_is_shared_is_a_leak(kind, fields):
    found = _leaks([_record("train", "i1", **fields)], [_record("validation", "i2", **fields)])
    (leak,) = found["leaks"]
    assert leak["kind"] == kind and leak["splits"] == ("train", "validation")
    assert leak["items"] == (fields[kind],) * 2


def test_an_image_in_both_splits_is_one_leak_and_nulls_are_none():
    found = _leaks([_record("train", "i1", 0)], [_record("validation", "i1", 1)])
    assert [leak["kind"] for leak in found["leaks"]] == ["image_id"]


def test_a_picture_under_two_ids_is_found_by_its_content(tmp_path):
    small = np.random.default_rng(0).uniform(0, 255, (9, 9)).astype(np.uint8)
    picture = Image.fromarray(small).resize((300, 300), Image.Resampling.BICUBIC)
    picture.save(tmp_path / "i1.png")
    picture.resize((200, 200)).save(tmp_path / "i2.png")
    Image.fromarray(small.T.copy()).resize((300, 300)).save(tmp_path / "i3.png")
    train = [_record("train", "i1"), _record("train", "i4")]
    validation = [_record("validation", "i2"), _record("validation", "i3")]
    found = _leaks(train, validation, tmp_path)
    (leak,) = found["leaks"]
    assert leak["kind"] == "image_content" and leak["items"] == ("i1", "i2")
    assert found["images_hashed"] == 3
    assert found["images_not_hashed"] == ["1 of 4 files are not there"]


def test_answers_that_training_holds_are_counted():
    long = "there is a large opacity in the lower part of the left lung"
    train = [_record("train", "i1", text=f"Yes, {long}.", boxes=[[1, 2, 3, 4]])]
    validation = [
        _record("validation", "i2", 0, text=f"yes {long}", boxes=[[1, 2, 3, 4]]),
        _record("validation", "i2", 1, text=f"No doubt that {long}"),
        _record("validation", "i2", 2, text="No."),
    ]
    shared = _leaks(train, validation)["shared_text"]["train/validation"]
    assert (shared["answers"], shared["same_answer"]) == (3, 1)
    assert (shared["answers_with_boxes"], shared["same_answer_with_boxes"]) == (1, 1)
    # Of the answers long enough: all 7 runs of eight words, and 6 of 9.
    assert shared["mean_share_of_8_word_runs"] == pytest.approx((1 + 6 / 9) / 2)


def test_one_split_cannot_be_compared():
    with pytest.raises(UserError, match="only 'train'"):
        find_leakage({"train": [_record("train", "i1")]}, None)
