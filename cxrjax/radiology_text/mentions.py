"""Reads the findings that an answer says are there, and those it says are not.

The classes are a data set's; what is said of them is read by `reader.py` and `answers.py`.
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

from cxrjax.files import read_packaged
from cxrjax.radiology_text.answers import EnglishReader
from cxrjax.radiology_text.assertions import Assertion
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.lexicon import load_english

# Class of VinDr-CXR-VQA -> the findings that it stands for.
VINDR_CLASSES: dict[str, tuple[str, ...]] = {
    name: tuple(findings)
    for name, findings in read_packaged(str(__package__), "reference/vindr_classes.toml")[
        "en"
    ].items()
}


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
        answered: False for a blank answer, which says nothing and can't be right.
    """

    present: frozenset[str]
    absent: frozenset[str]
    answered: bool


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
        # Models answer in templates: the same words around other boxes.
        self._assertions = functools.lru_cache(maxsize=8192)(self._read)

    def name_of(self, text: str) -> str | None:
        """The one class that a short text (a label) names; None for none or several."""
        if (exact := self._named.get(text.strip().lower())) is not None:
            return exact
        names = {name for one in self._assertions(text) if (name := self._class(one)) is not None}
        return names.pop() if len(names) == 1 else None

    def mentions(self, text: str) -> list[Mention]:
        """Every class of which something is said of now, in order."""
        return [
            Mention(name, *one.span, _is_denial(one))
            for one in self._assertions(text)
            if one.is_now and (name := self._class(one)) is not None
        ]

    def read(self, text: str, asked: str | None = None, has_box: bool = False) -> Reading:
        """Reads what an answer says.

        Args:
            text: the answer.
            asked: the class that the question asks about, if it asks about one.
            has_box: whether the answer gives a box.

        Returns:
            The classes said to be there and not. One that is named both ways is there (a left
            effusion and no right one), unless the answer opens with "No". Of a class that is asked
            about and not named, `EnglishReader` says what the answer means.
        """
        if not text.strip():
            here = frozenset([asked]) if asked and has_box else frozenset[str]()
            return Reading(here, frozenset(), answered=has_box)
        mentions = self.mentions(text)
        present = {mention.name for mention in mentions if not mention.negated}
        absent = {mention.name for mention in mentions if mention.negated}
        if asked is not None:
            if asked in present & absent and yes_or_no(text) is False:
                present.discard(asked)
            elif asked not in present | absent:
                outcome = self._reader.read(text, f"Is there {asked}?", has_box).outcome
                if outcome in ("yes", "no"):
                    (present if outcome == "yes" else absent).add(asked)
        return Reading(frozenset(present), frozenset(absent - present), answered=True)

    def _read(self, text: str) -> tuple[Assertion, ...]:
        assertions = self._reader.read(text).assertions
        return tuple(o for o in assertions if text[slice(*o.span)].lower() not in _DESCRIBING)

    def _class(self, one: Assertion) -> str | None:
        if one.finding in self._named.values():
            return one.finding
        return self._class_of.get(one.finding)


def yes_or_no(text: str) -> bool | None:
    """Reads what an answer opens with: yes, no, or None where it opens with neither."""
    return {"yes": True, "no": False}.get(_answers().opening(text) or "")


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
        and not others & {kind, *definitions.finding_ancestors(kind)}
    ]
    return (*own, *kinds)


def _is_denial(one: Assertion) -> bool:
    return one.status == "absent" or one.certainty == "unlikely"
