"""Reads what English reports and answers assert of findings.

    sentence -> tokens -> findings, organs' states -> cues -> scopes -> places -> assertions

Vietnamese is read by `vietnamese_mentions.py` into the same form (`read_assertions`).
"""

import dataclasses
import functools
import re
from collections.abc import Sequence

from cxrjax.radiology_text.assertions import Assertion, Certainty, Status, Time
from cxrjax.radiology_text.english import Match, Word
from cxrjax.radiology_text.items import NamedItem, find_items
from cxrjax.radiology_text.lexicon import (
    English,
    Sentence,
    load_english,
    plain_text,
    split_sentences,
    word_set,
)
from cxrjax.radiology_text.places import (
    compared_sides,
    find_places,
    side_name,
    without_corrected,
)
from cxrjax.radiology_text.scope import Judgement, judge, split_clauses

# Reports repeat themselves, and models answer in templates.
_KEPT_SENTENCES = 1 << 14
_UNIT = r"(?:cm|mm|centimeters?|millimeters?|centimetres?|millimetres?)"
_NUMBER = r"\d+(?:\.\d+)?"
_DISTANCE = re.compile(
    rf"\b({_NUMBER}(?:\s*(?:-|to)\s*{_NUMBER})?)[\s-]*({_UNIT})\s+"
    r"(above|below|from|beyond|past|(?:proximal|distal|inferior|superior|cranial|caudal) to|"
    r"away from|short of)\s+(?:the\s+)?(?:level\s+of\s+the\s+)?"
    r"(\w+(?:\s(?:junction|arch|knob|hemidiaphragm))?)"
)
_SIZE = re.compile(
    rf"\b{_NUMBER}(?:[\s-]*{_UNIT})?(?:\s*(?:x|by)\s*{_NUMBER}(?:[\s-]*{_UNIT})?){{0,2}}"
)
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNTS = {word: number for number, word in enumerate(_NUMBERS, start=1)}
_LARGE = ("moderate", "severe", "large")
_TIMES: tuple[Time, ...] = ("resolved", "worse", "better", "new", "unchanged")
_PASSED_OVER = 3
_TIME_TAIL = word_set("time_tail")
_EXPLAINS = re.compile(
    r"\b(?:represent|reflect|suggest|consistent|compatible|due|secondary|related|concerning|worrisome|"
    r"suspiciou?s?|likely|probably|possibly|keeping|indicat|favor|may be|could be|felt|from)"
)


class ReportReader:
    """Reads English text; the same text always gives the same assertions."""

    def __init__(self, english: English | None = None) -> None:
        self._english = english or load_english()
        self._in_sentence = functools.lru_cache(maxsize=_KEPT_SENTENCES)(self._read_sentence)

    def read(self, text: str) -> list[Assertion]:
        """What a text asserts, in its order. Sentences that ask assert nothing for sure."""
        plain = plain_text(text)
        found: list[Assertion] = []
        for start, end in split_sentences(text):
            offset = len(found)
            for one in self._in_sentence(plain[start:end]):
                a, b = one.span
                source = None if one.source is None else one.source + offset
                found.append(dataclasses.replace(one, span=(a + start, b + start), source=source))
        return found

    def _read_sentence(self, text: str) -> tuple[Assertion, ...]:
        english = self._english
        sentence = english.read_tokens(without_corrected(text), 0, len(text))
        tokens = sentence.tokens
        if english.language.ignored_sentences.find(tokens):
            return ()
        items = find_items(tokens, english)
        if not items:
            return ()
        named = frozenset(place for item in items for place in item.own)
        cues = english.cues.find(tokens, named)
        clauses = split_clauses(tokens, items, cues)
        judged = judge(tokens, items, cues)
        distances, landmarks = _distances(sentence, items)
        places = find_places(tokens, sentence.text, items, clauses, landmarks, english)
        times = _times(sentence, items, clauses, english, named)
        modifiers = _modifiers(tokens, items, english, named)
        sizes = _sizes(sentence, items)
        assertions: list[Assertion] = []
        first_of: dict[int, int] = {}
        for n, item in enumerate(items):
            judgement = judged[n]
            meant = _meant(item, judgement, times[n], sentence.asks)
            if meant is None:
                continue
            status, certainty, time = meant
            severity = next((v for k, v in modifiers[n] if k == "severity"), None)
            if (
                (status, certainty) == ("absent", "certain")
                and severity in _LARGE
                and not item.is_normal
            ):
                certainty = "likely"  # "no large effusion"
            regions, side = places[n].regions, side_name(places[n].side)
            first_of[n] = len(assertions)
            source = _explained(tokens, items, judged, n, first_of)
            if source is not None and not regions and side is None:
                # "Left base opacity, likely pneumonia": where the one is, is the other.
                regions, side = list(assertions[source].regions), assertions[source].side
            for name in item.names:
                assertions.append(
                    Assertion(
                        english.definitions.in_regions(name, regions),
                        status,
                        certainty,
                        time,
                        side,
                        tuple(regions),
                        severity,
                        tuple(sizes[n]),
                        tuple(distances[n]),
                        _count(tokens, item),
                        (tokens[item.first].start, tokens[item.last - 1].end),
                        tuple(modifiers[n]),
                        _words(tokens, judgement),
                        item.statement.name if item.statement and item.is_normal else "",
                        source,
                    )
                )
        return tuple(assertions)


