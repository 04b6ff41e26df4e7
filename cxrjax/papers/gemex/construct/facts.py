"""Finds facts in a report's sentence: findings, present or absent, and normal parts.

Rules on words, for the offline refiner and generator; cues and their scope are in the vocabulary.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from cxrjax.papers.sources.regions import (
    Place,
    effusion_regions,
    find_places,
    load_regions,
    lung_regions,
    sided,
)
from cxrjax.radiology_text.english import FindingWords, Vocabulary, load_vocabulary

CHEST = "chest"  # what a sentence without any part of the body is about (rule 2)
_BY_PLACE = ("lung", "side", "effusion")
_SENTENCE_PARTS = re.compile(
    r";|\bbut\b|\bhowever\b|\balthough\b|\bwhile\b|\bwhereas\b"
    r"|,? and (?=(?:the |there |no )\w)|, (?=(?:the |there |no )\w)"
    r"|, (?=likely|possibly|probably|which|may\b|suggest|suspicious|concerning|consistent)"
    r"|, (?=represent)"
)
_VERB = re.compile(
    r"\b(?:is|are|was|were|appears?|remains?|shows?|demonstrates?|has|have|there|ends?|terminates?|projects?|lies?|overl(?:y|ies)|extends?|measures?|contains?)\b"
)
_NEGATIVE = re.compile(r"\b(?:no|without|not|negative|free)\b")
_JOINTS = re.compile(r",|;|\b(?:and|or|with|without|nor)\b")
_UNCERTAIN_AFTER = re.compile(
    r"(?:can ?not|can't) be (?:\w+ )?excluded|not (?:\w+ )?excluded"
    r"|\b(?:is|are) (?:possible|suspected|questionable|considered|likely|a consideration)"
)
_EITHER = re.compile(r"\b(?:or|versus|vs)\b")
# "No large effusion" does not say that there is none.
_QUALIFIED = re.compile(
    r"\b(?:large|significant|sizable|moderate|massive|tension|gross|overt|severe|displaced"
    r"|confluent|lobar|marked)\b"
)
_REST = re.compile(r"\botherwise\b|\bremainder\b|\belsewhere\b|\bremaining\b|\bpartial(?:ly)?\b")


@dataclasses.dataclass(frozen=True)
class SentenceFact:
    """One statement.

    Attributes:
        subject: name of a finding or structure of the vocabulary, or `CHEST`.
        polarity: "pos" and "neg" of findings, "normal" of structures.
        regions: of the 30, where it is; empty where none of them is meant.
        located: whether the sentence says where, or it is told by the finding itself.
        certain: False where the sentence is not sure.
    """

    subject: str
    polarity: Literal["pos", "neg", "normal"]
    regions: tuple[str, ...]
    located: bool = False
    certain: bool = True
    severity: str | None = None
    cause: str | None = None


class _Mention(NamedTuple):
    start: int
    end: int
    name: str
    finding: bool


@functools.lru_cache(maxsize=1 << 16)
def find_facts(text: str, source_regions: tuple[str, ...] = ()) -> tuple[SentenceFact, ...]:
    """The statements of a sentence, in order, each once.

    Args:
        source_regions: regions that the source connects with the sentence, of the 30; where a
            finding's place is not said in words, those that are lung are taken.
    """
    words = load_vocabulary()
    plain = " ".join(text.lower().split())
    sides = {place.side for place in find_places(plain)} - {None}
    # "Opacity in the left apex, in keeping with upper lobe collapse": the same side.
    only = sides.pop() if len(sides) == 1 else None
    facts: list[SentenceFact] = []
    for part in _clauses(plain):
        facts += _clause_facts(part, words, source_regions, only)
    return tuple(dict.fromkeys(facts))


def _clauses(text: str) -> list[str]:
    """Parts of a sentence that state things by themselves; each conjunct of a list stays in its."""
    parts, start = [], 0
    for joint in _SENTENCE_PARTS.finditer(text):
        before = text[start : joint.start()]
        complete = _VERB.search(before) or re.match(r"\s*(?:no|without)\b", before)
        hedged = not _NEGATIVE.search(before) and re.match(
            r", (?=li|po|pr|wh|ma|su|co|re)", text[joint.start() :]
        )
        if complete or hedged or joint[0] == ";":
            parts.append(before)
            start = joint.end()
    return [part for part in (*parts, text[start:]) if part.strip()]


def _clause_facts(
    text: str, words: Vocabulary, source_regions: Sequence[str], only_side: str | None
) -> list[SentenceFact]:
    mentions = _mentions(text, words)
    negated = _negated(text, words)
    facts = []
    findings = [mention for mention in mentions if mention.finding]
    chunks = _chunks(text, findings)
    cause = words.cues["cause"].search(text)
    for mention, chunk in zip(findings, chunks, strict=True):
        if cause and mention.start > cause.start():
            continue  # what caused it is part of the other finding's statement
        inside = words.cues["negation"].search(text, mention.start, mention.end)
        after = words.cues["negation_after"].search(text, mention.end)
        absent = bool(inside or after or any(a <= mention.start < b for a, b in negated))
        finding = words.findings[mention.name]
        severity = None if absent else _severity(chunk, text, mention, words)
        places = [
            place if place.side else place._replace(side=only_side) for place in find_places(chunk)
        ]
        regions, located = _regions(finding, places, severity, absent, source_regions)
        facts.append(
            SentenceFact(
                mention.name,
                "neg" if absent else "pos",
                regions,
                located,
                not _QUALIFIED.search(chunk) if absent else _certain(text, mention, words),
                severity if finding.graded or finding.sized else None,
                cause["cause"].strip() if cause and not absent else None,
            )
        )
    structures = [mention for mention in mentions if not mention.finding]
    if not any(fact.polarity == "pos" for fact in facts):
        facts += _normal_facts(text, structures, negated, words)
    if not facts and (general := words.cues["general"].search(text)):
        absent = any(a <= general.start() < b for a, b in negated)
        if absent or words.cues["normal"].search(text, general.start(), general.end()):
            parts = [m for m in structures if m.name != "lungs"]
            facts += _parts_normal(text, parts) or [
                SentenceFact(CHEST, "normal", ("bilateral lung",))
            ]
    return facts


def _mentions(text: str, words: Vocabulary) -> list[_Mention]:
    """Findings and structures in a clause, the longest where several overlap."""
    found = [
        _Mention(match.start(), match.end(), name, finding)
        for finding, patterns in ((True, words.finding_patterns), (False, words.structure_patterns))
        for name, pattern in patterns.items()
        for match in pattern.finditer(text)
        if match.end() > match.start()
    ]
    kept: list[_Mention] = []
    for one in sorted(found, key=lambda m: (not m.finding, m.start - m.end, m.start)):
        if all(one.end <= other.start or other.end <= one.start for other in kept):
            kept.append(one)
    return sorted(kept)


def _negated(text: str, words: Vocabulary) -> list[tuple[int, int]]:
    """Returns the scope of each negation: from its cue to what ends it."""
    spans = []
    for cue in words.cues["negation"].finditer(text):
        end = words.cues["scope_end"].search(text, cue.end())
        spans.append((cue.start(), end.start() if end else len(text)))
    return spans


def _chunks(text: str, mentions: Sequence[_Mention]) -> list[str]:
    """The words that belong to each finding: its part of a list, and neighbours without one.

    "right basilar atelectasis and small left effusion" is two; a part without a finding goes to the
    finding before it, if that says where it is ("opacity in the right base and left apex"), else to
    the one behind it ("right upper and lower lobe opacity"). A part that has no place borrows its
    neighbour's.
    """
    if not mentions:
        return []
    edges = [0, *(m.start() for m in _JOINTS.finditer(text)), len(text)]
    pieces = [(a, b) for a, b in itertools.pairwise(edges) if a < b]
    owner: list[list[tuple[int, int]]] = [[] for _ in mentions]
    waiting: list[tuple[int, int]] = []
    last: int | None = None
    for a, b in pieces:
        inside = [k for k, mention in enumerate(mentions) if a <= mention.start < b]
        if not inside:
            behind = text[mentions[last].end : a] if last is not None else ""
            if last is not None and (find_places(behind) or last == len(mentions) - 1):
                owner[last].append((a, b))
            else:
                waiting.append((a, b))
            continue
        for k in inside:
            owner[k] += [*waiting, (a, b)]
        waiting, last = [], inside[-1]
    if waiting and last is not None:
        owner[last] += waiting
    chunks = [" ".join(" ".join(text[a:b] for a, b in parts).split()) for parts in owner]
    placed = [bool(find_places(chunk)) for chunk in chunks]
    for k, has in enumerate(placed):
        if not has:
            near = [j for j in (k - 1, k + 1) if 0 <= j < len(chunks) and placed[j]]
            if near:
                where = " ".join(_place_words(chunks[near[0]]))
                chunks[k] = f"{chunks[k]} | {where}"
    return chunks


_PLACE_WORD = re.compile(
    r"\b(?:left|right|bilateral(?:ly)?|both|upper|middle|mid|lower|lobes?|lungs?|zones?|bi(?:bas|api)\w+"
    r"|basilar|basal|bases?|apex|apices|apical|lingular?|retrocardiac|(?:peri)?hil(?:um|a|ar))\b"
)


def _place_words(text: str) -> list[str]:
    return _PLACE_WORD.findall(text)


def _severity(chunk: str, text: str, mention: _Mention, words: Vocabulary) -> str | None:
    """The severity nearest before the finding within its part of the clause, else any there."""
    own = chunk.split("|")[0]
    before = own[: max(own.find(text[mention.start : mention.end]), 0)]
    for where in (before, text[mention.start : mention.end], own):
        found = [
            (match.start(), name)
            for name, pattern in words.severities.items()
            for match in pattern.finditer(where)
        ]
        if found:
            return max(found)[1]
    return None


def _regions(
    finding: FindingWords,
    places: Sequence[Place],
    severity: str | None,
    absent: bool,
    source_regions: Sequence[str],
) -> tuple[tuple[str, ...], bool]:
    """(regions, whether words or the finding itself say them)."""
    role = finding.region
    if role is None:
        return (), False
    if role == "pacemaker":
        # Its leads end in the heart (rule 6); its generator lies where it is said to.
        named = [place for place in places if place.zone]
        return tuple(lung_regions(named)) if named else ("cardiac silhouette",), True
    if role not in (*_BY_PLACE, "hilar", "hemidiaphragm"):
        return (role,), True
    if absent and role in _BY_PLACE:
        return tuple(load_regions().combine(lung_regions(_lung_sides(places)))), bool(places)
    if role == "hilar":
        found = sided(places, "hilar structures")
    elif role == "hemidiaphragm":
        found = sided(places, "hemidiaphragm")
    elif not places and source_regions:
        lung = [region for region in source_regions if "lung" in region]
        found = lung or ["bilateral lung"]
        return tuple(load_regions().combine(found)), bool(lung)
    elif role == "effusion":
        found = effusion_regions(places, severity)
    else:
        found = lung_regions(places)
    return tuple(load_regions().combine(found)), bool(places)


def _lung_sides(places: Sequence[Place]) -> list[Place]:
    return [place for place in places if place.zone != "hilar"]


def _certain(text: str, mention: _Mention, words: Vocabulary) -> bool:
    before, after = text[: mention.start], text[mention.end :]
    if _EITHER.search(text) and not _EITHER.search(before + " " + after):
        return True
    doubt = re.sub(_EITHER, " ", before)
    if words.cues["uncertain"].search(doubt) or _UNCERTAIN_AFTER.search(after):
        return False
    own = text[mention.start : mention.end]
    if words.cues["uncertain"].search(own):
        return False
    return not _EITHER.search(text)


def _normal_facts(
    text: str, structures: Iterable[_Mention], negated: Sequence[tuple[int, int]], words: Vocabulary
) -> list[SentenceFact]:
    """Parts of the body that the clause calls normal."""
    normal = [m for m in words.cues["normal"].finditer(text)]
    # "not normal", but not the cue "not enlarged" or "without abnormality" itself.
    normal = [m for m in normal if not any(a < m.start() < b for a, b in negated)]
    normal = [m for m in normal if not re.match(r"(?:no|without)\b", m[0]) or m.start() > 0]
    if not normal or _REST.search(text) or words.cues["uncertain"].search(text):
        return []
    free = [m for m in structures if not any(a <= m.start < b for a, b in negated)]
    return _parts_normal(text, free)


def _parts_normal(text: str, structures: Iterable[_Mention]) -> list[SentenceFact]:
    """These parts of the body are normal."""
    facts = []
    for mention in structures:
        structure = load_vocabulary().structures[mention.name]
        places = find_places(text[max(mention.start - 16, 0) : mention.end])
        regions: Sequence[str] = ()
        if structure.region == "lung":
            regions = lung_regions(places)
        elif structure.region in ("hilar", "hemidiaphragm"):
            what = "hilar structures" if structure.region == "hilar" else "hemidiaphragm"
            regions = sided([place for place in places if place.side], what)
        elif structure.region:
            regions = structure.region.split("+")
        facts.append(SentenceFact(mention.name, "normal", tuple(regions), True))
    return facts
