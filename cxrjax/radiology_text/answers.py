"""Reads what an answer says of what is asked: yes, no, undecided, off topic, nothing.

    answer -> its own part -> sentences -> verdicts by themselves, assertions -> outcome

The answer's own part stands behind the last "the answer is" or "scratch that", and before its
reason. Where it decides nothing, the whole text is read.
"""

import dataclasses
import difflib
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

from cxrjax.radiology_text import lexicon
from cxrjax.radiology_text.assertions import Assertion, Outcome, Time, Unsaid
from cxrjax.radiology_text.chinese import in_english
from cxrjax.radiology_text.english import Match, PhraseIndex, Word, Words, lemma
from cxrjax.radiology_text.items import find_items
from cxrjax.radiology_text.reader import ReportReader
from cxrjax.radiology_text.thoughts import thought_length

# The first turn is read; models go on with further ones.
_NEXT_TURN = lexicon.pattern("next_turn", re.MULTILINE)
_ANSWER, _RETRACTION, _REASON, _NUMBER, _MEASURE = map(
    lexicon.pattern, ("answer", "retraction", "reason", "number", "measure")
)
_EXCEPT, _ASKS_NUMBER, _ASKING, _INVERTED, _CLAUSE_END = map(
    lexicon.pattern, ("except", "asks_number", "asking", "inverted", "clause_end")
)
_TEACHES, _MODAL_CHANGE = map(lexicon.pattern, ("teaching", "modal_change"))
_NO_ANSWER = lexicon.pattern("no_answer", re.IGNORECASE)
_ZERO = ("0", "00", "zero", "none")
_ASKED_VERDICT = re.compile(r"\W*(?:yes|no)\W*\?", re.I)
_LEADS = re.compile(r"\W*(?:no|yes)\b", re.I)
# A mark alone is an answer; boxes of a form that are not ticked are none.
_TICKS: dict[str, Outcome] = dict.fromkeys(("✓", "✔", "✅", "☑", "(+)", "[x]"), "yes")
_TICKS |= dict.fromkeys(("✗", "✘", "✖", "✕", "❌", "☒", "(-)", "[ ]"), "no")
_UNTICKED = re.compile(r"(?:\[\s?\]|☐)\s*(?:yes|no|present|absent|positive|negative)\b", re.I)
_NOT_VERDICT = lexicon.pattern("not_verdict", re.I)
_OTHER = lexicon.pattern("other", re.IGNORECASE)
_MARKS = frozenset(",/()[]:=?|")
TURNED: dict[Outcome, Outcome] = {"yes": "no", "no": "yes"}
ANY_FINDING = "cardiopulmonary abnormality"
_CHANGES: tuple[Time, ...] = ("better", "worse", "new", "unchanged", "resolved")
# Verdicts by themselves stand near an answer's begin or end.
_LONGEST_READ = 6_000
_LONGEST_QUESTION = 4_000  # characters
_NEAR = 60  # characters before a finding that tell which one it is
_REFUSAL_REACH = 5


@dataclasses.dataclass(frozen=True)
class AnswerReading:
    """Reading of an answer: its outcome and its assertions.

    Attributes:
        outcome: of what is asked; None where nothing is asked.
        unsaid: findings of which it asserts nothing firm, each with the reason.
        assertions: everything that it asserts; beside a question, without the reason after it.
    """

    outcome: Outcome | None
    assertions: tuple[Assertion, ...]
    unsaid: tuple[Unsaid, ...] = ()


@dataclasses.dataclass(frozen=True)
class AskedFor:
    """Subject of a question.

    Attributes:
        findings: names; empty where it asks for any.
        side: left or right, where it asks of one.
        counts: it asks how many there are.
        is_denied: yes means that the findings are absent ("Are the lungs clear?").
        organ: the words of the organ whose state is asked.
        of_both: it asks of both sides.
        change: how the findings compare with before, where it asks that; "any" if it asks whether
            they have changed, "still" whether they are there yet.
    """

    findings: tuple[str, ...]
    side: str | None = None
    counts: bool = False
    is_denied: bool = False
    organ: str = ""
    of_both: bool = False
    change: Time | Literal["any", "still", ""] = ""


NOTHING_ASKED = AskedFor(())


