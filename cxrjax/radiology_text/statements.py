"""Reads one sentence of an English report, step by step.

words -> items -> cues -> clauses, judgements -> places, changes, degrees -> assertions
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cxrjax.radiology_text import lexicon
from cxrjax.radiology_text.assertions import Assertion, Certainty, Side, Status, Time, Unsaid
from cxrjax.radiology_text.changes import blanked, find_times, former_degree, times_by_side
from cxrjax.radiology_text.clauses import split_clauses
from cxrjax.radiology_text.details import find_count, find_distances, find_modifiers, find_sizes
from cxrjax.radiology_text.english import Match, Words
from cxrjax.radiology_text.explained import explain
from cxrjax.radiology_text.forward import Judgement, say
from cxrjax.radiology_text.items import NamedItem, Topic, find_items, is_device
from cxrjax.radiology_text.places import find_places, is_midline, side_name, without_corrected
from cxrjax.radiology_text.rules import load_grammar
from cxrjax.radiology_text.scope import judge
from cxrjax.radiology_text.unread import UnreadWords, unread_items

_PLAIN = ("definite", "obvious", "convincing")
_LARGE = ("moderate", "severe", "large")
# Of a sentence: a question that takes what it names as given, one of former times, an insertion of
# former times, a heading that denies nothing, and words that lead to an explanation.
SUPPOSES, _COMPARISON, _INSERTION, _COMPARED_WITH, _EXPLAINS = map(
    lexicon.pattern, ("supposes", "comparison", "insertion", "compared_with", "explains")
)
_FIGURE = re.compile(r"(?:other|one|out of|right|left|at)\s+hand\Z")
_SIGNS, _ASKS = lexicon.word_set("signs"), lexicon.word_set("asks")
_LEADING_WORDS = 3
_PLACED = lexicon.word_set("positions_asked")
# Findings that are on no side because another one is.
_UNSIDED = lexicon.word_set("directed") | {"low lung volumes", "support device"}
# What cues and the grammar say of a finding of which nothing is asserted.
_UNSAID = {"silent": "said nothing", "unread": "unread"}
_OF_NORMAL = ("unchanged", "resolved")
_THEN, _NOW = lexicon.word_set("then"), lexicon.word_set("now")
_DEGREES = lexicon.grades("degrees")
_CALCIFIED = dict(pair.split(": ") for pair in lexicon.word_set("calcified_are"))


class SentenceContext(NamedTuple):
    """Context for the next sentence: topic, side, and the place of a sign."""

    topic: Topic | None = None
    side: str = ""
    sign: tuple[Side | None, tuple[str, ...]] | None = None


NOTHING = SentenceContext()


class SentenceReading(NamedTuple):
    """A sentence's assertions, each with whether it stands for an earlier one, and its context."""

    assertions: tuple[Assertion, ...] = ()
    refers: tuple[bool, ...] = ()
    context: SentenceContext = NOTHING
    unsaid: tuple[Unsaid, ...] = ()


def read_sentence(english: lexicon.English, text: str, before: SentenceContext) -> SentenceReading:
    """Reads a plain sentence behind its context."""
    parse = _Parse(english, text, before)
    if not parse.items:
        return SentenceReading()
    parse.find_cues()
    parse.judge()
    parse.locate()
    return parse.state()


