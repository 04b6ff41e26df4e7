"""Texts taken apart by rules, facts matched one to one, and what is right and wrong in a text."""

import itertools
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.radiology_text import facts as rules
from tests.radiology_text.conftest import CASES

EDGES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=9)
FACTS = st.lists(
    st.sampled_from(["bóng tim to", "xơ phổi trái", "xơ phổi phải", "rốn phổi đậm", "nốt vôi hóa"]),
    max_size=5,
    unique=True,
)


def test_facts_of_a_text(subtests):
    for lang, text, facts in CASES["facts_of_a_text"]:
        with subtests.test(text):
            assert [fact.text for fact in rules.decompose(text, lang)] == facts


@given(st.text(alphabet="aáâ ạbn.,;!?\n0 ", max_size=60), st.sampled_from(["en", "vi"]))
def test_facts_are_the_texts_own_words_in_order(text, lang):
    plain = unicodedata.normalize("NFC", text)
    facts = rules.decompose(text, lang)
    for fact in facts:
        assert fact.text.endswith(plain[fact.start : fact.end]) and fact.text.strip() == fact.text
    for one, two in itertools.pairwise(facts):
        assert one.end <= two.start


def test_what_says_the_same(subtests):
    for first, second, lang, agree in CASES["what_says_the_same"]:
        with subtests.test(first, second=second):
            assert rules.same(first, second, lang) == rules.same(second, first, lang) == agree


def test_what_follows_from_what(subtests):
    for premise, fact, follows in CASES["what_follows_from_what"]:
        with subtests.test(premise, fact=fact):
            assert rules.entails(premise, fact, "en") == follows
            assert rules.entails(fact, fact, "en") and rules.entails(premise, premise, "en")


def test_what_only_denies():
    for text in ("no effusion or pneumothorax", "the heart is normal"):
        assert rules.is_denial(text, "en")
    for text in ("no effusion, but a nodule", "the patient is rotated"):
        assert not rules.is_denial(text, "en")


@settings(deadline=None)  # the first case loads SciPy
@given(EDGES)
def test_one_to_one_is_as_large_as_any(edges):
    chosen = rules.one_to_one(edges)
    assert set(chosen) <= set(edges)
    for side in range(2):
        assert len({pair[side] for pair in chosen}) == len(chosen)
    possible = set(edges)

    def can_stand_together(some):
        return len({a for a, _ in some}) == len({b for _, b in some}) == len(some)

    best = max(
        size
        for size in range(min(len(possible), 5) + 1)
        if any(map(can_stand_together, itertools.combinations(possible, size)))
    )
    assert len(chosen) == best


@given(FACTS, FACTS)
def test_pairs_hold_all_that_is_in_both(predicted, true):
    pairs = dict(rules.pair_up(predicted, true, "vi"))
    assert len(set(pairs.values())) == len(pairs)
    for index, fact in enumerate(predicted):
        if fact in true:
            assert true[pairs[index]] == fact
    assert all(rules.similarity(predicted[a], true[b]) >= 0.35 for a, b in pairs.items())


def test_ratio_where_there_is_nothing():
    for counts, ratio in {(1, 2, 3): 0.5, (0, 0, 3): 0, (0, 3, 0): 0, (0, 0, 0): 1}.items():
        assert rules.fact_ratio(*counts) == ratio


def test_refusals(subtests):
    for text, refused in CASES["refusals"]:
        with subtests.test(text):
            assert rules.is_refusal(text) == refused


# Facts right, wrong, missing, made up and repeated, and where their words stand.


_SENTENCES = "Bóng tim to|Tràn dịch màng phổi phải|Không thấy tràn khí màng phổi|Xơ phổi trái"
_SENTENCES += "|Quai động mạch chủ giãn"
_REPORT = st.lists(st.sampled_from(_SENTENCES.split("|")), max_size=6).map(". ".join)


def labels(prediction, reference, lang="vi"):
    aligned = rules.align(prediction, reference, lang)
    return [(part.label, part.predicted or part.reference) for part in aligned]


def test_each_label():
    reference = "Bóng tim to. Tràn dịch màng phổi phải. Xơ phổi trái."
    prediction = "Bóng tim to. Tràn dịch màng phổi trái. Bóng tim to. Gãy xương đòn."
    assert labels(prediction, reference) == [
        (rules.FactLabel.CORRECT, "Bóng tim to"),
        (rules.FactLabel.INCORRECT, "Tràn dịch màng phổi trái"),
        (rules.FactLabel.REDUNDANT, "Bóng tim to"),
        (rules.FactLabel.HALLUCINATED, "Gãy xương đòn"),
        (rules.FactLabel.MISSING, "Xơ phổi trái"),
    ]


def test_spans_are_the_words_of_each_text():
    reference = "Bóng tim to. Không thấy tràn dịch, tràn khí màng phổi."
    prediction = "Không thấy tràn khí màng phổi. Bóng tim to."
    texts = [unicodedata.normalize("NFC", text) for text in (prediction, reference)]
    spans = [(p.predicted_span, p.reference_span) for p in rules.align(*texts, "vi")]
    cut = [
        tuple(span and text[slice(*span)] for text, span in zip(texts, pair, strict=True))
        for pair in spans
    ]
    assert cut == [
        ("Không thấy tràn khí màng phổi", "tràn khí màng phổi"),
        ("Bóng tim to", "Bóng tim to"),
        (None, "Không thấy tràn dịch"),
    ]


def test_what_says_the_contrary_is_incorrect_however_alike(subtests):
    for predicted, true, lang in CASES["contrary"]:
        with subtests.test(predicted):
            ((label, _),) = labels(predicted, true, lang)
            assert label == rules.FactLabel.INCORRECT


def test_the_same_is_preferred_to_the_contrary():
    reference = "Dày màng phổi trái. Dày màng phổi phải."
    found = [label for label, _ in labels("Dày màng phổi phải.", reference)]
    assert found == [rules.FactLabel.CORRECT, rules.FactLabel.MISSING]


@given(_REPORT, _REPORT)
def test_every_fact_stands_there_once(prediction, reference):
    aligned = rules.align(prediction, reference, "vi")
    predicted = [fact.text for fact in rules.decompose(prediction, "vi")]
    assert [a.predicted for a in aligned if a.predicted] == predicted
    true = {fact.text for fact in rules.decompose(reference, "vi")}
    assert {a.reference for a in aligned if a.reference} == true
    for part in aligned:
        assert (part.label == rules.FactLabel.MISSING) == (not part.predicted)
        assert (part.predicted_span is None) == (not part.predicted)
    assert {a.label for a in rules.align(reference, reference, "vi")} <= {rules.FactLabel.CORRECT}
