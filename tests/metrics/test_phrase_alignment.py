"""Phrases right, wrong, missing, made up and repeated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.metrics.phrase_alignment import Label, align, is_refusal, phrases

_SENTENCES = (
    "Bóng tim to",
    "Tràn dịch màng phổi phải",
    "Không thấy tràn khí màng phổi",
    "Xơ phổi trái",
    "Quai động mạch chủ giãn",
)
_REPORT = st.lists(st.sampled_from(_SENTENCES), max_size=6).map(lambda s: ". ".join(s))


def labels(prediction, reference):
    return [(part.label, part.predicted or part.reference) for part in align(prediction, reference)]


def test_each_label():
    reference = "Bóng tim to. Tràn dịch màng phổi phải. Xơ phổi trái."
    prediction = "Bóng tim to. Tràn dịch màng phổi trái. Bóng tim to. Gãy xương đòn."
    assert labels(prediction, reference) == [
        (Label.CORRECT, "Bóng tim to."),
        (Label.INCORRECT, "Tràn dịch màng phổi trái."),
        (Label.REDUNDANT, "Bóng tim to."),
        (Label.HALLUCINATED, "Gãy xương đòn."),
        (Label.MISSING, "Xơ phổi trái."),
    ]


@pytest.mark.parametrize(
    ("predicted", "true"),
    [
        ("Không thấy tràn dịch màng phổi", "Thấy tràn dịch màng phổi"),
        ("Đám mờ 1/3 trên phổi phải", "Đám mờ 1/3 dưới phổi phải"),
        ("Dày màng phổi hai bên", "Dày màng phổi trái"),
    ],
)
def test_what_says_the_contrary_is_incorrect_however_alike(predicted, true):
    ((label, _),) = labels(predicted, true)
    assert label == Label.INCORRECT


def test_the_same_is_preferred_to_the_contrary():
    reference = "Dày màng phổi trái. Dày màng phổi phải."
    assert [label for label, _ in labels("Dày màng phổi phải.", reference)] == [
        Label.CORRECT,
        Label.MISSING,
    ]


def test_phrases_end_at_points_and_commas_and_not_within_numbers():
    assert phrases("Bóng tim to, chỉ số 0,55. Phổi sáng;\n") == [
        "Bóng tim to",
        "chỉ số 0,55.",
        "Phổi sáng",
    ]


@given(_REPORT, _REPORT)
def test_every_phrase_stands_there_once(prediction, reference):
    aligned = align(prediction, reference)
    assert [a.predicted for a in aligned if a.predicted] == phrases(prediction)
    assert sorted(a.reference for a in aligned if a.reference) == sorted(phrases(reference))
    for part in aligned:
        assert (part.label == Label.MISSING) == (not part.predicted)
    assert {a.label for a in align(reference, reference)} <= {Label.CORRECT}


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("Xin lỗi, tôi không thể chẩn đoán hình ảnh này.", True),
        ("I'm sorry, but I can't help with that.", True),
        ("Không thấy tổn thương.", False),
        ("", False),
    ],
)
def test_refusals(text, refused):
    assert is_refusal(text) == refused
