"""Figures computed anew on every resample: the intervals of sums, where both exist."""

import numpy as np
import pytest

from cxrjax.metrics.bootstrap import (
    Bootstrap,
    Figure,
    estimate_all,
    estimate_reweighted,
    needed_columns,
    resample,
)
from cxrjax.metrics.classification import ratio


def estimate(columns, clusters, figures, bootstrap, attributes=None):
    needed = needed_columns(figures, list(columns))
    return estimate_all(resample(columns, clusters, bootstrap, attributes, needed), figures)


@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_a_ratio_has_the_interval_of_its_sums(method):
    rng = np.random.default_rng(0)
    columns = {"hits": rng.integers(0, 4, 60).astype(float), "all": np.full(60, 5.0)}
    clusters = [f"patient {unit // 2}" for unit in range(60)]
    bootstrap = Bootstrap(resamples=200, seed=3, method=method)
    rate = Figure(lambda sums: ratio(sums["hits"], sums["all"]), "all")
    expected = estimate(columns, clusters, {"strict": {"rate": rate}}, bootstrap)["strict"]["rate"]

    def figures(weights):
        return {"rate": ratio(weights @ columns["hits"], weights @ columns["all"])}

    found = estimate_reweighted(figures, clusters, {"rate": 300}, bootstrap)["rate"]
    assert found.n == expected.n
    assert not found.fallback
    np.testing.assert_allclose(
        [found.value, found.ci_low, found.ci_high],
        [expected.value, expected.ci_low, expected.ci_high],
        rtol=1e-12,
    )


def test_nothing_to_resample():
    def figures(weights):
        return {"a": weights.sum(axis=1), "undefined": np.full(len(weights), np.nan)}

    n = {"a": 2, "undefined": 2}
    for clusters, resamples in ((["p", "p"], 10), (["p", "q"], 0)):
        found = estimate_reweighted(figures, clusters, n, Bootstrap(resamples=resamples))
        assert found["a"].to_json() == {"value": 2.0, "ci_low": None, "ci_high": None, "n": 2}
    undefined = estimate_reweighted(figures, ["p", "q"], n, Bootstrap(resamples=10))["undefined"]
    assert undefined.to_json() == {"value": None, "ci_low": None, "ci_high": None, "n": 2}