class _Part(NamedTuple):
    """A sentence of an answer, with the phrases of answers in it."""

    start: int
    end: int
    tokens: Words
    said: Sequence[Match[str]]

    def has(self, kind: str) -> bool:
        return any(match.payload == kind for match in self.said)


class EnglishReader:
    """Reads answers beside their questions, in English or glossed in it.

    Args:
        gloss: gives a text in English, and the place in it of each character; None if unchanged.
    """

    def __init__(
        self,
        english: lexicon.English | None = None,
        gloss: Callable[[str], tuple[str, Sequence[int] | None]] = in_english,
    ) -> None:
        self._english, self._gloss = english or lexicon.load_english(), gloss
        self._reports = ReportReader(self._english)
        said = [(" ".join(phrase), kind) for phrase, kind in self._english.answers.items()]
        self._verdicts = PhraseIndex(one for one in said if one[1] in (*_VERDICTS, "agrees"))
        self._manners = PhraseIndex(one for one in said if one[1] not in (*_VERDICTS, "agrees"))
        self.asked = functools.lru_cache(maxsize=4096)(self._asked)
        # Models answer in templates: the same words again and again.
        self._in_english = functools.lru_cache(maxsize=8192)(self._reports.read_all)
        self.read_about = functools.lru_cache(maxsize=8192)(self._read_about)

    def read(self, text: str, question: str | None = None, has_box: bool = False) -> AnswerReading:
        """Reads an answer, or a text that answers no question.

        Args:
            question: None where the text answers none; then there is no outcome.
            has_box: whether the answer gives a box in a notation or field of its own.
        """
        if question is None:
            english, places = self._gloss(text)
            found, unsaid = self._in_english(english)
            return AnswerReading(
                None,
                tuple(_placed(one, places) for one in found),
                tuple(_placed(one, places) for one in unsaid),
            )
        return self.read_about(text, self.asked(question), has_box)

    def _read_about(self, text: str, asked: AskedFor, has_box: bool = False) -> AnswerReading:
        """Reads an answer to a question that has been read already."""
        english, places = self._gloss(text)
        said = _own_words(english)
        assertions, unsaid = self._in_english(said)
        (_, end), _ = _own_part(lexicon.plain_text(said))
        kept = tuple(_placed(one, places) for one in assertions if one.span[0] < end)
        outcome = self._outcome(said, assertions, asked, has_box)
        reasons = {one.reason for one in unsaid if one.finding in asked.findings}
        if "said nothing" in reasons and outcome in ("nothing", "no") and not _LEADS.match(said):
            outcome = "undecided"
        elif "explained" in reasons and outcome in ("nothing", "off_topic"):
            outcome = "yes" if asked.is_denied else "no"
        here = {o.side for o in kept if o.finding in asked.findings and _is_firm(o, "present")}
        if asked.of_both and outcome == "yes" and here in ({"left"}, {"right"}):
            outcome = "no"  # "it is only on the left"
        if asked.change:
            outcome = self._compared(said, kept, asked, outcome)
        return AnswerReading(outcome, kept, tuple(_placed(one, places) for one in unsaid))

    def opening(self, text: str, asked: AskedFor = NOTHING_ASKED) -> Outcome | None:
        """Returns an answer's explicit verdict: "no" for "No, there is a mass", None for "No mass".

        Args:
            asked: what "normal" and "abnormal" answer.
        """
        said = _own_words(self._gloss(text)[0])
        (start, end), _ = _own_part(lexicon.plain_text(said))
        return self._verdict(self._parts(said, start, end), asked)[0]

    def _outcome(
        self, said: str, assertions: Sequence[Assertion], asked: AskedFor, has_box: bool
    ) -> Outcome:
        """Decides the outcome of an answer, by the answer's own part if that decides anything."""
        plain = lexicon.plain_text(said)
        if (mark := plain.strip(" \n.*_-|")) in _TICKS:
            return _TICKS[mark]
        if not re.search(r"[a-z0-9]", plain):
            return "yes" if has_box and not asked.is_denied else "nothing"
        (start, end), retracts = _own_part(plain)
        outcome = self._decided(said, (start, end), assertions, asked)
        if outcome in ("off_topic", "nothing"):
            if retracts:
                return "undecided"
            if (start, end) != (0, len(said)):
                whole = self._decided(said, (0, len(said)), assertions, asked)
                outcome = outcome if whole == "nothing" else whole
        return "yes" if outcome == "nothing" and has_box and not asked.is_denied else outcome

    def _asked(self, question: str) -> AskedFor:
        question = self._gloss(question[-_LONGEST_QUESTION:])[0]  # what is asked stands last
        plain = lexicon.plain_text(question)
        tokens = self._english.read_tokens(plain, 0, len(plain)).tokens
        sides = {token.lemma for token in tokens} & {"left", "right"}
        side = sides.pop() if len(sides) == 1 else None
        counts = _ASKS_NUMBER.search(plain) is not None
        # As a statement the question says what yes would.
        said = self._reports.read(question.replace("?", " "))
        denied = [one for one in said if one.is_now and one.status == "absent"]
        others = [one for one in said if one not in denied]
        items = find_items(tokens, self._english)
        names = [one.finding for one in others or denied]
        names = names or [name for item in items for name in item.names]
        organs = self._english.subjects.find(tokens)
        is_denied = bool(denied) and not others
        words = {token.lemma for token in tokens}
        if not names:
            states = self._english.language.normal_states.find(tokens)
            if states or words & {"abnormal", "wrong"}:
                names = [*organs[0].payload.normal] if organs else [ANY_FINDING]
                is_denied = bool(states)
        if is_denied and organs and words & {"normal", "unremarkable"}:
            names += [what for _, what in organs[0].payload.states.items()]
        organ = ""
        if organs and (not items or any(item.statement for item in items)):
            organ = " ".join(token.lemma for token in tokens[organs[0].first : organs[0].last])
        of_both = bool(words & {"bilateral", "bilaterally", "both"}) and not is_denied
        change: Time | Literal["any", "still", ""] = ""
        if names and words & _words("still"):
            change = "" if is_denied else "still"
        elif names:
            change = next((one.time for one in said if one.time in _CHANGES), "")
            named = {place for item in items for place in item.own}  # "degenerative change"
            beside = {token.lemma for n, token in enumerate(tokens) if n not in named}
            change = change or ("any" if beside & _words("changing") else "")
        findings = tuple(dict.fromkeys(names))
        return AskedFor(findings, side, counts, is_denied, organ, of_both, change)

    def _compared(
        self, said: str, kept: Sequence[Assertion], asked: AskedFor, outcome: Outcome
    ) -> Outcome:
        """Answers a question of a change by the change that an answer tells: "it is unchanged"."""
        parts = self._parts(said, *_own_part(lexicon.plain_text(said))[0])
        if not parts:
            return outcome
        opened = {*(_bare(parts[0]) or self._opening(parts[0]))} & {"yes", "no"}
        if not any(one.finding in asked.findings for one in kept):
            left_out = _words("stand_for") | _words("bare") | _MARKS
            words = [t.lemma for t in parts[0].tokens if t.lemma not in left_out]
            kept = self._reports.read(f"the {asked.findings[0]} {' '.join(words)}")
        told = {one.time for one in self._about(kept, asked)} - {"current"}
        if len(told) != 1 or (outcome == "undecided" and not opened):
            return outcome
        if not opened and _MODAL_CHANGE.search(lexicon.plain_text(said)):
            return "undecided"  # "it may have decreased"
        (time,) = told
        agrees = time == asked.change or (asked.change, time) == ("better", "resolved")
        agrees |= asked.change == "any" and time != "unchanged"
        agrees |= asked.change == "still" and time != "resolved"
        compared: Outcome = "yes" if agrees else "no"
        return compared if opened <= {compared} else "undecided"  # "yes, it is unchanged"

    def _parts(self, said: str, start: int, end: int) -> list[_Part]:
        """The sentences of a part of an answer that answer something."""
        end = min(end, start + _LONGEST_READ)
        plain = _without_accents(lexicon.plain_text(said[start:end]))
        found = []
        for a, b in lexicon.split_sentences(said[start:end]):
            tokens = Words(map(self._mended, self._english.read_tokens(plain, a, b).tokens))
            if any(map(_is_word, tokens)):
                found.append(_Part(start + a, start + b, tokens, self._said(tokens)))
        return [part for part in found if not part.has("chats")]

    def _said(self, tokens: Sequence[Word]) -> list[Match[str]]:
        """Phrases of answers; "not entirely sure" is "not sure"."""
        kept = [n for n, t in enumerate(tokens) if t.lemma not in _words("answer_fillers")]
        words = [tokens[n] for n in kept]
        manners = self._manners.find(words)
        taken = {place for m in manners for place in range(m.first, m.last)}
        verdicts = [
            match
            for match in self._verdicts.find(words)
            if taken.isdisjoint(range(match.first, match.last))
        ]
        begins = {match.first for match in verdicts}
        ends = {match.last for match in verdicts}
        # "It is midline" says what midline does, "none is seen" what none does.
        closed = [
            match
            for match in verdicts
            if (match.last not in begins or words[match.last - 1].lemma not in _words("open_ended"))
            and (match.first not in ends or words[match.last - 1].lemma not in _words("detected"))
        ]
        return [
            Match(kept[m.first], kept[m.last - 1] + 1, m.payload)
            for m in sorted([*manners, *closed], key=lambda m: m.first)
        ]

    def _mended(self, token: Word) -> Word:
        is_known = not token.lemma.isalpha() or token.lemma in self._english.known
        return token if is_known else token._replace(lemma=_close_word(token.lemma))

    def _decided(
        self, said: str, span: tuple[int, int], assertions: Sequence[Assertion], asked: AskedFor
    ) -> Outcome:
        """Decides the outcome of a part of an answer."""
        start, end = span
        parts = self._parts(said, start, end)
        lower = lexicon.plain_text(said)
        told = [
            part
            for part in parts
            if not (part.has("teaches") or _TEACHES.match(lower, part.start, part.end))
        ]
        main = [part for part in told if not part.has("background")] or told
        left_out = [part for part in parts if part not in main]
        # "A blunted angle, which may be an effusion" says no more of it than that.
        meant = {one.source for one in assertions if _explains(one, assertions)}
        kept = [one for place, one in enumerate(assertions) if place not in meant]
        here = _outside(kept, start, end, [(p.start, p.end) for p in left_out])
        refused = [clause for part in main for clause in _refused(said, part)]
        here = _outside(here, start, end, refused)
        about = self._about([one for one in here if one.is_now], asked)
        stated = stated_outcome(about)
        if stated == "yes" and _gainsaid(said[start:end], about):
            stated = "undecided"
        if asked.is_denied and stated:
            stated = TURNED.get(stated, stated)
        opened, place = self._verdict(main, asked)
        if (sided := self._of_side(main, asked)) is not None:
            return sided
        if opened == "yes" and not about and (_elsewhere(here, asked) or self._beside(main, asked)):
            return "off_topic"
        if opened == "undecided" and all(one.span[0] < place or place < 0 for one in about):
            return opened
        if opened and stated and "undecided" not in (opened, stated):
            about = [
                one
                for one in about
                if not _OTHER.search(said, max(0, one.span[0] - _NEAR), one.span[0])
            ]
            status = "present" if (stated == "yes") != asked.is_denied else "absent"
            if any(one.status != status for one in _elsewhere(here, asked)):
                return stated  # "Yes, on the left, and none on the right"
        if outcome := decide(opened, stated, about, asked.is_denied):
            return outcome
        if refused or any(part.has("refuses") for part in main):
            return "undecided"
        now = [one for one in here if one.is_now]
        if not asked.findings and now:
            return stated_outcome(now) or "undecided"
        if self._about(
            [dataclasses.replace(o, time="current") for o in here if not o.is_now], asked
        ):
            return "undecided"
        if now and any(part.has("else_normal") for part in main):
            return meaning("normal", asked)
        if now:
            return "off_topic"
        if any(part.has("agrees") for part in main):
            return "yes"
        return self._without_findings(said[start:end], main, asked)

    def _about(self, here: Sequence[Assertion], asked: AskedFor) -> list[Assertion]:
        """The assertions that decide what is asked: of its side and of it by name, if any are."""
        graded = [(self._bearing(one, asked), one) for one in here]
        about = [(grade, one) for grade, one in graded if grade]
        if asked.side and any(one.side in (asked.side, "bilateral") for _, one in about):
            about = [(g, one) for g, one in about if one.side in (asked.side, "bilateral")]
        elif other := {(one.finding, one.status) for one in _elsewhere(here, asked)}:
            about = [(g, o) for g, o in about if o.side or (o.finding, o.status) not in other]
        best = max((grade for grade, _ in about), default=0)
        return [one for grade, one in about if grade == best]

    def _bearing(self, one: Assertion, asked: AskedFor) -> int:
        """Bearing of an assertion on what is asked: 2 by name or kind, 1 by what is more general
        (or, of a question of normality, less), 0 for none."""
        if asked.side and one.side in ("left", "right") and one.side != asked.side:
            return 0
        definitions = self._english.definitions
        ancestors = definitions.finding_ancestors
        kind = definitions.findings.get(one.finding)
        best = 0
        for name in asked.findings:
            general = name == ANY_FINDING and kind is not None and kind.category == "abnormality"
            if one.finding == name:
                return 2
            is_kind = name in ancestors(one.finding) or general
            if one.status != "absent":
                if is_kind:
                    return 2
            elif one.finding in (*ancestors(name), ANY_FINDING) or (
                (general and one.organ) or (is_kind and not general and asked.is_denied)
            ):
                best = 1
        return best

    def _verdict(self, parts: Sequence[_Part], asked: AskedFor) -> tuple[Outcome | None, int]:
        """Returns the outcome of an answer's separate words of yes and no, and the position of the
        last of them; -1 if they contradict each other."""
        said: list[Outcome] = []
        place = -1
        for number, part in enumerate(parts):
            kinds = _bare(part)
            if number == 0 and not kinds:
                kinds = self._opening(part)
            said += [meaning(kind, asked) for kind in kinds]
            place = part.start if kinds else place
        mixed = {"yes", "no"} <= {*said}
        return ("undecided", -1) if mixed else (said[-1], place) if said else (None, -1)

    def _of_side(self, parts: Sequence[_Part], asked: AskedFor) -> Outcome | None:
        """The verdict that is said of the side asked, "none on the left", or of each side."""
        found: dict[str, Outcome] = {}
        for part in parts:
            for segment in (*_segments(part.tokens, _MARKS - {":"}), range(len(part.tokens))):
                words = [part.tokens[place] for place in segment if _is_word(part.tokens[place])]
                said = [m for m in self._said(words) if m.payload in _VERDICTS]
                taken = {place for m in said for place in range(m.first, m.last)}
                rest = [word for place, word in enumerate(words) if place not in taken]
                sides = {word.lemma for word in rest} & {"left", "right"}
                kinds = {match.payload for match in said}
                plain = asked.side or any(words[m.first].lemma in _words("bare") for m in said)
                if len(kinds) == len(sides) == 1 and plain and _is_place(rest, self._english):
                    found[sides.pop()] = meaning(said[-1].payload, asked)
        if asked.side or len(found) < 2 or found["left"] == found["right"]:
            return found.get(asked.side or ("left" if len(found) > 1 else ""))
        mixed: Outcome = "no" if asked.of_both or asked.is_denied else "yes"
        return mixed if mixed in found.values() and not asked.change else "undecided"

    def _beside(self, parts: Sequence[_Part], asked: AskedFor) -> bool:
        """Returns whether an answer places the finding on the other side: "yes, on the right"."""
        named: set[str] = set()
        for part in parts if asked.side else ():
            taken = {place for m in part.said for place in range(m.first, m.last)}
            for segment in _segments(part.tokens, _MARKS - {":"}):
                rest = [part.tokens[n] for n in segment if n not in taken]
                words = [word for word in rest if _is_word(word)]
                # "Yes, right" agrees.
                agrees = [word.lemma for word in words] == ["right"]
                if words and _is_place(words, self._english) and not agrees:
                    named |= {word.lemma for word in words} & {"left", "right", "bilateral", "both"}
        return len(named) == 1 and named <= {"left", "right"} - {asked.side}

    def _opening(self, part: _Part) -> list[str]:
        """Returns the verdict that opens a sentence which goes on without overriding it."""
        by_start = {match.first: match for match in part.said}
        leads = _words("answer_leads")
        words = (n for n, t in enumerate(part.tokens) if _is_word(t) and t.lemma not in leads)
        opening = by_start.get(min([*by_start, next(words, len(part.tokens))]))
        if opening is None or opening.payload not in _VERDICTS:
            return []
        word = part.tokens[opening.first].lemma
        # "No effusion" is said by its assertion, "likely small" by all its words.
        denies = word in ("no", "n") and find_items(part.tokens, self._english)
        return [opening.payload] if word in _words("bare") and not denies else []

    def _without_findings(self, said: str, parts: Sequence[_Part], asked: AskedFor) -> Outcome:
        """Decides an answer that names no finding and has no separate yes or no."""
        words = [t for part in parts for t in part.tokens if _is_word(t)]
        said_kinds = {m.payload for part in parts for m in part.said if not _goes_on(part, m)}
        kinds = {meaning(kind, asked) for kind in said_kinds if kind in _VERDICTS}
        if not words:
            return "nothing"
        if "undecided" in kinds:
            return "undecided"
        # A state alone, or of a pronoun, is that of what is asked.
        subject = asked.organ
        if not subject and asked.findings and words[0].lemma in ("it", "they"):
            subject = asked.findings[0]
        if subject:
            state = " ".join(t.lemma for t in parts[0].tokens if t.lemma not in _words("stand_for"))
            read = self._reports.read(f"the {subject} {state}")
            stated = stated_outcome(self._about([one for one in read if one.is_now], asked))
            # A finding that is only named again is not said to be there.
            if stated and (asked.organ or stated != "yes"):
                return TURNED.get(stated, stated) if asked.is_denied else stated
        number = _NUMBER.match(lexicon.plain_text(said))
        if number and (asked.counts or not number["number"].isdigit() or len(words) == 1):
            return "no" if number["number"] in _ZERO else "yes"
        if not asked.is_denied and (
            _MEASURE.search(lexicon.plain_text(said[:400])) or _is_place(words, self._english)
        ):
            sides = {token.lemma for token in words} & {"left", "right"}
            if asked.of_both and len(sides) == 1:
                return "no"
            return "off_topic" if asked.side and sides - {asked.side} else "yes"
        return kinds.pop() if len(kinds) == 1 and len(words) <= 12 else "nothing"


