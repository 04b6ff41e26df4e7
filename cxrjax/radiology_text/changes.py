"""Comparison of a sentence's findings with before: new, worse, better, unchanged, resolved."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cxrjax.radiology_text.assertions import Side, Time
from cxrjax.radiology_text.english import Match, Word, Words
from cxrjax.radiology_text.forward import Judgement
from cxrjax.radiology_text.items import NamedItem, is_device
from cxrjax.radiology_text.lexicon import English, Sentence, word_set
from cxrjax.radiology_text.places import OPPOSITE, compared_sides

_WHOLE = frozenset(("chest", "exam", "examination", "study", "radiograph", "film"))
_TIMES: tuple[Time, ...] = ("resolved", "worse", "better", "new", "unchanged")
_COMPARES = frozenset(("prior", "previous", "since"))
_ON_SIDE = frozenset(("on", "in", "at", "the", "to", "is", "are", "has", "side", "one", "lung"))
_GRADED = frozenset(("the", "a", "small", "mild", "moderate", "large", "trace", "tiny"))
_LISTED = word_set("listed")
_STATES = frozenset(("is", "are", "has", "have", "was", "were", "appear"))
_LOOKING_BACK = ("for", "from", "than")
_APART = frozenset(("with", "without", "no", "not"))
_EXCEPTS = word_set("excepts")
_NEARLY = ("nearly", "almost", "near", "incomplete", "partial")
_PASSED_BY = word_set("passed_by")
_NONE_OF, _PART_OF = word_set("none_of"), word_set("part_of")
_SHARE_REACH = 9
_UNFINISHED = word_set("unfinished")
_CLEARS = frozenset(("clearing", "resolution", "resorption", "absorption"))
_THEN_REACH = 4
_TURNS, _SIDES = frozenset(("but", "and", ",", "now")), frozenset(("left", "right"))

# What a finding may cease to be without being gone.
_PROPERTIES = word_set("properties")
_BIG = ("large", "big", "prominent", "dense", "extensive", "marked", "severe", "moderate")
_GROWING = ("increasing", "enlarging", "growing", "worsening", "decreasing", "improving", "new")

# Behind these a resolution is waited for; behind "remains" the others say how much is known.
_AWAITS = word_set("awaits")
_UNKNOWN = word_set("unknown")
_DENSITY = frozenset(("lung opacity", "interstitial markings", "hyperinflation"))
_TIME_TAIL = word_set("time_tail")


# Behind a change: what stands behind these is another thing.
_LEADS_OFF = ("and", "or", "compared", "from", "since", "after", "following", "post", "upon", "by")


def find_times(
    sentence: Sentence,
    items: Sequence[NamedItem],
    judged: Sequence[Judgement],
    clauses: Sequence[tuple[int, int]],
    english: English,
    named: frozenset[int],
    changes: Sequence[Match[Time]],
) -> list[Time]:
    """Returns how each item compares with before."""
    found: list[dict[Time, int]] = [{} for _ in items]
    tokens = sentence.tokens
    sides = compared_sides(sentence.text)
    for change in changes:
        if any(a <= tokens[change.first].start < b for a, b in sides):
            continue
        match = _weighed(tokens, change, named)
        if match is None:
            continue
        within = [n for n, i in enumerate(items) if min(i.own) < match.first < max(i.own)]
        if within:
            found[within[0]][match.payload] = match.first
        elif not _is_of_none(tokens, items, match, named, len(changes)):
            expands = any(form.endswith("expanded") for form in _own(tokens, match))
            for n, time in _changed(tokens, items, judged, clauses, match):
                if not (expands and is_device(items[n], english)):
                    found[n][time] = match.first
    for n, item in enumerate(items):
        degree = tokens.forms[min(item.own) - 1] if min(item.own or (0,)) else ""
        if degree in ("less", "more") and not item.statement:
            found[n]["better" if degree == "less" else "worse"] = min(item.own)
        is_out = tokens.form(item.last) == "out" and tokens.form(item.last + 1) != "of"
        if item.is_gone or (is_out and is_device(item, english)):
            found[n]["resolved"] = item.last
        resolved, came = (found[n].get(time, -1) for time in ("resolved", "new"))
        between = tokens.forms[resolved:came] if -1 < resolved < came else ()
        if _TURNS & {*between} and not _SIDES & {*between} and judged[n].status == "present":
            del found[n]["resolved"]  # "was gone, but is back"
    return [next((time for time in _TIMES if time in said), "current") for said in found]


def _own(tokens: Words, match: Match[Time]) -> list[str]:
    return tokens.forms[match.first : match.last]


def _is_of_none(
    tokens: Words,
    items: Sequence[NamedItem],
    match: Match[Time],
    named: frozenset[int],
    changes: int,
) -> bool:
    """Returns whether a change is none of a finding: "mildly increased density", "stable chest, no
    active disease", "withdrawn 2 cm"."""
    right = next((i for i in items if match.last <= min(i.own) <= match.last + 2), None)
    if right and tokens.forms[match.last - 1] == "increased" and _DENSITY & set(right.names):
        return not (_COMPARES & {*tokens.forms} and changes == 1)
    near = range(max(0, match.first - 3), min(len(tokens), match.last + 2))
    around = {tokens.forms[place] for place in near if place not in named}
    whole = match.payload == "unchanged" and bool(around & _WHOLE) and "wall" not in around
    return whole or (match.payload == "resolved" and not _is_removal(tokens, match))


