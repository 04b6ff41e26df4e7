"""Instructions, dialogues and answers as the paper and its files write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.papers.gemex.dialogue import (
    QUESTION_TYPES,
    assistant_text,
    human_text,
    parse_answer,
    split_choices,
)

CHOICES = ["A: Clear lung fields", "B: Atelectasis", "C: Effusions", "D: Congestion"]


def test_instructions_are_the_released_ones():
    told = {name: kind.instruction for name, kind in QUESTION_TYPES.items()}
    rest = "with a detailed reason and corresponding visual location."
    start = "question, and the assistant will output its answer"
    assert told == {
        "open_ended": f"Input an open-ended {start} {rest}",
        "closed_ended": f"Input a closed-ended {start} (yes or no) {rest}",
        "single_choice": f"Input a single-choice {start} (an option) {rest}",
        "multi_choice": f"Input a multi-choice {start} (some options) {rest}",
    }


def test_options_stand_behind_the_question():
    """Table 13."""
    text = human_text("What is seen?", CHOICES)
    assert text == (
        "What is seen? <choices>: [A: Clear lung fields, B: Atelectasis, C: Effusions, "
        "D: Congestion]"
    )
    assert split_choices(text) == ("What is seen?", CHOICES)
    assert split_choices("What is seen?") == ("What is seen?", None)
    tricky = ["A: Mild, or none", "B: Heart, B: lung"]
    asked = human_text("Which?", tricky)
    question, options = split_choices(asked)
    assert human_text(question, options) == asked


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        ("['B', 'C']", ["B", "C"]),
        ("[B, C]", ["B", "C"]),
        ('["C", "B"]', ["B", "C"]),
        ("B, C", ["B", "C"]),
        ("B and C", ["B", "C"]),
        ("B: Atelectasis, C: Effusions", ["B", "C"]),
        ("Atelectasis, effusions", ["B", "C"]),
        ("[D]", ["D"]),
        ("A", ["A"]),
    ],
)
def test_letters_in_every_spelling(answer, key):
    parsed = parse_answer(f"<answer> {answer} <reason> So. <location> []", "multi_choice", CHOICES)
    assert parsed.key == key
    assert parsed.failures == ()


@pytest.mark.parametrize(
    ("answer", "key"),
    [("B", "B"), ("B.", "B"), ("(B)", "B"), ("B: Atelectasis", "B"), ("atelectasis", "B")],
)
def test_one_letter_in_every_spelling(answer, key):
    parsed = parse_answer(f"<answer>{answer} <reason>So. <location>[]", "single_choice", CHOICES)
    assert parsed.key == key


@pytest.mark.parametrize(
    ("text", "kind", "failures"),
    [
        ("", "open_ended", ("no_answer", "no_reason", "no_location")),
        ("Clear.", "open_ended", ("no_reason", "no_location")),
        ("<answer> <reason> So.", "open_ended", ("no_answer", "no_location")),
        ("<answer>Perhaps <reason>x <location>[]", "closed_ended", ("not_yes_or_no",)),
        ("<answer>E <reason>x <location>[]", "single_choice", ("not_an_option",)),
        ("<answer>Fracture <reason>x <location>[]", "multi_choice", ("not_an_option",)),
        ("<answer>A, B <reason>x <location>[]", "single_choice", ("several_options",)),
        ("<answer>Yes. <reason>x <location>[[1, 2, 3, 4]]", "closed_ended", ()),
        ("<answer>No, there is none. <reason>x <location>[]", "closed_ended", ()),
    ],
)
def test_failure_categories(text, kind, failures):
    assert parse_answer(text, kind, CHOICES).failures == failures


@pytest.mark.parametrize(
    "text",
    [
        # Tables 10 to 13 have the turn's marks around it.
        "### Assistant: <answer>[B, C] <reason>Both. <location>[[26, 119, 217, 183]]\n###",
        "<answer>[B, C] <reason>Both. <location>[[26, 119, 217, 183]] ### Human: And A?",
        "<answer> ['B', 'C'] <reason> Both. <location> [[26, 119, 217, 183]]</s>",
        "Sure, gladly! <answer> B, C <reason> Both. <location> [[26, 119, 217, 183]]",
    ],
)
def test_what_stands_around_a_turn_is_no_part_of_it(text):
    parsed = parse_answer(text, "multi_choice", CHOICES)
    assert (parsed.key, parsed.reason, parsed.failures) == (["B", "C"], "Both.", ())
    assert parsed.location.replace("> [", ">[") == "<location>[[26, 119, 217, 183]]"


@given(st.text(max_size=200), st.sampled_from(list(QUESTION_TYPES)))
def test_reading_never_raises(text, kind):
    parsed = parse_answer(text, kind, CHOICES)
    assert (parsed.key is None) <= bool(parsed.failures)


plain = st.text("abc de.", min_size=1).map(str.strip).filter(bool)


@given(plain, plain)
def test_what_is_written_is_read(answer, reason):
    text = assistant_text(answer, reason, "<location>[[1, 2, 3, 4]]")
    parsed = parse_answer(text, "open_ended")
    assert (parsed.answer, parsed.reason) == (answer, reason)
    assert parsed.location == "<location>[[1, 2, 3, 4]]"
