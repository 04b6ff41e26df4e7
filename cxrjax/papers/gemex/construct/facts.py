"""Finds facts in a report's sentence: findings, present or absent, and normal parts.

Rules on words, for the offline refiner and generator; cues and their scope are in the vocabulary.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Literal

from cxrjax.papers.sources import regions as region_names
from cxrjax.papers.sources.regions import Place, load_regions
from cxrjax.radiology_text.assertions import Assertion
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.english import FindingWords, load_vocabulary
from cxrjax.radiology_text.reader import ReportReader

CHEST = "chest"  # what a sentence without any part of the body is about (rule 2)
_BY_PLACE = ("lung", "side", "effusion")


@dataclasses.dataclass(frozen=True)
class SentenceFact:
    """One statement."""

    subject: str  # name of a finding or structure of the vocabulary, or `CHEST`
    polarity: Literal["pos", "neg", "normal"]  # "pos" and "neg" of findings, "normal" of structures
    regions: tuple[str, ...]  # of the 30, where it is; empty where none of them is meant
    located: bool = False  # whether the sentence says where, or it is told by the finding itself
    certain: bool = True  # False where the sentence is not sure
    severity: str | None = None
    cause: str | None = None
    several: bool = False  # whether the sentence has its noun in the plural

    @property
    def words(self) -> FindingWords:
        """The vocabulary's entry of its finding."""
        return words_of(self.subject)


def words_of(finding: str) -> FindingWords:
    """Returns the vocabulary's entry of a finding."""
    return load_vocabulary().findings[finding]


# Words before a finding that may say how severe it is.
_SEVERITY_REACH = 40
_JOINTS = re.compile(r",|;|\b(?:and|or|with|without|nor)\b")
# A cause that is one of several, a guess, or no noun; the longest ones were cut off.
_OPEN = re.compile(
    r"/|\b(?:or|possible|possibly|probable|probably|likely|may|versus|vs|is|are|was|were|which|history)\b"
    r"|^.{55,}"
)
_PLURAL = re.compile(r"(?:[^siu]s|ces|ta)$")
_GENERAL = ("cardiopulmonary abnormality", "lung disease")


@functools.lru_cache(maxsize=1 << 16)
def find_facts(text: str, source_regions: tuple[str, ...] = ()) -> tuple[SentenceFact, ...]:
    """Returns the statements of a sentence, in order, each once.

    Args:
        source_regions: regions that the source connects with the sentence, of the 30; where a
            finding's place is not said in words, those that are lung are taken.
    """
    cause = load_vocabulary().cues["cause"].search(text.lower())
    facts: list[SentenceFact] = []
    for one in _reader().read(text):
        if not one.is_now or (cause and one.span[0] > cause.start()):
            continue  # what caused it is part of the other finding's statement
        places = region_names.find_places("; ".join(one.regions) or (one.side or ""))
        if one.finding in _GENERAL and one.status == "absent":
            facts.append(SentenceFact(CHEST, "normal", ("bilateral lung",)))
        elif one.organ and one.certainty == "certain":
            facts += _normal(one, places)
        elif (name := subject_of(one.finding, one.regions)) is not None:
            facts.append(_fact(one, words_of(name), places, text, source_regions))
    return tuple(dict.fromkeys(facts))


def subject_of(finding: str, regions: Sequence[str]) -> str | None:
    """Returns the vocabulary's name of a finding that is said of these regions, or of a more
    general one; None where it has none."""
    definitions = load_definitions()
    around = {up for region in regions for up in (region, *definitions.region_ancestors(region))}
    for name in (finding, *definitions.finding_ancestors(finding)):
        for subject in _subjects().get(name, ()):
            if subject.within is None or subject.within in around:
                return subject.name
    return None


@functools.cache
def _subjects() -> dict[str, list[FindingWords]]:
    """Maps findings of the definitions to those of the vocabulary for them, special first."""
    found: dict[str, list[FindingWords]] = {}
    for words in load_vocabulary().findings.values():
        for name in words.names:
            found.setdefault(name, []).append(words)
    return {
        name: sorted(several, key=lambda w: w.within is None) for name, several in found.items()
    }