def _changed(
    tokens: Words,
    items: Sequence[NamedItem],
    judged: Sequence[Judgement],
    clauses: Sequence[tuple[int, int]],
    match: Match[Time],
) -> Iterator[tuple[int, Time]]:
    """Yields the items that a change is of, with how they have changed."""
    begin, end = next((c for c in clauses if c[0] <= match.first < c[1]), (0, len(tokens)))
    inside = [n for n, item in enumerate(items) if begin <= item.first < end]
    # "Mildly enlarged but stable": a clause without a finding speaks of the one before.
    inside = inside or [n for n, item in enumerate(items) if item.last <= begin][-1:]
    right = [n for n in inside if min(items[n].own) >= match.last]
    left = [n for n in inside if items[n].last <= match.first]
    gone, own = match.payload == "resolved", _own(tokens, match)
    if own[-1] in _LOOKING_BACK or (gone and own[-1] in ("to", "by")):
        if right and own[0] == "exchanged":
            yield right[0], "new"
        right = []  # "exchanged for", "up from"
    gap = tokens.forms[match.last : min(items[right[0]].own)] if right else []
    if gap[:2] == [",", "without"] and not left:  # "enlarged but stable, without effusion"
        left = [n for n, item in enumerate(items) if item.last <= begin][-1:]
    back = tokens.forms[items[left[-1]].last : match.first] if left else []
    closes = not _STATES.isdisjoint([*back, *own])
    if (closes and _APART & set(gap)) or own == ["removal"] or (gone and _EXCEPTS & set(gap)):
        right = []  # "has been removed without pneumothorax", "have cleared except for a nodule"
    leads_on = not {",", ":", "is", "are", "with"} & set(gap)
    leads_on &= not (closes and {"and", "or", ","} & set(gap))
    leads_on &= not (left and gap and gap[0] in _LEADS_OFF)
    reach: Sequence[int] = ()
    if right and leads_on:
        reach = _list_behind(tokens, items, judged, right, own)
    elif left and not _opens_another(tokens, match):
        reach = _list_before(tokens, items, left, back)
    elif right and not _APART & set(gap):
        reach = right if ":" in gap else () if gone and "," in gap else right[:1]
    # "Have cleared except at the left base"
    left_over = gone and not right and tokens.form(match.last) in _EXCEPTS - {"than"}
    for n in reach:
        yield n, "better" if left_over else match.payload


def _list_behind(
    tokens: Words,
    items: Sequence[NamedItem],
    judged: Sequence[Judgement],
    right: Sequence[int],
    own: Sequence[str],
) -> list[int]:
    """The items of a list behind a change: "stable cardiomegaly and effusion"."""
    reach = [right[0]]
    listed = _LISTED | _GRADED if own[-1] in ("in", "of") else _LISTED
    for n in right[1:]:
        between = {*tokens.forms[items[reach[-1]].last : min(items[n].own)]}
        if not between <= listed or judged[n].reason == "hedged" != judged[right[0]].reason:
            break
        reach.append(n)
    return reach