_VERDICTS = ("yes", "no", "undecided", "normal", "abnormal", "here", "gone")


@functools.cache
def _words(name: str) -> frozenset[str]:
    """Small words of answers by what they do."""
    return frozenset(lemma(word) for word in lexicon.word_set(name))


@functools.cache
def _unable() -> PhraseIndex[str]:
    return PhraseIndex((phrase, phrase) for phrase in lexicon.word_set("unable"))


@functools.lru_cache(maxsize=1 << 14)
def _close_word(word: str) -> str:
    """The common word of answers that one is a misspelling of, else itself."""
    close = difflib.get_close_matches(word, _words("answer_mended"), n=1, cutoff=0.86)
    return close[0] if close and close[0] not in word else word


def _without_accents(text: str) -> str:
    """The text with its accented letters plain, every character at its place."""
    plain = (unicodedata.normalize("NFKD", c)[0] for c in text)
    return text if text.isascii() else "".join(plain)


def _is_word(token: Word) -> bool:
    return token.lemma[0].isalnum()


def _goes_on(part: _Part, match: Match[str]) -> bool:
    """Returns whether a phrase like "it has" is followed by its complement."""
    is_open = part.tokens[match.last - 1].lemma in _words("open_ended")
    return is_open and match.last < len(part.tokens) and _is_word(part.tokens[match.last])


