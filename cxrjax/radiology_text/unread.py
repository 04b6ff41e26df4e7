"""Findings under a predicate that the grammar does not know, which are not asserted."""

import functools
from collections.abc import Sequence

from cxrjax.radiology_text.english import Words
from cxrjax.radiology_text.items import NamedItem
from cxrjax.radiology_text.lexicon import English, word_set

_AUXILIARIES = word_set("auxiliaries")
_GOVERNORS = word_set("governors")
_NEGATORS = frozenset(("not", "never", "cannot"))
# Behind a verb that governs the rest of its clause.
_COMPLEMENTS = word_set("complements")
# Behind the plural of a noun, rather than a verb.
_BEHIND_NOUNS = _AUXILIARIES | word_set("prepositions")
_BEHIND_NOUNS |= {"", "with", "and", "or", "for", ",", ".", ":", "(", ")"}
_MARKS = frozenset(",;:()/")


@functools.cache
def _known(english: English) -> frozenset[str]:
    """Words that may be said of a finding which is there."""
    language, definitions = english.language, english.definitions
    phrases = (
        *language.modifiers, *language.sides, *language.change, *language.linked,
        *definitions.region_names, *definitions.finding_names, *language.subjects,
    )  # fmt: skip
    times = {word for phrase, _ in english.times.phrases() for word in phrase}
    words = {word for phrase in phrases for word in phrase}
    return frozenset(words | times | word_set("properties") | word_set("affirming"))


def unread_predicate(
    tokens: Words,
    item: NamedItem,
    clause: tuple[int, int],
    read: frozenset[int],
    english: English,
    text: str,
) -> tuple[int, int] | None:
    """Returns the words of a predicate over an item that no cue has read and nothing here knows.

    Args:
        clause: the item's.
        read: places that cues, items and words of change take.
        text: the sentence's.
    """
    known = _known(english)

    def is_known(place: int) -> bool:
        form = tokens.forms[place]
        return (
            place in read or form in known or not form.isalpha() or form.endswith("ly")
            or form in _MARKS or form in _AUXILIARIES
        )  # fmt: skip

    begin, end = clause
    for place in range(begin, min(item.own) - 1):
        ahead = place + 1
        while ahead < min(item.own) and tokens.forms[ahead].endswith("ly"):
            ahead += 1
        governs = tokens.forms[place] in _GOVERNORS and place not in read
        if place > begin and ahead == place + 1 and tokens.forms[ahead] in _COMPLEMENTS:
            governs, ahead = governs or _is_third_person(tokens, place, text), place
        if governs and ahead < min(item.own) and not is_known(ahead):
            return place, ahead + 1
    for place in range(item.last, end - 1):
        denies = tokens.forms[place] in _NEGATORS and tokens.forms[place - 1] in _AUXILIARIES
        if denies and place + 1 not in read and not is_known(place + 1):
            return place, place + 2
    place = item.last
    while (
        place < end
        and (place in read or tokens.forms[place] in known)
        and (tokens.forms[place] not in _AUXILIARIES)
    ):
        place += 1
    first = place
    while place < end and tokens.forms[place] in _AUXILIARIES:
        place += 1
    acts = place < end and first == place and _is_third_person(tokens, place, text)
    acts = acts and tokens.form(place + 1) not in _BEHIND_NOUNS
    if place < end and (first < place or acts) and first not in read and not is_known(place):
        return first, place + 1
    return None


def _is_third_person(tokens: Words, place: int, text: str) -> bool:
    """Returns whether a word has the ending of "awaits"."""
    word = tokens[place]
    return text[word.start : word.end] == f"{word.lemma}s"


def unread_items(
    tokens: Words,
    items: Sequence[NamedItem],
    plain: Sequence[int],
    clauses: Sequence[tuple[int, int]],
    read: frozenset[int],
    english: English,
    text: str,
) -> dict[int, tuple[int, int]]:
    """Index of each item of `plain` under an unread predicate -> the predicate's words."""
    found = {}
    for n in plain:
        item = items[n]
        clause = next(c for c in clauses if c[0] <= item.first < c[1])
        others = [one.first for one in items if one.first >= item.last and one is not item]
        until = min([clause[1], *others])
        words = unread_predicate(tokens, item, (clause[0], until), read, english, text)
        if words is not None:
            found[n] = words
    return found
