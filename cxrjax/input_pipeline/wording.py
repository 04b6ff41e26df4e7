"""Questions in other words, and questions about what nobody was taught.

Only the question is put otherwise: the answer keeps the finding's own name. What a question becomes
is a function of a seed alone; wording.toml has the words and how often each change is made.
"""

import dataclasses
import functools
import re
import string
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cxrjax.files import read_packaged
from cxrjax.records import Answer, QARecord

_WORDS: dict[str, Any] = read_packaged(str(__package__), "wording.toml")
# Kind of change -> how often it is made, in the order of making them.
_RATES: dict[str, float] = _WORDS["rates"]
_UNKNOWN = "unknown"
# What `reword` can do.
REWORDINGS: tuple[str, ...] = (*_RATES, _UNKNOWN)
# The one answer to a question about something that the model was not taught.
UNKNOWN_ANSWER: str = _WORDS["unknown"]["answer"]
TRAIN_THINGS: tuple[str, ...] = tuple(_WORDS["unknown"]["train"])
HELD_OUT: tuple[str, ...] = tuple(_WORDS["unknown"]["held_out"])
# `question_type` of a record that is about one of them.
UNKNOWN_TYPE = "Unknown"
_MOST_WORDS = 4  # of a synonym: longer ones describe
_SHORTEST_MISTYPED = 4  # letters


def says_unknown(text: str) -> bool:
    """Returns whether an answer is `UNKNOWN_ANSWER`, up to case and the final full stop."""
    return text.strip().rstrip(".").lower() == UNKNOWN_ANSWER.rstrip(".").lower()


@functools.cache
def synonyms(name: str) -> tuple[str, ...]:
    """Other names by which people ask for a finding or a part of the body."""
    # Not at the top: --help of commands that name prompts stays quick.
    from cxrjax.radiology_text.definitions import load_definitions

    definitions = load_definitions()
    classes = read_packaged("cxrjax.radiology_text", "reference/vindr_classes.toml")["en"]
    stands_for = classes.get(name, (name.lower(),))
    entries: list[Any] = [
        definitions.findings[one] for one in stands_for if one in definitions.findings
    ]
    # Of a class that is seen in several organs: nobody means lungs who says aorta.
    entries = [one for one in entries if one.subcategory == entries[0].subcategory]
    if (region := definitions.regions.get(name.lower())) is not None:
        entries.append(region)
    known = [word for one in entries for word in (one.name, *one.synonyms)]
    known += _WORDS["synonyms"].get(name, [])
    usable = (
        word
        for word in known
        if len(word.split()) <= _MOST_WORDS and word not in _WORDS["not_asked"]
    )
    return tuple(dict.fromkeys(word for word in usable if word != name.lower()))


class _Asked(NamedTuple):
    """A question, and the name in it of what it asks about; no name where it asks in general."""

    question: str
    name: str | None

    def about(self, name: str) -> "_Asked":
        """Returns the question with its finding's name replaced by `name`."""
        assert self.name is not None
        before, found, after = self.question.partition(self.name)
        return _Asked(before + name + after, name) if found else self


def _asked(record: QARecord) -> _Asked:
    named = record.finding
    if named is None or named.lower() in _WORDS["no_things"]:
        return _Asked(record.question, None)
    found = re.search(rf"\b{re.escape(named)}(?!\w)", record.question, re.IGNORECASE)
    return _Asked(record.question, found.group() if found else None)


def _changed(
    asked: _Asked, kind: str, finding: str | None, question_type: str, rng: np.random.Generator
) -> _Asked:
    """The question after a change of this kind; itself where there is none."""
    question, name = asked
    match kind:
        case "synonym" if name is not None and (others := synonyms(str(finding))):
            return asked.about(_drawn(others, rng))
        case "form" if name is not None and (forms := _WORDS["forms"].get(question_type)):
            return _Asked(_drawn(forms, rng).format(x=name), name)
        case "lower":
            return _Asked(question.lower(), name and name.lower())
        case "upper":
            return _Asked(question.upper(), name and name.upper())
        case "title":
            return _Asked(string.capwords(question), name and string.capwords(name))
        case "no_mark":
            return _Asked(question.rstrip(" ?."), name)
        case "typo":
            return _Asked(_mistyped(question, rng), name)
    return asked


def _drawn(words: Sequence[str], rng: np.random.Generator) -> str:
    return words[int(rng.random() * len(words))]


def _mistyped(text: str, rng: np.random.Generator) -> str:
    """The text with a letter left out, doubled, or changed with the next, in one word."""
    words = [m.span() for m in re.finditer(rf"[A-Za-z]{{{_SHORTEST_MISTYPED},}}", text)]
    if not words:
        return text
    start, end = words[int(rng.random() * len(words))]
    place = start + int(rng.random() * (end - start - 1))
    one, other = text[place], text[place + 1]
    said = (other, one + one + other, other + one)[int(rng.random() * 3)]
    return text[:place] + said + text[place + 2 :]


def _put(record: QARecord, asked: _Asked) -> QARecord:
    """The record asked so; formats that ask by the finding's name ask by the new one."""
    update: dict[str, Any] = {"question": asked.question}
    if asked.name is not None:
        update["variables"] = {**(record.variables or {}), "finding": asked.name}
    return record.model_copy(update=update)


def reword(record: QARecord, kind: str) -> QARecord:
    """A question in other words, the same ones in every run; itself where there are none.

    Args:
        kind: of `REWORDINGS`; `unknown` asks about what training has never asked about.
    """
    rng = np.random.default_rng(list(f"{kind} {record.question_id}".encode()))
    asked = _asked(record)
    if kind == _UNKNOWN:
        return record if asked.name is None else _put(record, asked.about(_drawn(HELD_OUT, rng)))
    changed = _changed(asked, kind, record.finding, record.question_type, rng)
    return record if changed.question == record.question else _put(record, changed)


def things_but(taught: Iterable[str]) -> tuple[str, ...]:
    """The unknown things of training that are none of these findings, by any of their names."""
    names = {said.lower() for one in taught for said in (one, *synonyms(one))}
    return tuple(thing for thing in TRAIN_THINGS if thing.lower() not in names)


@dataclasses.dataclass(frozen=True)
class WordingVariation:
    """The wording of training questions at every visit."""

    share: float = 0.0  # of questions that are put in other words
    # Of questions about one thing that are asked about an unknown one instead.
    unknown_share: float = 0.0
    things: tuple[str, ...] = TRAIN_THINGS  # the unknown ones

    def __bool__(self) -> bool:
        return bool(self.share or self.unknown_share)

    def draw(self, record: QARecord, *seeds: int) -> tuple[QARecord, QARecord]:
        """The record as it is asked, and as it is answered; a function of it and the seeds."""
        rng = np.random.default_rng(seeds)
        asked, answered = _asked(record), record
        of_unknown, of_wording = rng.random(2)
        if of_unknown < self.unknown_share and asked.name is not None and not record.choices:
            asked = asked.about(_drawn(self.things, rng))
            update = {"question_type": UNKNOWN_TYPE, "answers": [Answer(text=UNKNOWN_ANSWER)]}
            answered = _put(record, asked).model_copy(update={**update, "reason": None})
        if of_wording < self.share:
            for kind, rate in _RATES.items():
                if rng.random() < rate:
                    kept = answered.finding, record.question_type
                    asked = _changed(asked, kind, *kept, rng)
        return _put(answered, asked), answered