def meaning(kind: str, asked: AskedFor) -> Outcome:
    """The verdict that a kind of phrase is on what is asked."""
    if kind == "normal":
        return "yes" if asked.is_denied else "no"
    if kind == "abnormal":
        is_any = ANY_FINDING in asked.findings
        return "no" if asked.is_denied else "yes" if is_any else "undecided"
    if kind in ("here", "gone"):
        return "yes" if (kind == "here") != asked.is_denied else "no"
    return kind  # type: ignore[return-value]


_Placed = TypeVar("_Placed", Assertion, Unsaid)


def _placed(one: _Placed, places: Sequence[int] | None) -> _Placed:
    """Returns it with its span at these places."""
    if places is None:
        return one
    span = places[one.span[0]], places[one.span[1]]
    if isinstance(one, Unsaid):
        return one._replace(span=span)
    return dataclasses.replace(one, span=span)


def without_thoughts(text: str) -> str:
    """The text with what it thinks before it answers, and the choices of a form, blanked out."""
    thought = thought_length(text)
    text = " " * thought + text[thought:]
    text = _UNTICKED.sub(lambda match: " " * len(match[0]), text)
    return _NO_ANSWER.sub(lambda match: " " * len(match[0]), text)


def _own_words(text: str) -> str:
    """The answer without thoughts, further turns and sentences that ask, every character at its
    place."""
    text = without_thoughts(text)
    lower = text.lower() if len(text.lower()) == len(text) else text
    first = re.search(r"[a-z0-9]", lexicon.plain_text(text))
    turns = (m.start() for m in _NEXT_TURN.finditer(lower) if first and m.start() > first.start())
    cut = next(turns, len(text))
    kept = list(text[:cut])
    last = len(text[:cut].rstrip())
    for start, end in lexicon.split_sentences(text[:cut]):
        sentence = text[start:end].rstrip()
        if not sentence.endswith("?"):
            if _INVERTED.match(sentence.lower()) and "?" not in sentence:
                kept[start:end] = " " * (end - start)
            continue
        alone = _ASKED_VERDICT.fullmatch(sentence) and start + len(sentence) < last
        if alone or _ASKING.match(sentence.lower()) or len(sentence.split(None, 5)) > 4:
            kept[start:end] = " " * (end - start)
        elif start + len(sentence) < last:
            kept[start + len(sentence) - 1] = ":"  # "Effusion? No."
    own = _NOT_VERDICT.sub(_turned_verdict, lexicon.with_table_rows("".join(kept)))
    return own + " " * (len(text) - cut)


