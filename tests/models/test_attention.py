"""Attention in turns of a few queries against attention all at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cxrjax.models import attention
from cxrjax.models.attention import KeySection, attend

B, K, Q, G, R, H, M = 2, 2, 3, 2, 70, 4, 9


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_turns_change_neither_result_nor_gradients(monkeypatch, softcap):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    own = jnp.asarray(rng.random((B, Q, R, R)) < 0.5)
    own = own.at[0, 0, 3].set(False)  # a query that sees the shared keys alone
    shared = jnp.asarray(rng.random((B, 1, 1, M)) < 0.8)  # the same for all slots
    arrays = {
        "q": normal(B, K, Q, G, R, H),
        "shared": (normal(B, K, M, H), normal(B, K, M, H)),
        "own": (normal(B, K, Q, R, H), normal(B, K, Q, R, H)),
    }
    weights = normal(B, K, Q, G, R, H)

    def weighted(arrays):
        sections = [KeySection(*arrays["shared"], shared), KeySection(*arrays["own"], own)]
        out = attend(arrays["q"], sections, softcap)
        return jnp.sum(out * weights), out

    def run():
        return jax.jit(jax.value_and_grad(weighted, has_aux=True))(arrays)

    whole = run()
    scores = B * K * Q * G * R * (M + R)
    monkeypatch.setattr(attention, "_SCORES_AT_A_TIME", scores // 3)
    monkeypatch.setattr(attention, "_FEWEST_QUERIES", 1)
    text = str(jax.make_jaxpr(weighted)(arrays))
    assert "scan" in text
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), run(), whole)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("slots", [2, 12])  # fewer queries than keys, and more
def test_equals_a_softmax_over_all_keys_with_gradients(slots, softcap):
    rng = np.random.default_rng(1)
    q, k, v, weights = (
        jnp.asarray(3 * rng.normal(size=(B, K, length, H)), jnp.float32)
        for length in (slots, M, M, slots)
    )
    mask = jnp.asarray(rng.random((B, slots, M)) < 0.7).at[:, :, 0].set(True)

    def ours(q, k, v):
        halves = [
            (k[:, :, :4], v[:, :, :4], mask[..., :4]),
            (k[:, :, 4:], v[:, :, 4:], mask[..., 4:]),
        ]
        sections = [KeySection(keys, values, seen[:, None]) for keys, values, seen in halves]
        return attend(q[:, :, None, None], sections, softcap)[:, :, 0, 0]

    def theirs(q, k, v):
        seen = jnp.broadcast_to(mask[:, None], (B, K, slots, M))
        scores = jnp.einsum("bkrh,bkmh->bkrm", q, k)
        if softcap is not None:
            scores = softcap * jnp.tanh(scores / softcap)
        return jax.nn.softmax(scores, axis=-1, where=seen) @ v

    def run(function):
        weighted = lambda *qkv: jnp.sum(function(*qkv) * weights)  # noqa: E731
        return function(q, k, v), *jax.grad(weighted, (0, 1, 2))(q, k, v)

    for a, b in zip(run(ours), run(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_rotary_embedding_turns_each_pair_by_its_angle():
    """The two halves of a head are complex numbers, times e^(i position frequency)."""
    rng = np.random.default_rng(2)
    x, frequencies = rng.normal(size=(2, 3, 1, 8)), attention.rope_frequencies(8, 100.0)
    positions = np.array([[0, 1, 2], [5, 7, 7]])
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(
        1j * positions[..., None, None] * frequencies.astype(float)
    )
    found = attention.apply_rope(jnp.asarray(x, jnp.float32), positions, frequencies)
    np.testing.assert_allclose(found, np.concatenate([turned.real, turned.imag], -1), atol=1e-5)
