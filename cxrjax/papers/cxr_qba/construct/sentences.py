"""Reports into sentences, indications into their parts, by rules."""

import re
from collections.abc import Iterator

from cxrjax.papers.cxr_qba.construct.extraction import (
    OBSERVED_SECTIONS,
    Indication,
    NumberedSentence,
    ReportSections,
)
from cxrjax.records_io.quality import Unusable

# Ten times the longest reports there are; the work on a report grows with its length.
MAX_CHARACTERS = 100_000
# More than this without a full stop is no sentence.
_MAX_SENTENCE = 2_000

_END = re.compile(r"(?<=[.!?;])\s+|\n\s*\n")
_ABBREVIATION = re.compile(r"\b(?:dr|mr|mrs|ms|vs|approx|e\.g|i\.e|st|no)\.$", re.IGNORECASE)
_LIST_NUMBER = re.compile(r"^\s*(?:\d{1,2}\s*[.)]|[-*•])\s*")
_HAS_WORD = re.compile(r"[A-Za-z]{2}")
_PATIENT = re.compile(
    r"(?:(?:\w+|\d+)[\s-]*(?:year|yr|yo|y/o|y\.o\.)[\s-]*(?:old)?[\s-]*)?"
    r"\b(?:male|female|man|woman|boy|girl|gentleman|lady)\b|"
    r"\b(?:\w+)[\s-]*(?:year|yr)s?[\s-]*old\b",
    re.IGNORECASE,
)
_EVALUATION = re.compile(
    r"\b(?:(?:please )?(?:evaluate|evaluation|eval|assess|assessment|check|look)(?: for| of)?|"
    r"rule out|r/o|exclude|question of|\?)\s*(?P<what>[^.;?]+)",
    re.IGNORECASE,
)
_CONNECTIVE = re.compile(r"^(?:\s|,|with|w/|who|has|presents?|presenting|and|status post)+", re.I)


def split_text(text: str) -> Iterator[str]:
    """Sentences of a section, white space joined, list numbers taken off."""
    held = ""
    for piece in _END.split(text):
        piece = f"{held} {piece}".strip() if held else piece
        if _ABBREVIATION.search(piece):
            held = piece
            continue
        held = ""
        sentence = " ".join(_LIST_NUMBER.sub("", piece).split())
        if _HAS_WORD.search(sentence):
            yield from (
                sentence[start : start + _MAX_SENTENCE]
                for start in range(0, len(sentence), _MAX_SENTENCE)
            )
    if held and _HAS_WORD.search(held):
        yield " ".join(held.split())


def split_report(report: ReportSections) -> list[NumberedSentence]:
    """Sentences of the indication, the findings and the impression, numbered S01, S02, ...

    Raises:
        Unusable: `report_too_long`, `empty_report`.
    """
    length = sum(map(len, report.sections.values()))
    if length > MAX_CHARACTERS:
        raise Unusable("report_too_long", f"{length} characters; expected at most {MAX_CHARACTERS}")
    sentences: list[NumberedSentence] = []
    for section in ("indication", *OBSERVED_SECTIONS):
        for text in split_text(report.sections.get(section, "")):
            number = f"S{len(sentences) + 1:02d}"
            sentences.append(NumberedSentence(number, section, section.upper(), text))
    if not any(sentence.section in OBSERVED_SECTIONS for sentence in sentences):
        raise Unusable("empty_report", "neither findings nor impression has a sentence")
    return sentences


def read_indication(sentences: list[NumberedSentence]) -> Indication | None:
    """The parts of the indication's sentences; None where there is none."""
    own = [sentence for sentence in sentences if sentence.section == "indication"]
    text = ". ".join(sentence.text.rstrip(".") for sentence in own)
    if not text:
        return None
    patient = _PATIENT.search(text)
    evaluation = _EVALUATION.search(text)
    rest = text[: evaluation.start()] if evaluation else text
    if patient:
        rest = rest.replace(patient.group(), " ")
    reason = " ".join(_CONNECTIVE.sub("", " ".join(rest.split())).strip(" ,.;").split())
    return Indication(
        indication_summary=" ".join(text.split()),
        patient_info=patient.group() if patient else "",
        indication=reason,
        evaluation=evaluation["what"].strip() if evaluation else "",
        sentence_ids=tuple(sentence.sent_id for sentence in own),
    )