def _turned_verdict(said: re.Match[str]) -> str:
    """The verdict of "not yes", as long as it is."""
    return (" no" if said[1].lower() == "yes" else " yes").ljust(len(said[0]))


def _own_part(plain: str) -> tuple[tuple[int, int], bool]:
    """First character and end of an answer's own part, and whether it takes back what was said."""
    start, end = 0, len(plain)
    for match in _ANSWER.finditer(plain):
        start = match.end()
    retracts = False
    for match in _RETRACTION.finditer(plain, start):
        start, retracts = match.end(), True
    reason = _REASON.search(plain, start)
    if reason is not None and re.search(r"[a-z0-9]", plain[start : reason.start()]):
        end = reason.start()
    return (start, end), retracts


def without_reason(text: str) -> str:
    """The text before a reason that follows it; the whole where nothing stands before one."""
    (_, end), _ = _own_part(lexicon.plain_text(text))
    return text[:end]


def _refused(said: str, part: _Part) -> Iterator[tuple[int, int]]:
    """Clauses from where whoever answers says that they cannot tell."""
    for match in _unable().find(part.tokens):
        near = part.tokens[match.first : match.last + _REFUSAL_REACH]
        if any(token.lemma in _words("knowing") for token in near):
            behind = part.start + part.tokens[match.last - 1].end
            close = _CLAUSE_END.search(said[behind : part.end].lower())
            start = part.start + part.tokens[match.first].start
            yield start, behind + close.start() if close else part.end


