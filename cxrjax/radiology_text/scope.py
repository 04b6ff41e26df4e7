"""Effect of a sentence's cues on its items: presence and certainty.

A sentence is divided into clauses where a new statement starts. In a clause a cue applies to the
items after it until another cue or an end of its reach; a cue behind its item applies to the list
before it.
"""

import dataclasses
import itertools
from collections.abc import Sequence

from cxrjax.radiology_text.clauses import COPULAS, VERBS, closes
from cxrjax.radiology_text.english import Match, Words
from cxrjax.radiology_text.forward import PARTS, Forward, Judgement, say
from cxrjax.radiology_text.items import NamedItem
from cxrjax.radiology_text.lexicon import Cue, word_set
from cxrjax.radiology_text.reach import BARRIERS, DEFINITE, is_lasting, is_unaltered

_GROUNDS = DEFINITE | word_set("grounds")
_CAUSES = frozenset(("due", "because", "owing", "secondary", "given", "since"))
_EARLIER = frozenset(("prior", "previous", "last", "yesterday", "earlier", "before", "the", "on"))
_SURGERY = frozenset(("postsurgical change", "mastectomy"))
_CHANCES = frozenset(("suspicion", "likelihood", "probability", "chance", "evidence", "index"))
_DENYING = word_set("denying")
_ONE_LABEL = {frozenset(pair.split(" / ")) for pair in word_set("one_label")}
_PROPERTIES = word_set("properties")
_AT = (["at"], ["in"], ["on"])
_VERSUS = frozenset(("versus", "vs"))
_CHOOSING = _VERSUS | {"or", "/", ">"}
_PARENTHESES = (("rather", "than"), ("instead", "of"))
# What may stand between a list and the cue behind it.
_SUBJECT_TAIL = 14


def judge(
    tokens: Words,
    items: Sequence[NamedItem],
    cues: Sequence[Match[Cue]],
    clauses: Sequence[tuple[int, int]],
    told: frozenset[int],
) -> list[Judgement]:
    """A judgement for each item, in their order; `clauses` as `split_clauses` gives them.

    Args:
        told: words that are read otherwise, of change.
    """
    judged = [Judgement("absent" if item.is_denied else "present") for item in items]
    for begin, end in clauses:
        inside = [n for n, item in enumerate(items) if begin <= item.first < end]
        own = [cue for cue in cues if begin <= cue.first < end]
        if inside:
            _judge_clause(tokens, items, judged, inside, own, (begin, end))
            continue
        before = [n for n, item in enumerate(items) if item.last <= begin]
        is_part = bool(PARTS & {*tokens.forms[begin:end]})
        said = [cue for cue in own if cue.payload.before and not is_part]
        if before and said:  # "infiltrate is less likely but not excluded"
            judged[before[-1]] = Judgement()
            say(judged[before[-1]], said[0].payload.before, (said[0].first, said[0].last))
    _likewise(tokens, items, judged)
    for n, (one, other) in enumerate(itertools.pairwise(items), start=1):
        gap = tokens.forms[one.last : min(other.own)] if _SURGERY & set(one.names) else []
        reason = gap == ["for"] or gap[-2:] in (["due", "to"], ["secondary", "to"])
        if reason and not {",", "and", "with"} & {*gap}:
            judged[n] = Judgement("uncertain", "possible", "past")  # "lobectomy for cancer"
    _blanked(tokens, items, judged)
    for n, item in enumerate(items):
        if judged[n].status == "absent" and item.names and item.statement is None:
            clause = next(c for c in clauses if c[0] <= item.first < c[1])
            if _is_twice_denied(tokens, items, n, judged[n].cue, clause, told):
                judged[n] = Judgement("uncertain", "possible", reason="hedged")
    return judged