class _Parse:
    """A sentence with all that has been read of it."""

    def __init__(self, english: lexicon.English, text: str, before: SentenceContext) -> None:
        self.english, self.text, self.before = english, text, before
        said = without_corrected(text)
        self.sentence = english.read_tokens(said, 0, len(text))
        self.former = former_degree(self.sentence.tokens.forms, _THEN, _NOW, _DEGREES)
        if self.former is not None:
            named = english.findings.find(self.sentence.tokens)
            if len({match.payload for match in named}) > 1:
                self.former = None  # of which of them?
            else:
                said = blanked(said, self.sentence.tokens, self.former[0])
        if _INSERTION.search(said):
            said = _INSERTION.sub(self._as_inserted, said)
        if "comparison" in said:
            said = _COMPARED_WITH.sub(lambda match: " " * len(match.group()), said)
        if said is not text:
            self.sentence = english.read_tokens(said, 0, len(text))
        self.said, self.tokens = said, self.sentence.tokens
        ignored = english.language.ignored_sentences.find(self.tokens)
        ignored = [m for m in ignored if not _FIGURE.search(text, 0, self.tokens[m.last - 1].end)]
        self.items = [] if ignored else find_items(self.tokens, english, before.topic)

    def _as_inserted(self, found: re.Match[str]) -> str:
        """Blanks out words of former times between commas, unless they name a finding."""
        tokens = self.english.read_tokens(found[0], 0, len(found[0])).tokens
        return found[0] if self.english.findings.find(tokens) else " " * len(found[0])

    def find_cues(self) -> None:
        """Finds cues and words of change."""
        tokens, english = self.tokens, self.english
        items = [item for item in self.items if item.names]
        self.named = frozenset(place for item in items for place in item.own)
        heard = frozenset(p for item in items if not item.refers for p in item.own)
        self.rules = rules = load_grammar("en").find(tokens.forms, heard)
        self.taken = self.named.union(rules.taken())
        cues = [*rules.cues, *english.cues.find(tokens, self.taken)]
        cues = sorted((c for c in cues if not _is_aside(tokens, c)), key=lambda cue: cue.first)
        self.cues = cues
        timed = self.named.union(*(range(m.first, m.last) for m in rules.times))
        changes = [*rules.times, *english.times.find(tokens, timed)]
        if self.former is not None:
            end = len(tokens) - 1
            now = next((n for n, form in enumerate(tokens.forms) if form in _NOW), end)
            before = [item.last for item in self.items if item.last <= now]
            at = before[-1] if before else min(now, self.items[-1].last)  # beside its finding
            changes = [Match(at, at + 1, self.former[1]), *(c for c in changes if c.first != at)]
        self.changes = sorted(changes, key=lambda match: match.first)

    def judge(self) -> None:
        """Gives each item what cues, or the lack of a known predicate, say of it."""
        tokens, items = self.tokens, self.items
        self.clauses = split_clauses(tokens, items, self.cues)
        told = frozenset(place for c in self.changes for place in range(c.first, c.last))
        self.judged = judged = judge(tokens, items, self.cues, self.clauses, told)
        for match in self.rules.inside:
            for item, judgement in zip(items, judged, strict=True):
                if match.first <= item.first < match.last:
                    say(judgement, match.payload, (match.first, match.last))
        plain = [
            n
            for n, (item, judgement) in enumerate(zip(items, judged, strict=True))
            if judgement.status == "present" and not (judgement.reason or item.refers)
            if item.names and item.statement is None
        ]
        read = self.taken.union(told, *(range(c.first, c.last) for c in self.cues))
        words = UnreadWords(tokens, read, self.english, self.said)
        unread = unread_items(words, items, plain, self.clauses)
        for n, (item, judgement) in enumerate(zip(items, judged, strict=True)):
            denied = judgement.status == "absent" and item.names and item.statement is None
            if denied and judgement.cue and words.is_denied(item, judgement.cue):
                unread[n] = judgement.cue
        for n, cue in unread.items():
            judged[n] = Judgement("uncertain", "possible", reason="unread", cue=cue)
        if _COMPARISON.match(self.text):
            self.judged = [Judgement("uncertain", "possible", "past") for _ in items]

    def locate(self) -> None:
        """Gives each item its place, change, size and degree, and settles what explains what."""
        tokens, items, judged, english = self.tokens, self.items, self.judged, self.english
        self.distances, landmarks = find_distances(self.sentence, items)
        alike = [(judgement.status, judgement.not_now) for judgement in judged]
        self.places = find_places(
            *(tokens, self.sentence.text, items, self.clauses, landmarks, alike, english),
            self.before.side,
        )
        self.times = find_times(
            self.sentence, items, judged, self.clauses, english, self.named, self.changes
        )
        _as_before_there(tokens, items, judged, self.times, self.changes)
        self.modifiers = find_modifiers(tokens, items, english, self.changes)
        self.sizes = find_sizes(self.sentence, items)
        self.gone = explain(tokens, items, judged, english.definitions)
        for n, cause in self.gone.items():
            if cause is not None and not self.places[cause].side:
                place = self.places[cause]
                place.side = self.places[n].side  # where the sign is
                place.regions = place.regions or self.places[n].regions
        tail = any(map(str.isalpha, tokens.forms[items[-1].last :]))
        supposes = SUPPOSES.match(self.text)
        self.asks = self.sentence.asks
        self.asks &= not (supposes and (tail or supposes[0].endswith("the")))
        if self.asks and is_device(items[0], english) and items[0].first < _LEADING_WORDS:
            # "Tube too low?" asks of its place alone.
            behind = tokens.forms[items[0].last :]
            self.asks = _ASKS.isdisjoint(tokens.forms) is False or _PLACED.isdisjoint(behind)
        if self.asks and (proposed := _proposed(tokens, items)):
            self.asks = False  # "an opacity, pneumonia?"
            for n in proposed:
                judged[n] = Judgement("uncertain", "possible", reason="hedged")

    def state(self) -> SentenceReading:
        """Returns what the sentence asserts."""
        self.assertions: list[Assertion] = []
        self.first_of: dict[int, int] = {}
        self.is_parted = False  # each side of a finding has been told
        refers: list[bool] = []
        unsaid: list[Unsaid] = []
        for n, item in enumerate(self.items):
            if not item.names or _is_heading(self.tokens, self.items, n, self.english):
                continue
            reason = "explained" if n in self.gone else _UNSAID.get(self.judged[n].reason)
            if reason is not None and not item.refers:
                unsaid += [Unsaid(name, reason, self._span(item)) for name in item.names]
            if n not in self.gone:
                self._assert(n)
                refers += [item.refers] * (len(self.assertions) - len(refers))
        excepts = any(cue.payload.after == "except" for cue in self.cues)
        _drop_excepted(self.assertions, refers, excepts)
        context = _context_of(self.items, self.judged, self.assertions, self.before)
        return SentenceReading(*_merged(self.assertions, refers), context, tuple(unsaid))

    def _span(self, item: NamedItem) -> tuple[int, int]:
        return self.tokens[item.first].start, self.tokens[item.last - 1].end

    def _assert(self, n: int) -> None:
        """Adds the assertions of an item."""
        item, judgement = self.items[n], self.judged[n]
        meant = _meant(item, judgement, self.times[n], self.asks)
        if meant is None:
            return
        status, certainty, time = meant
        severity = next((v for k, v in self.modifiers[n] if k == "severity"), None)
        sure = certainty == "certain" and time != "resolved"
        if sure and self._is_qualified(item, status, severity):
            certainty = "likely"
        again = self.is_parted and self.tokens.forms[item.first] in ("and", "but", "while")
        if item.refers and (again or self._adds_nothing(n, time)):
            return
        self.first_of[n] = len(self.assertions)
        sign = _explained(self.tokens, self.items, self.judged, n, self.first_of)
        source = None if sign is None else self.first_of[sign]
        regions, side = self._place(n, source)
        if source is not None and time == "current" and not self._is_placed(n):
            time = "unchanged" if self.assertions[source].time == "unchanged" else time
        both = item.refers or side == "bilateral" or side is None
        apart: Mapping[Side, Time] = {}
        if both and status != "absent":
            apart = times_by_side(self.tokens, self.items, n, self.changes)
            self.is_parted |= bool(apart)
        meanings: list[tuple[Status, Time, Side | None]] = [(status, time, side)]
        if apart and not judgement.not_now:
            meanings = [
                ("absent" if when == "resolved" else judgement.status, when, on)
                for on, when in apart.items()
            ]
        details = self._details(n)
        definitions = self.english.definitions
        for name, (status, time, side) in itertools.product(item.names, meanings):
            if apart:
                regions = [r for r in regions if definitions.regions[r].side in ("", side)]
            name = _calcified(definitions.in_regions(name, regions), self.modifiers[n])
            self.assertions.append(
                Assertion(
                    *(name, status, certainty, time, side, tuple(regions), severity),
                    **details,
                    source=source,
                )
            )

    def _details(self, n: int) -> dict[str, Any]:
        item = self.items[n]
        return {
            "sizes": tuple(self.sizes[n]),
            "distances": tuple(self.distances[n]),
            "count": find_count(self.tokens, item),
            "span": self._span(item),
            "modifiers": tuple(self.modifiers[n]),
            "cue": _words(self.tokens, self.judged[n]),
            "organ": item.statement.name if item.statement and item.is_normal else "",
        }

    def _is_qualified(self, item: NamedItem, status: Status, severity: str | None) -> bool:
        """Returns whether only the large or plain is denied: "no large effusion", "or definite
        effusion", "grossly clear"."""
        if item.is_normal:
            return _is_gross(self.tokens, item)
        plain = self.tokens.forms[min(item.own) - 1] in (*_PLAIN, *_LARGE)
        return status == "absent" and (severity in _LARGE or plain)

    def _adds_nothing(self, n: int, time: Time) -> bool:
        """Returns whether a word for what was named before says nothing further of it."""
        item, judgement = self.items[n], self.judged[n]
        behind = self.tokens.form(item.last)
        if judgement.status == "absent" and behind in ("was", "were", "did"):
            return True  # "it was not there in 2019"
        told = judgement.reason or item.is_normal or item.is_denied or item.statement
        return not (told or time != "current" or side_name(self.places[n].side))

    def _is_placed(self, n: int) -> bool:
        return bool(self.places[n].regions or side_name(self.places[n].side))

    def _place(self, n: int, source: int | None) -> tuple[list[str], Side | None]:
        """Regions and side of an item: its own, or those of what it explains or stands beside."""
        item, judgement, places = self.items[n], self.judged[n], self.places
        regions, side = places[n].regions, side_name(places[n].side)
        midline = is_midline(item, self.english)
        hedged = judgement.reason == "hedged"
        sign = self.before.sign if n == 0 or self.before.topic else None
        if source is not None and not self._is_placed(n):
            # "Left base opacity, likely pneumonia": where the one is, is the other.
            near = self.assertions[source]
            regions, side = ([], None) if midline else (list(near.regions), near.side)
        elif sign and hedged and not midline and not self._is_placed(n):
            side, regions = sign[0], list(sign[1])
        if side is None and not regions and _is_within(self.tokens, self.items, n):
            side = side_name(places[n + 1].side)
        if side is None and n - 1 in self.first_of:
            near = self.assertions[self.first_of[n - 1]]
            beside = near.status != "absent" and not midline
            if beside and _is_beside(self.tokens, self.items, judgement, n):
                side, on_side = near.side, self.english.definitions.on_side
                on = [r for name in regions for r in on_side(name, side or "")]
                regions = on or (list(near.regions) if hedged else regions)
        return regions, side


