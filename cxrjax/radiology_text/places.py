"""Locations of a sentence's items: assignment of regions and sides to the items."""

import dataclasses
import itertools
from collections.abc import Sequence

from cxrjax.radiology_text.assertions import Side
from cxrjax.radiology_text.english import Match, Words
from cxrjax.radiology_text.items import NamedItem, is_device
from cxrjax.radiology_text.lexicon import English, pattern, word_set

_PREPOSITIONS = word_set("prepositions")
_LIST = frozenset((",", "and", "or", "/", "both", "with", "nor", "versus", "vs"))
_ZONES = word_set("zones")
_HEADS = ("lung zone", "lung field", "lobe", "zone", "lung", "field", "hemithorax", "rib")
_LOOSE = word_set("loose")
_MIDLINE = frozenset(("heart", "mediastinum", "aorta", "imaging", "pulmonary vasculature"))
_BESIDE = word_set("beside")
_COMPARING = ("compared", "than", "unlike", "comparison")
_PLURAL = ("bases", "apices", "lobes", "zones")
_THERE = {tuple(words.split()) for words in word_set("said_there")}
_NODES = ("lymphadenopathy", "calcified lymph node")
_JOINING = word_set("joining")
_NO_PLACE = frozenset(("lungs", "thorax", "pleural spaces", "pulmonary vasculature"))
_SIDES = ("left", "right")
OPPOSITE: dict[str, Side] = {"left": "right", "right": "left"}
# Sides that are those of what was said before.
_RELATIVE = {"ipsilateral": "same", "contralateral": "other"}
_OF_SIDE = {"same": "same", "that": "same", "this": "same", "other": "other", "opposite": "other"}
_DIRECTED = word_set("directed")
_EITHER = ("either", "each", "neither")
_BOTH = frozenset(("bilateral", "bilaterally", "both", "bibasilar", "biapical", "bibasal"))
# Words that may tell a side.
_TELLING = {*_SIDES, *_BOTH, *_RELATIVE, "leftward", "rightward", "side", "lung"}
# "Left, I mean right": the first of the two does not count.
_CORRECTED = pattern("corrected_side")
# Where something points to is no side of a finding.
_SHIFTED = pattern("shifted")
_COMPARED = pattern("compared_sides")


@dataclasses.dataclass(slots=True)
class Whereabouts:
    """Location of an item: words behind it (`trailing`), or at the start (`fronted`)."""

    regions: list[str] = dataclasses.field(default_factory=list)
    side: str = ""
    trailing: bool = False
    fronted: bool = False


@dataclasses.dataclass(slots=True)
class _Spot:
    """A place in the words: regions, or a side alone."""

    first: int
    last: int
    regions: tuple[str, ...]
    side: str


def without_corrected(text: str) -> str:
    """The text with the side that is taken back blanked, every character at its place."""
    if "left" not in text and "right" not in text:
        return text
    found = [*_CORRECTED.finditer(text)]
    kept = list(text)
    for match in found:
        lone = next((name for name in ("former", "not_that") if match[name]), "")
        spans = [match.span(lone)] if lone else [match.span(), match.span("taken_back")]
        for start, end in spans:
            kept[start:end] = " " * (end - start)
    return "".join(kept) if found else text


def find_places(
    tokens: Words,
    text: str,
    items: Sequence[NamedItem],
    clauses: Sequence[tuple[int, int]],
    landmarks: frozenset[int],
    alike: Sequence[tuple[str, str]],
    english: English,
    side_before: str = "",
) -> list[Whereabouts]:
    """The place of each item.

    Args:
        text: of the sentence, whose characters the tokens count.
        landmarks: words that a distance is measured from; no item is there.
        alike: what is said of each item; a list shares its place where it is the same.
        side_before: the side last named before the sentence.
    """
    sides = compared_sides(text)
    shifted = _SHIFTED.finditer(text) if "left" in text or "right" in text else ()
    away = [*sides, *(match.span() for match in shifted)]
    passed = landmarks.union(
        place
        for start, end in away
        for place, token in enumerate(tokens)
        if start <= token.start < end
    )
    spots = _spots(tokens, items, english, passed, {begin for begin, _ in clauses})
    for spot in spots:
        ends_with = tokens[spot.last - 1]
        sided = any(english.definitions.regions[region].side for region in spot.regions)
        plural = text[ends_with.start : ends_with.end] in _PLURAL
        of_organ = any(item.statement and spot.first in item.own for item in items)
        if plural and not (spot.side or sided or of_organ):
            spot.side = "both"  # "opacities in the bases"
    _resolve(spots, side_before)
    places = [Whereabouts() for _ in items]
    for begin, end in clauses if spots else ():
        own = [spot for spot in spots if begin <= spot.first < end]
        inside = [n for n, item in enumerate(items) if begin <= item.first < end]
        if not (own and inside):
            continue
        last, holder = 0, None
        for spot in own:
            if _is_pronoun(tokens, spot) and all(min(items[n].own) != spot.last for n in inside):
                continue
            if _is_paired(tokens, spot, items):
                continue
            gap = {*tokens.forms[last : spot.first]}
            listed = holder is not None and gap <= _JOINING
            holder = _give(tokens, items, places, inside, spot, english, holder if listed else None)
            last = spot.last
        _share(tokens, items, places, [n for n in inside if items[n].names], alike, english)
    for n in {_nearest(tokens, items, start) for start, _ in sides}:
        places[n].side = "both"
    if spots or sides:
        _beside(tokens, items, places, alike, english)
    for item, place in zip(items, places, strict=True):
        _settle(item, place, english)
    return places


