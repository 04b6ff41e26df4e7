"""The words of chest radiograph reports that the offline construction knows: data, from a file."""

import dataclasses
import functools
import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence

VERSION = "1"


@dataclasses.dataclass(frozen=True)
class FindingWords:
    """One finding; the data file's `about` tells the fields."""

    name: str
    noun: str
    article: str
    plural: str
    kind: str
    region: str | None
    class_name: str | None
    group: str
    graded: bool
    sized: bool
    implication: str


@dataclasses.dataclass(frozen=True)
class StructureWords:
    """A part of the body whose normality is stated."""

    name: str
    region: str | None
    subject: str
    verb: str
    condition: str


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """Findings and structures by name, in the file's order, with compiled patterns.

    Attributes:
        cues: kind of cue ("negation", "uncertain", ...) -> one pattern for all of them.
        severities: severity -> pattern.
    """

    findings: Mapping[str, FindingWords]
    structures: Mapping[str, StructureWords]
    finding_patterns: Mapping[str, re.Pattern[str]]
    structure_patterns: Mapping[str, re.Pattern[str]]
    cues: Mapping[str, re.Pattern[str]]
    severities: Mapping[str, re.Pattern[str]]


_CUES = (
    "normal",
    "general",
    "negation",
    "scope_end",
    "negation_after",
    "uncertain",
    "cause",
    "longitudinal",
    "droppable",
    "view",
)


@functools.cache
def load_vocabulary(version: str = VERSION) -> Vocabulary:
    """The words of a version, from the package's data file."""
    file = importlib.resources.files(__package__).joinpath(f"vocabulary_v{version}.json")
    data = json.loads(file.read_text(encoding="utf-8"))
    findings, structures = data["findings"], data["structures"]
    return Vocabulary(
        findings={
            name: FindingWords(name, class_name=words["class"], **_fields(words, "class"))
            for name, words in findings.items()
        },
        structures={
            name: StructureWords(name, **_fields(words)) for name, words in structures.items()
        },
        finding_patterns={
            name: _any(words["patterns"], whole=True) for name, words in findings.items()
        },
        structure_patterns={
            name: _any(words["patterns"], whole=True) for name, words in structures.items()
        },
        cues={name: _any(data[name]) for name in _CUES},
        severities={name: _any(words, whole=True) for name, words in data["severity"].items()},
    )


def _fields(words: Mapping, *without: str) -> dict:
    return {key: value for key, value in words.items() if key not in ("patterns", *without)}


def _any(patterns: Sequence[str], whole: bool = False) -> re.Pattern[str]:
    joined = "|".join(f"(?:{pattern})" for pattern in patterns)
    return re.compile(rf"\b(?:{joined})(?!\w)" if whole else joined)
