"""Reads what Vietnamese reports and answers assert of findings.

    sentence -> syllables -> findings, organs' states -> cues -> scopes -> places -> assertions

Every syllable is a token. What qualifies a finding stands behind it ("tràn dịch màng phổi trái
lượng ít"); a place before it opens a statement of its own. A sentence that is written without
diacritics is looked up among words without theirs.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence

from cxrjax.radiology_text import answers
from cxrjax.radiology_text.assertions import Assertion, Certainty, Outcome, Status, Time, Unsaid
from cxrjax.radiology_text.changes import blanked, former_degree
from cxrjax.radiology_text.definitions import SIDES
from cxrjax.radiology_text.lexicon import plain_text, split_sentences, with_ticks
from cxrjax.radiology_text.places import side_name
from cxrjax.radiology_text.vietnamese_items import (
    GENERAL,
    VietnameseItem,
    VietnameseSentence,
    reach_of,
)
from cxrjax.radiology_text.vietnamese_places import find_spots, passes, place_items
from cxrjax.radiology_text.vietnamese_scope import SAID, compare, explains, grade, judge
from cxrjax.radiology_text.vietnamese_words import VietnameseWords, composed

_KEPT_SENTENCES = 1 << 14
_SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s|$)|(?<=[^\W\d_]\.)(?=[^\W\d_]{2})|;|(?<!,)\n(?=[^\n])")
_SIZE = re.compile(
    r"\d+(?:[.,]\d+)?(?:\s*(?:mm|cm))?(?:\s*[x×*]\s*\d+(?:[.,]\d+)?(?:\s*(?:mm|cm))?){0,2}"
)
_TIMES: tuple[Time, ...] = ("resolved", "worse", "better", "new", "unchanged")


class VietnameseReader:
    """Reads Vietnamese text, alone or beside its question."""

    def __init__(self) -> None:
        self._in_sentence = functools.lru_cache(maxsize=_KEPT_SENTENCES)(_read_sentence)
        self._asked = functools.lru_cache(maxsize=4096)(_read_question)

    def read(
        self, text: str, question: str | None = None, has_box: bool = False
    ) -> answers.AnswerReading:
        """See `EnglishReader.read`."""
        whole, places = composed(text)
        plain = plain_text(whole)
        found: list[Assertion] = []
        unsaid: list[Unsaid] = []
        for start, end in split_sentences(plain, _SENTENCE_END):
            offset = len(found)
            said, silent = self._in_sentence(plain[start:end])
            for one in said:
                source = None if one.source is None else one.source + offset
                span = (places[one.span[0] + start], places[one.span[1] + start])
                found.append(dataclasses.replace(one, span=span, source=source))
            for name, reason, (a, b) in silent:
                unsaid.append(Unsaid(name, reason, (places[a + start], places[b + start])))
        assertions = tuple(found)
        outcome = question and _outcome(plain, self._asked(question), assertions, has_box)
        return answers.AnswerReading(outcome or None, assertions, tuple(unsaid))


def _read_sentence(text: str) -> tuple[tuple[Assertion, ...], tuple[Unsaid, ...]]:
    """Returns a sentence's assertions, and the findings that it asserts nothing of."""
    sentence = _parsed(text)
    if not sentence.items:
        return (), ()
    unsaid = tuple(
        Unsaid(name, "said nothing", _span(sentence, item))
        for item in sentence.items
        for name in (item.names if item.says == "silent" else ())
    )
    return _assertions(sentence), unsaid


def _span(sentence: VietnameseSentence, item: VietnameseItem) -> tuple[int, int]:
    return sentence.tokens[item.first].start, sentence.tokens[item.last - 1].end


def _parsed(text: str) -> VietnameseSentence:
    """A sentence whose items have what is said of them."""
    sentence = VietnameseSentence(with_ticks(text))
    sets = sentence.sets
    degrees = sentence.words.degrees
    former = former_degree(sentence.forms, sets["then"], sets["now_again"], degrees, reach=8)
    if former is not None:
        sentence = VietnameseSentence(blanked(sentence.text, sentence.tokens, former[0]))
    if not sentence.items:
        return sentence
    judge(sentence)
    compare(sentence)
    if former is not None:
        for item in sentence.items:
            item.times.add(former[1])
    grade(sentence)
    _measure(sentence)
    place_items(sentence)
    return sentence


