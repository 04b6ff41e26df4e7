"""The figures of the page as data: headlines, comparisons, and all of metrics.json.

What score wrote, laid out; nothing is computed here. The papers' tables are tables.md's
(markdown.py).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cxrjax.errors import UserError
from cxrjax.scoring.overlays import BASE, TUNED
from cxrjax.scoring.tables import FEW, UNDEFINED

# {system: {protocol: {metric: {value, ci_low, ci_high, n}}}}: the content of metrics.json.
Metrics = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]

# A corrected p below this is set in bold.
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Cell:
    """One figure as printed. `value` is None where it is undefined or was not measured."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None

    @property
    def text(self) -> str:
        return format_number(self.value)

    @property
    def interval(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return ""
        return f"{format_number(self.low)} to {format_number(self.high)}"

    @property
    def few(self) -> bool:
        return self.n is not None and self.n < FEW

    @property
    def exact(self) -> str:
        """The unrounded value, for the tooltip."""
        value = "undefined or not measured" if self.value is None else repr(self.value)
        return value if self.n is None else f"{value}, n = {self.n:,}"


@dataclass(frozen=True)
class ComparisonRow:
    """One line of comparisons.json; p as text."""

    metric: str
    difference: Cell
    p: str
    p_holm: str
    significant: bool


@dataclass(frozen=True)
class Compared:
    """Two systems under one protocol; the plots of its lines go from -reach to reach."""

    system: str
    other: str
    protocol: str
    reach: float
    lines: list[ComparisonRow]


def check_metrics(metrics: Any) -> None:
    """Refuses what is not `{system: {protocol: {metric: {value, ...}}}}`.

    Raises:
        UserError: names the first place that is something else.
    """
    layout = "expected {system: {protocol: {metric: {value, ci_low, ci_high, n}}}}, as score writes"
    if not isinstance(metrics, Mapping) or not metrics:
        raise UserError(f"metrics: no systems: {layout}")
    for system, protocols in metrics.items():
        if not isinstance(protocols, Mapping):
            raise UserError(f"metrics: {system} is not an object: {layout}")
        for protocol, named in protocols.items():
            if not isinstance(named, Mapping):
                raise UserError(f"metrics: {system}/{protocol} is not an object: {layout}")
            for metric, entry in named.items():
                if not isinstance(entry, Mapping) or "value" not in entry:
                    raise UserError(f"metrics: {system}/{protocol}/{metric} has no value: {layout}")
                for name in ("value", "ci_low", "ci_high", "n"):
                    number = entry.get(name)
                    if number is not None and not isinstance(number, int | float):
                        where = f"{system}/{protocol}/{metric}/{name}"
                        raise UserError(f"metrics: {where} is {number!r}: expected a number")


def ordered_systems(metrics: Metrics) -> list[str]:
    """The systems with `base` and `tuned` first."""
    return sorted(metrics, key=lambda name: (name != BASE, name != TUNED))


def headlines(
    chosen: Iterable[tuple[str, str, str, str]], metrics: Metrics, systems: Sequence[str]
) -> list[tuple[str, str, list[Cell]]]:
    """(label, definition, a cell per system) of what was measured of `Layout.headlines`."""
    found = []
    for protocol, metric, label, hint in chosen:
        cells = [_cell(metrics, system, protocol, metric) for system in systems]
        if any(cell.value is not None for cell in cells):
            found.append((label, hint, cells))
    return found


def all_metrics(
    metrics: Metrics, systems: Sequence[str]
) -> list[tuple[str, list[tuple[str, list[Cell]]]]]:
    """Protocol -> every figure of metrics.json: (metric, a cell per system)."""
    found = []
    for protocol in dict.fromkeys(p for system in systems for p in metrics[system]):
        names = dict.fromkeys(n for s in systems for n in metrics[s].get(protocol, {}))
        rows = [(name, [_cell(metrics, s, protocol, name) for s in systems]) for name in names]
        found.append((protocol, rows))
    return found


def comparisons(rows: Iterable[Mapping[str, Any]]) -> list[Compared]:
    """Content of comparisons.json, by pair and protocol.

    Raises:
        UserError: a line is not as score writes it.
    """
    grouped: dict[tuple[str, str, str], list[ComparisonRow]] = {}
    for number, row in enumerate(rows, start=1):
        try:
            difference = Cell(
                _finite(row["difference"]),
                _finite(row["ci_low"]),
                _finite(row["ci_high"]),
                row["n"],
            )
            p, corrected = _finite(row["p"]), _finite(row["p_holm"])
            key = str(row["system"]), str(row["compared_to"]), str(row["protocol"])
            line = ComparisonRow(
                str(row["metric"]),
                difference,
                UNDEFINED if p is None else f"{p:.3g}",
                UNDEFINED if corrected is None else f"{corrected:.3g}",
                corrected is not None and corrected < SIGNIFICANT,
            )
        except (KeyError, TypeError):
            raise UserError(
                f"comparisons: entry {number}: expected system, compared_to, protocol, metric, "
                "difference, ci_low, ci_high, p, p_holm and n, as score writes them"
            ) from None
        grouped.setdefault(key, []).append(line)
    return [
        Compared(*key, reach=_reach(line.difference for line in lines), lines=lines)
        for key, lines in grouped.items()
    ]


def _reach(cells: Iterable[Cell]) -> float:
    ends = [abs(v) for c in cells for v in (c.value, c.low, c.high) if v is not None]
    return max(ends, default=0.0) or 1.0


def format_number(value: float | None) -> str:
    """Three decimals; a dash where undefined: no one reads it as a zero."""
    return UNDEFINED if value is None else f"{value:,.3f}"


def _cell(metrics: Metrics, system: str, protocol: str, metric: str) -> Cell:
    entry = metrics.get(system, {}).get(protocol, {}).get(metric)
    if entry is None:
        return Cell()
    low, high = _finite(entry.get("ci_low")), _finite(entry.get("ci_high"))
    return Cell(_finite(entry["value"]), low, high, entry.get("n"))


def _finite(value: Any) -> float | None:
    """None for null and NaN alike: an undefined figure is a dash."""
    return None if value is None or not math.isfinite(value) else value