def _spots(
    tokens: Words,
    items: Sequence[NamedItem],
    english: English,
    landmarks: frozenset[int],
    borders: set[int],
) -> list[_Spot]:
    definitions = english.definitions
    spots: list[_Spot] = []
    covered: set[int] = set(landmarks)
    for spot in _coordinated(tokens, english):
        if not covered.intersection(range(spot.first, spot.last)):
            spots.append(spot)
            covered.update(range(spot.first, spot.last))
    for match in _regions(tokens, items, english):
        if not covered.intersection(range(match.first, match.last)):
            side = definitions.regions[match.payload].side
            words = {*tokens.forms[match.first : match.last]}
            if match.first and not side and tokens.forms[match.first - 1] in _EITHER:
                words = words | _BOTH
            side = "both" if words & _BOTH else side
            side = side or next((lone for lone in _SIDES if lone in words), "")
            spots.append(_Spot(match.first, match.last, (match.payload,), side))
            covered.update(range(match.first, match.last))
    for match in english.language.not_sides.find(tokens):
        covered.update(range(match.first, match.last))
    for place, form in enumerate(tokens.forms):
        if form not in _TELLING or place in covered:
            continue
        lemma = form.removesuffix("ward")
        side = "both" if lemma in _BOTH else lemma if lemma in _SIDES else ""
        side = side or _RELATIVE.get(lemma, "")
        if lemma == "side" and place:
            side = _OF_SIDE.get(tokens.forms[place - 1], "")
        if lemma in ("side", "lung") and place and tokens.forms[place - 1] in _EITHER:
            side = "both"
        if side:
            spots.append(_Spot(place, place + 1, (), side))
    if not spots:
        return spots
    own = {place for item in items for place in item.own}
    spots = [spot for spot in spots if not _is_denied(tokens, spot.first, own)]
    spots.sort(key=lambda spot: spot.first)
    return _joined(tokens, spots, english, borders)


def _regions(tokens: Words, items: Sequence[NamedItem], english: English) -> list[Match[str]]:
    """Names of regions. One may begin before a finding and end in it ("left mid | lung opacity"),
    and none begins in it and ends behind it."""
    forms = tokens.forms
    if not english.definitions.region_names.begins_in(forms):
        return []
    borders = {0, len(tokens)} | {item.last for item in items if item.statement is None}
    found = [
        Match(match.first + begin, match.last + begin, match.payload)
        for begin, end in itertools.pairwise(sorted(borders))
        for match in english.definitions.region_names.find_forms(forms[begin:end])
    ]
    if not any(match.payload in _NO_PLACE for match in found):
        return found
    named = [set(range(item.first, item.last)) for item in items if item.statement is None]
    # The lung of "lung opacity" is no place.
    return [
        match
        for match in found
        if match.payload not in _NO_PLACE
        or not any(words.issuperset(range(match.first, match.last)) for words in named)
    ]


