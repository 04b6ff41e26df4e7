"""The forms of a language model's answers on a report, and their checks.

Checks raise ValueError in words for the model, which is asked again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from cxrjax.papers.cxr_qba.construct.extraction import (
    OBSERVED_SECTIONS,
    NumberedSentence,
    ReportSections,
)
from cxrjax.papers.cxr_qba.construct.prompts import Strict
from cxrjax.papers.cxr_qba.construct.ratings import mentions_change
from cxrjax.radiology_text.english import plain_words

SECTIONS = ("indication", *OBSERVED_SECTIONS)
MAX_DEPTH = 3


class ReadSentence(Strict):
    """A sentence, and others of the report that say the same."""

    section: Literal["indication", "findings", "impression"]
    sentence: str
    same: list[str]


class ReadSentences(Strict):
    """Answer to the first step."""

    sentences: list[ReadSentence]


class ReadIndication(Strict):
    """Answer to the second step."""

    indication_summary: str
    patient_info: str
    indication: str
    evaluation: str
    answer_sentence_ids: list[str]
    answer_for_indication: str


class Modifiers(Strict):
    """By type, as the scene graph has them."""

    temporal: list[str]
    severity: list[str]
    texture: list[str]
    spread: list[str]


class ReadObservation(Strict):
    """One observation; `probability` that it is there, 0 to 1."""

    name: str
    summary_sentence: str
    entity: list[str]
    regions: list[str]
    side: Literal["left", "right", "both", ""]
    probability: float
    modifiers: Modifiers
    change: list[str]
    change_sentence: str
    children: list["ReadObservation"]


class ReadObservations(Strict):
    """Answer to the third step."""

    observations: list[ReadObservation]


def words_of(text: str) -> str:
    """Its words with a blank around each: " no pneumothorax "."""
    return f" {plain_words(text)} "


def joined(text: str) -> str:
    """The text with single blanks."""
    return " ".join(text.split())


def sentence_check(report: ReportSections) -> Callable[[ReadSentences], None]:
    """Every sentence stands in a section of the report, word for word (case and marks aside)."""
    sections = [words_of(report.sections.get(name, "")) for name in SECTIONS]

    def check(answer: ReadSentences) -> None:
        for one in answer.sentences:
            for text in (one.sentence, *one.same):
                words = words_of(text)
                if not words.strip() or not any(words in section for section in sections):
                    raise ValueError(f"{text!r} does not stand in the report word for word")
        if not any(one.section in OBSERVED_SECTIONS for one in answer.sentences):
            raise ValueError("there is no sentence of findings or impression")

    return check


def indication_check(sentences: Sequence[NumberedSentence]) -> Callable[[ReadIndication], None]:
    """Ids are of sentences that may answer, and an answer has such."""
    observed = [one.sent_id for one in sentences if one.section in OBSERVED_SECTIONS]

    def check(answer: ReadIndication) -> None:
        for sent_id in answer.answer_sentence_ids:
            if sent_id not in observed:
                raise ValueError(
                    f"{sent_id!r} is no sentence of findings or impression; those are {observed}"
                )
        if not answer.indication_summary.strip():
            raise ValueError("indication_summary is empty")
        if bool(answer.answer_sentence_ids) != bool(answer.answer_for_indication.strip()):
            raise ValueError("answer_for_indication needs answer_sentence_ids, and the other way")

    return check


def check_observations(answer: ReadObservations) -> None:
    """Named, about something, with a probability, and not nested without end."""
    for depth, one in walk(answer.observations):
        if not one.name.strip() or not one.summary_sentence.strip():
            raise ValueError("an observation has no name or no summary_sentence")
        if not any(map(str.strip, one.entity)):
            raise ValueError(f"{one.name!r} has no entity")
        if not 0 <= one.probability <= 1:
            raise ValueError(f"{one.name!r} has probability {one.probability}; it is of 0 to 1")
        if depth > MAX_DEPTH:
            raise ValueError(f"{one.name!r} is a child of a child of a child; at most {MAX_DEPTH}")


def walk(
    observations: Iterable[ReadObservation], depth: int = 1
) -> Iterator[tuple[int, ReadObservation]]:
    """(depth, observation) with all children, depth from 1."""
    for one in observations:
        yield depth, one
        yield from walk(one.children, depth + 1)


def comparing(observations: Iterable[ReadObservation]) -> list[str]:
    """What names and sentences say of change, where they should not."""
    return [
        text
        for _, one in walk(observations)
        for text in (one.name, one.summary_sentence)
        if mentions_change(text)
    ]
