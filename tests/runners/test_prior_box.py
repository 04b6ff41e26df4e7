"""The constant baseline against a hand-made mean."""

import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.records import Answer, QARecord
from cxrjax.runners.baselines import PriorBox


def _record(number, finding, boxes, image_hw=(100, 200)):
    return QARecord(
        dataset="custom",
        split="train",
        image_id="i",
        image_path="i.png",
        image_hw=image_hw,
        question_id=f"q{number}",
        question=f"Where is the {finding}?",
        question_type="Where",
        variables={"finding": finding},
        answers=[Answer(text="", boxes_by_image={"i": boxes} if boxes else {})],
    )


def test_it_answers_with_the_mean_box_of_the_most_frequent_count():
    prior = PriorBox(
        [
            _record(1, "heart", [[20, 10, 60, 50]]),
            _record(2, "heart", [[40, 30, 80, 70]]),
            _record(3, "heart", [[0, 0, 1, 1], [2, 2, 3, 3]]),
            _record(4, "lungs", [[120, 0, 180, 100], [20, 0, 80, 100]]),
            _record(5, "ILD", []),
        ]
    )
    heart, lungs, none, unknown = prior.predict(
        [_record(n, name, []) for n, name in enumerate(["heart", "lungs", "ILD", "Nodule"])]
    )
    np.testing.assert_allclose(heart["boxes"], [[0.15, 0.2, 0.35, 0.6]])
    # From left to right, whatever their order in the answer.
    np.testing.assert_allclose(lungs["boxes"], [[0.1, 0, 0.4, 1], [0.6, 0, 0.9, 1]])
    assert none["boxes"] == unknown["boxes"] == []
    assert heart["labels"] == ["heart"] and none["text"] == "There is no ILD."


def test_nothing_is_learnt_from_no_records():
    with pytest.raises(UserError, match="no training records"):
        PriorBox([])


def test_a_record_without_size_is_refused():
    with pytest.raises(UserError, match="q1: image_hw is null"):
        PriorBox([_record(1, "heart", [], image_hw=None)])
