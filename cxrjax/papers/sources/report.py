"""Reports as constructions see them: sentences, each with what the source connects it to."""

import dataclasses
import re
from collections.abc import Mapping
from typing import NamedTuple

from cxrjax.papers.sources.regions import Box


class ReportSentence(NamedTuple):
    """A sentence as the source has it; `regions` are those of the 30 that the source gives it."""

    text: str
    regions: tuple[str, ...] = ()


class RefinedSentence(NamedTuple):
    """A complete sentence about one region (rule 3), and the sentence it comes from, by number."""

    text: str
    region: str
    source: int


@dataclasses.dataclass(frozen=True)
class ImageReport:
    """One report with the image it is about.

    Attributes:
        sentences: of findings and impression, in order.
        boxes: region of the 30 -> its box, fractions of the original image; empty: none known.
        image_hw: None until it is known.
        where: file that it was read from.
    """

    report_id: str
    image_id: str
    image_path: str
    sentences: tuple[ReportSentence, ...]
    boxes: Mapping[str, Box]
    image_hw: tuple[int, int] | None = None
    patient_id: str | None = None
    study_id: str | None = None
    view: str | None = None
    sex: str | None = None
    where: str = ""


_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"(])|(?<=[a-z)][.;])(?=[A-Z])|\n\s*\n|(?<=;)\s+")
_ENUMERATION = re.compile(r"^\s*(?:\(?\d{1,2}[.)]\s*|[-*•]\s+)+")
_HEADING = re.compile(
    r"^(?:(?:[A-Z][A-Z0-9()/&,-]*\s+)*[A-Z][A-Z0-9()/&,-]+|Findings|Impression):(?:\s+|$)"
)
_ABBREVIATION = re.compile(r"(?:\b(?:Dr|Mr|Mrs|Ms|St|vs|approx|e\.g|i\.e|cf|No)\.|\b[A-Z]\.)$")


def split_sentences(text: str) -> list[str]:
    """Sentences of running text, without list numbers and with single spaces."""
    pieces: list[str] = []
    for piece in _END.split(text):
        if pieces and _ABBREVIATION.search(pieces[-1]):
            pieces[-1] += " " + piece
        else:
            pieces.append(piece)
    cleaned = (" ".join(_ENUMERATION.sub("", piece).split()) for piece in pieces)
    return [piece for piece in cleaned if re.search(r"[A-Za-z]{2}", piece)]


def plain_sentence(text: str) -> str:
    """A sentence without a section's heading and a list's number before it, with single spaces."""
    return " ".join(_ENUMERATION.sub("", _HEADING.sub("", " ".join(text.split()))).split())