@functools.cache
def _reader() -> ReportReader:
    return ReportReader()


def _fact(
    one: Assertion,
    finding: FindingWords,
    places: Sequence[Place],
    text: str,
    source_regions: Sequence[str],
) -> SentenceFact:
    absent = one.status == "absent"
    above = load_definitions().region_ancestors
    central = any("cardiomediastinum" in above(region) for region in one.regions)
    if finding.region == "lung" and central and not places:
        # "Calcification of the mitral valve" is in none of the 30 regions.
        finding = dataclasses.replace(finding, region=None)
    if finding.name == "low_volume":  # of lungs; zones beside it are another finding's
        places = [place for place in places if place.zone is None]
    plain = text.lower()
    found = None if absent else load_vocabulary().cues["cause"].search(plain, one.span[1])
    cause = text[slice(*found.span("cause"))].strip() if found else None
    severity = None if absent else _severity(plain, one.span, finding.sized)
    regions, located = _regions(finding, places, severity, absent, source_regions)
    return SentenceFact(
        finding.name,
        "neg" if absent else "pos",
        regions,
        located,
        one.certainty == "certain",
        severity if finding.graded or finding.sized else None,
        None if cause and _OPEN.search(cause.lower()) else cause,
        bool(finding.plural) and _PLURAL.search(plain[slice(*one.span)]) is not None,
    )


def _severity(text: str, span: tuple[int, int], sized: bool) -> str | None:
    """Returns the severity nearest before the finding in its part of the sentence, or in it; a size
    where the finding has one."""
    before = text[max(0, span[0] - _SEVERITY_REACH) : span[1]]
    joints = [joint.end() for joint in _JOINTS.finditer(before[: len(before) - span[1] + span[0]])]
    found = [
        (match.start(), name)
        for name, pattern in load_vocabulary().severities.items()
        for match in pattern.finditer(before[max(joints, default=0) :])
        if sized or match[0] not in ("small", "tiny", "large")
    ]
    return max(found)[1] if found else None


def _normal(one: Assertion, places: Sequence[Place]) -> list[SentenceFact]:
    """Returns the part of the body that is called normal, where it has a place among the 30."""
    for structure in load_vocabulary().structures.values():
        if one.organ in structure.names and structure.region:
            regions = structure.region.split("+")
            if structure.region == "lung":
                regions = region_names.lung_regions(places)
            elif structure.region in ("hilar", "hemidiaphragm"):
                what = "hilar structures" if structure.region == "hilar" else "hemidiaphragm"
                regions = region_names.sided([place for place in places if place.side], what)
            return [SentenceFact(structure.name, "normal", tuple(regions), True)]
    return []


def _regions(
    finding: FindingWords,
    places: Sequence[Place],
    severity: str | None,
    absent: bool,
    source_regions: Sequence[str],
) -> tuple[tuple[str, ...], bool]:
    """Returns regions, and whether words or the finding itself name them."""
    role = finding.region
    if role is None:
        return (), False
    if role == "pacemaker":
        # Its leads end in the heart (rule 6); its generator lies where it is said to.
        named = [place for place in places if place.zone]
        return tuple(region_names.lung_regions(named)) if named else ("cardiac silhouette",), True
    if role not in (*_BY_PLACE, "hilar", "hemidiaphragm"):
        return (role,), True
    if absent and role in _BY_PLACE:
        sides = [place for place in places if place.zone != "hilar"]
        return tuple(load_regions().combine(region_names.lung_regions(sides))), bool(places)
    if role == "hilar":
        found = region_names.sided(places, "hilar structures")
    elif role == "hemidiaphragm":
        found = region_names.sided(places, "hemidiaphragm")
    elif not places and source_regions:
        lung = [region for region in source_regions if "lung" in region]
        found = lung or ["bilateral lung"]
        return tuple(load_regions().combine(found)), bool(lung)
    elif role == "effusion":
        found = region_names.effusion_regions(places, severity)
    else:
        found = region_names.lung_regions(places)
    # "At the apex" leaves open of which lung.
    return tuple(load_regions().combine(found)), any(place.side for place in places)
