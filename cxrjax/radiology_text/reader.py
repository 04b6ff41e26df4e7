"""Reads what English reports and answers assert of findings.

    sentence -> tokens -> findings, organs' states -> cues -> scopes -> places -> assertions

Vietnamese is read by `vietnamese.py` into the same form.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cxrjax.radiology_text import lexicon
from cxrjax.radiology_text.assertions import Assertion, Certainty, Side, Status, Time, Unsaid
from cxrjax.radiology_text.changes import (
    OTHER_SIDE,
    blanked,
    find_times,
    former_degree,
    times_by_side,
)
from cxrjax.radiology_text.clauses import split_clauses
from cxrjax.radiology_text.definitions import Definitions
from cxrjax.radiology_text.details import find_count, find_distances, find_modifiers, find_sizes
from cxrjax.radiology_text.english import Match, Words
from cxrjax.radiology_text.explained import EXPLAINABLE, explain, is_cause, refers_to_sign
from cxrjax.radiology_text.items import NamedItem, Topic, find_items, is_device
from cxrjax.radiology_text.places import find_places, is_midline, side_name, without_corrected
from cxrjax.radiology_text.rules import load_grammar
from cxrjax.radiology_text.scope import Judgement, judge, say, without_insertions
from cxrjax.radiology_text.unread import unread_items

# Reports repeat themselves, and models answer in templates.
_KEPT_SENTENCES = 1 << 14
_PLAIN = ("definite", "obvious", "convincing")
_LARGE = ("moderate", "severe", "large")
_SHORT_ANSWER = 60
_SUPPOSES = re.compile(r"\W*(?:is|are|was|were|has|have)\s+(?:the|this|that|these)\b")
_VERDICT = re.compile(
    r"\s*(?:a(?:nswer)?\s*:\s*)?(?:i\s+see\s+)?(?:no|none|nil|not|yes|y|n|negative|positive|absent|"
    r"present|maybe|possibly|perhaps|unlikely|doubtful|probably|likely)\b"
)
# Of a question that is answered at once: the mark, and what stands before the answer.
_ASKED = re.compile(
    r"\?(?=\s*\S)(?:\s*a(?:nswer)?\s*:)?(?:\s*i\s+see\b)?(?<!\A\?)(?<!\s\?)(?<!\(\?)"
)
_REFERS = re.compile(
    r"\A\W*(?:ddx|d\s?/\s?d|differential|superimposed)\b|"
    r"\b(?:it|its|this|they|these|those|that|both|none|one|the\s+(?:left|right)|same\s+side|other\s+side)\b"
)
_COMPARISON = re.compile(
    r"\W*(?:comparisons?\s*:|(?:the\s+)?(?:earlier|prior|previous|old|outside|last|preceding)\s+"
    r"(?:films?|study|studies|exams?|examinations?|radiographs?|images?|reports?|records?|notes?|letters?)\s+"
    r"(?:had\s+|have\s+)?(?:show(?:s|ed|n)?|demonstrated|revealed|mention(?:s|ed)?|describ(?:e|es|ed)|noted)\b(?!.*\b(?:now|today|which|but)\b))"
)
_CORRECTS = re.compile(r"\W*(?:correction|corrigendum|erratum)\b")
# "The effusion, which was large yesterday, is ...": of then.
_INSERTION = re.compile(
    r",\s(?:(?:which|that)\s)?(?:was|were|had\sbeen|measured|so|first|previously|formerly|once|seen|noted|"
    r"described|present|visible|evident|large|small)\b[^,.;:]{0,60},(?=\s(?:is|are|has|have|can|does|do)\b)"
)
# "Comparison: none" denies nothing.
_COMPARED_WITH = re.compile(r"\bcomparisons?\s*:\s*(?:none|no|not|nil|n/a)\b")
_SIGNS = lexicon.word_set("signs")
# Findings that are on no side because another one is.
_UNSIDED = lexicon.word_set("directed") | {"low lung volumes", "support device"}
_NOT_NOW = ("past", "to be ruled out")
# What cues and the grammar say of a finding of which nothing is asserted.
_UNSAID = {"silent": "said nothing", "unread": "unread"}
_ASKS = lexicon.word_set("asks")
_OF_NORMAL = ("unchanged", "resolved")
_THEN, _NOW = lexicon.word_set("then"), lexicon.word_set("now")
_DEGREES = lexicon.grades("degrees")
_CALCIFIED = {
    "lung nodule": "granuloma",
    "lymphadenopathy": "calcified lymph node",
    "lung opacity": "lung calcification",
    "lung lesion": "lung calcification",
}
_EXPLAINS = re.compile(
    r"\b(?:represent|reflect|suggest|consistent|compatible|due|secondary|related|concerning|worrisome|"
    r"suspiciou?s?|point|likely|probably|possibly|keeping|indicat|favor|may be|could be|felt|from)"
)


class ReportReader:
    """Reads English text; the same text always gives the same assertions."""

    def __init__(self, english: lexicon.English | None = None) -> None:
        self._english = english or lexicon.load_english()
        self._in_sentence = functools.lru_cache(maxsize=_KEPT_SENTENCES)(self._read_sentence)

    def read(self, text: str) -> list[Assertion]:
        """Returns a text's assertions, in order. Questions assert nothing with certainty."""
        return self.read_all(text)[0]

    def read_all(self, text: str) -> tuple[list[Assertion], list[Unsaid]]:
        """Returns a text's assertions, and the findings that it names and asserts nothing of."""
        text = lexicon.with_table_rows(text)
        unsaid: list[Unsaid] = []
        plain = lexicon.plain_text(text)
        found: list[Assertion] = []
        context = _NOTHING
        last = 0
        for start, end in _joined_answers(plain, lexicon.split_sentences(text)):
            # Every character stays at its place.
            said = plain[start:end]
            if "?" in said:
                said = _ASKED.sub(lambda m: ":".ljust(len(m.group())), said, count=1)
            refers = _REFERS.search(said) is not None
            joined = refers or text[max(0, start - 1) : start] == ";"
            before = context if joined else _NOTHING._replace(sign=context.sign)
            sentence = self._in_sentence(said, before)
            if _CORRECTS.match(said):
                corrected = {one.finding for one in sentence.assertions}
                found = [one for one in found if one.finding not in corrected]
            if refers_to_sign(said):
                _explain_before(found, sentence.assertions, last, self._english.definitions)
            last = len(found)
            unsaid += [
                one._replace(span=(one.span[0] + start, one.span[1] + start))
                for one in sentence.unsaid
            ]
            now_at: list[int] = []
            for one, is_reference in zip(sentence.assertions, sentence.refers, strict=True):
                a, b = one.span
                source = None if one.source is None else now_at[one.source]
                if start or source != one.source:
                    one = dataclasses.replace(one, span=(a + start, b + start), source=source)
                updated = _update(found, one) if is_reference else None
                now_at.append(len(found) if updated is None else updated)
                if updated is None:
                    found.append(one)
            context = sentence.context
        return found, unsaid

    def _as_inserted(self, found: re.Match[str]) -> str:
        """Blanks out words of former times between commas, unless they name a finding."""
        tokens = self._english.read_tokens(found[0], 0, len(found[0])).tokens
        return found[0] if self._english.findings.find(tokens) else " " * len(found[0])

    def _read_sentence(self, text: str, before: "_Context") -> "_Reading":
        english = self._english
        said = without_corrected(text)
        sentence = english.read_tokens(said, 0, len(text))
        former = former_degree(sentence.tokens.forms, _THEN, _NOW, _DEGREES)
        if former is not None:
            said = blanked(said, sentence.tokens, former[0])
        if _INSERTION.search(said):
            said = _INSERTION.sub(self._as_inserted, said)
        said = _COMPARED_WITH.sub(lambda match: " " * len(match.group()), said)
        if said is not text:
            sentence = english.read_tokens(said, 0, len(text))
        tokens = sentence.tokens
        if english.language.ignored_sentences.find(tokens):
            return _Reading()
        items = find_items(tokens, english, before.topic)
        if not items:
            return _Reading()
        named = frozenset(place for item in items if item.names for place in item.own)
        heard = frozenset(p for item in items if item.names and not item.refers for p in item.own)
        rules = load_grammar("en").find(tokens.forms, heard)
        taken = named.union(rules.taken())
        cues = [*rules.cues, *english.cues.find(tokens, taken)]
        cues = sorted((c for c in cues if not _is_aside(tokens, c)), key=lambda cue: cue.first)
        cues = without_insertions(tokens, cues)
        timed = named.union(*(range(m.first, m.last) for m in rules.times))
        changes = [*rules.times, *english.times.find(tokens, timed)]
        if former is not None:
            news = (n for n, form in enumerate(tokens.forms) if form in _NOW)
            at = next(news, items[-1].last - 1)
            changes = [Match(at, at + 1, former[1]), *(c for c in changes if c.first != at)]
        changes.sort(key=lambda match: match.first)
        clauses = split_clauses(tokens, items, cues)
        told = frozenset(place for c in changes for place in range(c.first, c.last))
        judged = judge(tokens, items, cues, clauses, told)
        for match in rules.inside:
            for item, judgement in zip(items, judged, strict=True):
                if match.first <= item.first < match.last:
                    say(judgement, match.payload, (match.first, match.last))
        plain = [
            n
            for n, (item, judgement) in enumerate(zip(items, judged, strict=True))
            if not judgement.reason
            and judgement.status == "present"
            and item.statement is None
            and item.names
            and not item.refers
        ]
        read = taken.union(told, *(range(c.first, c.last) for c in cues))
        for n, words in unread_items(tokens, items, plain, clauses, read, english, said).items():
            judged[n] = Judgement("uncertain", "possible", reason="unread", cue=words)
        if _COMPARISON.match(text):
            judged = [Judgement("uncertain", "possible", "past") for _ in items]
        distances, landmarks = find_distances(sentence, items)
        alike = [(judgement.status, judgement.not_now) for judgement in judged]
        places = find_places(
            tokens, sentence.text, items, clauses, landmarks, alike, english, before.side
        )
        times = find_times(sentence, items, judged, clauses, english, named, changes)
        _as_before_there(tokens, items, judged, times, changes)
        modifiers = find_modifiers(tokens, items, english, changes)
        sizes = find_sizes(sentence, items)
        gone = explain(tokens, items, judged, english.definitions)
        for n, cause in gone.items():
            if cause is not None and not places[cause].side:
                places[cause].side = places[n].side  # where the sign is
                places[cause].regions = places[cause].regions or places[n].regions
        tail = any(map(str.isalpha, tokens.forms[items[-1].last :]))
        supposes = _SUPPOSES.match(text)
        asks = sentence.asks and not (supposes and (tail or supposes[0].endswith("the")))
        if asks and (proposed := _proposed(tokens, items)):
            asks = False  # "an opacity, pneumonia?"
            for n in proposed:
                judged[n] = Judgement("uncertain", "possible", reason="hedged")
        assertions: list[Assertion] = []
        refers: list[bool] = []
        unsaid: list[Unsaid] = []
        definitions = english.definitions
        first_of: dict[int, int] = {}
        for n, item in enumerate(items):
            if not item.names or _is_heading(tokens, items, n, english):
                continue
            judgement = judged[n]
            reason = "explained" if n in gone else _UNSAID.get(judgement.reason)
            if reason is not None and not item.refers:
                span = tokens[item.first].start, tokens[item.last - 1].end
                unsaid += [Unsaid(name, reason, span) for name in item.names]
            if n in gone:
                continue
            meant = _meant(item, judgement, times[n], asks)
            if meant is None:
                continue
            status, certainty, time = meant
            severity = next((v for k, v in modifiers[n] if k == "severity"), None)
            if (
                (status, certainty) == ("absent", "certain")
                and (severity in _LARGE or tokens.forms[min(item.own) - 1] in _PLAIN)
                and not item.is_normal
            ):
                certainty = "likely"  # "no large effusion", "or definite effusion"
            if item.is_normal and certainty == "certain" and _is_gross(tokens, item):
                certainty = "likely"
            regions, side = places[n].regions, side_name(places[n].side)
            behind = tokens.forms[item.last] if item.last < len(tokens) else ""
            if item.refers and judgement.status == "absent" and behind in ("was", "were", "did"):
                continue  # "it was not there in 2019"
            if item.refers and not (
                judgement.reason
                or item.is_normal
                or item.is_denied
                or time != "current"
                or side
                or item.statement
            ):
                continue
            first_of[n] = len(assertions)
            sign = _explained(tokens, items, judged, n, first_of)
            source = None if sign is None else first_of[sign]
            if source is not None and not regions and side is None:
                # "Left base opacity, likely pneumonia": where the one is, is the other.
                regions, side = list(assertions[source].regions), assertions[source].side
                if time == "current" and assertions[source].time == "unchanged":
                    time = "unchanged"
                if is_midline(item, english):
                    regions, side = [], None
            elif (
                before.sign
                and (n == 0 or before.topic)
                and not is_midline(item, english)
                and not regions
                and side is None
                and judgement.reason == "hedged"
            ):
                side, regions = before.sign[0], list(before.sign[1])
            if side is None and not regions and _is_within(tokens, items, n):
                side = side_name(places[n + 1].side)
            if side is None and n - 1 in first_of and _is_beside(tokens, items, judgement, n):
                near = assertions[first_of[n - 1]]
                if near.status != "absent" and not is_midline(item, english):
                    side, on_side = near.side, definitions.on_side
                    regions = [r for name in regions for r in on_side(name, side or "")] or (
                        list(near.regions) if judgement.reason == "hedged" else regions
                    )
            both = item.refers or side == "bilateral" or side is None
            apart = times_by_side(tokens, items, n, changes) if both and status != "absent" else {}
            meanings: list[tuple[Status, Time, Side | None]] = [(status, time, side)]
            if apart and not judgement.not_now:
                meanings = [
                    ("absent" if when == "resolved" else judgement.status, when, on)
                    for on, when in apart.items()
                ]
            refers += [item.refers] * len(item.names) * len(meanings)
            for name, (status, time, side) in itertools.product(item.names, meanings):
                if apart:
                    regions = [r for r in regions if definitions.regions[r].side in ("", side)]
                assertions.append(
                    Assertion(
                        _calcified(definitions.in_regions(name, regions), modifiers[n]),
                        status,
                        certainty,
                        time,
                        side,
                        tuple(regions),
                        severity,
                        tuple(sizes[n]),
                        tuple(distances[n]),
                        find_count(tokens, item),
                        (tokens[item.first].start, tokens[item.last - 1].end),
                        tuple(modifiers[n]),
                        _words(tokens, judgement),
                        item.statement.name if item.statement and item.is_normal else "",
                        source,
                    )
                )
        if any(cue.payload.after == "except" for cue in cues):
            _drop_excepted(assertions, refers)
        return _Reading(
            *_merged(assertions, refers),
            _context_of(items, judged, assertions, before),
            tuple(unsaid),
        )


