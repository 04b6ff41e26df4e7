"""Reads which options an answer names, and scores a set of options (GEMeX's A-score).

An answer in GEMeX's own form is read by `cxrjax.papers.gemex.dialogue`. Of models that do not
speak that form the paper still matches the answer out of what they said; it does not say how. Here,
the first of these that is found:

1. the letters behind "the answer is", "I choose" and the like: `The answer is A and C.`
2. the letters behind "option" or "choice": `Option B is correct.`
3. letters that begin the response: `B, since ...`, `Both B and C are seen`
4. letters in brackets: `(B)`, `[B, C]`
5. letters that begin a line: `B. Pleural effusion`
6. the words of options, those that are denied left out: `There is a pleural effusion.`

Yes or no: what the answer, one of its sentences or the words behind "the answer is" begins with,
if it is the same throughout. Nothing is guessed: who names two options where one is asked for has
named none.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cxrjax.papers.gemex.dialogue import AnswerFailure, ParsedAnswer, parse_answer
from cxrjax.radiology_text.negation import DENIES_AFTER, DENIES_BEFORE, SENTENCE, clauses, denied

# Whoever answers at greater length than this has not named an option; the work grows with it.
_LONGEST = 20_000


class NamedOptions(NamedTuple):
    """The options that an answer to a closed or choice question names.

    Attributes:
        options: letters, or "Yes" or "No"; None where it cannot be told.
        in_form: whether it was read as GEMeX's own form has it, and not out of a response.
        failure: why it cannot be told; None where it can.
    """

    options: frozenset[str] | None
    in_form: bool
    failure: AnswerFailure | None


def named_options(text: str, question_type: str, choices: Sequence[str] | None) -> NamedOptions:
    """Reads an answer; never raises on what a model wrote.

    Args:
        text: all of it, tags and boxes included.
        question_type: `closed_ended`, `single_choice` or `multi_choice`.
        choices: the options that were offered, `A: words`.
    """
    in_form = _TAG.search(text) is not None
    parsed = parse_answer(text[:_LONGEST], question_type, choices)
    if question_type == "closed_ended":
        if parsed.key:
            return NamedOptions(frozenset([str(parsed.key)]), in_form, None)
        verdicts = {match[1].capitalize() for match in _VERDICT.finditer(_plain(parsed.answer))}
        return _verdict(verdicts, question_type, parsed.failures[0])
    offered = {choice[:1] for choice in choices or ()}
    response = _plain(parsed.answer)
    # Whoever lists the options first and then answers would be read by the list.
    said = set() if in_form else offered & set(_WAYS[0](response))
    if not said and (parsed.key or parsed.failures[0] in ("no_answer", "several_options")):
        key = [parsed.key] if isinstance(parsed.key, str) else parsed.key
        return NamedOptions(frozenset(key) if key else None, in_form, _failure(parsed))
    ways = [lambda text: words_named(text, choices or ()), *reversed(_WAYS)]
    while not said and ways:
        said = offered & set(ways.pop()(response))
    return _verdict(said, question_type, "not_an_option")


_LONGEST_OPTION = 1_000


def words_named(text: str, choices: Sequence[str]) -> set[str]:
    """Letters of the options whose words stand in the text and are not denied there.

    The longer of two options counts where one is part of the other. Of more than 1,000 characters
    none is repeated word by word.
    """
    letters: dict[str, str] = {}
    for choice in choices:
        letter, _, words = choice.partition(":")
        plain = " ".join(_WORD.findall(words.lower()))
        if plain and len(plain) <= _LONGEST_OPTION:
            letters.setdefault(plain, letter.strip())
    if not letters:
        return set()
    longest_first = sorted(letters, key=len, reverse=True)
    pattern = re.compile(
        r"\b(?:"
        + "|".join(r"[\W_]{1,4}".join(map(re.escape, words.split())) for words in longest_first)
        + r")\b"
    )
    text = text.lower()
    named = set()
    for sentence in SENTENCE.finditer(text):
        for start, end in clauses(text, *sentence.span()):
            spots = list(pattern.finditer(text, start, end))
            absent = denied(text, start, end, [spot.span() for spot in spots])
            for spot, is_absent in zip(spots, absent, strict=True):
                words = " ".join(_WORD.findall(spot[0]))
                # "No effusion" as an option is named by its own "no", not denied by it.
                denies = DENIES_AFTER.search(words) or DENIES_BEFORE.search(words)
                if denies or not is_absent:
                    named.add(letters[words])
    return named


def jaccard(named: frozenset[str], truth: frozenset[str]) -> float:
    """Size of the intersection over that of the union; 1 where both are empty."""
    either = named | truth
    return len(named & truth) / len(either) if either else 1.0


def chance(question_type: str, options: int) -> float:
    """Returns the share of blind guesses that are exactly right: the paper's row "Random".

    Of a multi-choice question, a guess is one of the non-empty sets of its options: 1/15 of four,
    1/7 of three.

    Args:
        options: how many there are, at least 1; a closed question has two.
    """
    return 1 / (2**options - 1) if question_type == "multi_choice" else 1 / options


def _plain(answer: str) -> str:
    """Without Markdown's bold letters."""
    return answer.replace("*", "")


