"""A sentence's clauses: where a statement of its own begins."""

import bisect
import itertools
from collections.abc import Sequence

from cxrjax.radiology_text.english import Match, Words
from cxrjax.radiology_text.items import NamedItem
from cxrjax.radiology_text.lexicon import Cue, word_set

VERBS = word_set("verbs")

# What a statement may begin behind, and what may stand last in one.
_MARKS = (",", "and", "with", "(")
_CLOSING = word_set("closing")
COPULAS = frozenset(("is", "are", "was", "were", "has", "have"))


def split_clauses(
    tokens: Words, items: Sequence[NamedItem], cues: Sequence[Match[Cue]]
) -> list[tuple[int, int]]:
    """A sentence's clauses, as ranges of words."""
    verbs = [
        place
        for place, form in enumerate(tokens.forms)
        if form in VERBS and not (place and tokens.forms[place - 1] == "to")
    ]
    starts = {cue.first for cue in cues}
    contrasts = [cue.first for cue in cues if cue.payload.after == "contrast"]
    marks = [place for place, form in enumerate(tokens.forms) if form in _MARKS]
    if marks:
        inside = {place for item in items for place in range(min(item.own), max(item.own) + 1)}
        marks = [place for place in marks if place not in inside]
    edges = sorted({*contrasts, *marks, len(tokens)})
    denials = [cue.first for cue in cues if cue.payload.after.startswith("denied")]
    cuts = [0]
    marks = sorted({*marks, *_unmarked(tokens, items, denials)})
    fronted = _fronted_exception(tokens, cues, verbs, denials)
    if not (marks or contrasts or fronted):
        return [(0, len(tokens))]
    if fronted:
        cuts.append(fronted)
    commas = 0
    for mark in marks:
        passed = [place for place in contrasts if cuts[-1] < place <= mark]
        if passed:
            cuts.append(passed[-1])
            commas = 0
        right = edges[bisect.bisect_right(edges, mark)] if mark < edges[-1] else len(tokens)
        first = mark + 1
        is_comma = tokens.forms[mark] == ","
        if tokens.forms[mark] not in _MARKS:
            cuts.append(mark)
            commas = 0
            continue
        if is_comma and first < len(tokens) and tokens.forms[first] in ("and", "or", "nor"):
            if tokens.forms[first] != "and":
                commas += 1
                continue
            right = edges[min(bisect.bisect_right(edges, first), len(edges) - 1)]
        has_item = any(mark < item.first < right for item in items)
        verb_at = next((verb for verb in verbs if mark < verb < right), right)
        lists = {"or", "nor"} & {*tokens.forms[mark:verb_at]}
        if any(mark < verb < right for verb in verbs) and has_item:
            left_verb = any(cuts[-1] <= verb < mark for verb in verbs)
            left_denies = any(cuts[-1] <= place < mark for place in denials) and any(
                cuts[-1] <= item.first < mark for item in items
            )
            opens = first in starts and tokens.forms[first] == "there"
            # "No tube, line or drain is seen" is one statement.
            if left_verb or opens or (is_comma and not commas and left_denies and not lists):
                cuts.append(mark)
                commas = 0
                continue
        commas += is_comma
    cuts += contrasts
    borders = sorted({*cuts, len(tokens)})
    return list(itertools.pairwise(borders))


def _unmarked(tokens: Words, items: Sequence[NamedItem], denials: Sequence[int]) -> list[int]:
    """Finds starts of statements without punctuation, as in run-on dictation: "heart is normal
    there is no effusion"."""
    ends = {place for item in items for place in item.own}
    opens = [
        place
        for place in range(1, len(tokens) - 1)
        if tokens.forms[place] == "there" and tokens.forms[place + 1] in COPULAS
    ]
    opens += [
        place
        for place in denials
        if tokens.forms[place] == "no" and not closes(tokens, place + 1, len(tokens))
    ]
    opens += [min(item.own) for item in items if item.statement is not None]
    found = []
    for place in opens:
        while place and tokens.forms[place - 1] in ("the", "a", "an"):
            place -= 1
        before = place - 1
        told = place and any(item.last <= place and item.names for item in items)
        if told and (before in ends or tokens.forms[before] in _CLOSING):
            found.append(place)
    return found


def _fronted_exception(
    tokens: Words, cues: Sequence[Match[Cue]], verbs: Sequence[int], denials: Sequence[int]
) -> int:
    """Returns the end of an opening "apart from A and B,"; 0 if the sentence has none."""
    if not cues or cues[0].first > 0 or cues[0].payload.after != "except":
        return 0
    states = min((place for place in (*verbs, *denials) if place >= cues[0].last), default=0)
    return max((p for p in range(states) if tokens.forms[p] == ","), default=0)


def closes(tokens: Words, place: int, end: int) -> bool:
    return place >= end or tokens.forms[place] in (",", ")", "and")