def _is_twice_denied(
    tokens: Words,
    items: Sequence[NamedItem],
    n: int,
    cue: tuple[int, int] | None,
    clause: tuple[int, int],
    told: frozenset[int],
) -> bool:
    """Returns whether a denied finding is denied again: "hardly any part is not affected by"."""
    item = items[n]
    if cue is None or not clause[0] <= cue[0] < clause[1]:
        return False
    places = [p for p in range(*clause) if tokens.forms[p] in _DENYING]
    own = told.union(range(*cue), *(one.own for one in items)) if places else told
    for place in places:
        if place in own:
            continue
        first, last = min(place, min(item.own)), max(place, item.last)
        apart = {",", "and", ":", "(", "or", "nor", "/"} & {*tokens.forms[first:last]}
        others = [one for one in items if one is not item and clause[0] <= one.first < clause[1]]
        if not apart and not any(one.first >= first for one in others if one.names):
            return True
    return False


def _judge_clause(
    tokens: Words,
    items: Sequence[NamedItem],
    judged: list[Judgement],
    inside: Sequence[int],
    cues: Sequence[Match[Cue]],
    clause: tuple[int, int],
) -> None:
    firsts = [items[n].first for n in inside if not items[n].is_setting]
    forward: list[Match[Cue]] = []
    backward: list[Match[Cue]] = []
    for cue in cues:
        is_choice = bool(cue.payload.before and cue.payload.after.endswith("unlikely"))
        is_choice &= tokens.forms[cue.last - 1] in ("over", "than", "to")  # "A favored over B"
        looks_back = _looks_back(tokens, cue, firsts, items, inside, clause)
        if cue.payload.before == "silent" and tokens.form(cue.last) in _CAUSES:
            backward.append(cue)  # "effusion cannot be assessed due to rotation"
            continue
        if looks_back or is_choice:
            backward.append(cue)
        if is_choice or not looks_back:
            forward.append(cue)
    if any(is_unaltered(tokens, cue, clause[1]) for cue in forward):
        forward = [cue for cue in forward if tokens.forms[cue.first] not in ("neither", "nor")]
        # "Neither the mass nor the nodes have altered"
    ends = {cue.first for cue in backward}
    Forward(tokens, items, judged, inside, forward, clause, ends).walk()
    for cue in backward:
        _backward(tokens, items, judged, inside, cue, cues, clause)
    alike = [c.last for c in cues if c.payload.after == "neutral" and tokens.forms[c.first] == "no"]
    if not any(place <= firsts[0] for place in alike if firsts):  # "no change in A or B"
        _alternatives(tokens, items, judged, inside)
    _beside_others(tokens, items, judged, inside)


