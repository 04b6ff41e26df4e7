"""Reads one clause of a report: findings and organs' states, with their surroundings.

A *spot* is a run of words that names something. Words between two spots belong to one of them; from
these come its regions, its side and its modifiers.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cxrjax.radiology_text.definitions import Definitions, Language, OrganStatement
from cxrjax.radiology_text.english import Match, Word
from cxrjax.radiology_text.negation import denied

# How many words may stand between an organ and its state, and between a cue and what it is about.
_STATE_REACH = 9
_CUE_REACH = 9
_SEPARATOR = re.compile(r"[,;:]|\b(?:and|or|nor|with|without|versus|vs|but)\b|/")
_PREPOSITION = re.compile(
    r"\b(?:in|at|of|within|along|involving|overlying|over|projecting|to|near|throughout|on|"
    r"adjacent|through|from)\b"
)
# Index of a state's first word -> where it stands.
_States = Mapping[int, Match[str]]


@dataclasses.dataclass
class Spot:
    """Something named in a clause.

    Attributes:
        first: index of its first word in the clause.
        last: index after its last word.
        names: findings' wordings; several where one statement says several are absent.
        statement: the organ, where the spot is a statement on one.
        normal: whether the statement says that the organ is normal.
        own: indices of words that belong to it, its own included.
        parent: the spot that is taken for this one ("opacity, likely pneumonia").
    """

    first: int
    last: int
    names: tuple[str, ...]
    statement: OrganStatement | None = None
    normal: bool = False
    own: set[int] = dataclasses.field(default_factory=set)
    regions: list[str] = dataclasses.field(default_factory=list)
    trailing_regions: bool = False
    side: str = ""
    modifiers: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    positive: bool = True
    certainty: str = "certain"
    probability: str = ""
    parent: "Spot | None" = None
    changes: list[str] = dataclasses.field(default_factory=list)


def read_clause(
    text: str,
    start: int,
    end: int,
    words: Sequence[Word],
    language: Language,
    definitions: Definitions,
) -> list[Spot]:
    """Everything named in a clause.

    Args:
        text: the whole sentence, lower case.
        start: first character of the clause.
        end: character after its last.
        words: the clause's words.
    """
    spots = [
        Spot(match.first, match.last, (match.payload,))
        for match in definitions.finding_names.find(words)
    ]
    taken = {index for spot in spots for index in range(spot.first, spot.last)}
    spots += _statements(words, taken, language)
    spots.sort(key=lambda spot: spot.first)
    spots = _without_overlap(spots)
    read_surroundings(text, start, end, words, spots, language, definitions)
    return [spot for spot in spots if spot.names]


def read_surroundings(
    text: str,
    start: int,
    end: int,
    words: Sequence[Word],
    spots: Sequence[Spot],
    language: Language,
    definitions: Definitions,
) -> None:
    """Fills in what the words around a clause's spots say of them: place, side, modifiers,
    polarity and certainty.

    Args:
        spots: in order, none overlapping another; what named them is the caller's.
    """
    if not spots:
        return
    _divide_words(text, words, spots)
    _place(words, spots, language, definitions)
    _share_places(text, words, spots)
    ranges = [(words[spot.first].start, words[spot.last - 1].end) for spot in spots]
    flags = denied(text, start, end, ranges)
    _judge(words, spots, flags, language)


def _statements(words: Sequence[Word], taken: set[int], language: Language) -> list[Spot]:
    """Organs with a state after or right before them."""
    subjects = [
        match
        for match in language.subjects.find(words)
        if not taken & set(range(match.first, match.last))
    ]
    inside = {index for match in subjects for index in range(match.first, match.last)}
    normal = {match.first: match for match in language.normal_states.find(words)}
    linked = {
        index for match in language.linked.find(words) for index in range(match.first, match.last)
    }
    passed = linked | inside
    between: list[Match[Any]] = [*language.modifiers.find(words), *language.change.find(words)]
    for word in between:
        passed |= set(range(word.first, word.last))
    found = []
    for subject in subjects:
        abnormal = {match.first: match for match in subject.payload.states.find(words)}
        state = _after(subject, len(words), normal, abnormal, passed) or _before(
            subject, normal, abnormal, passed
        )
        if state is None or taken & set(range(state.first, state.last)):
            continue
        is_normal = state.first in normal and state is normal[state.first]
        names = subject.payload.normal if is_normal else (state.payload,)
        # The negation looks at the state: "the heart is not enlarged".
        first, last = state.first, state.last
        if last <= subject.first:
            last = subject.last
        spot = Spot(first, last, names, subject.payload, is_normal)
        spot.own.update(range(min(subject.first, first), max(subject.last, last)))
        found.append(spot)
    return found


def _after(
    subject: Match[OrganStatement],
    length: int,
    normal: _States,
    abnormal: _States,
    passed: set[int],
) -> Match[str] | None:
    """The state behind an organ, over words that may stand between the two."""
    for index in range(subject.last, min(length, subject.last + _STATE_REACH)):
        if index in abnormal:
            return abnormal[index]
        if index in normal:
            return normal[index]
        if index not in passed:
            return None
    return None


def _before(
    subject: Match[OrganStatement], normal: _States, abnormal: _States, passed: set[int]
) -> Match[str] | None:
    """The state right before an organ."""
    states = {match.last: match for match in (*normal.values(), *abnormal.values())}
    for index in range(subject.first, max(0, subject.first - 5), -1):
        if index in states:
            return states[index]
        if index - 1 not in passed:
            return None
    return None


def _without_overlap(spots: list[Spot]) -> list[Spot]:
    """Several organs may share one state; findings that overlap a statement go before it."""
    kept: list[Spot] = []
    for spot in spots:
        clash = any(
            spot.first < other.last
            and other.first < spot.last
            and not (spot.statement and other.statement)
            for other in kept
        )
        if not clash:
            kept.append(spot)
    return kept


def _divide_words(text: str, words: Sequence[Word], spots: Sequence[Spot]) -> None:
    """Gives every word between two spots to one of them."""
    spots[0].own.update(range(spots[0].first))
    for spot in spots:
        spot.own.update(range(spot.first, spot.last))
    spots[-1].own.update(range(spots[-1].last, len(words)))
    for left, right in itertools.pairwise(spots):
        between = range(left.last, right.first)
        if not between:
            continue
        begin = words[left.last - 1].end
        gap = text[begin : words[right.first].start]
        separators = list(_SEPARATOR.finditer(gap))
        if separators:
            cut = begin + separators[-1].start()
            if (place := _PREPOSITION.search(gap)) is None or place.start() > separators[0].start():
                cut = begin + separators[0].start()
        elif _PREPOSITION.search(gap):
            cut = words[right.first].start
        else:
            cut = begin
        for index in between:
            (left if words[index].start < cut else right).own.add(index)


def _place(
    words: Sequence[Word], spots: Sequence[Spot], language: Language, definitions: Definitions
) -> None:
    """Regions, sides and modifiers from the words of each spot."""
    regions = definitions.region_names.find(words)
    sided = {
        index
        for match in regions
        if definitions.regions[match.payload].side
        for index in range(match.first, match.last)
    }
    for match in language.not_sides.find(words):
        sided |= set(range(match.first, match.last))
    sides = language.sides.find(words)
    modifiers = language.modifiers.find(words)
    for spot in spots:
        for region in regions:
            if region.last - 1 not in spot.own:
                continue
            if spot.statement is not None and region.payload in spot.statement.regions:
                continue  # the organ that the statement is about
            if region.payload not in spot.regions:
                spot.regions.append(region.payload)
            spot.trailing_regions |= region.first >= spot.last
        found = {
            side.payload for side in sides if side.first in spot.own and side.first not in sided
        }
        if found:
            spot.side = found.pop() if len(found) == 1 else "both"
        for modifier in modifiers:
            if modifier.first in spot.own and modifier.payload not in spot.modifiers:
                spot.modifiers.append(modifier.payload)


def _share_places(text: str, words: Sequence[Word], spots: Sequence[Spot]) -> None:
    """One place for a list: "atelectasis and effusion at the left base"; "left A and B"."""
    for left, right in zip(reversed(spots[:-1]), reversed(spots[1:]), strict=True):
        gap = text[words[left.last - 1].end : words[right.first].start]
        # Nothing but separators and modifiers between the two: members of one list.
        listed = _SEPARATOR.search(gap) and len(gap.split()) <= 4
        if listed and right.trailing_regions and not left.regions and not left.statement:
            left.regions, left.side = list(right.regions), left.side or right.side
            left.trailing_regions = True
    for left, right in itertools.pairwise(spots):
        gap = text[words[left.last - 1].end : words[right.first].start].strip(" ,")
        bare = not (right.regions or right.side or right.statement)
        if bare and not left.trailing_regions and gap in ("and", "or", "and/or", "/"):
            right.regions, right.side = list(left.regions), left.side


def _judge(
    words: Sequence[Word], spots: Sequence[Spot], flags: Sequence[bool], language: Language
) -> None:
    """Says whether each spot is there, how sure that is, and what it is taken for."""
    before = language.uncertain_before.find(words)
    after = language.uncertain_after.find(words)
    hedged = language.uncertain_negation.find(words)
    reads_as = language.interpretation.find(words)
    for number, (spot, is_denied) in enumerate(zip(spots, flags, strict=True)):
        if spot.normal:
            spot.positive = False
            if is_denied:  # "not normal" says nothing that can be named
                spot.names = ()
            continue
        spot.positive = not is_denied
        if is_denied:
            if any(cue.last <= spot.first for cue in hedged):
                spot.certainty = "likely"
        else:
            cues = [cue for cue in before if 0 <= spot.first - cue.last <= _CUE_REACH]
            if cues and not _interrupted(cues[-1], spot, spots):
                spot.certainty, spot.probability = cues[-1].payload, _words(words, cues[-1])
        for cue in after:
            if 0 <= cue.first - spot.last <= _CUE_REACH:
                spot.probability = _words(words, cue)
                spot.certainty = "likely" if cue.payload == "unlikely" else cue.payload
                spot.positive = spot.positive and cue.payload != "unlikely"
        if number and spot.positive and not spot.statement:
            previous = spots[number - 1]
            between = [c for c in reads_as if previous.last <= c.first and c.last <= spot.first]
            if between and previous.positive and previous.names:
                spot.parent = previous
            elif previous.parent is not None and spot.certainty == previous.certainty:
                spot.parent = previous.parent  # "... may represent atelectasis or pneumonia"


def _interrupted(cue: Match[str], spot: Spot, spots: Sequence[Spot]) -> bool:
    """Says whether the cue belongs to another place: a statement on an organ lies between."""
    return any(cue.last <= other.first < spot.first and other.statement for other in spots)


def _words(words: Sequence[Word], match: Match[str]) -> str:
    return " ".join(word.lemma for word in words[match.first : match.last])
