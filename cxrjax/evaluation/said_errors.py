"""Free text against free text by what both assert: comparisons with earlier images, and errors
weighted by how much a finding matters. Both are surrogates: rules read the texts.

`temporal/{precision,recall,f1}`: of (finding, time) pairs, each once a text, where the text says
that a finding is new, worse, better, unchanged or resolved; over all questions together (micro).
Libra's temporal F1 (arXiv 2411.19378) counts words of comparison whatever they are said of.

`surrogate/weighted_errors`: the weight of an answer's errors, mean over the answers; in the manner
of CRIMSON (arXiv 2603.06183), and not CRIMSON, which a language model computes from age and
indication too, and which sets a correct finding's credit against the errors. Parts of the sum:

    false       a finding that the reference does not bear out, by the finding's weight
    missed      a finding of the reference that the answer does not name, or denies
    side        a borne out finding on the left for on the right, or the other way round: half
    severity    of another severity, where both name one: half
    certainty   doubted where the reference is certain, or the other way round: half

A finding is borne out by itself or by a more special one of the reference. General names beside a
more special one in the same text are not counted a second time. Weights stand in
`radiology_text/reference/clinical_weights.toml`.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from cxrjax.evaluation.figures import of, share
from cxrjax.files import read_packaged
from cxrjax.metrics import classification
from cxrjax.metrics.bootstrap import Figure
from cxrjax.metrics.classification import set_counts
from cxrjax.radiology_text.assertions import Assertion, joined_side
from cxrjax.radiology_text.definitions import SIDES, load_definitions

_COMPARED = frozenset(("new", "worse", "better", "unchanged", "resolved"))
_TEMPORAL = ("temporal/tp", "temporal/fp", "temporal/fn")
_ERRORS = ("false", "missed", "side", "severity", "certainty")
# Every column there is.
COLUMNS = (*_TEMPORAL, "temporal/texts", "weighted/texts", *(f"weighted/{n}" for n in _ERRORS))


def count_said(
    said: Sequence[Assertion], true: Sequence[Assertion], also: Iterable[str] = ()
) -> dict[str, float]:
    """The `COLUMNS` of one answer.

    Args:
        said, true: what answer and reference assert of now.
        also: further findings that are there, which an answer may name and need not.
    """
    temporal = set_counts(_comparisons(said), _comparisons(true))
    return {
        **{name: float(n) for name, n in zip(_TEMPORAL, temporal, strict=True)},
        "temporal/texts": float(any(temporal)),
        "weighted/texts": 1.0,
        **{
            f"weighted/{name}": amount for name, amount in weighted_errors(said, true, also).items()
        },
    }


def said_figures(prefix: str = "") -> dict[str, Figure]:
    """The figures of the columns, which are called `<prefix><column>`."""
    tp, fp, fn = (prefix + name for name in _TEMPORAL)
    compared, texts = f"{prefix}temporal/texts", f"{prefix}weighted/texts"
    parts = [f"{prefix}weighted/{name}" for name in _ERRORS]
    return {
        "temporal/precision": Figure(of(classification.precision, tp, fp), compared),
        "temporal/recall": Figure(of(classification.recall, tp, fn), compared),
        "temporal/f1": Figure(of(classification.f1, tp, fp, fn), compared),
        "surrogate/weighted_errors": Figure(
            lambda sums: classification.ratio(sum(sums[part] for part in parts), sums[texts]), texts
        ),
        **{
            f"surrogate/weighted_errors/{name}": share(part, texts)
            for name, part in zip(_ERRORS, parts, strict=True)
        },
    }


def weighted_errors(
    said: Sequence[Assertion], true: Sequence[Assertion], also: Iterable[str] = ()
) -> dict[str, float]:
    """The weight of each kind of error; arguments as of `count_said`."""
    definitions = load_definitions()
    claimed, present = _affirmed(said), _affirmed(true)
    of_claims, of_present = _with_ancestors(claimed), _with_ancestors(present)
    known = of_present | _with_ancestors(also)
    errors = dict.fromkeys(_ERRORS, 0.0)
    for name in _most_special(claimed):
        if name not in of_present:
            errors["false"] += 0.0 if name in known else clinical_weight(name)
            continue
        borne = [
            one
            for special, found in present.items()
            if special == name or name in definitions.finding_ancestors(special)
            for one in found
        ]
        weight = clinical_weight(name) * _table()["about_a_finding"]
        for kind in _differences(claimed[name], borne):
            errors[kind] += weight
    for name in _most_special(present):
        if name not in of_claims:
            errors["missed"] += clinical_weight(name)
    return errors


def clinical_weight(finding: str) -> float:
    """Clinical weight of a finding, 0 to 1; findings without a definition count as actionable."""
    return _weights().get(finding, _table()["weights"]["actionable"])


def _differences(claims: Sequence[Assertion], borne: Sequence[Assertion]) -> list[str]:
    kinds = []
    sides = {joined_side(one.side for one in found) for found in (claims, borne)}
    if sides == set(SIDES):
        kinds.append("side")
    here, there = (_severities(found) for found in (claims, borne))
    if here and there and not here & there:
        kinds.append("severity")
    if any(map(_is_certain, claims)) != any(map(_is_certain, borne)):
        kinds.append("certainty")
    return kinds


def _is_certain(one: Assertion) -> bool:
    return one.certainty == "certain"


def _severities(found: Iterable[Assertion]) -> set[str]:
    same = _table()["severity"]
    return {same.get(one.severity, one.severity) for one in found if one.severity}


def _comparisons(said: Iterable[Assertion]) -> frozenset[tuple[str, str]]:
    return frozenset((one.finding, one.time) for one in said if one.time in _COMPARED)


def _affirmed(said: Iterable[Assertion]) -> dict[str, list[Assertion]]:
    found: dict[str, list[Assertion]] = {}
    for one in said:
        if not one.denies:
            found.setdefault(one.finding, []).append(one)
    return found


def _with_ancestors(names: Iterable[str]) -> set[str]:
    definitions = load_definitions()
    return {above for name in names for above in (name, *definitions.finding_ancestors(name))}


def _most_special(names: Iterable[str]) -> list[str]:
    """Returns the names of which no other is a special case."""
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
