"""Free text against free text by assertions: comparisons with earlier images, and errors weighted
by the clinical weight of a finding. Both are surrogates: rules read the texts.

`temporal/{precision,recall,f1}`: of (finding, time) pairs, each once a text, of findings that are
called new, worse, better, unchanged or resolved; over all questions together (micro). Libra's
temporal F1 (arXiv 2411.19378) counts words of comparison of any subject.

`surrogate/weighted_errors`: the weight of an answer's errors, mean over the answers; in the manner
of CRIMSON (arXiv 2603.06183), and not CRIMSON, which a language model computes from age and
indication too, and which sets a correct finding's credit against the errors. Parts of the sum:

    false       a finding that the reference does not confirm, by the finding's weight
    missed      a finding of the reference that the answer does not name, or denies
    side        a confirmed finding on the left for on the right, or inverted: half
    severity    of another severity, where both name one: half
    certainty   doubted where the reference is certain, or inverted: half

A finding is confirmed by itself or by a more specific one of the reference. General names beside a
more specific one in the same text are not counted again. Weights are in
`radiology_text/reference/clinical_weights.toml`.
"""

import collections
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.metrics.classification import set_counts
from cxrjax.radiology_text.assertions import Assertion, joined_side
from cxrjax.radiology_text.definitions import SIDES, load_definitions

COMPARED = frozenset(("new", "worse", "better", "unchanged", "resolved"))
_TEMPORAL = ("temporal/tp", "temporal/fp", "temporal/fn")
_ERRORS = ("false", "missed", "side", "severity", "certainty")
_CHANGES = [f"changes/{of}" for of in ("all", "named", *sorted(COMPARED))]
COLUMNS = (
    *(*_TEMPORAL, "temporal/texts", "weighted/texts", *(f"weighted/{n}" for n in _ERRORS)),
    *(*_CHANGES, *(f"{of}/right" for of in _CHANGES)),
)


def count_said(
    said: Sequence[Assertion], true: Sequence[Assertion], also: Iterable[str] = ()
) -> dict[str, float]:
    """Returns the `COLUMNS` of one answer.

    Args:
        said, true: current assertions of answer and reference.
        also: further present findings, which an answer may name and need not.
    """
    temporal = set_counts(_comparisons(said), _comparisons(true))
    errors = weighted_errors(said, true, also)
    amounts = (*temporal, any(temporal), 1, *(errors[name] for name in _ERRORS))
    found = dict.fromkeys(COLUMNS, 0.0)
    return found | dict(zip(COLUMNS, map(float, amounts), strict=False)) | _changes(said, true)


def weighted_errors(
    said: Sequence[Assertion], true: Sequence[Assertion], also: Iterable[str] = ()
) -> dict[str, float]:
    """Returns the weight of each kind of error; arguments as of `count_said`."""
    definitions = load_definitions()
    claimed, present = _affirmed(said), _affirmed(true)
    of_claims, of_present = _with_ancestors(claimed), _with_ancestors(present)
    known = of_present | _with_ancestors(also)
    errors = dict.fromkeys(_ERRORS, 0.0)
    for name in _most_specific(claimed):
        if name not in of_present:
            errors["false"] += 0.0 if name in known else clinical_weight(name)
            continue
        confirming = [
            one
            for specific, found in present.items()
            if specific == name or name in definitions.finding_ancestors(specific)
            for one in found
        ]
        weight = clinical_weight(name) * _table()["about_a_finding"]
        for kind in _differences(claimed[name], confirming):
            errors[kind] += weight
    for name in _most_specific(present):
        if name not in of_claims:
            errors["missed"] += clinical_weight(name)
    return errors


def clinical_weight(finding: str) -> float:
    """Returns a finding's weight, 0 to 1; one without a definition counts as actionable."""
    return _weights().get(finding, _table()["weights"]["actionable"])


def _differences(*both: Sequence[Assertion]) -> list[str]:
    """The kinds of errors in claims, beside the assertions that confirm them."""
    same = _table()["severity"]
    sides = {joined_side(one.side for one in found) for found in both}
    here, there = (
        {same.get(one.severity, one.severity) for one in found if one.severity} for found in both
    )
    certain, confirmed = (any(one.certainty == "certain" for one in found) for found in both)
    differ = {
        "side": sides == set(SIDES),
        "severity": here and there and not here & there,
        "certainty": certain != confirmed,
    }
    return [kind for kind, differs in differ.items() if differs]


def _comparisons(said: Iterable[Assertion]) -> frozenset[tuple[str, str]]:
    return frozenset((one.finding, one.time) for one in said if one.time in COMPARED)


def _changes(*texts: Iterable[Assertion]) -> dict[str, float]:
    """Counts the reference's changes of a finding on a side, and those that an answer has too."""
    said, true = ({(a.finding, a.side): a.time for a in of if a.time in COMPARED} for of in texts)
    found: collections.Counter[str] = collections.Counter()
    for place, time in true.items():
        for kind in ("all", time, *["named"] * (place in said)):
            found[f"changes/{kind}"] += 1
            found[f"changes/{kind}/right"] += said.get(place) == time
    return {name: float(count) for name, count in found.items()}


def _affirmed(said: Iterable[Assertion]) -> dict[str, list[Assertion]]:
    found: dict[str, list[Assertion]] = {}
    for one in said:
        if not one.denies:
            found.setdefault(one.finding, []).append(one)
    return found


def _with_ancestors(names: Iterable[str]) -> set[str]:
    definitions = load_definitions()
    return {above for name in names for above in (name, *definitions.finding_ancestors(name))}


def _most_specific(names: Iterable[str]) -> list[str]:
    """The names without a more specific one among them."""
    names = list(names)
    definitions = load_definitions()
    general = {above for name in names for above in definitions.finding_ancestors(name)}
    return [name for name in names if name not in general]


@functools.cache
def _table() -> dict[str, Any]:
    return dict(read_packaged("cxrjax.radiology_text", "reference/clinical_weights.toml"))


@functools.cache
def _weights() -> dict[str, float]:
    table = _table()
    return {
        name: float(table["weights"][level])
        for level, names in table["levels"].items()
        for name in names
    }
