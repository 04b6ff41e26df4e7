"""Effect of a Vietnamese sentence's cues on its items: presence, certainty and time."""

import functools
import itertools
from collections.abc import Callable, Sequence

from cxrjax.radiology_text.assertions import Certainty, Status, Time
from cxrjax.radiology_text.english import Match
from cxrjax.radiology_text.lexicon import Cue
from cxrjax.radiology_text.vietnamese_items import VietnameseItem, VietnameseSentence, reach_of

_NEAR = 4  # a side or place behind a finding
_BACK_REACH = 12  # between a finding and a cue behind it
SAID: dict[str, tuple[Status, Certainty, Time]] = {
    "": ("present", "certain", "current"),
    "denied certain": ("absent", "certain", "current"),
    "denied likely": ("absent", "likely", "current"),
    "hedged likely": ("present", "likely", "current"),
    "hedged possible": ("uncertain", "possible", "current"),
    "hedged unlikely": ("uncertain", "unlikely", "current"),
    "past": ("uncertain", "possible", "past"),
    "query": ("uncertain", "possible", "to be ruled out"),
}
# What is said already, and a cue behind it that changes it.
_CHANGED = {
    ("denied certain", "weakens"): "denied likely",
    ("hedged possible", "lowers"): "hedged unlikely",
    ("hedged likely", "lowers"): "hedged unlikely",
    ("hedged possible", "raises"): "hedged likely",
}


def judge(sentence: VietnameseSentence) -> None:
    """Gives each item what cues say of it."""
    cue_at = {cue.first: cue for cue in sentence.cues}
    item_at = {item.first: item for item in sentence.items}
    says, span, since = "", (0, 0), 0
    begin = place = 0
    while place < len(sentence.forms):
        if (cue := cue_at.get(place)) is not None:
            place = cue.last
            # A clause that names nothing speaks of the one before.
            reach = begin if sentence.items[-1].first >= begin else 0
            left = [i for i in sentence.items if reach <= i.first and i.last <= cue.first]
            new = cue.payload.after
            if _looks_back(sentence, cue, left):
                _say_back(sentence, cue, left, cue.payload.before)
                continue
            if said := _default_back(sentence, cue, left):
                _say_back(sentence, cue, left, said)
                continue
            if new == "contrast":
                says, begin = "", cue.first
            elif new == "affirms":
                says = says if says and not since else ""
            elif new == "except":
                says = ""
            elif new and new != "neutral":
                own = (cue.first, cue.last)
                if says and not since:
                    if says.startswith("hedged") and new.startswith("denied"):
                        new = "denied likely"
                    elif new.startswith("hedged") and says not in ("hedged likely", "past"):
                        new, own = says, span
                says, span, since = new, own, 0
            is_bare = cue.last - cue.first == 1 and says.startswith("denied")
            label = cue.first == 0 and place + 1 in item_at
            if is_bare and sentence.form(place) in (",", ":" if not label else ","):
                says = ""  # "Không, bóng tim to"
        elif (item := item_at.get(place)) is not None:
            item.says, item.cue = says, span if says else (0, 0)
            since += 1
            place = item.last
        else:
            if says and since and _ends(sentence, says, place):
                says = ""
            place += 1
    # Of two that are affirmed with an "or" between, neither is sure.
    for one, other in itertools.pairwise(sentence.items):
        plain = not (one.says or other.says or one.is_normal or other.is_normal)
        if plain and sentence.sets["or"] & {*sentence.between(one, other)}:
            one.says = other.says = "hedged possible"


def _looks_back(
    sentence: VietnameseSentence, cue: Match[Cue], left: Sequence[VietnameseItem]
) -> bool:
    """Returns whether a cue applies to the words before it."""
    if not left or not cue.payload.before:
        return False
    behind = sentence.form(cue.last)
    if sentence.forms[cue.first - 1] == ":":
        return behind in ("", ",", ")", "/")
    if behind in sentence.sets["than"]:
        return True  # "ít khả năng hơn xẹp phổi"
    ahead = next((item for item in sentence.items if item.first >= cue.last), None)
    if ahead is None:
        return True
    gap = sentence.forms[cue.last : ahead.begin]
    turns = any(cue.last <= place < ahead.first for place in sentence.contrasts)
    return turns or "," in gap or ":" in gap


def _default_back(
    sentence: VietnameseSentence, cue: Match[Cue], left: Sequence[VietnameseItem]
) -> str:
    """Returns what a denial with nothing named behind it says of what stands before: "không được
    tìm thấy"; in doubt where its predicate is unknown; "" where it says nothing of it."""
    said = cue.payload.after
    ahead = any(item.first >= cue.last for item in sentence.items)
    gap = sentence.forms[left[-1].last : cue.first] if left else []
    if not said.startswith("denied") or ahead or not left or "," in gap or len(gap) > _NEAR:
        return ""
    is_open = cue.last - cue.first == 1 and sentence.form(cue.last) not in ("", ",", ":", ")")
    known = any(match.first == cue.last for match in sentence.times)
    return "" if known else "hedged possible" if is_open else said