def _outside(
    assertions: Sequence[Assertion], start: int, end: int, spans: Sequence[tuple[int, int]]
) -> list[Assertion]:
    """The assertions from `start` to `end` that are in none of the spans."""
    return [
        one
        for one in assertions
        if start <= one.span[0] < end and not any(a <= one.span[0] < b for a, b in spans)
    ]


def _segments(tokens: Sequence[Word], marks: frozenset[str] = _MARKS) -> list[list[int]]:
    """Places of words, in runs between marks."""
    runs = itertools.groupby(range(len(tokens)), lambda place: tokens[place].lemma in marks)
    return [list(places) for is_mark, places in runs if not is_mark]


def _bare(part: _Part) -> list[str]:
    """Verdicts that stand by themselves: as the whole sentence, at its begin before a comma, or
    as a plain yes or no between marks. "Effusion: no" is read as an assertion."""
    verdict_of = {place: match for match in part.said for place in range(match.first, match.last)}
    segments = _segments(part.tokens)
    said = [_is_said(part, segment, verdict_of) for segment in segments]
    for number in range(len(segments) - 1, 0, -1):
        between = part.tokens[segments[number - 1][-1] + 1 : segments[number][0]]
        if not said[number - 1] and any(token.lemma == ":" for token in between):
            said[number] = False
    found: list[str] = []
    for number, segment in enumerate(segments):
        places = [place for place in segment if place in verdict_of]
        if not said[number] or not places:
            continue
        strong = part.tokens[places[0]].lemma in _words("bare")
        if strong or all(said) or (not found and all(said[:number])):
            kinds = (verdict_of[place].payload for place in places)
            found += [kind for kind in dict.fromkeys(kinds) if kind in _VERDICTS]
    return found


