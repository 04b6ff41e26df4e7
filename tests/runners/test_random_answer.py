"""Chance: what it is right in, by arithmetic, and that it can be drawn again."""

import collections
import math
import random

import pytest

from cxrjax.papers.gemex.dialogue import parse_answer
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.radiology_text.mentions import MentionReader
from cxrjax.runners.baselines import draw_answer

_DRAWS = 20_000
_OPTIONS = ["A: Clear", "B: Wet", "C: Dense", "D: Small"]


def _share_right(make, right):
    """How often an answer drawn for one of many questions is read as `right`."""
    hits = 0
    for number in range(_DRAWS):
        asked = make(number)
        text = draw_answer(asked, random.Random(f"0/{asked.question_id}"), CLASSES)
        hits += parse_answer(text, asked.question_type, asked.choices).key == right
    return hits / _DRAWS


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
    found = _share_right(
        lambda number: record(
            number, dataset="gemex", question="Choose.", question_type=kind, choices=choices
        ),
        right,
    )
    # Four standard errors of so many draws.
    assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / _DRAWS)


def test_a_finding_is_there_or_not_and_a_class_is_one_of_14(record):
    reader = MentionReader()
    asked = record(1, question="Where is the nodule?", finding="Nodule/Mass")
    said = collections.Counter(
        reader.read(draw_answer(asked, random.Random(seed), CLASSES), "Nodule/Mass").present
        for seed in range(400)
    )
    assert set(said) == {frozenset(), frozenset({"Nodule/Mass"})}
    assert 150 < said[frozenset()] < 250
    what = record(2, dataset="vindr_cxr_vqa")
    named = collections.Counter(
        reader.read(draw_answer(what, random.Random(seed), CLASSES), None).present
        for seed in range(1400)
    )
    assert set(named) == {frozenset({name}) for name in CLASSES}
    assert max(named.values()) < 150
    assert (
        draw_answer(record(3, dataset="gemex", question_type="open_ended"), random.Random(0), ())
        == ""
    )
