"""Reference definitions: findings, regions and the words around them, from data files.

The published definitions (PadChest, Chest ImaGenome and SNOMED-CT tags, verified by experts) are
not part of the release; the files in reference/ are the project's own.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.radiology_text.english import PhraseIndex
from cxrjax.untrusted.json_text import parse_json

SIDES = ("left", "right")


@dataclasses.dataclass(frozen=True)
class Finding:
    """A concept that observations are mapped to.

    Attributes:
        category: abnormality, device, acquisition or artifact.
        subcategory: organ system.
        parents: more general concepts.
        regions: where it is when nothing else is said.
        default_negative: added as absent where a report does not mention it.
        countable: takes an article ("a nodule", but "atelectasis").
        in_region: region -> the finding that this one is when it is said of the region: bones have
            no cardiopulmonary abnormality.
    """

    name: str
    category: str
    subcategory: str
    synonyms: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    default_negative: bool = False
    countable: bool = False
    in_region: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Region:
    """An anatomical region.

    Attributes:
        parent: the region that it lies in.
        group: the region of both sides that this is one side of.
        sources: other names under which boxes and masks of it are given.
        derive: operation and operands where it is not given; the file's `about` tells them.
        localized: whether it can have a box.
    """

    name: str
    synonyms: tuple[str, ...] = ()
    parent: str | None = None
    group: str | None = None
    sources: tuple[str, ...] = ()
    derive: Mapping[str, Any] | None = None
    localized: bool = True

    @functools.cached_property
    def side(self) -> str:
        """left, right, or "" for a region of neither or both sides."""
        words = self.name.split()
        lone = "left" if self.name == "lingula" else ""
        return next((side for side in SIDES if side in words), lone)


@dataclasses.dataclass(frozen=True)
class OrganStatement:
    """An organ of which reports say that it is normal or what is wrong with it.

    Attributes:
        normal: findings that "normal" says are absent.
        states: word -> finding that it says is there.
    """

    name: str
    regions: tuple[str, ...]
    normal: tuple[str, ...]
    states: PhraseIndex[str]


class Definitions:
    """Findings and regions with their names in text.

    Attributes:
        findings: name -> finding.
        regions: name -> region, left and right written out.
        finding_names: every wording -> finding's name.
        region_names: every wording -> region's name.
        version: of the data files.
    """

    def __init__(self, findings: Iterable[Finding], regions: Iterable[Region], version: str = ""):
        self.findings = {finding.name: finding for finding in findings}
        self.regions = {region.name: region for region in regions}
        self.version = version
        self.finding_names = PhraseIndex(_wordings(self.findings.values()))
        self.region_names = PhraseIndex(_wordings(self.regions.values()))
        self.sides: dict[str, dict[str, str]] = {}
        for region in self.regions.values():
            if region.group:
                self.sides.setdefault(region.group, {})[region.side] = region.name
        self.source_names = {
            source: region.name for region in self.regions.values() for source in region.sources
        }

    def in_regions(self, name: str, regions: Iterable[str]) -> str:
        """Returns the name that a finding has where it is said of these regions."""
        if name not in self.findings:
            return name
        names = {self.findings[name].in_region.get(region, name) for region in regions}
        return names.pop() if len(names) == 1 else name

    def finding_ancestors(self, name: str) -> list[str]:
        """More general findings, nearest first, each once."""
        found: list[str] = []
        queue = list(self.findings[name].parents) if name in self.findings else []
        while queue:
            parent = queue.pop(0)
            if parent not in found:
                found.append(parent)
                queue.extend(self.findings[parent].parents)
        return found

    def region_ancestors(self, name: str) -> list[str]:
        """The regions that this one lies in, nearest first."""
        found = []
        parent = self.regions[name].parent if name in self.regions else None
        while parent:
            found.append(parent)
            parent = self.regions[parent].parent
        return found

    def resolve_regions(self, names: Iterable[str], side: str) -> tuple[list[str], list[str]]:
        """Returns the regions that wordings mean, and the wordings that are no region's.

        Args:
            names: wordings; one without a side of its own takes the side given.
            side: left, right, both or "".

        Returns:
            Regions in order, each once, without those that another one lies in.
        """
        found: list[str] = []
        unknown: list[str] = []
        for name in names:
            region = name if name in self.regions else self.region_names.get(name)
            if region is None:
                unknown.append(name)
                continue
            found += self.on_side(region, side) if side else [region]
        found = list(dict.fromkeys(found))
        general = {parent for region in found for parent in self.region_ancestors(region)}
        return [region for region in found if region not in general], unknown

    def on_side(self, region: str, side: str) -> list[str]:
        """The region's parts on a side ("left", "right", "both"); itself where it has none."""
        sides = self.sides.get(region)
        if sides is None:
            return [region]
        if side == "both":
            return [sides[name] for name in SIDES if name in sides]
        return [sides[side]] if side in sides else [region]


