"""Limits of a cue's reach, and items within it that it does not apply to."""

import itertools
from collections.abc import Sequence

from cxrjax.radiology_text.clauses import VERBS
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.english import Match, Words
from cxrjax.radiology_text.items import NamedItem
from cxrjax.radiology_text.lexicon import Cue, word_set

# A list of what may be the cause goes on over commas.
_DIFFERENTIAL = word_set("differential")
BARRIERS = frozenset((",", "(", ")", ":", "and", "with", "is", "are"))

# With one of these a list of denials has ended: "no effusion and mild cardiomegaly".
_GRADES = word_set("grades")
DEFINITE = frozenset(("the", "this", "that", "its", "these", "known"))
_GIVEN_BY = word_set("given_by")
_EXIST = word_set("exist")
_TRACES = word_set("traces")
_TELLS = word_set("tells")
_WEIGHED = word_set("weighed")
_OF_THE_DENIED = ("to", "that", "which", "or", "and", "may", "would")
_CHANGED = word_set("changed")
_SEEN = word_set("seen")
ADJECTIVE_REACH = 3
_LASTING = word_set("lasting")
_KINDS = word_set("kinds_of_denied")
_PREDICATE_REACH = 8
_LIST_GAP = 3
_EQUATES = frozenset(("is", "are", "represent", "reflect"))


def is_unaltered(tokens: Words, cue: Match[Cue], end: int) -> bool:
    """Returns whether a "neither" denies only that the items of its list have changed."""
    if tokens.forms[cue.first] != "neither":
        return False
    words = tokens.forms[cue.last : end]
    return any(
        verb in ("has", "have") and change in _CHANGED for verb, change in itertools.pairwise(words)
    )


def is_of_lack(tokens: Words, denial: int, cue: Match[Cue]) -> bool:
    """Returns whether a cue is about the lack of something: "absence of lung markings indicates",
    "an opacity without air bronchograms suggests"."""
    if tokens.forms[cue.first] not in _TELLS or cue.first - denial < ADJECTIVE_REACH:
        return False
    if tokens.forms[denial] == "without":
        return tokens.forms[cue.first - 1] not in _OF_THE_DENIED
    return tokens.forms[denial] in ("absence", "lack", "absent", "lacking")


def is_of_given(tokens: Words, cue: tuple[int, int], item: NamedItem) -> bool:
    """Returns whether a "no" denies only a property or part of an item that is presupposed."""
    if tokens.forms[cue[0]] not in ("no", "not", "without") or item.statement is not None:
        return False
    gap = tokens.forms[cue[1] : min(item.own)]
    place = len(gap) - 1 - gap[::-1].index("the") if "the" in gap else 0
    leads = place > 1 and gap[place - 1] in ("of", "for", "to", "in", "within", "from", "with")
    return leads and not _TRACES & {*gap[:place]}


def is_supposed(tokens: Words, item: NamedItem) -> bool:
    """Returns whether a clause asks about, or denies, a property of an item that it presupposes."""
    before = tokens.forms[max(0, min(item.own) - 5) : min(item.own)]
    behind = tokens.forms[item.last : item.last + _PREDICATE_REACH]
    while behind and behind[0] not in _EQUATES and behind[0] not in (",", "and"):
        behind.pop(0)
    if item.statement is not None or "the" not in before or behind[:1] in ([], [","], ["and"]):
        return False
    place = len(before) - 1 - before[::-1].index("the")
    asks = place > 0 and before[place - 1] in ("whether", "if", "that")
    return asks and behind[1:] != [] and behind[1] not in _EXIST


def is_run_on(
    tokens: Words, begin: int, item: NamedItem, end: int, cues: dict[int, Match[Cue]]
) -> bool:
    """Returns whether an item with a degree follows another without punctuation: "no pneumothorax
    small effusion"."""
    gap = tokens.forms[begin + 1 : min(item.own)]
    if {",", "and", "or", "nor", "/", "with", "(", ")", ":", "versus", "vs"} & set(gap):
        return False
    told = item.statement is not None or any(word in _GRADES for word in gap)
    return told and not _or_follows(tokens, begin, end, cues)


def is_given(tokens: Words, begin: int, item: NamedItem) -> bool:
    """Returns whether an item is presupposed: "no cavity within the left upper lobe mass"."""
    for place in range(min(item.own) - 1, begin, -1):
        lemma = tokens.forms[place]
        if lemma in BARRIERS or lemma in ("or", "nor", "/"):
            return False
        if lemma in DEFINITE:
            return tokens.forms[place - 1] in _GIVEN_BY
    return False


def is_preferred(tokens: Words, begin: int, place: int) -> bool:
    """Returns whether an item is preferred to the next: "favored over", "more likely ... than"."""
    before = tokens.forms[begin:place]
    if tokens.forms[place] == "over":
        return bool({"favor", "favored", "likely"} & set(before[-4:]))
    return "more" in before[-9:] and bool(_WEIGHED & {*before[-9:]}) and "than" not in before