def _list_before(
    tokens: Words, items: Sequence[NamedItem], left: Sequence[int], back: Sequence[str]
) -> list[int]:
    """The items of a list before a change: "effusion and atelectasis are unchanged"."""
    reach = [left[-1]]
    for n in reversed(left[:-1]):
        between = {*tokens.forms[items[n].last : min(items[reach[-1]].own)]}
        goes_on = {","} <= between <= _LISTED | _GRADED and len(reach) > 1
        joined = {"and", "or", "/"} & between or ("all" in back and "," in between) or goes_on
        if not joined or {"is", "are", ":"} & between:
            break
        reach.append(n)
    return reach


def times_by_side(
    tokens: Words, items: Sequence[NamedItem], n: int, changes: Sequence[Match[Time]]
) -> dict[Side, Time]:
    """Reads an item's change on each side: "smaller on the left and unchanged on the right"."""
    others = (min(i.own) for i in items[n + 1 :] if i.names and i.own and not i.refers)
    end = next(others, len(tokens))
    if len(changes) < 2 or end - items[n].last < 5:
        return {}
    found: dict[Side, Time] = {}
    named = frozenset(place for item in items for place in item.own)
    for match in filter(None, (_weighed(tokens, one, named) for one in changes)):
        if not items[n].last <= match.first < match.last <= end:
            continue
        behind = tokens.forms[match.last : min(match.last + 4, end)]
        ahead = [
            t.lemma for t in reversed(tokens[max(items[n].last, match.first - 3) : match.first])
        ]
        for words in (behind, ahead):
            place = next((p for p, word in enumerate(words) if word in OPPOSITE), -1)
            if place >= 0 and set(words[:place]) <= _ON_SIDE:
                found.setdefault(words[place], match.payload)  # type: ignore[arg-type]
                break
    return found if len(found) == 2 and len(set(found.values())) == 2 else {}


def _weighed(tokens: Words, match: Match[Time], named: frozenset[int]) -> Match[Time] | None:
    """Adjusts words of time for those before them: "not grown", "nearly complete clearing".

    Returns None for a purpose or a state of knowledge: "to ensure resolution", "remains unclear".
    """
    before = tokens.forms[max(0, match.first - 3) : match.first]
    said, last = match.payload, tokens.forms[match.last - 1]
    own = _own(tokens, match)
    if said == "resolved" and {*_NEARLY, "largely", "mostly", "partly"} & set(before[-2:]):
        return match._replace(payload="better")
    if said == "better" and "complete" in tokens.forms[match.last :] and _CLEARS & {*own}:
        return match._replace(payload="resolved")
    if said == "resolved" and not _UNFINISHED.isdisjoint(tokens.forms[match.last :]):
        return match._replace(payload="better")
    if said == "resolved" and before[-2:] == ["all", "but"]:
        return match._replace(payload="better")
    while before and before[-1] in _PASSED_BY:
        before.pop()
    follows = tokens.forms[match.last] if match.last < len(tokens) else ""
    if last == "longer" and match.last - match.first == 2 and match.last not in named:
        if follows in _BIG:
            return match._replace(payload="better")  # "no longer large"
        if follows in _GROWING:
            return match._replace(payload="unchanged")
        if follows in _PROPERTIES:
            return None  # "no longer loculated"
    if last == "more" and follows == "than":
        return None
    leads = before[-1] if before else ""
    if said == "resolved" and leads in _AWAITS and tokens.forms[match.first] != "have":
        return None
    behind = {*tokens.forms[match.last : match.last + 4]}
    if said == "unchanged" and tokens.forms[match.last - 1] == "remain" and behind & _UNKNOWN:
        return None
    turned = ("worse", "better", "new", "resolved")
    if said in ("worse", "better", "resolved") and _is_of_neither(tokens, match.first):
        return match._replace(payload="unchanged")
    share = _share(tokens, match.first) if said in turned else ""
    if share == "part" and said == "resolved":
        return match._replace(payload="better")
    if share == "none":
        return match._replace(payload="unchanged")
    if leads in ("without", "not", "never", "fail", "neither", "nor", "longer") and said in turned:
        return match._replace(payload="unchanged")
    return match


