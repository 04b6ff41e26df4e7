"""The policy loss against sums written out, the optimiser's schedule, decay and clipping."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import log_softmax

from cxrjax.distributed import meshes
from cxrjax.distributed.meshes import named_leaves
from cxrjax.errors import UserError
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora, partition
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.config_file import typed_config
from cxrjax.training.loss import answer_states
from cxrjax.training.optimizer import (
    OptimizerConfig,
    decay_mask,
    learning_rate_schedule,
    make_optimizer,
)
from cxrjax.training.policy_config import PolicyConfig
from cxrjax.training.rl.policy_loss import Experience, PolicyObjective, answer_logprobs
from tests.training.conftest import TinyModel, assert_close, random_batch, take_steps


def _experience(seed=0, off_policy=False):
    """Random answers with random worth; those of empty slots weigh nothing."""
    rng = np.random.default_rng(seed)
    batch = random_batch(seed)
    shape = batch.question_index.shape
    batch = batch.replace(  # drawn answers have no boxes to learn
        coordinate_positions=np.zeros((*shape, 0, 4), np.int32),
        target_boxes=np.zeros((*shape, 0, 4), np.float32),
        box_mask=np.zeros((*shape, 0), bool),
    )
    there = batch.question_index >= 0
    slots = batch.answer_tokens.shape
    reference = rng.normal(-3, 1, slots).astype(np.float32) * batch.answer_mask
    old = rng.normal(-6.9, 0.3, slots).astype(np.float32) * batch.answer_mask
    experience = Experience(
        batch=batch,
        advantages=(rng.normal(size=shape) * there).astype(np.float32),
        weights=((rng.random(shape) < 0.8) * there).astype(np.float32),
        reference_logprobs=reference,
        old_logprobs=old if off_policy else None,
        told={"reward": np.where(there, rng.random(shape), np.nan).astype(np.float32)},
    )
    return jax.tree.map(jnp.asarray, experience)


def _config(**rl):
    return ExperimentConfig(rl=PolicyConfig(kind="rloo", **rl))


def _loss_of(config, chunk=64):
    """(state, graphdef, experience) -> the loss and its parts, compiled."""
    objective = PolicyObjective(config.rl)

    @functools.partial(jax.jit, static_argnums=1)
    def loss(state, graphdef, experience):
        model = nnx.merge(graphdef, state)
        return objective.loss(model, experience, None, objective.denominators(experience), chunk)

    return loss


def _logits(model, batch):
    hidden = answer_states(model, batch)
    return np.asarray(model.logits(hidden), np.float64).reshape(*batch.answer_tokens.shape, -1)


@pytest.mark.parametrize("off_policy", [False, True])
def test_loss_and_figures_are_the_sums_of_the_papers(off_policy):
    model, given = TinyModel(), _experience(off_policy=off_policy)
    config = _config(temperature=0.7, epsilon_low=0.1, epsilon_high=0.2, kl_weight=0.3)
    experience = jax.tree.map(np.asarray, given)
    batch, rl = experience.batch, config.rl
    distribution = log_softmax(_logits(model, given.batch) / 0.7, axis=-1)
    loss = weight = kl_sum = clipped = entropy = 0.0
    for at in np.argwhere(batch.answer_mask):
        question, token = tuple(at[:2]), batch.answer_tokens[tuple(at)]
        logp = distribution[(*at, token)]
        ratio = np.exp(logp - experience.old_logprobs[tuple(at)]) if off_policy else 1.0
        a, w = experience.advantages[question], experience.weights[question]
        bounded = min(max(ratio, 1 - rl.epsilon_low), 1 + rl.epsilon_high)
        away = experience.reference_logprobs[tuple(at)] - logp
        kl = np.exp(away) - away - 1
        loss += w * (rl.kl_weight * kl - min(ratio * a, bounded * a))
        kl_sum, weight = kl_sum + w * kl, weight + w
        clipped += bounded * a < ratio * a
        entropy -= np.sum(np.exp(distribution[tuple(at)]) * distribution[tuple(at)])
    graphdef, state = nnx.split(model)
    found, parts = _loss_of(config)(state, graphdef, given)
    assert float(found) == pytest.approx(loss / weight, rel=1e-4)
    figures = {name: float(total) / float(count) for name, (total, count) in parts.items()}
    assert figures["rl/kl"] == pytest.approx(kl_sum / weight, rel=1e-4)
    tokens = batch.answer_mask.sum()
    assert figures["rl/clipped"] == pytest.approx(clipped / tokens, abs=1e-6)
    assert figures["rl/entropy"] == pytest.approx(entropy / tokens, rel=1e-4)
    assert figures["rl/reward"] == pytest.approx(np.nanmean(experience.told["reward"]), rel=1e-5)
    if off_policy:
        assert 0 < clipped < tokens


def test_the_first_gradient_is_reinforce_s():
    """That of advantage times log-probability, by JAX from the formula itself."""
    model, experience = TinyModel(), _experience()
    graphdef, state = nnx.split(model)
    batch = experience.batch

    def surrogate(state):
        logprobs = answer_logprobs(nnx.merge(graphdef, state), batch, 1.0, 10_000)
        weights = experience.weights[..., None] * batch.answer_mask
        gain = experience.advantages[..., None] * logprobs
        return -jnp.sum(weights * gain) / jnp.sum(weights)

    loss = _loss_of(_config(kl_weight=0.0), 16)
    expected = jax.jit(jax.grad(surrogate))(state)
    found = jax.grad(lambda s: loss(s, graphdef, experience)[0])(state)
    assert_close(expected, found, rtol=1e-3, atol=1e-6)


def test_a_clipped_ratio_has_no_gradient():
    model, experience = TinyModel(), _experience()
    graphdef, state = nnx.split(model)
    now = answer_logprobs(model, experience.batch, 1.0, 10_000)
    loss = _loss_of(_config(kl_weight=0.0))
    gradients = jax.jit(jax.grad(lambda s, e: loss(s, graphdef, e)[0]))

    def gradient(shift, sign):
        moved = dataclasses.replace(
            experience, advantages=sign * jnp.abs(experience.advantages), old_logprobs=now - shift
        )
        grads = gradients(state, moved)
        return max(float(jnp.abs(g).max()) for g in jax.tree.leaves(grads))

    # Likelier than before and better than the group, or the other way: gone far enough.
    assert gradient(0.5, 1) == gradient(-0.5, -1) == 0
    assert gradient(0.5, -1) > 1e-6 and gradient(-0.5, 1) > 1e-6


@pytest.mark.parametrize("chunk", [7, 10_000])
def test_logprobs_are_those_of_the_logits(chunk):
    model, batch = TinyModel(), jax.tree.map(jnp.asarray, random_batch())
    expected = log_softmax(_logits(model, batch) / 0.5, axis=-1)
    expected = np.take_along_axis(expected, batch.answer_tokens[..., None], -1)[..., 0]
    found = answer_logprobs(model, batch, 0.5, chunk)
    np.testing.assert_allclose(found, expected * batch.answer_mask, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "micro_batches"), [({"data": 8}, 1), ({"data": 2, "fsdp": 2, "tensor": 2}, 2)]
)
def test_a_step_is_the_same_cut_and_spread(run_config, monkeypatch, sizes, micro_batches):
    monkeypatch.setattr("cxrjax.distributed.meshes._FSDP_MIN_SIZE", 16)
    run_config.rl.kind = "rloo"
    run_config.optimizer.learning_rate = 0.01
    experience = _experience(off_policy=True)

    def updated(mesh_sizes, accumulation):
        run_config.training.accumulation_steps = accumulation
        run_config.mesh.update(mesh_sizes)
        config = typed_config(run_config)
        devices = jax.devices()[: int(np.prod(list(mesh_sizes.values())))]
        mesh = meshes.make_mesh(config.mesh, devices)
        return take_steps(config, TinyModel(), mesh, [experience])[0][0]

    state, metrics = updated({"data": 1}, 1)
    other_state, other_metrics = updated(sizes, micro_batches)
    assert other_metrics.loss == pytest.approx(metrics.loss, rel=1e-4)
    assert_close(state.trainable, other_state.trainable, rtol=0.02, atol=2e-3)


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


def test_decay_spares_norms_biases_positions_and_what_was_published(small_vlm):
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
    for preset in ("tiny_gemma4", "tiny_gemma4_e2b", "tiny_internvl"):
        model = nnx.eval_shape(lambda p=preset: VLM(PRESETS[p], rngs=nnx.Rngs(0)))
        decays = named_leaves(decay_mask(nnx.state(model)))
        kept = ("scale", "bias", "position_embed", "put_min", "put_max")
        assert all(decay != name.endswith(kept) for name, decay in decays.items()), preset


def test_the_first_update_by_hand_after_a_warmup_told_once():
    """Adam's first step is the sign of the gradient; decay is decoupled from it."""
    config = OptimizerConfig(schedule="constant", learning_rate=0.1, weight_decay=0.5)
    config = dataclasses.replace(config, clip_norm=0.0)
    optimizer = make_optimizer(config, steps=2)
    params = {"kernel": jnp.array([2.0, -1.0]), "bias": jnp.array([3.0])}
    gradients = {"kernel": jnp.array([0.3, -4.0]), "bias": jnp.array([1.0])}
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    np.testing.assert_allclose(updates["kernel"], [-0.1 * (1 + 1), -0.1 * (-1 - 0.5)], rtol=1e-4)
    np.testing.assert_allclose(updates["bias"], [-0.1], rtol=1e-4)
    config = OptimizerConfig(warmup_steps=4, warmup_ratio=0.03)
    with pytest.raises(UserError, match=r"warmup_steps and optimizer\.warmup_ratio"):
        learning_rate_schedule(config, steps=100)
    config = dataclasses.replace(config, warmup_steps=0, warmup_ratio=3.0)
    with pytest.raises(UserError, match="expected 0 to 1"):
        learning_rate_schedule(config, steps=100)


def test_clipping_scales_all_gradients_together():
    """Moments see gradients of global norm 1, whatever their size was."""
    optimizer = make_optimizer(OptimizerConfig(clip_norm=1.0), steps=2)
    params = {"a": jnp.zeros(2), "b": jnp.zeros(1)}
    gradients = {"a": jnp.array([30.0, 0.0]), "b": jnp.array([40.0])}
    _, state = optimizer.update(gradients, optimizer.init(params), params)
    moments = {k: v for k, v in named_leaves(state).items() if "/mu/" in k}
    total = jnp.concatenate(jax.tree.leaves(moments))
    np.testing.assert_allclose(total, 0.1 * np.array([0.6, 0.0, 0.8]), rtol=1e-5)
