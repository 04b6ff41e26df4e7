"""Reach of a clause's cues over the items after them."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from cxrjax.radiology_text.assertions import Certainty, Status
from cxrjax.radiology_text.clauses import COPULAS
from cxrjax.radiology_text.english import Match, Words
from cxrjax.radiology_text.items import NamedItem
from cxrjax.radiology_text.lexicon import Cue, word_set
from cxrjax.radiology_text.reach import (
    ADJECTIVE_REACH,
    ends_at,
    is_given,
    is_lasting,
    is_of_given,
    is_of_lack,
    is_other,
    is_preferred,
    is_run_on,
    is_supposed,
    keeps_against,
    next_item,
)

PARTS = word_set("parts")
_PLAINLY = frozenset(("definite", "obvious", "unequivocal", "clear"))
_VERBAL = frozenset(("not", "cannot", "never", "unable", "fail"))
_LEADS_ON = (",", "of", "for", "to", "in", "from", "with", "and", "or")
_INSTEAD = (["simply"], ["only"], ["just"], ["merely"])
_JOINTS = frozenset((",", "and", "with", "(", ")", "or", "nor", "/"))
# Between a denied item and a doubt that is of it.
_RELATIVE = word_set("seen") | {"which", "that", "is", "are", "would", "could", "might", "be"}
# A cue of one of these words says something of the item right after it alone.
_ADJECTIVES = word_set("one_finding")
_PROCEDURAL = frozenset(("after", "following", "post", "status", "s"))


@dataclasses.dataclass(slots=True)
class Judgement:
    """Status of an item by its cue; `reason` is the kind of cue, "" for none."""

    status: Status = "present"
    certainty: Certainty = "certain"
    not_now: Literal["", "past", "to be ruled out"] = ""
    reason: str = ""
    cue: tuple[int, int] | None = None


def say(judgement: Judgement, says: str, cue: tuple[int, int]) -> None:
    if not says:
        return
    kind, _, level = says.removeprefix("value ").partition(" ")
    judgement.reason, judgement.cue = kind, cue
    if kind == "denied":
        judgement.status = "absent"
        judgement.certainty = "likely" if level == "likely" else "certain"
    elif kind == "affirmed":
        judgement.status, judgement.certainty = "present", "certain"
    elif kind == "hedged":
        judgement.status = "present" if level == "likely" else "uncertain"
        judgement.certainty = level  # type: ignore[assignment]
    elif kind in ("past", "query"):
        judgement.status, judgement.certainty = "uncertain", "possible"
        judgement.not_now = "past" if kind == "past" else "to be ruled out"


class Forward:
    """Cues of a clause, applied to the items after them up to the end of their reach.

    Args:
        inside: indices of the clause's items.
        ends: places of cues that apply to the words before them.
    """

    def __init__(
        self,
        tokens: Words,
        items: Sequence[NamedItem],
        judged: list[Judgement],
        inside: Sequence[int],
        cues: Sequence[Match[Cue]],
        clause: tuple[int, int],
        ends: set[int],
    ) -> None:
        self.tokens, self.items, self.judged = tokens, items, judged
        self.inside, self.clause, self.ends = inside, clause, ends
        self.cues = {cue.first: cue for cue in cues}
        # Two organs may share a state: "the heart and mediastinum are not enlarged".
        self.sharing: dict[int, list[int]] = {}
        for n in inside:
            self.sharing.setdefault(items[n].first, []).append(n)
        self.covered = {place for n in inside for place in items[n].own}
        self.says, self.cue_at = "", (0, 0)
        self.opened_late = self.adjective = False
        self.seen_items = self.seen_since = 0
        self.last_item = clause[0]

    def walk(self) -> None:
        """Goes through the clause word by word."""
        place = self.clause[0]
        while place < self.clause[1]:
            if place in self.ends and self.seen_since:
                self.says = ""
            if (cue := self.cues.get(place)) is not None:
                place = self._at_cue(cue)
                continue
            self._prefers(place)
            if place in self.sharing:
                item = self.items[self.sharing[place][0]]
                if not item.is_setting:
                    self._at_item(place, item)
                place = max(item.last, place + 1)
                continue
            if self._ends_before(place):
                self.says = ""
            place += 1

    @property
    def _denies(self) -> bool:
        return self.says.startswith("denied")

    def _at_cue(self, cue: Match[Cue]) -> int:
        """Takes up what a cue says, and returns the place behind it."""
        said, place, lemma = self._said_by(cue), cue.last, self.tokens.forms[cue.first]
        if said.startswith("value") or (said == "except" and lemma == "beyond" and not self.says):
            return place
        of_lack = is_of_lack(self.tokens, self.cue_at[0], cue)
        if said == "affirms" and self._denies and of_lack:
            self.says, self.seen_since = "hedged likely", 0
        elif said == "affirms":
            # "No effusion or evidence of failure"
            if not (self.says and (self._is_listed(cue) or not self.seen_since)):
                self.says = ""
        elif said == "except":
            self.says, self.seen_since = "", 0
        elif said == "contrast" or (said == "now" and self.says == "past"):
            self.says = ""
        elif said.startswith("hedged") and self._denies and self._of_denied(cue) and not of_lack:
            pass  # "no lesion suspicious for tuberculosis"
        elif said not in ("", "now", "neutral") and (
            self.seen_since or not keeps_against(self.says, said) or of_lack
        ):
            self._open(cue, said)
        bare = cue.last - cue.first == 1 and self._denies
        if bare and place < self.clause[1] and self.tokens.forms[place] in (",", ":"):
            self.says = ""  # "No, the heart is enlarged"
        return place

    def _said_by(self, cue: Match[Cue]) -> str:
        """Returns what a cue says of the words after it, where it stands."""
        tokens, before = self.tokens, cue.payload.before
        lemma, alone = tokens.forms[cue.first], cue.last - cue.first == 1
        stated = lemma in COPULAS and tokens.form(cue.last) not in ("for", "of")
        if self.seen_items or (before.startswith("denied") and stated):
            before = ""
        said = cue.payload.after or before
        if said.startswith("denied") and cue.first and tokens.forms[cue.first - 1] in PARTS:
            return ""
        following = [self.items[n] for n in next_item(self.items, self.inside, cue.last)]
        if lemma == "absent" and alone and all(i.first - cue.last > 1 for i in following):
            return ""  # "absent vascularity indicates emphysema"
        if said == "past" and any(map(is_lasting, following)):
            return "affirms"  # a scar of former times is one of today
        if said == "past" and self._denies and self._is_listed(cue) and not self.seen_since:
            return "neutral"  # "no evidence or history of tuberculosis"
        if self.says == "query" and tokens.forms[cue.last - 1] in ("versus", "vs"):
            return "neutral"  # "evaluate for edema versus pneumonia"
        return said

    def _of_denied(self, cue: Match[Cue]) -> bool:
        """Returns whether a doubt belongs to the items that a "no" denies."""
        bare = self.tokens.forms[self.cue_at[0]] in ("no", "without", "not")
        gap = self.tokens.forms[self.last_item + 1 : cue.first]
        return bare and self.seen_since > 0 and _RELATIVE.issuperset(gap)

    def _is_listed(self, cue: Match[Cue]) -> bool:
        return not {"or", "nor"}.isdisjoint(self.tokens.forms[max(0, cue.first - 2) : cue.first])

    def _open(self, cue: Match[Cue], said: str) -> None:
        """Lets a cue hold from here on."""
        if said.startswith("denied") and cue.first <= self.cue_at[1] and not self.seen_since:
            # "Possibly no effusion", "probably no effusion".
            weaker = {"hedged possible": self.says, "hedged likely": "denied likely"}
            said = weaker.get(self.says, said)
        self.opened_late = any(
            not self.items[n].is_normal and self.judged[n].status != "absent"
            for n in self.inside[: self.seen_items]
        )
        self.says, self.cue_at, self.seen_since = said, (cue.first, cue.last), 0
        alone = cue.last - cue.first == 1 and self.tokens.forms[cue.first] in _ADJECTIVES
        self.adjective = said == "past" and alone

    def _prefers(self, place: int) -> None:
        """Takes up what "than" and "over" say of the item behind them."""
        tokens, lemma = self.tokens, self.tokens.forms[place]
        if lemma not in ("than", "over"):
            return
        than = lemma == "than"
        if than and self._denies and "other" in tokens.forms[self.cue_at[0] : place]:
            self.says, self.seen_since = "", 0  # "no other lesion than cardiomegaly"
        elif than and place and tokens.forms[place - 1] == "likely":
            self.says, self.seen_since = "hedged likely", 0  # "less likely than atelectasis"
            self.opened_late = True
        elif is_preferred(tokens, self.clause[0], place):
            self.says, self.seen_since = "hedged unlikely", 0  # "atelectasis over pneumonia"

    def _at_item(self, place: int, item: NamedItem) -> None:
        """Applies the cue in force to an item, and to those that share its state."""
        if self.says and self._passes_over(place, item):
            self.says = ""
        tokens = self.tokens
        # "Without catheter kinking"
        if not (self._denies and tokens.form(item.last) in PARTS):
            for one in self.sharing[place]:
                say(self.judged[one], self.says, self.cue_at)
        self.last_item = max(item.own)
        self.seen_items += len(self.sharing[place])
        self.seen_since += len(self.sharing[place])
        if self.adjective:
            self.says, self.adjective = "", False

    def _passes_over(self, place: int, item: NamedItem) -> bool:
        """Returns whether the cue in force says nothing of an item in its reach."""
        tokens, since = self.tokens, self.seen_since
        past = self.says == "past"
        return (
            (self.adjective and place - self.cue_at[1] > ADJECTIVE_REACH)
            or (since and not past and is_given(tokens, self.last_item, item))
            or (since and is_run_on(tokens, self.last_item, item, self.clause[1], self.cues))
            or (since and past and is_lasting(item))  # "history of tuberculosis, scarring"
            or (self._denies and not since and is_of_given(tokens, self.cue_at, item))
            or is_supposed(tokens, item)  # "cannot tell whether the nodule is new"
        )

    def _ends_before(self, place: int) -> bool:
        """Returns whether the reach of the cue in force ends at a word."""
        tokens, says, since = self.tokens, self.says, self.seen_since
        lemma, cue_at = tokens.forms[place], self.cue_at
        if not says:
            return False
        if since and place not in self.covered and lemma in _JOINTS:
            return ends_at(
                *(tokens, self.items, self.inside, says, self.opened_late),
                *(place, self.clause, self.cues, cue_at),
            )
        if lemma == "," and not since and is_other(tokens, cue_at, place, says):
            return True  # "no retropulsion, mild spondylosis"
        if lemma in _PLAINLY:
            return bool(since) and says.startswith("hedged")  # "and definite effusion"
        behind = tokens.forms[place + 1 : place + 2]
        if lemma == "given" and since:
            return behind == ["the"] and says.startswith("hedged")  # "given the cavity"
        if lemma == ":":
            instead = bool(since) and behind in _INSTEAD  # "no mass - only a scar"
            return instead or _ends_at_colon(tokens, says, cue_at, place, since)
        if lemma == "," and says == "past":
            # "Given the history of fever, the opacity is pneumonia", "after diuresis, ..."
            fronted = not since and tokens.forms[cue_at[0]] in _PROCEDURAL
            return behind in (["the"], ["without"]) or fronted  # "than before, without"
        if lemma == "the":
            # "After thoracentesis the effusion is smaller", "without signs of infection the nodule"
            opens = self._denies and cue_at[0] == 0 and tokens.forms[0] in ("without", "in")
            begun = says == "past" or (opens and not COPULAS.isdisjoint(tokens.forms[place:]))
            return begun and _is_behind_procedure(tokens, cue_at[1], place)
        # "Not detectably since, consistent with pneumonia"
        return lemma == "," and self._denies and tokens.forms[cue_at[0]] in _VERBAL


def _ends_at_colon(
    tokens: Words, says: str, cue_at: tuple[int, int], place: int, seen: int
) -> bool:
    """Returns whether a colon or dash ends what a cue says of something unnamed: "s/p
    thoracentesis: effusion decreased", "no follow-up - granuloma"."""
    if says == "past":
        return place > cue_at[1]
    denies = says.startswith("denied") and not seen and place > cue_at[1]
    return denies and "following" not in tokens.forms[cue_at[0] : place]


def _is_behind_procedure(tokens: Words, begin: int, place: int) -> bool:
    """Returns whether a "the" follows the name of a procedure without being part of it."""
    done = tokens.forms[begin:place]
    return bool(done) and done[-1] not in _LEADS_ON
