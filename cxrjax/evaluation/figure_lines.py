"""Figures as lines of a table: each is a quotient of column sums, with its direction and sentence.

    "vqa/exact_set" = ["strict: exact_set / questions", "higher", "Exact set", "view sex"]

A line is name = [value, direction, sentence, attributes that it is broken down by]. Values:

    found / stated                      one column's sum by another's, over the latter
    2 tp / predicted + truth over n     sums and whole factors; `over`: the column that is n
    balanced_accuracy(asked/{tp,fp,fn,tn}) over asking     a function of `FUNCTIONS` or a paper's
    iou / <answered|asked>              under `paper` the first, under `strict` the second
    strict: found / stated              under one protocol only
    right / keyed if named              undefined where the sum of `named` is 0
    yes / asking where negative=none    of the units with this value of an attribute
    none over questions                 undefined under this protocol
    ""                                  no function of sums: computed by the benchmark

A name with braces is several figures: `f1@{0.3,0.5}`, where `{}` in the value is the number, or
`miou/{finding}`, for each finding that the benchmark names. The direction is "higher", "lower" or
"none". Figures are broken down under `strict`; `+attribute` is under both protocols, and
`attribute:names` has a row for each of these names.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from cxrjax.evaluation.counted import PAPER, STRICT
from cxrjax.evaluation.figures import NO_FIGURE, break_down
from cxrjax.files import read_packaged
from cxrjax.metrics import classification, detection, text
from cxrjax.metrics.bootstrap import Attributes, Estimate, Figure, Formula, LazyColumns, Sums
from cxrjax.metrics.classification import ratio

# (sums, arguments as written) -> the figure.
Function = Callable[..., Float[np.ndarray, " sums"]]
Functions = Mapping[str, Function]
Names = Mapping[str, Iterable[str]]
Figures = dict[str, Figure | Estimate]
DIRECTIONS = {"higher": 1, "lower": -1, "none": 0}

_PLACE = re.compile(r"\{([^{}]*)\}")
_BY_PROTOCOL = re.compile(r"<([^|<>]*)\|([^|<>]*)>")
_CALL = re.compile(r"(\w+)\((.*)\)")


class FigureLine(NamedTuple):
    """One figure of a table, or several with braces in their name."""

    name: str
    value: str = ""
    direction: str = "higher"
    sentence: str = ""
    by: str = ""


class _Value(NamedTuple):
    """A value that was read: a call, or numerator and denominator as (factor, column) terms."""

    call: tuple[str, ...] = ()
    top: tuple[tuple[int, str], ...] = ()
    bottom: tuple[tuple[int, str], ...] = ()
    n: str = ""
    unless_none: str = ""
    within: tuple[str, str] | None = None


def shared_lines(section: str) -> list[FigureLine]:
    """Returns the lines of a section of evaluation/figures.toml, which several benchmarks have."""
    lines = read_packaged("cxrjax.evaluation", "figures.toml")[section]
    return [FigureLine(name, *line) for name, line in lines.items()]


def make_figures(
    lines: Iterable[FigureLine],
    attributes: Attributes | None = None,
    names: Names | None = None,
    functions: Functions | None = None,
    protocols: Sequence[str] = (PAPER, STRICT),
) -> dict[str, Figures]:
    """Returns {protocol: {metric: figure}} of the lines, then those that are broken down.

    Args:
        attributes: of the units; one that no unit has makes its figures undefined, with n = 0.
        names: what a name in braces stands for, and the rows of breakdowns.
        functions: the benchmark's own functions of sums.
    """
    known, attributes, names = {**FUNCTIONS, **(functions or {})}, attributes or {}, names or {}
    found: dict[str, Figures] = {}
    for protocol in protocols:
        here: Figures = {}
        parts: dict[str, dict[str, Figure]] = {}
        for line in lines:
            value = _of_protocol(line.value, protocol)
            for name, filled in _expanded(line.name, names) if value else ():
                figure = _figure(value, filled, known, attributes)
                here[name] = figure
                if isinstance(figure, Figure):
                    for by in line.by.split():
                        if protocol == STRICT or by.startswith("+"):
                            parts.setdefault(by.lstrip("+"), {})[name] = figure
        for by, alike in parts.items():
            attribute, _, rows = by.partition(":")
            keys = names.get(rows or attribute)
            here |= break_down(alike, attribute, attributes[attribute], keys)
        found[protocol] = here
    return found


def direction_of(lines: Iterable[FigureLine], metric: str) -> int:
    """Returns 1 where a higher figure is better, -1 where a lower one is, 0 where neither is."""
    lines = list(lines)
    for line in (one for one in lines if one.name == metric):
        return DIRECTIONS[line.direction]
    for line in lines:
        if _pattern(line.name).fullmatch(metric):
            return DIRECTIONS[line.direction]
    return 1


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    """Matches a line's figures, also broken down, of a stage or by a surrogate judge."""
    parts = _PLACE.split(name)
    for place, part in enumerate(parts):
        listed = "|".join(map(re.escape, part.split(","))) if "," in part else ".+"
        parts[place] = f"({listed})" if place % 2 else re.escape(part)
    text = "".join(parts)
    return re.compile(rf"(.+/)?({text}|by_[^/]+/{text}/.+)")


