"""Draws against the exact distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from cxrjax.decoding.strategy import filter_logits, sample_keys, sample_tokens

_PROBABILITIES = np.array([0.05, 0.4, 0.02, 0.2, 0.13, 0.1, 0.06, 0.04])


def _exact(temperature, top_k, top_p):
    """Temperature, top-k, top-p on the table, one token at a time."""
    weights = _PROBABILITIES ** (1 / temperature)
    ranked = sorted(range(8), key=lambda t: -weights[t])[: top_k or 8]
    total = sum(weights[t] for t in ranked)
    kept, reached = [], 0.0
    for token in ranked:
        if reached >= top_p:
            break
        kept.append(token)
        reached += weights[token] / total
    exact = np.zeros(8)
    exact[kept] = weights[kept] / weights[kept].sum()
    return exact


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 3, 1.0), (1.0, 0, 0.7), (1.5, 5, 0.6), (1.0, 0, 1e-6)],
)
def test_frequencies(temperature, top_k, top_p):
    exact = _exact(temperature, top_k, top_p)
    logits = filter_logits(jnp.log(_PROBABILITIES) + 3.0, temperature, top_k, top_p)
    np.testing.assert_allclose(jax.nn.softmax(logits), exact, atol=1e-6)
    keys = sample_keys(5, jnp.arange(4000).reshape(40, 100), 2)
    draws = np.asarray(sample_tokens(keys, 3, jnp.broadcast_to(logits, (40, 200, 8))))
    counts = np.bincount(draws.ravel(), minlength=8)
    assert counts[exact == 0].sum() == 0
    drawn = exact > 0
    if drawn.sum() > 1:
        assert stats.chisquare(counts[drawn], exact[drawn] * counts.sum()).pvalue > 1e-4


def test_as_likely_as_the_last_one_kept():
    logits = jnp.log(jnp.array([0.4, 0.2, 0.2, 0.2]))
    kept = [
        np.flatnonzero(np.isfinite(filter_logits(logits, 1.0, k, p)))
        for k, p in ((2, 1.0), (0, 0.5))
    ]
    assert all(found.tolist() == [0, 1, 2, 3] for found in kept)


def test_masked_tokens_do_not_take_places():
    logits = jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1])).at[0].set(-jnp.inf)
    kept = np.isfinite(filter_logits(logits, 1.0, 2, 1.0))
    assert kept.tolist() == [False, True, True, False]
    # More places than allowed tokens: nothing forbidden comes in.
    kept = np.isfinite(filter_logits(logits, 1.0, 4, 0.999999))
    assert kept.tolist() == [False, True, True, True]


def test_keys_are_a_matter_of_seed_question_sample_and_step():
    keys = sample_keys(0, jnp.array([[3, 8], [5, 3]]), 2)
    data = np.asarray(jax.random.key_data(keys))
    assert (data[0, :2] == data[1, 2:]).all()
    assert len({tuple(row) for row in data[:, :, :].reshape(-1, 2)}) == 6
    other = sample_keys(1, jnp.array([[3, 8], [5, 3]]), 2)
    assert (data != np.asarray(jax.random.key_data(other))).any(axis=-1).all()
    flat = jnp.zeros((2, 4, 1000))
    first, second = (np.asarray(sample_tokens(keys, step, flat)) for step in (0, 1))
    assert (first != second).any(axis=-1).all()
