"""The majority answer against answers counted by hand."""

import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.runners.baselines import Majority


def test_the_most_frequent_answer_of_type_and_finding_with_its_mean_boxes(record):
    def about(number, finding, polarity, said, boxes=()):
        return record(
            number,
            question_type="Yes_No",
            finding=finding,
            said=said,
            labels=[finding],
            polarity=polarity,
            boxes=boxes,
        )

    majority = Majority(
        [
            about(1, "Nodule/Mass", "neg", "No."),
            about(2, "Nodule/Mass", "pos", "Yes, at <loc_20_10_60_50>.", [(20, 10, 60, 50)]),
            # Other words, the same answer.
            about(3, "Nodule/Mass", "pos", "One: <loc_40_30_80_70>", [(40, 30, 80, 70)]),
            about(4, "ILD", "neg", "There is no ILD."),
            record(5, question_type="What", said="There is ILD.", labels=["ILD"], polarity="pos"),
        ]
    )
    asked = [
        record(6, question_type="Yes_No", finding="Nodule/Mass"),
        record(7, question_type="Yes_No", finding="ILD"),
        record(8, question_type="What"),
        record(9, question_type="Yes_No", finding="Atelectasis"),
        record(10, question_type="How_many", finding="Atelectasis"),
    ]
    nodule, ild, what, unseen, other_type = majority.predict(asked)
    assert nodule["text"] == "Yes, at ."  # the first one's words, without its box
    np.testing.assert_allclose(nodule["boxes"], [[0.15, 0.2, 0.35, 0.6]])
    assert nodule["labels"] == ["Nodule/Mass"]
    assert (ild["text"], ild["boxes"]) == ("There is no ILD.", [])
    assert what["text"] == "There is ILD."
    # A finding that training lacks: as most questions of the type; a type: as most questions.
    assert unseen["text"] == other_type["text"] == "Yes, at ."


def test_letters_count_as_answers_and_gemex_boxes_are_written_as_it_does(record):
    def single(number, key, boxes):
        location = f"<location> {[list(box) for box in boxes]}"
        return record(
            number,
            dataset="gemex",
            question_type="single_choice",
            choices=["A: Clear", "B: Wet"],
            answer_key=key,
            said=f"<answer> {key} <reason> Because {number}. {location}",
            boxes=boxes,
            image_hw=(224, 224),
        )

    majority = Majority(
        [single(1, "A", []), single(2, "B", [(0, 0, 112, 56)]), single(3, "B", [(0, 56, 112, 112)])]
    )
    (line,) = majority.predict(
        [record(4, dataset="gemex", question_type="single_choice", choices=["A: x", "B: y"])]
    )
    assert line["text"] == "<answer> B <reason> Because 2. <location>[[0, 28, 112, 84]]"
    np.testing.assert_allclose(line["boxes"], [[0, 0.125, 0.5, 0.375]])


def test_unusable_training_records_are_refused(record):
    with pytest.raises(UserError, match="without answers"):
        Majority([record(1)])
    with pytest.raises(UserError, match="q2: image_hw is null"):
        Majority([record(2, said="Yes", boxes=[(1, 2, 3, 4)], image_hw=None)])
