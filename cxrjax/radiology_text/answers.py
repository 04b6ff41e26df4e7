"""Reads what an answer says of what is asked: yes, no, undecided, off topic, nothing."""

import dataclasses
import functools
import re
from collections.abc import Sequence

from cxrjax.radiology_text.assertions import Assertion, Outcome
from cxrjax.radiology_text.definitions import Definitions
from cxrjax.radiology_text.english import Word
from cxrjax.radiology_text.items import find_items
from cxrjax.radiology_text.lexicon import (
    English,
    load_english,
    plain_text,
    split_sentences,
    word_set,
)
from cxrjax.radiology_text.reader import ReportReader

_PREAMBLE = re.compile(
    r"^\W*(?:(?:the\s+)?(?:final\s+|correct\s+)?answer(?:\s+to\s+(?:this|the|your)\s+question)?"
    r"(?:\s+is|\s*[:=])+|(?:answer|a|assistant|response|model)\s*:|well,|ok(?:ay)?,|so,|hmm,|"
    r"based\s+on\s+[^,.]{0,60},|in\s+(?:this|the)\s+(?:image|x-?ray|radiograph|picture|film),?)\s*"
)
_REASON = re.compile(r"\b(?:reasoning|reason|explanation|rationale|because|justification)\b\s*:?")
_PLURAL_NUMBERS = re.compile(
    r"^\W*(?:there\s+(?:is|are)\s+|i\s+see\s+|at\s+least\s+|about\s+)?(?P<number>\d{1,2}|zero|none|one|two|three|"
    r"four|five|six|seven|eight|nine|ten|a\s+single|single|several|multiple|numerous|many|a\s+few|both)\b(?!\s*%|[.:]\d)"
)
_ZERO = ("0", "00", "zero", "none")
_OPENED = word_set("bare")
_GENERAL = "cardiopulmonary abnormality"
# What CheXpert counts under lung opacity, beside the parents of the table.
_UNDER_OPACITY = (
    "pneumonia",
    "pulmonary edema",
    "lung lesion",
    "consolidation",
    "atelectasis",
    "infiltrate",
)


@dataclasses.dataclass(frozen=True)
class AnswerReading:
    """What an answer says.

    Attributes:
        outcome: of what is asked; None where nothing is asked.
        assertions: everything that it asserts.
    """

    outcome: Outcome | None
    assertions: tuple[Assertion, ...]


@dataclasses.dataclass(frozen=True)
class AskedFor:
    """What a question asks: findings by name, and the side it asks of."""

    findings: tuple[str, ...]
    side: str | None
    counts: bool


