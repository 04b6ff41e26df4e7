"""What the cues of a sentence say of its items: there or not, and how sure that is.

A sentence is cut into clauses where a statement of its own begins. In a clause a cue holds for what
follows, from item to item, until another cue or an end of its reach; a cue that stands behind its
item holds for the list before it.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

from cxrjax.radiology_text.assertions import Certainty, Status
from cxrjax.radiology_text.english import Match, Word
from cxrjax.radiology_text.items import NamedItem
from cxrjax.radiology_text.lexicon import Cue, word_set

_VERBS = word_set("verbs")
_BARRIERS = frozenset((",", "(", ")", ":", "and", "with", "is", "are"))
# With one of these a list of denials has ended: "no effusion and mild cardiomegaly".
_GRADES = word_set("grades")
# A cue of one of these words says something of the item right after it alone.
_ADJECTIVES = word_set("one_finding")
_ADJECTIVE_REACH = 3
_LASTING = frozenset(
    (
        "granulomatous disease",
        "granuloma",
        "fracture",
        "postsurgical change",
        "mastectomy",
        "scarring",
        "support device",
        "surgical clips",
        "sternotomy wires",
        "surgical material",
        "bone abnormality",
        "tuberculosis",
        "pleural thickening",
        "prosthetic valve",
        "stent",
    )
)
# What may stand between a list and the cue behind it.
_SUBJECT_TAIL = 14


@dataclasses.dataclass
class Judgement:
    """What is said of an item; `reason` is the kind of cue, "" for none."""

    status: Status = "present"
    certainty: Certainty = "certain"
    not_now: Literal["", "past", "to be ruled out"] = ""
    reason: str = ""
    cue: tuple[int, int] | None = None


def judge(
    tokens: Sequence[Word], items: Sequence[NamedItem], cues: Sequence[Match[Cue]]
) -> list[Judgement]:
    """A judgement for each item, in their order."""
    judged = [Judgement("absent" if item.is_denied else "present") for item in items]
    clauses = split_clauses(tokens, items, cues)
    for begin, end in clauses:
        inside = [n for n, item in enumerate(items) if begin <= item.first < end]
        own = [cue for cue in cues if begin <= cue.first < end]
        if inside:
            _judge_clause(tokens, items, judged, inside, own, (begin, end))
            continue
        before = [n for n, item in enumerate(items) if item.last <= begin]
        said = [cue for cue in own if cue.payload.before]
        if before and said:  # "infiltrate is less likely but not excluded"
            judged[before[-1]] = Judgement()
            _say(judged[before[-1]], said[0].payload.before, (said[0].first, said[0].last))
    return judged


def split_clauses(
    tokens: Sequence[Word], items: Sequence[NamedItem], cues: Sequence[Match[Cue]]
) -> list[tuple[int, int]]:
    """A sentence's clauses, as ranges of words."""
    verbs = [
        place
        for place, token in enumerate(tokens)
        if token.lemma in _VERBS and not (place and tokens[place - 1].lemma == "to")
    ]
    starts = {cue.first for cue in cues}
    contrasts = [cue.first for cue in cues if cue.payload.after == "contrast"]
    inside = {place for item in items for place in range(min(item.own), max(item.own) + 1)}
    marks = [
        place
        for place, token in enumerate(tokens)
        if token.lemma in (",", "and", "with", "(") and place not in inside
    ]
    edges = sorted({*contrasts, *marks, len(tokens)})
    denials = [cue.first for cue in cues if cue.payload.after.startswith("denied")]
    cuts = [0]
    commas = 0
    for mark in marks:
        passed = [place for place in contrasts if cuts[-1] < place <= mark]
        if passed:
            cuts.append(passed[-1])
            commas = 0
        right = edges[bisect.bisect_right(edges, mark)] if mark < edges[-1] else len(tokens)
        first = mark + 1
        is_comma = tokens[mark].lemma == ","
        if is_comma and first < len(tokens) and tokens[first].lemma in ("and", "or", "nor"):
            if tokens[first].lemma != "and":
                commas += 1
                continue
            right = edges[min(bisect.bisect_right(edges, first), len(edges) - 1)]
        has_item = any(mark < item.first < right for item in items)
        if any(mark < verb < right for verb in verbs) and has_item:
            left_verb = any(cuts[-1] <= verb < mark for verb in verbs)
            left_denies = any(cuts[-1] <= place < mark for place in denials)
            opens = first in starts and tokens[first].lemma == "there"
            if left_verb or opens or (is_comma and not commas and left_denies):
                cuts.append(mark)
                commas = 0
                continue
        commas += is_comma
    cuts += contrasts
    borders = sorted({*cuts, len(tokens)})
    return list(itertools.pairwise(borders))


