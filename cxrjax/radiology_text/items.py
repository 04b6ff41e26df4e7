"""Findings and organs' states named in a sentence, as items with their words."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cxrjax.radiology_text.definitions import OrganStatement
from cxrjax.radiology_text.english import Match, Words
from cxrjax.radiology_text.lexicon import English, pattern, word_set

# How many words may stand between an organ and its state.
_STATE_REACH = 16
_PAIRED = frozenset(("left", "right", "and", "sided", "a", ","))
_DISSENTS = pattern("dissents")
# Organs that findings of other names are said to be in: "a nodule in the left upper lobe".
_PLACES = ("lungs", "thoracic spine", "bones")
# Findings whose names are those of organs too.
_ORGANS_TOO = frozenset(("lymphadenopathy", "bowel dilatation", "interstitial markings"))
_OF_ORGAN = word_set("ordinals") | {"the", "left", "right", "both"}
_JOINTS = (",", "and", "nor", "not", "but", "yet", "otherwise", "mildly", "slightly", "are", "is")
_ONES = word_set("before_one")
_PASSED = word_set("passed")


@dataclasses.dataclass(eq=False, slots=True)
class NamedItem:
    """Finding, organ or device that a sentence names.

    Attributes:
        first, last: its words' indices, the last exclusive.
        names: findings; several where a normal organ denies several.
        statement: the organ, where its state says it.
        is_normal: the organ is said to be normal.
        is_borderline: or nearly so.
        is_denied: "none", for what was named before; or denied by its wording.
        is_gone: denied by wording as resolved: "extubated".
        is_expected: a finding that reports deny where it is not there.
        is_setting: how the film was made, which nothing denies: "on this supine film".
        refers: stands for something named before.
        own: indices of all words that name it, a statement's organ and state.
    """

    first: int
    last: int
    names: tuple[str, ...]
    statement: OrganStatement | None = None
    is_normal: bool = False
    is_borderline: bool = False
    is_denied: bool = False
    is_gone: bool = False
    is_expected: bool = False
    is_setting: bool = False
    refers: bool = False
    own: frozenset[int] = frozenset()


class Topic(NamedTuple):
    """Last topic of the previous sentence: findings, or an organ by its state."""

    names: tuple[str, ...]
    statement: OrganStatement | None


def find_items(tokens: Words, english: English, topic: Topic | None = None) -> list[NamedItem]:
    """Findings and organs' states in the order of the words, none overlapping another.

    Args:
        topic: stands for "it", "the right one" where the sentence has named nothing itself.
    """
    named = _without_organs(tokens, english.findings.find(tokens), english)
    hidden = english.not_findings.find(tokens)
    # "Chest tube placement" names the tube, "tube placement" nothing.
    if hidden:
        begun = {place for match in named for place in range(match.first + 1, match.last)}
        hidden = [match for match in hidden if match.first not in begun]
    covered = {index for match in hidden for index in range(match.first, match.last)}
    items = [
        NamedItem(
            *(match.first, match.last, (match.payload,)),
            is_setting=_is_setting(tokens, match, english),
            is_expected=_is_expected(match.payload, english),
            own=frozenset(range(match.first, match.last)),
        )
        for match in named
        if not covered.intersection(range(match.first, match.last))
    ]
    # A thing that is no finding ends what is said of a list as one does: "no lead fracture, mild
    # cardiomegaly".
    items += [
        NamedItem(match.first, match.last, (), own=frozenset(range(match.first, match.last)))
        for match in hidden
    ]
    items += [
        NamedItem(
            *(match.first, match.last, match.payload[:1]),
            is_denied=True,
            is_gone=match.payload[1],
            own=words,
        )
        for match in english.denied_findings.find(tokens)
        if not covered & (words := frozenset(range(match.first, match.last)))
        and not any(words & item.own for item in items)
    ]
    taken = {index for item in items for index in item.own} | covered
    items += _sharing_noun(tokens, items, taken, english)
    for item in _statements(tokens, taken, english):
        clash = any(
            other.names and other.statement is None and item.own & other.own - {item.first}
            for other in items
        )
        if not clash:
            items.append(item)
    items.sort(key=lambda item: item.first)
    items = _with_other_side(tokens, _by_side(tokens, _merged(items, english)), english)
    return _with_pronouns(tokens, items, topic, english)


def _without_organs(tokens: Words, named: list[Match[str]], english: English) -> list[Match[str]]:
    """The findings without those that are an organ whose state is told: "hilar nodes are not
    enlarged", "normal bowel gas"."""
    if _ORGANS_TOO.isdisjoint([one.payload for one in named]):
        return named
    subjects = english.subjects.find(tokens)
    told: set[int] = set()
    for organ in subjects:
        if not any(organ.first <= one.first and one.last <= organ.last for one in named):
            continue
        others = [one.first for one in subjects if one.first > organ.last]
        # Of a statement of its own, unless the two share one: "nodes and heart are normal".
        ends = [n for n in others if not {"and", "or"} & {*tokens.forms[n - 2 : n]}]
        near = Words(tokens[: min(ends, default=len(tokens))])
        for state in _states_of(near, organ, set(), _find_states(near, english)):
            if state.is_normal or "not" in near.forms[organ.last : state.last]:
                told.update(range(organ.first, organ.last))
    return [one for one in named if not told.issuperset(range(one.first, one.last))]


