"""Readers of reports and answers by language, behind one call."""

import functools
from typing import Protocol

from cxrjax.radiology_text.answers import AnswerReading, EnglishReader
from cxrjax.radiology_text.vietnamese import VietnameseTextReader

LANGUAGES = ("en", "vi")


class AnyReader(Protocol):
    """Reads a text, alone or as the answer to a question."""

    def read(self, text: str, question: str | None = None, has_box: bool = False) -> AnswerReading:
        """What the text asserts, and what it answers."""


@functools.cache
def open_reader(language: str) -> AnyReader:
    """The reader of a language of `LANGUAGES`; one object a process."""
    return VietnameseTextReader() if language == "vi" else EnglishReader()