def _assertions(sentence: VietnameseSentence) -> tuple[Assertion, ...]:
    """Returns what a sentence asserts of its items."""
    items = sentence.items
    asks = sentence.text.rstrip().endswith("?")
    inquires = asks and bool(sentence.sets["interrogative"] & {*sentence.forms[-3:]})
    colon = max((n for n, form in enumerate(sentence.forms) if form == ":"), default=-1)
    colon = colon if items[-1].first > colon else -1
    assertions: list[Assertion] = []
    first_of: dict[int, int] = {}
    for n, item in enumerate(items):
        meant = _meant(item, asks and item.first > colon, inquires)
        if meant is None:
            continue
        status, certainty, time = meant
        if item.severity in ("large", "moderate", "severe") and status == "absent":
            certainty = "likely"  # no large effusion
        first_of[n] = len(assertions)
        source = None
        if n - 1 in first_of:
            gap = {*sentence.between(items[n - 1], item)}
            if explains(sentence, items[n - 1], item):
                source = first_of[n - 1]
            elif gap <= sentence.sets["joint"]:
                source = assertions[-1].source
        side, regions = side_name(item.side), tuple(item.regions)
        if source is not None and not regions and not side:
            side, regions = assertions[source].side, assertions[source].regions
        count = sentence.words.numbers.get(sentence.form(item.first - 1))
        assertions += [
            Assertion(
                sentence.words.definitions.in_regions(name, regions),
                status,
                certainty,
                time,
                side,
                regions,
                item.severity,
                tuple(item.sizes),
                tuple(item.distances),
                None if item.statement else count,
                _span(sentence, item),
                (("severity", item.severity),) if item.severity else (),
                " ".join(sentence.forms[slice(*item.cue)]),
                item.statement.name if item.statement and item.is_normal else "",
                source,
            )
            for name in item.names
        ]
    return tuple(assertions)


def _measure(sentence: VietnameseSentence) -> None:
    """Gives items their sizes and distances; what these are measured from is no place."""
    for match in _SIZE.finditer(sentence.text):
        if "m" not in match.group():
            continue
        at = sum(token.start < match.start() for token in sentence.tokens)
        end = sum(token.start < match.end() for token in sentence.tokens)
        item = ([i for i in sentence.items if i.first < at] or sentence.items[:1])[-1]
        measure = " ".join(match.group().replace(",", ".").split())
        measure = re.sub(r"(?<=\d)(?=[mc]m)", " ", measure)
        before = [m for m in sentence.regions if 0 <= at - m.last <= 3][-1:]
        behind = [m for m in sentence.regions if m.first == end + 1]
        marks = [(m, sentence.form(m.first - 1)) for m in before]
        for mark, word in [*marks, *((m, sentence.form(end)) for m in behind)]:
            if word in sentence.words.relations:
                relation = sentence.words.relations[word]
                item.distances.append(f"{measure} {relation} the {mark.payload}")
                sentence.void.update(reach_of(mark))
                break
        else:
            item.sizes.append(measure)


def _meant(
    item: VietnameseItem, asks: bool, inquires: bool
) -> tuple[Status, Certainty, Time] | None:
    """Status, certainty and time; None where nothing that can be named is said."""
    if item.says == "silent":
        return None
    status, certainty, time = SAID[item.says]
    if time == "past" and "resolved" in item.times:
        return "absent", "certain", "resolved"
    if time != "current":
        return status, certainty, time
    if item.is_normal:
        if status == "absent":
            return None  # "không bình thường"
        return ("absent" if status == "present" else status), certainty, "current"
    time = next((time for time in _TIMES if time in item.times), "current")
    if inquires:
        return "uncertain", "possible", "to be ruled out"
    if status == "present" and (asks or item.is_borderline):
        return "uncertain", "possible", time if item.is_borderline else "current"
    if time == "resolved":
        return ("uncertain" if status == "uncertain" else "absent"), certainty, "resolved"
    if status == "absent" and time in ("worse", "better"):
        time = "current"  # "không thấy lao tiến triển"
    return status, certainty, time


