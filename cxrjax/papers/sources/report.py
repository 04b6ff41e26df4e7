"""Reports: their sentences with what the source connects them to, and MIMIC-CXR's sections."""

import dataclasses
import difflib
import re
from collections.abc import Mapping
from typing import NamedTuple

from cxrjax.files import read_packaged, read_patterns
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
    """One report with the image it is about."""

    report_id: str
    image_id: str
    image_path: str
    sentences: tuple[ReportSentence, ...]  # of findings and impression, in order
    # Region of the 30 -> its box, fractions of the original image; empty: none known.
    boxes: Mapping[str, Box]
    image_hw: tuple[int, int] | None = None  # None until it is known
    patient_id: str | None = None
    study_id: str | None = None
    view: str | None = None
    sex: str | None = None
    where: str = ""  # file that it was read from


# Longer by far than any: OpenI's longest has 1,400. Time grows with more than the length.
MAX_REPORT_CHARACTERS = 20_000
_RE = read_patterns(str(__package__), "report.toml")
_ITS_LENGTH = 12  # an abbreviation and what stands before it


def split_sentences(text: str) -> list[str]:
    """Sentences of running text, without list numbers and with single spaces."""
    pieces: list[str] = []
    for piece in _RE["end"].split(text):
        if pieces and _RE["abbreviation"].search(pieces[-1][-_ITS_LENGTH:]):
            pieces[-1] += " " + piece
        else:
            pieces.append(piece)
    cleaned = (" ".join(_RE["enumeration"].sub("", piece).split()) for piece in pieces)
    return [piece for piece in cleaned if re.search(r"[A-Za-z]{2}", piece)]


def plain_sentence(text: str) -> str:
    """A sentence without a section's heading and a list's number before it, with single spaces."""
    return " ".join(
        _RE["enumeration"].sub("", _RE["heading"].sub("", " ".join(text.split()))).split()
    )


# Header -> the section that is read.
_SECTIONS = {
    header: section
    for section, headers in read_packaged(str(__package__), "report.toml")["sections"].items()
    for header in headers
}
# Headers that are often misspelt, and near enough to them to be meant.
_MISSPELT = ("FINDINGS", "IMPRESSION", "INDICATION")
_NEAR = 0.8


def parse_sections(text: str) -> dict[str, str]:
    """Indication, findings and impression, of these what the report has a header for."""
    headers = list(_RE["header"].finditer(text))
    sections: dict[str, str] = {}
    ends = [header.start() for header in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends, strict=False):
        kind = _kind(" ".join(header[1].split()))
        body = text[header.end() : end].strip()
        if kind and body:
            sections[kind] = f"{sections[kind]}\n{body}" if kind in sections else body
    return sections


def text_without_header(text: str) -> str:
    """The paragraphs behind that of the last header: of a report without headers, all of it."""
    headers = list(_RE["header"].finditer(text))
    rest = text[headers[-1].end() :] if headers else text
    paragraphs = [part.strip() for part in _RE["paragraph"].split(rest)]
    behind = paragraphs[1:] if headers else paragraphs
    # Titles are in capitals throughout.
    return "\n\n".join(part for part in behind if any(letter.islower() for letter in part))


def _kind(header: str) -> str | None:
    if header in _SECTIONS:
        return _SECTIONS[header]
    if near := difflib.get_close_matches(header, _MISSPELT, 1, _NEAR):
        return _SECTIONS[near[0]]
    if _RE["view"].search(header) and not _RE["other"].search(header):
        return "findings"
    return None
