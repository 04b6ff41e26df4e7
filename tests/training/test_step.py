"""Micro-batches, devices and restarts give the step of one large batch on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.distributed import meshes
from cxrjax.distributed.meshes import named_leaves
from cxrjax.models import LoRAConfig, apply_lora, partition
from cxrjax.training import step
from cxrjax.training.config_file import typed_config
from cxrjax.training.metric_log import step_figures
from cxrjax.training.step import make_optimizer


def _one_step(config, model, batch, mesh):
    """State and metrics after one step; the state holds Adam's mean of the gradients."""
    graphdef, trainable, frozen = partition(model, config.trainable)
    state = step.init_state(trainable, make_optimizer(typed_config(config).optimizer, 10))
    function = step.make_train_step(graphdef, typed_config(config), steps=10, mesh=mesh)
    state = jax.device_put(state, meshes.tree_shardings(mesh, state))
    frozen = jax.device_put(frozen, meshes.tree_shardings(mesh, frozen))
    compiled = step.compile_train_step(function, mesh, state, frozen)
    return compiled(state, frozen, meshes.put_batch(batch, mesh))


def _mesh(config, devices=1, data=-1, fsdp=1, tensor=1):
    config.mesh.data, config.mesh.fsdp, config.mesh.tensor = data, fsdp, tensor
    return meshes.make_mesh(typed_config(config).mesh, jax.devices()[:devices])


def _gradients(state):
    """Adam's first moment after one step is 0.1 times the clipped gradient."""
    return {k: np.asarray(v) for k, v in named_leaves(state.opt_state).items() if "/mu/" in k}


