"""Where the items of a sentence are: regions and sides, each given to the item it belongs to."""

import dataclasses
import itertools
import re
from collections.abc import Sequence

from cxrjax.radiology_text.assertions import Side
from cxrjax.radiology_text.english import Match, Word
from cxrjax.radiology_text.items import NamedItem
from cxrjax.radiology_text.lexicon import English, word_set

_PREPOSITIONS = word_set("prepositions")
_LIST = frozenset((",", "and", "or", "/", "both", "with", "nor", "versus", "vs"))
_ZONES = word_set("zones")
_HEADS = ("lung zone", "lung field", "lobe", "zone", "lung", "field", "hemithorax", "rib")
_LOOSE = frozenset(
    (",", ":", "small", "large", "mild", "moderate", "tiny", "trace", "present", "mm", "cm")
)
_NO_PLACE = frozenset(("lungs", "thorax", "pleural spaces", "pulmonary vasculature"))
_SIDES = ("left", "right")
_BOTH = frozenset(("bilateral", "bilaterally", "both", "bibasilar", "biapical", "bibasal"))
# "Left, I mean right": the first of the two does not count.
_CORRECTED = re.compile(
    r"\b(left|right)(?=(?:[\s-]sided)?[\s,;:()–—-]*(?:no,?\s|sorry,?\s)?(?:i\s+mean|i\s+meant|"
    r"correction:?|rather|or\s+rather|make\s+that|actually|scratch\s+that|sorry|that\s+is|i\.?e\.?)"
    r"[\s,:]*(?:the\s+)?(?:left|right)\b)"
)
_COMPARED = re.compile(
    r"\b(?:(?:left|right)(?:[\s-]sided)?\s*(?:greater|more|larger|worse|less|smaller|>|<)\s*(?:than\s*)?"
    r"(?:the\s+|on\s+the\s+)?(?:left|right)|(?:greater|more|larger|worse|less)\s+on\s+the\s+(?:left|right)"
    r"|(?:left|right)\s*[><]\s*(?:left|right)|[lr]\s*>\s*[lr])\b"
)


@dataclasses.dataclass
class Whereabouts:
    """What is said of where an item is: behind it (`trailing`), or first of all (`fronted`)."""

    regions: list[str] = dataclasses.field(default_factory=list)
    side: str = ""
    trailing: bool = False
    fronted: bool = False


@dataclasses.dataclass
class _Spot:
    """A place in the words: regions, or a side alone."""

    first: int
    last: int
    regions: tuple[str, ...]
    side: str


def without_corrected(text: str) -> str:
    """The text with the side that is taken back blanked, every character at its place."""
    return _CORRECTED.sub(lambda match: " " * len(match.group()), text)


def find_places(
    tokens: Sequence[Word],
    text: str,
    items: Sequence[NamedItem],
    clauses: Sequence[tuple[int, int]],
    landmarks: frozenset[int],
    english: English,
) -> list[Whereabouts]:
    """The place of each item.

    Args:
        text: of the sentence, whose characters the tokens count.
        landmarks: words that a distance is measured from; no item is there.
    """
    sides = compared_sides(text)
    passed = landmarks | {
        place
        for place, token in enumerate(tokens)
        if any(start <= token.start < end for start, end in sides)
    }
    spots = _spots(tokens, items, english, passed)
    places = [Whereabouts() for _ in items]
    for begin, end in clauses:
        inside = [n for n, item in enumerate(items) if begin <= item.first < end]
        if not inside:
            continue
        own = [spot for spot in spots if begin <= spot.first < end]
        for spot in own:
            if _is_pronoun(tokens, spot) and all(min(items[n].own) != spot.last for n in inside):
                continue
            _give(tokens, items, places, inside, spot, english)
        _share(tokens, items, places, inside)
    compared = {_nearest(tokens, items, start) for start, _ in sides}
    for n, (item, place) in enumerate(zip(items, places, strict=True)):
        _settle(item, place, n in compared, english)
    return places


