"""LoRA: exact at step 0, the formula afterwards, and rules that must match."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.errors import UserError
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora, count_parameters, partition
from cxrjax.models.layers import Linear
from cxrjax.models.lora import LoRA


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