def _assert_same(ours, theirs):
    """Equal to float32 rounding: losses, both parts, gradients."""
    for a, b in zip(jax.tree.leaves(ours[1]), jax.tree.leaves(theirs[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # an IoU may be almost nothing
    a, b = _gradients(ours[0]), _gradients(theirs[0])
    assert a.keys() == b.keys()
    for name in a:
        scale = np.abs(b[name]).max()
        np.testing.assert_allclose(a[name], b[name], atol=2e-5 * scale + 1e-9, err_msg=name)


@pytest.fixture
def lora_model(small_vlm):
    def make():
        model = small_vlm(share="image")
        apply_lora(model, LoRAConfig(rank=2, alpha=4.0, dropout=0.3), nnx.Rngs(1))
        # B starts at zero, where dropout could not be seen.
        b = model.decoder.layers.attn.q_proj.lora.b
        b[...] = jnp.full(b.shape, 0.1)
        return model

    return make


def test_micro_batches_equal_one_large_batch(run_config, tiny_model, random_batch):
    run_config.lora.dropout = 0.3
    batch = random_batch(seed=1, images=16)
    whole = _one_step(run_config, tiny_model(), batch, _mesh(run_config))
    run_config.training.accumulation_steps = 4
    _assert_same(_one_step(run_config, tiny_model(), batch, _mesh(run_config)), whole)


def test_devices_with_micro_batches_equal_one_device_without(run_config, lora_model, random_batch):
    """Every axis of the mesh at work, on the real model with dropout."""
    run_config.lora.dropout = 0.3
    run_config.trainable = ("/lora/", "vision/.*kernel", "embedder/table")
    batch = random_batch(seed=1, images=16)
    whole = _one_step(run_config, lora_model(), batch, _mesh(run_config))
    run_config.training.accumulation_steps = 2
    spread = _mesh(run_config, devices=8, data=2, fsdp=2, tensor=2)
    _assert_same(_one_step(run_config, lora_model(), batch, spread), whole)


def _compiled(config, model):
    """A function (batch) -> (state, metrics) of the first step, compiled once."""
    graphdef, trainable, frozen = partition(model, config.trainable)
    frozen = step.cast_params(frozen, config.model.frozen_dtype)
    state = step.init_state(trainable, make_optimizer(typed_config(config).optimizer, 10))
    function = jax.jit(step.make_train_step(graphdef, typed_config(config), steps=10))
    return lambda batch: function(state, frozen, jax.tree.map(jnp.asarray, batch))


def test_dropout_changes_with_the_step_and_the_question_alone(run_config, tiny_model, random_batch):
    run_config.lora.dropout = 0.3
    batch = random_batch(seed=2)
    first_step = _compiled(run_config, tiny_model())
    loss = first_step(batch)[1].loss
    shuffled = jax.tree.map(lambda x: x[::-1], batch)
    np.testing.assert_allclose(first_step(shuffled)[1].loss, loss, rtol=1e-6)
    other = batch.replace(question_index=batch.question_index + 1000)
    assert abs(first_step(other)[1].loss - loss) > 1e-5
    keys = [jax.random.key_data(step.dropout_key(0, jnp.int32(n))) for n in (0, 1)]
    assert np.any(keys[0] != keys[1])


def test_frozen_parameters_may_be_bfloat16(run_config, tiny_model, random_batch):
    run_config.trainable = ("projector",)
    full = _compiled(run_config, tiny_model())(random_batch())[1].loss
    run_config.model.frozen_dtype = "bfloat16"
    state, metrics = _compiled(run_config, tiny_model())(random_batch())
    assert metrics.loss != full
    np.testing.assert_allclose(metrics.loss, full, rtol=0.01)
    assert {x.dtype for x in jax.tree.leaves(state.trainable)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_update_is_as_large_as_the_learning_rate_it_logs(
    run_config, tiny_model, random_batch, accumulation
):
    """AdamW without memory moves every parameter by the learning rate, whatever its gradient."""
    config = run_config
    config.training.accumulation_steps = accumulation
    adam = config.optimizer
    adam.b1 = adam.b2 = adam.weight_decay = adam.clip_norm = 0.0
    adam.schedule, adam.learning_rate, adam.end_value = "cosine", 0.04, 0.001
    adam.warmup_steps, adam.warmup_from = 3, 0.01
    graphdef, trainable, frozen = partition(tiny_model(), config.trainable)
    state = step.init_state(trainable, make_optimizer(adam, 5))
    function = jax.jit(step.make_train_step(graphdef, typed_config(config), steps=5))
    for expected in (0.01, 0.025, 0.04, 0.04, 0.001):
        before = jax.tree.leaves(state.trainable)
        state, metrics = function(state, frozen, random_batch())
        after = jax.tree.leaves(state.trainable)
        moved = np.concatenate(
            [
                np.abs(np.asarray(b) - np.asarray(a)).ravel()
                for a, b in zip(before, after, strict=True)
            ]
        )
        # A gradient of nearly nothing, beside Adam's epsilon, moves its parameter by less.
        np.testing.assert_allclose(moved.max(), expected, rtol=1e-3)
        np.testing.assert_allclose(metrics.learning_rate, expected, rtol=1e-5)


def test_values_are_quotients_and_undefined_without_a_count(random_batch, run_config, tiny_model):
    batch = random_batch()
    batch = batch.replace(box_mask=np.zeros_like(batch.box_mask))
    _, metrics = _compiled(run_config, tiny_model())(batch)
    values = step_figures(metrics)
    assert np.isnan(values["giou_loss"])
    np.testing.assert_allclose(values["ce"], metrics.parts.ce_sum / batch.answer_mask.sum())
    assert 0 <= values["token_accuracy"] <= 1


def test_state_is_donated_and_the_frozen_part_is_not(run_config, tiny_model, random_batch):
    mesh = _mesh(run_config)
    run_config.trainable = ("projector",)
    graphdef, trainable, frozen = partition(tiny_model(), run_config.trainable)
    state = step.init_state(trainable, make_optimizer(typed_config(run_config).optimizer, 10))
    function = step.make_train_step(graphdef, typed_config(run_config), steps=10)
    compiled = step.compile_train_step(function, mesh, state, frozen)
    state = jax.device_put(state, meshes.tree_shardings(mesh, state))
    compiled(state, frozen, meshes.put_batch(random_batch(), mesh))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(frozen))


def test_micro_batches_hold_every_image_once(random_batch):
    batch = jax.tree.map(jnp.asarray, random_batch(images=6))
    cut = step.cut_micro_batches(batch, 3)
    assert cut.images.shape[:2] == (3, 2)
    together = np.sort(np.asarray(cut.question_index).reshape(-1))
    np.testing.assert_array_equal(together, np.sort(np.asarray(batch.question_index).reshape(-1)))


@pytest.mark.parametrize("skips", [False, True])
def test_a_gradient_that_is_not_finite_is_skipped_where_the_loss_is(
    run_config, tiny_model, random_batch, monkeypatch, skips
):
    """The square root of 0 is 0, and its slope infinite."""

    class Rooted(step.MultitaskObjective):
        def loss(self, model, *given):
            found, parts = super().loss(model, *given)
            return found + jnp.sqrt(0 * jnp.sum(model.projector.bias[...])), parts

    monkeypatch.setattr(step, "MultitaskObjective", Rooted)
    run_config.training.skip_nonfinite = int(skips)
    graphdef, trainable, frozen = partition(tiny_model(), run_config.trainable)
    state = step.init_state(trainable, make_optimizer(typed_config(run_config).optimizer, 10))
    function = jax.jit(step.make_train_step(graphdef, typed_config(run_config), steps=10))
    after, metrics = function(state, frozen, jax.tree.map(jnp.asarray, random_batch()))
    assert np.isfinite(metrics.loss) and not np.isfinite(metrics.grad_norm)
    same = [
        np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (after, state)), strict=True)
    ]
    assert all(same) == skips
