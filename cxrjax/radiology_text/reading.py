"""Readers of reports and answers by language, behind one call."""

import functools
import re
import unicodedata
from typing import Protocol

from cxrjax.radiology_text import vietnamese
from cxrjax.radiology_text.answers import AnswerReading, EnglishReader
from cxrjax.radiology_text.assertions import Assertion

LANGUAGES = ("en", "vi")
# Letters, composed, that no other language has (ă and đ are Romanian's and Croatian's too).
_VIETNAMESE = re.compile("[ơư\u1ea0-\u1ef9]|\\b(?:không|tràn|viêm|bóng tim)\\b", re.IGNORECASE)


class AnyReader(Protocol):
    """Reads a text, alone or as the answer to a question."""

    def read(self, text: str, question: str | None = None, has_box: bool = False) -> AnswerReading:
        """Reads a text's assertions, and its outcome if there is a question."""


@functools.cache
def open_reader(language: str) -> AnyReader:
    """The reader of a language of `LANGUAGES`; one object a process."""
    return EnglishReader(gloss=vietnamese.in_english) if language == "vi" else EnglishReader()


def language_of(text: str) -> str:
    """The language of `LANGUAGES` that reads a text: "vi" where it has Vietnamese letters."""
    return "vi" if _VIETNAMESE.search(unicodedata.normalize("NFC", text)) else "en"


def said_now(text: str, language: str = "en") -> tuple[Assertion, ...]:
    """Every finding of which a text says something of now, in order."""
    return tuple(one for one in open_reader(language).read(text).assertions if one.is_now)
