"""Baselines against means, counts and chances by hand."""

import collections
import math

import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.evaluation import baselines
from cxrjax.evaluation.baselines import (
    BlindQuestion,
    learn_majority,
    learn_prior_box,
    learn_reader,
)
from cxrjax.evaluation.question_priors import QuestionPriors
from cxrjax.papers.gemex.dialogue import parse_answer
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.radiology_text.mentions import MentionReader
from cxrjax.records import ReaderBox

# The mean box.


def test_the_mean_boxes_of_a_finding_are_those_of_other_images():
    rng = np.random.default_rng(0)
    more = {"dataset": "vindr", "kind": "Where", "finding": "Mass", "choices": (), "closed": False}
    for size in np.repeat(np.arange(1, 9), 20):
        known = [
            BlindQuestion(
                "q", f"i{rng.integers(4)}", boxes=rng.random((rng.integers(4), 4)), **more
            )
            for _ in range(size)
        ]
        for asked in known:
            others = [one.boxes for one in known if one.image_id != asked.image_id]
            most = collections.Counter(map(len, others)).most_common(1)  # the first of equal ones
            alike = [boxes[boxes[:, 0].argsort()] for boxes in others if len(boxes) == most[0][0]]
            expected = np.mean(alike, axis=0) if alike else np.zeros((0, 4))
            np.testing.assert_allclose(QuestionPriors(known).mean_boxes(asked), expected)


def test_it_answers_with_the_mean_box_of_the_most_frequent_count(record):
    learnt = [
        ("heart", [[20, 10, 60, 50]]),
        ("heart", [[40, 30, 80, 70]]),
        ("heart", [[0, 0, 1, 1], [2, 2, 3, 3]]),
        ("lungs", [[120, 0, 180, 100], [20, 0, 80, 100]]),
        ("ILD", []),
    ]
    rows = [record(n, finding=f, boxes=b, said="") for n, (f, b) in enumerate(learnt)]
    asked = [record(n, finding=f) for n, f in enumerate(["heart", "lungs", "ILD", "Nodule"])]
    heart, lungs, none, unknown = map(learn_prior_box(rows), asked)
    np.testing.assert_allclose(heart.boxes, [[0.15, 0.2, 0.35, 0.6]])
    # From left to right, whatever their order in the answer.
    np.testing.assert_allclose(lungs.boxes, [[0.1, 0, 0.4, 1], [0.6, 0, 0.9, 1]])
    assert not len(none.boxes) and not len(unknown.boxes)
    assert heart.labels == ["heart"] and none.text == "There is no ILD."


# The majority answer.