def _coordinated(tokens: Words, english: English) -> list[_Spot]:
    """ "Right upper, middle, and lower lobes": several regions with the words of one."""
    names = english.definitions.region_names
    found: list[_Spot] = []
    place = 0
    if sum([form in _ZONES for form in tokens.forms]) < 2:
        return found
    while place < len(tokens):
        side, at = "", place
        pieces: list[tuple[str, str]] = []
        while at < len(tokens):
            word = tokens.forms[at]
            if word in _SIDES or word in _BOTH:
                side = word
            elif word in _ZONES:
                pieces.append((side, word))
            elif word not in (",", "and", "or", "/", "the", "to") or not pieces:
                break
            at += 1
        head = ""
        if len(pieces) > 1:
            behind = " ".join(tokens.forms[at : at + 2]) + " "
            head = next((head for head in _HEADS if behind.startswith(head + " ")), "")
        if head:
            sides = {piece_side for piece_side, _ in pieces if piece_side}
            lone = sides.pop() if len(sides) == 1 else ""
            regions = []
            for piece_side, zone in pieces:
                on = piece_side or lone
                zone = "middle" if zone == "mid" and head == "lobe" else zone
                options = [f"{on} {zone} {head}"] if on in _SIDES else []
                options += [
                    f"{zone} {head}",
                    f"{on} {zone} lung" if on in _SIDES else f"{zone} lung",
                ]
                region = next((r for r in map(names.get, options) if r), None)
                if region is not None:
                    regions += (
                        english.definitions.on_side(region, "both") if on in _BOTH else [region]
                    )
            if regions:
                end = at + len(head.split())
                found.append(_Spot(place, end, tuple(dict.fromkeys(regions)), ""))
                place = end
                continue
        place = max(place + 1, at if pieces and not head else place + 1)
    return found


def _joined(tokens: Words, spots: list[_Spot], english: English, borders: set[int]) -> list[_Spot]:
    """Sides and regions that stand together as one place: "right and left lower lobes"."""
    joined: list[_Spot] = []
    on_side = english.definitions.on_side
    for spot in spots:
        before = joined[-1] if joined else None
        gap = tokens.forms[before.last : spot.first] if before else []
        near = before is not None and set(gap) <= {"and", "or", "/", ",", "the", "both"}
        near = near and not borders & {*range(before.last, spot.first + 1)}  # type: ignore[union-attr]
        if before is not None and near and not before.regions and spot.regions:
            # "Left [and right] lower lobe": the side belongs to the region behind it.
            side = before.side
            if spot.side in _SIDES and side and side != spot.side:
                base = english.definitions.regions[spot.regions[0]].group
                regions = tuple(on_side(base, "both")) if base else spot.regions
                joined[-1] = _Spot(before.first, spot.last, regions, "both")
                continue
            if not gap or gap == ["the"] or side == "both":
                regions = tuple(r for name in spot.regions for r in on_side(name, side))
                joined[-1] = _Spot(before.first, spot.last, regions, side)
                continue
        if before is not None and near and gap and not before.regions and not spot.regions:
            side = spot.side if spot.side == before.side else "both"
            joined[-1] = _Spot(before.first, spot.last, (), side)
            continue
        if before is not None and near and before.regions and spot.regions:
            side = _side_of(before.regions, english) or before.side
            if not _side_of(spot.regions, english) and not spot.side and side in (*_SIDES, "both"):
                # "Right apex and upper lung zone".
                spot = dataclasses.replace(
                    spot, regions=tuple(r for name in spot.regions for r in on_side(name, side))
                )
        joined.append(spot)
    return joined


def _is_denied(tokens: Words, place: int, own: set[int]) -> bool:
    """Returns whether "not in the" or "than the" precedes a place; its "not" is of no item."""
    before = tokens.forms[max(0, place - 3) : place]
    while before and before[-1] in ("the", "with", *_PREPOSITIONS):
        before.pop()
    said = before[-1] if before else ""
    free = said == "not" and own.isdisjoint(range(max(0, place - 3), place))
    return said in _COMPARING or (free and len(before) < min(3, place))


def _resolve(spots: Sequence[_Spot], side: str) -> None:
    """Gives "ipsilateral", "on the other side" the side that they stand for."""
    for spot in spots:
        if spot.side == "same":
            spot.side = side
        elif spot.side == "other":
            spot.side = OPPOSITE.get(side, "")
        elif spot.side:
            side = spot.side


def _is_pronoun(tokens: Words, spot: _Spot) -> bool:
    """Returns whether "both" refers to findings: "scarring and emphysema, both stable"."""
    follows = tokens.forms[spot.last] if spot.last < len(tokens) else ""
    return not spot.regions and tokens.forms[spot.first] == "both" and follows != "side"


def _is_paired(tokens: Words, spot: _Spot, items: Sequence[NamedItem]) -> bool:
    """Returns whether "both" introduces two findings: "both edema and effusion"."""
    if spot.regions or tokens.forms[spot.first] != "both":
        return False
    behind = [item for item in items if min(item.own) >= spot.last][:2]
    if len(behind) < 2:
        return False
    gap = tokens.forms[behind[0].last : min(behind[1].own)]
    return gap[:1] == ["and"] and not set(gap) & set(_SIDES)


