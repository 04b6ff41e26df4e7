"""A tower whose layers were taken apart, as a server has it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.models.layers import take_apart
from cxrjax.models.presets import VisionConfig
from cxrjax.models.siglip import VisionTower

KINDS = {
    "siglip": {},
    "clip": {"kind": "clip", "skip_last": 1},
    "qwen": {"kind": "qwen", "pool": 2, "window": 2, "full_every": 2},
    "qwen3": {"kind": "qwen3", "pool": 2, "position_side": 3, "deepstack": (0, 2)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_layers_one_by_one_see_what_stacked_ones_do(kind):
    config = VisionConfig(16, 4, 16, depth=3, num_heads=2, mlp_dim=16, **KINDS[kind])
    tower = VisionTower(config, nnx.Rngs(0), remat="none", unroll=False, attention="dense")
    images = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (1, 16, 16, 3)), jnp.float32)

    def see(apart: bool) -> np.ndarray:
        own = nnx.merge(*nnx.split(tower))
        if apart:
            own.layers = nnx.List(take_apart(own.layers))
        graphdef, state = nnx.split(own)
        return np.asarray(jax.jit(lambda state: nnx.merge(graphdef, state)(images))(state))

    np.testing.assert_allclose(see(True), see(False), atol=1e-5)
