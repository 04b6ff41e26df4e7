"""What answers to choice questions name, in GEMeX's form and out of what other models say."""

import itertools
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import jaccard_score
from sklearn.preprocessing import MultiLabelBinarizer

from cxrjax.papers.gemex.choices import chance, jaccard, named_options
from cxrjax.papers.gemex.dialogue import assistant_text

CHOICES = ["A: Clear lung fields", "B: Atelectasis", "C: Pleural effusion", "D: No effusion"]
LETTERS = st.lists(st.sampled_from("ABCD"), min_size=1, unique=True).map(sorted)


def multi(text):
    return "".join(sorted(named_options(text, "multi_choice", CHOICES).options or ()))


def single(text):
    return named_options(text, "single_choice", CHOICES)


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("['A', 'C']", "AC"),  # the released training rows
        ("[B, C]", "BC"),  # the paper's tables
        ("A and C", "AC"),
        ("<answer>[B, C] <reason>Both. <location>[[1, 2, 30, 40]]", "BC"),
        ("The correct options are: B and D", "BD"),
        ("**Answer:** B, C", "BC"),
        ("I think the answers are (A) and (C).", "AC"),
        ("B. Atelectasis\nC. Pleural effusion", "BC"),
        ("Both B and C are seen here.", "BC"),
        ("Atelectasis and a pleural-effusion are visible.", "BC"),
        ("There is no atelectasis, but there is a pleural effusion.", "C"),
        ("No effusion is seen.", "D"),
        ("A small something is seen.", ""),
        ("<answer> E <reason> x <location>[]", ""),
        ("", ""),
    ],
)
def test_multi_choice(text, letters):
    assert multi(text) == letters


def test_single_choice():
    assert single("The answer is B, since C is absent.").options == {"B"}
    assert single("Option B is incorrect. Option C is correct.").options == {"C"}
    listed = "A: Clear lung fields\nB: Atelectasis\nThe answer is B."
    assert single(listed).options == {"B"}
    assert single("C").in_form is False
    assert single("<answer> C <reason> x").in_form is True
    for text, failure in [
        ("A and B", "several_options"),
        ("Atelectasis with a pleural effusion.", "several_options"),
        ("I see a heart.", "not_an_option"),
        ("  ", "no_answer"),
    ]:
        assert single(text) == (None, False, failure)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<answer> Yes. <reason> No.", "Yes"),
        ("No, there is none.", "No"),
        ("The image shows fluid. Yes.", "Yes"),
        ("The answer is no.", "No"),
        ("I would say: yes", "Yes"),
        ("There is no effusion", None),  # which may be either answer to "Are the angles sharp?"
        ("It depends: yes, or: no.", None),
        ("Perhaps.", None),
    ],
)
def test_closed(text, said):
    found = named_options(text, "closed_ended", None)
    assert found.options == ({said} if said else None)
    assert (found.failure is None) == (said is not None)


@given(LETTERS, st.booleans())
def test_what_is_written_in_form_is_read_back(letters, tagged):
    text = assistant_text(letters, "It is seen.", "") if tagged else str(letters)
    found = named_options(text, "multi_choice", CHOICES)
    assert found == (frozenset(letters), tagged, None)


@given(st.text(), st.sampled_from(["closed_ended", "single_choice", "multi_choice"]))
def test_nothing_raises_and_nothing_is_named_that_was_not_offered(text, kind):
    found = named_options(text, kind, CHOICES)
    assert (found.options is None) == (found.failure is not None)
    assert (found.options or set()) <= {"A", "B", "C", "D", "Yes", "No"}


def test_long_texts_take_linear_time():
    rng = random.Random(0)
    pieces = ["A, ", "[B", "(", "answer is ", "option ", "no effusion, ", "\n", "C", "yes", ": "]
    for text in ("answer is " * 90_000, "A, " * 300_000, "".join(rng.choices(pieces, k=250_000))):
        for kind in ("closed_ended", "multi_choice"):
            start = time.process_time()
            named_options(text, kind, CHOICES)
            assert time.process_time() - start < 30


@given(LETTERS, LETTERS)
def test_jaccard_is_scikit_learns(named, truth):
    binary = MultiLabelBinarizer(classes=list("ABCD")).fit([])
    expected = jaccard_score(
        binary.transform([truth]), binary.transform([named]), average="samples"
    )
    assert jaccard(frozenset(named), frozenset(truth)) == pytest.approx(expected)


def test_chance_counts_all_guesses():
    for options in (2, 3, 4):
        sets = [
            set(chosen)
            for size in range(1, options + 1)
            for chosen in itertools.combinations(range(options), size)
        ]
        assert chance("multi_choice", options) == pytest.approx(1 / len(sets))
    # The paper's random row: 7.50 % on multi-choice, 25.85 % on single-choice, 48.80 % on closed.
    assert chance("multi_choice", 4) == pytest.approx(1 / 15)
    assert chance("multi_choice", 3) == pytest.approx(1 / 7)
    assert chance("single_choice", 4) == 0.25
    assert chance("closed_ended", 2) == 0.5
