"""Places in a Vietnamese sentence: regions and sides."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from cxrjax.radiology_text.definitions import SIDES
from cxrjax.radiology_text.vietnamese_items import Spot, VietnameseSentence, reach_of

# A finding's name with one of these in it names no place ("xẹp phổi").
NO_PLACE = ("lungs", "pleural spaces", "bones", "pulmonary vasculature", "mediastinum", "hila")
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")


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
        is_open = before.regions and not before.side and not {*before.regions} & {*NO_PLACE}
        if is_open and spot.side and _lists(sentence, before, spot):
            joined[n - 1] = dataclasses.replace(before, side=spot.side)
    return joined


def _lists(sentence: VietnameseSentence, before: Spot, spot: Spot) -> bool:
    gap = {*sentence.forms[before.last : spot.first]}
    if "," in gap and any(item.last <= before.first for item in sentence.items):
        # "Dải xơ đáy phổi, phổi phải chưa thấy tổn thương": each place has its own.
        behind = any(item.begin == spot.last for item in sentence.items)
        if behind or sentence.form(spot.last) in sentence.sets["fronts"]:
            return False
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


def _side_in(name: str) -> str:
    """The side in a region's name."""
    return next((side for side in SIDES if side in name.split()), "")