def _context_of(
    items: Sequence[NamedItem],
    judged: Sequence[Judgement],
    assertions: Sequence[Assertion],
    before: SentenceContext,
) -> SentenceContext:
    told = [item for item in items if item.names and not item.is_setting]
    if not told:
        return before
    affirmed = [i for i, j in zip(items, judged, strict=True) if i in told and j.status != "absent"]
    last = (affirmed or told)[-1]
    sides = [one.side for one in assertions if one.side in ("left", "right")]
    signs = [
        one
        for one in assertions
        if one.finding in _SIGNS and (one.status, one.certainty) == ("present", "certain")
    ]
    sign = (signs[-1].side, signs[-1].regions) if signs else None
    return SentenceContext(
        Topic(last.names, last.statement), sides[-1] or "" if sides else before.side, sign
    )


def _drop_excepted(assertions: list[Assertion], refers: list[bool], excepts: bool) -> None:
    """Takes out a denial that the same finding takes back, or is of a kind of it: "no effusion
    except for a trace", "not a large effusion but some fluid", "emphysema without bullae"."""
    for n in reversed(range(len(assertions) - 1)):
        one, other = assertions[n], assertions[n + 1]
        if one.finding != other.finding or {one.organ, other.organ} != {""}:
            continue
        large = one.certainty == "likely" and one.side is other.side is None
        back = (one.status, other.status, other.source) == ("absent", "present", None)
        kind = (one.status, other.cue, other.side) == ("present", "without", None)
        if (back and (excepts or large)) or kind:
            del assertions[n + kind], refers[n + kind]
            for m, later in enumerate(assertions):
                if later.source is not None and later.source > n + kind:
                    assertions[m] = dataclasses.replace(later, source=later.source - 1)


