"""Findings and organs' states named in a sentence, as items with their words."""

import dataclasses
from collections.abc import Mapping, Sequence

from cxrjax.radiology_text.definitions import OrganStatement
from cxrjax.radiology_text.english import Match, Word
from cxrjax.radiology_text.lexicon import English, word_set

# How many words may stand between an organ and its state.
_STATE_REACH = 9
_PAIRED = frozenset(("left", "right", "and", "sided", "a", ","))
_JOINTS = (",", "and", "but", "yet", "otherwise", "mildly", "slightly", "are", "is")
_ONES = word_set("before_one")
_PAIRED = frozenset(("left", "right", "and", "sided", "a", ","))
_JOINTS = (",", "and", "but", "yet", "otherwise", "mildly", "slightly", "are", "is")
_PASSED = word_set("passed")


@dataclasses.dataclass(eq=False)
class NamedItem:
    """Something named in a sentence.

    Attributes:
        first, last: its words' indices, the last exclusive.
        names: findings; several where a normal organ denies several.
        statement: the organ, where its state says it.
        is_normal: the organ is said to be normal.
        is_borderline: or nearly so.
        is_denied: "none", for what was named before.
        own: indices of all words that name it, a statement's organ and state.
    """

    first: int
    last: int
    names: tuple[str, ...]
    statement: OrganStatement | None = None
    is_normal: bool = False
    is_borderline: bool = False
    is_denied: bool = False
    own: frozenset[int] = frozenset()


def find_items(tokens: Sequence[Word], english: English) -> list[NamedItem]:
    """Findings and organs' states in the order of the words, none overlapping another."""
    named = english.findings.find(tokens)
    hidden = english.not_findings.find(tokens)
    covered = {index for match in hidden for index in range(match.first, match.last)}
    items = [
        NamedItem(
            match.first, match.last, (match.payload,), own=frozenset(range(match.first, match.last))
        )
        for match in named
        if not covered.intersection(range(match.first, match.last))
    ]
    taken = {index for item in items for index in item.own} | covered
    for item in _statements(tokens, taken, english):
        clash = any(
            other.statement is None and item.own & other.own - {item.first} for other in items
        )
        if not clash:
            items.append(item)
    items.sort(key=lambda item: item.first)
    items = _with_other_side(tokens, _merged(items, english), english)
    return _with_pronouns(tokens, items)


def _with_other_side(
    tokens: Sequence[Word], items: list[NamedItem], english: English
) -> list[NamedItem]:
    """Adds the first of two that share a noun: "small right and moderate left effusions"."""
    modifiers = {
        place
        for match in english.language.modifiers.find(tokens)
        for place in range(match.first, match.last)
    }
    added = []
    for item in items:
        place, sides, joint = item.first - 1, [], -1
        while place >= 0 and (place in modifiers or tokens[place].lemma in _PAIRED):
            if tokens[place].lemma in ("left", "right"):
                sides.append(place)
            elif tokens[place].lemma == "and":
                joint = place
            place -= 1
        if item.statement is None and len(sides) == 2 and sides[1] < joint < sides[0] - 1:
            first = sides[1]
            added.append(NamedItem(first, first + 1, item.names, own=frozenset((first,))))
    return sorted([*items, *added], key=lambda item: item.first)


def _merged(items: Sequence[NamedItem], english: English) -> list[NamedItem]:
    """One item of two wordings of one finding, word by word: "focal air space | opacity"."""
    kept: list[NamedItem] = []
    for item in items:
        before = kept[-1] if kept else None
        if before and before.last == item.first and not before.statement and not item.statement:
            one, other = before.names[0], item.names[0]
            ancestors = english.definitions.finding_ancestors
            if one == other or one in ancestors(other) or other in ancestors(one):
                name = one if other in ancestors(one) else other
                kept[-1] = NamedItem(before.first, item.last, (name,), own=before.own | item.own)
                continue
        kept.append(item)
    return kept