def is_other(tokens: Words, cue: tuple[int, int], place: int, says: str) -> bool:
    """Returns whether the denial of a thing that is not a finding ends at a comma: "no
    retropulsion, mild spondylosis"."""
    denied = tokens.forms[cue[1] : place]
    graded = tokens.forms[place + 1 : place + 2]
    describes = _GRADES | _KINDS
    if not says.startswith("denied") or not denied or denied[-1] in describes:
        return False
    return bool((_GRADES | {"new"}) & {*graded}) and not {"or", "nor"} & {*tokens.forms[place:]}


def next_item(items: Sequence[NamedItem], inside: Sequence[int], place: int) -> list[int]:
    """The first item behind a place, if there is one."""
    return [n for n in inside if items[n].first >= place][:1]


def is_lasting(item: NamedItem) -> bool:
    """Returns whether a past finding still holds today: scars, surgery, healed bones."""
    return bool(_LASTING & set(item.names))


def keeps_against(says: str, said: str) -> bool:
    """Returns whether a cue prevails over one directly behind it: "no suspected effusion", "to
    exclude the possibility of"."""
    if says.startswith("denied") or says in ("hedged unlikely", "hedged possible"):
        return said in ("hedged likely", "hedged possible")
    return says == "query" and said.startswith("hedged")


def ends_at(
    tokens: Words,
    items: Sequence[NamedItem],
    inside: Sequence[int],
    says: str,
    opened_late: bool,
    place: int,
    clause: tuple[int, int],
    cues: dict[int, Match[Cue]],
    cue_at: tuple[int, int],
) -> bool:
    """Returns whether the reach of a cue ends at a comma, an "and" or a "with"."""
    mark = tokens.forms[place]
    if mark in ("or", "nor", "/") or _or_follows(tokens, place, clause[1], cues):
        return False
    next_item = next((items[n] for n in inside if min(items[n].own) > place), None)
    words = tokens.forms[place + 1 : next_item.first if next_item else clause[1]]
    if tokens.forms[cue_at[1] - 1] in ("is", "are", ":") and says.startswith("denied"):
        return False  # "lacking are an edema, nodules and a mass"
    graded = any(word in _GRADES for word in words) or words[:1] in (["a"], ["an"])
    # A degree may be a finding's own: ", old granulomatous disease".
    graded |= next_item is not None and tokens.forms[next_item.first] in ("old", "healed")
    organ = next_item is not None and next_item.statement is not None
    if says.startswith("denied"):
        if mark in ("(", ")"):
            return True
        if mark == "with":
            return graded or tokens.forms[place - 1] == ","
        if organ and says == "denied certain" and mark != "or":
            return True
        ended = mark == "," and tokens.forms[place - 1] in _SEEN and "no" not in words
        # "Markings without consolidation, effusion, pneumothorax" goes on.
        expected = next_item is not None and next_item.is_expected and not words
        # "No effusion or pneumothorax, right rib fractures": the "or" has closed the list.
        closed = mark == "," and "or" in tokens.forms[cue_at[1] : place]
        if mark == "," and next_item and _states_itself(tokens, next_item.last, clause[1]):
            return True
        return graded or ended or (mark == "," and (opened_late or closed) and not expected)
    if _DIFFERENTIAL & {*tokens.forms[cue_at[0] : cue_at[1]]}:
        return False
    if says in ("past", "query"):
        if mark == "," and words[:1] == ["the"]:
            return True  # "if there is a history of cancer, the nodule ..."
        return (
            says == "past" and mark in (",", "with") and bool({"now", "there", "still"} & {*words})
        )
    if mark == "," and not (opened_late or graded or organ) and next_item is not None:
        # "Suspected pneumonia, atelectasis": one doubt over a list.
        return not _continues_list(tokens, next_item, words, clause[1])
    return mark in (",", "with", "(", ")")


def _continues_list(tokens: Words, item: NamedItem, words: Sequence[str], end: int) -> bool:
    """Returns whether an item behind a comma only continues the list before it."""
    named = load_definitions().findings
    if any(one in named and named[one].category != "abnormality" for one in item.names):
        return False  # "possible edema, pacemaker"
    told = _SEEN | _CHANGED
    own = {"no", "without", "with", "but", "again", "new", "less"} | told
    if len(words) > _LIST_GAP or own & {*words} or _states_itself(tokens, item.last, end):
        return False
    return not told & {*tokens.forms[item.last : item.last + 2]}


def _states_itself(tokens: Words, place: int, end: int) -> bool:
    """Returns whether a degree, or "present", ends a statement behind its finding: "no nodule,
    effusion small"."""
    graded = tokens.form(place) in _GRADES | {"large", "massive", "severe", "present"}
    return graded and (place + 1 >= end or tokens.form(place + 1) in (",", ";"))


def _or_follows(tokens: Words, place: int, end: int, cues: dict[int, Match[Cue]]) -> bool:
    """Returns whether the list that continues here ends with an "or", before any other cue."""
    for later in range(place + 1, end):
        if later in cues and cues[later].payload.after not in ("", "neutral"):
            return False
        word = tokens.forms[later]
        if word in ("or", "nor", "versus", "vs"):
            return True
        joins = word in ("and", "with", "(", ")") and tokens.forms[place] != ","
        if joins or word in VERBS:
            return False
    return False