def _merged(
    assertions: Sequence[Assertion], refers: Sequence[bool]
) -> tuple[tuple[Assertion, ...], tuple[bool, ...]]:
    """The assertions without repetitions, each as exact as any of them."""
    kept: list[Assertion] = []
    kept_refers: list[bool] = []
    now_at: list[int] = []
    for one, is_reference in zip(assertions, refers, strict=True):
        source = None if one.source is None else now_at[one.source]
        if source != one.source:
            one = dataclasses.replace(one, source=source)
        twin = next((n for n, other in enumerate(kept) if _repeats(one, other)), None)
        if twin is None or is_reference:
            now_at.append(len(kept))
            kept.append(one)
            kept_refers.append(is_reference)
            continue
        now_at.append(twin)
        old = kept[twin]
        regions = old.regions if one.organ and not old.organ else old.regions or one.regions
        if one.status == "absent" and not one.organ and not old.organ:
            regions = tuple(dict.fromkeys((*old.regions, *one.regions)))
        kept[twin] = dataclasses.replace(
            old,
            side=old.side or one.side,
            regions=regions,
            time=old.time if old.time != "current" else one.time,
            severity=old.severity or one.severity,
            sizes=(*old.sizes, *one.sizes),
            distances=(*old.distances, *one.distances),
            modifiers=tuple(dict.fromkeys((*old.modifiers, *one.modifiers))),
            source=old.source if source is None or source >= twin else source,
        )
    return tuple(kept), tuple(kept_refers)