class EnglishReader:
    """Reads English answers beside their questions."""

    def __init__(self, english: English | None = None) -> None:
        self._english = english or load_english()
        self._reports = ReportReader(self._english)
        self.asked = functools.lru_cache(maxsize=4096)(self._asked)

    def read(self, text: str, question: str | None = None, has_box: bool = False) -> AnswerReading:
        """What an answer says.

        Args:
            question: None where the text answers none; then there is no outcome.
            has_box: whether the answer gives a box in a notation or field of its own.
        """
        said = _without_questions(text)
        assertions = tuple(self._reports.read(said))
        if question is None:
            return AnswerReading(None, assertions)
        return AnswerReading(
            self._outcome(said, self.asked(question), assertions, has_box), assertions
        )

    def opening(self, text: str) -> Outcome | None:
        """What an answer opens with by itself: "No, there is a mass" with no, "No mass" with
        nothing."""
        plain = _PREAMBLE.sub("", plain_text(_without_questions(text)).lstrip(), count=1)
        return self._opening(plain)

    def _asked(self, question: str) -> AskedFor:
        plain = plain_text(question)
        tokens = self._english.read_tokens(plain, 0, len(plain)).tokens
        names = [name for item in find_items(tokens, self._english) for name in item.names]
        sides = {token.lemma for token in tokens} & {"left", "right"}
        counts = re.search(r"\bhow many\b|\bnumber of\b|\bcount\b", plain) is not None
        return AskedFor(
            tuple(dict.fromkeys(names)), sides.pop() if len(sides) == 1 else None, counts
        )

    def _outcome(
        self, said: str, asked: AskedFor, assertions: Sequence[Assertion], has_box: bool
    ) -> Outcome:
        plain = plain_text(said)
        if (reason := _REASON.search(plain)) is not None:
            plain = plain[: reason.start()]
        plain = _PREAMBLE.sub("", plain, count=1)
        if not re.search(r"[a-z0-9]", plain):
            return "yes" if has_box else "nothing"
        about = [one for one in assertions if one.is_now and self._bears_on(one, asked)]
        stated = _verdict(about)
        opened = self._opening(plain)
        if opened and stated and opened != stated:
            if "undecided" in (opened, stated):
                return opened if stated == "undecided" else stated
            others = {"yes": "absent", "no": "present"}[opened]
            firm = [one for one in about if one.status == others and one.certainty == "certain"]
            return "undecided" if firm else opened
        if opened or stated:
            return opened or stated or "nothing"
        now = [one for one in assertions if one.is_now]
        if not asked.findings and now:
            return _verdict(now) or "undecided"
        if now:
            return "off_topic"
        if has_box:
            return "yes"
        return self._without_findings(plain, asked)

    def _bears_on(self, one: Assertion, asked: AskedFor) -> bool:
        """Whether an assertion decides what is asked."""
        if asked.side and one.side in ("left", "right") and one.side != asked.side:
            return False
        for name in asked.findings:
            if one.finding == name or (
                one.status != "absent" and name in ancestors(one.finding, self._english.definitions)
            ):
                return True
            if one.status == "absent" and one.finding in (
                *ancestors(name, self._english.definitions),
                _GENERAL,
            ):
                return True
        return False

    def _opening(self, plain: str) -> Outcome | None:
        """What an answer opens with, where that stands by itself."""
        start, end = next(iter(split_sentences(plain)), (0, len(plain)))
        tokens = self._english.read_tokens(plain, start, end).tokens
        words = [place for place, token in enumerate(tokens) if token.lemma[0].isalnum()]
        tokens = tokens[words[0] :] if words else []
        found = self._english.answers.find(tokens)
        if not found or found[0].first > 0:
            return None
        opening, first = found[0], tokens[0].lemma
        if len(found) > 1 and found[1].first == opening.last and first not in _OPENED:
            opening = found[1]  # "it is unlikely"
        rest = tokens[opening.last :]
        closed = not rest or not rest[0].lemma[0].isalnum()
        if not closed and find_items(tokens, self._english):
            return opening.payload if first in _OPENED - {"no", "n"} else None
        single = opening.last - opening.first == 1 and first not in _OPENED
        if not closed and single and not _is_place(rest, self._english):
            return None
        return opening.payload

    def _without_findings(self, plain: str, asked: AskedFor) -> Outcome:
        """What an answer says that names no finding and opens with no yes or no."""
        tokens = self._english.read_tokens(plain, 0, min(len(plain), 400)).tokens
        verdicts = {match.payload for match in self._english.answers.find(tokens)}
        if "undecided" in verdicts:
            return "undecided"
        number = _PLURAL_NUMBERS.match(plain)
        if number and (asked.counts or not number["number"].isdigit() or len(tokens) == 1):
            return "no" if number["number"] in _ZERO else "yes"
        if tokens and _is_place(tokens, self._english):
            return "yes"
        if len(verdicts) == 1 and len(tokens) <= 12:
            return verdicts.pop()
        return "nothing"


def ancestors(name: str, definitions: Definitions) -> list[str]:
    """More general findings, lung opacity's kinds as CheXpert has them."""
    found = definitions.finding_ancestors(name)
    if any(kind in (name, *found) for kind in _UNDER_OPACITY):
        found += ["lung opacity", "lung disease"]
    return found


def _verdict(about: Sequence[Assertion]) -> Outcome | None:
    statuses = {one.status for one in about}
    if "present" in statuses:
        return "yes"
    if "uncertain" in statuses:
        return "undecided"
    return "no" if statuses else None


def _is_place(tokens: Sequence[Word], english: English) -> bool:
    """Whether words name nothing but a place."""
    covered = {
        place
        for match in english.definitions.region_names.find(tokens)
        for place in range(match.first, match.last)
    }
    rest = [
        token.lemma
        for place, token in enumerate(tokens)
        if place not in covered and token.lemma[0].isalnum()
    ]
    has_side = bool({"left", "right", "bilateral", "both"} & set(rest))
    return (bool(covered) or has_side) and set(rest) <= _PLACE_WORDS


_PLACE_WORDS = word_set("place_words")


def _without_questions(text: str) -> str:
    """The text with its sentences that ask blanked, every character at its place."""
    kept = list(text)
    for start, end in split_sentences(text):
        if text[start:end].rstrip().endswith("?"):
            kept[start:end] = " " * (end - start)
    return "".join(kept)
