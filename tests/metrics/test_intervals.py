"""BCa against scipy's, and where it gives way to percentiles."""

import numpy as np
import pytest
from scipy import stats

from cxrjax.metrics import classification
from cxrjax.metrics.bootstrap import Bootstrap, Figure, interval, resample


def _mean(sums):
    return classification.ratio(sums["sum"], sums["count"])


def _spread(sums):
    """Standard deviation: skewed, not linear in its sums."""
    mean = sums["sum"] / sums["count"]
    return np.sqrt(np.maximum(sums["square"] / sums["count"] - mean**2, 0))


def _columns(values):
    return {"sum": values, "square": values**2, "count": np.ones(len(values))}


@pytest.mark.parametrize(
    ("formula", "theirs"), [(_mean, np.mean), (_spread, np.std)], ids=["mean", "spread"]
)
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_bca_is_scipys(formula, theirs, confidence):
    values = np.random.default_rng(3).exponential(size=60)
    settings = Bootstrap(resamples=40_000, seed=1, confidence=confidence)
    ours = resample(_columns(values), range(60), settings).estimate(Figure(formula, 60))
    reference = stats.bootstrap(
        (values,),
        theirs,
        n_resamples=40_000,
        confidence_level=confidence,
        method="BCa",
        rng=np.random.default_rng(2),
    ).confidence_interval
    width = reference.high - reference.low
    # Resamples differ; of 40,000 the ends are known to about one per cent of the width.
    assert ours.ci_low == pytest.approx(reference.low, abs=0.03 * width)
    assert ours.ci_high == pytest.approx(reference.high, abs=0.03 * width)
    assert not ours.fallback
    percentile = Bootstrap(40_000, 1, confidence, "percentile")
    plain = resample(_columns(values), range(60), percentile).estimate(Figure(formula, 60))
    # Skewed to the right: BCa moves both ends up.
    assert ours.ci_low > plain.ci_low
    assert ours.ci_high > plain.ci_high + 0.01 * width


def test_of_the_same_draws_bca_is_scipys_to_the_last_digit():
    values = np.random.default_rng(4).exponential(size=40)
    sums = resample(_columns(values), range(40), Bootstrap(resamples=999, seed=7))
    figure = Figure(_spread, 40)
    draws = sums.draws(figure)
    given = stats.bootstrap((values,), np.std, n_resamples=0, bootstrap_result=_Drawn(draws[1:]))
    ours = sums.estimate(figure)
    assert (ours.ci_low, ours.ci_high) == pytest.approx(tuple(given.confidence_interval))


class _Drawn:
    """Resamples drawn elsewhere, as scipy takes them."""

    def __init__(self, draws):
        self.bootstrap_distribution = draws


def test_leaving_out_a_cluster_leaves_out_all_its_units():
    rng = np.random.default_rng(5)
    values, patients = rng.random(30), np.arange(30) // 3
    views = np.where(patients < 4, "PA", "AP").tolist()
    sums = resample(_columns(values), patients.tolist(), Bootstrap(resamples=20), {"view": views})
    without = [values[patients != patient].mean() for patient in range(10)]
    assert sums.left_out(Figure(_mean, 30)) == pytest.approx(np.array(without))
    inside = values[patients < 4]
    expected = [inside[patients[:12] != patient].mean() for patient in range(4)]
    expected += [inside.mean()] * 6  # the figure of PA does not hang on other patients
    assert sums.left_out(Figure(_mean, 12, ("view", "PA"))) == pytest.approx(np.array(expected))


def test_clusters_of_copies_have_the_interval_of_one_of_each():
    values = np.random.default_rng(6).exponential(size=25)
    settings = Bootstrap(resamples=500)
    alone = resample(_columns(values), range(25), settings).estimate(Figure(_spread, 25))
    copies = resample(
        _columns(np.repeat(values, 4)), np.repeat(np.arange(25), 4).tolist(), settings
    ).estimate(Figure(_spread, 25))
    assert (copies.ci_low, copies.ci_high) == pytest.approx((alone.ci_low, alone.ci_high))


def test_percentiles_where_bca_is_undefined():
    # Undefined without the one unit that counts.
    columns = {"sum": np.array([1.0, 0, 0, 0]), "count": np.array([2.0, 0, 0, 0])}
    figure = resample(columns, range(4), Bootstrap()).estimate(Figure(_mean, 4))
    assert (figure.value, figure.ci_low, figure.ci_high) == (0.5, 0.5, 0.5)
    assert not figure.fallback  # all resamples agree: there is nothing to correct
    columns["sum"][1], columns["count"][1] = 0.5, 0.0
    figure = resample(columns, range(4), Bootstrap()).estimate(Figure(_mean, 4))
    assert figure.fallback
    assert figure.ci_low <= figure.value <= figure.ci_high
    # All resamples on one side of the value.
    draws = np.array([1.0, *np.linspace(0, 0.9, 99)])
    low, high, fallback = interval(draws, lambda: np.arange(5.0), 0.9, "bca")
    assert fallback
    assert (low, high) == pytest.approx(tuple(np.quantile(draws[1:], [0.05, 0.95])))


def test_nothing_resampled_nothing_said():
    assert interval(np.array([0.5]), lambda: np.ones(3), 0.95, "bca") == (None, None, False)
