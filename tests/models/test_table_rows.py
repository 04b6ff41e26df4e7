"""Rows of a table that is cut over devices: the same, and nothing crosses copies but its parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cxrjax.apps.planner.hlo import read_program
from cxrjax.distributed.meshes import BATCH_AXES, mesh_of_kernels
from cxrjax.models.gemma import Embedder
from cxrjax.models.presets import DecoderConfig

VOCAB, WIDTH = 512, 16


@pytest.mark.parametrize(
    "sizes",
    [
        *((2, 2, 2, 1), (1, 2, 2, 2)),
        *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ((1, 2, 4, 1), (1, 1, 8, 1))),
    ],
)
def test_rows_and_gradients_on_a_mesh(sizes):
    """The last of the meshes also cuts over `tensor`, and is left to XLA."""
    mesh = Mesh(np.asarray(jax.devices()).reshape(sizes), (*BATCH_AXES, "tensor"))
    config = DecoderConfig(
        vocab_size=VOCAB, width=WIDTH, depth=1, num_heads=1, num_kv_heads=1, head_dim=16, mlp_dim=16
    )
    graph, state = nnx.split(Embedder(config, -1, nnx.Rngs(0)))
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.integers(0, VOCAB, (64, 3, 40)), jnp.int32)
    weights = jnp.asarray(rng.normal(size=(*tokens.shape, WIDTH)), jnp.float32)

    def loss(state, tokens, weights):
        rows = nnx.merge(graph, state).encode(tokens, jnp.float32)
        return jnp.sum(rows * weights), rows

    def spread(*arguments):
        with mesh_of_kernels(mesh):
            return jax.grad(loss, has_aux=True)(*arguments)

    cut, rows = NamedSharding(mesh, P("fsdp")), NamedSharding(mesh, P(BATCH_AXES))
    step = jax.jit(spread, in_shardings=(cut, rows, rows), out_shardings=(cut, rows))
    found = step(state, tokens, weights)
    expected = jax.grad(loss, has_aux=True)(state, tokens, weights)
    for ours, plain in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
    if sizes[3] == 1:
        text = step.lower(state, tokens, weights).compile().as_text()
        sent = read_program(text, mesh.size).collectives
        whole = [one for one in sent if one.bytes >= 4 * VOCAB * WIDTH and one.kind == "all-reduce"]
        assert not whole and f"f32[{VOCAB},{WIDTH}]" not in text