def _side_of(regions: Sequence[str], english: English) -> str:
    sides = {english.definitions.regions[name].side for name in regions}
    return "both" if sides == {"left", "right"} else sides.pop() if len(sides) == 1 else ""


def _give(
    tokens: Words,
    items: Sequence[NamedItem],
    places: Sequence[Whereabouts],
    inside: Sequence[int],
    spot: _Spot,
    english: English,
    holder: int | None,
) -> int | None:
    """Gives a place in the words to the item that it belongs to, and returns that where the place
    stands behind it; `holder` has the place before in a list."""
    within = [n for n in inside if items[n].own.intersection(range(spot.first, spot.last))]
    within = within or [
        n
        for n in inside
        if items[n].statement and min(items[n].own) < spot.first < max(items[n].own)
    ]
    if within:
        _add(items[within[0]], places[within[0]], spot, english, trailing=False)
        return None
    left = [n for n in inside if items[n].last <= spot.first]
    right = [n for n in inside if min(items[n].own) >= spot.last]
    left_gap = tokens.forms[items[left[-1]].last : spot.first] if left else []
    right_gap = tokens.forms[spot.last : min(items[right[0]].own)] if right else []
    stops = {",", ":", ";", "(", ")", "and", "or", "/", "is", "are", "with"} | _PREPOSITIONS
    reached = bool(left) and _is_reached(left_gap) and bool(right_gap)
    reached = reached and not _fronts(left_gap)
    predicated = right_gap[:1] in (["is"], ["are"], ["remain"], ["appear"]) and "," in left_gap
    if predicated and not _is_reached(left_gap) and not is_midline(items[right[0]], english):
        _add(items[right[0]], places[right[0]], spot, english, trailing=False)
        return None
    if right and not stops & set(right_gap) and not reached:
        _add(items[right[0]], places[right[0]], spot, english, trailing=False)
    elif holder is not None:
        _add(items[holder], places[holder], spot, english, trailing=True)
        return holder
    elif left and (_is_reached(left_gap) or _is_loose(left_gap)):
        _add(items[left[-1]], places[left[-1]], spot, english, trailing=True)
        return left[-1]
    elif right and not (left and "," in right_gap) and not is_midline(items[right[0]], english):
        _add(items[right[0]], places[right[0]], spot, english, trailing=False)
        places[right[0]].fronted = True
    return None


def _fronts(gap: Sequence[str]) -> bool:
    """Returns whether a place opens a statement behind that of another place: "no effusion on the
    right, on the left small effusion"."""
    comma = gap.index(",") if "," in gap else 0
    tail = gap[comma + 1 :]
    return _is_reached(gap[:comma]) and tail[:1] in (["on"], ["in"], ["at"]) and "," not in tail


def _is_loose(gap: Sequence[str]) -> bool:
    """Returns whether only a size or a degree is between: "nodule, 6 mm, right upper lobe"."""
    return "," not in gap or all(word in _LOOSE or word[0].isdigit() for word in gap)


def _is_reached(gap: Sequence[str]) -> bool:
    """Returns whether a preposition links the item to the place, past parts of a list of places."""
    for word in gap:
        if word in _PREPOSITIONS:
            return True
        if word in (",", "and", "or", "with", ";", ":"):
            return False
    return False


def _add(
    item: NamedItem, place: Whereabouts, spot: _Spot, english: English, trailing: bool
) -> None:
    own = item.statement.regions if item.statement is not None else ()
    known = english.definitions.regions
    is_sided = bool(place.side) or any(known[region].side for region in place.regions)
    if own and not trailing and not item.own.intersection(range(spot.first - 1, spot.last + 1)):
        spot = dataclasses.replace(spot, regions=())
    regions = [
        region
        for name in spot.regions
        for region in (english.definitions.on_side(name, "both") if spot.side == "both" else [name])
    ]
    for region in regions:
        group = english.definitions.regions[region].group
        if region in own:
            continue
        if (
            own
            and not trailing
            and group not in own
            and not (
                set(own) & set(english.definitions.region_ancestors(region)) and own != ("thorax",)
            )
        ):
            if spot.side and "lungs" in own:  # "the left hemithorax is opaque"
                place.side = _both(place.side, spot.side)
            continue
        if (group in own and spot.side) or (
            spot.side == "both" and region not in spot.regions and group in own
        ):
            place.side = _both(place.side, english.definitions.regions[region].side or spot.side)
            continue
        if region not in place.regions:
            place.regions.append(region)
    sided = any(english.definitions.regions[region].side for region in regions)
    if trailing and is_sided and not place.trailing and is_device(item, english):
        return  # "a left subclavian line ends in the right brachiocephalic vein"
    if spot.side and (not sided or spot.side == "both"):
        place.side = _both(place.side, spot.side)
    place.trailing |= trailing


