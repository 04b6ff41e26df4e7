"""GEMeX's 30 regions, composed of Chest ImaGenome's 29 (arXiv 2411.16778, Table 8)."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cxrjax.radiology_text.definitions import load_region_table

Box = tuple[float, float, float, float]

# Lungs are more than their zones, so that a region of lung is told apart by these parts of it.
_ZONES = ("upper lung zone", "mid lung zone", "lower lung zone")


@dataclasses.dataclass(frozen=True, eq=False)
class RegionMap:
    """The 30 regions of GEMeX, composed of Chest ImaGenome's 29."""

    # `keep`, `merge`, `remove`, `add`: the data file's table, names in lower case.
    keep: tuple[str, ...]
    merge: Mapping[str, tuple[str, ...]]
    remove: tuple[str, ...]
    add: Mapping[str, tuple[str, ...]]
    alias: Mapping[str, str]  # other spellings of a region -> its name

    @property
    def sources(self) -> tuple[str, ...]:
        """The 29 regions of Chest ImaGenome."""
        merged = [part for parts in self.merge.values() for part in parts]
        return (*self.keep, *merged, *self.remove)

    @property
    def regions(self) -> tuple[str, ...]:
        """The 30 regions of GEMeX."""
        return (*self.keep, *self.merge, *self.add)

    def name(self, region: str) -> str | None:
        """The region's one name out of any spelling of it, None where there is none."""
        plain = " ".join(region.lower().split())
        plain = self.alias.get(plain, plain)
        return plain if plain in self.regions else None

    def from_source(self, source: str) -> str | None:
        """The region that one of the 29 goes into; None for those that are removed.

        Raises:
            KeyError: it is none of the 29.
        """
        if source in self.keep:
            return source
        for region, parts in self.merge.items():
            if source in parts:
                return region
        if source in self.remove:
            return None
        raise KeyError(source)

    def combine(self, regions: Iterable[str]) -> list[str]:
        """The fewest regions that say the same: left and right are bilateral, mid and lower one.

        Returns:
            In the order of the 30; regions that nothing joins stay as they are.
        """
        left = set(regions)
        covered = frozenset().union(*map(self.atoms, left))
        for whole in sorted(self.regions, key=lambda region: -len(self.atoms(region))):
            parts = {region for region in left if self.atoms(region) <= self.atoms(whole)}
            if self.atoms(whole) <= covered and len(parts) > 1:
                left = (left - parts) | {whole}
        return [region for region in self.regions if region in left]

    def overlap(self, region: str, other: str) -> bool:
        """Returns whether a place may be in both regions."""
        return bool(self.atoms(region) & self.atoms(other))

    @functools.cache  # noqa: B019 - one map lives as long as the program
    def atoms(self, region: str) -> frozenset[str]:
        """The smallest parts of a region: zones of each lung, or the region itself."""
        if region in self.add:
            return frozenset().union(*(self.atoms(part) for part in self.add[region]))
        side = region.split()[0]
        if region in ("left lung", "right lung"):
            hilum, base = f"{side} hilar structures", f"{side} hemidiaphragm"
            return frozenset([*(f"{side} {zone}" for zone in _ZONES), hilum, base])
        return frozenset([region])

    def boxes(self, source_boxes: Mapping[str, Box]) -> dict[str, Box]:
        """Boxes of the regions out of those of the 29, in the same unit.

        A merged or composed region has the smallest box around its parts. A merged one needs its
        namesake or any part, a composed one all of its parts; others are left out.

        Raises:
            KeyError: a name is none of the 29.
        """
        boxes: dict[str, Box] = {}
        parts: dict[str, list[Box]] = {}
        for source, box in source_boxes.items():
            region = self.from_source(source)
            if region is not None:
                parts.setdefault(region, []).append(box)
        for region in (*self.keep, *self.merge):
            if region in parts:
                boxes[region] = enclosing(parts[region])
        for region, wanted in self.add.items():
            if all(part in boxes for part in wanted):
                boxes[region] = enclosing([boxes[part] for part in wanted])
        return {region: boxes[region] for region in self.regions if region in boxes}


def enclosing(boxes: Iterable[Box]) -> Box:
    """The smallest box around all, xyxy."""
    x_min, y_min, x_max, y_max = zip(*boxes, strict=True)
    return min(x_min), min(y_min), max(x_max), max(y_max)


@functools.cache
def load_regions() -> RegionMap:
    """The map, from the one table of regions (`cxrjax.radiology_text.definitions`)."""
    data = load_region_table()["gemex"]
    return RegionMap(
        tuple(data["keep"]),
        {name: tuple(parts) for name, parts in data["merge"].items()},
        tuple(data["remove"]),
        {name: tuple(parts) for name, parts in data["add"].items()},
        data["alias"],
    )


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