def _verdict(said: set[str], question_type: str, failure: AnswerFailure) -> NamedOptions:
    if question_type == "single_choice" and len(said) > 1:
        return NamedOptions(None, False, "several_options")
    if not said or (question_type == "closed_ended" and len(said) > 1):
        return NamedOptions(None, False, failure)
    return NamedOptions(frozenset(said), False, None)


def _failure(parsed: ParsedAnswer) -> AnswerFailure | None:
    return None if parsed.key else parsed.failures[0]


_TAG = re.compile(r"<\s{0,3}answer\s{0,3}>", re.IGNORECASE)
_WORD = re.compile(r"[a-z0-9]+")
# Capitals alone: "a" is a word. So is "A" before a word in small letters, unless a verb or a reason
# follows: "A small effusion" names nothing, "A is right" does.
_LETTER = (
    r"['\"(\[]{0,2}\b[A-H]\b(?!['’][a-z])"
    r"(?!\s+(?!(?:is|are|and|or|because|since|as|which|but|with|for|would|seems|appears)\b)[a-z])"
    r"[:.)\]'\"]{0,3}"
)
_LETTERS = rf"{_LETTER}(?:\s{{0,3}}(?:,|;|&|/|,?\s?\b(?:and|or)\b)\s{{0,3}}{_LETTER}){{0,7}}"
_LINK = (
    r"(?:\s{0,3}(?:\b(?:is|are|was|would be|should be|to be|both|the|correct|best|most likely"
    r"|likely|options?|choices?)\b|[:=])){0,5}\s{0,3}"
)
_WRONG = r"(?!\s{0,3}(?:is|are)\s+(?:not|wrong|incorrect|false|unlikely)\b)"


def _behind(words: str) -> Callable[[str], list[str]]:
    """Finds the letters behind any of the words; those called wrong are left out."""
    pattern = re.compile(rf"\b(?i:{words})\b(?i:{_LINK})({_LETTERS}){_WRONG}")
    return lambda text: [
        letter for match in pattern.finditer(text) for letter in _CAPITAL.findall(match[1])
    ]


def _all(pattern: re.Pattern[str]) -> Callable[[str], list[str]]:
    return lambda text: [
        letter for match in pattern.finditer(text) for letter in _CAPITAL.findall(match[1])
    ]


_CAPITAL = re.compile(r"\b[A-H]\b")
_BRACKETED = re.compile(
    r"[\[(]\s{0,3}(['\"]?[A-H]['\"]?(?:\s{0,3}[,;]\s{0,3}['\"]?[A-H]['\"]?){0,7})\s{0,3}[\])]"
)
_WAYS = (
    _behind("answers?|choose|select|selected|pick|go with"),
    _behind("options?|choices?"),
    _all(re.compile(rf"\A\s{{0,9}}(?:[Bb]oth\s)?({_LETTERS}){_WRONG}")),
    _all(_BRACKETED),
    _all(re.compile(r"^\s{0,9}([A-H])\s?[.:)]", re.MULTILINE)),
)
_VERDICT = re.compile(
    r"(?:\A|[.!?:;\n]\s{0,9}|\banswer(?:\s+(?:is|would be|to (?:this|the) question is))?\s{0,3}:?)"
    r"\s{0,3}[\"'(]{0,2}(yes|no)(?=[\"')]{0,2}\s{0,3}(?:[.,!;:\n]|\Z))",
    re.IGNORECASE,
)
