"""The case studies of GEMeX's page."""

import numpy as np
import pytest

from cxrjax.pages.results.studies import choose_cases, study_answers
from cxrjax.records import Answer, QARecord
from cxrjax.scoring.predictions import parse_prediction

TYPES = ("open_ended", "closed_ended", "single_choice", "multi_choice")


def make(number, kind):
    key = {"open_ended": "Fluid.", "closed_ended": "Yes.", "single_choice": "B"}.get(kind, ["B"])
    return QARecord(
        dataset="gemex",
        split="test",
        image_id=f"i{number}",
        image_path=f"i{number}.png",
        image_hw=(224, 224),
        question_id=f"q{number}",
        question="Is there fluid?",
        question_type=kind,
        choices=["A: Air", "B: Fluid"] if kind.endswith("choice") else None,
        answers=[
            Answer(
                text=f"<answer> {key} <reason> The angle is blunt. <location>[[0, 0, 112, 224]]",
                boxes_by_image={f"i{number}": [[0, 0, 112, 224]]} if number != 3 else {},
            )
        ],
        answer_key=key,
        reason="The angle is blunt.",
    )


RECORDS = [make(number, TYPES[number % 4]) for number in range(12)]


def predictions(*texts):
    return {
        f"q{n}": parse_prediction({"question_id": f"q{n}", "text": text}, "test")
        for n, text in enumerate(texts)
    }


def test_cases_hold_what_the_paper_prints():
    systems = {
        "first": predictions("x", "<answer> No. <reason> None. <location>[[0, 0, 112, 224]]"),
        "second": predictions("x", "Yes, at [0, 0, 56, 224]."),
        "third": predictions("x"),
    }
    truth, first, second, third = study_answers(RECORDS[1], systems, marks={("first", "q1"): 50.0})
    assert (truth.system, truth.outcome) == ("truth", None)
    assert (truth.said.answer, truth.said.reason) == ("Yes.", "The angle is blunt.")
    np.testing.assert_allclose(truth.said.boxes, [[0, 0, 0.5, 1]])
    assert (first.said.answer, first.said.reason) == ("No.", "None.")
    assert (first.outcome.right, first.outcome.note) == (False, "said No; it is Yes")
    assert first.outcome.iou == pytest.approx(1)
    assert (first.score, second.score) == (50.0, None)
    assert second.said.answer == "Yes, at ." and second.outcome.right
    assert second.outcome.iou == pytest.approx(0.5)
    assert (third.said, third.outcome.right) == (None, False)


def test_cases_are_drawn_by_seed_of_each_type_and_with_boxes():
    chosen = choose_cases(RECORDS, 2, seed=1)
    assert [record.question_type for record in chosen] == [t for t in TYPES for _ in range(2)]
    assert choose_cases(RECORDS[::-1], 2, seed=1) == chosen
    assert choose_cases(RECORDS, 2, seed=2) != chosen
    assert "q3" not in {record.question_id for record in choose_cases(RECORDS, 3)}
    assert choose_cases([], 3) == []
