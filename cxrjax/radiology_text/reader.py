"""Reads what English reports and answers assert of findings.

    sentence -> tokens -> findings, organs' states -> cues -> scopes -> places -> assertions

Vietnamese and Chinese come here in the English of `vietnamese.py` and `chinese.py`.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Sequence

from cxrjax.radiology_text import lexicon
from cxrjax.radiology_text.assertions import NOT_NOW, Assertion, Unsaid
from cxrjax.radiology_text.definitions import Definitions
from cxrjax.radiology_text.explained import EXPLAINABLE, is_cause, refers_to_sign
from cxrjax.radiology_text.places import OPPOSITE
from cxrjax.radiology_text.statements import NOTHING, SUPPOSES, read_sentence

# Reports repeat themselves, and models answer in templates.
_KEPT_SENTENCES = 1 << 14
_SHORT_ANSWER = 60
_VERDICT = lexicon.pattern("verdict_behind")
# Of a question that is answered at once: the mark, and what stands before the answer.
_ASKED = lexicon.pattern("asked")
_REFERS = lexicon.pattern("refers")
_ONLY = re.compile(r"\bonly\s+(?:the\s+)?\Z")
_CORRECTS = re.compile(r"\W*(?:correction|corrigendum|erratum)\b")


class ReportReader:
    """Reads English text; the same text always gives the same assertions."""

    def __init__(self, english: lexicon.English | None = None) -> None:
        self._english = english or lexicon.load_english()
        self._in_sentence = functools.lru_cache(maxsize=_KEPT_SENTENCES)(
            functools.partial(read_sentence, self._english)
        )

    def read(self, text: str) -> list[Assertion]:
        """Returns a text's assertions, in order. Questions assert nothing with certainty."""
        return self.read_all(text)[0]

    def read_all(self, text: str) -> tuple[list[Assertion], list[Unsaid]]:
        """Returns a text's assertions, and the findings that it names and asserts nothing of."""
        text = lexicon.with_table_rows(text)
        unsaid: list[Unsaid] = []
        plain = lexicon.plain_text(text)
        found: list[Assertion] = []
        context = NOTHING
        last = 0
        for start, end in self._joined_answers(plain, lexicon.split_sentences(text)):
            # Every character stays at its place.
            said = plain[start:end]
            if "?" in said:
                said = _ASKED.sub(lambda m: ":".ljust(len(m.group())), said, count=1)
            refers = _REFERS.search(said) is not None
            joined = refers or text[max(0, start - 1) : start] == ";"
            before = context if joined else NOTHING._replace(sign=context.sign)
            sentence = self._in_sentence(said, before)
            if _CORRECTS.match(said):
                corrected = {one.finding for one in sentence.assertions}
                found = [one for one in found if one.finding not in corrected]
            if refers_to_sign(said):
                _explain_before(found, sentence.assertions, last, self._english.definitions)
            if "?" in plain[max(0, start - 2) : start]:
                found[last:] = _unanswered(found[last:], sentence.assertions)
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
                only = is_reference and _ONLY.search(said, 0, a) is not None
                updated = _update(found, one, only) if is_reference else None
                now_at.append(len(found) if updated is None else updated)
                if updated is None:
                    found.append(one)
            context = sentence.context
        return found, unsaid

    def _joined_answers(
        self, plain: str, sentences: Iterable[tuple[int, int]]
    ) -> Iterator[tuple[int, int]]:
        """Sentences, a question together with the short answer right behind it.

        An answer that names again what is asked about stands by itself.
        """
        held: tuple[int, int] | None = None
        for start, end in sentences:
            if held is not None:
                is_short = end - start < _SHORT_ANSWER and _VERDICT.match(plain, start, end)
                asked = self._named(plain, held) if is_short else set()
                joins = is_short and asked.isdisjoint(self._named(plain, (start, end)))
                yield (held[0], end) if joins else held
                held = None
                if joins:
                    continue
            if plain[start:end].rstrip().endswith("?") and not SUPPOSES.match(plain, start, end):
                held = (start, end)
            else:
                yield start, end
        if held is not None:
            yield held

    def _named(self, plain: str, where: tuple[int, int]) -> set[str]:
        said = self._in_sentence(plain[slice(*where)], NOTHING)
        return {one.finding for one in said.assertions}


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


def _unanswered(asked: list[Assertion], answer: Sequence[Assertion]) -> list[Assertion]:
    """A question's assertions without those that the sentence behind it answers."""
    answered = {one.finding for one in answer if one.is_now}
    if any(one.source is not None for one in asked):
        return asked
    return [one for one in asked if one.is_now or one.finding not in answered]


def _update(found: list[Assertion], new: Assertion, only: bool) -> int | None:
    """Brings what was asserted before up to what is said of it now, and returns its index.

    None where `new` is of another side, or nothing was asserted; `only` of its side, the other
    side has become otherwise.
    """
    of_it = [n for n, one in enumerate(found) if one.finding == new.finding]
    if not of_it:
        return None
    same = [n for n in of_it if found[n].side == new.side or new.side is None]
    if not same:
        old = found[of_it[-1]]
        if new.time == "new" and old.time in NOT_NOW:
            return None  # "earlier films showed no effusion; there is now one on the left"
        if old.side == "bilateral" and new.side in OPPOSITE:
            regions = tuple(r for r in old.regions if new.side not in r)
            old = dataclasses.replace(old, side=OPPOSITE[new.side], regions=regions)
            if only and new.time == "unchanged":
                old = dataclasses.replace(old, status="absent", time="resolved")
            elif only and new.time == "resolved":
                old = dataclasses.replace(old, time="unchanged")
            found[of_it[-1]] = old
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
        time=new.time if new.time != "current" or (told and old.time in NOT_NOW) else old.time,
        side=old.side or new.side,
        regions=old.regions or new.regions,
        severity=new.severity or old.severity,
        sizes=(*old.sizes, *new.sizes),
        distances=(*old.distances, *new.distances),
        cue=new.cue or old.cue,
    )
    return same[-1]
