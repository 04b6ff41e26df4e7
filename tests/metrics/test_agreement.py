"""Agreement beyond chance, against scikit-learn, krippendorff, statsmodels' values and papers'."""

import math
import tomllib
from pathlib import Path

import krippendorff
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from bench import judge_agreement
from cxrjax.metrics import agreement
from cxrjax.metrics.agreement import WEIGHTS, bootstrap_agreement, cohen_kappa
from cxrjax.metrics.bootstrap import Bootstrap

PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text())
VALUE_ONLY = Bootstrap(resamples=0)
ratings = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=60)


@given(ratings)
@settings(max_examples=60)
def test_resampled_figures_are_those_of_scikit_learn_and_krippendorff(pairs):
    first, second = map(list, zip(*pairs, strict=True))
    ours = bootstrap_agreement([first, second], 4, first, VALUE_ONLY)
    kappas = {name: cohen_kappa(first, second, 4, name).value for name in WEIGHTS}
    both = np.array([first, second], float)
    alphas = {n: agreement.krippendorff_alpha(both, n) for n in agreement.MEASUREMENT_LEVELS}
    if len({*first, *second}) == 1:
        assert np.isnan([*kappas.values(), *alphas.values()]).all()
        assert {one.value for one in ours.values()} == {None}
        return
    for weights in WEIGHTS:
        named = None if weights == "unweighted" else weights
        theirs = cohen_kappa_score(first, second, labels=[0, 1, 2, 3], weights=named)
        assert [kappas[weights], ours[weights].value] == pytest.approx([theirs] * 2, abs=1e-9)
    for level, alpha in alphas.items():
        theirs = krippendorff.alpha([first, second], level_of_measurement=level)
        assert [alpha, ours[level].value] == pytest.approx([theirs] * 2, abs=1e-9)


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=3, max_size=40))
@settings(max_examples=40)
def test_figures_of_more_readers_are_fleiss_kappa_and_krippendorffs_alpha(items):
    readers = np.array(items).T
    ours = bootstrap_agreement(readers, 3, range(len(items)), VALUE_ONLY)
    counts = np.stack([(readers == level).sum(axis=0) for level in range(3)], axis=1)
    theirs = {"fleiss": agreement.fleiss_kappa(counts)}
    theirs |= {
        name: agreement.krippendorff_alpha(readers.astype(float), name)
        for name in agreement.MEASUREMENT_LEVELS
    }
    for name, value in theirs.items():
        found = ours[name].value
        assert math.isnan(value) if found is None else found == pytest.approx(value, abs=1e-9)


def test_alpha_kappa_and_icc_of_published_examples():
    reliability = np.array(PUBLISHED["krippendorff_2011"])
    assert agreement.krippendorff_alpha(reliability, "nominal") == pytest.approx(0.743, abs=5e-4)
    assert agreement.krippendorff_alpha(reliability, "ordinal") == pytest.approx(0.815, abs=5e-4)
    # A unit that only one reader rated adds no second level.
    alone = np.array([[1, 1, 2], [1, 1, math.nan]])
    assert math.isnan(agreement.krippendorff_alpha(alone, "nominal"))
    counts = PUBLISHED["fleiss_1971"]
    assert agreement.fleiss_kappa(np.array(counts)) == pytest.approx(0.209930704, abs=1e-8)
    assert math.isnan(agreement.fleiss_kappa(np.array([[3, 0], [3, 0]])))
    with pytest.raises(ValueError, match="same number"):
        agreement.fleiss_kappa(np.array([[3, 0], [2, 0]]))
    assert np.isnan(cohen_kappa([], [], 3)).all()
    # Four judges of six targets (Psychological Bulletin 86, 1979, Table 2): ICC(2,1) is .29
    icc = judge_agreement.intraclass_correlation
    judges = [[9, 6, 8, 7, 10, 6], [2, 1, 4, 1, 5, 2], [5, 3, 6, 2, 6, 4], [8, 2, 8, 6, 9, 7]]
    assert icc(np.array(judges, float)) == pytest.approx(0.290, abs=5e-4)
    same = np.array([[1.0, 2, 3], [1, 2, 3]])
    assert icc(same) == pytest.approx(1)
    # A reader who always gives two more agrees less, however well the two correlate.
    assert icc(same + [[0], [2]]) == pytest.approx(1 / 3)
    assert np.isnan(icc(np.ones((2, 3))))
    assert np.isnan(icc(np.ones((2, 1))))
    found = judge_agreement.rater_agreement([5, 6, 7, 9], [5, 7, 7, 8])
    assert found.icc == pytest.approx(icc(np.array([[5.0, 6, 7, 9], [5, 7, 7, 8]])))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_standard_error_is_that_of_statsmodels(weights):
    counts = [53, 5, 2, 11, 14, 5, 1, 6, 3]
    first, second = (np.repeat(level.ravel(), counts) for level in np.indices((3, 3)))
    kappa = cohen_kappa(first, second, 3, weights)
    published = PUBLISHED["statsmodels"][weights]
    assert [kappa.value, kappa.standard_error] == pytest.approx(published, abs=1e-12)
    margin = 1.96 * kappa.standard_error
    assert kappa.interval == pytest.approx((kappa.value - margin, kappa.value + margin), abs=1e-4)


def _noisy(items: int, copies: int = 1) -> tuple[list[int], list[int], list[int]]:
    rng = np.random.default_rng(7)
    first = rng.integers(0, 3, items)
    second = np.where(rng.random(items) < 0.75, first, rng.integers(0, 3, items))
    clusters = np.arange(items)
    return tuple(np.repeat(a, copies).tolist() for a in (first, second, clusters))


def test_ratings_of_one_question_count_as_one_and_have_the_analytic_width():
    """Three equal ratings a question tell no more than one: the interval must not shrink."""
    first, second, clusters = _noisy(200)
    once = bootstrap_agreement([first, second], 3, clusters)["unweighted"]
    first, second, clusters = _noisy(200, 3)
    thrice = bootstrap_agreement([first, second], 3, clusters)["unweighted"]
    assert (thrice.ci_low, thrice.ci_high) == pytest.approx((once.ci_low, once.ci_high))
    alone = bootstrap_agreement([first, second], 3, range(600))["unweighted"]
    assert alone.ci_high - alone.ci_low < 0.7 * (once.ci_high - once.ci_low)
    first, second, clusters = _noisy(400)
    drawn = bootstrap_agreement([first, second], 3, clusters, Bootstrap(2000))["linear"]
    low, high = cohen_kappa(first, second, 3, "linear").interval
    assert drawn.ci_high - drawn.ci_low == pytest.approx(high - low, rel=0.1)
