"""Intervals cover: in samples of a made-up world, whose figures are known, 95 % of them do.

Patients have one to three images of one to four questions, and are harder or easier as a whole.
The share that a run may find is wider than 93 to 97 % by what chance does to so many samples; what
no interval promises (few patients, events that hardly ever happen) is not asked here.
"""

import numpy as np
import pytest
from scipy.stats import binomtest

from bench.gemex_refiner import Accuracy
from cxrjax.evaluation.figures import answer_calibration
from cxrjax.metrics import calibration
from cxrjax.metrics.agreement import cohen_kappa
from cxrjax.metrics.bootstrap import Bootstrap, Figure, compare, resample
from cxrjax.metrics.classification import balanced_accuracy, f1, matthews, ratio

_FIGURES = {
    "accuracy": lambda s: ratio(s["right"], s["n"]),
    "f1": lambda s: f1(s["tp"], s["fp"], s["fn"]),
    "balanced_accuracy": lambda s: balanced_accuracy(s["tp"], s["fp"], s["fn"], s["tn"]),
    "mcc": lambda s: matthews(s["tp"], s["fp"], s["fn"], s["tn"]),
    "mean_iou": lambda s: ratio(s["iou"], s["tp"]),
}
_CALIBRATED = ("aurc", "brier", "ece")


def _world(rng, patients):
    images = np.repeat(np.arange(patients), rng.integers(1, 4, patients))
    clusters = np.repeat(images, rng.integers(1, 5, len(images)))
    ease = rng.normal(0, 0.7, patients)[clusters]
    truth = rng.random(len(clusters)) < 0.35
    logit = np.where(truth, np.log(0.8 / 0.2), np.log(0.9 / 0.1)) + ease
    right, other = (rng.random(len(clusters)) < 1 / (1 + np.exp(-logit + d)) for d in (0, 0.3))
    confidence = 1 / (1 + np.exp(-logit - rng.normal(0, 1, len(clusters))))
    columns = {
        "tp": truth & right,
        "fp": ~truth & ~right,
        "fn": truth & ~right,
        "tn": ~truth & right,
        "right": right,
        "other": other,
        "n": np.ones(len(clusters)),
        "iou": np.where(truth & right, rng.beta(4, 2, len(clusters)), 0),
    }
    return clusters, {name: column.astype(float) for name, column in columns.items()}, confidence


def _known():
    """The figures of the world itself."""
    _, columns, confidence = _world(np.random.default_rng(99), 300_000)
    sums = {name: np.array([column.sum()]) for name, column in columns.items()}
    known = {name: float(formula(sums)[0]) for name, formula in _FIGURES.items()}
    right = columns["right"]
    known["difference"] = known["accuracy"] - columns["other"].mean()
    known["aurc"] = float(calibration.risk_coverage(confidence, right)[1].mean())
    known["brier"] = float(((confidence - right) ** 2).mean())
    n, sure, outcome = calibration.reliability(confidence, right)
    known["ece"] = float((n * np.abs(sure - outcome)).sum() / len(right))
    return known


def _covered(samples, patients, resamples, method):
    """Figure -> of how many samples its interval holds what is known."""
    known = _known()
    held = dict.fromkeys(known, 0)
    for number in range(samples):
        clusters, columns, confidence = _world(np.random.default_rng([7, number]), patients)
        settings = Bootstrap(resamples=resamples, seed=number, method=method)
        clusters = clusters.tolist()
        added, calibrated, _ = answer_calibration(
            confidence, columns["right"], np.arange(len(clusters)), clusters, settings
        )
        resampled = resample({**columns, **added}, clusters, settings)
        found = {name: Figure(formula, 1) for name, formula in _FIGURES.items()}
        found |= {name: calibrated[f"calibration/{name}"] for name in _CALIBRATED}
        other = resample({**columns, "right": columns["other"]}, clusters, settings)
        accuracy = found["accuracy"]
        intervals = {
            name: resampled.estimate(one) if isinstance(one, Figure) else one
            for name, one in found.items()
        }
        intervals["difference"] = compare(resampled, other, {"d": (accuracy, accuracy)})["d"]
        for name, one in intervals.items():
            if one.ci_low is None:
                assert name == "ece" and patients < 200
                held.pop(name, None)
            else:
                held[name] += one.ci_low <= known[name] <= one.ci_high
    return held


def _check(held, samples):
    """Between 93 and 97 %, as far as so many samples can tell."""
    for name, count in held.items():
        low, high = binomtest(count, samples).proportion_ci(0.99)
        assert low <= 0.97 and high >= 0.93, f"{name}: {count} of {samples}"


@pytest.mark.slow
def test_intervals_cover():
    held = _covered(80, 100, 300, "bca")
    assert "ece" not in held
    _check(held, 80)


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_intervals_cover_in_many_samples(method):
    held = _covered(600, 300, 600, method)
    assert "ece" in held
    _check(held, 600)


def test_wilsons_intervals_cover_and_narrow_ones_would_be_seen():
    rng = np.random.default_rng(3)
    for share in (0.5, 0.9, 0.98):
        held = 0
        for right in rng.binomial(400, share, 2000):
            low, high = Accuracy(int(right), 400).interval
            held += low <= share <= high
        assert 0.93 <= held / 2000 <= 0.97
    with pytest.raises(AssertionError, match="accuracy"):
        _check({"accuracy": 480}, 600)


@pytest.mark.parametrize("weights", ["unweighted", "quadratic"])
def test_the_large_sample_interval_of_kappa_covers(weights):
    rng = np.random.default_rng(4)

    def ratings(count):
        truth = rng.integers(0, 4, count)
        noisy = (truth + rng.choice([-1, 0, 0, 0, 1], count) for _ in range(2))
        return [np.clip(each, 0, 3) for each in noisy]

    known = cohen_kappa(*ratings(1_000_000), 4, weights).value
    held = 0
    for _ in range(1000):
        low, high = cohen_kappa(*ratings(200), 4, weights).interval
        held += low <= known <= high
    assert 0.93 <= held / 1000 <= 0.97
