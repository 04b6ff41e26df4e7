"""Reads the findings that an answer says are there, and those it says are not.

A reader of rules, not a model: words for each class, negation with a scope, and the short answers
("Yes.", "No.", "Two.", "Left lower lobe.", a bare box) that mean something only beside their
question. How the paper read its answers is not published; these rules are ours.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cxrjax.files import read_packaged
from cxrjax.radiology_text.negation import (
    DENIES_AFTER,
    DENIES_BEFORE,
    SENTENCE,
    blank,
    clauses,
    denied,
    phrase_pattern,
)

# Words for the 14 classes of VinDr-CXR-VQA, as regular expressions.
VINDR_VOCABULARY: dict[str, tuple[str, ...]] = {
    name: tuple(words)
    for name, words in read_packaged(str(__package__), "reference/vindr_classes.toml")["en"].items()
}


class Mention(NamedTuple):
    """A class named in a text, characters `start` to `end`; `negated`: said to be absent."""

    name: str
    start: int
    end: int
    negated: bool


class Reading(NamedTuple):
    """The findings that an answer affirms and denies.

    Attributes:
        present: classes it says are there.
        absent: classes it says are not; never one that is in `present`.
        answered: False for a blank answer, which says nothing and can't be right.
    """

    present: frozenset[str]
    absent: frozenset[str]
    answered: bool


# How an answer can open, and what that says of the class asked about.
_PREAMBLE = r"^\W*(?:(?:the )?(?:final )?answer(?: is)?\s*[:=]?\s*)?"
_YES = re.compile(
    _PREAMBLE + r"(?:yes|yeah|yep|yup|true|correct|affirmative|positive|indeed)\b(?! for)"
)
_NO = re.compile(
    _PREAMBLE + r"(?:no|nope|none|false|incorrect|negative|absent)\s*(?:[,.:;!)\-–—]|$)"
)
_NUMBER = re.compile(
    r"^\W*(?:there (?:is|are) )?(?P<number>\d+|zero|none|one|two|three|four|five|six|seven|eight|"
    r"nine|ten|several|multiple|numerous)\b(?=\W*$|\s*[.,;:(](?!\d)|\s+(?:in|on|at|of|such|separate|"
    r"distinct|lesions?|areas?|regions?|locations?|findings?|instances?|boxes)\b)"
)
_ZERO = re.compile(r"0+|zero|none")
_NORMAL = re.compile(r"\b(?:none|normal|unremarkable|clear|intact|no)\b")
_BARE_PLACE = re.compile(
    r"\W*(?:(?:in|at|on|over|within|near|of|the|and|a|to|left|right|both|bilateral(?:ly)?|upper|"
    r"lower|middle|mid|central|peripheral|apical|basal|basilar|hilar|perihilar|retrocardiac|"
    r"lung|lungs|lobe|lobes|zone|zones|base|bases|apex|apices|hemithorax|side|sides|field|fields|"
    r"region|area|mediastinum|hilum|lingula)\b\W*)+"
)
_NOTATION = re.compile(r"<[^<>]*>")


class MentionReader:
    """Reads answers with a vocabulary.

    Args:
        vocabulary: class -> regular expressions of its words, lower case, a space for any run of
            spaces or hyphens. The class's own name is always among its words.
    """

    def __init__(self, vocabulary: Mapping[str, Sequence[str]] = VINDR_VOCABULARY) -> None:
        self._names = list(vocabulary)
        alternatives = []
        for number, (name, words) in enumerate(vocabulary.items()):
            own = " ".join(re.escape(word) for word in name.lower().split())
            alternatives.append(rf"(?P<c{number}>{'|'.join([own, *words])})")
        # One pass for all classes: a pass each costs five times as much on long answers.
        self._pattern = phrase_pattern(rf"\b(?:{'|'.join(alternatives)})\b")
        self._named = {name.lower(): name for name in vocabulary}
        # Models answer in templates: the same words around other boxes.
        self._named_in = functools.lru_cache(maxsize=8192)(self._read_names)

    def name_of(self, text: str) -> str | None:
        """The one class that a short text (a label) names; None for none or several."""
        if (exact := self._named.get(text.strip().lower())) is not None:
            return exact
        names = {mention.name for mention in self.mentions(text)}
        return names.pop() if len(names) == 1 else None

    def mentions(self, text: str) -> list[Mention]:
        """Every class named in the text, in order; box notation and repeated questions left out."""
        plain = plain_text(text)
        found = []
        for start, end, inside in self._named_by_clause(plain):
            absent = denied(plain, start, end, [item[:2] for item in inside])
            found += [
                Mention(name, begin, stop, negated)
                for (begin, stop, name), negated in zip(inside, absent, strict=True)
            ]
        return sorted(found, key=lambda mention: mention.start)

    def _named_by_clause(self, plain: str) -> Iterator[tuple[int, int, list[tuple[int, int, str]]]]:
        """Clauses (start, end) of a plain text that name a class, with (start, end, class) each."""
        for sentence in SENTENCE.finditer(plain):
            if sentence.group().rstrip().endswith("?"):
                continue
            named = [
                (match.start(), match.end(), self._names[int(match.lastgroup[1:])])
                for match in self._pattern.finditer(plain, sentence.start(), sentence.end())
                if match.lastgroup is not None
            ]
            if not named:
                continue
            for start, end in clauses(plain, sentence.start(), sentence.end()):
                if inside := [item for item in named if start <= item[0] < end]:
                    yield start, end, inside

    def read(self, text: str, asked: str | None = None, has_box: bool = False) -> Reading:
        """Reads what an answer says.

        Args:
            text: the answer.
            asked: the class that the question asks about, if it asks about one.
            has_box: whether the answer gives a box.

        Returns:
            The classes said to be there and not. One that is named both ways is there (a left
            effusion and no right one), unless the answer opens with "No". Where the class asked
            about is not named: a yes or no, a number, a box, a denial of anything, or a bare place
            speak for it.
        """
        if not text.strip():
            here = frozenset([asked]) if asked and has_box else frozenset[str]()
            return Reading(here, frozenset(), answered=has_box)
        plain = re.sub(r"[ \t]+", " ", plain_text(text))
        present, absent = (set(names) for names in self._named_in(plain))
        if asked is not None:
            opening = _opening(plain)
            if asked in present and asked in absent and _NO.match(opening):
                present.discard(asked)
            elif asked not in present | absent:
                verdict = _unnamed(opening, has_box)
                if verdict is not None:
                    (present if verdict else absent).add(asked)
        return Reading(frozenset(present), frozenset(absent - present), answered=True)

    def _read_names(self, text: str) -> tuple[frozenset[str], frozenset[str]]:
        mentions = self.mentions(text)
        return (
            frozenset(mention.name for mention in mentions if not mention.negated),
            frozenset(mention.name for mention in mentions if mention.negated),
        )


def plain_text(text: str) -> str:
    """Lower case without box notation, every character at its place."""
    lower = text.lower()
    if len(lower) != len(text):  # a few capitals lower to two characters
        lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    lower = lower.replace("’", "'")
    return blank(_NOTATION, lower)


def yes_or_no(text: str) -> bool | None:
    """Reads what an answer opens with: yes, no, or None where it opens with neither."""
    opening = _opening(re.sub(r"[ \t]+", " ", plain_text(text)))
    if _YES.match(opening):
        return True
    return False if _NO.match(opening) else None


def _opening(plain: str) -> str:
    """The text from its first sentence that is not a question."""
    for sentence in SENTENCE.finditer(plain):
        if not sentence.group().rstrip().endswith("?"):
            return plain[sentence.start() :]
    return ""


def _unnamed(opening: str, has_box: bool) -> bool | None:
    """Reads what an answer that doesn't name the class asked about says of it; None: nothing."""
    if _YES.match(opening):
        return True
    if _NO.match(opening):
        return False
    if number := _NUMBER.match(opening):
        return _ZERO.fullmatch(number["number"]) is None
    if has_box:
        return True
    if _NORMAL.search(opening) or DENIES_AFTER.search(opening) or DENIES_BEFORE.search(opening):
        return False
    if _BARE_PLACE.fullmatch(opening):
        return True
    return None
