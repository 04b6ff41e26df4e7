"""Intervals and comparisons: against resampling written out, scipy's, and theory."""

import dataclasses
import itertools
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cxrjax.metrics import bootstrap, classification
from cxrjax.metrics.bootstrap import Bootstrap, Estimate, Figure, compare, holm, resample
from cxrjax.metrics.packed import Packed, PackedParts
from tests.metrics.sums import MEAN, columns, estimate, estimated, mean, spread


def _random(seed, count):
    return np.random.default_rng(seed).random(count)


def _width(figure):
    assert figure.ci_low is not None
    return figure.ci_high - figure.ci_low


def test_values_are_the_observed_ones_and_undefined_ones_have_no_interval():
    values = _random(1, 50)
    figure = estimated(values, range(50))
    assert figure.value == pytest.approx(values.mean())
    assert figure.ci_low < figure.value < figure.ci_high
    assert figure.n == 50
    values = _random(4, 20)
    first, again, other = (estimated(values, range(20), Bootstrap(seed=seed)) for seed in (7, 7, 8))
    assert first == again != other
    nothing = {"sum": np.zeros(5), "count": np.zeros(5)}
    assert estimated(nothing, range(5)) == Estimate(None, None, None, 5)
    # Defined only where the one image that counts was drawn, and then it is 1.
    one = np.array([1.0, 0, 0])
    figure = estimated({"sum": one, "count": one}, range(3))
    assert (figure.value, figure.ci_low, figure.ci_high) == (1, 1, 1)
    found = bootstrap.interval(np.array([0.5]), lambda: np.ones(3), 0.95, "bca")
    assert found == (None, None, False)


def test_resamples_are_draws_of_clusters_in_any_chunks(monkeypatch):
    """Each draw of the sums is reproduced from the drawn clusters, unit by unit."""
    clusters = ["a", "b", "a", "c"]
    drawn = resample(columns([1, 10, 100, 1000]), clusters, Bootstrap(resamples=64, seed=5)).sums()
    by_cluster = np.array([(101, 2), (10, 1), (1000, 1)])
    order = np.random.default_rng(5).integers(0, 3, size=(64, 3))
    for row, picks in enumerate(order, start=1):
        assert (drawn["sum"][row], drawn["count"][row]) == tuple(by_cluster[picks].sum(axis=0))
    values, settings = _random(6, 33), Bootstrap(resamples=100)
    whole = estimated(values, range(33), settings)
    monkeypatch.setattr("cxrjax.metrics.bootstrap._CHUNK", 70)
    assert estimated(values, range(33), settings) == whole
    monkeypatch.setattr("cxrjax.metrics.bootstrap._MOST_TABLED", 40)  # a column at a time
    tabled = dataclasses.astuple(estimated(values, range(33), settings))
    assert tabled == pytest.approx(dataclasses.astuple(whole), rel=1e-14)


def test_clusters_widen_the_interval_and_are_swapped_as_one():
    """Ten equal images of each patient say no more than one of them."""
    values, settings = _random(3, 30), Bootstrap()
    copies, patients = np.repeat(values, 10), np.repeat(np.arange(30), 10).tolist()
    for formula in (mean, spread):
        alone = estimated(values, range(30), settings, formula)
        clustered = estimated(copies, patients, settings, formula)
        assert (clustered.ci_low, clustered.ci_high) == pytest.approx((alone.ci_low, alone.ci_high))
        assert _width(estimated(copies, range(300), settings, formula)) < 0.5 * _width(clustered)
    rng = np.random.default_rng(3)
    gain = rng.normal(0.5, 1, size=10)
    first, second = np.repeat(gain, 20), np.zeros(200)
    patients = np.repeat(np.arange(10), 20)
    settings = Bootstrap(resamples=5000)
    clustered = _compare(first, second, patients.tolist(), settings)
    alone = _compare(gain, np.zeros(10), settings=settings)
    assert clustered.p == alone.p
    assert _compare(first, second, settings=settings).p < clustered.p / 5


def test_a_packed_column_is_the_column():
    kinds = ([0, 0, 0, 0, 3], [7, 2], [1, 256], [1, 65_536], [1, 2**40], [-1, 0], [0.1, 0], [])
    for column in (*kinds, [np.nan, 0, 0, 1]):
        np.testing.assert_array_equal(np.asarray(Packed(column)), np.array(column, np.float64))
        assert len(Packed(column)) == len(column)
    parts = [[0, 2], [], [0.5, 0, 300]]
    joined = PackedParts([Packed(np.array(part, float)) for part in parts])
    assert np.asarray(joined).tolist() == [0, 2, 0.5, 0, 300] and len(joined) == 5


@pytest.mark.parametrize(
    ("clusters", "settings"), [([0, 0, 0], Bootstrap()), ([0, 1, 2], Bootstrap(resamples=0))]
)
def test_no_interval_without_anything_to_resample(clusters, settings):
    assert estimated([0.0, 1.0, 1.0], clusters, settings) == Estimate(2 / 3, None, None, 3)