def _spots(
    tokens: Sequence[Word], items: Sequence[NamedItem], english: English, landmarks: frozenset[int]
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
            words = {token.lemma for token in tokens[match.first : match.last]}
            side = "both" if words & _BOTH else side
            spots.append(_Spot(match.first, match.last, (match.payload,), side))
            covered.update(range(match.first, match.last))
    for match in english.language.not_sides.find(tokens):
        covered.update(range(match.first, match.last))
    for place, token in enumerate(tokens):
        lemma = token.lemma.removesuffix("ward")
        side = "both" if lemma in _BOTH else lemma if lemma in _SIDES else ""
        if side and place not in covered:
            spots.append(_Spot(place, place + 1, (), side))
    spots.sort(key=lambda spot: spot.first)
    return _joined(tokens, spots, english)


def _regions(
    tokens: Sequence[Word], items: Sequence[NamedItem], english: English
) -> list[Match[str]]:
    """Names of regions. One may begin before a finding and end in it ("left mid | lung opacity"),
    and none begins in it and ends behind it."""
    borders = {0, len(tokens)} | {item.last for item in items if item.statement is None}
    found = [
        Match(match.first + begin, match.last + begin, match.payload)
        for begin, end in itertools.pairwise(sorted(borders))
        for match in english.definitions.region_names.find(tokens[begin:end])
    ]
    named = [set(range(item.first, item.last)) for item in items if item.statement is None]
    # The lung of "lung opacity" is no place.
    return [
        match
        for match in found
        if match.payload not in _NO_PLACE
        or not any(words.issuperset(range(match.first, match.last)) for words in named)
    ]


def _coordinated(tokens: Sequence[Word], english: English) -> list[_Spot]:
    """ "Right upper, middle, and lower lobes": several regions with the words of one."""
    names = english.definitions.region_names
    found = []
    place = 0
    while place < len(tokens):
        side, zones, at = "", [], place
        pieces: list[tuple[str, str]] = []
        while at < len(tokens):
            word = tokens[at].lemma
            if word in _SIDES or word in _BOTH:
                side = word
            elif word in _ZONES:
                zones.append(word)
                pieces.append((side, word))
            elif word not in (",", "and", "or", "/", "the", "to") or not pieces:
                break
            at += 1
        head = next(
            (
                head
                for head in _HEADS
                if tuple(t.lemma for t in tokens[at : at + len(head.split())])
                == tuple(head.split())
            ),
            "",
        )
        if head and len(pieces) > 1:
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


def _joined(tokens: Sequence[Word], spots: list[_Spot], english: English) -> list[_Spot]:
    """Sides and regions that stand together as one place: "right and left lower lobes"."""
    joined: list[_Spot] = []
    on_side = english.definitions.on_side
    for spot in spots:
        before = joined[-1] if joined else None
        gap = [t.lemma for t in tokens[before.last : spot.first]] if before else []
        near = before is not None and set(gap) <= {"and", "or", "/", ",", "the", "both"}
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


def _is_pronoun(tokens: Sequence[Word], spot: _Spot) -> bool:
    """Whether a "both" is of findings: "scarring and emphysema, both stable"."""
    follows = tokens[spot.last].lemma if spot.last < len(tokens) else ""
    return not spot.regions and tokens[spot.first].lemma == "both" and follows != "side"


def _side_of(regions: Sequence[str], english: English) -> str:
    sides = {english.definitions.regions[name].side for name in regions}
    if sides == {"left", "right"}:
        return "both"
    return sides.pop() if len(sides) == 1 else ""


def _give(
    tokens: Sequence[Word],
    items: Sequence[NamedItem],
    places: Sequence[Whereabouts],
    inside: Sequence[int],
    spot: _Spot,
    english: English,
) -> None:
    """Gives a place in the words to the item that it belongs to."""
    within = [n for n in inside if items[n].own.intersection(range(spot.first, spot.last))]
    if within:
        _add(items[within[0]], places[within[0]], spot, english, trailing=False)
        return
    left = [n for n in inside if items[n].last <= spot.first]
    right = [n for n in inside if min(items[n].own) >= spot.last]
    left_gap = [t.lemma for t in tokens[items[left[-1]].last : spot.first]] if left else []
    right_gap = [t.lemma for t in tokens[spot.last : min(items[right[0]].own)]] if right else []
    stops = {",", ":", ";", "(", ")", "and", "or", "/", "is", "are", "with"} | _PREPOSITIONS
    reached = bool(left) and _is_reached(left_gap) and bool(right_gap)
    if right and not stops & set(right_gap) and not reached:
        _add(items[right[0]], places[right[0]], spot, english, trailing=False)
    elif left and (_is_reached(left_gap) or _is_loose(left_gap)):
        _add(items[left[-1]], places[left[-1]], spot, english, trailing=True)
    elif right:
        _add(items[right[0]], places[right[0]], spot, english, trailing=False)
        places[right[0]].fronted = True


def _is_loose(gap: Sequence[str]) -> bool:
    """Whether nothing but a size or a degree is between: "nodule, 6 mm, right upper lobe"."""
    return "," not in gap or all(word in _LOOSE or word[0].isdigit() for word in gap)


def _is_reached(gap: Sequence[str]) -> bool:
    """Whether a preposition leads from the item to the place, over parts of a list of places."""
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
            continue
        if (group in own and spot.side) or (
            spot.side == "both" and region not in spot.regions and group in own
        ):
            place.side = _both(place.side, english.definitions.regions[region].side or spot.side)
            continue
        if region not in place.regions:
            place.regions.append(region)
    if spot.side and (not spot.regions or spot.side == "both"):
        place.side = _both(place.side, spot.side)
    place.trailing |= trailing


def _both(one: str, other: str) -> str:
    return other if not one or one == other else "both"


def _share(
    tokens: Sequence[Word],
    items: Sequence[NamedItem],
    places: Sequence[Whereabouts],
    inside: Sequence[int],
) -> None:
    """One place for a list: "atelectasis and effusion at the left base", "left A and B"."""
    pairs = list(itertools.pairwise(inside))
    for one, other in reversed(pairs):
        if not _listed(tokens, items[one], items[other]):
            continue
        left, right = places[one], places[other]
        if right.trailing and not left.regions and not items[one].statement:
            left.regions, left.side = list(right.regions), left.side or right.side
            left.trailing = True
    for one, other in pairs:
        left, right = places[one], places[other]
        gap = [t.lemma for t in tokens[items[one].last : min(items[other].own)]]
        bare = not (right.regions or right.side or items[other].statement)
        joined = gap and set(gap) <= {"and", "or", "/"}
        if bare and (
            (joined and not left.trailing)
            or (left.fronted and _listed(tokens, items[one], items[other]))
        ):
            right.regions, right.side = list(left.regions), left.side
            right.fronted = left.fronted


def _listed(tokens: Sequence[Word], one: NamedItem, other: NamedItem) -> bool:
    gap = [t.lemma for t in tokens[one.last : min(other.own)]]
    return bool(_LIST & set(gap)) and len(gap) <= 4 and not _PREPOSITIONS & set(gap)


def _nearest(tokens: Sequence[Word], items: Sequence[NamedItem], character: int) -> int:
    """The last item before a place in the text, else the first."""
    before = [n for n, item in enumerate(items) if tokens[item.first].start < character]
    return before[-1] if before else 0


def _settle(item: NamedItem, place: Whereabouts, compared: bool, english: English) -> None:
    """Brings sides and regions together."""
    on_side = english.definitions.on_side
    if compared:
        place.side = "both"
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
    place.regions = list(dict.fromkeys(place.regions))
    if len(place.regions) > 1:
        place.regions = [r for r in place.regions if r not in ("thorax", "lungs")]


def compared_sides(text: str) -> list[tuple[int, int]]:
    """Where a text compares a side with the other: "left worse than right"."""
    return [match.span() for match in _COMPARED.finditer(text)]


def side_name(side: str) -> Side | None:
    """The field's name of a side."""
    names: dict[str, Side] = {"left": "left", "right": "right", "both": "bilateral"}
    return names.get(side)
