"""Holds what an answer claims is there against CXR-QBA's reference: right, or how wrong.

A claim is a finding that the answer says is there; a statement, one that the reference's main
answers say is there. Every claim falls into one category, the first of these that fits, and so does
every statement. A claim is borne out by the finding itself or by something more special (who says
"lung opacity" of a consolidation is right); it is denied by the reference's denial of the finding
or of something more general.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cxrjax.papers.cxr_qba.truth import CxrQbaQuestion, TrueFinding
from cxrjax.radiology_text.definitions import SIDES, Definitions
from cxrjax.radiology_text.mention_details import BOTH, CERTAIN, DetailedMention, joined_side

# Wrong claims, the first that fits; then what is right.
CLAIMS = {
    "denied_finding": "said to be there; the reference denies it",
    "denied_region": "an abnormality of a region that the reference calls free of any",
    "unsupported": "said to be there; the reference does not speak of it",
    "wrong_side": "on the left for on the right, or the other way round",
    "wrong_region": "in a region that neither holds nor lies in one of the reference's",
    "wrong_severity": "of another severity than the reference says",
    "wrong_certainty": "doubted where the reference is certain, or certain where it doubts",
    "right": "borne out, with all that is said of it",
}
# Of these the finding itself is borne out.
SUPPORTED = ("wrong_side", "wrong_region", "wrong_severity", "wrong_certainty", "right")
STATEMENTS = {
    "found": "the answer says so too",
    "contradicted": "the answer denies it",
    "missed": "the answer does not speak of it",
}
# Region questions whose "no" clears the region of any abnormality; devices are none.
_REGION_TYPES = ("C02_describe_abnormal_region", "C03_is_abnormal_region", "C04_is_normal_region")


class SideTally(NamedTuple):
    """Claims borne out that name a side, where the reference names one too; and how they differ."""

    compared: int
    swapped: int
    partial: int


@dataclass(frozen=True)
class Claim:
    """A finding said to be there; of several mentions, what they say together."""

    name: str
    side: str
    severity: str
    certain: bool
    regions: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """An answer against its reference.

    Attributes:
        claims: (claim, key of `CLAIMS`).
        statements: (finding, key of `STATEMENTS`).
    """

    claims: tuple[tuple[Claim, str], ...]
    statements: tuple[tuple[str, str], ...]
    sides: SideTally


def judge(
    question: CxrQbaQuestion, mentions: Sequence[DetailedMention], definitions: Definitions
) -> Verdict:
    """Every claim and every statement with its category."""
    claims = _claims(mentions)
    claimed = {claim.name for claim in claims}
    claimed |= {above for name in claimed for above in definitions.finding_ancestors(name)}
    denied = {m.name for m in mentions if m.negated} - {claim.name for claim in claims}
    judged = tuple((claim, _claim_category(question, claim, definitions)) for claim in claims)
    statements = tuple(
        (name, _statement_category(name, claimed, denied, definitions))
        for name in sorted(question.stated)
    )
    return Verdict(judged, statements, _sides(question, claims, definitions))


def _claims(mentions: Sequence[DetailedMention]) -> list[Claim]:
    by_name: dict[str, list[DetailedMention]] = {}
    for mention in mentions:
        if not mention.negated:
            by_name.setdefault(mention.name, []).append(mention)
    return [
        Claim(
            name=name,
            side=joined_side(mention.side for mention in found),
            severity=next((m.severity for m in found if m.severity), ""),
            certain=any(mention.certainty == CERTAIN for mention in found),
            regions=tuple(dict.fromkeys(r for mention in found for r in mention.regions)),
        )
        for name, found in by_name.items()
    ]


def _borne_out_by(
    question: CxrQbaQuestion, name: str, definitions: Definitions
) -> list[TrueFinding]:
    """The reference's findings that this one is, or is a more general name for."""
    if name in question.present:
        return [question.present[name]]
    return [
        true
        for special, true in question.present.items()
        if name in definitions.finding_ancestors(special)
    ]


def _claim_category(question: CxrQbaQuestion, claim: Claim, definitions: Definitions) -> str:
    true = _borne_out_by(question, claim.name, definitions)
    if not true:
        above = set(definitions.finding_ancestors(claim.name))
        if claim.name in question.absent or above & (question.absent - question.denied_narrowly):
            return "denied_finding"
        return "denied_region" if _region_is_clear(question, claim, definitions) else "unsupported"
    sides = joined_side(finding.side for finding in true)
    if {claim.side, sides} == set(SIDES):
        return "wrong_side"
    regions = frozenset(region for finding in true for region in finding.regions)
    if claim.regions and regions and not _same_place(claim.regions, regions, definitions):
        return "wrong_region"
    severities = {finding.severity for finding in true} - {""}
    if claim.severity and severities and claim.severity not in severities:
        return "wrong_severity"
    return "right" if claim.certain in {finding.certain for finding in true} else "wrong_certainty"


def _region_is_clear(question: CxrQbaQuestion, claim: Claim, definitions: Definitions) -> bool:
    """Whether the question is about a region that the reference calls free of abnormality."""
    if question.attributes["question_type"] not in _REGION_TYPES or question.present:
        return False
    finding = definitions.findings.get(claim.name)
    if finding is None or finding.category != "abnormality" or question.region is None:
        return False
    return not claim.regions or _same_place(claim.regions, {question.region}, definitions)


def _same_place(claimed: Collection[str], true: Collection[str], definitions: Definitions) -> bool:
    """Whether a claimed region is a true one, lies in one or holds one."""
    return any(
        one == two
        or one in definitions.region_ancestors(two)
        or two in definitions.region_ancestors(one)
        for one in claimed
        for two in true
    )


def _statement_category(
    name: str, claimed: set[str], denied: set[str], definitions: Definitions
) -> str:
    if name in claimed:
        return "found"
    if denied & {name, *definitions.finding_ancestors(name)}:
        return "contradicted"
    return "missed"


def _sides(
    question: CxrQbaQuestion, claims: Sequence[Claim], definitions: Definitions
) -> SideTally:
    pairs = []
    for claim in claims:
        true = _borne_out_by(question, claim.name, definitions)
        side = joined_side(finding.side for finding in true)
        if claim.side and side:
            pairs.append({claim.side, side})
    swapped = sum(pair == set(SIDES) for pair in pairs)
    return SideTally(len(pairs), swapped, sum(len(pair) > 1 and BOTH in pair for pair in pairs))