def _judge_clause(
    tokens: Sequence[Word],
    items: Sequence[NamedItem],
    judged: list[Judgement],
    inside: Sequence[int],
    cues: Sequence[Match[Cue]],
    clause: tuple[int, int],
) -> None:
    firsts = [items[n].first for n in inside]
    forward: list[Match[Cue]] = []
    backward: list[Match[Cue]] = []
    for cue in cues:
        if _looks_back(tokens, cue, firsts, items, inside, clause):
            backward.append(cue)
        else:
            forward.append(cue)
    _forward(tokens, items, judged, inside, forward, clause)
    for cue in backward:
        _backward(tokens, items, judged, inside, cue, cues, clause)
    _alternatives(tokens, items, judged, inside)


def _looks_back(
    tokens: Sequence[Word],
    cue: Match[Cue],
    firsts: Sequence[int],
    items: Sequence[NamedItem],
    inside: Sequence[int],
    clause: tuple[int, int],
) -> bool:
    """Whether a cue speaks of what stands before it."""
    left = [items[n] for n in inside if items[n].last <= cue.first]
    if not left:
        return False
    if _is_value(tokens, cue) and _closes(tokens, cue.last, clause[1]):
        return True  # "effusion: no, cardiomegaly: yes"
    if not cue.payload.before:
        return cue.payload.after in ("hedged likely", "hedged possible") and _ends_with(
            tokens, cue.last, clause[1]
        )
    if cue.last < clause[1] and tokens[cue.last].lemma in ("than", "over"):
        return True
    after = next((place for place in firsts if place >= cue.last), None)
    if after is not None:
        gap = {token.lemma for token in tokens[cue.last : after]}
        # Something follows at once: "opacity is likely atelectasis". A colon's value stays.
        if not gap & _BARRIERS and not _is_value(tokens, cue):
            return False
    return True


def _ends_with(tokens: Sequence[Word], place: int, end: int) -> bool:
    """Whether "present" or the like, or nothing, is all that follows: "is probably present"."""
    rest = {token.lemma for token in tokens[place:end] if token.lemma not in (",", ")")}
    return rest <= {"present", "there", "seen", "exist", "visible", "evident"}


def _closes(tokens: Sequence[Word], place: int, end: int) -> bool:
    return place >= end or tokens[place].lemma in (",", ")", "and")


def _is_value(tokens: Sequence[Word], cue: Match[Cue]) -> bool:
    return cue.first > 0 and tokens[cue.first - 1].lemma == ":"