def _say_back(
    sentence: VietnameseSentence, cue: Match[Cue], left: Sequence[VietnameseItem], said: str
) -> None:
    """Lets a cue hold for the list that stands before it."""
    is_value = sentence.forms[cue.first - 1] == ":"

    def goes_on(other: VietnameseItem, one: VietnameseItem) -> bool:
        gap = sentence.between(one, other)
        joined = sentence.sets["joint"] & {*gap} or gap == [","] or (is_value and "," in gap)
        parted = any(one.last <= between.first < other.first for between in sentence.cues)
        return bool(joined) and not (one.statement or parted or len(gap) > 8 or ":" in gap)

    if cue.first - left[-1].last > _BACK_REACH:
        return
    for item in _run(left[::-1], goes_on):
        if item.is_normal or item.says in ("query", "past"):
            continue
        changed = _CHANGED.get((item.says, said), said)
        again = item.is_denied_here and said.startswith("denied")
        if changed in (*SAID, "silent") and not again:
            item.says, item.cue = changed, (cue.first, cue.last)


def _ends(sentence: VietnameseSentence, says: str, place: int) -> bool:
    """Returns whether the reach of a cue ends at a comma or a conjunction."""
    is_comma, joins = sentence.forms[place] == ",", sentence.forms[place] in sentence.sets["joint"]
    following = next((item for item in sentence.items if item.begin > place), None)
    if following is None or not (is_comma or joins):
        return False
    gap = range(place + 1, following.first)
    if says.startswith("denied"):
        # A place before a finding opens a statement; what has a degree is there.
        placed = any(p in sentence.within or sentence.side_at(p) for p in gap)
        is_new = is_comma and (placed or _is_graded(sentence, following))
        return following.statement is not None or is_new
    if says == "past":
        is_now = sentence.sets["now"] & {*sentence.forms[place + 1 : following.first]}
        return following.statement is not None or bool(is_now)
    if says == "query" or joins:
        return False
    cues = (c.first for c in sentence.cues if c.first > place and c.payload.after != "neutral")
    until = next(cues, len(sentence.forms))
    return not sentence.sets["or"] & {*sentence.forms[place + 1 : until]}


def _is_graded(sentence: VietnameseSentence, item: VietnameseItem) -> bool:
    """Returns whether a degree or a size follows an item, which means that it is present."""
    stop = next((i.first for i in sentence.items if i.first > item.first), len(sentence.forms))
    behind = itertools.takewhile(lambda t: t.lemma != ",", sentence.tokens[item.last : stop])
    tokens = list(behind)
    is_measured = any(token.lemma in ("mm", "cm") for token in tokens)
    return is_measured or bool(sentence.words.severity.find(tokens))


def compare(sentence: VietnameseSentence) -> None:
    """Gives items how they compare with before."""
    for match in sentence.times:
        right = [item for item in sentence.items if item.begin >= match.last]
        left = [item for item in sentence.items if item.last <= match.first]
        gap = sentence.forms[match.last : right[0].begin] if right else []
        reach: Sequence[VietnameseItem] = ()
        most = sentence.form(match.first) in sentence.sets["most"]
        both = sentence.sets["both_before"] & {*sentence.forms[: match.first]}
        if most and both and sentence.side_at(match.first - 1):
            continue  # "hai bên, bên phải nhiều hơn"
        if right and {*gap} <= sentence.sets["before_item"]:
            is_gone = match.payload == "resolved"
            reach = _run(right, functools.partial(_is_listed, sentence)) if is_gone else right[:1]
        elif left:
            reach = _run(left[::-1], functools.partial(_is_joined, sentence))
        elif "," not in gap:
            reach = right[:1]
        for item in reach:
            item.times.add(match.payload)


def _is_listed(sentence: VietnameseSentence, one: VietnameseItem, other: VietnameseItem) -> bool:
    return {*sentence.between(one, other)} <= sentence.sets["list"]


def _is_joined(sentence: VietnameseSentence, other: VietnameseItem, one: VietnameseItem) -> bool:
    gap = {*sentence.between(one, other)}
    return bool(gap & sentence.sets["joint"]) and "," not in gap


def grade(sentence: VietnameseSentence) -> None:
    """Gives items their severity."""
    taken = sentence.named | sentence.compared
    taken |= {place for cue in sentence.cues for place in reach_of(cue)}
    taken |= {place for match in sentence.times for place in reach_of(match)}
    for match in sentence.outside(sentence.words.severity, taken):
        inside = [i for i in sentence.items if i.begin < match.first < max(i.own)]
        # "Nhiều nốt" counts them.
        near = match.payload != "large"
        right = [i for i in sentence.items if near and i.begin == match.last]
        left = [i for i in sentence.items if i.last <= match.first]
        for item in (inside or right or left[-1:])[:1]:
            item.severity = item.severity or match.payload


def explains(sentence: VietnameseSentence, one: VietnameseItem, item: VietnameseItem) -> bool:
    """Returns whether an item is offered as an explanation of the one before it."""
    if one.is_denied_here or item.is_denied_here or one.is_normal or item.statement:
        return False
    return bool((sentence.sets["explains"] | {":"}) & {*sentence.between(one, item)})


def _run(
    items: Sequence[VietnameseItem], goes_on: Callable[[VietnameseItem, VietnameseItem], bool]
) -> list[VietnameseItem]:
    """The first item, and those after it as far as the words between them let it go on."""
    pairs = itertools.takewhile(lambda pair: goes_on(*pair), itertools.pairwise(items))
    return [*items[:1], *(item for _, item in pairs)]