class _Context(NamedTuple):
    """Context for the next sentence: topic, side, and the place of a sign."""

    topic: Topic | None = None
    side: str = ""
    sign: tuple[Side | None, tuple[str, ...]] | None = None


_NOTHING = _Context()


class _Reading(NamedTuple):
    """A sentence's assertions, each with whether it stands for an earlier one, and its context."""

    assertions: tuple[Assertion, ...] = ()
    refers: tuple[bool, ...] = ()
    context: _Context = _NOTHING
    unsaid: tuple[Unsaid, ...] = ()


def _context_of(
    items: Sequence[NamedItem],
    judged: Sequence[Judgement],
    assertions: Sequence[Assertion],
    before: _Context,
) -> _Context:
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
    return _Context(
        Topic(last.names, last.statement), sides[-1] or "" if sides else before.side, sign
    )


def _explain_before(
    found: list[Assertion], said: Sequence[Assertion], last: int, definitions: Definitions
) -> None:
    """Takes out the sign of the sentence before that this one explains: "density over the rib. This
    is an old fracture"; softens it where it only may be that."""
    cause = next(iter(said), None)
    signs = [n for n in range(last, len(found)) if found[n].finding in EXPLAINABLE]
    if cause is None or len(signs) != 1 or not is_cause(cause.finding, definitions):
        return
    n = signs[0]
    if cause.status == "absent" or found[n].status != "present" or n != len(found) - 1:
        return
    if cause.status == "uncertain":
        found[n] = dataclasses.replace(found[n], status="uncertain", certainty="possible")
    else:
        del found[n]


