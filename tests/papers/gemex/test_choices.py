"""What answers to choice questions name, in GEMeX's form and out of what other models say."""

import itertools
import json
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
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


def _labelled(name):
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    for line in lines:
        if not line.startswith("#"):
            kind, question, options, text, chosen = line.split("\t")
            yield kind, question, json.loads(options) or None, json.loads(text), chosen


def _read(kind, question, options, text):
    found = named_options(text, kind, options, question)
    if found.options:
        return next(iter(found.options)) if options is None else "".join(sorted(found.options))
    return "undecided" if found.failure in ("undecided", "several_options") else "nothing"


@pytest.mark.parametrize(
    ("name", "at_least"),
    [
        ("choices_labelled.tsv", 0.97),
        ("choices_labelled_held_out.tsv", 0.97),
        ("choices_models.tsv", 0.97),
        ("choices_fresh.tsv", 0.94),
    ],
)
def test_answers_as_models_write_them(name, at_least):
    rows = list(_labelled(name))
    read = [(_read(*row[:4]), row[4], row[3]) for row in rows]
    wrong = [one for one in read if one[0] != one[1]]
    # What is read at all is read right: who is not understood is counted, never guessed at.
    assert [one for one in wrong if one[0] not in ("undecided", "nothing")] == []
    assert 1 - len(wrong) / len(rows) >= at_least, wrong


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("['B','C','Pneumonia']", "BCD"),
        ("['Pneumonia', 'B']", "BD"),
        ("B (Atelectasis), C (Pleural effusion), Pneumonia", "BCD"),
        ("['B', 'C', 'no pneumonia']", "BC"),
        # What is no option, and a letter that may have another's words.
        ("['B', 'C', 'Fracture']", ""),
        ("B, Pneumonia", ""),
    ],
)
def test_letters_and_words_in_one_list(text, chosen):
    offered = ["A: Cardiomegaly", "B: Atelectasis", "C: Pleural effusion", "D: Pneumonia"]
    found = named_options(text, "multi_choice", offered)
    assert "".join(sorted(found.options or ())) == chosen
    assert (found.failure == "undecided") == (not chosen)


@pytest.mark.parametrize(("text", "said"), [("Normal.", "Yes"), ("It is abnormal.", "No")])
def test_normal_is_yes_to_a_question_of_normality(text, said):
    found = named_options(text, "closed_ended", None, "Is the heart size normal?")
    assert found.options == {said}


def test_single_choice():
    assert single("The answer is B, since C is absent.").options == {"B"}
    assert single("Option B is incorrect. Option C is correct.").options == {"C"}
    listed = "A: Clear lung fields\nB: Atelectasis\nThe answer is B."
    assert single(listed).options == {"B"}
    assert single("C").in_form is False
    assert single("C? I'm not sure. Final answer: B").options == {"B"}
    assert single("I'm not sure. B?").failure == "undecided"
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


@settings(deadline=None)
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
