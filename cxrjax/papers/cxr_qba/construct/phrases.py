"""Noun phrases and summary sentences of findings, in the number that English wants."""

from collections.abc import Mapping, Sequence

from cxrjax.files import read_packaged
from cxrjax.radiology_text.definitions import Finding, load_definitions
from cxrjax.radiology_text.english import capital, join
from cxrjax.radiology_text.nouns import is_plural, plural

# From the surest on; the last is no degree: nothing is said, neither yes nor no.
NOT_MENTIONED = "not_mentioned"
CERTAINTIES = ("certain", "likely", "uncertain", NOT_MENTIONED)
ACUTE = ("temporal", "acute")
_DATA = read_packaged(str(__package__), "reference/phrases.toml")
_LISTS: Mapping[str, Sequence[str]] = _DATA["lists"]
GRADES: Mapping[str, int] = _DATA["grades"]
_HAS = {"is": "has", "are": "have"}
# As letters of the start of an adjective that a name repeats: "calcified" of a calcification.
_SAME_STEM = 5


def one_severity(
    modifiers: Sequence[tuple[str, str]], names: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Returns modifiers with at most one severity: the greatest, of equal ones the last stated.

    Args:
        names: of the findings; of what has no size a size is a degree, or nothing.
    """
    sized = all(map(_has_size, names))
    said = [value for kind, value in modifiers if kind == "severity"]
    found = [value if sized else _DATA["degrees"].get(value, value) for value in said]
    kept = max(reversed(found), key=lambda value: GRADES.get(value, 0), default="")
    others = (m for m in modifiers if m[0] != "severity")
    return (("severity", kept), *others) if kept else tuple(others)


def grade(modifiers: Mapping[str, Sequence[str]]) -> int:
    """Returns how much the severity is, 0 without one that is known."""
    return max((GRADES.get(value, 0) for value in modifiers.get("severity", ())), default=0)


def _has_size(name: str) -> bool:
    if any(part in name for part in _LISTS["enlarged"]):
        return False
    one = load_definitions().findings.get(name)
    return one is None or one.countable or one.subcategory not in _LISTS["sized_if_counted"]


def shown(name: str) -> str:
    """A finding's or region's name as reports write it: "SVC"."""
    return str(_DATA["shown"].get(name, name))


def verb(name: str) -> str:
    """`is` or `are`."""
    return "are" if is_plural(name) else "is"


def _is_counted(findings: Sequence[Finding]) -> bool:
    """One finding that takes an article in the singular."""
    name = findings[0].name
    return (
        len(findings) == 1
        and findings[0].countable
        and name not in _LISTS["uncounted"]
        and not is_plural(name)
    )


def _adjectives(modifiers: Sequence[tuple[str, str]], name: str) -> list[str]:
    """Modifiers in the order of English, without those that the name repeats."""
    found: list[str] = []
    for kind in _LISTS["modifier_order"]:
        values = [
            value
            for modifier, value in dict.fromkeys(modifiers)
            if modifier == kind
            and value not in name.split()
            and not (len(value) > _SAME_STEM and value[:_SAME_STEM] in name)
        ]
        found += values
    return list(dict.fromkeys([*_DATA["more"].get(name, ()), *map(shown, found)]))


def noun(
    findings: Sequence[Finding],
    modifiers: Sequence[tuple[str, str]],
    side: str = "",
    article: bool = False,
) -> str:
    """`mild patchy atelectasis`, `a small left pleural effusion`, `surgical clips`."""
    name = join([shown(finding.name) for finding in findings], "or")
    said = _adjectives(modifiers, name)
    if _is_counted(findings) or is_plural(name):
        said = ["multiple" if value == "multifocal" else value for value in said]
    if _is_counted(findings):
        if side == "bilateral" or {*_LISTS["many"]} & {*said}:
            name = plural(name)
        elif article:
            phrase = _phrase(said, side, name)
            vowel = phrase[0].lower() in "aeiou" and not phrase.startswith("uni")
            return f"{'an' if vowel else 'a'} {phrase}"
    return _phrase(said, side, name)


def _phrase(said: Sequence[str], side: str, name: str) -> str:
    state, _, rest = name.partition(" ")
    if not rest or state not in _LISTS["states"]:
        return " ".join([*said, *filter(None, [side]), name])
    others = [value for value in said if value not in _DATA["adverbs"]]
    adverbs = [_DATA["adverbs"][value] for value in said if value in _DATA["adverbs"]]
    return " ".join([*others, *adverbs, state, *filter(None, [side]), rest])


def says_many(modifiers: Sequence[tuple[str, str]]) -> bool:
    """Returns whether a modifier puts a noun in the plural."""
    return any(value in _LISTS["many"] for _, value in modifiers)


def place(regions: Sequence[str], of_lungs: bool = False) -> str:
    """` in the left lung base`, ` in the lungs and the hila`, or nothing.

    Args:
        of_lungs: of what can be in lungs alone, and is seen over the heart at most.
    """
    over = [region for region in regions if of_lungs and region in _LISTS["projected"]]
    inside = [region for region in regions if region not in over]
    found = ""
    for word, names in ((" in", inside), ((", " if inside else " ") + "projecting over", over)):
        if names:
            found += f"{word} {join(['the ' + shown(name) for name in names])}"
    return found


def describe(
    findings: Sequence[Finding],
    regions: Sequence[str],
    modifiers: Sequence[tuple[str, str]],
    positive: bool,
    certainty: str,
    measured: Sequence[str] = (),
) -> tuple[str, str]:
    """Returns the name and the summary sentence of a finding.

    Args:
        measured: follows the place: "4 cm above the carina", "measuring 8 mm".
    """
    side, rest = _side_and_place(findings, regions)
    said = [m for m in modifiers if not side or m[1] not in ("bilateral", side)]
    # A name may hold the region, as "calcified lymph node" does.
    own = [f" {finding.name}" for finding in findings]
    rest = [r for r in rest if not any(f" {r.removesuffix('s')}" in name for name in own)]
    usual = {region for finding in findings for region in finding.regions}
    of_lungs = bool(usual) and usual <= {*_LISTS["of_lungs"]}
    if of_lungs and not positive:  # what is not there projects over nothing
        rest = [r for r in rest if r not in _LISTS["projected"]]
    where = place(_both_sides(rest), of_lungs)
    last = findings[-1].name
    if not positive:
        acute = " ".join(["acute"] * (ACUTE in modifiers) + _DATA["more"].get(last, []))
        names = join([shown(f.name) for f in findings], "or")
        absent = " ".join(filter(None, [acute, side, names]))
        start = f"There {verb(last)} no" + (" definite" if certainty != "certain" else "")
        return f"No {absent}{where}", f"{start} {absent}{where}."
    name = capital(noun(findings, said, side) + where)
    phrase = noun(findings, said, side, article=True)
    many = _is_counted(findings) and not phrase.startswith(("a ", "an "))
    start = _DATA["exists"][certainty].format(**{"is": "are" if many or is_plural(last) else "is"})
    behind = "".join(f", {value}" for value in measured)
    return name, f"{start} {phrase}{where}{behind}."


def _both_sides(regions: Sequence[str]) -> list[str]:
    """Returns the regions with left and right of one as that one: "the lung bases"."""
    known = load_definitions()
    found: list[str] = []
    for name in regions:
        group = known.regions[name].group if name in known.regions else None
        sides = known.sides.get(group or "", {})
        found.append(group if group and set(sides.values()) <= {*regions} else name)
    return list(dict.fromkeys(found))


def _side_and_place(
    findings: Sequence[Finding], regions: Sequence[str]
) -> tuple[str, Sequence[str]]:
    """Returns an adjective and the regions left to name: none that the finding's name implies."""
    usual = {region for finding in findings for region in finding.regions}
    usual |= {r for finding in findings for r in _DATA["beside"].get(finding.subcategory, ())}
    if {finding.name for finding in findings} <= {*_LISTS["placed"]}:
        return "", regions
    if set(regions) <= usual:
        return "", ()
    every = load_definitions().regions
    known = [every[region] for region in regions if region in every]
    if len(known) == len(regions) and all(region.group in usual for region in known):
        sides = {region.side for region in known}
        return ("bilateral" if len(sides) > 1 else sides.pop()), ()
    return "", regions


def describe_unmentioned(findings: Sequence[Finding]) -> tuple[str, str]:
    """Returns the name and the summary sentence of what a report does not mention."""
    names = [noun([finding], [], article=True) for finding in findings]
    verb_of = "are" if len(findings) > 1 else verb(findings[-1].name)
    text = f"{join(names)} {verb_of} not mentioned"
    return capital(f"{join([shown(f.name) for f in findings])}: not mentioned"), capital(text + ".")


NORMAL = "Normal "


def describe_normal(organ: str) -> tuple[str, str]:
    """Returns the name and the summary sentence of an organ that is normal."""
    return f"{NORMAL}{organ}", f"The {shown(organ)} {verb(shown(organ))} normal."


def calls_normal(name: str) -> bool:
    """Returns true for the name of an observation of a normal organ, not of its normal size."""
    return name.startswith(NORMAL) and not name.endswith(tuple(_LISTS["in_part"]))


def describe_change(findings: Sequence[Finding], changes: Sequence[str]) -> str:
    """A sentence on the change, or nothing."""
    known = [_DATA["changes"][one] for one in changes if one in _DATA["changes"]]
    if not known or not findings:
        return ""
    name = join([shown(finding.name) for finding in findings], "or")
    is_ = verb(findings[-1].name)
    return f"The {name} {join(known)}.".format(**{"is": is_, "has": _HAS[is_]})
