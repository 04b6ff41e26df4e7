"""Texts taken apart by rules, and facts matched one to one."""

import itertools
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.radiology_text.facts import (
    decompose,
    entails,
    fact_ratio,
    is_denial,
    is_refusal,
    one_to_one,
    pair_up,
    same,
    similarity,
)

EDGES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=9)
FACTS = st.lists(
    st.sampled_from(["bóng tim to", "xơ phổi trái", "xơ phổi phải", "rốn phổi đậm", "nốt vôi hóa"]),
    max_size=5,
    unique=True,
)


@pytest.mark.parametrize(
    ("lang", "text", "facts"),
    [
        (
            "en",
            "No effusion, pneumothorax or consolidation. Small nodules in the left upper and lower "
            "lobes.",
            [
                "No effusion",
                "no pneumothorax",
                "no consolidation",
                "Small nodules in the left upper and lower lobes",
            ],
        ),
        (
            "en",
            "Mild cardiomegaly and a small left effusion, but no edema. The lungs are clear.",
            ["Mild cardiomegaly", "a small left effusion", "no edema", "The lungs are clear"],
        ),
        ("en", "Yes, there is a 1.5 cm nodule. Recommend follow-up.", ["there is a 1.5 cm nodule"]),
        ("en", "No acute, displaced rib fracture.", ["No acute, displaced rib fracture"]),
        ("en", "Yes.", ["Yes"]),
        ("en", "Is there an effusion? No.", ["No"]),
        (
            "vi",
            "Không thấy tràn dịch, tràn khí màng phổi. Bóng tim to, chỉ số 0,55; phổi sáng.\n",
            [
                "Không thấy tràn dịch",
                "không thấy tràn khí màng phổi",
                "Bóng tim to",
                "chỉ số 0,55",
                "phổi sáng",
            ],
        ),
        (
            "vi",
            "Quai động mạch chủ giãn rộng và vồng cao.",
            ["Quai động mạch chủ giãn rộng và vồng cao"],
        ),
        ("vi", "Không thấy đám mờ hay nốt.", ["Không thấy đám mờ", "không thấy nốt"]),
        ("vi", "Tim to. Đề nghị kết hợp lâm sàng.", ["Tim to"]),
        ("vi", "Xin lỗi, tôi không thể chẩn đoán hình ảnh này.", []),
        ("vi", " ,. ", []),
    ],
)
def test_facts_of_a_text(lang, text, facts):
    assert [fact.text for fact in decompose(text, lang)] == facts


@given(st.text(alphabet="aáâ ạbn.,;!?\n0 ", max_size=60), st.sampled_from(["en", "vi"]))
def test_facts_are_the_texts_own_words_in_order(text, lang):
    plain = unicodedata.normalize("NFC", text)
    facts = decompose(text, lang)
    for fact in facts:
        assert fact.text.endswith(plain[fact.start : fact.end]) and fact.text.strip() == fact.text
    for one, two in itertools.pairwise(facts):
        assert one.end <= two.start


@pytest.mark.parametrize(
    ("first", "second", "lang", "agree"),
    [
        ("the heart is enlarged", "mild cardiomegaly", "en", True),
        ("the lungs are clear", "no lung opacity", "en", True),
        ("effusion", "no effusion", "en", False),
        ("left effusion", "right effusion", "en", False),
        ("left effusion", "bilateral effusions", "en", False),
        ("left effusion", "effusion", "en", True),
        ("small effusion", "large effusion", "en", False),
        ("bóng tim to", "diện tim rộng", "vi", True),
        ("bóng tim to", "bóng tim không to", "vi", False),
        ("tràn dịch màng phổi", "không có tràn dịch màng phổi", "vi", False),
        ("rốn phổi đậm", "rốn phổi không đậm", "vi", False),
    ],
)
def test_what_says_the_same(first, second, lang, agree):
    assert same(first, second, lang) == same(second, first, lang) == agree


@pytest.mark.parametrize(
    ("premise", "fact", "follows"),
    [
        ("small left pleural effusion", "pleural effusion", True),
        ("pleural effusion", "small pleural effusion", False),
        ("pleural effusion", "left pleural effusion", False),
        ("bilateral pleural effusions", "left pleural effusion", True),
        ("large right effusion", "large left effusion", False),
        ("consolidation", "lung opacity", True),
        ("lung opacity", "consolidation", False),
        ("no lung opacity", "no consolidation", True),
        ("no consolidation", "no lung opacity", False),
        ("no pleural effusion", "no left pleural effusion", True),
        ("no left pleural effusion", "no pleural effusion", False),
        ("no pneumothorax", "no large pneumothorax", True),
        ("effusion", "no effusion", False),
        ("possible effusion", "effusion", False),
        ("pneumothorax", "effusion", False),
        ("the patient is rotated", "pneumothorax", False),
        ("effusion", "the patient is rotated", False),
    ],
)
def test_what_follows_from_what(premise, fact, follows):
    assert entails(premise, fact, "en") == follows
    assert entails(fact, fact, "en") and entails(premise, premise, "en")


def test_what_only_denies():
    assert is_denial("no effusion or pneumothorax", "en") and is_denial("the heart is normal", "en")
    assert not is_denial("no effusion, but a nodule", "en")
    assert not is_denial("the patient is rotated", "en")


@settings(deadline=None)  # the first case loads SciPy
@given(EDGES)
def test_one_to_one_is_as_large_as_any(edges):
    chosen = one_to_one(edges)
    assert set(chosen) <= set(edges)
    for side in range(2):
        assert len({pair[side] for pair in chosen}) == len(chosen)
    possible = set(edges)
    best = max(
        size
        for size in range(len(possible) + 1)
        if size <= 5
        and any(
            len({a for a, _ in some}) == len({b for _, b in some}) == size
            for some in itertools.combinations(possible, size)
        )
    )
    assert len(chosen) == best


@settings(deadline=None)
@given(FACTS, FACTS)
def test_pairs_hold_all_that_is_in_both(predicted, true):
    pairs = dict(pair_up(predicted, true, "vi"))
    assert len(set(pairs.values())) == len(pairs)
    for index, fact in enumerate(predicted):
        if fact in true:
            assert true[pairs[index]] == fact
    assert all(similarity(predicted[a], true[b]) >= 0.35 for a, b in pairs.items())


def test_ratio_where_there_is_nothing():
    assert [fact_ratio(1, 2, 3), fact_ratio(0, 0, 3), fact_ratio(0, 3, 0), fact_ratio(0, 0, 0)] == [
        0.5,
        0.0,
        0.0,
        1.0,
    ]


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
