"""Loss curves: a training log (metrics.jsonl) as small SVG charts, of one or several systems."""

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.files import read_json_lines

WIDTH, HEIGHT = 340, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 10, 24
# More points than pixels only make the page heavier.
_MAX_POINTS = 240
_MOST_IN_CSV = 2000


@dataclass(frozen=True)
class Chart:
    """One series, ready to draw in a WIDTH x HEIGHT view box.

    Attributes:
        line: `points` of an SVG polyline through the values (averaged in bins when many).
        smooth: the same of a running mean; empty for a series too short to need one.
        dots: (x, y, description) of each value, given for short series alone.
        x_ticks, y_ticks: (position, text).
        summary: what the chart shows, in words.
        csv: its values, of long series the means that are drawn.
    """

    title: str
    name: str
    line: str
    smooth: str
    dots: list[tuple[float, float, str]]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    summary: str
    csv: str


# Title, and patterns of the names that the series may have in the log, in order of preference. The
# checkpoint is chosen by the question answering F1 under the paper's protocol.
Named = tuple[str, tuple[str, ...]]
_VALIDATION: Named = ("Validation F1", ("(.*/)?paper/vqa/f1", "(.*/)?vqa/f1"))
SUPERVISED: tuple[Named, ...] = (
    ("Training loss, total", ("(train/)?loss",)),
    ("Cross-entropy of answer tokens", ("(train/)?(ce|cross_entropy)",)),
    ("Box part, 1 − GIoU", ("(train/)?(giou_loss|giou)",)),
    ("Boxes with swapped corners, share", ("(train/)?coordinates/swapped",)),
    _VALIDATION,
)
# What tells whether a run of reinforcement learning is healthy (docs/reinforcement_learning.md).
POLICY: tuple[Named, ...] = (
    ("Reward", ("(train/)?rl/reward",)),
    ("Reward, boxes", ("(train/)?rl/reward_iou",)),
    ("Reward, what is said", ("(train/)?rl/reward_answer",)),
    ("Spread of rewards within a group", ("(train/)?rl/spread",)),
    ("Groups worth the same throughout, share", ("(train/)?rl/dead_groups",)),
    ("Divergence from the start, nats a token", ("(train/)?rl/kl",)),
    ("Entropy of coordinates, nats", ("(train/)?rl/coordinate_entropy",)),
    ("Length of answers, tokens", ("(train/)?rl/length",)),
    ("Spurious boxes an answer", ("(train/)?rl/spurious_boxes",)),
    _VALIDATION,
)


def read_series(path: str | Path) -> dict[str, list[tuple[int, float]]]:
    """name -> [(step, value)] of a metrics.jsonl, in order of the step; non-finite values are out.

    A step logged twice (a resumed run) counts with its last value.

    Raises:
        UserError: the file cannot be read, or a line is no JSON object with a whole `step`.
    """
    series: dict[str, dict[int, float]] = {}
    hint = 'expected a JSON object with "step" and named values'
    for where, row in read_json_lines(Path(path), "the training log", hint):
        step = row.get("step")
        if not isinstance(step, int) or not 0 <= step < 2**63:
            raise UserError(f"{where}: {hint}")
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                series.setdefault(name, {})[step] = float(value)
    return {name: sorted(points.items()) for name, points in series.items()}


def charts(path: str | Path) -> tuple[list[Chart], list[str]]:
    """The charts of a training log, and the titles of those it has no values for."""
    series = read_series(path)
    drawn, absent = [], []
    of_policy = any(re.fullmatch("(train/)?rl/.*", name) for name in series)
    for title, patterns in POLICY if of_policy else SUPERVISED:
        names = (n for pattern in patterns for n in series if re.fullmatch(pattern, n))
        name = next(names, None)
        if name is None:
            absent.append(title)
        else:
            drawn.append(chart(title, name, series[name]))
    return drawn, absent


def chart(title: str, name: str, points: Sequence[tuple[int, float]]) -> Chart:
    """Lays out one series of at least one point."""
    binned = _bin(points)
    steps = [step for step, _ in points]
    axes = Axes.around(
        (steps[0], max(steps[-1], steps[0] + 1)),
        [value for _, value in binned],
    )
    few = len(points) <= 24
    return Chart(
        title=title,
        name=name,
        line=axes.line(binned),
        smooth="" if few else axes.line(_smooth(binned)),
        dots=[(axes.x(s), axes.y(v), f"step {s:,}: {v:.4g}") for s, v in points] if few else [],
        x_ticks=[(place, f"{tick:,.0f}") for place, tick in axes.x_ticks if tick == int(tick)],
        y_ticks=[(place, f"{tick:.6g}") for place, tick in axes.y_ticks],
        summary=(
            f"{title} over steps {steps[0]:,} to {steps[-1]:,}: first {points[0][1]:.4g}, "
            f"last {points[-1][1]:.4g}, lowest {min(v for _, v in points):.4g}, "
            f"highest {max(v for _, v in points):.4g}."
        ),
        csv=_csv(("step", name), binned if len(points) > _MOST_IN_CSV else points),
    )