def _drop_excepted(assertions: list[Assertion], refers: list[bool]) -> None:
    """Takes out a denial that an exception of the same finding takes back: "no effusion except for
    a trace at the left base"."""
    for n in reversed(range(len(assertions) - 1)):
        one, other = assertions[n], assertions[n + 1]
        said = (one.finding, one.status, one.organ, one.source, other.source)
        if said == (other.finding, "absent", "", None, None) and other.status == "present":
            del assertions[n], refers[n]


def _joined_answers(plain: str, sentences: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Sentences, a question together with the short answer right behind it."""
    held: tuple[int, int] | None = None
    for start, end in sentences:
        if held is not None:
            if end - start < _SHORT_ANSWER and _VERDICT.match(plain, start, end):
                yield held[0], end
                held = None
                continue
            yield held
            held = None
        if plain[start:end].rstrip().endswith("?") and not _SUPPOSES.match(plain, start, end):
            held = (start, end)
        else:
            yield start, end
    if held is not None:
        yield held


def _update(found: list[Assertion], new: Assertion) -> int | None:
    """Brings what was asserted before up to what is said of it now, and returns its index.

    None where `new` is of another side, or nothing was asserted.
    """
    of_it = [n for n, one in enumerate(found) if one.finding == new.finding]
    if not of_it:
        return None
    same = [n for n in of_it if found[n].side == new.side or new.side is None]
    if not same:
        old = found[of_it[-1]]
        if new.time == "new" and old.time in _NOT_NOW:
            return None  # "earlier films showed no effusion; there is now one on the left"
        if old.side == "bilateral" and new.side in OTHER_SIDE:
            found[of_it[-1]] = dataclasses.replace(
                old,
                side=OTHER_SIDE[new.side],
                regions=tuple(r for r in old.regions if new.side not in r),
            )
            return None
        if old.side is not None:
            return None
        same = of_it[-1:]
    old = found[same[-1]]
    told = bool(new.cue or new.organ) or new.status != "present"
    told |= old.time == "past" and new.is_now and new.time != "current"  # "today it persists"
    found[same[-1]] = dataclasses.replace(
        old,
        status=new.status if told else old.status,
        certainty=new.certainty if told else old.certainty,
        time=new.time if new.time != "current" or (told and old.time in _NOT_NOW) else old.time,
        side=old.side or new.side,
        regions=old.regions or new.regions,
        severity=new.severity or old.severity,
        sizes=(*old.sizes, *new.sizes),
        distances=(*old.distances, *new.distances),
        cue=new.cue or old.cue,
    )
    return same[-1]


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
    if (one.finding, one.status, one.certainty) != (other.finding, other.status, other.certainty):
        return False
    if one.count is not None or (one.sizes and other.sizes):
        return False
    if one.time != other.time and "current" not in (one.time, other.time):
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
