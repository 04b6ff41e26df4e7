"""Short names and full sentences for observations, in the style of a report, by templates.

Sentences are made from the structured values and not copied, so that they can't carry mentions of
change or of earlier studies.
"""

from collections.abc import Sequence

from cxrjax.datasets.cxr_qba.definitions import Definitions, Finding
from cxrjax.datasets.english import capital, join

_MODIFIER_ORDER = ("severity", "temporal", "spread", "texture")
ACUTE = ("temporal", "acute")
_EXISTS = {"certain": "There is", "likely": "There is probably", "uncertain": "There may be"}
_CHANGES = {
    "no change": "is unchanged",
    "new": "is new",
    "increased": "has increased",
    "decreased": "has decreased",
    "resolved": "has resolved",
}

# Plurals of regions that do not end in s.
_PLURALS = ("axillae", "bronchi", "hila", "humeri", "scapulae")


def noun(
    findings: Sequence[Finding],
    modifiers: Sequence[tuple[str, str]],
    side: str = "",
    article: bool = False,
) -> str:
    """`mild patchy atelectasis`, `a small left pleural effusion`."""
    name = join([finding.name for finding in findings], "or")
    said = [
        value
        for kind in _MODIFIER_ORDER
        for modifier, value in modifiers
        if modifier == kind and value not in name.split()
    ]
    if article and len(findings) == 1 and findings[0].countable:
        if side == "bilateral" or {"bilateral", "multifocal", "scattered"} & set(said):
            name = plural(name)
        else:
            phrase = " ".join([*dict.fromkeys(said), *filter(None, [side]), name])
            return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"
    return " ".join([*dict.fromkeys(said), *filter(None, [side]), name])


def plural(name: str) -> str:
    """The plural of a finding's name; names that end in s are plural already."""
    if name.endswith("y"):
        return name[:-1] + "ies"
    if name.endswith("pneumothorax"):
        return name[:-1] + "ces"
    if name.endswith("sis"):
        return name[:-2] + "es"
    if name.endswith(("ss", "x")):
        return name + "es"
    return name if name.endswith("s") else name + "s"


def is_plural(name: str) -> bool:
    """Whether the name of a region or an organ takes "are"."""
    last = name.split()[-1]
    return last in _PLURALS or (last.endswith("s") and not last.endswith(("ss", "us", "is")))


def place(regions: Sequence[str]) -> str:
    """` in the left lung base`, ` in the lungs and the hila`, or nothing."""
    return f" in {join(['the ' + region for region in regions])}" if regions else ""


def describe(
    findings: Sequence[Finding],
    regions: Sequence[str],
    modifiers: Sequence[tuple[str, str]],
    positive: bool,
    certainty: str,
    definitions: Definitions,
) -> tuple[str, str]:
    """(name, summary sentence) of a finding."""
    side, rest = _side_and_place(findings, regions, definitions)
    said = [m for m in modifiers if not side or m[1] not in ("bilateral", side)]
    where = place(rest)
    if not positive:
        acute = "acute" if ACUTE in modifiers else ""
        absent = " ".join(filter(None, [acute, side, join([f.name for f in findings], "or")]))
        start = "There is no definite" if certainty != "certain" else "There is no"
        return f"No {absent}{where}", f"{start} {absent}{where}."
    name = capital(noun(findings, said, side) + where)
    phrase = noun(findings, said, side, article=True)
    start = _EXISTS[certainty]
    if len(findings) == 1 and findings[0].countable and not phrase.startswith(("a ", "an ")):
        start = start.replace("There is", "There are")
    return name, f"{start} {phrase}{where}."


def _side_and_place(
    findings: Sequence[Finding], regions: Sequence[str], definitions: Definitions
) -> tuple[str, Sequence[str]]:
    """An adjective and the regions left to name: none where the finding's name implies them."""
    usual = {region for finding in findings for region in finding.regions}
    if set(regions) <= usual:
        return "", ()
    known = [definitions.regions[region] for region in regions if region in definitions.regions]
    if len(known) == len(regions) and all(region.group in usual for region in known):
        sides = {region.side for region in known}
        return ("bilateral" if len(sides) > 1 else sides.pop()), ()
    return "", regions


def describe_normal(organ: str) -> tuple[str, str]:
    """(name, summary sentence) of an organ that is normal."""
    verb = "are" if is_plural(organ) else "is"
    return f"Normal {organ}", f"The {organ} {verb} normal."


def describe_change(findings: Sequence[Finding], changes: Sequence[str]) -> str:
    """A sentence on the change, or nothing."""
    known = [_CHANGES[change] for change in changes if change in _CHANGES]
    name = join([finding.name for finding in findings], "or")
    return f"The {name} {join(known)}." if known and findings else ""