def _of_protocol(value: str, protocol: str) -> str:
    only, colon, rest = value.partition(": ")
    if colon and only in (PAPER, STRICT):
        value = rest if only == protocol else ""
    return _BY_PROTOCOL.sub(lambda m: m[1 if protocol == PAPER else 2], value).strip()


def _expanded(name: str, names: Names) -> list[tuple[str, dict[str, str]]]:
    """Returns each name that a name with braces stands for, and what fills the braces."""
    places = _PLACE.findall(name)
    values = [one.split(",") if "," in one else list(names[one]) for one in places]
    tokens = ["{}" if "," in one else f"{{{one}}}" for one in places]
    expanded = []
    for chosen in itertools.product(*values):
        filled = iter(chosen)
        full = _PLACE.sub(lambda _: next(filled), name)  # noqa: B023
        expanded.append((full, dict(zip(tokens, chosen, strict=True))))
    return expanded


@functools.cache
def _read(value: str) -> _Value:
    value, _, where = value.partition(" where ")
    attribute, _, key = where.partition("=")
    value, _, n = value.partition(" over ")
    value, _, unless_none = value.partition(" if ")
    shared = (n, unless_none, (attribute, key) if where else None)
    if match := _CALL.fullmatch(value):
        arguments = _each_argument(match[2])
        return _Value((match[1], *arguments), (), (), *shared)
    if value == "none":
        return _Value((), (), (), *shared)
    top, slash, bottom = value.partition(" / ")
    if not slash:
        raise ValueError(f"{value!r}: expected NUMERATOR / DENOMINATOR or function(columns)")
    terms = _terms(bottom)
    return _Value((), _terms(top), terms, n or terms[0][1], *shared[1:])


def _each_argument(written: str) -> list[str]:
    """Splits at commas outside of braces; `a/{b,c}` is a/b and a/c."""
    found = []
    for argument in re.split(r",\s*(?![^{}]*\})", written):
        listed = next((one for one in _PLACE.findall(argument) if "," in one), None)
        parts = [None] if listed is None else listed.split(",")
        found += [argument if p is None else argument.replace(f"{{{listed}}}", p) for p in parts]
    return found


def _terms(written: str) -> tuple[tuple[int, str], ...]:
    parts = re.split(r" ([+-]) ", written)
    signs = [1, *(1 if sign == "+" else -1 for sign in parts[1::2])]
    found = (part.partition(" ") if part[:1].isdigit() else ("", "", part) for part in parts[::2])
    return tuple(
        (sign * int(factor or 1), column)
        for sign, (factor, _, column) in zip(signs, found, strict=True)
    )


def _figure(
    value: str, filled: Mapping[str, str], functions: Functions, attributes: Attributes
) -> Figure | Estimate:
    read = _read(value)

    def fill(column: str) -> str:
        for token, name in filled.items():
            column = column.replace(token, name)
        return column

    within = None if read.within is None else (read.within[0], fill(read.within[1]))
    if within is not None and within[1] not in attributes[within[0]]:
        return NO_FIGURE
    n = fill(read.n)
    formula: Formula
    if read.call:
        function, *arguments = read.call
        formula = partial(_called, functions[function], [fill(one) for one in arguments])
    elif read.bottom:
        top, bottom = (tuple((f, fill(c)) for f, c in part) for part in (read.top, read.bottom))
        formula = partial(_divided, top, bottom)
    else:
        formula = partial(_undefined, n)
    if read.unless_none:
        formula = partial(_unless_none, fill(read.unless_none), formula)
    return Figure(formula, n, within)


