"""The form of GEMeX's questions and answers (arXiv 2411.16778, section 4.1 and Table 4).

    Input a single-choice question, and the assistant will output its answer (an option) with ...
    <question> <choices>: [A: Pulmonary edema, B: Pleural effusion]
    <answer> B <reason> There is fluid ... <location> [[48, 48, 175, 180]]

The released files put a space behind each tag, the paper's tables none; both are read.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from cxrjax.radiology_text.english import plain_words

LETTERS = "ABCDEFGH"

AnswerFailure = Literal[
    "no_answer",
    "not_an_option",
    "several_options",
    "undecided",
    "not_yes_or_no",
    "no_reason",
    "no_location",
]


@dataclasses.dataclass(frozen=True)
class QuestionType:
    """A kind of question."""

    native: str  # the type's name in the released training rows
    test_name: str  # its part of the released test files' names
    instruction: str  # X_type of the paper's section 4.1, the words before a question


def _instruction(kind: str, supplement: str = "") -> str:
    article = "an" if kind[0] in "aeiou" else "a"
    supplement = supplement and f" ({supplement})"
    return (
        f"Input {article} {kind} question, and the assistant will output its answer{supplement} "
        "with a detailed reason and corresponding visual location."
    )


QUESTION_TYPES = {
    "open_ended": QuestionType("open_ended_questions", "open_ended", _instruction("open-ended")),
    "closed_ended": QuestionType(
        "closed_ended_questions", "closed_ended", _instruction("closed-ended", "yes or no")
    ),
    "single_choice": QuestionType(
        "single_choice_questions", "single_choice", _instruction("single-choice", "an option")
    ),
    "multi_choice": QuestionType(
        "multi_choice_questions", "multi_choice", _instruction("multi-choice", "some options")
    ),
}


class ParsedAnswer(NamedTuple):
    """The parts of an answer's text."""

    answer: str  # the words between `<answer>` and the next tag
    # "Yes" or "No", a letter, letters in order; the answer itself where it is open; None where it
    # cannot be told.
    key: str | list[str] | None
    reason: str  # the words behind `<reason>`
    location: str  # what follows `<location>`, tag included; the codec `gemex` reads it
    # What was missing or could not be read, without the boxes' own failures.
    failures: tuple[AnswerFailure, ...]


def human_text(question: str, choices: Sequence[str] | None) -> str:
    """The question with its options, as the human says it (Tables 10 to 13)."""
    return f"{question} <choices>: [{', '.join(choices)}]" if choices else question


def split_choices(text: str) -> tuple[str, list[str] | None]:
    """The inverse of `human_text`: (question, options with their letters)."""
    question, found, listed = text.rpartition(" <choices>: [")
    if not found or not listed.rstrip().endswith("]"):
        return text, None
    body = listed.rstrip()[:-1]
    starts = [match.start() for match in re.finditer(r"(?:(?<=, )|\A)[A-H]: ", body)]
    ends = [start - 2 for start in starts[1:]] + [len(body)]
    options = [body[start:end] for start, end in zip(starts, ends, strict=True)]
    return (question, options) if ", ".join(options) == body and options else (text, None)


def assistant_text(answer: str | Sequence[str], reason: str, location: str) -> str:
    """`<answer> ... <reason> ... <location>...`.

    Args:
        answer: words, a letter, or letters, which are written `['A', 'C']` as the release does.
        location: boxes as the codec `gemex` writes them; "" for none.
    """
    written = answer if isinstance(answer, str) else str(list(answer))
    return f"<answer> {written} <reason> {reason} {location or '<location>[]'}"


# The end of a turn, and who speaks next (Tables 10 to 13; </s> and <STOP> of other checkpoints).
_TURN = re.compile(r"###|</s>|<STOP>")
_SPEAKER = re.compile(r"\s{0,9}Assistant\s{0,3}:\s{0,9}", re.IGNORECASE)
_TAGS = re.compile(r"<\s{0,3}(answer|reason|location)\s{0,3}>:?", re.IGNORECASE)


def parse_answer(
    text: str, question_type: str, choices: Sequence[str] | None = None
) -> ParsedAnswer:
    """Reads a model's answer; never raises on what it wrote.

    A text without tags is all answer; words before the first tag are one where no other is given.
    Of a tag that stands several times, the first counts. What follows the turn's end does not.

    Args:
        question_type: a key of `QUESTION_TYPES`.
        choices: the options that were offered, `A: ...`; letters beyond them are no options.
    """
    text = _own_turn(text)
    parts: dict[str, str] = {}
    tags = list(_TAGS.finditer(text))
    ends = [*(tag.start() for tag in tags[1:]), len(text)][: len(tags)]
    for tag, end in zip(tags, ends, strict=True):
        name = tag[1].lower()
        body = text[tag.end() : end].strip()
        if not parts.get(name):
            parts[name] = text[tag.start() : end].strip() if name == "location" else body
    answer = parts.get("answer") or text[: tags[0].start() if tags else len(text)].strip()
    failures: list[AnswerFailure] = []
    key: str | list[str] | None = None
    if not answer:
        failures.append("no_answer")
    elif question_type == "closed_ended":
        key = _yes_or_no(answer)
        if key is None:
            failures.append("not_yes_or_no")
    elif question_type in ("single_choice", "multi_choice"):
        letters = _letters(answer, choices)
        if not letters:
            failures.append("not_an_option")
        elif question_type == "multi_choice":
            key = letters
        elif len(letters) > 1:
            failures.append("several_options")
        else:
            key = letters[0]
    else:
        key = answer
    if not parts.get("reason"):
        failures.append("no_reason")
    if not parts.get("location"):
        failures.append("no_location")
    return ParsedAnswer(
        answer, key, parts.get("reason", ""), parts.get("location", ""), tuple(failures)
    )


def _own_turn(text: str) -> str:
    """The assistant's first turn, without marks of turns."""
    turns = (
        turn[match.end() :] if (match := _SPEAKER.match(turn)) else turn
        for turn in _TURN.split(text)
    )
    return next((turn for turn in turns if turn.strip()), "")


def _yes_or_no(answer: str) -> str | None:
    match = re.match(r"\W{0,5}(yes|no)\b", answer, re.IGNORECASE)
    return match[1].capitalize() if match else None


_LETTER_LIST = re.compile(
    r"""[\[(]?\s*['"]?[A-H]['"]?[.:)]?(?:\s*(?:,|;|\band\b|&|\s)\s*['"]?[A-H]['"]?[.:)]?)*\s*[\])]?\.?"""
)


def _letters(answer: str, choices: Sequence[str] | None) -> list[str]:
    """The options that an answer names: by letters, by `A: words`, or by their very words."""
    offered = [choice[0] for choice in choices] if choices else list(LETTERS)
    plain = answer.strip()
    named: list[str] = []
    if _LETTER_LIST.fullmatch(plain):
        named = re.findall(r"(?<![A-Za-z])[A-H](?![A-Za-z])", plain)
    elif re.match(r"[\[(]?['\"]?[A-H]\s?[:.)]\s?\w", plain):
        named = re.findall(r"(?:\A[\[(]?|[,;\n]\s?|\band )['\"]?([A-H])\s?[:.)]", plain)
    elif choices:
        words = {plain_words(choice.partition(":")[2]): choice[0] for choice in choices}
        whole = words.get(plain_words(plain))
        parts = [plain] if whole else re.split(r",|;|\band\b", plain.strip("[] "))
        found = [words.get(plain_words(part)) for part in parts]
        named = [letter for letter in found if letter] if all(found) else []
    return sorted({letter for letter in named if letter in offered})
