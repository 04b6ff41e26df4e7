"""Quantised kernels: their bytes, their error, and training LoRA beside them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.models import LoRAConfig, apply_lora, count_parameters, partition
from cxrjax.models.layers import Linear, scan_layers, stack_layers
from cxrjax.models.lora import merge_lora
from cxrjax.models.quantize import TILE, QuantizedKernel, quantize_kernel, quantize_params

DEPTH, WIDTH = 2, 72  # not a multiple of TILE

# The lowest two of nf4's 16 values lie furthest apart (arXiv 2305.14314, appendix E).
NF4_HALF_GAP = (1.0 - 0.6961928) / 2


@pytest.fixture(scope="module")
def kernel():
    return jax.random.normal(jax.random.key(0), (DEPTH, WIDTH, 10))


def test_int8_and_nf4_have_their_bytes_and_nearest_values(kernel):
    stored = quantize_kernel(kernel, "int8")
    assert stored.shape == kernel.shape and stored.size == kernel.size
    assert (stored.codes.dtype, stored.scale.dtype) == (jnp.int8, jnp.float32)
    assert stored.codes.nbytes == kernel.size and stored.scale.shape == (DEPTH, 1, 10)
    largest = jnp.abs(kernel).max(axis=1, keepdims=True)
    error = jnp.abs(stored.astype(jnp.float32) - kernel)
    assert bool((error <= largest / 255 * 1.001).all())
    assert float(error.max()) > 1e-4
    # One tile, one output: NF4's values as the QLoRA paper prints them, moved a little, times 3.
    values = np.array([-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0,
                       0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1])  # fmt: skip
    moved = np.tile(values, 4) * 3.0
    moved[1:15] += 0.05
    back = quantize_kernel(jnp.asarray(moved, jnp.float32)[:, None], "nf4").astype(jnp.float32)
    np.testing.assert_allclose(back[:, 0], np.tile(values, 4) * 3.0, atol=3e-4)


def test_nf4_has_half_a_byte_a_weight_and_a_scale_a_tile(kernel):
    stored = quantize_kernel(kernel, "nf4")
    assert stored.shape == kernel.shape and stored.size == kernel.size
    padded = 2 * TILE  # 72 rows
    assert (stored.codes.dtype, stored.scale.dtype) == (jnp.uint8, jnp.float32)
    assert stored.codes.nbytes == DEPTH * padded * 10 // 2
    assert stored.scale.shape == (DEPTH, 2, 10)
    back = stored.astype(jnp.float32)
    for rows in (slice(0, TILE), slice(TILE, WIDTH)):
        largest = jnp.abs(kernel[:, rows]).max(axis=1, keepdims=True)
        error = jnp.abs(back[:, rows] - kernel[:, rows])
        assert bool((error <= NF4_HALF_GAP * largest * 1.001).all())
    # Quantising again what is on the grid changes nothing; so codes and scales belong together.
    again = quantize_kernel(back, "nf4")
    np.testing.assert_allclose(again.astype(jnp.float32), back, rtol=1e-6)
    assert stored.astype(jnp.bfloat16).dtype == jnp.bfloat16


class Blocks(nnx.Module):
    """A stack of linear maps and one more, with a norm's scale beside them."""

    def __init__(self, rngs: nnx.Rngs):
        self.layers = stack_layers(lambda r: Linear(WIDTH, WIDTH, rngs=r), DEPTH, rngs)
        self.projector = Linear(WIDTH, 4, use_bias=True, rngs=rngs)
        self.norm = nnx.Dict(scale=nnx.Param(jnp.full(WIDTH, 1.01)))

    def __call__(self, x):
        def apply(layer, x, _):
            return jnp.tanh(layer(x)), ()

        x = x * self.norm.scale[...].astype(x.dtype)
        return self.projector(scan_layers(self.layers, apply, x, remat="none", unroll=False)[0])


@pytest.fixture(scope="module")
def blocks():
    model = Blocks(nnx.Rngs(0))
    config = LoRAConfig(rank=2, alpha=4.0, targets=("layers", "projector"), use_dora=True)
    apply_lora(model, config, nnx.Rngs(1))
    for linear in (model.layers, model.projector):
        linear.lora.b[...] = 0.1 * jax.random.normal(jax.random.key(3), linear.lora.b.shape)
    return partition(model, ("lora/",))


# Few tokens go beside the kernel, many through it (lora.folding_pays).
@pytest.mark.parametrize(("dtype", "tokens"), [("int8", 3), ("int8", 160), ("nf4", 160)])
def test_lora_trains_beside_a_quantised_stack(blocks, dtype, tokens):
    graphdef, trainable, frozen = blocks
    stored = quantize_params(frozen, dtype)
    whole = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32),
        stored,
        is_leaf=lambda leaf: isinstance(leaf, QuantizedKernel),
    )
    x = jax.random.normal(jax.random.key(2), (tokens, WIDTH))

    @jax.jit
    def run(trainable, x, frozen):
        def loss(trainable, x):
            return jnp.mean(nnx.merge(graphdef, trainable, frozen)(x) ** 2)

        return jax.value_and_grad(loss, argnums=(0, 1))(trainable, x)

    found, expected = run(trainable, x, stored), run(trainable, x, whole)
    jax.tree.map(
        lambda f, e: np.testing.assert_allclose(f, e, rtol=1e-3, atol=1e-6), found, expected
    )
    assert all(float(jnp.abs(g).max()) > 0 for g in jax.tree.leaves(found))
    assert set(found[1][0]["layers"]) == {"lora"}  # adapters alone have gradients

    # No stack of dequantised kernels is kept for the backward pass.
    text = run.lower(trainable, x, stored).compile().as_text()
    assert f"f32[{DEPTH},{WIDTH},{WIDTH}]" not in text


def test_kernels_alone_are_quantised_and_made_whole_by_merging(blocks):
    _, _, frozen = blocks
    stored = quantize_params(frozen, "nf4")
    assert isinstance(stored["layers"]["kernel"].get_value(), QuantizedKernel)
    assert isinstance(stored["projector"]["kernel"].get_value(), QuantizedKernel)
    assert stored["projector"]["bias"][...].dtype == jnp.bfloat16
    assert stored["norm"]["scale"][...].dtype == jnp.bfloat16
    assert frozen["layers"]["kernel"][...].dtype == jnp.float32
    assert count_parameters(stored) == count_parameters(frozen)
    graphdef, trainable, frozen = blocks
    model = nnx.merge(graphdef, trainable, quantize_params(frozen, "int8"))
    x = jax.random.normal(jax.random.key(2), (3, WIDTH))
    before = model(x)
    merge_lora(model)
    assert model.layers.kernel[...].dtype == jnp.float32
    np.testing.assert_allclose(model(x), before, rtol=1e-4, atol=1e-5)
