"""Intervals: against resampling written out, and against theory."""

import numpy as np
import pytest

from cxrjax.metrics.bootstrap import (
    Bootstrap,
    Estimate,
    Figure,
    estimate_all,
    needed_columns,
    resample,
)
from cxrjax.metrics.classification import ratio


def estimate(columns, clusters, figures, bootstrap, attributes=None):
    needed = needed_columns(figures, list(columns))
    return estimate_all(resample(columns, clusters, bootstrap, attributes, needed), figures)


def _mean(sums):
    return ratio(sums["sum"], sums["count"])


def _width(figure):
    assert figure.ci_low is not None
    return figure.ci_high - figure.ci_low


def _columns(values):
    values = np.asarray(values, np.float64)
    return {"sum": values, "count": np.ones(len(values))}


def test_value_is_the_observed_one_and_lies_inside():
    values = np.random.default_rng(1).random(50)
    figure = resample(_columns(values), range(50), Bootstrap()).estimate(Figure(_mean, 50))
    assert figure.value == pytest.approx(values.mean())
    inside = np.array([figure.ci_low, figure.value, figure.ci_high], np.float64)
    assert (np.diff(inside) > 0).all()
    assert figure.n == 50


def test_width_is_that_of_the_normal_approximation():
    values = (np.random.default_rng(2).random(400) < 0.3).astype(float)
    figure = resample(_columns(values), range(400), Bootstrap(resamples=4000)).estimate(
        Figure(_mean, 400)
    )
    expected = 1.96 * values.std() / np.sqrt(400)
    assert _width(figure) / 2 == pytest.approx(expected, rel=0.06)


def test_every_resample_is_a_draw_of_clusters():
    """Each draw of the sums is reproduced from the drawn clusters, unit by unit."""
    values = np.array([1.0, 10.0, 100.0, 1000.0])
    clusters = ["a", "b", "a", "c"]
    drawn = resample(_columns(values), clusters, Bootstrap(resamples=64, seed=5))
    by_cluster = {"a": (101.0, 2), "b": (10.0, 1), "c": (1000.0, 1)}
    order = np.random.default_rng(5).integers(0, 3, size=(64, 3))
    for row, picks in enumerate(order, start=1):
        total = sum(by_cluster["abc"[pick]][0] for pick in picks)
        count = sum(by_cluster["abc"[pick]][1] for pick in picks)
        assert drawn.sums()["sum"][row] == total
        assert drawn.sums()["count"][row] == count


def test_clusters_widen_the_interval():
    """Ten equal images of each patient say no more than one of them."""
    values = np.random.default_rng(3).random(30)
    alone = resample(_columns(values), range(30), Bootstrap()).estimate(Figure(_mean, 30))
    copies = np.repeat(values, 10)
    patients = np.repeat(np.arange(30), 10)
    clustered = resample(_columns(copies), patients.tolist(), Bootstrap()).estimate(
        Figure(_mean, 300)
    )
    assert (clustered.ci_low, clustered.ci_high) == pytest.approx((alone.ci_low, alone.ci_high))
    naive = resample(_columns(copies), range(300), Bootstrap()).estimate(Figure(_mean, 300))
    assert _width(naive) < 0.5 * _width(clustered)


def test_the_seed_decides():
    columns = _columns(np.random.default_rng(4).random(20))
    first, again, other = (
        resample(columns, range(20), Bootstrap(seed=seed)).estimate(Figure(_mean, 20))
        for seed in (7, 7, 8)
    )
    assert first == again
    assert first != other


def test_chunks_change_nothing(monkeypatch):
    columns = _columns(np.random.default_rng(6).random(33))
    whole = resample(columns, range(33), Bootstrap(resamples=100)).estimate(Figure(_mean, 33))
    monkeypatch.setattr("cxrjax.metrics.bootstrap._CHUNK", 70)
    assert (
        resample(columns, range(33), Bootstrap(resamples=100)).estimate(Figure(_mean, 33)) == whole
    )


def test_undefined_value_has_no_interval():
    columns = {"sum": np.zeros(5), "count": np.zeros(5)}
    figure = resample(columns, range(5), Bootstrap()).estimate(Figure(_mean, 5))
    assert figure == Estimate(None, None, None, 5)


def test_resamples_in_which_it_is_undefined_are_left_out():
    # Defined only where the one image that counts was drawn, and then it is 1.
    columns = {"sum": np.array([1.0, 0, 0]), "count": np.array([1.0, 0, 0])}
    figure = resample(columns, range(3), Bootstrap()).estimate(Figure(_mean, 3))
    assert (figure.value, figure.ci_low, figure.ci_high) == (1, 1, 1)


@pytest.mark.parametrize(
    ("clusters", "settings"), [([0, 0, 0], Bootstrap()), ([0, 1, 2], Bootstrap(resamples=0))]
)
def test_no_interval_without_anything_to_resample(clusters, settings):
    figure = resample(_columns([0.0, 1.0, 1.0]), clusters, settings).estimate(Figure(_mean, 3))
    assert figure == Estimate(2 / 3, None, None, 3)


def test_a_breakdown_is_the_figure_of_its_units_alone():
    rng = np.random.default_rng(9)
    values, views = rng.random(60), np.where(rng.random(60) < 0.4, "PA", "AP")
    columns, settings = _columns(values), Bootstrap(resamples=200)
    clusters = [("patient", i // 3) for i in range(60)]
    whole = {"mean": Figure(_mean, "count")}
    within = {view: Figure(_mean, "count", ("view", view)) for view in ("PA", "AP")}
    figures = estimate(
        columns, clusters, {"strict": whole | within}, settings, {"view": views.tolist()}
    )["strict"]
    for view in within:
        # The same clusters are drawn; others' units count nothing.
        inside = {name: column * (views == view) for name, column in columns.items()}
        alone = estimate(inside, clusters, {"strict": whole}, settings)["strict"]["mean"]
        assert (figures[view].value, figures[view].n) == (alone.value, (views == view).sum())
        assert figures[view].ci_low == pytest.approx(alone.ci_low, rel=1e-12)
        assert figures[view].ci_high == pytest.approx(alone.ci_high, rel=1e-12)
    assert figures["mean"].value == pytest.approx(values.mean())


def test_what_no_unit_has_and_lengths_that_differ_are_refused():
    columns = _columns(np.ones(4))
    sums = resample(columns, range(4), Bootstrap(10), {"sex": ["F", None, "F", "M"]})
    assert sums.estimate(Figure(_mean, "count", ("sex", "F"))).n == 2
    with pytest.raises(ValueError, match="no unit has the sex 'O'"):
        sums.estimate(Figure(_mean, "count", ("sex", "O")))
    with pytest.raises(ValueError, match="3 clusters for"):
        resample(columns, range(3), Bootstrap(10))
