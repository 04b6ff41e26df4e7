"""What is set apart in answers and references."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.pages.results.marks import MarkedSpan, in_words, mark_facts, mark_words, pieces


def _text(cut) -> str:
    return "".join(piece if isinstance(piece, str) else piece[0] for piece in cut)


def test_words_that_differ_are_set_apart_in_both_texts():
    said, true = mark_words("There is a small effusion.", "There is no effusion on the left.")
    assert said == ["There is ", ("a small", "incorrect"), " effusion."]
    assert true == [
        "There is ",
        ("no", "incorrect"),
        " effusion ",
        ("on the left", "missing"),
        ".",
    ]
    said, true = mark_words("Large effusion, left", "effusion LEFT")
    assert said == [("Large", "added"), " effusion, left"] and true == ["effusion LEFT"]


def test_box_notation_is_set_apart_and_not_compared():
    said, true = mark_words(
        "Mass <loc0001><loc0002> here [[1, 2, 3, 4], [5, 6, 7, 8]]", "Mass <loc_9_9_9_9> here"
    )
    assert said == [
        "Mass ",
        ("<loc0001><loc0002>", "box"),
        " here ",
        ("[[1, 2, 3, 4], [5, 6, 7, 8]]", "box"),
    ]
    assert true == ["Mass ", ("<loc_9_9_9_9>", "box"), " here"]
    assert mark_words("[see note]", "[see note]")[0] == ["[see note]"]


def test_boxes_part_runs_of_words():
    said, _ = mark_words("one <loc0001> two", "three")
    assert said == [("one", "incorrect"), " ", ("<loc0001>", "box"), " ", ("two", "incorrect")]


def test_an_empty_side_has_nothing_to_be_compared_with():
    assert mark_words("", "no effusion") == ([], ["no effusion"])
    assert mark_words("effusion <loc1>", "") == (["effusion ", ("<loc1>", "box")], [])


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


def test_very_long_texts_do_not_hang():
    start = time.process_time()
    said, _ = mark_words("a " * 100_000, "b " * 100_000)
    assert _text(said) == "a " * 100_000 and time.process_time() - start < 60


def test_facts_are_compared_by_what_they_say():
    true = "Tràn dịch màng phổi phải. Bóng tim không to."
    said, reference = mark_facts("Bóng tim không to. Gãy xương sườn trái.", true, "vi")
    assert ("Gãy xương sườn trái", "added") in said
    assert ("Bóng tim không to", "correct") in said and (
        "Bóng tim không to",
        "correct",
    ) in reference
    assert ("Tràn dịch màng phổi phải", "missing") in reference
    assert _text(reference) == true
    assert mark_facts("", true, "vi") == ([], [true])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Here <loc_1_2_3_4> and <loc_5_6_7_8>.", "Here (1) and (2)."),
        ("Here <loc0001><loc0002><loc0003><loc0004>.", "Here (1)."),
        ("<loc0001><loc0002><loc0003><loc0004><loc0001><loc0002><loc0003><loc0004>", "(1) (2)"),
        ("At [[0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4]]", "At (1) (2)"),
        ("Cut off at <loc_12_3", "Cut off at (1)"),
        ("Nothing is there.", "Nothing is there."),
    ],
)
def test_box_notation_becomes_numbers(text, words):
    found = in_words(mark_words(text, "")[0])
    assert "".join(piece if isinstance(piece, str) else piece[0] for piece in found) == words
