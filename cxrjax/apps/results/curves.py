"""Curves of the page: a training log (metrics.jsonl), and what score wrote of several systems."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from cxrjax.apps.results.plots import ACCENT, Line, Look, Plot, csv_text, plot_lines
from cxrjax.apps.results.tables import ScoreFile, as_written
from cxrjax.errors import UserError
from cxrjax.files import read_json_lines
from cxrjax.paths import to_path

# More points than pixels only make the page heavier.
_MAX_POINTS = 240
_MOST_IN_CSV = 2000
_FEW = 24  # points that have a dot each


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
    for where, row in read_json_lines(to_path(path), "the training log", hint):
        step = row.get("step")
        if not isinstance(step, int) or not 0 <= step < 2**63:
            raise UserError(f"{where}: {hint}")
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                series.setdefault(name, {})[step] = float(value)
    return {name: sorted(points.items()) for name, points in series.items()}


def charts(path: str | Path) -> tuple[list[Plot], list[str]]:
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


def chart(title: str, name: str, points: Sequence[tuple[int, float]]) -> Plot:
    """Draws one series of at least one point: its values, and a running mean of many."""
    binned = _bin(points)
    steps = [step for step, _ in points]
    few = len(points) <= _FEW
    lines = [Line("", binned, ACCENT, faint=not few, dotted=few)]
    lines += [] if few else [Line("", _smooth(binned))]
    return Plot(
        name=name,
        title=title,
        svg=plot_lines(name, lines, "step", "", whole=True),
        summary=(
            f"{title} over steps {steps[0]:,} to {steps[-1]:,}: first {points[0][1]:.4g}, "
            f"last {points[-1][1]:.4g}, lowest {min(v for _, v in points):.4g}, "
            f"highest {max(v for _, v in points):.4g}."
        ),
        csv=csv_text(("step", name), binned if len(points) > _MOST_IN_CSV else points),
    )


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


class _Curve(ScoreFile):
    """A curve of curves.json; null where it is undefined."""

    x: list[float | None]
    y: list[float | None]
    x_label: str | None = None
    y_label: str | None = None

    @pydantic.model_validator(mode="after")
    def _same_length(self) -> "_Curve":
        if len(self.x) != len(self.y):
            raise ValueError("x and y differ in length")
        return self


_CURVES = pydantic.TypeAdapter(dict[str, dict[str, _Curve]])


def system_charts(curves: Any, looks: Mapping[str, Look]) -> tuple[list[Plot], list[Plot]]:
    """Charts of curves.json: those of `TITLES`, and further ones.

    Args:
        looks: of the systems; others look like the page's accent.

    Raises:
        UserError: the content is not laid out as score writes it.
    """
    names: dict[str, dict[str, _Curve]] = {}
    layout = "{system: {curve: {x, y, x_label, y_label}}}, x and y as long as each other"
    for system, found in as_written(_CURVES, curves, "curves.json", layout).items():
        for name, curve in found.items():
            names.setdefault(name, {})[system] = curve
    charts = {name: _chart(name, by_system, looks) for name, by_system in names.items()}
    drawn = {name: chart for name, chart in charts.items() if chart is not None}
    first = [drawn[name] for name in TITLES if name in drawn]
    return first, [chart for name, chart in drawn.items() if name not in TITLES]


def _chart(name: str, curves: Mapping[str, _Curve], looks: Mapping[str, Look]) -> Plot | None:
    """None where no system has a point."""
    runs = {system: found for system, c in curves.items() if (found := _runs(c))}
    values = [y for found in runs.values() for run in found for _, y in run]
    if not values:
        return None
    first = next(iter(curves.values()))
    x_label, y_label = first.x_label or "", first.y_label or ""
    title = TITLES.get(name, name)
    lines = [
        Line(
            "" if number else system,
            run,
            looks.get(system, ACCENT),
            dotted=sum(map(len, found)) <= _FEW,
        )
        for system, found in runs.items()
        for number, run in enumerate(found)
    ]
    return Plot(
        name=name,
        title=title,
        svg=plot_lines(
            name,
            lines,
            x_label,
            y_label,
            diagonal=name in _DIAGONAL,
            shares=min(values) >= 0 and max(values) <= 1,  # compared on one scale
        ),
        summary=f"{title}. "
        + " ".join(
            f"{system}: from ({found[0][0][0]:.3g}, {found[0][0][1]:.3g}) to "
            f"({found[-1][-1][0]:.3g}, {found[-1][-1][1]:.3g})."
            for system, found in runs.items()
        ),
        csv=csv_text(
            ("system", x_label or "x", y_label or "y"),
            [(system, *point) for system, found in runs.items() for run in found for point in run],
        ),
    )


def _runs(curve: _Curve) -> list[list[tuple[float, float]]]:
    """Points without a gap between them; an undefined value is one."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(curve.x, curve.y, strict=True):
        if x is None or y is None or not (math.isfinite(x) and math.isfinite(y)):
            runs.append([])
        else:
            runs[-1].append((float(x), float(y)))
    return [run for run in runs if run]
