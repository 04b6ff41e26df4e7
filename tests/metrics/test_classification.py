"""Figures from counts: the paper's own numbers, scikit-learn's, and where they are undefined."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from cxrjax.metrics import classification as c

counts = st.integers(0, 40)


@pytest.mark.parametrize(
    ("precision", "recall", "f1"),
    [(0.421, 0.827, 0.558), (0.471, 0.926, 0.6244), (0.120, 0.090, 0.1029), (0.096, 0.068, 0.0796)],
)
def test_harmonic_mean_of_the_papers_precision_and_recall(precision, recall, f1):
    assert c.harmonic_mean(precision, recall) == pytest.approx(f1, abs=5e-4)


@given(counts, counts, counts, counts)
def test_agrees_with_scikit_learn(tp, fp, fn, tn):
    truth = [1] * tp + [0] * fp + [1] * fn + [0] * tn
    said = [1] * tp + [1] * fp + [0] * fn + [0] * tn
    if not truth:
        return
    assert c.accuracy(tp, fp, fn, tn) == pytest.approx(sklearn_metrics.accuracy_score(truth, said))
    if tp + fp + fn:
        assert c.f1(tp, fp, fn) == pytest.approx(sklearn_metrics.f1_score(truth, said))
    if 0 < tp + fn < len(truth):
        expected = sklearn_metrics.balanced_accuracy_score(truth, said)
        assert c.balanced_accuracy(tp, fp, fn, tn) == pytest.approx(expected)
        if 0 < tp + fp < len(truth):
            expected = sklearn_metrics.matthews_corrcoef(truth, said)
            assert c.matthews(tp, fp, fn, tn) == pytest.approx(expected, abs=1e-12)


def test_undefined_is_nan_no_hit_is_zero_and_counts_may_be_large():
    nothing = c.precision(0, 0), c.recall(0, 0), c.f1(0, 0, 0), c.accuracy(0, 0, 0, 0)
    assert np.isnan([*nothing, c.specificity(0, 0), c.harmonic_mean(np.nan, np.nan)]).all()
    # Nothing is absent, and nothing is present.
    assert np.isnan([c.balanced_accuracy(3, 0, 1, 0), c.balanced_accuracy(0, 3, 0, 1)]).all()
    assert np.isnan(c.matthews(3, 2, 0, 0))  # who always says yes correlates with nothing
    assert c.f1(0, 2, 0) == 0
    assert c.f1(0, 0, 2) == 0
    assert c.harmonic_mean(np.nan, 0) == 0
    assert c.harmonic_mean(0, 0) == 0
    assert c.set_counts({"a", "b"}, {"b", "c", "d"}) == (1, 1, 2)
    assert c.set_counts(set(), set()) == (0, 0, 0)
    assert c.precision(np.array([1, 0]), np.array([1, 0]))[0] == 0.5
    assert np.isnan(c.precision(np.array([1, 0]), np.array([1, 0]))[1])
    # The product of the four margins is 3e28 here, beyond what int64 holds.
    assert c.matthews(10**7, 10**6, 10**6, 10**7) == pytest.approx(9 / 11)
