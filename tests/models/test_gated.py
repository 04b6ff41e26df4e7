"""The MLP's gated unit against JAX's own, with gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cxrjax.models.gemma import gated


@pytest.mark.parametrize(("activation", "plain"), [("gelu", jax.nn.gelu), ("silu", jax.nn.silu)])
@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 2e-5), ("bfloat16", 0.1)])
def test_values_and_gradients_are_as_of_its_parts(dtype, rounding, activation, plain):
    rng = np.random.default_rng(0)
    far = [-1e4, -50.0, 0.0, 50.0, 1e4]
    gate = jnp.asarray(np.append(4 * rng.normal(size=200), far), dtype)
    up, weights = (jnp.asarray(rng.normal(size=gate.shape), dtype) for _ in range(2))

    def run(function):
        weighted = lambda gate, up: jnp.sum(function(gate, up) * weights)  # noqa: E731
        return function(gate, up), *jax.grad(weighted, (0, 1))(gate, up)

    found = run(lambda gate, up: gated(gate, up, activation))
    for ours, theirs in zip(found, run(lambda gate, up: plain(gate) * up), strict=True):
        assert ours.dtype == theirs.dtype == dtype
        ours, theirs = (np.asarray(y, np.float32) for y in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=rounding, atol=rounding)


def test_the_backward_pass_is_given_its_arguments_alone():
    _, backward = jax.vjp(lambda gate, up: gated(gate, up, "gelu"), jnp.ones(7), jnp.ones(7))
    assert [leaf.shape for leaf in jax.tree.leaves(backward)] == [(7,), (7,)]