def _sharing_noun(
    tokens: Words, items: Sequence[NamedItem], taken: set[int], english: English
) -> list[NamedItem]:
    """The first of two findings that share a noun: "pleural or pericardial effusion"."""
    found = []
    for item in items:
        place = item.first - 2
        if place < 0 or place in taken or not tokens.forms[place].isalpha():
            continue
        if tokens.forms[place + 1] not in ("and", "or", "/", "nor"):
            continue
        name = english.findings.get(f"{tokens.forms[place]} {tokens.forms[item.last - 1]}")
        if name is not None and item.names and name != item.names[0]:
            own = frozenset((place,))
            expected = _is_expected(name, english)
            found.append(NamedItem(place, place + 1, (name,), is_expected=expected, own=own))
    taken.update(index for item in found for index in item.own)
    return found


def is_device(item: NamedItem, english: English) -> bool:
    """Returns whether an item is a tube, a line or another device."""
    findings = english.definitions.findings
    return any(n in findings and findings[n].category == "device" for n in item.names)


def _is_expected(name: str, english: English) -> bool:
    finding = english.definitions.findings.get(name)
    return finding is not None and finding.default_negative


def _is_setting(tokens: Words, match: Match[str], english: English) -> bool:
    """Returns whether words only mention how the image was acquired: "on this supine film"."""
    finding = english.definitions.findings.get(match.payload)
    if finding is None or not (finding.category == "acquisition" or "volume" in finding.name):
        return False
    before = tokens.forms[max(0, match.first - 4) : match.first]
    return bool({"on", "this", "given", "despite"} & set(before)) and "," not in before


def _by_side(tokens: Words, items: list[NamedItem]) -> list[NamedItem]:
    """Items by side of a label with a value for each: "effusion: right none, left small"."""
    found: list[NamedItem] = []
    for n, item in enumerate(items):
        end = items[n + 1].first if n + 1 < len(items) else len(tokens)
        forms = tokens.forms[item.last : end]
        labels = forms[:1] == [":"] and {"left", "right"} <= set(forms) and not item.statement
        values = [n for n, form in enumerate(forms) if labels and form in ("left", "right")]
        parts = [forms[a:b] for a, b in itertools.pairwise([*values, len(forms)])]
        bare = [[form for form in part[1:] if form not in _BETWEEN_VALUES] for part in parts]
        if values[:1] != [1] or not all(bare) or not any(part[0] in _NO_VALUES for part in bare):
            found.append(item)
            continue
        for place, part in zip(values, bare, strict=True):
            first = item.last + place
            own = frozenset((first,))
            denied = part[0] in _NO_VALUES
            found.append(NamedItem(first, first + 1, item.names, is_denied=denied, own=own))
    return found


_BETWEEN_VALUES = frozenset((",", ":", "and", "side", "sided", "the", "on", "(", ")", "is"))
_NO_VALUES = frozenset(("no", "none", "absent", "nil", "negative", "clear", "0", "not", "false"))


