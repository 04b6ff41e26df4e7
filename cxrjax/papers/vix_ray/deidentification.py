"""A look for what may tell who a patient is, in Vietnamese and English text (section 3.1).

A check, no promise: it finds what is written like a name, a date, an address, a phone or a record
number. Age and sex are meant to be there.
"""

import dataclasses
import re
import unicodedata

from cxrjax.files import read_packaged

_WORDS = read_packaged(str(__package__), "deidentification.toml")
_PARTS: dict[str, str] = dict(_WORDS["parts"])
_PARTS["FAMILIES_UPPER"] = _PARTS["FAMILIES"].upper()


def _compile(pattern: str) -> re.Pattern[str]:
    while "«" in pattern:
        pattern = re.sub("«([A-Z_]+)»", lambda name: _PARTS[name[1]], pattern)
    return re.compile(pattern)


REDACTED = "___"  # as MIMIC-CXR's reports have it
_COMPILED = {kind: list(map(_compile, of)) for kind, of in _WORDS["patterns"].items()}
KINDS = tuple(_COMPILED)
_NO_NAMES = re.compile(_WORDS["no_names"]["pattern"])


@dataclasses.dataclass(frozen=True)
class Identifier:
    """Text that may identify a person: its kind, a key of `KINDS`, and its span."""

    kind: str
    start: int
    end: int


def find_identifiers(text: str) -> list[Identifier]:
    """Returns what may identify a person, in order of place.

    Args:
        text: any Unicode form; places are those of its form NFC.
    """
    text = unicodedata.normalize("NFC", text)
    found: list[Identifier] = []
    covered = bytearray(len(text))
    for kind, patterns in _COMPILED.items():
        for pattern in patterns:
            for match in pattern.finditer(text):
                group = 1 if kind == "name" else 0
                start, end = match.span(group)
                if kind == "name" and _NO_NAMES.match(text[start:end]):
                    continue
                if not any(covered[start:end]):
                    covered[start:end] = b"\1" * (end - start)
                    found.append(Identifier(kind, start, end))
    return sorted(found, key=lambda identifier: identifier.start)


def redact(text: str) -> tuple[str, list[str]]:
    """Puts `REDACTED` in the place of what may identify a person.

    Returns:
        the text in Unicode's form NFC; the kinds of what was in it.
    """
    found = find_identifiers(text)
    text = unicodedata.normalize("NFC", text)
    for identifier in reversed(found):
        text = f"{text[: identifier.start]}{REDACTED}{text[identifier.end :]}"
    return text, [identifier.kind for identifier in found]
