"""Reads Vietnamese reports and answers into assertions (rules of `vietnamese_mentions.py`)."""

import functools
import re
import unicodedata
from collections.abc import Sequence

from cxrjax.files import read_packaged
from cxrjax.radiology_text.answers import AnswerReading
from cxrjax.radiology_text.assertions import Assertion, Certainty, Outcome, Side, Status, Time
from cxrjax.radiology_text.mention_details import CERTAIN, LIKELY, DetailedMention
from cxrjax.radiology_text.negation import phrase_pattern
from cxrjax.radiology_text.vietnamese_mentions import VietnameseReader

_SIDES: dict[str, Side] = {"left": "left", "right": "right", "both": "bilateral"}
_CLAUSE = re.compile(r"[^.;!?\n,]+")
_NOT_NOW = ("past", "to be ruled out")


class VietnameseTextReader:
    """Reads Vietnamese text, alone or beside its question."""

    def __init__(self) -> None:
        data = read_packaged(str(__package__), "reference/cues_vi.toml")
        self._findings: dict[str, str] = data["findings"]
        self._times = {time: _any(words) for time, words in data["time"].items()}
        self._unlikely = _any(data["unlikely"]["words"])
        self._openings = {said: _any(words, start=True) for said, words in data["answers"].items()}
        self._undecided = _any(data["answers"]["undecided"])
        self._mentions = VietnameseReader()

    def read(self, text: str, question: str | None = None, has_box: bool = False) -> AnswerReading:
        """See `EnglishReader.read`; places in spans are those of the text's NFC form."""
        plain = unicodedata.normalize("NFC", text).lower()
        assertions = tuple(self._assertion(plain, one) for one in self._mentions.read(text))
        if question is None:
            return AnswerReading(None, assertions)
        asked = {self._findings[one.name] for one in self._mentions.read(question.rstrip("? "))}
        return AnswerReading(self._outcome(plain, asked, assertions, has_box), assertions)

    def _assertion(self, plain: str, mention: DetailedMention) -> Assertion:
        clause = next(
            (m.group() for m in _CLAUSE.finditer(plain) if m.start() <= mention.start < m.end()), ""
        )
        time: Time = next(
            (time for time, cue in self._times.items() if cue.search(clause)),
            "current",  # type: ignore[arg-type]
        )
        status: Status = "absent" if mention.negated else "present"
        certainty: Certainty = "certain"
        if not mention.negated and mention.certainty != CERTAIN:
            certainty = "likely" if mention.certainty == LIKELY else "possible"
            status = "present" if certainty == "likely" else "uncertain"
        if self._unlikely.search(clause):
            status, certainty = "uncertain", "unlikely"
        if time == "resolved":
            status, certainty = "absent", "certain"
        if time in _NOT_NOW:
            status, certainty = "uncertain", "possible"
        return Assertion(
            self._findings[mention.name],
            status,
            certainty,
            time,
            _SIDES.get(mention.side),
            severity=mention.severity or None,
            span=(mention.start, mention.end),
        )

    def _outcome(
        self, plain: str, asked: set[str], assertions: Sequence[Assertion], has_box: bool
    ) -> Outcome:
        if not re.search(r"\w", plain):
            return "yes" if has_box else "nothing"
        about = [one for one in assertions if one.is_now and one.finding in asked]
        statuses = {one.status for one in about}
        stated: Outcome | None = None
        if statuses:
            present = "present" in statuses
            stated = "yes" if present else "undecided" if "uncertain" in statuses else "no"
        opened = next(
            (said for said in ("undecided", "yes", "no") if self._openings[said].match(plain)), None
        )
        if stated:
            return stated
        if assertions and asked:
            return "off_topic"
        if opened:
            return opened  # type: ignore[return-value]
        if self._undecided.search(plain):
            return "undecided"
        if assertions:
            return "yes" if any(one.status == "present" for one in assertions) else "no"
        return "yes" if has_box else "nothing"


@functools.cache
def _joined(words: tuple[str, ...], start: bool) -> re.Pattern[str]:
    opening = r"^\W*" if start else r"\b"
    return phrase_pattern(rf"{opening}(?:{'|'.join(words)})(?!\w)")


def _any(words: Sequence[str], start: bool = False) -> re.Pattern[str]:
    return _joined(tuple(words), start)
