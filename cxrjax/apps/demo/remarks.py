"""Remarks of the page on questions and images that models answer without any doubt.

A small model answers any question, even on a misspelt finding or an image that shows nothing, and
may mention another finding than the question does. The reader of radiology language
(cxrjax/radiology_text) detects these.
"""

import difflib
import functools
import itertools
import re
from collections.abc import Sequence

from cxrjax.apps.demo.answers import Answered
from cxrjax.apps.results.marks import mark_words
from cxrjax.images.decode import NEARLY_FLAT
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.papers.vindr_cxr_vqa.construct.templates import load_templates
from cxrjax.radiology_text.answers import EnglishReader
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.english import lemma, load_vocabulary
from cxrjax.radiology_text.lexicon import load_english

EMPTY = "This image is nearly empty: whatever models say of it means nothing."
OTHER_FINDING = "The answer is about another finding than the question."
NAMES_NOTHING = (
    "The question names no finding and no part of the body that is known here: an answer may be "
    "about something else."
)
COMPARES = "The question compares with an earlier image, and the models see this one alone."
_SHORTEST = 4  # letters of a word that is looked up
# What is asked of an image as a whole, as `lemma` has it.
_OF_EVERYTHING = frozenset(
    (
        *("finding", "abnormal", "abnormality", "abnormalities", "lesion", "disease", "diagnosis"),
        *("see", "seen", "visible", "show", "shown", "present", "anything", "everything"),
        *("suspicious", "wrong", "normal", "healthy", "describe", "report", "impression"),
    )
)
# Beside the words of reports, those of people who ask; of two sides one may be larger.
_EARLIER = re.compile(
    r"\b(?:before|earlier|last time|grown|shrunk|chang(?:e|es|ed|ing)|still|"
    r"(?:bigger|smaller|larger)(?!.*\b(?:left|right)\b))\b"
)


def of_picture(notes: Sequence[str]) -> str:
    """A sentence about an image with nothing on it; empty of any other.

    Args:
        notes: of `audit_image`.
    """
    return EMPTY if NEARLY_FLAT in notes else ""


def of_question(question: str) -> str:
    """A sentence about words of an English question that are none of radiology's, or about what it
    asks that no model here can tell; or empty.

    Questions with letters of other alphabets are left alone: their words are not known here.
    """
    if not question.isascii():
        return ""
    words = dict.fromkeys(re.findall(r"[a-z]+", question.lower()))
    unknown = [word for word in words if len(word) >= _SHORTEST and not _is_known(word)]
    if not unknown:
        asked = " ".join(words)
        if load_vocabulary().cues["longitudinal"].search(asked) or _EARLIER.search(asked):
            return COMPARES
        return NAMES_NOTHING if words and not _names_something(question) else ""
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
    return word in known or lemma(word) in known or word in _asking()


@functools.cache
def _asking() -> frozenset[str]:
    """Words in which models are asked as they learn, which a report may never have."""
    wordings = [load_templates(version).questions.values() for version in ("5", "6")]
    texts = itertools.chain.from_iterable(itertools.chain(*wordings))
    return frozenset(word for text in texts for word in _words(text))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _names_something(question: str) -> bool:
    """Returns whether a question names a finding or a body part, or asks for all findings."""
    words = [lemma(word) for word in _words(question)]
    if _OF_EVERYTHING & {*words}:
        return True
    definitions = load_definitions()
    classes = (tuple(map(lemma, _words(name))) for name in CLASSES)
    phrases = {*definitions.finding_names, *definitions.region_names, *classes}
    longest = max(map(len, phrases))
    return any(
        tuple(words[start : start + length]) in phrases
        for start in range(len(words))
        for length in range(1, longest + 1)
    )


@functools.cache
def _names() -> tuple[str, ...]:
    """Words of findings and of parts of the body, for what was misspelt."""
    definitions = load_definitions()
    phrases = (*definitions.finding_names, *definitions.region_names)
    words = {word for phrase in phrases for word in phrase}
    return tuple(sorted(word for word in words if len(word) >= _SHORTEST))