def _with_other_side(tokens: Words, items: list[NamedItem], english: English) -> list[NamedItem]:
    """Adds the first of two that share a noun: "small right and moderate left effusions"."""
    if sum([form in _SIDE_WORDS for form in tokens.forms]) < 2:
        return items
    modifiers = {
        place
        for match in english.language.modifiers.find(tokens)
        for place in range(match.first, match.last)
    }
    added = []
    for item in items:
        place, sides, joint = item.first - 1, [], -1
        while place >= 0 and (place in modifiers or tokens.forms[place] in _PAIRED):
            if tokens.forms[place] in ("left", "right"):
                sides.append(place)
            elif tokens.forms[place] == "and":
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
        plain = before and before.names and item.names and not (before.statement or item.statement)
        if before and plain and before.last == item.first:
            one, other = before.names[0], item.names[0]
            ancestors = english.definitions.finding_ancestors
            if one == other or one in ancestors(other) or other in ancestors(one):
                name = one if other in ancestors(one) else other
                kept[-1] = NamedItem(before.first, item.last, (name,), own=before.own | item.own)
                continue
        kept.append(item)
    return kept


def _with_pronouns(
    tokens: Words, items: list[NamedItem], topic: Topic | None, english: English
) -> list[NamedItem]:
    """Adds what stands for something named before: "except for a small one", "it has resolved",
    "the right one is new", "cleared on the left but is new on the right"."""
    taken = {index for item in items for index in item.own}
    last = len(tokens)
    is_value = tokens.form(0) in _SIDE_WORDS and tokens.form(1) == ":" and last > 2
    if is_value and not items and topic and topic.statement is None:  # "...; right: small"
        denied = tokens.forms[2] in _NO_VALUES
        items, taken = [NamedItem(0, 1, topic.names, is_denied=denied, own=frozenset((0,)))], {0}
    for place, form in enumerate(tokens.forms):
        if form not in _STAND_FOR or place in taken:
            continue
        if not (stands := _stands_for(tokens, place, last)):
            continue
        earlier = [item for item in items if item.last <= place and item.names]
        meant = Topic(earlier[-1].names, earlier[-1].statement) if earlier else topic
        inside = stands == "ellipsis" or form in ("not", "absent", "neither")
        if meant is None or (inside and not earlier):
            continue
        own = frozenset((place,))
        if stands == "clear" and meant.statement is None:
            lungs = english.language.subjects.get("lungs")
            assert lungs is not None
            meant = Topic(lungs.normal, lungs)
        if meant.statement is None:
            end = next((p for p in range(place, last) if tokens.forms[p] in _ENDS), last)
            named = any(place < item.first < end for item in items)
            if named and stands not in ("none", "side"):
                continue  # "this may be an enlarged artery", "it is unlikely that there is one"
            if named and any(place < item.first <= place + 4 for item in items):
                continue
            names = meant.names
            if form == "neither":  # "consolidation and effusion left, neither on the right"
                names = tuple(dict.fromkeys(name for one in earlier[-2:] for name in one.names))
            items.append(
                NamedItem(
                    *(place, place + 1, names), is_denied=stands == "none", refers=True, own=own
                )
            )
        elif (said := _ends_short(tokens, place)) and earlier and earlier[-1].statement is not None:
            own = frozenset(range(place, place + 1 + len(said)))
            is_denied = "not" in said and not earlier[-1].is_normal
            items.append(
                NamedItem(place, place + 1, earlier[-1].names, is_denied=is_denied, own=own)
            )
        elif stands in ("side", "clear"):
            subject = Match(place, place + 1, meant.statement)
            items += [
                dataclasses.replace(item, refers=True)
                for item in _states_of(tokens, subject, taken, _find_states(tokens, english))
            ]
        items.sort(key=lambda item: item.first)
    return _with_ones(tokens, items, topic)


def _ends_short(tokens: Words, place: int) -> list[str]:
    """The "is not" of "the right is not", or its "is", where nothing follows."""
    said = tokens.forms[place + 1 : place + 4]
    said = said[: next((n for n, word in enumerate(said) if word in (",", "and", "but")), 3)]
    return said if said in (["is"], ["are"], ["is", "not"], ["are", "not"]) else []