def _looks_back(
    tokens: Words,
    cue: Match[Cue],
    firsts: Sequence[int],
    items: Sequence[NamedItem],
    inside: Sequence[int],
    clause: tuple[int, int],
) -> bool:
    """Returns whether a cue applies to the words before it."""
    left = [items[n] for n in inside if items[n].last <= cue.first]
    if not left:
        return False
    if _is_value(tokens, cue) and closes(tokens, cue.last, clause[1]):
        return True  # "effusion: no, cardiomegaly: yes"
    if cue.payload.before.startswith("value") and tokens.forms[cue.last : cue.last + 1] in _AT:
        return _is_value(tokens, cue)  # "effusion: possibly at the left base"
    alone = cue.last - cue.first == 1 and tokens.forms[cue.first] == "no"
    if alone and left[-1].last == cue.first and closes(tokens, cue.last, clause[1]):
        return True  # "cardiomegaly yes, effusion no"
    if cue.payload.before.startswith("value") or tokens.forms[cue.first - 1] == "otherwise":
        return False
    ended = cue.last >= clause[1] and tokens.forms[cue.first - 1] in ("is", "are", "was", "were")
    if ended and tokens.forms[cue.last - 1] == "not":
        return True  # "effusion is seen and pneumothorax is not"
    words = {*tokens.forms[left[-1].last : cue.first]}
    front = tokens.forms[max(0, min(left[-1].own) - 4) : min(left[-1].own)]
    words |= {part for part, of in itertools.pairwise(front) if of == "of"}  # "the tip of the"
    if cue.payload.before.startswith("denied") and words & PARTS:
        return False  # "tube with its tip not seen"
    alone = cue.last - cue.first == 1 and tokens.forms[cue.first - 1] == ","
    parted = cue.payload.after or tokens.form(cue.last) in _PROPERTIES
    if alone and parted and not closes(tokens, cue.last, clause[1]):
        return False  # "emphysema, nil superimposed", "nodules, none calcified"
    if not cue.payload.before:
        hedges = cue.payload.after in ("hedged likely", "hedged possible")
        return hedges and _ends_with(tokens, cue.last, clause[1])
    if cue.last < clause[1] and tokens.forms[cue.last] in ("than", "over"):
        return True
    if not cue.payload.after and tokens.forms[cue.last - 1] in ("for", "of", "to"):
        return True  # "pneumonia is an explanation for opacity"
    if tokens.forms[cue.last - 1] in ("low", "weak", "slim", "remote"):
        return bool(_CHANCES & set(front))  # "suspicion of pneumothorax is low"
    after = next((place for place in firsts if place >= cue.last), None)
    if after is not None:
        gap = {*tokens.forms[cue.last : after]}
        if cue.payload.before and tokens.forms[cue.last] in _GROUNDS:
            return True  # "is less likely given the normal heart"
        # Something follows at once: "opacity is likely atelectasis". A colon's value stays.
        if not gap & BARRIERS and not _is_value(tokens, cue):
            return False
    return True


def _ends_with(tokens: Words, place: int, end: int) -> bool:
    """Returns whether only "present" or the like, or nothing, follows: "is probably present"."""
    words = tokens.forms[place:end]
    rest = set(words[: words.index(",")] if "," in words else words) - {")"}
    return rest <= {"present", "there", "seen", "exist", "visible", "evident"}


def _is_value(tokens: Words, cue: Match[Cue]) -> bool:
    return cue.first > 0 and tokens.forms[cue.first - 1] == ":"


def _backward(
    tokens: Words,
    items: Sequence[NamedItem],
    judged: list[Judgement],
    inside: Sequence[int],
    cue: Match[Cue],
    cues: Sequence[Match[Cue]],
    clause: tuple[int, int],
) -> None:
    """Lets a cue hold for the list that stands before it."""
    left = [n for n in inside if items[n].last <= cue.first]
    if not left:
        return
    while len(left) > 1 and _is_parenthesis(tokens, judged[left[-1]]):
        left.pop()  # "aspiration, rather than pneumonia, is favored"
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
        gap = tokens.forms[first.last : min(last.own)]
        if any(
            first.last <= other.first < min(last.own)
            and other is not cue
            and (other.payload.after not in ("", "neutral"))
            for other in cues
        ):
            break
        if VERBS & set(gap) or ":" in gap:
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
        if said == "past" and is_lasting(items[n]):
            continue
        if before.reason == "denied" and said.startswith("affirmed") and n != reached[0]:
            continue
        if said == "hedged likely" and _is_of_denied(tokens, items[n], before, cue):
            judged[n].certainty = "likely"  # "no dissection suggested"
            continue
        judged[n] = Judgement()
        say(judged[n], cue.payload.before or cue.payload.after, (cue.first, cue.last))


def _is_of_denied(tokens: Words, item: NamedItem, before: Judgement, cue: Match[Cue]) -> bool:
    """Returns whether a denial leads to an item and the participle right behind it."""
    first, last = before.cue or (0, len(tokens))
    joints = {",", ":", "and", "but"} & {*tokens.forms[first : cue.first]}
    return before.reason == "denied" and last <= item.first and not joints


