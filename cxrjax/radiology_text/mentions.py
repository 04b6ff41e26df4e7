"""Reads the findings that an answer says are there, and those it says are not.

The classes are a data set's; what is said of them is read by `reader.py` and `answers.py`.
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

from cxrjax.files import read_packaged
from cxrjax.radiology_text.answers import NOTHING_ASKED, AskedFor, EnglishReader
from cxrjax.radiology_text.assertions import Assertion, Outcome
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.lexicon import load_english

# Class of VinDr-CXR-VQA -> the findings that it stands for.
_TABLE = read_packaged(str(__package__), "reference/vindr_classes.toml")
VINDR_CLASSES = {name: tuple(findings) for name, findings in _TABLE["en"].items()}
_APART = frozenset(_TABLE["apart"])


class Mention(NamedTuple):
    """A class named in a text, characters `start` to `end`; `negated`: said to be absent."""

    name: str
    start: int
    end: int
    negated: bool


class Reading(NamedTuple):
    """The findings that an answer affirms and denies.

    Attributes:
        present: classes it says are there.
        absent: classes it says are not; never one that is in `present`.
        outcome: of the class that is asked about; without one, whether it says that anything is
            there. Only "yes" and "no" can be right.
    """

    present: frozenset[str]
    absent: frozenset[str]
    outcome: Outcome


# Words that describe any shadow.
_DESCRIBING = ("density", "densities", "radiodensity", "shadowing", "haze")


class MentionReader:
    """Reads answers with a data set's classes.

    Args:
        classes: their names; those of VinDr-CXR-VQA are known by all their words, others by name.
    """

    def __init__(self, classes: Iterable[str] = VINDR_CLASSES) -> None:
        self._class_of = {finding: name for name in classes for finding in _findings(name)}
        self._named = {name.lower(): name for name in classes}
        english = load_english()
        self._reader = EnglishReader(english.with_findings({n.lower(): n for n in classes}))
        # Systems, and floors above all, say the same few things.
        self._read_once = functools.lru_cache(maxsize=1 << 14)(self._read)

    def name_of(self, text: str) -> str | None:
        """Returns the class that a short text (a label) names; None for none or several."""
        if (exact := self._named.get(text.strip().lower())) is not None:
            return exact
        names = {name for one in self._assertions(text) if (name := self._class(one)) is not None}
        return names.pop() if len(names) == 1 else None

    def mentions(self, text: str) -> list[Mention]:
        """Every class of which something is said of now, in order."""
        return self._mentions(self._assertions(text))

    def read(
        self, text: str, asked: str | None = None, has_box: bool = False, counts: bool = False
    ) -> Reading:
        """Reads what an answer says, without the reason after it.

        Args:
            text: the answer.
            asked: the class that the question asks about, if it asks about one.
            has_box: whether the answer gives a box.
            counts: whether the question asks how often, so that a number answers it.

        Returns:
            The classes said to be there and not. One that is named both ways is there (a left
            effusion and no right one). The class that is asked about is as the outcome says.
        """
        return self._read_once(text, asked, has_box, counts)

    def _read(self, text: str, asked: str | None, has_box: bool, counts: bool) -> Reading:
        about = (asked, *VINDR_CLASSES.get(asked, ())) if asked else ()
        found = self._reader.read_about(text, AskedFor(about, None, counts), has_box)
        mentions = self._mentions(_without_describing(text, found.assertions))
        present = {mention.name for mention in mentions if not mention.negated}
        absent = {mention.name for mention in mentions if mention.negated}
        if asked is not None:
            present.discard(asked)
            absent.discard(asked)
            if found.outcome in ("yes", "no"):
                (present if found.outcome == "yes" else absent).add(asked)
        return Reading(frozenset(present), frozenset(absent - present), found.outcome or "nothing")

    def _mentions(self, assertions: Iterable[Assertion]) -> list[Mention]:
        return [
            Mention(name, *one.span, one.denies)
            for one in assertions
            if one.is_now
            and (name := self._class(one)) is not None
            # "No pneumonia" denies no opacity.
            and not (one.denies and one.finding not in (name, *VINDR_CLASSES.get(name, ())))
        ]

    def _assertions(self, text: str) -> list[Assertion]:
        return _without_describing(text, self._reader.read(text).assertions)

    def _class(self, one: Assertion) -> str | None:
        own = one.finding in self._named.values()
        return one.finding if own else self._class_of.get(one.finding)


def _without_describing(text: str, assertions: Iterable[Assertion]) -> list[Assertion]:
    return [one for one in assertions if text[slice(*one.span)].lower() not in _DESCRIBING]


def yes_or_no(text: str, asked: AskedFor = NOTHING_ASKED) -> bool | None:
    """Reads what an answer opens with: yes, no, or None where it opens with neither.

    Args:
        asked: what "normal" and "abnormal" answer.
    """
    return {"yes": True, "no": False}.get(_answers().opening(text, asked) or "")


@functools.cache
def _answers() -> EnglishReader:
    return EnglishReader()


@functools.cache
def _findings(name: str) -> tuple[str, ...]:
    """The findings that a class stands for, and kinds of them that no other class has."""
    own = VINDR_CLASSES.get(name, ())
    others = {finding for findings in VINDR_CLASSES.values() for finding in findings} - {*own}
    definitions = load_definitions()
    kinds = [
        kind
        for kind in definitions.findings
        if {*own} & {*definitions.finding_ancestors(kind)}
        and not {*others, *_APART} & {kind, *definitions.finding_ancestors(kind)}
    ]
    return (*own, *kinds)