def _forward(
    tokens: Sequence[Word],
    items: Sequence[NamedItem],
    judged: list[Judgement],
    inside: Sequence[int],
    cues: Sequence[Match[Cue]],
    clause: tuple[int, int],
) -> None:
    """Lets each cue hold for the items after it, to the end of its reach."""
    by_place = {cue.first: cue for cue in cues}
    item_at = {items[n].first: n for n in inside}
    covered = {place for n in inside for place in items[n].own}
    says, cue_at, opened_late, adjective = "", (0, 0), False, False
    flipped = False
    seen_items = seen_since = 0
    place = clause[0]
    while place < clause[1]:
        lemma = tokens[place].lemma
        cue = by_place.get(place)
        if cue is not None:
            said = cue.payload.after or ("" if seen_items else cue.payload.before)
            if said == "past" and any(_lasts(items[n]) for n in _next(items, inside, cue.last)):
                said = "neutral"  # a scar of former times is one of today
            if said == "affirms":
                if not (says and not seen_since):
                    says = ""
            elif said == "except":
                # Before any denial: the exception to what is denied later.
                says, flipped = (
                    ("denied certain", True)
                    if _affirmed(items, judged, inside, seen_items, says)
                    else ("", True)
                )
                seen_since = 0
            elif said == "neutral":
                pass
            elif said == "contrast":
                says = ""
            elif said and (seen_since or not _keeps(says, said)):
                opened_late = seen_items > 0
                says, cue_at, seen_since = said, (cue.first, cue.last), 0
                alone = cue.last - cue.first == 1 and lemma in _ADJECTIVES
                adjective = said == "past" and alone
            place = cue.last
            bare = cue.last - cue.first == 1 and says.startswith("denied")
            if bare and place < clause[1] and tokens[place].lemma in (",", ":"):
                says = ""  # "No, the heart is enlarged"
            continue
        if (
            lemma == "than"
            and says.startswith("denied")
            and "other" in _lemmas(tokens, cue_at[0], place)
        ):
            says, seen_since = "", 0  # "no other lesion than cardiomegaly"
        elif lemma == "than" and place and tokens[place - 1].lemma == "likely":
            says, seen_since = "hedged likely", 0  # "effusion is less likely than atelectasis"
        elif lemma in ("over", "than") and _prefers(tokens, clause[0], place):
            says, seen_since = "hedged unlikely", 0  # "favors atelectasis over pneumonia"
        if place in item_at:
            n = item_at[place]
            if adjective and place - cue_at[1] > _ADJECTIVE_REACH:
                says = ""
            _say(judged[n], says, cue_at)
            seen_items += 1
            seen_since += 1
            if adjective:
                says, adjective = "", False
            place = max(items[n].last, place + 1)
            continue
        if (
            says
            and seen_since
            and place not in covered
            and lemma in (",", "and", "with", "(", ")", "or", "nor", "/")
        ):
            if _ends(tokens, items, inside, says, opened_late, place, clause, by_place):
                says = ""
        elif flipped and lemma == "," and seen_since:
            flipped = False
        place += 1


def _prefers(tokens: Sequence[Word], begin: int, place: int) -> bool:
    """Whether one is preferred to what follows: "favored over", "more likely ... than"."""
    before = _lemmas(tokens, begin, place)
    if tokens[place].lemma == "over":
        return bool({"favor", "favored", "likely"} & set(before[-4:]))
    return ("more", "likely") in itertools.pairwise(before)


def _lemmas(tokens: Sequence[Word], first: int, last: int) -> list[str]:
    return [token.lemma for token in tokens[first:last]]


def _next(items: Sequence[NamedItem], inside: Sequence[int], place: int) -> list[int]:
    """The first item behind a place, if there is one."""
    return [n for n in inside if items[n].first >= place][:1]


def _lasts(item: NamedItem) -> bool:
    """Whether a finding of former times is one of today: scars, surgery, healed bones."""
    return bool(_LASTING & set(item.names))


def _affirmed(
    items: Sequence[NamedItem],
    judged: Sequence[Judgement],
    inside: Sequence[int],
    seen: int,
    says: str,
) -> bool:
    """Whether the clause has affirmed something so far and denies nothing."""
    return (
        bool(seen)
        and not says.startswith("denied")
        and all(judged[n].status != "absent" and not items[n].is_normal for n in inside[:seen])
    )


def _keeps(says: str, said: str) -> bool:
    """Whether a cue holds against one right behind it: "no suspected effusion", "to exclude the
    possibility of"."""
    if says.startswith("denied") or says in ("hedged unlikely", "hedged possible"):
        return said in ("hedged likely", "hedged possible")
    return says == "query" and said.startswith("hedged")


def _ends(
    tokens: Sequence[Word],
    items: Sequence[NamedItem],
    inside: Sequence[int],
    says: str,
    opened_late: bool,
    place: int,
    clause: tuple[int, int],
    cues: dict[int, Match[Cue]],
) -> bool:
    """Whether the reach of a cue ends at a comma, an "and", a "with"."""
    mark = tokens[place].lemma
    if mark in ("or", "nor", "/"):
        return False
    if _or_follows(tokens, place, clause[1], cues):
        return False
    next_item = next((items[n] for n in inside if min(items[n].own) > place), None)
    words = [
        token.lemma for token in tokens[place + 1 : next_item.first if next_item else clause[1]]
    ]
    graded = any(word in _GRADES for word in words)
    organ = next_item is not None and next_item.statement is not None
    if says.startswith("denied"):
        if mark in ("(", ")"):
            return True
        if mark == "with":
            return graded
        if organ and says == "denied certain" and mark != "or":
            return True
        return graded or (mark == "," and opened_late)
    if says in ("past", "query"):
        return (
            says == "past" and mark in (",", "with") and any(w in ("now", "there") for w in words)
        )
    return mark in (",", "with", "(", ")")