@dataclass(frozen=True)
class Axes:
    """From values to places in a WIDTH x HEIGHT view box.

    Attributes:
        x_range, y_range: values at the ends of the axes.
        x_ticks, y_ticks: (place, value).
    """

    x_range: tuple[float, float]
    y_range: tuple[float, float]

    @classmethod
    def around(cls, x_range: tuple[float, float], values: Sequence[float]) -> "Axes":
        """Axes of this width, high enough for the values and for round numbers around them."""
        ticks = _ticks(min(values), max(values))
        return cls(x_range, (min(ticks[0], *values), max(ticks[-1], *values)))

    def x(self, value: float) -> float:
        low, high = self.x_range
        return round(_LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        low, high = self.y_range
        share = (value - low) / (high - low)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)

    def line(self, points: Iterable[tuple[float, float]]) -> str:
        """`points` of an SVG polyline."""
        return " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points)

    @property
    def x_ticks(self) -> list[tuple[float, float]]:
        return [(self.x(tick), tick) for tick in _inside(self.x_range)]

    @property
    def y_ticks(self) -> list[tuple[float, float]]:
        return [(self.y(tick), tick) for tick in _inside(self.y_range)]


def _inside(ends: tuple[float, float]) -> list[float]:
    low, high = ends
    slack = 1e-9 * (high - low)
    return [tick for tick in _ticks(low, high) if low - slack <= tick <= high + slack]


def _bin(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """At most _MAX_POINTS points: means of equal runs of neighbours."""
    size = math.ceil(len(points) / _MAX_POINTS)
    runs = [points[start : start + size] for start in range(0, len(points), size)]
    return [
        (sum(step for step, _ in run) / len(run), sum(value for _, value in run) / len(run))
        for run in runs
    ]


def _smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Centred running mean over about a twelfth of the series, narrower at its ends."""
    reach = max(1, len(points) // 24)
    smooth = []
    for i, (step, _) in enumerate(points):
        # Equally far to both sides, so that a steep start is not pulled down.
        near = min(reach, i, len(points) - 1 - i)
        window = points[i - near : i + near + 1]
        smooth.append((step, sum(value for _, value in window) / len(window)))
    return smooth


def _ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers that enclose [low, high]; at least two."""
    if high <= low:
        low, high = low - (abs(low) or 1) * 0.1, high + (abs(high) or 1) * 0.1
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(m for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    return [round(step * i, 12) for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


# Curve -> its title; the first ones are always in view.
TITLES = {
    "froc": "FROC",
    "reliability": "Reliability",
    "risk_coverage": "Risk and coverage",
    "iou_by_score": "Reliability of boxes' scores",
    "sweep/strict/f1": "F1 over IoU thresholds",
    "sweep/strict/precision": "Precision over IoU thresholds",
    "sweep/strict/recall": "Recall over IoU thresholds",
    "sweep/strict/miou_tp": "Mean IoU of true positives over IoU thresholds",
}
# Where a perfect system's line is the diagonal.
_DIAGONAL = ("reliability", "iou_by_score")
_FEW = 24
_LAYOUT = "expected {system: {curve: {x, y, x_label, y_label}}}, as score writes"


@dataclass(frozen=True)
class SystemCurve:
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
    """A curve of several systems in one view box.

    Attributes:
        diagonal: `points` of it, or empty.
        csv: the values of all systems.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    lines: list[SystemCurve]
    diagonal: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    summary: str
    csv: str


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
        csv=_csv(
            ("system", x_label or "x", y_label or "y"),
            [(system, *point) for system, found in runs.items() for run in found for point in run],
        ),
    )


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def _runs(curve: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
    """Points without a gap between them; an undefined value is one."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(curve["x"], curve["y"], strict=True):
        if x is None or y is None or not (math.isfinite(x) and math.isfinite(y)):
            runs.append([])
        else:
            runs[-1].append((float(x), float(y)))
    return [run for run in runs if run]


def _line(system: str, runs: Sequence[Sequence[tuple[float, float]]], axes: Axes) -> SystemCurve:
    few = sum(map(len, runs)) <= _FEW
    dots = [(axes.x(x), axes.y(y), f"{system}: {x:.4g}, {y:.4g}") for run in runs for x, y in run]
    return SystemCurve(
        system, [axes.line(run) for run in runs if len(run) > 1], dots if few else []
    )