def _is_said(part: _Part, segment: Sequence[int], verdict_of: dict[int, Match[str]]) -> bool:
    """Returns whether words are only verdicts and words that may surround them."""
    return all(
        verdict_of[place].payload in (*_VERDICTS, "agrees")
        if place in verdict_of
        else part.tokens[place].lemma in _words("answer_leads")
        for place in segment
    )


def _elsewhere(here: Sequence[Assertion], asked: AskedFor) -> list[Assertion]:
    """Returns present assertions of the findings asked for that are about the other side."""
    others = {"left", "right"} - {asked.side} if asked.side else set[str]()
    named = [one for one in here if one.is_now and one.finding in asked.findings]
    return [one for one in named if one.side in others]


def decide(
    opened: Outcome | None,
    stated: Outcome | None,
    about: Sequence[Assertion],
    is_denied: bool = False,
) -> Outcome | None:
    """The outcome of what opens an answer and what its assertions state, which may gainsay it.

    Args:
        is_denied: as in `AskedFor`.
    """
    if not opened or not stated or opened == stated:
        return opened or stated
    if "undecided" in (opened, stated):
        return opened if stated == "undecided" else stated
    status = "present" if (stated == "yes") != is_denied else "absent"
    return "undecided" if any(_is_firm(one, status) for one in about) else opened


