"""Steps by which a language model reads a report: requests, forms of answers, checks."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from cxrjax.files import read_packaged
from cxrjax.language_model.client import Client
from cxrjax.language_model.request import Request
from cxrjax.language_model.stage import Form, Item, Stage, Strict, make_request
from cxrjax.papers.cxr_qba.construct import extraction
from cxrjax.papers.cxr_qba.construct.ratings import mentions_change
from cxrjax.radiology_text.english import plain_words

PROMPT = "extraction_prompt_v1"
CONTENT = "text of radiology reports"
SECTIONS = ("indication", *extraction.OBSERVED_SECTIONS)
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
    """Returns its words with a blank around each: " no pneumothorax "."""
    return f" {plain_words(text)} "


def joined(text: str) -> str:
    """Returns the text with single blanks."""
    return " ".join(text.split())


class _ReadingStage(Stage[Item, Form]):
    content = CONTENT

    def __init__(self, client: Client) -> None:
        super().__init__(client, load_prompt(PROMPT)["version"])


class SentenceStage(_ReadingStage[extraction.ReportSections, ReadSentences]):
    """The first step: the whole report is split into sentences."""

    def request(self, item: extraction.ReportSections) -> Request[ReadSentences]:
        """See `Stage.request`."""
        parts = [
            f"{name.upper()}:\n{item.sections[name].strip()}"
            for name in SECTIONS
            if item.sections.get(name, "").strip()
        ]
        prompt = load_prompt(PROMPT)["sentences"]
        return make_request(prompt, "\n\n".join(parts), ReadSentences, 300)

    def check(self, item: extraction.ReportSections, answer: ReadSentences) -> None:
        """Refuses sentences that are not in the report word for word (case and marks aside)."""
        sections = [words_of(item.sections.get(name, "")) for name in SECTIONS]
        for one in answer.sentences:
            for text in (one.sentence, *one.same):
                words = words_of(text)
                if not words.strip() or not any(words in section for section in sections):
                    raise ValueError(f"{text!r} does not stand in the report word for word")
        if not any(one.section in extraction.OBSERVED_SECTIONS for one in answer.sentences):
            raise ValueError("there is no sentence of findings or impression")


class IndicationStage(_ReadingStage[Sequence[extraction.NumberedSentence], ReadIndication]):
    """The second step: the reason for the study, from all sentences with their ids."""

    def request(self, item: Sequence[extraction.NumberedSentence]) -> Request[ReadIndication]:
        """See `Stage.request`."""
        lines = [f"{one.sent_id} ({one.section}): {one.text}" for one in item]
        prompt = load_prompt(PROMPT)["indication"]
        return make_request(prompt, "\n".join(lines), ReadIndication, 120)

    def check(self, item: Sequence[extraction.NumberedSentence], answer: ReadIndication) -> None:
        """Refuses ids of sentences that may not answer, and an answer without ids."""
        observed = [one.sent_id for one in item if one.section in extraction.OBSERVED_SECTIONS]
        for sent_id in answer.answer_sentence_ids:
            if sent_id not in observed:
                raise ValueError(
                    f"{sent_id!r} is no sentence of findings or impression; those are {observed}"
                )
        if not answer.indication_summary.strip():
            raise ValueError("indication_summary is empty")
        if bool(answer.answer_sentence_ids) != bool(answer.answer_for_indication.strip()):
            raise ValueError("answer_for_indication needs answer_sentence_ids, and the other way")


class ObservationStage(_ReadingStage[str, ReadObservations]):
    """The third step: one sentence of findings or impression, without mention of change."""

    def request(self, item: str) -> Request[ReadObservations]:
        """See `Stage.request`."""
        return make_request(load_prompt(PROMPT)["observations"], item, ReadObservations, 150)

    def check(self, item: str, answer: ReadObservations) -> None:
        """Refuses observations without name, entity or probability, and deeply nested ones."""
        for depth, one in walk(answer.observations):
            if not one.name.strip() or not one.summary_sentence.strip():
                raise ValueError("an observation has no name or no summary_sentence")
            if not any(map(str.strip, one.entity)):
                raise ValueError(f"{one.name!r} has no entity")
            if not 0 <= one.probability <= 1:
                raise ValueError(f"{one.name!r} has probability {one.probability}; it is of 0 to 1")
            if depth > MAX_DEPTH:
                raise ValueError(
                    f"{one.name!r} is a child of a child of a child; at most {MAX_DEPTH}"
                )

    def shortcoming(self, item: str, answer: ReadObservations) -> tuple[int, str]:
        """Returns how often names and sentences speak of change, where they should not."""
        found = comparing(answer.observations)
        told = load_prompt(PROMPT)["observations"]["change_again"]
        return len(found), told.format(found="; ".join(found)).strip()


def load_prompt(name: str) -> dict[str, Any]:
    """Returns a prompt file of the package such as `extraction_prompt_v1`."""
    return read_packaged(str(__package__), f"{name}.toml")


def walk(
    observations: Iterable[ReadObservation], depth: int = 1
) -> Iterator[tuple[int, ReadObservation]]:
    """Yields (depth, observation) with all children, depth from 1."""
    for one in observations:
        yield depth, one
        yield from walk(one.children, depth + 1)


def comparing(observations: Iterable[ReadObservation]) -> list[str]:
    """Returns names and sentences that speak of change, which they should not."""
    return [
        text
        for _, one in walk(observations)
        for text in (one.name, one.summary_sentence)
        if mentions_change(text)
    ]