def _or_follows(tokens: Sequence[Word], place: int, end: int, cues: dict[int, Match[Cue]]) -> bool:
    """Whether the list that goes on here ends with an "or", before any other cue."""
    for later in range(place + 1, end):
        if later in cues and cues[later].payload.after not in ("", "neutral"):
            return False
        word = tokens[later].lemma
        if word in ("or", "nor", "versus", "vs"):
            return True
        if word in ("and", "with", "(", ")") and tokens[place].lemma != ",":
            return False
        if word in _VERBS:
            return False
    return False


def _say(judgement: Judgement, says: str, cue: tuple[int, int]) -> None:
    if not says:
        return
    kind, _, level = says.partition(" ")
    judgement.reason, judgement.cue = kind, cue
    if kind == "denied":
        judgement.status = "absent"
        judgement.certainty = "likely" if level == "likely" else "certain"
    elif kind == "hedged":
        judgement.status = "present" if level == "likely" else "uncertain"
        judgement.certainty = level  # type: ignore[assignment]
    elif kind in ("past", "query"):
        judgement.status, judgement.certainty = "uncertain", "possible"
        judgement.not_now = "past" if kind == "past" else "to be ruled out"


def _backward(
    tokens: Sequence[Word],
    items: Sequence[NamedItem],
    judged: list[Judgement],
    inside: Sequence[int],
    cue: Match[Cue],
    cues: Sequence[Match[Cue]],
    clause: tuple[int, int],
) -> None:
    """Lets a cue hold for the list that stands before it."""
    left = [n for n in inside if items[n].last <= cue.first]
    nearest = items[left[-1]]
    between = tokens[nearest.last : cue.first]
    if len(between) > _SUBJECT_TAIL:
        return
    value = _is_value(tokens, cue)
    if not value and any(
        other.first >= nearest.last
        and other.last <= cue.first
        and other.payload.after == "contrast"
        for other in cues
    ):
        return
    reached = [left[-1]]
    joined = False
    for n in reversed(left[:-1]):
        first, last = items[n], items[reached[-1]]
        gap = [token.lemma for token in tokens[first.last : min(last.own)]]
        if any(
            first.last <= other.first < min(last.own)
            and other is not cue
            and (other.payload.after not in ("", "neutral"))
            for other in cues
        ):
            break
        if _VERBS & set(gap) or ":" in gap:
            break
        joined = joined or bool({"and", "or", "nor", "/"} & set(gap))
        if not (joined or value):
            break
        reached.append(n)
    said = cue.payload.before or cue.payload.after
    for n in reached:
        if items[n].is_normal and not said.startswith("denied"):
            continue
        before = judged[n]
        if before.not_now == "to be ruled out":
            continue  # "if pneumonia is suspected"
        if before.reason == "denied" and said.startswith("denied"):
            continue
        judged[n] = Judgement()
        _say(judged[n], cue.payload.before or cue.payload.after, (cue.first, cue.last))


def _alternatives(
    tokens: Sequence[Word],
    items: Sequence[NamedItem],
    judged: list[Judgement],
    inside: Sequence[int],
) -> None:
    """Of two that are affirmed with an "or" between, neither is sure."""
    for one, other in itertools.pairwise(inside):
        gap = {token.lemma for token in tokens[items[one].last : min(items[other].own)]}
        versus = bool({"versus", "vs"} & gap)
        plain = not judged[one].reason and (versus or not judged[other].reason)
        if plain and (versus or "or" in gap) and "and" not in gap:
            for n in (one, other):
                if judged[n].status == "present":
                    judged[n].status, judged[n].certainty = "uncertain", "possible"