@dataclasses.dataclass(frozen=True)
class Language:
    """Words that are neither findings nor regions, ready to be found in text.

    Attributes:
        modifiers: word -> (type, value).
        change: word -> what changed.
        change_context: words that speak of an earlier study.
        ignored_sentences: words of sentences that observe nothing.
        sides: word -> left, right or both.
        not_sides: phrases in which "left" or "right" is no side of a finding.
        subjects: wording -> statement.
        normal_states: words that say an organ is normal.
        linked: words that may stand between an organ and its state, or in a list of organs.
    """

    modifiers: PhraseIndex[tuple[str, str]]
    change: PhraseIndex[str]
    change_context: PhraseIndex[str]
    ignored_sentences: PhraseIndex[str]
    sides: PhraseIndex[str]
    not_sides: PhraseIndex[str]
    subjects: PhraseIndex[OrganStatement]
    normal_states: PhraseIndex[str]
    linked: PhraseIndex[str]


@functools.cache
def load_definitions() -> Definitions:
    """The definitions in the package."""
    findings = _load("findings.json")
    regions = load_region_table()
    return Definitions(
        (_finding(name, fields) for name, fields in findings["findings"].items()),
        (
            region
            for name, fields in regions["regions"].items()
            for region in _regions(name, fields)
        ),
        f"{findings['version']}.{regions['version']}",
    )


def load_region_table() -> dict[str, Any]:
    """Reads the one table of anatomical regions; its `about` says what its sections are."""
    return _load("regions.json")


@functools.cache
def load_language() -> Language:
    """The words in the package."""
    data = _load("language.json")

    def same(name: str) -> PhraseIndex[str]:
        return PhraseIndex((phrase, phrase) for phrase in data[name])

    def grouped(groups: Mapping[str, Iterable[str]]) -> PhraseIndex[str]:
        return PhraseIndex((phrase, key) for key, phrases in groups.items() for phrase in phrases)

    return Language(
        modifiers=PhraseIndex(
            (phrase, (kind, value))
            for kind, values in data["modifiers"].items()
            for value, phrases in values.items()
            for phrase in (value, *phrases)
        ),
        change=grouped(data["change"]),
        sides=grouped(data["sides"]),
        subjects=PhraseIndex(
            (phrase, _statement(entry))
            for entry in data["statements"]
            for phrase in entry["subject"]
        ),
        linked=same("linked_subjects"),
        change_context=same("change_context"),
        ignored_sentences=same("ignored_sentences"),
        not_sides=same("not_sides"),
        normal_states=same("normal_states"),
    )


def _wordings(entries: Iterable[Any]) -> Iterable[tuple[str, str]]:
    entries = list(entries)
    # Own names first: a synonym never hides another entry's name.
    yield from ((entry.name, entry.name) for entry in entries)
    yield from ((synonym, entry.name) for entry in entries for synonym in entry.synonyms)


def _load(name: str) -> dict[str, Any]:
    return read_packaged(str(__package__), f"reference/{name}")


def _finding(name: str, fields: Mapping[str, Any]) -> Finding:
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    return Finding(name, **given)


def _regions(name: str, fields: Mapping[str, Any]) -> Iterable[Region]:
    """The region, or its left and right forms where {side} is in the name."""
    for side in SIDES if "{side}" in name else ("",):
        filled = parse_json(
            json.dumps({"name": name, **fields}).replace("{side}", side).replace("{s}", side[:1])
        )
        for key in ("synonyms", "sources"):
            filled[key] = tuple(filled.get(key, ()))
        yield Region(**filled)


def _statement(entry: Mapping[str, Any]) -> OrganStatement:
    normal = tuple(name.strip() for name in entry["normal"].split(";") if name.strip())
    return OrganStatement(
        entry["name"], tuple(entry["regions"]), normal, PhraseIndex(entry["states"])
    )