def _both(one: str, other: str) -> str:
    return other if not one or one == other else "both"


def _share(
    tokens: Words,
    items: Sequence[NamedItem],
    places: Sequence[Whereabouts],
    inside: Sequence[int],
    alike: Sequence[tuple[str, str]],
    english: English,
) -> None:
    """One place for a list: "atelectasis and effusion at the left base", "left A and B"."""
    pairs = list(itertools.pairwise(inside))
    for one, other in reversed(pairs):
        if not _listed(tokens, items[one], items[other]) or alike[one] != alike[other]:
            continue
        if is_midline(items[one], english) or _DIRECTED & set(items[other].names):
            continue
        left, right = places[one], places[other]
        if right.trailing and not left.regions and not items[one].statement:
            left.regions, left.side = list(right.regions), left.side or right.side
            left.trailing = True
    for one, other in pairs:
        left, right = places[one], places[other]
        gap = tokens.forms[items[one].last : min(items[other].own)]
        bare = not (right.regions or right.side or items[other].statement)
        bare = bare and not is_midline(items[other], english)
        joined = gap and set(gap) <= {"and", "or", "/", "versus", "vs"}
        if bare and (
            (joined and not left.trailing)
            or (left.fronted and _listed(tokens, items[one], items[other]))
        ):
            right.regions, right.side = list(left.regions), left.side
            right.fronted = left.fronted


def is_midline(item: NamedItem, english: English) -> bool:
    """Returns whether a finding is of an organ that is neither left nor right."""
    findings = english.definitions.findings
    return any(
        name in findings and findings[name].subcategory in _MIDLINE and name not in _NODES
        for name in item.names
    )


def _beside(
    tokens: Words,
    items: Sequence[NamedItem],
    places: Sequence[Whereabouts],
    alike: Sequence[tuple[str, str]],
    english: English,
) -> None:
    """Gives "adjacent atelectasis", "an effusion there" the place of what was named before."""
    for n in range(1, len(items)):
        item, place = items[n], places[n]
        if place.regions or place.side or item.statement or is_midline(item, english):
            continue
        if alike[n][0] == "absent":
            continue
        before = {*tokens.forms[max(0, min(item.own) - 3) : item.last]}
        after = tuple(tokens.forms[item.last : item.last + 2])
        if before & _BESIDE or after[:1] in _THERE or after in _THERE:
            place.regions, place.side = list(places[n - 1].regions), places[n - 1].side


def _listed(tokens: Words, one: NamedItem, other: NamedItem) -> bool:
    gap = tokens.forms[one.last : min(other.own)]
    return (not gap or bool(_LIST & set(gap))) and len(gap) <= 4 and not _PREPOSITIONS & set(gap)


def _nearest(tokens: Words, items: Sequence[NamedItem], character: int) -> int:
    """The last item before a place in the text, else the first."""
    before = [n for n, item in enumerate(items) if tokens[item.first].start < character]
    return before[-1] if before else 0


def _settle(item: NamedItem, place: Whereabouts, english: English) -> None:
    """Brings sides and regions together."""
    if not (place.regions or place.side or item.statement):
        return
    on_side = english.definitions.on_side
    if item.statement is not None:
        if not place.regions:
            place.regions = [
                r for name in item.statement.regions for r in on_side(name, place.side)
            ]
    elif place.side:
        place.regions = [r for name in place.regions for r in on_side(name, place.side)]
    if not place.side:
        # A ventricle is left whatever the side of what is said.
        sided = [
            region
            for region in place.regions
            if english.definitions.regions[region].side
            and "cardiac silhouette" not in english.definitions.region_ancestors(region)
        ]
        place.side = _side_of(sided, english)
    if _DIRECTED & set(item.names) or (place.side == "both" and "low lung volumes" in item.names):
        place.side = ""
    place.regions = list(dict.fromkeys(place.regions))
    if len(place.regions) > 1:
        place.regions = [r for r in place.regions if r not in ("thorax", "lungs")]


def compared_sides(text: str) -> list[tuple[int, int]]:
    """Finds comparisons of one side with the other: "left worse than right"."""
    if not ("left" in text or "right" in text or ">" in text):
        return []
    return [match.span() for match in _COMPARED.finditer(text)]


def side_name(side: str) -> Side | None:
    """The field's name of a side."""
    names: dict[str, Side] = {"left": "left", "right": "right", "both": "bilateral"}
    return names.get(side)