def former_degree(
    forms: Sequence[str],
    then: frozenset[str],
    now: frozenset[str],
    degrees: Mapping[str, float],
    reach: int = 3,
) -> tuple[set[int], Time] | None:
    """Finds a degree or size of former times beside one of now: "formerly small, now large".

    Returns:
        Places of the words of then, and how now compares; None without both.
    """
    sizes = _sizes(forms) if "mm" in forms or "cm" in forms else {}
    ranks = {n: degrees[form] for n, form in enumerate(forms) if form in degrees}
    degree_at = sizes if len(sizes) > 1 else ranks
    if len(told := [*degree_at]) < 2:
        return None
    olds = [place for place, form in enumerate(forms) if form in then]
    news = [place for place, form in enumerate(forms) if form in now]
    former = [(abs(d - t), d, t) for d in told for t in olds if -_THEN_REACH <= d - t <= reach]
    if not former:
        return None
    _, old, at = min(former)
    if not (news or sizes) and len(told) == 2 and at == old - 1:
        news = [place for place in told if place != old]  # "large effusion, previously small"
    newer = [(abs(d - n), d) for d in told for n in news if d != old and -2 <= d - n <= 4]
    newer = newer or [(0, d) for d in sizes if d != old]
    if not newer or (old < at and any(old < n < at for n in news)):
        return None
    before, after = degree_at[old], degree_at[min(newer)[1]]
    time: Time = "unchanged" if before == after else "worse" if after > before else "better"
    near = range(at, old + 1) if 0 < old - at <= 2 else (old, at)
    last = max(old + (old in sizes), at)
    joint = [last + 1] if forms[last + 1 : last + 2] == ["and"] else []
    return {*near, *range(old, old + 1 + (old in sizes)), *joint}, time


def blanked(text: str, tokens: Sequence[Word], places: Iterable[int]) -> str:
    """The text without some of its words, every other character at its place."""
    for token in (tokens[place] for place in places):
        text = text[: token.start] + " " * (token.end - token.start) + text[token.end :]
    return text


def _sizes(forms: Sequence[str]) -> dict[int, float]:
    """Place of each number before "mm" or "cm" -> millimetres."""
    return {
        n: float(one) * (10 if unit == "cm" else 1)
        for n, (one, unit) in enumerate(itertools.pairwise(forms))
        if unit in ("mm", "cm") and one.replace(".", "", 1).isdigit()
    }


def _share(tokens: Words, place: int) -> str:
    """Returns "none" or "part" for words of quantity that lead to a place: "not all of the"."""
    for n in range(place - 1, max(-1, place - _SHARE_REACH), -1):
        if tokens.forms[n] in (",", ":", "but"):
            return ""
        of = tokens.form(n + 1) == "of" or tokens.form(n + 2) == "of"
        if of and tokens.forms[n] in _NONE_OF:
            return "none"
        negated = tokens.form(n - 1) in ("not", "only", "just") or tokens.form(n - 2) == "only"
        if tokens.forms[n] in _PART_OF and negated:
            return "part"
    return ""


def _is_of_neither(tokens: Words, place: int) -> bool:
    """Returns whether a change is denied of two: "neither the nodes nor the mass have grown"."""
    before = tokens.forms[:place]
    behind = {*before[before.index("neither") :]} if "neither" in before else set[str]()
    return "nor" in behind and not {",", "but", "and"} & behind


def _is_removal(tokens: Words, match: Match[Time]) -> bool:
    """Returns whether something is gone; not so "withdrawn 2 cm" or "should not be withdrawn"."""
    behind = tokens.forms[match.last] if match.last < len(tokens) else ""
    before = {*tokens.forms[max(0, match.first - 2) : match.first]}
    moved = tokens.forms[match.last - 1] in ("withdrawn", "pulled", "out")
    partly = behind in ("by", "to", "from", "of", "back", "slightly", "further", "any")
    return not (moved and (partly or behind[:1].isdigit() or before & {"not", "should"}))


def _opens_another(tokens: Words, match: Match[Time]) -> bool:
    """Returns whether words of time belong to something unread: ", stable hilar contours"."""
    leads = tokens.forms[match.first - 1 : match.first + 1]
    begins = match.first > 0 and leads[0] in (",", "and") and leads[1] not in _STATES
    if not begins or match.last == len(tokens):
        return False
    behind = tokens.forms[match.last]
    return behind not in _TIME_TAIL and not behind.isdigit()
