"""LoRA: exact at step 0, the formula afterwards, and rules that must match."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.errors import UserError
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora, count_parameters, partition
from cxrjax.models.layers import Linear
from cxrjax.models.lora import LoRA, folded_matmul, folding_pays


def test_a_branch_starts_at_zero_and_then_follows_the_formula():
    linear = Linear(6, 4, use_bias=True, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (2, 3, 6))
    base = linear(x)
    a, b = (jax.random.normal(jax.random.key(k), s) for k, s in ((2, (6, 2)), (3, (2, 4))))
    linear.lora = LoRA(a, jnp.zeros_like(b), alpha=8.0, dropout=0.5)
    np.testing.assert_array_equal(linear(x), base)
    linear.lora = LoRA(a, b, alpha=8.0, dropout=0.5)
    merged = linear.kernel[...] + (8.0 / 2) * a @ b
    np.testing.assert_allclose(linear(x), x @ merged + linear.bias[...], rtol=2e-5, atol=1e-5)


def test_a_whole_model_starts_exactly_at_its_base():
    model = VLM(PRESETS["tiny"], rngs=nnx.Rngs(0), share="image")
    rng = np.random.default_rng(0)
    inputs = (
        rng.integers(0, 256, (1, 128, 128, 3)).astype(np.uint8),
        rng.integers(0, 2048, (1, 2, 4)),
        np.ones((1, 2, 4), bool),
        rng.integers(0, 2048, (1, 2, 3)),
        np.ones((1, 2, 3), bool),
    )
    before = model(*inputs)
    paths = apply_lora(model, LoRAConfig(targets=(r"attn/.*_proj", "projector")), nnx.Rngs(1))
    assert "vision/layers/attn/out_proj" in paths and "projector" in paths
    np.testing.assert_array_equal(model(*inputs), before)


def test_the_rules_name_what_trains_and_must_match():
    model = VLM(PRESETS["tiny"], rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match=r"'attn/x_proj' matches no linear map.*q_proj"):
        apply_lora(model, LoRAConfig(targets=("attn/x_proj",)), nnx.Rngs(1))
    apply_lora(model, LoRAConfig(rank=4), nnx.Rngs(1))
    config = PRESETS["tiny"].decoder
    width, heads = config.width, config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    per_layer = 4 * ((width + heads) + 2 * (width + kv) + (heads + width))
    _, trainable, frozen = partition(model, ("/lora/",))
    assert count_parameters(trainable) == config.depth * per_layer
    everything = count_parameters(nnx.split(model)[1])
    assert count_parameters(trainable) + count_parameters(frozen) == everything
    with pytest.raises(UserError, match="'bias_only' matches no parameter"):
        partition(model, ("/lora/", "bias_only"))


def test_an_adapter_of_rank_zero_is_refused():
    with pytest.raises(UserError, match=r"lora\.rank is 0"):
        apply_lora(VLM(PRESETS["tiny"], rngs=nnx.Rngs(0)), LoRAConfig(rank=0), nnx.Rngs(1))


# The gradients of a and b go through the kernel's own in the first shape, around it in the second.
@pytest.mark.parametrize("shape", [(6, 4), (16, 24)])
def test_folding_the_branch_into_the_kernel_changes_neither_output_nor_gradients(shape):
    (i, o), rank, tokens = shape, 2, 40
    keys = jax.random.split(jax.random.key(0), 4)
    x, kernel = jax.random.normal(keys[0], (2, tokens // 2, i)), jax.random.normal(keys[1], (i, o))
    a, b = jax.random.normal(keys[2], (i, rank)), jax.random.normal(keys[3], (rank, o))
    assert folding_pays(tokens, i, o) and not folding_pays(2, i, o)

    def folded(x, kernel, a, b):
        return LoRA(a, b, alpha=1.0, dropout=0.0)(x, kernel, None)

    def plain(x, kernel, a, b):
        return x @ kernel + x @ a @ b * 0.5

    def run(f):
        loss = jax.jit(jax.grad(lambda *args: jnp.mean(jnp.sin(f(*args))), argnums=(0, 1, 2, 3)))
        return f(x, kernel, a, b), *loss(x, kernel, a, b)

    for found, expected in zip(run(folded), run(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    few = x[:1, :2]
    np.testing.assert_array_equal(folded(few, kernel, a, b), plain(few, kernel, a, b))


def test_a_frozen_kernel_costs_no_product_for_its_gradient():
    # In a scan too, where layers sit stacked.
    tokens, width, rank = 512, 32, 2
    kernels = jnp.ones((2, width, width))

    def loss(adapters, x, kernels):
        def body(x, layer):
            kernel, a, b = layer
            return folded_matmul(x, kernel, a, b, 1.0), None

        return jnp.sum(jax.lax.scan(body, x, (kernels, *adapters))[0] ** 2)

    adapters = jnp.ones((2, width, rank)), jnp.ones((2, rank, width))
    text = jax.jit(jax.grad(loss)).lower(adapters, jnp.ones((tokens, width)), kernels)
    products = re.findall(r"= (f32\[[\d,]+\]).* dot\(", text.compile().as_text())
    assert products.count(f"f32[{tokens},{width}]") == 2  # forward, and backward to x
    # a @ b, twice; never x.T @ dy, which would be a third.
    assert products.count(f"f32[{width},{width}]") == 2
