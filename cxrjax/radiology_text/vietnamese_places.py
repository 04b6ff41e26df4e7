"""Locations of a Vietnamese sentence's items: assignment of regions and sides to the items."""

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from cxrjax.radiology_text.definitions import SIDES
from cxrjax.radiology_text.items import NamedItem
from cxrjax.radiology_text.vietnamese_items import (
    Spot,
    VietnameseItem,
    VietnameseSentence,
    reach_of,
)

# Named with these inside a finding, no place is told ("xẹp phổi").
_NO_PLACE = ("lungs", "pleural spaces", "bones", "pulmonary vasculature", "mediastinum", "hila")
_PLEURAL = ("pleural effusion", "pneumothorax", "hemothorax", "pleural thickening")
_MIDLINE = frozenset(
    ("cardiac silhouette", "mediastinum", "trachea", "thoracic aorta", "spine", "sternum")
)
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")


def place_items(sentence: VietnameseSentence) -> None:
    """Gives items their regions and sides."""
    spots = find_spots(sentence, {item.first for item in sentence.items if len(item.own) == 1})
    for spot in spots:
        if spot.side in ("same", "other"):
            sides = [i.side for i in sentence.items if i.last <= spot.first and i.side in SIDES]
            one = sides[-1] if sides else ""
            if one and spot.side == "other":
                one = "left" if one == "right" else "right"
            spot = dataclasses.replace(spot, side=one)
        inside = [
            item
            for item in sentence.items
            if item.own.intersection(reach_of(spot)) or item.begin < spot.first < max(item.own)
        ]
        if inside:
            _add(sentence, inside[0], spot, inside[0].inside)
            continue
        edge = max((place for place in sentence.contrasts if place <= spot.first), default=0)
        left = [i for i in sentence.items if edge <= i.first and i.last <= spot.first]
        right = [item for item in sentence.items if item.begin >= spot.last]
        if right and _is_fronted(sentence, spot, left, right[0]):
            stop = next((s.first for s in spots if s.first > spot.first and s.regions), 0)
            for item in right:
                cut = any(spot.last <= place <= item.first for place in sentence.contrasts)
                passed = item is not right[0] and 0 < stop < item.begin
                if item.statement or cut or passed:
                    break
                _add(sentence, item, spot, item.regions)
        elif left and _is_reached(sentence, left[-1].last, spot, spots):
            _add(sentence, left[-1], spot, left[-1].regions)
    _share(sentence)
    for item in sentence.items:
        _settle(sentence, item)


def _is_reached(
    sentence: VietnameseSentence, begin: int, spot: Spot, spots: Sequence[Spot]
) -> bool:
    """Returns whether a place behind a comma still belongs to the item before it, and not to a
    statement about something else: "khối u phổi phải, xâm lấn trung thất"."""
    covered = {*sentence.void, *(place for one in spots for place in reach_of(one))}
    gap = [sentence.forms[place] for place in range(begin, spot.first) if place not in covered]
    own = itertools.takewhile(lambda form: form != ",", reversed(gap))
    return "," not in gap or passes(sentence, own)


def passes(sentence: VietnameseSentence, forms: Iterable[str]) -> bool:
    """Returns whether words may stand between places."""
    return {*forms} <= sentence.sets["place_gap"] | sentence.sets["at_place"] | sentence.sets[
        "list"
    ]


def _is_fronted(
    sentence: VietnameseSentence, spot: Spot, left: Sequence[VietnameseItem], item: VietnameseItem
) -> bool:
    """Returns whether a place belongs to the item after it: "đáy phổi trái có đám mờ"."""
    if not left:
        return True
    gap = sentence.forms[spot.last : item.begin]
    back = {*sentence.forms[left[-1].last : spot.first]}
    parted = back & (sentence.sets["joint"] | {","})
    return bool(parted) and "," not in gap and (not gap or gap[0] in sentence.sets["fronts"])