def _read_question(question: str) -> answers.AskedFor:
    """Returns the subject of a question."""
    sentence = VietnameseSentence(plain_text(composed(question)[0]))
    names = [name for item in sentence.items for name in item.names]
    sides = {sentence.side_at(place) for place in range(len(sentence.tokens))} - {""}
    counts = bool(sentence.words.phrases["count_asked"].find(sentence.tokens))
    side = sides.pop() if len(sides) == 1 else None
    is_denied = all(item.is_normal for item in sentence.items if item.names)
    if is_denied and not names:
        kinds = {match.payload for match in sentence.words.answers.find(sentence.tokens)}
        is_denied = "normal" in kinds
        names = [GENERAL] * is_denied
    return answers.AskedFor(tuple(dict.fromkeys(names)), side, counts, is_denied)


def _outcome(
    plain: str, asked: answers.AskedFor, assertions: Sequence[Assertion], has_box: bool
) -> Outcome:
    """Decides the outcome of an answer."""
    sentences = (plain[slice(*span)] for span in split_sentences(plain, _SENTENCE_END))
    first = VietnameseSentence(
        next((text for text in sentences if any(map(str.isalnum, text))), "")
    )
    if not first.tokens:
        return "yes" if has_box else "nothing"
    now = [one for one in assertions if one.is_now]
    about = [one for one in now if _bears_on(one, asked, first.words)]
    opened = None if first.text.rstrip().endswith("?") else _opening(first, asked)
    stated = answers.stated_outcome(about)
    if asked.is_denied and stated:
        stated = answers.TURNED.get(stated, stated)
    if outcome := answers.decide(opened, stated, about, asked.is_denied):
        return outcome
    if now:
        return "off_topic" if asked.findings else answers.stated_outcome(now) or "undecided"
    return "yes" if has_box else _without_findings(first, asked)


def _bears_on(one: Assertion, asked: answers.AskedFor, words: VietnameseWords) -> bool:
    """Returns whether an assertion answers the question."""
    if asked.side and one.side in SIDES and one.side != asked.side:
        return False
    ancestors = words.definitions.finding_ancestors
    return any(
        one.finding == name
        or (one.status != "absent" and name in ancestors(one.finding))
        or (one.status == "absent" and one.finding in (*ancestors(name), GENERAL))
        or (name == GENERAL and words.definitions.findings[one.finding].category == "abnormality")
        for name in asked.findings
    )


def _opening(sentence: VietnameseSentence, asked: answers.AskedFor) -> Outcome | None:
    """Returns the verdict that opens an answer, if nothing but a reason follows it."""
    reasons = sentence.find("reason")
    end = (reasons[0].first if reasons else 0) or len(sentence.forms)
    preambles = {match.first: match.last for match in sentence.find("preamble")}
    first = 0
    while first in preambles or (first < end and not sentence.forms[first][0].isalnum()):
        first = preambles.get(first, first + 1)
    found = sentence.words.answers.find(sentence.tokens[first:end])
    if not found or found[0].first > 0:
        return None
    last = first + found[0].last
    stands_alone = last >= end or not sentence.forms[last][0].isalnum()
    if not stands_alone and any(first <= i.begin and i.last <= end for i in sentence.items):
        return None
    return answers.meaning(found[0].payload, asked)


def _without_findings(sentence: VietnameseSentence, asked: answers.AskedFor) -> Outcome:
    """Decides an answer that names no finding and opens with neither yes nor no."""
    spots = find_spots(sentence)
    covered = {place for spot in spots for place in reach_of(spot)}
    found = sentence.words.answers.find(sentence.tokens[:100])
    verdicts = {answers.meaning(m.payload, asked) for m in found if covered.isdisjoint(reach_of(m))}
    if "undecided" in verdicts:
        return "undecided"
    opens = sentence.forms[0]
    spoken = opens in sentence.words.numbers or opens == "0"
    spoken = spoken or bool(sentence.words.phrases["several"].find(sentence.tokens[:2]))
    if spoken and (asked.counts or not opens.isdigit()):
        return "no" if opens == "0" else "yes"
    rest = {form for place, form in enumerate(sentence.forms) if place not in covered}
    if spots and passes(sentence, (form for form in rest if form[0].isalnum())):
        sides = {spot.side for spot in spots} & {*SIDES}
        return "off_topic" if asked.side and sides - {asked.side} else "yes"
    return verdicts.pop() if len(verdicts) == 1 and len(sentence.forms) <= 15 else "nothing"
