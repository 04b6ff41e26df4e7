"""Finds answers that speak of something else than their question, whatever they open with.

"No, there is no pneumothorax" beside a question about an effusion opens with a verdict and decides
nothing: who says it of every image would be right wherever the answer is no.
"""

import difflib
import functools
import re
from collections.abc import Collection, Iterable

from cxrjax.radiology_text.answers import ANY_FINDING
from cxrjax.radiology_text.assertions import Assertion
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.english import lemma
from cxrjax.radiology_text.facts import said_of
from cxrjax.radiology_text.lexicon import load_english

# What may stand before the statement that is judged.
_VERDICT = re.compile(
    r"^\W*(?:(?:final )?answer\W{1,3})?(?P<verdict>yes|no|yeah|nope)\b\W+", re.IGNORECASE
)
# What is judged: one short statement.
_STATEMENT = re.compile(
    r"(?:there|it|this|the [a-z-]+|(?:the )?(?:image|radiograph|x-ray|film)) "
    r"(?:is|are|was|were|has|have|shows?|contains?)\b|i (?:can )?see\b|(?:no|not) [a-z]",
    re.IGNORECASE,
)
_MOST_WORDS = 12
_WORD = re.compile(r"[^\W\d_]{2,40}")
# Of the words of a question that any answer may repeat.
_ANY_WORDS = frozenset(
    (
        *("be", "there", "this", "that", "any", "the", "on", "in", "of", "to", "at", "an", "it"),
        *("image", "chest", "x", "ray"),
    )
)
_MISSPELT = 0.86


def is_about_another(text: str, asked: Collection[str], words: str = "") -> bool:
    """Returns whether all that an answer states is about something else than what is asked.

    Args:
        text: the answer, boxes taken out.
        asked: names of the findings asked about; empty where any finding is, of which denying a
            single one is no answer.
        words: the question, or the name of what it asks about.
    """
    opened = _VERDICT.match(text)
    rest = (text[opened.end() :] if opened else text).strip()
    if not _STATEMENT.match(rest) or len(rest.split()) > _MOST_WORDS or _shared(rest, words):
        return False
    said = said_of(text, "en")
    if not said:
        return _is_foreign(rest)
    if asked and opened and opened["verdict"][0].lower() == "y":
        return not any(_bears(one, asked) for one in said)
    denies = all(one.status == "absent" for one in said)
    one_alone = len({one.finding for one in said}) == 1
    return denies and (one_alone or bool(asked)) and not any(_bears(one, asked) for one in said)


def _bears(one: Assertion, asked: Collection[str]) -> bool:
    """Returns whether an assertion concerns what is asked, something special or more general."""
    above = load_definitions().finding_ancestors
    if one.finding == ANY_FINDING or one.organ or (not asked and one.status != "absent"):
        return True
    return any(
        one.finding == name or name in above(one.finding) or one.finding in above(name)
        for name in asked
    )


def _lemmas(text: str) -> list[str]:
    return [lemma(word) for word in _WORD.findall(text.lower())]


def _shared(text: str, words: str) -> bool:
    """Returns whether an answer repeats a word of what is asked."""
    named = {word for word in _lemmas(words) if word not in _ANY_WORDS and len(word) > 3}
    said = set(_lemmas(text))
    return bool(named & said) or any(_close(word, tuple(sorted(named))) for word in said)


def _is_foreign(text: str) -> bool:
    """Returns whether a statement has a word that radiology does not use, even misspelt."""
    known = load_english().known
    return any(word not in known and not _misspelt(word) for word in _lemmas(text) if len(word) > 3)


@functools.lru_cache(maxsize=1 << 12)
def _misspelt(word: str) -> bool:
    return _close(word, _long_words())


@functools.cache
def _long_words() -> tuple[str, ...]:
    return tuple(word for word in sorted(load_english().known) if len(word) > 4)


def _close(word: str, known: Iterable[str]) -> bool:
    alike = [one for one in known if one[:1] == word[:1] and abs(len(one) - len(word)) < 2]
    return len(word) > 4 and bool(difflib.get_close_matches(word, alike, 1, _MISSPELT))