def stated_outcome(about: Sequence[Assertion]) -> Outcome | None:
    """Combines assertions about the same thing into one outcome."""
    statuses = {one.status for one in about}
    if "present" in statuses:
        here = {(o.finding, o.side, o.regions) for o in about if _is_firm(o, "present")}
        denied = {(o.finding, o.side, o.regions) for o in about if _is_firm(o, "absent")}
        return "undecided" if here & denied else "yes"
    return "undecided" if "uncertain" in statuses else "no" if statuses else None


def _explains(one: Assertion, assertions: Sequence[Assertion]) -> bool:
    """Returns whether an assertion explains another one of the same finding."""
    return one.source is not None and assertions[one.source].finding == one.finding


def _gainsaid(said: str, about: Sequence[Assertion]) -> bool:
    """Returns whether a finding is asserted and also denied: "No effusion. A left effusion."."""
    here = {one.finding for one in about if _is_firm(one, "present")}
    denied = {o.finding for o in about if _is_firm(o, "absent") and not (o.side or o.regions)}
    return bool(here & denied) and _EXCEPT.search(lexicon.plain_text(said)) is None


def _is_firm(one: Assertion, status: str) -> bool:
    return one.status == status and one.certainty == "certain"


def _is_place(tokens: Sequence[Word], english: lexicon.English) -> bool:
    """Returns whether words name only a place or a size."""
    places = [(m.first, m.last) for m in english.definitions.region_names.find(tokens)]
    sizes = [(m.first, m.last) for m in english.language.modifiers.find(tokens)]
    covered = {place for span in (*places, *sizes) for place in range(*span)}
    words = [token.lemma for token in tokens if _is_word(token)]
    rest = [t.lemma for n, t in enumerate(tokens) if n not in covered and _is_word(t)]
    has_side = bool({"left", "right", "bilateral", "both"} & {*words})
    return (bool(covered) or has_side) and {*rest} <= _words("place_words")
