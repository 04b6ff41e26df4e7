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