def _is_parenthesis(tokens: Words, judgement: Judgement) -> bool:
    first, last = judgement.cue or (0, 0)
    return tuple(tokens.forms[first:last]) in _PARENTHESES


def _blanked(tokens: Words, items: Sequence[NamedItem], judged: list[Judgement]) -> None:
    """Takes OpenI's blank before an explanation for the "likely" that it mostly hides: "streaky
    opacities, XXXX atelectasis"."""
    for one, other in itertools.pairwise(range(len(items))) if "xxxx" in tokens.forms else ():
        gap = tokens.forms[items[one].last : min(items[other].own)]
        plain = not (judged[one].reason or judged[other].reason or items[other].statement)
        if plain and "xxxx" in gap and not {"and", "with", "or", "(", *VERBS} & set(gap):
            judged[other] = Judgement("present", "likely", reason="hedged")


def _likewise(tokens: Words, items: Sequence[NamedItem], judged: list[Judgement]) -> None:
    """Copies a status to the list after it: "edema is absent, as are effusion and mass"."""
    copies = False
    for one, other in itertools.pairwise(range(len(items))) if "as" in tokens.forms else ():
        gap = tokens.forms[items[one].last : min(items[other].own)]
        opens = any(a == "as" and b in COPULAS for a, b in itertools.pairwise(gap))
        opens = opens and not {"no", "not", "without"} & set(gap[gap.index("as") :])
        copies = opens or (copies and {"and", "or", ","} >= set(gap) - {"the", "any", "a"})
        if copies:
            judged[other] = dataclasses.replace(judged[one])


def _is_one_label(one: NamedItem, other: NamedItem) -> bool:
    """Returns whether two items with a slash are one label: "nodule/mass", "COPD/emphysema"."""
    return frozenset((*one.names, *other.names)) in _ONE_LABEL


def _beside_others(
    tokens: Words, items: Sequence[NamedItem], judged: list[Judgement], inside: Sequence[int]
) -> None:
    """Marks items as uncertain if the alternative is not a finding: "nodule versus vessel"."""
    for n in inside if not _VERSUS.isdisjoint(tokens.forms) else ():
        behind = tokens.forms[items[n].last : items[n].last + 2]
        named = any(items[n].last < item.first <= items[n].last + 3 for item in items)
        weighed = len(behind) == 2 and behind[0] in _VERSUS and behind[1].isalpha()
        if weighed and not named and behind[1] not in _EARLIER and not judged[n].reason:
            judged[n] = Judgement("uncertain", "possible", reason="hedged")


def _alternatives(
    tokens: Words, items: Sequence[NamedItem], judged: list[Judgement], inside: Sequence[int]
) -> None:
    """Marks two affirmed items with an "or" between them as uncertain."""
    if _CHOOSING.isdisjoint(tokens.forms):
        return
    for one, other in itertools.pairwise(inside):
        gap = {*tokens.forms[items[one].last : min(items[other].own)]}
        versus = bool(_VERSUS & gap) or gap == {">"}
        open_ = all(judged[n].reason in ("", "hedged") for n in (one, other)) or versus
        named = items[one].statement is None and items[other].statement is None
        stroke = gap == {"/"} and named and not _is_one_label(items[one], items[other])
        both = tokens.forms[items[other].last : items[other].last + 2] == ["or", "both"]
        either = versus or "or" in gap or stroke or both
        words = tokens.forms[items[one].last : min(items[other].own)]
        if versus and words[0] == "," and words[1:2] not in (["versus"], ["vs"]):
            one = other  # "airspace disease, ARDS versus edema"
        if open_ and either and ("and" not in gap or gap >= {"and", "or"}):
            cue = judged[one].cue
            listed = [n for n in inside if n < one and cue and judged[n].cue == cue]
            for n in (*listed, one, other):
                if judged[n].status == "present":
                    judged[n].status, judged[n].certainty = "uncertain", "possible"
                    judged[n].reason = "hedged"