def _meant(
    item: NamedItem, judgement: Judgement, time: Time, asks: bool
) -> tuple[Status, Certainty, Time] | None:
    """Status, certainty and time of an item; None where nothing that can be named is said."""
    if judgement.not_now:
        return "uncertain", "possible", judgement.not_now
    if item.is_normal:
        if judgement.status == "absent":  # "not normal"
            return None
        if judgement.status == "uncertain":
            return "uncertain", judgement.certainty, "current"
        return "absent", judgement.certainty, "current"
    if asks:
        return "uncertain", "possible", "to be ruled out"
    status, certainty = judgement.status, judgement.certainty
    if item.is_borderline and status == "present":
        status, certainty = "uncertain", "possible"
    if time == "resolved":
        if status == "uncertain":
            return status, certainty, "resolved"
        return "absent", certainty, "resolved"
    return status, certainty, time


def _times(
    sentence: Sentence,
    items: Sequence[NamedItem],
    clauses: Sequence[tuple[int, int]],
    english: English,
    named: frozenset[int],
) -> list[Time]:
    """How each item compares with before."""
    found: list[set[Time]] = [set() for _ in items]
    tokens = sentence.tokens
    sides = compared_sides(sentence.text)
    for match in english.times.find(tokens, named):
        if any(a <= tokens[match.first].start < b for a, b in sides):
            continue
        begin, end = next((c for c in clauses if c[0] <= match.first < c[1]), (0, len(tokens)))
        inside = [n for n, item in enumerate(items) if begin <= item.first < end]
        # "Mildly enlarged but stable": a clause without a finding speaks of the one before.
        inside = inside or [n for n, item in enumerate(items) if item.last <= begin][-1:]
        right = [n for n in inside if min(items[n].own) >= match.last]
        left = [n for n in inside if items[n].last <= match.first]
        gap = [t.lemma for t in tokens[match.last : min(items[right[0]].own)]] if right else []
        back = [t.lemma for t in tokens[items[left[-1]].last : match.first]] if left else []
        closes = {"is", "are", "ha", "have", "wa", "were", "appear"} & set(back)
        if (
            right
            and not {",", ":", "is", "are", "with"} & set(gap)
            and not (closes and {"and", "or", ","} & set(gap))
            and not (left and gap and gap[0] in ("and", "or", "compared", "from", "since"))
        ):
            reach = [right[0]]
            for n in right[1:]:  # "stable cardiomegaly and effusion"
                between = {t.lemma for t in tokens[items[reach[-1]].last : min(items[n].own)]}
                if not between <= {"and", ",", "or", "/"}:
                    break
                reach.append(n)
        elif left and not _opens_another(tokens, match):
            reach = [left[-1]]
            for n in reversed(left[:-1]):  # "effusion and atelectasis are unchanged"
                between = {t.lemma for t in tokens[items[n].last : min(items[reach[-1]].own)]}
                if not ({"and", "or", "/"} & between) or {"is", "are", ":"} & between:
                    break
                reach.append(n)
        elif right and "with" not in gap:
            reach = right[:1]
        else:
            continue
        for n in reach:
            found[n].add(match.payload)
    return [next((time for time in _TIMES if time in said), "current") for said in found]


