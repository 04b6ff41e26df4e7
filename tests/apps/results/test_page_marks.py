"""What is set apart in answers and references."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.apps.results.marks import MarkedSpan, in_words, mark_facts, mark_words, pieces
from tests.apps.rows import ROWS


def _text(cut) -> str:
    return "".join(piece if isinstance(piece, str) else piece[0] for piece in cut)


@pytest.mark.parametrize(("one", "two", "said", "true"), ROWS["marked_words"])
def test_words_that_differ_are_set_apart_in_both_texts(one, two, said, true):
    found = [[list(p) if isinstance(p, tuple) else p for p in cut] for cut in mark_words(one, two)]
    assert found == [said, true]


_TEXTS = st.text(alphabet="ab .,<>loc0123[]()é\n", max_size=60)


@given(_TEXTS, _TEXTS)
def test_pieces_are_the_texts_and_equal_texts_have_no_difference(one, two):
    said, true = mark_words(one, two)
    assert (_text(said), _text(true)) == (one, two)
    same, _ = mark_words(one, one)
    assert all(isinstance(piece, str) or piece[1] == "box" for piece in same)


@given(_TEXTS, st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), max_size=5))
def test_any_spans_leave_the_text_whole(text, ends):
    cut = pieces(text, [MarkedSpan(start, min(end, len(text)), "x") for start, end in ends])
    assert _text(cut) == text


def test_facts_are_compared_by_what_they_say_however_long():
    true = "Tràn dịch màng phổi phải. Bóng tim không to."
    said, reference = mark_facts("Bóng tim không to. Gãy xương sườn trái.", true, "vi")
    assert ("Gãy xương sườn trái", "added") in said
    assert ("Bóng tim không to", "correct") in said
    assert ("Bóng tim không to", "correct") in reference
    assert ("Tràn dịch màng phổi phải", "missing") in reference
    assert _text(reference) == true
    assert mark_facts("", true, "vi") == ([], [true])
    start = time.process_time()
    said, _ = mark_words("a " * 100_000, "b " * 100_000)
    assert _text(said) == "a " * 100_000 and time.process_time() - start < 60


@pytest.mark.parametrize(("text", "words"), ROWS["numbered_boxes"])
def test_box_notation_becomes_numbers(text, words):
    assert _text(in_words(mark_words(text, "")[0])) == words