def _with_pronouns(tokens: Sequence[Word], items: list[NamedItem]) -> list[NamedItem]:
    """Adds "one" where it stands for the finding before it: "except for a small one"."""
    for place, token in enumerate(tokens):
        before = [item for item in items if item.last <= place and item.statement is None]
        if token.lemma in ("one", "ones") and before and tokens[place - 1].lemma in _ONES:
            names = before[-1].names
            items.append(NamedItem(place, place + 1, names, own=frozenset((place,))))
        elif token.lemma == "none" and before and place + 1 < len(tokens) and place:
            # "Small on the left, none on the right".
            leads, follows = tokens[place - 1].lemma, tokens[place + 1].lemma
            if follows in ("on", "in", "at") and leads in (",", "and", "but"):
                own = frozenset((place,))
                items.append(NamedItem(place, place + 1, before[-1].names, own=own, is_denied=True))
    return sorted(items, key=lambda item: item.first)


def _statements(tokens: Sequence[Word], taken: set[int], english: English) -> list[NamedItem]:
    language = english.language
    subjects = [
        match
        for match in english.subjects.find(tokens)
        if not taken.intersection(range(match.first, match.last))
        and not (match.payload.name == "lungs" and _is_place(tokens, match.first))
    ]
    normal = {
        match.first: match
        for match in language.normal_states.find(tokens)
        # "Clear of infiltrates" says no more than that.
        if match.last == len(tokens) or tokens[match.last].lemma not in ("of", "from")
    }
    borderline = {match.first: match for match in english.borderline_states.find(tokens)}
    passed = {place for match in subjects for place in range(match.first, match.last)}
    regions = english.definitions.region_names
    for index in (language.linked, language.modifiers, language.change, language.sides, regions):
        for match in index.find(tokens):
            passed.update(range(match.first, match.last))
    items = []
    for subject in subjects:
        abnormal = {match.first: match for match in subject.payload.states.find(tokens)}
        states = {**normal, **abnormal, **borderline}
        state = _after(tokens, subject, states, passed) or _before(tokens, subject, states, passed)
        while state is not None:
            if taken.intersection(range(state.first, state.last)):  # a finding's own word
                state = _next(tokens, state, states)
                continue
            is_borderline = borderline.get(state.first) is state
            is_normal = normal.get(state.first) is state
            names = subject.payload.normal
            if is_borderline:
                names = names[:1]
            elif not is_normal:
                names = (state.payload,)
            own = {*range(subject.first, subject.last), *range(state.first, state.last)}
            # A denial looks at the state: "the heart is not enlarged".
            first, last = max(state.first, subject.first), max(state.last, subject.last)
            items.append(
                NamedItem(
                    *(first, last, names, subject.payload, is_normal, is_borderline),
                    own=frozenset(own),
                )
            )
            state = None if is_normal else _next(tokens, state, states)  # "tortuous and calcified"
    return items


def _is_place(tokens: Sequence[Word], place: int) -> bool:
    """Whether a part of the lung is where something else is: "in the left upper lobe"."""
    before = [token.lemma for token in tokens[max(0, place - 3) : place]]
    while before and before[-1] in ("the", "left", "right", "both"):
        before.pop()
    return bool(before) and before[-1] in ("in", "at", "within", "over", "involving", "from")


def _after(
    tokens: Sequence[Word],
    subject: Match[OrganStatement],
    states: Mapping[int, Match],
    passed: set[int],
) -> Match | None:
    """The state behind an organ, over words that may stand between the two, and lists of organs."""
    for index in range(subject.last, min(len(tokens), subject.last + _STATE_REACH)):
        if index in states:
            return states[index]
        if index not in passed and tokens[index].lemma not in _PASSED:
            return None
    return None


def _next(tokens: Sequence[Word], state: Match, states: Mapping[int, Match]) -> Match | None:
    """A further state of the same organ, joined to one."""
    place = state.last
    while place < len(tokens) and tokens[place].lemma in _JOINTS:
        place += 1
    return states.get(place) if place > state.last else None


def _before(
    tokens: Sequence[Word],
    subject: Match[OrganStatement],
    states: Mapping[int, Match],
    passed: set[int],
) -> Match | None:
    """The state right before an organ: "clear lungs", "enlarged heart"."""
    by_end = {match.last: match for match in states.values()}
    for index in range(subject.first, max(0, subject.first - _STATE_REACH), -1):
        if index in by_end:
            return by_end[index]
        if index - 1 not in passed and tokens[index - 1].lemma not in ("configuration", "the"):
            return None
    return None