def test_a_breakdown_is_the_figure_of_its_units_alone():
    rng = np.random.default_rng(9)
    values, views = rng.random(60), np.where(rng.random(60) < 0.4, "PA", "AP")
    given, settings = columns(values), Bootstrap(resamples=200)
    clusters = [("patient", i // 3) for i in range(60)]
    whole = {"mean": MEAN}
    within = {view: Figure(mean, "count", ("view", view)) for view in ("PA", "AP")}
    of_views = {"view": views.tolist()}
    figures = estimate(given, clusters, {"strict": whole | within}, settings, of_views)["strict"]
    for view in within:
        # The same clusters are drawn; others' units count nothing.
        inside = {name: column * (views == view) for name, column in given.items()}
        alone = estimate(inside, clusters, {"strict": whole}, settings)["strict"]["mean"]
        assert (figures[view].value, figures[view].n) == (alone.value, (views == view).sum())
        assert figures[view].ci_low == pytest.approx(alone.ci_low, rel=1e-12)
        assert figures[view].ci_high == pytest.approx(alone.ci_high, rel=1e-12)
    assert figures["mean"].value == pytest.approx(values.mean())


def test_what_no_unit_has_and_clusters_that_differ_are_refused():
    sums = resample(columns(np.ones(4)), range(4), Bootstrap(10), {"sex": ["F", None, "F", "M"]})
    assert sums.estimate(Figure(mean, "count", ("sex", "F"))).n == 2
    with pytest.raises(ValueError, match="no unit has the sex 'O'"):
        sums.estimate(Figure(mean, "count", ("sex", "O")))
    with pytest.raises(ValueError, match="3 clusters for"):
        resample(columns(np.ones(4)), range(3), Bootstrap(10))
    systems = [_resampled([1, 2, 3], range(3), Bootstrap(10, seed)) for seed in (0, 1)]
    with pytest.raises(ValueError, match="same clusters"):
        compare(*systems, {"mean": (MEAN, MEAN)})


# BCa, and where it gives way to percentiles.


@pytest.mark.parametrize("formula, theirs", [(mean, np.mean), (spread, np.std)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_of_the_same_draws_bca_is_scipys_to_the_last_digit(formula, theirs, confidence):
    values, figure = np.random.default_rng(4).exponential(size=40), Figure(formula, 40)
    sums = resample(columns(values), range(40), Bootstrap(999, 7, confidence))
    drawn = types.SimpleNamespace(bootstrap_distribution=sums.draws(figure)[1:])
    how = {"n_resamples": 0, "confidence_level": confidence, "bootstrap_result": drawn}
    expected = stats.bootstrap((values,), theirs, **how).confidence_interval
    ours = sums.estimate(figure)
    assert (ours.ci_low, ours.ci_high) == pytest.approx(tuple(expected))
    assert not ours.fallback
    percentile = Bootstrap(999, 7, confidence, "percentile")
    plain = estimated(values, range(40), percentile, formula)
    # Skewed to the right: BCa moves both ends up.
    assert ours.ci_low > plain.ci_low
    assert ours.ci_high > plain.ci_high + 0.01 * _width(ours)


def test_leaving_out_a_cluster_leaves_out_all_its_units():
    rng = np.random.default_rng(5)
    values, patients = rng.random(30), np.arange(30) // 3
    views = np.where(patients < 4, "PA", "AP").tolist()
    sums = resample(columns(values), patients.tolist(), Bootstrap(resamples=20), {"view": views})
    without = [values[patients != patient].mean() for patient in range(10)]
    assert sums.left_out(Figure(mean, 30)) == pytest.approx(np.array(without))
    inside = values[patients < 4]
    expected = [inside[patients[:12] != patient].mean() for patient in range(4)]
    expected += [inside.mean()] * 6  # the figure of PA does not hang on other patients
    assert sums.left_out(Figure(mean, 12, ("view", "PA"))) == pytest.approx(np.array(expected))


def test_percentiles_where_bca_is_undefined():
    # Undefined without the one unit that counts.
    given = {"sum": np.array([1.0, 0, 0, 0]), "count": np.array([2.0, 0, 0, 0])}
    figure = estimated(given, range(4))
    assert (figure.value, figure.ci_low, figure.ci_high) == (0.5, 0.5, 0.5)
    assert not figure.fallback  # all resamples agree: there is nothing to correct
    given["sum"][1], given["count"][1] = 0.5, 0.0
    figure = estimated(given, range(4))
    assert figure.fallback
    assert figure.ci_low <= figure.value <= figure.ci_high
    # All resamples on one side of the value.
    draws = np.array([1.0, *np.linspace(0, 0.9, 99)])
    low, high, fallback = bootstrap.interval(draws, lambda: np.arange(5.0), 0.9, "bca")
    assert fallback
    assert (low, high) == pytest.approx(tuple(np.quantile(draws[1:], [0.05, 0.95])))


# Figures computed anew on every resample.


@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_a_ratio_has_the_interval_of_its_sums(method):
    rng = np.random.default_rng(0)
    columns = {"hits": rng.integers(0, 4, 60).astype(float), "all": np.full(60, 5.0)}
    clusters = [f"patient {unit // 2}" for unit in range(60)]
    settings = Bootstrap(resamples=200, seed=3, method=method)
    rate = Figure(lambda sums: classification.ratio(sums["hits"], sums["all"]), "all")
    expected = estimate(columns, clusters, {"strict": {"rate": rate}}, settings)["strict"]["rate"]

    def figures(weights):
        return {"rate": classification.ratio(weights @ columns["hits"], weights @ columns["all"])}

    found = bootstrap.estimate_reweighted(figures, clusters, {"rate": 300}, settings)["rate"]
    assert found.n == expected.n
    assert not found.fallback
    pairs = ((one.value, one.ci_low, one.ci_high) for one in (found, expected))
    np.testing.assert_allclose(*pairs, rtol=1e-12)


def test_nothing_to_resample():
    def figures(weights):
        return {"a": weights.sum(axis=1), "undefined": np.full(len(weights), np.nan)}

    def estimates(clusters, resamples):
        n, settings = {"a": 2, "undefined": 2}, Bootstrap(resamples=resamples)
        found = bootstrap.estimate_reweighted(figures, clusters, n, settings)
        return {name: one.to_json() for name, one in found.items()}

    nothing = {"value": None, "ci_low": None, "ci_high": None, "n": 2}
    for clusters, resamples in ((["p", "p"], 10), (["p", "q"], 0)):
        assert estimates(clusters, resamples)["a"] == nothing | {"value": 2.0}
    assert estimates(["p", "q"], 10)["undefined"] == nothing


# Paired comparisons.


def _f1(sums):
    return classification.f1(sums["tp"], sums["fp"], sums["fn"])


def _resampled(values, clusters, settings, attributes=None):
    return resample(columns(values), list(clusters), settings, attributes)


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
    for sides in itertools.product((0, 1), repeat=10):
        one, other = [(side, i) for i, side in enumerate(sides)], enumerate(sides)
        ways.append(difference(one, [(1 - side, i) for i, side in other]))
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


def test_p_is_uniform_where_systems_do_not_differ():
    rng = np.random.default_rng(6)
    found = [
        _compare(*rng.normal(size=(2, 30)), settings=Bootstrap(resamples=199, seed=seed)).p
        for seed in range(300)
    ]
    assert stats.kstest(found, "uniform").pvalue > 0.01
    values = np.random.default_rng(5).random(50)
    same = _compare(values, values)
    assert (same.difference, same.ci_low, same.ci_high, same.p) == (0, 0, 0, 1)
    ours = _compare([1, 0, 1], [0, 0, 1], settings=Bootstrap(resamples=0))
    assert ours.difference == pytest.approx(1 / 3)
    assert (ours.ci_low, ours.p, ours.p_holm) == (None, None, None)


def test_groups_are_compared_within():
    rng = np.random.default_rng(7)
    first, second = rng.normal(size=(2, 40))
    views = ["PA"] * 25 + ["AP"] * 15
    settings = Bootstrap(resamples=300)
    systems = [
        _resampled(values, range(40), settings, {"view": views}) for values in (first, second)
    ]
    figure = Figure(mean, "count", ("view", "PA"))
    ours = compare(*systems, {"mean": (MEAN, MEAN), "mean/PA": (figure, figure)})
    assert ours["mean/PA"].difference == pytest.approx((first - second)[:25].mean())
    assert (ours["mean"].n, ours["mean/PA"].n) == (40, 25)
    assert ours["mean"].p == _compare(first, second, settings=settings).p


def test_holm_by_hand_without_undefined_differences():
    # 3 x 0.01, then 2 x 0.02, then 0.04 raised to the one before.
    assert holm([0.02, 0.01, 0.04]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.5, 0.6]) == [1, 1]
    assert holm([]) == []
    settings = Bootstrap(resamples=100)
    rng = np.random.default_rng(8)
    columns = [{"sum": rng.normal(size=20), "count": np.ones(20), "tp": np.zeros(20)} for _ in "ab"]
    systems = [resample(named, range(20), settings) for named in columns]
    nothing = Figure(lambda sums: classification.ratio(sums["tp"], sums["tp"]), 20)
    ours = compare(*systems, {"none": (nothing, nothing), "mean": (MEAN, MEAN)})
    assert list(ours) == ["none", "mean"]
    assert (ours["none"].difference, ours["none"].p, ours["none"].p_holm) == (None, None, None)
    assert ours["mean"].p_holm == ours["mean"].p


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