def _repeats(one: Assertion, other: Assertion) -> bool:
    said = (one.finding, one.status, one.certainty)
    apart = one.time != other.time and "current" not in (one.time, other.time)
    apart |= one.count is not None or bool(one.sizes and other.sizes)
    if apart or said != (other.finding, other.status, other.certainty):
        return False
    if one.status == "absent":
        return one.side == other.side or (
            one.organ != other.organ and None in (one.side, other.side)
        )
    near = one.side == other.side or None in (one.side, other.side)
    return near and (one.regions == other.regions or not (one.regions and other.regions))


def _as_before_there(
    tokens: Words,
    items: Sequence[NamedItem],
    judged: list[Judgement],
    times: list[Time],
    changes: Sequence[Match[Time]],
) -> None:
    """Marks the right as unchanged for a change "on the left but not on the right"."""
    for n, (one, other) in enumerate(itertools.pairwise(items), start=1):
        stands_for = other.refers and tokens.forms[other.first] == "not"
        if stands_for and any(one.last <= c.first < other.first for c in changes):
            judged[n], times[n] = Judgement(), "unchanged"
            other.is_denied = False


def _proposed(tokens: Words, items: Sequence[NamedItem]) -> list[int]:
    """The items of a question's last part that only propose what the signs before it are."""
    comma = max((n for n, form in enumerate(tokens.forms) if form == ","), default=-1)
    before = [item for item in items if item.last <= comma]
    if not before or not _ASKS.isdisjoint(tokens.forms) or not _SIGNS.issuperset(before[-1].names):
        return []
    return [n for n, item in enumerate(items) if item.first > comma]


def _is_aside(tokens: Words, cue: Match[lexicon.Cue]) -> bool:
    """Returns whether a "however" is between commas and opens no clause."""
    around = (
        tokens.forms[max(0, cue.first - 1)],
        *(t.lemma for t in tokens[cue.last : cue.last + 1]),
    )
    return cue.payload.after == "contrast" and around == (",", ",")


def _is_heading(
    tokens: Words, items: Sequence[NamedItem], n: int, english: lexicon.English
) -> bool:
    """Returns whether a word for devices is a heading of the next item: "lines: right PICC"."""
    if items[n].names != ("support device",) or n + 1 == len(items):
        return False
    behind = tokens.forms[items[n].last : items[n].last + 2]
    return behind[:1] == [":"] != behind[1:] != ["none"] and is_device(items[n + 1], english)