def _called(function: Function, arguments: Sequence[str], sums: Sums) -> Float[np.ndarray, " sums"]:
    return function(sums, *arguments)


def _divided(top: Any, bottom: Any, sums: Sums) -> Float[np.ndarray, " sums"]:
    return ratio(_total(top, sums), _total(bottom, sums))


def _total(terms: Iterable[tuple[int, str]], sums: Sums) -> Any:
    total: Any = None
    for factor, column in terms:
        amount = sums[column] if factor == 1 else factor * sums[column]
        total = amount if total is None else total + amount
    return total


def under(prefix: str, formula: Formula) -> Formula:
    """Returns the formula on the sums whose names begin with the prefix."""

    def inner(sums: Sums) -> Float[np.ndarray, " sums"]:
        names = [name.removeprefix(prefix) for name in sums if name.startswith(prefix)]
        return formula(LazyColumns(names, lambda name: sums[prefix + name]))

    return inner


def _undefined(n: str, sums: Sums) -> Float[np.ndarray, " sums"]:
    return np.full_like(np.asarray(sums[n], np.float64), np.nan)


def _unless_none(column: str, formula: Formula, sums: Sums) -> Float[np.ndarray, " sums"]:
    return np.where(sums[column] > 0, formula(sums), np.nan)


def of_columns(function: Callable[..., np.ndarray]) -> Function:
    """Returns a function of counts as one of the sums of the columns named."""
    return lambda sums, *columns: function(*(sums[column] for column in columns))


def mean_iou(sums: Sums, iou: str, hits: str, threshold: str) -> Float[np.ndarray, " sums"]:
    """Mean IoU of the true positives at a threshold."""
    return detection.mean_iou_of_hits(sums[iou], sums[hits], float(threshold))


def f1_area(sums: Sums, hits: str, boxes: str) -> Float[np.ndarray, " sums"]:
    """Area under F1 over all thresholds, of `<hits>@T/tp` and `<boxes>/{predicted,truth}`."""
    whole = sums[f"{boxes}/predicted"] + sums[f"{boxes}/truth"]
    return area([ratio(2 * sums[f"{hits}@{t}/tp"], whole) for t in detection.SWEEP])


def area(f1: Sequence[Float[np.ndarray, " sums"]]) -> Float[np.ndarray, " sums"]:
    """Area under F1, a value for each threshold of `SWEEP`."""
    sweep = detection.SWEEP
    return np.asarray(np.trapezoid(np.stack(f1), sweep, axis=0) / (sweep[-1] - sweep[0]))


def harmonic_mean(sums: Sums, *columns: str) -> Float[np.ndarray, " sums"]:
    """Harmonic mean of two quotients: the first column by the second, the third by the last."""
    a, b, c, d = (sums[column] for column in columns)
    return classification.harmonic_mean(ratio(a, b), ratio(c, d))


def mean(sums: Sums, *columns: str) -> Float[np.ndarray, " sums"]:
    """Mean of quotients, of each first column by the next; undefined where one of them is."""
    quotients = [
        ratio(sums[top], sums[bottom])
        for top, bottom in zip(columns[::2], columns[1::2], strict=True)
    ]
    return np.mean(quotients, axis=0)


def bleu(sums: Sums, prefix: str, order: str) -> Float[np.ndarray, " sums"]:
    """BLEU of the statistics whose columns begin with the prefix."""
    parts = ("match", "total")
    names = ["predicted", "reference", *(f"{p}{n + 1}" for p in parts for n in range(int(order)))]
    return text.bleu({name: sums[prefix + name] for name in names}, int(order))


FUNCTIONS: Functions = {
    "accuracy": of_columns(classification.accuracy),
    "balanced_accuracy": of_columns(classification.balanced_accuracy),
    "bleu": bleu,
    "f1": of_columns(classification.f1),
    "f1_area": f1_area,
    "harmonic_mean": harmonic_mean,
    "matthews": of_columns(classification.matthews),
    "mean": mean,
    "mean_iou": mean_iou,
    "precision": of_columns(classification.precision),
    "recall": of_columns(classification.recall),
    "specificity": of_columns(classification.specificity),
}