def find_spots(sentence: VietnameseSentence, alone: Collection[int] = ()) -> list[Spot]:
    """Places in the words, a region and the side behind it as one.

    Args:
        alone: tokens of sides that stand for a finding; they join no other place.
    """
    pieces: list[Spot] = []
    covered = set(sentence.void)
    for match in sentence.find("not_sides"):
        # "Phổi phải có" is of the right.
        behind = sentence.form(match.first - 1) in sentence.sets["before_side"]
        if not (behind and sentence.side_at(match.first)):
            covered.update(reach_of(match))
    for match in sentence.regions:
        if not sentence.void.isdisjoint(reach_of(match)):
            continue
        covered.update(reach_of(match))
        first, side = match.first, _side_in(match.payload)
        if sentence.forms[first] in sentence.sets["both_after"]:
            while sentence.form(first - 1) in sentence.sets["both_before"]:
                first, side = first - 1, "pair"
        pieces.append(Spot(first, match.last, (match.payload,), side))
    pieces += [zone for spot in pieces for zone in _zones(sentence, spot)]
    for relation in ("same", "other"):
        for match in sentence.find(f"{relation}_side"):
            pieces.append(Spot(match.first, match.last, (), relation))
            covered.update(reach_of(match))
    for place in {*range(len(sentence.forms))} - covered:
        is_both = (
            sentence.forms[place] in sentence.sets["both_before"]
            and sentence.form(place + 1) in sentence.sets["both_after"]
            and place + 1 not in covered
        )
        if is_both or sentence.side_at(place):
            paired = "both" if sentence.form(place + 1) in sentence.sets["sides"] else "pair"
            side = sentence.side_at(place) or paired
            pieces.append(Spot(place, place + 1 + is_both, (), side))
    joined: list[Spot] = []
    compared = {match.first: match.last for match in sentence.find("compared")}
    for spot in sorted(pieces, key=lambda spot: (spot.first, spot.last)):
        one = None
        if joined and spot.first not in alone:
            one = _as_one(sentence, joined[-1], spot, compared)
        joined[len(joined) - (one is not None) :] = [one or spot]
    # A side goes back over a list of regions: "thùy trên và thùy dưới phổi phải"; not over
    # "màng phổi, đỉnh phổi phải".
    for n in range(len(joined) - 1, 0, -1):
        before, spot = joined[n - 1], joined[n]
        is_open = before.regions and not before.side and not {*before.regions} & {*_NO_PLACE}
        if is_open and spot.side and _lists(sentence, before, spot):
            joined[n - 1] = dataclasses.replace(before, side=spot.side)
    return joined


def _lists(sentence: VietnameseSentence, before: Spot, spot: Spot) -> bool:
    gap = {*sentence.forms[before.last : spot.first]}
    return bool(gap) and gap <= sentence.sets["list"] | sentence.sets["place_gap"]


def _as_one(
    sentence: VietnameseSentence, before: Spot, spot: Spot, compared: Mapping[int, int]
) -> Spot | None:
    """Two places as one, where they are."""
    near = {*sentence.forms[before.last : spot.first]} <= sentence.sets["place_gap"]
    follows = compared.get(before.last, spot.last) <= spot.first <= before.last + 5
    if follows and before.side and not spot.regions:
        return dataclasses.replace(before, last=spot.last, side="both")
    if near and before.regions and not before.side:
        # "Thùy trên | phổi phải", "đáy phổi | bên trái".
        regions = (*before.regions, *(name for name in spot.regions if name != "lungs"))
        return Spot(before.first, spot.last, regions, spot.side)
    if near and spot.regions == ("lungs",) and not spot.side:
        return dataclasses.replace(before, last=spot.last)
    differs = before.side not in ("", spot.side)  # "đáy phổi phải và trái"
    if not spot.regions and _lists(sentence, before, spot) and (differs or not before.regions):
        side = spot.side if spot.side == before.side else "both"
        return dataclasses.replace(before, last=spot.last, side=side)
    return None


def _zones(sentence: VietnameseSentence, spot: Spot) -> Iterator[Spot]:
    """Regions that share the noun of one before them: "thùy trên, giữa và dưới"."""
    *head, end = sentence.forms[spot.first : spot.last]
    counted = end.isdigit() or end in _ROMAN
    if not head or not (counted or end in sentence.sets["zones"]):
        return
    place = spot.last
    while sentence.form(place) in sentence.sets["list"]:
        place += 1 + (sentence.form(place + 1) in sentence.sets["list"])
        form = sentence.form(place)
        name = sentence.words.regions.get(" ".join([*head, form])) if form else None
        if name is None or not (form.isdigit() if counted else form in sentence.sets["zones"]):
            return
        place += 1
        yield Spot(place - 1, place, (name,), _side_in(name))