def _is_gross(tokens: Words, item: NamedItem) -> bool:
    around = tokens[max(0, min(item.own) - 2) : max(item.own) + 1]
    return any(token.lemma == "grossly" for token in around)


def _calcified(name: str, modifiers: Sequence[tuple[str, str]]) -> str:
    """The name of a finding that is said to be calcified."""
    return _CALCIFIED.get(name, name) if ("texture", "calcified") in modifiers else name


def _meant(
    item: NamedItem, judgement: Judgement, time: Time, asks: bool
) -> tuple[Status, Certainty, Time] | None:
    """Status, certainty and time of an item; None where nothing that can be named is said."""
    if judgement.reason == "silent":
        return None
    if judgement.not_now == "past" and time == "resolved":
        return "absent", "certain", "resolved"  # "status post extubation"
    if judgement.not_now:
        return "uncertain", "possible", judgement.not_now
    if item.is_normal:
        if judgement.status == "absent":  # "not normal"
            return None
        if judgement.status == "uncertain":
            return "uncertain", judgement.certainty, "current"
        return "absent", judgement.certainty, time if time in _OF_NORMAL else "current"
    if asks:
        return "uncertain", "possible", "to be ruled out"
    status, certainty = judgement.status, judgement.certainty
    if time in ("unchanged", "worse", "better") and judgement.reason == "denied":
        time = "current"
    if item.is_borderline and status == "present":
        status, certainty = "uncertain", "possible"
    if time == "resolved":
        if status == "uncertain":
            return status, certainty, "resolved"
        return "absent", certainty, "resolved"
    return status, certainty, time


def _words(tokens: Words, judgement: Judgement) -> str:
    first, last = judgement.cue or (0, 0)
    return " ".join(tokens.forms[first:last])


def _is_within(tokens: Words, items: Sequence[NamedItem], n: int) -> bool:
    """Returns whether an item is in the next one: "no cavity within the left upper lobe mass"."""
    if n + 1 == len(items) or items[n].statement or not items[n + 1].names:
        return False
    gap = tokens.forms[items[n].last : min(items[n + 1].own)]
    return gap[:1] in (["within"], ["in"], ["inside"]) and not {",", "and", "or"} & set(gap)


def _is_beside(tokens: Words, items: Sequence[NamedItem], judgement: Judgement, n: int) -> bool:
    """Returns whether an item without a side inherits that of the item before it: proposed
    explanations do, and items after a "with" or without punctuation between."""
    if items[n].statement or items[n].refers or judgement.not_now or judgement.status == "absent":
        return False
    gap = {*tokens.forms[items[n - 1].last : min(items[n].own)]}
    if "given" in gap or _UNSIDED & set(items[n].names):
        return False
    hedged = judgement.reason == "hedged"
    return hedged or "with" in gap or not gap & {",", "and", "or", "/", ":", "(", ")", "nor"}


def _explained(
    tokens: Words,
    items: Sequence[NamedItem],
    judged: Sequence[Judgement],
    n: int,
    first_of: dict[int, int],
) -> int | None:
    """The item before this one that it is offered as an explanation of."""
    if n == 0 or n - 1 not in first_of or items[n].statement or items[n].refers:
        return None
    before, item, judgement = items[n - 1], items[n], judged[n]
    words = tokens.forms[before.last : min(item.own)]
    absent = judgement.status == "absent"
    if not absent and judged[n - 1].status != "absent" and _EXPLAINS.search(" ".join(words)):
        return n - 1
    weighed = judgement.reason == "hedged" or (absent and {"than", "of"} & set(words))
    said_behind = judgement.cue is not None and judgement.cue[0] >= item.last
    tail = words[len(words) - words[::-1].index(",") :] if "," in words else words
    if not weighed or ({"and", "with"} & set(tail) and not said_behind):
        return None
    for m in reversed(range(n)):
        if (
            m in first_of
            and _SIGNS & set(items[m].names)
            and (judged[m].status, judged[m].certainty) == ("present", "certain")
        ):
            return m
    return None
