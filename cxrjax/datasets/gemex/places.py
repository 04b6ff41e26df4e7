"""Where a piece of a report says that something is, in GEMeX's regions."""

import re
from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """Side ("left", "right", "bilateral" or None) and zone of the lung ("upper", "mid", "lower",
    "hilar" or None)."""

    side: str | None
    zone: str | None


_TOKEN = re.compile(
    r"\b(?:(?P<side>left|right|bilateral(?:ly)?|both)\b"
    r"|(?P<both>bi(?=bas|apical|hilar|perihilar))?"
    r"(?:(?P<upper>upper(?= (?:lobes?|lungs?|zones?|and|to|or|/))|apex|apices|apical|suprahilar)"
    r"|(?P<mid>middle lobe|mid(?=[- ]?(?:lungs?|zones?|and|to|lower|upper))|lingular?)"
    r"|(?P<lower>lower(?= (?:lobes?|lungs?|zones?|and))|basilar|basal|bases?(?! of the neck)"
    r"|costophrenic|retrocardiac|infrahilar)"
    r"|(?P<hilar>(?:peri)?hil(?:um|a|ar))))",
)
_JOINED = re.compile(r"(?:and|or|greater than|more than|worse than|than|sided|\W)*")


def find_places(text: str) -> list[Place]:
    """The places that a text in lower case names, in order.

    A side holds for the zones behind it ("right upper and lower lobes"); one without a zone behind
    it holds for zones that have none ("in the lower lobe on the left"), else for itself.
    """
    every: list[str] = []
    sides: list[str] = []
    unused: list[str] = []
    found: list[tuple[list[str], str]] = []
    last_side_end = -1
    for token in _TOKEN.finditer(text):
        if token["side"]:
            side = "bilateral" if token["side"][0] == "b" else token["side"]
            every.append(side)
            joined = last_side_end >= 0 and _JOINED.fullmatch(text, last_side_end, token.start())
            sides = [*sides, side] if joined else [side]
            unused = [*unused, side] if joined else [side]
            last_side_end = token.end()
            continue
        zone = next(name for name in ("upper", "mid", "lower", "hilar") if token[name])
        own = sides
        if token["both"]:
            own = ["bilateral"]
        elif token[zone].startswith("lingul") or token[zone] == "retrocardiac":
            own = ["left"]
        found.append((own, zone))
        unused = []
        last_side_end = -1
    if not found:
        return [Place(side, None) for side in dict.fromkeys(every)]
    places = []
    for own, zone in found:
        places += [Place(side, zone) for side in own or unused] or [Place(None, zone)]
    return list(dict.fromkeys(places))


def lung_regions(places: Sequence[Place]) -> list[str]:
    """Regions of lung for places; a zone without a side is of both lungs, nothing is all lung."""
    return [_lung_region(place) for place in places] or ["bilateral lung"]


def sided(places: Sequence[Place], what: str) -> list[str]:
    """`left ...`, `right ...` or `bilateral ...` of a paired structure."""
    sides = list(dict.fromkeys(place.side or "bilateral" for place in places)) or ["bilateral"]
    return [f"{side} {what}" for side in sides]


def effusion_regions(places: Sequence[Place], severity: str | None) -> list[str]:
    """Rule 4 of Table 9: small in the lower zone, moderate up to the middle, large anywhere."""
    zone = {
        "minimal": "lower lung zone",
        "mild": "lower lung zone",
        "moderate": "mid-to-lower lung zone",
        None: "lung",
        "severe": "lung",
    }[severity]
    zoned = [place for place in places if place.zone in ("upper", "mid", "lower")]
    if severity is None and zoned:
        return lung_regions(zoned)
    return sided(places, zone)


def _lung_region(place: Place) -> str:
    side = place.side or "bilateral"
    if place.zone is None:
        return f"{side} lung"
    return f"{side} hilar structures" if place.zone == "hilar" else f"{side} {place.zone} lung zone"
