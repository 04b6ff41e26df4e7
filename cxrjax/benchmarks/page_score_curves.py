"""Curves of curves.json as small SVG charts: a line per system."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cxrjax.benchmarks.page_curves import Axes
from cxrjax.errors import UserError

# Curve -> its title; the first ones are always in view.
TITLES = {
    "froc": "FROC",
    "reliability": "Reliability",
    "risk_coverage": "Risk and coverage",
    "iou_by_score": "IoU by box score",
    "sweep/strict/f1": "F1 over IoU thresholds",
    "sweep/strict/precision": "Precision over IoU thresholds",
    "sweep/strict/recall": "Recall over IoU thresholds",
    "sweep/strict/miou_tp": "Mean IoU of true positives over IoU thresholds",
}
# Where a perfect system's line is the diagonal.
_DIAGONAL = ("reliability",)
_FEW = 24
_LAYOUT = "expected {system: {curve: {x, y, x_label, y_label}}}, as score writes"


@dataclass(frozen=True)
class Line:
    """One system's curve.

    Attributes:
        lines: `points` of polylines; several where values are undefined in between.
        dots: (x, y, description) of each point, of curves with few points.
    """

    system: str
    lines: list[str]
    dots: list[tuple[float, float, str]]


@dataclass(frozen=True)
class SystemChart:
    """A curve of several systems in one view box; `diagonal`: `points` of it, or empty."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    diagonal: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    summary: str


def system_charts(curves: Any) -> tuple[list[SystemChart], list[SystemChart]]:
    """Charts of curves.json: those of `TITLES`, and further ones.

    Raises:
        UserError: the content is not laid out as score writes it.
    """
    names: dict[str, dict[str, Mapping[str, Any]]] = {}
    if not isinstance(curves, Mapping):
        raise UserError(f"curves: {_LAYOUT}")
    for system, found in curves.items():
        if not isinstance(found, Mapping):
            raise UserError(f"curves: {system}: {_LAYOUT}")
        for name, curve in found.items():
            _check(curve, f"curves: {system}/{name}")
            names.setdefault(name, {})[system] = curve
    charts = {name: _chart(name, by_system) for name, by_system in names.items()}
    drawn = {name: chart for name, chart in charts.items() if chart is not None}
    first = [drawn[name] for name in TITLES if name in drawn]
    return first, [chart for name, chart in drawn.items() if name not in TITLES]


def _check(curve: Any, where: str) -> None:
    if not isinstance(curve, Mapping) or not {"x", "y"} <= curve.keys():
        raise UserError(f"{where}: {_LAYOUT}")
    for axis in ("x", "y"):
        values = curve[axis]
        if not isinstance(values, Sequence) or not all(
            value is None or isinstance(value, int | float) for value in values
        ):
            raise UserError(f"{where}/{axis}: expected a list of numbers and nulls")
    if len(curve["x"]) != len(curve["y"]):
        raise UserError(f"{where}: {len(curve['x'])} x and {len(curve['y'])} y: expected as many")


def _chart(name: str, curves: Mapping[str, Mapping[str, Any]]) -> SystemChart | None:
    """None where no system has a point."""
    runs = {system: _runs(curve) for system, curve in curves.items()}
    points = [point for found in runs.values() for run in found for point in run]
    if not points:
        return None
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if min(ys) >= 0 and max(ys) <= 1:
        ys = [0.0, 1.0]  # shares are compared on one scale
    low, high = (0.0, 1.0) if name in _DIAGONAL else (min(xs), max(xs))
    axes = Axes.around((low, high if high > low else low + 1), ys)
    first = next(iter(curves.values()))
    x_label, y_label = (str(first.get(key) or "") for key in ("x_label", "y_label"))
    title = TITLES.get(name, name)
    return SystemChart(
        name=name,
        title=title,
        x_label=x_label,
        y_label=y_label,
        lines=[_line(system, found, axes) for system, found in runs.items()],
        diagonal=axes.line([(low, low), (high, high)]) if name in _DIAGONAL else "",
        x_ticks=[(place, f"{tick:.6g}") for place, tick in axes.x_ticks],
        y_ticks=[(place, f"{tick:.6g}") for place, tick in axes.y_ticks],
        summary=f"{title}. "
        + " ".join(
            f"{system}: from ({found[0][0][0]:.3g}, {found[0][0][1]:.3g}) to "
            f"({found[-1][-1][0]:.3g}, {found[-1][-1][1]:.3g})."
            for system, found in runs.items()
            if found
        ),
    )


def _runs(curve: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
    """Points without a gap between them; an undefined value is one."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(curve["x"], curve["y"], strict=True):
        if x is None or y is None or not (math.isfinite(x) and math.isfinite(y)):
            runs.append([])
        else:
            runs[-1].append((float(x), float(y)))
    return [run for run in runs if run]


def _line(system: str, runs: Sequence[Sequence[tuple[float, float]]], axes: Axes) -> Line:
    few = sum(map(len, runs)) <= _FEW
    dots = [(axes.x(x), axes.y(y), f"{system}: {x:.4g}, {y:.4g}") for run in runs for x, y in run]
    return Line(system, [axes.line(run) for run in runs if len(run) > 1], dots if few else [])
