"""Items of a Vietnamese sentence: findings, organs' states, regions, and its cues."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from cxrjax.radiology_text.english import Match, Payload, PhraseIndex
from cxrjax.radiology_text.items import NamedItem
from cxrjax.radiology_text.vietnamese_words import load_words

_STATE_REACH = 9  # syllables between an organ and its state
GENERAL = "cardiopulmonary abnormality"


@dataclasses.dataclass(eq=False)
class VietnameseItem(NamedItem):
    """Named item; `subject` is the words of the organ that it states something of."""

    subject: range = range(0)

    @property
    def begin(self) -> int:
        return min(self.own)


@dataclasses.dataclass(frozen=True)
class Spot:
    """A place in the words: regions without their side, and a side."""

    first: int
    last: int
    regions: tuple[str, ...]
    side: str


class VietnameseSentence:
    """A sentence with all that is found in it.

    Attributes:
        tokens, forms: its syllables and marks, and how they are written.
        void: tokens of a side that is taken back, and of what something is measured from.
        items: what is named, in the order of the words.
        named: tokens of items, and void ones.
        regions, cues, times: wordings outside of these; `contrasts`: first tokens of a "but".
        within: tokens of regions of several words.
        compared: tokens that compare one side with the other.
    """

    def __init__(self, text: str, bare: bool) -> None:
        self.words = load_words(bare)
        self.sets = self.words.sets
        self.text = text
        self.tokens = self.words.split(text)
        self.forms = [token.lemma for token in self.tokens]
        self.void = self._taken_back()
        self.items = self._find_items()
        self.named = self.void.union(*(item.own for item in self.items))
        regions = self.words.regions.find(self.tokens)
        self.regions = [match for match in regions if self.void.isdisjoint(reach_of(match))]
        self.within = {p for m in self.regions if m.last - m.first > 1 for p in reach_of(m)}
        self.cues = self.outside(self.words.cues, self.named | self.within)
        self.compared = self._compared()
        self.times = self.outside(self.words.times, self.named | self.compared)
        self.contrasts = [cue.first for cue in self.cues if cue.payload.after == "contrast"]

    def form(self, place: int) -> str:
        """The token at a place; "" beyond the sentence's ends."""
        return self.forms[place] if 0 <= place < len(self.forms) else ""

    def find(self, name: str) -> list[Match[str]]:
        return self.words.phrases[name].find(self.tokens)

    def outside(self, index: PhraseIndex[Payload], taken: Collection[int]) -> list[Match[Payload]]:
        """Phrases among the tokens that are not taken; none reaches over one that is."""
        found: list[Match[Payload]] = []
        begin = 0
        for place in range(len(self.tokens) + 1):
            if place == len(self.tokens) or place in taken:
                for match in index.find(self.tokens[begin:place]) if place > begin else ():
                    found.append(Match(match.first + begin, match.last + begin, match.payload))
                begin = place + 1
        return found

    def side_at(self, place: int) -> str:
        """The side that a token names; a single letter does behind a place."""
        form = self.form(place)
        if form in self.words.letters and self.form(place - 1) in self.sets["before_side"]:
            return self.words.letters[form]
        return self.words.sides.get(form, "")

    def _taken_back(self) -> set[int]:
        """Tokens of a side that is taken back, to the side that holds: "trái, à nhầm, phải"."""
        void: set[int] = set()
        for match in self.find("correction"):
            before, after = match.first - 1, match.last
            while self.form(before) in (",", "(", "-"):
                before -= 1
            while self.form(after) in self.sets["place_gap"] | {",", ":"}:
                after += 1
            one, other = self.side_at(before), self.side_at(after)
            if one and other and one != other:
                void.update(range(before, after))
        return void

    def _find_items(self) -> list[VietnameseItem]:
        """Findings and organs' states, in the order of the words, none overlapping another."""
        hidden = {place for match in self.find("not_findings") for place in reach_of(match)}
        named = [
            VietnameseItem(match.first, match.last, match.payload, own=frozenset(reach_of(match)))
            for match in self.outside(self.words.findings, self.void | hidden)
        ]
        stated = self._statements(named)
        own = {place for item in stated for place in item.own}
        # A state may be a finding's word too: "góc sườn hoành mờ".
        items = [*stated, *(item for item in named if own.isdisjoint(item.own))]
        items = self._merged(sorted(items, key=lambda item: item.first))
        ends = {item.last for item in items}
        # "Hạch bất thường" is one thing.
        items = [item for item in items if item.names != (GENERAL,) or item.first not in ends]
        return sorted([*items, *self._of_other_side(items)], key=lambda item: item.first)

    def _of_other_side(self, items: Sequence[VietnameseItem]) -> Iterator[VietnameseItem]:
        """Yields items denied only for the other side: "TDMP trái, bên phải không có"."""
        taken = {place for item in items for place in item.own}
        for place in range(1, len(self.forms)) if items else ():
            if place in taken or not self.side_at(place):
                continue
            begin = place - (self.forms[place - 1] in self.sets["sides"] | {"phổi"})
            before = [item for item in items if item.last < begin and not item.is_normal]
            opens = self.form(begin - 1) in self.sets["opens_side"]
            end = place + 1 + (self.form(place + 1) == "thì")
            if not before or not opens or self.form(end) not in self.sets["no"]:
                continue
            while self.form(end) in self.sets["denies"]:
                end += 1
            if self.form(end) in ("", ","):
                yield VietnameseItem(place, place + 1, before[-1].names, own=frozenset((place,)))

    def _merged(self, items: Sequence[VietnameseItem]) -> list[VietnameseItem]:
        """One item of two wordings of one finding side by side: "đám mờ | đông đặc"."""
        kept: list[VietnameseItem] = []
        for item in items:
            kin = self._same_thing(kept[-1], item) if kept else None
            if kin is None:
                kept.append(item)
            else:
                own = kept[-1].own | item.own
                kept[-1] = VietnameseItem(kept[-1].first, item.last, (kin,), own=own)
        return kept

    def _same_thing(self, before: VietnameseItem, item: VietnameseItem) -> str | None:
        """The narrower of two findings that are one thing, by name or kind."""
        gap = {*self.forms[before.last : item.first]}
        if before.statement or item.statement or not gap <= self.sets["same_thing"]:
            return None
        if len(before.names) > 1 or len(item.names) > 1:
            return None
        one, other = before.names[0], item.names[0]
        ancestors = self.words.definitions.finding_ancestors
        if one == other or other in ancestors(one):
            return one
        return other if one in ancestors(other) else None

    def _statements(self, items: Sequence[VietnameseItem]) -> list[VietnameseItem]:
        found = self.words.organs.find(self.tokens)
        subjects = [match for match in found if self.void.isdisjoint(reach_of(match))]
        inside = {place for item in items for place in item.own}
        parts = {place for subject in subjects for place in reach_of(subject)}
        healthy = {match.first: match for match in self.find("well")}
        nearly = {match.first: match for match in self.find("borderline")}
        ends = {item.last for item in items}
        starts = {match.first for match in subjects}
        stated = []
        for subject in subjects:
            (statement, well), first, last = subject.payload, subject.first, subject.last
            before = self.form(first - 1)
            # "Nốt ở thùy trên": where something else is.
            is_place = statement.name == "lungs" and (
                before in self.sets["at_place"] or first in ends
            )
            beside = statement.name == "side" and before not in ("", ",")
            if is_place or beside or not inside.isdisjoint(reach_of(subject)):
                continue
            reach = self.tokens[: last + _STATE_REACH + 6]
            states = {match.first: match for match in statement.states.find(reach)}
            normal = {**{match.first: match for match in well.find(reach)}, **healthy}
            listed = False
            for place in range(last, min(len(self.forms), last + _STATE_REACH)):
                ill, fine, near = states.get(place), normal.get(place), nearly.get(place)
                if near is not None:
                    stated.append(_statement(subject, near, statement.normal[:1]))
                    stated[-1].is_borderline = True
                    break
                if fine is not None and (ill is None or fine.last >= ill.last):
                    stated.append(_statement(subject, fine, statement.normal))
                    stated[-1].is_normal = True
                    break
                told: set[str] = set()
                while ill is not None and not listed:  # "giãn và ngoằn ngoèo"
                    if ill.payload not in told:
                        stated.append(_statement(subject, ill, (ill.payload,)))
                        told.add(ill.payload)
                    else:
                        stated[-1].own |= {*reach_of(ill)}
                    joined = ill.last
                    while self.form(joined) in self.sets["joint"]:
                        joined += 1
                    if self.form(joined) == ",":  # "không rộng, không lệch"
                        joined += 1 + (self.form(joined + 1) in self.sets["no"])
                    ill = states.get(joined)
                form = self.forms[place]
                if place in inside or (form not in self.sets["passed"] and place not in parts):
                    break
                listed = listed or (place in starts and subject is not subjects[-1])
                if form == "," and not starts & {place + 1, place + 2}:
                    break
        return stated

    def _compared(self) -> set[int]:
        """Words that compare one side with the other: "phải nhiều hơn trái"."""
        return {
            place
            for match in self.find("compared")
            if any(map(self.side_at, range(match.first - 2, match.first)))
            and any(map(self.side_at, range(match.last, match.last + 3)))
            for place in reach_of(match)
        }


def _statement(subject: Match, state: Match, names: tuple[str, ...]) -> VietnameseItem:
    own = frozenset((*reach_of(subject), *reach_of(state)))
    # A denial looks at the state: "bóng tim không to".
    item = VietnameseItem(state.first, state.last, names, subject.payload[0], own=own)
    item.subject = reach_of(subject)
    return item


def reach_of(part: Match | Spot) -> range:
    return range(part.first, part.last)
