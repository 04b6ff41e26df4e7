"""Figures of any benchmark: broken down by attributes, calibration, and their names.

A unit (question or image) has one value of an attribute, or none. Broken down, a metric is called
`by_<attribute>/<metric>/<value>`.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from cxrjax.language_model.judges.judge import FAILURES
from cxrjax.metrics import calibration
from cxrjax.metrics.bootstrap import (
    Bootstrap,
    Estimate,
    Figure,
    Formula,
    LazyColumns,
    Sums,
    estimate_reweighted,
)
from cxrjax.metrics.calibration import reweighted_area
from cxrjax.metrics.classification import ratio, sums_at
from cxrjax.metrics.packed import Packed
from cxrjax.records import QARecord

_AGES = (20, 40, 60, 80)
_BOXES = (1, 2, 3, 5, 9)


def joined_columns(
    of_images: Mapping[str, Float[np.ndarray, " images"] | Packed],
    of_questions: Mapping[str, Float[np.ndarray, " questions"] | Packed],
) -> LazyColumns:
    """Columns over images and columns over questions as columns over both, images first.

    Each is 0 where the other kind of unit is. Made when asked for: most of them would be zeros.
    """
    (images,) = {len(column) for column in of_images.values()}
    (questions,) = {len(column) for column in of_questions.values()}

    def padded(name: str) -> Float[np.ndarray, " units"]:
        column = np.zeros(images + questions)
        if name in of_images:
            column[:images] = of_images[name]
        else:
            column[images:] = of_questions[name]
        return column

    return LazyColumns([*of_images, *of_questions], padded)


def image_attributes(record: QARecord) -> dict[str, str | None]:
    """The patient's and the image's attributes; None where the record does not say."""
    return {"view": record.view, "sex": record.sex, "age": age_band(record.age)}


def age_band(age: float | None) -> str | None:
    """Twenty years: 00-19, 20-39, ..., 80 and more."""
    if age is None:
        return None
    return _band(int(age), (0, *_AGES), width=2)


def boxes_band(boxes: int) -> str:
    """The number of boxes of an image as a band: 0, 1, 2, 3-4, 5-8, 9 and more."""
    return _band(boxes, (0, *_BOXES), width=1)


def break_down(
    figures: Mapping[str, Figure],
    attribute: str,
    values: Sequence[str | None],
    keys: Iterable[str] | None = None,
    prefix: str | None = None,
) -> dict[str, Figure | Estimate]:
    """Every figure within every value of an attribute.

    Args:
        figures: whose `n` is the name of a column, so that it is known in every cell.
        values: of the units.
        keys: the rows; default: all values, sorted. One that no unit has is undefined, n = 0.
        prefix: default `by_<attribute>`.
    """
    found = {value for value in values if value is not None}
    nothing = Estimate(None, None, None, 0)
    return {
        f"{prefix or f'by_{attribute}'}/{name}/{key}": (
            replace(figure, within=(attribute, key)) if key in found else nothing
        )
        for key in (sorted(found) if keys is None else keys)
        for name, figure in figures.items()
    }


def _band(number: int, starts: Sequence[int], width: int) -> str:
    place = max(index for index, start in enumerate(starts) if number >= start or not index)
    if place + 1 == len(starts):
        return f"{starts[place]} and more"
    low, high = starts[place], starts[place + 1] - 1
    if low == high:
        return str(low)
    return f"{low:0{width}}-{high}"


# More points than a screen can show are only weight.
_MOST_POINTS = 200
NAMES = ("ece", "brier", "mean_confidence", "accuracy", "aurc")


def answer_calibration(
    confidence: ArrayLike,
    right: ArrayLike,
    units: ArrayLike,
    clusters: Sequence[Hashable],
    bootstrap: Bootstrap,
) -> tuple[dict[str, Packed], dict[str, Figure | Estimate], dict[str, dict[str, Any]]]:
    """Columns, figures and curves of answers whose probability is known.

    Args:
        confidence: probability of each answer, 0 to 1.
        right: 1 or 0 for each answer.
        units: the unit (row of the benchmark's columns) that each answer is of.
        clusters: of each unit there is.
        bootstrap: how the interval of AURC is made, which is no function of sums.

    Returns:
        Columns `calibration/...` over the units; figures `calibration/<NAMES>`; the curves
        `reliability` and `risk_coverage`. ECE has the bins of the observed answers in all
        resamples, and an interval only where it covers (`Figure.pivotal`).
    """
    sure = np.asarray(confidence, np.float64)
    correct = np.asarray(right, np.float64)
    rows = np.asarray(units, np.int64)
    count = len(clusters)
    if not len(sure):
        return {}, {f"calibration/{name}": Estimate(None, None, None, 0) for name in NAMES}, {}
    of = "calibration"
    columns, binned = _in_bins(of, sure, correct, rows, count)
    columns[f"{of}/squares"] = Packed(sums_at(rows, count, (sure - correct) ** 2))
    n = f"{of}/n"
    figures: dict[str, Figure | Estimate] = {
        "calibration/ece": binned["ece"],
        "calibration/brier": Figure(lambda sums: ratio(sums[f"{of}/squares"], sums[n]), n),
        "calibration/mean_confidence": binned["confidence"],
        "calibration/accuracy": binned["outcome"],
        **estimate_reweighted(
            lambda weights: {"calibration/aurc": reweighted_area(sure, correct, weights)},
            [clusters[row] for row in rows],
            {"calibration/aurc": len(sure)},
            bootstrap,
        ),
    }
    coverage, risk = calibration.risk_coverage(sure, correct)
    curves = {
        "reliability": reliability_curve(sure, correct, "Confidence", "Share of right answers"),
        "risk_coverage": {
            **thinned(coverage, risk),
            "x_label": "Coverage (share of answers, the most confident first)",
            "y_label": "Risk (share of wrong answers among them)",
        },
    }
    return columns, figures, curves


BOX_NAMES = ("box_ece", "mean_box_score", "mean_box_iou")


def box_calibration(
    scores: ArrayLike, ious: ArrayLike, units: ArrayLike, count: int
) -> tuple[dict[str, Packed], dict[str, Figure | Estimate], dict[str, dict[str, Any]]]:
    """Holds boxes' scores, IoUs that are expected, against the highest IoU with a true box.

    Args:
        scores: of each predicted box, NaN where it has none, which is left out. With one beyond
            0 to 1 they are no IoUs that are expected: ranked alone.
        ious: of the same boxes, with the true box that each fits best.
        units: the unit that each box is of; there are `count` of them.

    Returns:
        Columns, figures `calibration/<BOX_NAMES>` and `calibration/score_iou_correlation`, and the
        curve `iou_by_score`.
    """
    sure, iou = np.asarray(scores, np.float64), np.asarray(ious, np.float64)
    known = np.isfinite(sure)
    sure, iou, rows = sure[known], iou[known], np.asarray(units, np.int64)[known]
    value = calibration.rank_correlation(sure, iou)
    rank = Estimate(value if np.isfinite(value) else None, None, None, len(sure))
    figures: dict[str, Figure | Estimate] = {"calibration/score_iou_correlation": rank}
    if not len(sure) or sure.min() < 0 or sure.max() > 1:
        nothing = Estimate(None, None, None, 0)
        return {}, figures | {f"calibration/{name}": nothing for name in BOX_NAMES}, {}
    columns, binned = _in_bins("box_calibration", sure, iou, rows, count)
    for name, part in zip(BOX_NAMES, ("ece", "confidence", "outcome"), strict=True):
        figures[f"calibration/{name}"] = binned[part]
    curves = {
        "iou_by_score": reliability_curve(
            sure,
            iou,
            "Score of the box: the IoU that is expected",
            "Mean of its highest IoU with a true box",
        )
    }
    return columns, figures, curves


def _in_bins(
    prefix: str,
    sure: Float[np.ndarray, " n"],
    outcome: Float[np.ndarray, " n"],
    rows: np.ndarray,
    count: int,
) -> tuple[dict[str, Packed], dict[str, Figure]]:
    """Columns `<prefix>/...` of confidences and outcomes in bins of equal mass, and the figures
    `ece`, and `confidence` and `outcome`, their means."""
    numbers = calibration.bin_numbers(sure, calibration.equal_mass_edges(sure))
    columns = {f"{prefix}/n": Packed(sums_at(rows, count, np.ones(len(sure))))}
    for number in range(calibration.BINS):
        here = numbers == number
        for name, values in (("n", np.ones(len(sure))), ("confidence", sure), ("outcome", outcome)):
            summed = sums_at(rows[here], count, values[here])
            columns[f"{prefix}/{number}/{name}"] = Packed(summed)

    def bins(sums: Sums, name: str) -> Float[np.ndarray, "bins sums"]:
        return np.stack([sums[f"{prefix}/{number}/{name}"] for number in range(calibration.BINS)])

    def mean(name: str) -> Figure:
        return Figure(lambda s: ratio(bins(s, name).sum(axis=0), s[f"{prefix}/n"]), f"{prefix}/n")

    def ece(sums: Sums) -> Float[np.ndarray, " sums"]:
        return calibration.expected_calibration_error(
            *(bins(sums, name) for name in ("n", "confidence", "outcome"))
        )

    figures = {name: mean(name) for name in ("confidence", "outcome")}
    return columns, figures | {"ece": Figure(ece, f"{prefix}/n", pivotal=True)}


def reliability_curve(
    confidence: Float[np.ndarray, " n"],
    outcome: Float[np.ndarray, " n"],
    x_label: str,
    y_label: str,
) -> dict[str, Any]:
    """Mean outcome by mean confidence in bins of equally many; `n` in each."""
    n, x, y = calibration.reliability(confidence, outcome)
    return {
        "x": x.tolist(),
        "y": y.tolist(),
        "n": n.tolist(),
        "x_label": x_label,
        "y_label": y_label,
    }


def thinned(
    x: Float[np.ndarray, " points"], y: Float[np.ndarray, " points"]
) -> Mapping[str, list[float]]:
    """Points of a curve, not more than a page has use for."""
    kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST_POINTS)).round().astype(int))
    return {"x": x[kept].tolist(), "y": y[kept].tolist()}


T = TypeVar("T")
NO_FIGURE = Estimate(None, None, None, 0)


def quotient(numerator: str, denominator: str) -> Formula:
    """One column's sum by another's."""
    return lambda sums: ratio(sums[numerator], sums[denominator])


def share(part: str, whole: str) -> Figure:
    """One column's sum by another's, over the latter."""
    return Figure(quotient(part, whole), whole)


def of(function: Callable[..., np.ndarray], *columns: str) -> Formula:
    """A function of counts on the sums of these columns."""
    return lambda sums: function(*(sums[column] for column in columns))


def named(prefix: str, figures: Mapping[str, T], suffix: str = "") -> dict[str, T]:
    """The figures under longer names: `<prefix>/<name><suffix>`."""
    return {f"{prefix}/{name}{suffix}": figure for name, figure in figures.items()}


# A judge may fail at an answer. `paper` leaves such answers out of the mean, for what they are
# worth is not known; `strict` counts them as 0. Where nothing was judged, both are undefined.
# Category of score.json -> what it means.
JUDGE_PROBLEMS = {f"judge_failure/{name}": meaning for name, meaning in FAILURES.items()}


def count_judge_failures(failures: Iterable[str | None]) -> dict[str, int]:
    """Key of `JUDGE_PROBLEMS` -> how often, zeros too; None is no failure."""
    counted = Counter(failures)
    return {name: counted[name.removeprefix("judge_failure/")] for name in JUDGE_PROBLEMS}