def _with_ones(tokens: Words, items: list[NamedItem], topic: Topic | None) -> list[NamedItem]:
    """Adds "one", "an amount", "none" that stand for a finding named before."""
    stands = _ends_elliptic(tokens)
    if stands == "denied" and items:
        topic = Topic(items[-1].names, items[-1].statement)
    if topic and stands and topic.statement is None and (stands == "denied" or not items):
        last, refers = len(tokens), stands != "there"
        item = NamedItem(last - 1, last, topic.names, own=frozenset((last - 1,)), refers=refers)
        item.is_gone, item.is_denied = stands == "gone", refers
        return [*items, item]
    for place, form in enumerate(tokens.forms):
        if form not in _STAND_FOR_ONE:
            continue
        before = [i for i in items if i.last <= place and i.statement is None and i.names]
        own = frozenset((place,))
        leads = tokens.forms[place - 1] if place else ""
        if form == "none" and before and 0 < place < len(tokens) - 1:
            # "Small on the left, none on the right".
            follows = tokens.forms[place + 1]
            if follows in ("on", "in", "at", *_SIDE_WORDS) and leads in (",", "and", "but"):
                items.append(NamedItem(place, place + 1, before[-1].names, own=own, is_denied=True))
            continue
        article = {*tokens.forms[max(0, place - 3) : place]} & {"a", "an", "another"}
        is_one = (
            (form in ("one", "ones") and leads in _ONES)
            or (form == "one" and bool(article))
            or (form in _COUNTED | _AMOUNTS and bool(_EXCEPTS & _before_words(tokens, place)))
        )
        if not is_one or any(
            place < i.first <= place + 3 and "," not in tokens.forms[place : i.first] for i in items
        ):
            continue
        exists = leads == "is" and tokens.form(place - 2) == "there"
        exists |= leads == "the" and tokens.form(place + 1) == "on"  # "the one on the left"
        if not before and topic and topic.statement is None and (leads in _SMALL or exists):
            items.append(NamedItem(place, place + 1, topic.names, own=own))
        elif before and not any(place - 1 in item.own for item in items if item.refers):
            items.append(NamedItem(place, place + 1, before[-1].names, own=own))
    return sorted(items, key=lambda item: item.first)


def _ends_elliptic(tokens: Words) -> str:
    """Returns "there" for "now there is", "gone" for "the present one does not", else "denied"."""
    if _DISSENTS.search(" ".join(tokens.forms[-3:])):
        return "denied"  # "I do not"
    last = tokens.forms[-2:]
    if last in (["there", "is"], ["there", "are"]):
        return "there"
    now = {"present", "current", "new", "today"} & {*tokens.forms}
    return "gone" if now and last in (["doe", "not"], ["do", "not"]) else ""


def _before_words(tokens: Words, place: int) -> set[str]:
    """The words right before a place, up to a comma."""
    words = tokens.forms[max(0, place - 5) : place]
    return set(words[words.index(",") + 1 :] if "," in words else words)


def _stands_for(tokens: Words, place: int, last: int) -> str:
    """Returns how a word refers to an item named before; "" if it does not."""
    lemma = tokens.forms[place]
    follows = tokens.forms[place + 1 : place + 4]
    next_word = follows[0] if follows else ""
    before = tokens.forms[place - 1] if place else ""
    opens = not place or before in _OPENERS
    if lemma == "none" and before not in (":", "showed", "was", "were", "been"):
        return "none" if next_word in _BEHIND_NONE or before in _SIDE_WORDS else ""
    at = follows[2:] if follows[1:2] == ["the"] else follows[1:]
    if lemma in ("sparing", "spare") and _SIDE_WORDS & set(follows[:2]):
        return "none"  # "involves the right lung, sparing the left"
    denies = lemma == "not" or (lemma in ("absent", "neither") and before in (",", "and", "but"))
    if denies and next_word in ("on", "in", "at") and at[:1] and at[0] in _SIDE_WORDS:
        return "none"  # "an effusion on the left, not on the right"
    if lemma in _STILL and before in (",", "and", "but", "while") and at[:1]:
        # "Absent on the left and present on the right"
        return "pronoun" if next_word in ("on", "in", "at") and at[0] in _SIDE_WORDS else ""
    if lemma in ("that", "those") and opens and next_word in ("on", "in", "at"):
        return "side" if at[:1] and at[0] in _SIDE_WORDS else ""  # ", that on the right"
    if lemma in _PRONOUNS and next_word in _PREDICATES:
        return "pronoun"
    leads = tokens.forms[place - 2] if place > 1 else ""
    if lemma in _SIDE_WORDS and leads in ("on", "in", "at", "to", "from", "of") and before == "the":
        return ""  # "an effusion on the left cannot be excluded"
    if lemma in _SIDE_WORDS and (before in ("the", "one") or not place or before in _OPENERS):
        if next_word in ("one", "side") and len(follows) > 1:
            next_word = follows[1]
        if next_word in _PREDICATES or ((opens or before == "the") and next_word in _CHANGES):
            return "clear" if next_word in ("clear", "normal") else "side"
    if lemma in ("but", "and", "while") and next_word in ("is", "are", "has", "have"):
        rest = {*tokens.forms[place + 1 : last]}
        return "ellipsis" if rest & _SIDE_WORDS else ""
    return ""