def _opens_another(tokens: Sequence[Word], match: Match[Time]) -> bool:
    """Whether words of time begin something that is not read: ", stable hilar contours"."""
    begins = match.first > 0 and tokens[match.first - 1].lemma in (",", "and")
    return begins and match.last < len(tokens) and tokens[match.last].lemma not in _TIME_TAIL


def _modifiers(
    tokens: Sequence[Word], items: Sequence[NamedItem], english: English, named: frozenset[int]
) -> list[list[tuple[str, str]]]:
    """Severity, texture, spread of each item: in the words before it, or predicated of it."""
    degrees = {
        place
        for match in english.times.find(tokens, named)
        for place in range(match.first, match.last)
    }
    found: list[list[tuple[str, str]]] = [[] for _ in items]
    for match in english.language.modifiers.find(tokens):
        if match.first in degrees:
            continue
        within = [n for n, i in enumerate(items) if min(i.own) <= match.first <= max(i.own)]
        right = [n for n, i in enumerate(items) if min(i.own) >= match.last]
        left = [n for n, i in enumerate(items) if i.last <= match.first]
        gap = {t.lemma for t in tokens[match.last : min(items[right[0]].own)]} if right else set()
        if within:
            n = within[0]
        elif right and not gap & {
            ",",
            "(",
            ")",
            "and",
            "or",
            "in",
            "at",
            "of",
            "is",
            "are",
            "with",
            ";",
        }:
            n = right[0]
        elif (
            right
            and gap & {"and", ","}
            and not gap & {"in", "at", "of", "is", "are", "with"}
            and len(gap) <= 3
        ):
            n = right[0]  # "mild, stable cardiomegaly"
        elif left:
            n = left[-1]
        else:
            continue
        if match.payload not in found[n]:
            found[n].append(match.payload)
    return found


def _distances(
    sentence: Sentence, items: Sequence[NamedItem]
) -> tuple[list[list[str]], frozenset[int]]:
    """Distances of each item to a landmark, and the words that name landmarks."""
    found: list[list[str]] = [[] for _ in items]
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


def _sizes(sentence: Sentence, items: Sequence[NamedItem]) -> list[list[str]]:
    """Sizes with a unit, given to the nearest item: after it in words of measuring, else before."""
    found: list[list[str]] = [[] for _ in items]
    taken = [match.span() for match in _DISTANCE.finditer(sentence.text)]
    for match in _SIZE.finditer(sentence.text):
        if not re.search(_UNIT, match.group()) or any(a <= match.start() < b for a, b in taken):
            continue
        places = [sentence.tokens[item.first].start for item in items]
        n = min(range(len(items)), key=lambda i: abs(places[i] - match.start()))
        found[n].append(" ".join(match.group().replace("-", " ").split()))
    return found


def _words(tokens: Sequence[Word], judgement: Judgement) -> str:
    first, last = judgement.cue or (0, 0)
    return " ".join(token.lemma for token in tokens[first:last])


def _count(tokens: Sequence[Word], item: NamedItem) -> int | None:
    for token in reversed(tokens[max(0, item.first - _PASSED_OVER) : item.first]):
        if token.lemma in _COUNTS:
            return _COUNTS[token.lemma]
        if token.lemma in (",", "and", "or", ":", "(", ")"):
            return None
    return None


def _explained(
    tokens: Sequence[Word],
    items: Sequence[NamedItem],
    judged: Sequence[Judgement],
    n: int,
    first_of: dict[int, int],
) -> int | None:
    """The item before this one that it is offered as an explanation of."""
    if n == 0 or n - 1 not in first_of or judged[n].status == "absent" or items[n].statement:
        return None
    before, item = items[n - 1], items[n]
    gap = " ".join(token.lemma for token in tokens[before.last : min(item.own)])
    if judged[n - 1].status != "absent" and _EXPLAINS.search(gap):
        return first_of[n - 1]
    return None
