"""Loss curves: a training log (metrics.jsonl) to the coordinates of small SVG charts."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cxrjax.errors import UserError

WIDTH, HEIGHT = 340, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 10, 24
# More points than pixels only make the page heavier.
_MAX_POINTS = 240


@dataclass(frozen=True)
class Chart:
    """One series, ready to draw in a WIDTH x HEIGHT view box.

    Attributes:
        line: `points` of an SVG polyline through the values (averaged in bins when many).
        smooth: the same of a running mean; empty for a series too short to need one.
        dots: (x, y, description) of each value, given for short series alone.
        x_ticks, y_ticks: (position, text).
        summary: what the chart shows, in words.
    """

    title: str
    name: str
    line: str
    smooth: str
    dots: list[tuple[float, float, str]]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    summary: str


# Title, and patterns of the names that the series may have in the log, in order of preference. The
# checkpoint is chosen by the question answering F1 under the paper's protocol.
CURVES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Training loss, total", ("(train/)?loss",)),
    ("Cross-entropy of answer tokens", ("(train/)?(ce|cross_entropy)",)),
    ("Box part, 1 − GIoU", ("(train/)?(giou_loss|giou)",)),
    ("Boxes with swapped corners, share", ("(train/)?coordinates/swapped",)),
    ("Validation F1", ("(.*/)?paper/vqa/f1", "(.*/)?vqa/f1")),
)


def read_series(path: str | Path) -> dict[str, list[tuple[int, float]]]:
    """name -> [(step, value)] of a metrics.jsonl, in order of the step; non-finite values are out.

    A step logged twice (a resumed run) counts with its last value.

    Raises:
        UserError: the file cannot be read, or a line is no JSON object with a whole `step`.
    """
    series: dict[str, dict[int, float]] = {}
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                    step = int(row["step"])
                except (ValueError, TypeError, KeyError):
                    raise UserError(
                        f'{path}:{number}: expected a JSON object with "step" and named values'
                    ) from None
                for name, value in row.items():
                    if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                        series.setdefault(name, {})[step] = float(value)
    except OSError as error:
        raise UserError(f"{path}: cannot read the training log: {error.strerror}") from None
    return {name: sorted(points.items()) for name, points in series.items()}


def charts(path: str | Path) -> tuple[list[Chart], list[str]]:
    """The charts of a training log, and the titles of those it has no values for."""
    series = read_series(path)
    drawn, absent = [], []
    for title, patterns in CURVES:
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