def _on_side(sentence: VietnameseSentence, name: str, side: str) -> list[str]:
    """The region's parts on a side; a numbered rib has no name without one."""
    if name in sentence.words.definitions.regions:
        return sentence.words.definitions.on_side(name, side) if side else [name]
    sides = SIDES if side == "both" else (side,) if side else ()
    return [f"{one} {name}" for one in sides] or ["ribs"]


def _add(
    sentence: VietnameseSentence, item: VietnameseItem, spot: Spot, regions: list[str]
) -> None:
    for name in spot.regions:
        sided = spot.side in (*SIDES, "both")
        sided = sided and not (regions is item.inside and name in _NO_PLACE)
        names = _on_side(sentence, name, spot.side) if sided else [name]
        regions += [one for one in names if one not in regions]
    if spot.side and spot.side not in map(_side_in, spot.regions):
        item.side = spot.side if item.side in ("", spot.side) else "both"


def _share(sentence: VietnameseSentence) -> None:
    """One place for the list before it: "đám mờ và nốt phổi trái"."""
    for other, one in itertools.pairwise(sentence.items[::-1]):
        if one.statement or other.statement or one.regions or one.side:
            continue
        gap = {*sentence.between(one, other)}
        if not one.inside and other.inside == ["pleural spaces"] and one.names[0] in _PLEURAL:
            one.side = other.side  # "có tràn dịch nhưng không tràn khí màng phổi phải"
            continue
        shares = gap & sentence.sets["joint"] or (gap and not one.inside)
        if shares and gap <= sentence.sets["list"] and not _is_midline(sentence, one):
            one.regions, one.side = list(other.regions), other.side
            if not one.inside and "lungs" in other.inside:
                one.regions.append("lungs")


def _is_midline(sentence: VietnameseSentence, item: NamedItem) -> bool:
    """Returns whether a finding is of an organ in the middle, which has no side."""
    definitions = sentence.words.definitions
    findings = [definitions.findings[n] for n in item.names if n in definitions.findings]
    regions = {r for one in findings if one.category == "abnormality" for r in one.regions}
    return bool(regions) and all(
        name not in definitions.sides
        and _MIDLINE.intersection((name, *definitions.region_ancestors(name)))
        for name in regions
    )


def _settle(sentence: VietnameseSentence, item: VietnameseItem) -> None:
    """Brings sides and regions together."""
    definitions = sentence.words.definitions
    findings = [definitions.findings[n] for n in item.names if n in definitions.findings]
    if item.statement is not None:
        own = [name for name in item.inside if name != "lungs"]
        if not own or item.statement.regions == ("thorax",):
            own = [*item.statement.regions]
        regions = [*own, *item.regions]
    else:
        is_device = any(one.category == "device" for one in findings)
        named = [
            name
            for name in item.inside
            if (item.side and (name in definitions.sides or name.startswith(SIDES)))
            or not (name in _NO_PLACE or is_device)
        ]
        named = [name for name in named if not (item.regions and name in _NO_PLACE)]
        regions = [*named, *item.regions]
    if _is_midline(sentence, item):
        item.side = ""
    if item.side == "pair":  # "hai phổi sáng" is of the lungs
        item.side = "" if item.is_normal else "both"
    regions = list(dict.fromkeys(regions))
    if len(regions) > 1:
        regions = [name for name in regions if name not in ("lungs", "bones")]
    full = [one for name in regions for one in _on_side(sentence, name, item.side)]
    general = {above for name in full for above in definitions.region_ancestors(name)}
    item.regions = list(dict.fromkeys(name for name in full if name not in general))
    if not item.side:
        known = [definitions.regions[n] for n in item.regions if n in definitions.regions]
        sides = {region.side for region in known} - {""}
        item.side = sides.pop() if len(sides) == 1 else "both" if sides else ""


def _side_in(name: str) -> str:
    """The side in a region's name."""
    return next((side for side in SIDES if side in name.split()), "")
