"""Paired comparisons: permutation tests against scipy's, Holm against its arithmetic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cxrjax.metrics import classification
from cxrjax.metrics.bootstrap import Bootstrap, Figure, compare, holm, resample


def _mean(sums):
    return classification.ratio(sums["sum"], sums["count"])


def _f1(sums):
    return classification.f1(sums["tp"], sums["fp"], sums["fn"])


MEAN = Figure(_mean, "count")


def _resampled(values, clusters, settings, attributes=None):
    columns = {"sum": np.asarray(values, float), "count": np.ones(len(values))}
    return resample(columns, list(clusters), settings, attributes)


def _compare(first, second, clusters=None, settings=None):
    settings = settings or Bootstrap()
    clusters = range(len(first)) if clusters is None else clusters
    systems = [_resampled(values, clusters, settings) for values in (first, second)]
    return compare(*systems, {"mean": (MEAN, MEAN)})["mean"]


@pytest.mark.parametrize("shift", [0.0, 0.25, 0.6])
def test_p_is_scipys(shift):
    rng = np.random.default_rng(1)
    first = rng.normal(size=12) + shift
    second = rng.normal(size=12)

    def difference(a, b, axis):
        return np.mean(a, axis=axis) - np.mean(b, axis=axis)

    exact = stats.permutation_test(
        (first, second), difference, permutation_type="samples", vectorized=True, n_resamples=10_000
    ).pvalue
    ours = _compare(first, second, settings=Bootstrap(resamples=20_000))
    assert ours.p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000) + 1e-3)
    assert ours.difference == pytest.approx(first.mean() - second.mean())


def test_p_of_a_quotient_of_sums_is_scipys():
    rng = np.random.default_rng(2)
    counts = rng.integers(0, 4, size=(2, 10, 3)).astype(float)

    def f1(units):
        tp, fp, fn = units.sum(axis=0)
        return 2 * tp / (2 * tp + fp + fn)

    def difference(a, b):
        return f1(counts[tuple(np.asarray(a, int).T)]) - f1(counts[tuple(np.asarray(b, int).T)])

    # Of every image, which system's counts go to which side: all 1,024 ways by hand.
    observed = difference([(0, i) for i in range(10)], [(1, i) for i in range(10)])
    ways = []
    for code in range(1024):
        sides = [(code >> i) & 1 for i in range(10)]
        ways.append(
            difference(
                [(side, i) for i, side in enumerate(sides)],
                [(1 - side, i) for i, side in enumerate(sides)],
            )
        )
    exact = np.mean(np.abs(ways) >= abs(observed) - 1e-12)
    settings = Bootstrap(resamples=20_000)
    systems = [
        resample(dict(zip(("tp", "fp", "fn"), system.T, strict=True)), range(10), settings)
        for system in counts
    ]
    figure = Figure(_f1, 10)
    ours = compare(*systems, {"f1": (figure, figure)})["f1"]
    assert ours.difference == pytest.approx(observed)
    assert ours.p == pytest.approx(exact, abs=0.015)


def test_clusters_are_swapped_as_one():
    rng = np.random.default_rng(3)
    gain = rng.normal(0.5, 1, size=10)
    first, second = np.repeat(gain, 20), np.zeros(200)
    patients = np.repeat(np.arange(10), 20)
    settings = Bootstrap(resamples=5000)
    clustered = _compare(first, second, patients.tolist(), settings)
    alone = _compare(gain, np.zeros(10), settings=settings)
    assert clustered.p == alone.p
    assert _compare(first, second, settings=settings).p < clustered.p / 5


def test_the_interval_is_of_the_pair():
    rng = np.random.default_rng(4)
    hard = rng.normal(size=300)  # what both find hard
    first, second = hard + 0.1 + rng.normal(0, 0.05, size=300), hard
    ours = _compare(first, second)
    reference = stats.bootstrap(
        (first - second,), np.mean, method="BCa", n_resamples=5000, rng=np.random.default_rng(0)
    ).confidence_interval
    assert ours.ci_low == pytest.approx(reference.low, abs=0.002)
    assert ours.ci_high == pytest.approx(reference.high, abs=0.002)
    assert ours.p == pytest.approx(1 / 1001)
    assert ours.n == 300


def test_a_system_does_not_differ_from_itself():
    values = np.random.default_rng(5).random(50)
    same = _compare(values, values)
    assert (same.difference, same.ci_low, same.ci_high, same.p) == (0, 0, 0, 1)


def test_p_is_uniform_where_there_is_no_difference():
    rng = np.random.default_rng(6)
    found = [
        _compare(*rng.normal(size=(2, 30)), settings=Bootstrap(resamples=199, seed=seed)).p
        for seed in range(300)
    ]
    assert stats.kstest(found, "uniform").pvalue > 0.01


def test_groups_are_compared_within():
    rng = np.random.default_rng(7)
    first, second = rng.normal(size=(2, 40))
    views = ["PA"] * 25 + ["AP"] * 15
    settings = Bootstrap(resamples=300)
    systems = [
        _resampled(values, range(40), settings, {"view": views}) for values in (first, second)
    ]
    figure = Figure(_mean, "count", ("view", "PA"))
    ours = compare(*systems, {"mean": (MEAN, MEAN), "mean/PA": (figure, figure)})
    assert ours["mean/PA"].difference == pytest.approx((first - second)[:25].mean())
    assert (ours["mean"].n, ours["mean/PA"].n) == (40, 25)
    assert ours["mean"].p == _compare(first, second, settings=settings).p


def test_undefined_differences_stay_out_of_the_correction():
    settings = Bootstrap(resamples=100)
    rng = np.random.default_rng(8)
    columns = [{"sum": rng.normal(size=20), "count": np.ones(20), "tp": np.zeros(20)} for _ in "ab"]
    systems = [resample(named, range(20), settings) for named in columns]
    nothing = Figure(lambda sums: classification.ratio(sums["tp"], sums["tp"]), 20)
    ours = compare(*systems, {"none": (nothing, nothing), "mean": (MEAN, MEAN)})
    assert list(ours) == ["none", "mean"]
    assert (ours["none"].difference, ours["none"].p, ours["none"].p_holm) == (None, None, None)
    assert ours["mean"].p_holm == ours["mean"].p


def test_without_resamples_there_is_only_the_difference():
    ours = _compare([1, 0, 1], [0, 0, 1], settings=Bootstrap(resamples=0))
    assert ours.difference == pytest.approx(1 / 3)
    assert (ours.ci_low, ours.p, ours.p_holm) == (None, None, None)


def test_systems_of_other_clusters_are_refused():
    systems = [_resampled([1, 2, 3], range(3), Bootstrap(10, seed)) for seed in (0, 1)]
    with pytest.raises(ValueError, match="same clusters"):
        compare(*systems, {"mean": (MEAN, MEAN)})


def test_holm_by_hand():
    # 3 x 0.01, then 2 x 0.02, then 0.04 raised to the one before.
    assert holm([0.02, 0.01, 0.04]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.5, 0.6]) == [1, 1]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_keeps_order_and_rejects_what_stepping_down_rejects(p_values):
    corrected = holm(p_values)
    assert np.array_equal(
        np.argsort(p_values, kind="stable"),
        np.lexsort((np.argsort(np.argsort(p_values, kind="stable")), corrected)),
    )
    # Step-down: the smallest p is held against level / m, the next against level / (m - 1), ...
    for level in (0.01, 0.05, 0.3):
        rejected = set()
        for step, place in enumerate(np.argsort(p_values, kind="stable")):
            if p_values[place] * (len(p_values) - step) > level:
                break
            rejected.add(int(place))
        assert {place for place, p in enumerate(corrected) if p <= level} == rejected
