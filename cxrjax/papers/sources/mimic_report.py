"""Sections of a report as MIMIC-CXR's text files have them.

Headers are words in capitals with a colon, at the start of a line: INDICATION, FINDINGS and many
others, often misspelt. Some reports have a view for a header ("CHEST, TWO VIEWS:") or none at all.
"""

import difflib
import re

# Header -> the section that is read; those of other kinds (technique, comparison) are passed over.
_SECTIONS = {
    **dict.fromkeys(
        ("INDICATION", "INDICATIONS", "CLINICAL INDICATION", "REASON FOR EXAM", "REASON FOR STUDY")
        + ("REASON FOR EXAMINATION", "HISTORY", "CLINICAL HISTORY", "PATIENT HISTORY")
        + ("CLINICAL INFORMATION",),
        "indication",
    ),
    **dict.fromkeys(
        ("FINDINGS", "FINDINGS AND IMPRESSION", "FINDINGS/IMPRESSION", "REPORT"), "findings"
    ),
    **dict.fromkeys(
        ("IMPRESSION", "CONCLUSION", "IMPRESSION AND RECOMMENDATION", "IMPRESSION/RECOMMENDATION"),
        "impression",
    ),
}
# Headers that are often misspelt, and near enough to them to be meant.
_MISSPELT = ("FINDINGS", "IMPRESSION", "INDICATION")
_NEAR = 0.8
_OTHER = re.compile(r"TECHNIQUE|EXAM|COMPARISON|PROCEDURE|STUDY|NOTIFICATION|RECOMMENDATION")
# "PA AND LATERAL VIEWS OF THE CHEST:" begins what was seen on them.
_VIEW = re.compile(r"\b(?:VIEWS?|CHEST|RADIOGRAPHS?|FILMS?|PORTABLE|FRONTAL|LATERAL)\b")
_HEADER = re.compile(r"^[ \t]*([A-Z][A-Z \t/,()&'-]{2,60}?)[ \t]*:", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n")


def parse_sections(text: str) -> dict[str, str]:
    """Indication, findings and impression, of these what the report has a header for."""
    headers = list(_HEADER.finditer(text))
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
    headers = list(_HEADER.finditer(text))
    rest = text[headers[-1].end() :] if headers else text
    paragraphs = [part.strip() for part in _PARAGRAPH.split(rest)]
    behind = paragraphs[1:] if headers else paragraphs
    # Titles are in capitals throughout.
    return "\n\n".join(part for part in behind if any(letter.islower() for letter in part))


def _kind(header: str) -> str | None:
    if header in _SECTIONS:
        return _SECTIONS[header]
    if near := difflib.get_close_matches(header, _MISSPELT, 1, _NEAR):
        return _SECTIONS[near[0]]
    if _VIEW.search(header) and not _OTHER.search(header):
        return "findings"
    return None
