"""What the page says of questions and pictures that models answer without a word of doubt.

A small model answers whatever it is asked: a misspelt finding, a picture with nothing on it; and it
may speak of another finding than the one asked about. The reader of radiology language
(cxrjax/radiology_text) tells these.
"""

import difflib
import functools
import re
from collections.abc import Sequence

from cxrjax.images.decode import NEARLY_FLAT
from cxrjax.pages.demo.answers import Answered
from cxrjax.pages.results.marks import mark_words
from cxrjax.radiology_text.answers import EnglishReader
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.english import lemma
from cxrjax.radiology_text.lexicon import load_english

EMPTY = "This picture is nearly empty: whatever models say of it means nothing."
OTHER_FINDING = "The answer is about another finding than the question."
_SHORTEST = 4  # letters of a word that is looked up


def of_picture(notes: Sequence[str]) -> str:
    """A sentence about a picture with nothing on it; empty of any other.

    Args:
        notes: of `audit_image`.
    """
    return EMPTY if NEARLY_FLAT in notes else ""


def of_question(question: str) -> str:
    """A sentence about words of an English question that are none of radiology's; or empty.

    Questions with letters of other alphabets are left alone: their words are not known here.
    """
    if not question.isascii():
        return ""
    words = dict.fromkeys(re.findall(r"[a-z]+", question.lower()))
    unknown = [word for word in words if len(word) >= _SHORTEST and not _is_known(word)]
    if not unknown:
        return ""
    near = [difflib.get_close_matches(word, _names(), 1, 0.8) for word in unknown]
    meant = [f"“{found[0]}”" for found in near if found]
    said = ", ".join(f"“{word}”" for word in unknown)
    hint = f"was {' and '.join(meant)} meant?" if meant else "models may answer as if it were one."
    return f"No word of radiology that is known here: {said}; {hint}"


def of_answer(question: str, answer: Answered) -> str:
    """A sentence about an answer to another question than was asked; empty of any other."""
    if answer.is_unknown or not question.isascii():
        return ""
    # Box notation is no words.
    pieces = mark_words(answer.text, "")[0]
    words = "".join(piece if isinstance(piece, str) else " " for piece in pieces)
    read = _reader().read(words, question, has_box=bool(answer.boxes))
    return OTHER_FINDING if read.outcome == "off_topic" else ""


@functools.cache
def _reader() -> EnglishReader:
    return EnglishReader()


def _is_known(word: str) -> bool:
    known = load_english().known
    return word in known or lemma(word) in known


@functools.cache
def _names() -> tuple[str, ...]:
    """Words of findings and of parts of the body, for what was misspelt."""
    definitions = load_definitions()
    phrases = (*definitions.finding_names, *definitions.region_names)
    words = {word for phrase in phrases for word in phrase}
    return tuple(sorted(word for word in words if len(word) >= _SHORTEST))
