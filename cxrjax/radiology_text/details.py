"""Severity, texture, sizes, distances and counts of what a sentence names."""

import re
from collections.abc import Sequence

from cxrjax.radiology_text.assertions import Time
from cxrjax.radiology_text.english import Match, Words
from cxrjax.radiology_text.items import NamedItem
from cxrjax.radiology_text.lexicon import English, Sentence, pattern

_UNIT = r"(?:cm|mm|centimeters?|millimeters?|centimetres?|millimetres?)"
_DIGIT = re.compile(r"\d")
_DISTANCE = pattern("distance")
_SIZE = pattern("size")
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNTS = {word: number for number, word in enumerate(_NUMBERS, start=1)}
_PASSED_OVER = 3
_PLACED = frozenset(("in", "at", "of", "is", "are", "with"))


def find_modifiers(
    tokens: Words, items: Sequence[NamedItem], english: English, changes: Sequence[Match[Time]]
) -> list[list[tuple[str, str]]]:
    """Severity, texture, spread of each item: in the words before it, or predicated of it."""
    degrees = {place for match in changes for place in range(match.first, match.last)}
    found: list[list[tuple[str, str]]] = [[] for _ in items]
    for match in english.language.modifiers.find(tokens):
        before = tokens.forms[max(0, match.first - 3) : match.first]
        behind = before[before.index("not") :] if "not" in before else ()
        negated = before[-1:] in (["non"], ["none"]) or bool(
            behind and not {",", "but"} & set(behind)
        )
        if match.first in degrees or negated:
            continue
        within = [n for n, i in enumerate(items) if min(i.own) <= match.first <= max(i.own)]
        right = [n for n, i in enumerate(items) if min(i.own) >= match.last]
        left = [n for n, i in enumerate(items) if i.last <= match.first]
        gap = {*tokens.forms[match.last : min(items[right[0]].own)]} if right else set()
        if within:
            n = within[0]
        elif right and not gap & {"(", ")", "or", ";", ",", "and"} and not gap & _PLACED:
            n = right[0]
        elif right and gap & {"and", ","} and len(gap) <= 3 and not gap & _PLACED:
            n = right[0]  # "mild, stable cardiomegaly"
        elif left:
            n = left[-1]
        else:
            continue
        if match.payload not in found[n]:
            found[n].append(match.payload)
    return found


def find_distances(
    sentence: Sentence, items: Sequence[NamedItem]
) -> tuple[list[list[str]], frozenset[int]]:
    """Distances of each item to a landmark, and the words that name landmarks."""
    found: list[list[str]] = [[] for _ in items]
    if _DIGIT.search(sentence.text) is None:
        return found, frozenset()
    landmarks: set[int] = set()
    for match in _DISTANCE.finditer(sentence.text):
        number, unit, relation, landmark = match.groups()
        at = match.start()
        n = min(
            range(len(items)),
            key=lambda i: (
                abs(sentence.tokens[items[i].first].start - at)
                + 1000 * (sentence.tokens[items[i].first].start > at)
            ),
        )
        found[n].append(f"{number} {unit[0]}m {relation} the {landmark}")
        landmarks.update(
            place
            for place, token in enumerate(sentence.tokens)
            if match.start(4) <= token.start < match.end(4)
        )
    return found, frozenset(landmarks)


def find_sizes(sentence: Sentence, items: Sequence[NamedItem]) -> list[list[str]]:
    """Sizes with a unit, given to the nearest item: after it in words of measuring, else before."""
    found: list[list[str]] = [[] for _ in items]
    if _DIGIT.search(sentence.text) is None:
        return found
    taken = [match.span() for match in _DISTANCE.finditer(sentence.text)]
    for match in _SIZE.finditer(sentence.text):
        if not re.search(_UNIT, match.group()) or any(a <= match.start() < b for a, b in taken):
            continue
        places = [sentence.tokens[item.first].start for item in items]
        n = min(range(len(items)), key=lambda i: abs(places[i] - match.start()))
        found[n].append(" ".join(match.group().replace("-", " ").split()))
    return found


def find_count(tokens: Words, item: NamedItem) -> int | None:
    for token in reversed(tokens[max(0, item.first - _PASSED_OVER) : item.first]):
        if token.lemma in _COUNTS:
            return _COUNTS[token.lemma]
        if token.lemma in (",", "and", "or", ":", "(", ")"):
            return None
    return None