_LINKING = frozenset(("is", "are", "appear", "was", "were", "not", "look", "remain"))
_PRONOUNS = word_set("pronouns")
_PREDICATES = word_set("predicates")
_CHANGES = word_set("changes")
_ENDS = frozenset((",", "and", "but", "while", ";"))
_BEHIND_NONE = ("", "is", "are", "seen", "identified", "noted", "on", "left", "right", "present")
_BEFORE_ORGAN = word_set("before_organ")
_WHOLLY = ("entirely", "completely", "fully", "totally", "quite", "wholly", "perfectly", "really")
_DESCRIBING = word_set("describing")
_AMOUNTS = word_set("amounts")
_EXCEPTS = word_set("excepts")
_SMALL = word_set("before_one") - {"is", "the", "right", "left", "bilateral"}
_COUNTED = frozenset(("one", "ones", "two", "three", "four", "several", "some", "few", "those"))
_OPENERS = frozenset((",", "and", "but", "while", "whereas", ":", "although", "on"))
_SIDE_WORDS = frozenset(("left", "right"))
_STILL = frozenset(("present", "persist", "remain", "seen", "visible", "noted"))
_STAND_FOR = _PRONOUNS | _STILL | word_set("elliptic")
_STAND_FOR_ONE = _COUNTED | _AMOUNTS | {"none"}


def _statements(tokens: Words, taken: set[int], english: English) -> list[NamedItem]:
    subjects = [
        match
        for match in english.subjects.find(tokens)
        if not taken.intersection(range(match.first, match.last))
        and not (match.payload.name in _PLACES and _is_place(tokens, match.first, taken))
        and not _is_owner(tokens, match.first, taken)
        # "A large volume left effusion"
        and not (match.payload.name == "lung volumes" and taken & {match.last, match.last + 1})
    ]
    starts = {match.first for match in subjects}
    # "Upper lobe vascularity" is of the vessels.
    subjects = [
        match
        for match in subjects
        if match.payload.name != "lungs"
        or starts.isdisjoint((match.last, match.last + (tokens.form(match.last) == "pulmonary")))
    ]
    if not subjects:
        return []
    states = _find_states(tokens, english)
    return [item for subject in subjects for item in _states_of(tokens, subject, taken, states)]


class _States(NamedTuple):
    """Words of organs' states by their first place, and the words that may stand between."""

    normal: Mapping[int, Match[str]]
    borderline: Mapping[int, Match[str]]
    passed: set[int]


def _find_states(tokens: Words, english: English) -> _States:
    language = english.language
    normal = {
        match.first: match
        for match in language.normal_states.find(tokens)
        if tokens.forms[max(0, match.first - 1)] not in ("better", "less", "to")  # "slow to clear"
        # "Clear of infiltrates" says no more than that.
        if match.last == len(tokens)
        or (
            (tokens.forms[match.last - 1], tokens.forms[match.last]) != ("negative", "for")
            and tokens.forms[match.last] not in ("of", "from")
            and (tokens.forms[match.first] != "fine" or tokens.forms[match.last] in (",", "and"))
        )
    }
    borderline = {match.first: match for match in english.borderline_states.find(tokens)}
    passed: set[int] = set()
    regions = english.definitions.region_names
    for index in (
        *(english.subjects, language.linked, language.modifiers),
        *(language.change, language.sides, regions),
    ):
        for match in index.find(tokens):
            passed.update(range(match.first, match.last))
    return _States(normal, borderline, passed)


