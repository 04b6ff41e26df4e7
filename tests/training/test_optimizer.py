"""The schedule's corners, which parameters decay, and clipping by the global norm."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.distributed.meshes import named_leaves
from cxrjax.errors import UserError
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora, partition
from cxrjax.training.config import OptimizerConfig
from cxrjax.training.step import decay_mask, learning_rate_schedule, make_optimizer


@pytest.mark.parametrize(
    ("keys", "steps", "expected"),
    [
        (
            {"learning_rate": 0.1, "warmup_steps": 4, "end_value": 0.01},
            11,
            {0: 0.025, 1: 0.05, 2: 0.075, 3: 0.1, 4: 0.1, 7: (0.1 + 0.01) / 2, 10: 0.01},
        ),
        ({"schedule": "constant", "learning_rate": 0.3}, 5, dict.fromkeys(range(5), 0.3)),
        (  # GEMeX's: linear from 3e-7 to 2e-5
            {"learning_rate": 2e-5, "warmup_steps": 5, "warmup_from": 3e-7},
            20,
            {n: 3e-7 + n * (2e-5 - 3e-7) / 4 for n in range(5)},
        ),
        (  # a share of the run: 3.03 steps, so 4
            {"learning_rate": 0.1, "warmup_steps": 0, "warmup_ratio": 0.03},
            101,
            {0: 0.025, 1: 0.05, 2: 0.075, 3: 0.1},
        ),
    ],
)
def test_warmup_and_what_follows(keys, steps, expected):
    schedule = learning_rate_schedule(OptimizerConfig(**keys), steps=steps)
    rates = {step: float(schedule(step)) for step in expected}
    assert rates == pytest.approx(expected, rel=1e-5)
    if "warmup_ratio" in keys:
        assert float(schedule(5)) < 0.1


def test_a_warmup_is_told_once_and_is_a_share():
    config = OptimizerConfig(warmup_steps=4, warmup_ratio=0.03)
    with pytest.raises(UserError, match=r"warmup_steps and optimizer\.warmup_ratio"):
        learning_rate_schedule(config, steps=100)
    config = dataclasses.replace(config, warmup_steps=0, warmup_ratio=3.0)
    with pytest.raises(UserError, match="expected 0 to 1"):
        learning_rate_schedule(config, steps=100)


def test_decay_spares_norms_biases_and_positions_of_stacked_layers(small_vlm):
    model = small_vlm()
    apply_lora(model, LoRAConfig(rank=2), nnx.Rngs(0))
    _, trainable, _ = partition(model, (".*",))
    decays = named_leaves(decay_mask(trainable))
    assert decays["decoder/layers/attn/q_proj/kernel"]
    assert decays["decoder/layers/attn/q_proj/lora/a"]
    assert decays["decoder/embedder/table"]
    spared = {name for name, decay in decays.items() if not decay}
    expected = {n for n in decays if n.endswith(("scale", "bias", "position_embed"))}
    assert spared == expected
    assert trainable["decoder"]["layers"]["attn_norm"]["scale"].ndim == 2  # the name must decide


def test_decay_spares_what_was_published_to_be_as_it_is():
    for preset in ("tiny_gemma4", "tiny_gemma4_e2b", "tiny_internvl"):
        model = nnx.eval_shape(lambda p=preset: VLM(PRESETS[p], rngs=nnx.Rngs(0)))
        decays = named_leaves(decay_mask(nnx.state(model)))
        kept = ("scale", "bias", "position_embed", "put_min", "put_max")
        assert all(decay != name.endswith(kept) for name, decay in decays.items()), preset


def test_first_update_of_adamw_by_hand():
    """Adam's first step is the sign of the gradient; decay is decoupled from it."""
    config = OptimizerConfig(schedule="constant", learning_rate=0.1, weight_decay=0.5)
    config = dataclasses.replace(config, clip_norm=0.0)
    optimizer = make_optimizer(config, steps=2)
    params = {"kernel": jnp.array([2.0, -1.0]), "bias": jnp.array([3.0])}
    gradients = {"kernel": jnp.array([0.3, -4.0]), "bias": jnp.array([1.0])}
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    np.testing.assert_allclose(updates["kernel"], [-0.1 * (1 + 1), -0.1 * (-1 - 0.5)], rtol=1e-4)
    np.testing.assert_allclose(updates["bias"], [-0.1], rtol=1e-4)


def test_clipping_scales_all_gradients_together():
    """Moments see gradients of global norm 1, whatever their size was."""
    optimizer = make_optimizer(OptimizerConfig(clip_norm=1.0), steps=2)
    params = {"a": jnp.zeros(2), "b": jnp.zeros(1)}
    gradients = {"a": jnp.array([30.0, 0.0]), "b": jnp.array([40.0])}
    _, state = optimizer.update(gradients, optimizer.init(params), params)
    moments = {k: v for k, v in named_leaves(state).items() if "/mu/" in k}
    total = jnp.concatenate(jax.tree.leaves(moments))
    np.testing.assert_allclose(total, 0.1 * np.array([0.6, 0.0, 0.8]), rtol=1e-5)
