"""What answers say of what is asked, by the kinds of wording that were read wrongly once."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from bench.readers.__main__ import grade_file
from bench.readers.sentences import FOLDER
from cxrjax.radiology_text.answer_details import place_said
from cxrjax.radiology_text.answers import EnglishReader, without_reason
from cxrjax.radiology_text.assertions import joined_side
from tests.radiology_text.conftest import CASES

READER = EnglishReader()
ANSWERS = tomllib.loads(Path(__file__).with_name("answers.toml").read_text(encoding="utf-8"))
# Of 300 answers that an independent annotator labelled.
FLOOR = 0.98


def test_labelled_answers_are_read_right():
    graded = grade_file(FOLDER / "answers_en.tsv")
    assert sum(one.is_right for one in graded) >= FLOOR * len(graded)


@pytest.mark.parametrize("kind", ANSWERS)
def test_answers_say_what_they_mean(kind):
    for question, outcomes in ANSWERS[kind].items():
        read = {o: {a: READER.read(a, question).outcome for a in outcomes[o]} for o in outcomes}
        assert read == {o: dict.fromkeys(outcomes[o], o) for o in outcomes}, question


def test_a_reason_is_cut_off(subtests):
    for text, kept in CASES["a_reason_is_cut_off"]:
        with subtests.test(text):
            assert without_reason(text) == kept


def test_sides_of_boxes_are_the_patient_s():
    """His right is on the picture's left."""
    left, right, middle = [0.6, 0.2, 0.8, 0.4], [0.1, 0.2, 0.3, 0.4], [0.45, 0.1, 0.56, 0.9]
    for boxes, sides in (([left], {"left"}), ([right, middle], {"right"}), ([middle], set())):
        assert place_said("There.", np.array(boxes)).sides == sides
    assert place_said("On the right.", np.array([left])).sides == {"right"}
    assert joined_side(["left", None, "right"]) == joined_side(["bilateral", "left"]) == "bilateral"
    assert joined_side(["left", None, "left"]) == "left" and joined_side([None]) is None