def test_the_most_frequent_answer_of_type_and_finding_with_its_mean_boxes(record):
    def about(number, finding, polarity, said, boxes=()):
        answer = {"said": said, "polarity": polarity, "boxes": boxes, "labels": [finding]}
        return record(number, question_type="Yes_No", finding=finding, **answer)

    majority = learn_majority(
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
    nodule, ild, what, unseen, other_type = map(majority, asked)
    assert nodule.text == "Yes, at ."  # the first one's words, without its box
    np.testing.assert_allclose(nodule.boxes, [[0.15, 0.2, 0.35, 0.6]])
    assert nodule.labels_for("Nodule/Mass") == ["Nodule/Mass"]
    assert ild.text == "There is no ILD." and not len(ild.boxes)
    assert what.text == "There is ILD."
    # A finding that training lacks: as most questions of the type; a type: as most questions.
    assert unseen.text == other_type.text == "Yes, at ."


def test_letters_count_as_answers_and_gemex_boxes_are_written_as_it_does(record):
    def single(number, key, boxes):
        location = f"<location> {[list(box) for box in boxes]}"
        said = f"<answer> {key} <reason> Because {number}. {location}"
        answer = {"answer_key": key, "said": said, "boxes": boxes, "image_hw": (224, 224)}
        return record(number, **asked, **answer)

    asked = {"dataset": "gemex", "question_type": "single_choice"}
    asked["choices"] = ["A: Clear", "B: Wet"]
    answers = [("A", []), ("B", [(0, 0, 112, 56)]), ("B", [(0, 56, 112, 112)])]
    majority = learn_majority([single(number, *answer) for number, answer in enumerate(answers, 1)])
    said = majority(record(4, **asked | {"choices": ["A: x", "B: y"]}))
    assert said.text == "<answer> B <reason> Because 2. <location>[[0, 28, 112, 84]]"
    np.testing.assert_allclose(said.boxes, [[0, 0.125, 0.5, 0.375]])


# A radiologist as a system.


def test_a_reader_answers_a_question_about_a_finding_with_its_boxes_any_other_with_all(record):
    places = {"Nodule/Mass": [20, 10, 60, 50], "ILD": [0, 0, 200, 100]}
    boxes = [ReaderBox(label=label, box=box) for label, box in places.items()]
    readers = {"a": {"R8": boxes, "R9": []}, "b": {"R8": [], "R9": boxes}, "c": {"R9": boxes}}
    records = [record(1, image_id=name, readers=marked) for name, marked in readers.items()]
    say = learn_reader(records, "R8", "records.jsonl")
    nodule = say(record(4, image_id="a", finding="Nodule/Mass"))
    np.testing.assert_allclose(nodule.boxes, [[0.1, 0.1, 0.3, 0.5]])
    assert nodule.text == "Yes, there is Nodule/Mass."
    what = say(record(5, image_id="a"))
    assert what.labels == ["Nodule/Mass", "ILD"] and len(what.boxes) == 2
    assert say(record(6, image_id="b", finding="ILD")).text == "No, there is no ILD."
    assert say(record(7, image_id="b")).text == "There is no finding."
    unread = say(record(8, image_id="c", finding="ILD"))
    assert (unread.text, len(unread.boxes), unread.parse) == ("", 0, "not_read")


def test_unusable_records_are_refused(record):
    size, nobody = {"image_hw": None}, r"no image was read by 'R8'; expected one of \['R9'\]"
    read = record(1, readers={"R9": [ReaderBox(label="ILD", box=[1, 2, 3, 4])]})
    unsized = record(2, said="Yes", boxes=[(1, 2, 3, 4)], **size)
    for learn, told in (
        (lambda: learn_prior_box([]), "no training records"),
        (
            lambda: learn_prior_box([record(1, finding="heart", said="", **size)]),
            "q1: image_hw is null",
        ),
        (lambda: learn_majority([record(1)]), "without answers"),
        (lambda: learn_majority([unsized]), "q2: image_hw is null"),
        (lambda: learn_reader([read], "R8", "x"), nobody),
        (lambda: learn_reader([record(2)], "R8", "x"), "have no readers"),
        (lambda: learn_reader([read.model_copy(update=size)], "R9", "x"), "q1: image_hw is null"),
    ):
        with pytest.raises(UserError, match=told):
            learn()


# Chance: what it is right in, and that it can be drawn again.


def draw(asked, seed):
    return baselines.draw(baselines.BlindQuestion.of(asked), seed, CLASSES).text


_DRAWS = 20_000
_OPTIONS = ["A: Clear", "B: Wet", "C: Dense", "D: Small"]


@pytest.mark.parametrize(
    ("kind", "choices", "right", "expected"),
    [
        ("closed_ended", None, "Yes", 1 / 2),
        ("single_choice", _OPTIONS, "C", 1 / 4),
        ("multi_choice", _OPTIONS, ["B", "D"], 1 / 15),
        ("multi_choice", _OPTIONS, ["A", "B", "C", "D"], 1 / 15),
        ("multi_choice", _OPTIONS[:3], ["C"], 1 / 7),
    ],
)
def test_expected_accuracy(record, kind, choices, right, expected):
    """As GEMeX's benchmark reads answers; Table 5 has 48.80, 25.85 and 7.50 % in one draw."""
    asked = record(1, dataset="gemex", question="Choose.", question_type=kind, choices=choices)
    texts = collections.Counter(draw(asked, n) for n in range(_DRAWS))
    found = sum(
        often for text, often in texts.items() if parse_answer(text, kind, choices).key == right
    )
    # Four standard errors of so many draws.
    assert abs(found / _DRAWS - expected) < 4 * math.sqrt(expected * (1 - expected) / _DRAWS)


def test_a_finding_is_there_or_not_and_a_class_is_one_of_14(record):
    reader = MentionReader()

    def drawn(asked, about, times):
        answers = (draw(asked, seed) for seed in range(times))
        return collections.Counter(reader.read(answer, about).present for answer in answers)

    asked = record(1, question="Where is the nodule?", finding="Nodule/Mass")
    said = drawn(asked, "Nodule/Mass", 400)
    assert set(said) == {frozenset(), frozenset({"Nodule/Mass"})}
    assert 150 < said[frozenset()] < 250
    named = drawn(record(2, dataset="vindr_cxr_vqa"), None, 1400)
    assert set(named) == {frozenset({name}) for name in CLASSES}
    assert max(named.values()) < 150
    open_ended = record(3, dataset="gemex", question_type="open_ended")
    assert baselines.draw(baselines.BlindQuestion.of(open_ended), 0, ()).text == ""
