"""Facts right, wrong, missing, made up and repeated, and where their words stand."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.radiology_text.facts import FactLabel, align, decompose

_SENTENCES = (
    "Bóng tim to",
    "Tràn dịch màng phổi phải",
    "Không thấy tràn khí màng phổi",
    "Xơ phổi trái",
    "Quai động mạch chủ giãn",
)
_REPORT = st.lists(st.sampled_from(_SENTENCES), max_size=6).map(lambda s: ". ".join(s))


def labels(prediction, reference, lang="vi"):
    aligned = align(prediction, reference, lang)
    return [(part.label, part.predicted or part.reference) for part in aligned]


def test_each_label():
    reference = "Bóng tim to. Tràn dịch màng phổi phải. Xơ phổi trái."
    prediction = "Bóng tim to. Tràn dịch màng phổi trái. Bóng tim to. Gãy xương đòn."
    assert labels(prediction, reference) == [
        (FactLabel.CORRECT, "Bóng tim to"),
        (FactLabel.INCORRECT, "Tràn dịch màng phổi trái"),
        (FactLabel.REDUNDANT, "Bóng tim to"),
        (FactLabel.HALLUCINATED, "Gãy xương đòn"),
        (FactLabel.MISSING, "Xơ phổi trái"),
    ]


def test_spans_are_the_words_of_each_text():
    reference = unicodedata.normalize(
        "NFC", "Bóng tim to. Không thấy tràn dịch, tràn khí màng phổi."
    )
    prediction = "Không thấy tràn khí màng phổi. Bóng tim to."
    cut = [
        (
            part.predicted_span and prediction[slice(*part.predicted_span)],
            part.reference_span and reference[slice(*part.reference_span)],
        )
        for part in align(prediction, reference, "vi")
    ]
    assert cut == [
        ("Không thấy tràn khí màng phổi", "tràn khí màng phổi"),
        ("Bóng tim to", "Bóng tim to"),
        (None, "Không thấy tràn dịch"),
    ]


@pytest.mark.parametrize(
    ("predicted", "true", "lang"),
    [
        ("Không thấy tràn dịch màng phổi", "Thấy tràn dịch màng phổi", "vi"),
        ("Đám mờ 1/3 trên phổi phải", "Đám mờ 1/3 dưới phổi phải", "vi"),
        ("Dày màng phổi hai bên", "Dày màng phổi trái", "vi"),
        ("No left pleural effusion", "Left pleural effusion", "en"),
        ("Small left pleural effusion", "Large left pleural effusion", "en"),
    ],
)
def test_what_says_the_contrary_is_incorrect_however_alike(predicted, true, lang):
    ((label, _),) = labels(predicted, true, lang)
    assert label == FactLabel.INCORRECT


def test_the_same_is_preferred_to_the_contrary():
    reference = "Dày màng phổi trái. Dày màng phổi phải."
    assert [label for label, _ in labels("Dày màng phổi phải.", reference)] == [
        FactLabel.CORRECT,
        FactLabel.MISSING,
    ]


@given(_REPORT, _REPORT)
def test_every_fact_stands_there_once(prediction, reference):
    aligned = align(prediction, reference, "vi")
    predicted = [fact.text for fact in decompose(prediction, "vi")]
    assert [a.predicted for a in aligned if a.predicted] == predicted
    true = {fact.text for fact in decompose(reference, "vi")}
    assert {a.reference for a in aligned if a.reference} == true
    for part in aligned:
        assert (part.label == FactLabel.MISSING) == (not part.predicted)
        assert (part.predicted_span is None) == (not part.predicted)
    assert {a.label for a in align(reference, reference, "vi")} <= {FactLabel.CORRECT}