def _states_of(
    tokens: Words, subject: Match[OrganStatement], taken: set[int], words: _States
) -> list[NamedItem]:
    """Reads the state of an organ."""
    abnormal = {match.first: match for match in subject.payload.states.find(tokens)}
    states = {**words.normal, **abnormal, **words.borderline}
    passed = words.passed
    after, before = (find(tokens, subject, states, passed) for find in (_after, _before))
    near = (
        before is not None
        and before.last >= subject.first - 2
        and tokens.forms[before.first - 1] not in _LINKING
        and "," not in {*tokens.forms[before.last : subject.first]}
    )
    state = before if near else after or before
    items = []
    while state is not None:
        own_word = bool(taken.intersection(range(state.first, state.last)))
        # What has not grown may be large: "the heart size has not increased".
        led = tuple(tokens.forms[max(0, state.first - 2) : state.first])
        own_word |= led in (("has", "not"), ("have", "not"))
        own_word |= tokens.form(state.last) in ("cm", "mm")  # "lungs: 0.5 cm nodule"
        # A finding's own word, or one that describes it: "eighth rib: undisplaced fracture".
        if own_word or (tokens.forms[state.last - 1] in _DESCRIBING and state.last in taken):
            state = _next(tokens, state, states)
            continue
        is_borderline = words.borderline.get(state.first) is state
        is_normal = words.normal.get(state.first) is state
        denial = state.first - 1
        while denial > subject.last and tokens.forms[denial] in _WHOLLY:
            denial -= 1
        not_so, names = None, subject.payload.normal
        if is_normal and tokens.forms[denial] in ("not", "longer"):
            ends = (" ".join(tokens.forms[state.first : state.last]), tokens.forms[state.last - 1])
            found = (subject.payload.states.get(f"not {said}") for said in ends)
            ceases = tokens.forms[denial] == "longer"  # "bones no longer intact"
            not_so = next(filter(None, found), names[0] if ceases else None)
            is_normal = not_so is None
        if is_borderline:
            names = names[:1]
        elif not is_normal:
            names = (not_so or state.payload,)
        own = {*range(subject.first, subject.last), *range(state.first, state.last)}
        own |= {denial, denial - (tokens.forms[denial] == "longer")} if not_so else set()
        # A denial looks at the state: "the heart is not enlarged".
        first, last = max(state.first, subject.first), max(state.last, subject.last)
        items.append(
            NamedItem(
                *(first, last, names, subject.payload, is_normal, is_borderline), own=frozenset(own)
            )
        )
        state = None if is_normal else _next(tokens, state, states)  # "tortuous and calcified"
    return items


def _is_owner(tokens: Words, place: int, taken: set[int]) -> bool:
    """Returns whether an organ only locates a finding: "a fracture of the right sixth rib"."""
    while place > 1 and tokens.forms[place - 1] != "of" and tokens.forms[place - 1] in _OF_ORGAN:
        place -= 1
    return place > 1 and tokens.forms[place - 1] == "of" and place - 2 in taken


def _is_place(tokens: Words, place: int, taken: set[int]) -> bool:
    """Returns whether an organ's part is the place of something else: "in the left upper lobe",
    "opacity left base"."""
    before = tokens.forms[max(0, place - 3) : place]
    if before[-1:] in (["left"], ["right"]) and place - 2 in taken:
        return True
    while before and before[-1] in ("the", "left", "right", "both"):
        before.pop()
    return bool(before) and before[-1] in ("in", "at", "within", "over", "involving", "from")


def _after(
    tokens: Words, subject: Match[OrganStatement], states: Mapping[int, Match], passed: set[int]
) -> Match | None:
    """The state behind an organ, over words that may stand between the two, and lists of organs."""
    for index in range(subject.last, min(len(tokens), subject.last + _STATE_REACH)):
        if index in states:
            return states[index]
        if tokens.forms[index] == "otherwise" and tokens.forms[index - 1] == ",":
            return None  # "atelectasis at the left base, otherwise clear lungs"
        if index not in passed and tokens.forms[index] not in _PASSED:
            return None
    return None


def _next(tokens: Words, state: Match, states: Mapping[int, Match]) -> Match | None:
    """A further state of the same organ, joined to one."""
    place = state.last
    while place < len(tokens) and tokens.forms[place] in _JOINTS:
        place += 1
    return states.get(place) if place > state.last else None


def _before(
    tokens: Words, subject: Match[OrganStatement], states: Mapping[int, Match], passed: set[int]
) -> Match | None:
    """The state right before an organ: "clear lungs", "enlarged heart"."""
    by_end = {match.last: match for match in states.values()}
    for index in range(subject.first, max(0, subject.first - _STATE_REACH), -1):
        if index in by_end:
            return by_end[index]
        if index - 1 not in passed and tokens.forms[index - 1] not in _BEFORE_ORGAN:
            return None
        if tokens.forms[index - 1 : index + 1] == ["but", "the"]:
            return None  # "the lungs are clear, but the left base is obscured"
    return None
