"""Micro-batches, devices and restarts give the step of one large batch on one device."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.distributed import meshes
from cxrjax.distributed.meshes import named_leaves
from cxrjax.models import VLM, LoRAConfig, apply_lora, partition
from cxrjax.models.lora import merge_lora
from cxrjax.training import objectives, step
from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config
from cxrjax.training.loss import answer_states
from cxrjax.training.metric_log import step_figures
from cxrjax.training.optimizer import make_optimizer
from tests.training.conftest import (
    LOC_START,
    SMALL,
    VOCAB,
    TinyModel,
    assert_close,
    random_batch,
    take_steps,
)

MESHES = {
    "data": {"data": 8},
    "fsdp": {"fsdp": 8},
    "tensor2": {"data": 4, "tensor": 2},
    "tensor4": {"data": 2, "tensor": 4},
    "replica": {"replica": 2, "fsdp": 4},
    "all": {"replica": 2, "fsdp": 2, "tensor": 2},
    "pmap": {"data": 8, "strategy": "pmap"},
}
KINDS = {
    "lora": {},
    "full": {"trainable": (".*",)},
    "nf4": {"model.frozen_dtype": "nf4"},
    "int8, accumulated": {"model.frozen_dtype": "int8", "training.accumulation_steps": 2},
}
# A step takes ten seconds to compile: one kind with the slow tests, the rest are heavy.
SLOW = {(mesh, "int8, accumulated") for mesh in ("all", "pmap")}
CASES = [
    pytest.param(*case, marks=pytest.mark.slow if case in SLOW else pytest.mark.heavy)
    for case in itertools.product(MESHES, KINDS)
]


def _wide_model(kind):
    """Four heads, two of keys and values, so that tensor 2 and 4 cut them differently."""
    wide = {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64}
    sizes = dataclasses.replace(
        SMALL,
        vision=dataclasses.replace(SMALL.vision, **wide),
        decoder=dataclasses.replace(SMALL.decoder, **wide, num_kv_heads=2),
    )
    model = VLM(sizes, rngs=nnx.Rngs(0), share="image")
    if kind != "full":
        targets = ("decoder/layers/attn/(q|o)_proj", "mlp/down_proj", "vision/.*/fc1")
        apply_lora(model, LoRAConfig(rank=2, alpha=4.0, dropout=0.3, targets=targets), nnx.Rngs(1))
        # B starts at zero, where A has no gradient.
        for name, leaf in nnx.to_flat_state(nnx.state(model)):
            if name[-1] == "b":
                leaf[...] = jnp.full(leaf.shape, 0.1)
    return model


@pytest.fixture
def run(monkeypatch):
    """`run(kind, devices, mesh, accumulate=True)`: metrics of three steps, gradients of the first,
    what became of the parameters, and the arrays of the last step."""
    monkeypatch.setattr(meshes, "_FSDP_MIN_SIZE", 16)  # or nothing here would be split

    def train(kind, devices, sizes, accumulate=True):
        config = default_config()
        config.training.batch_images, config.training.steps = 16, 3
        config.lora.dropout = 0.0 if kind == "full" else 0.3
        config.optimizer.clip_norm = 0.0
        config.update_from_flattened_dict(KINDS[kind])
        if not accumulate:
            config.training.accumulation_steps = 1
        config.mesh.update(sizes)
        config, model = typed_config(config), _wide_model(kind)
        before = named_leaves(partition(model, config.trainable)[1])
        mesh = meshes.make_mesh(config.mesh, jax.devices()[:devices])
        batches = (random_batch(seed=number, images=16) for number in range(3))
        taken, arrays = take_steps(config, model, mesh, batches, steps=3)
        after = named_leaves(taken[-1][0].trainable)
        changes = {name: after[name] - np.asarray(before[name]) for name in after}
        return [metrics for _, metrics in taken], _gradients(taken[0][0]), changes, arrays

    return train


@pytest.fixture(scope="module")
def alone():
    """What one device makes of each kind, once."""
    return {}


@pytest.mark.parametrize(("mesh", "kind"), CASES)
def test_eight_devices_make_the_step_of_one(run, alone, mesh, kind):
    if kind not in alone:
        alone[kind] = run(kind, 1, {}, accumulate=False)
    metrics, gradients, changes, _ = alone[kind]
    found_metrics, found_gradients, found_changes, arrays = run(kind, 8, MESHES[mesh])

    # The first step by every number it tells: losses, counts of the whole batch, gradient norm.
    assert_close(found_metrics[0], metrics[0], rtol=3e-5, atol=1e-6)
    np.testing.assert_allclose([m.loss for m in found_metrics], [m.loss for m in metrics], 1e-4)
    _assert_same_gradients(found_gradients, gradients)
    # Adam divides by the gradient's size: rounding shows where a gradient is almost nothing.
    for name, change in changes.items():
        if name.endswith("k_proj/bias"):
            continue  # adds the same to all of a query's scores: its gradient is rounding alone
        off = np.linalg.norm(found_changes[name] - change)
        assert off <= 2e-3 * np.linalg.norm(change), name

    split = {
        axis
        for leaf in jax.tree.leaves(arrays)
        for entry in leaf.sharding.spec
        for axis in ([entry] if isinstance(entry, str) else entry or ())
    }
    assert split == {axis for axis in ("fsdp", "tensor") if MESHES[mesh].get(axis, 1) > 1}


def _one_step(config, model, batch, mesh):
    """State and metrics after one step; the state holds Adam's mean of the gradients."""
    return take_steps(typed_config(config), model, mesh, [batch])[0][0]


def _mesh(config, devices=1, data=-1, fsdp=1, tensor=1):
    config.mesh.data, config.mesh.fsdp, config.mesh.tensor = data, fsdp, tensor
    return meshes.make_mesh(typed_config(config).mesh, jax.devices()[:devices])


def _gradients(state):
    """Adam's first moment after one step is 0.1 times the clipped gradient."""
    return {k: np.asarray(v) for k, v in named_leaves(state.opt_state).items() if "/mu/" in k}


def _assert_same_gradients(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        tolerance = 2e-5 * np.abs(gradient).max() + 1e-9
        np.testing.assert_allclose(ours[name], gradient, atol=tolerance, err_msg=name)


def _assert_same(ours, theirs):
    """Equal to float32 rounding: losses, both parts, gradients."""
    assert_close(ours[1], theirs[1], rtol=1e-5, atol=1e-6)  # an IoU may be almost nothing
    _assert_same_gradients(_gradients(ours[0]), _gradients(theirs[0]))


def test_micro_batches_equal_one_large_batch(run_config):
    run_config.lora.dropout = 0.3
    batch = random_batch(seed=1, images=16)
    whole = _one_step(run_config, TinyModel(), batch, _mesh(run_config))
    run_config.training.accumulation_steps = 4
    _assert_same(_one_step(run_config, TinyModel(), batch, _mesh(run_config)), whole)


@pytest.mark.slow
def test_devices_with_micro_batches_equal_one_device_without(run_config, small_vlm):
    """Every axis of the mesh at work, on the real model with dropout."""
    run_config.lora.dropout = 0.3
    run_config.trainable = ("/lora/", "vision/.*kernel", "embedder/table")
    model = small_vlm(share="image")
    apply_lora(model, LoRAConfig(rank=2, alpha=4.0, dropout=0.3), nnx.Rngs(1))
    # B starts at zero, where dropout could not be seen.
    b = model.decoder.layers.attn.q_proj.lora.b
    b[...] = jnp.full(b.shape, 0.1)
    batch = random_batch(seed=1, images=16)
    whole = _one_step(run_config, model, batch, _mesh(run_config))
    run_config.training.accumulation_steps = 2
    spread = _mesh(run_config, devices=8, data=2, fsdp=2, tensor=2)
    _assert_same(_one_step(run_config, model, batch, spread), whole)


def _compiled(config, model):
    """A function (batch) -> (state, metrics) of the first step, compiled once."""
    graphdef, trainable, frozen = partition(model, config.trainable)
    frozen = step.cast_params(frozen, config.model.frozen_dtype)
    state = step.init_state(trainable, make_optimizer(typed_config(config).optimizer, 10))
    function = jax.jit(step.make_train_step(graphdef, typed_config(config), steps=10))
    return lambda batch: function(state, frozen, jax.tree.map(jnp.asarray, batch))


def test_dropout_changes_with_the_step_and_the_question_alone(run_config):
    run_config.lora.dropout = 0.3
    batch = random_batch(seed=2)
    first_step = _compiled(run_config, TinyModel())
    loss = first_step(batch)[1].loss
    shuffled = jax.tree.map(lambda x: x[::-1], batch)
    np.testing.assert_allclose(first_step(shuffled)[1].loss, loss, rtol=1e-6)
    other = batch.replace(question_index=batch.question_index + 1000)
    assert abs(first_step(other)[1].loss - loss) > 1e-5
    keys = [jax.random.key_data(step.dropout_key(0, jnp.int32(n))) for n in (0, 1)]
    assert np.any(keys[0] != keys[1])


def test_frozen_parameters_may_be_bfloat16(run_config):
    run_config.trainable = ("projector",)
    full = _compiled(run_config, TinyModel())(random_batch())[1].loss
    run_config.model.frozen_dtype = "bfloat16"
    state, metrics = _compiled(run_config, TinyModel())(random_batch())
    assert metrics.loss != full
    np.testing.assert_allclose(metrics.loss, full, rtol=0.01)
    assert {x.dtype for x in jax.tree.leaves(state.trainable)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_update_is_as_large_as_the_learning_rate_it_logs(run_config, accumulation):
    """AdamW without memory moves every parameter by the learning rate, whatever its gradient."""
    config = run_config
    config.training.accumulation_steps = accumulation
    adam = config.optimizer
    adam.b1 = adam.b2 = adam.weight_decay = adam.clip_norm = 0.0
    adam.schedule, adam.learning_rate, adam.end_value = "cosine", 0.04, 0.001
    adam.warmup_steps, adam.warmup_from = 3, 0.01
    graphdef, trainable, frozen = partition(TinyModel(), config.trainable)
    state = step.init_state(trainable, make_optimizer(adam, 5))
    function = jax.jit(step.make_train_step(graphdef, typed_config(config), steps=5))
    leaves = [np.asarray(x) for x in jax.tree.leaves(state.trainable)]
    for expected in (0.01, 0.025, 0.04, 0.04, 0.001):
        before = leaves
        state, metrics = function(state, frozen, random_batch())
        after = leaves = [np.asarray(x) for x in jax.tree.leaves(state.trainable)]
        moved = max(np.abs(b - a).max() for a, b in zip(before, after, strict=True))
        # A gradient of nearly nothing, beside Adam's epsilon, moves its parameter by less.
        np.testing.assert_allclose(moved, expected, rtol=1e-3)
        np.testing.assert_allclose(metrics.learning_rate, expected, rtol=1e-5)


def test_values_are_quotients_and_micro_batches_hold_every_image_once(run_config):
    batch = random_batch()
    batch = batch.replace(box_mask=np.zeros_like(batch.box_mask))
    _, metrics = _compiled(run_config, TinyModel())(batch)
    values = step_figures(metrics)
    assert np.isnan(values["giou_loss"])
    np.testing.assert_allclose(values["ce"], metrics.figures["ce"][0] / batch.answer_mask.sum())
    assert 0 <= values["token_accuracy"] <= 1
    batch = jax.tree.map(jnp.asarray, random_batch(images=6))
    cut = step.cut_micro_batches(batch, 3)
    assert cut.images.shape[:2] == (3, 2)
    together = np.sort(np.asarray(cut.question_index).reshape(-1))
    np.testing.assert_array_equal(together, np.sort(np.asarray(batch.question_index).reshape(-1)))


def test_state_is_donated_and_the_frozen_part_is_not(run_config):
    mesh = _mesh(run_config)
    run_config.trainable = ("projector",)
    graphdef, trainable, frozen = partition(TinyModel(), run_config.trainable)
    state = step.init_state(trainable, make_optimizer(typed_config(run_config).optimizer, 10))
    function = step.make_train_step(graphdef, typed_config(run_config), steps=10)
    compiled = step.compile_train_step(function, mesh, state, frozen)
    state = jax.device_put(state, meshes.tree_shardings(mesh, state))
    compiled(state, frozen, meshes.put_batch(random_batch(), mesh))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(frozen))


def test_each_term_s_gradient_is_clipped_by_itself(run_config):
    """Cross-entropy's step is that of lambda 0, and the box loss adds at most its own norm."""
    batch = random_batch(seed=4, images=16)

    def first(box_norm, lambda_box, accumulation=1):
        run_config.optimizer.clip_norm, run_config.optimizer.clip_box_norm = 0.05, box_norm
        run_config.training.lambda_box = lambda_box
        run_config.training.accumulation_steps = accumulation
        state, metrics = _one_step(run_config, TinyModel(), batch, _mesh(run_config))
        return {name: m / 0.1 for name, m in _gradients(state).items()}, metrics

    (together, before), (words, _) = first(0.0, 4.0), first(0.0, 0.0)
    (apart, after), (cut, _) = first(0.02, 4.0), first(0.02, 4.0, accumulation=2)
    np.testing.assert_allclose(after.grad_norm, before.grad_norm, rtol=1e-5)
    assert after.figures["box_grad_norm"][0] > 0.02
    box = {name: apart[name] - words[name] for name in words}
    for gradients, norm in ((box, 0.02), (words, 0.05), (together, 0.05)):
        squares = sum(np.square(x).sum() for x in gradients.values())
        np.testing.assert_allclose(np.sqrt(squares), norm, rtol=1e-3)
    assert_close(cut, apart, rtol=1e-3, atol=1e-6)


def test_a_box_adapter_leaves_words_as_they_are_without_the_box_loss(run_config, small_vlm):
    """After any steps every other parameter, and every word's probability at every position, also
    behind coordinates, is that of lambda 0; among the bins it differs. Merged, the bins stay."""
    run_config.optimizer.learning_rate, run_config.optimizer.clip_norm = 0.03, 0.5
    is_loc = np.isin(np.arange(VOCAB), LOC_START + np.arange(1024))
    seen = []
    for rank, weight in ((0, 0.0), (3, 20.0)):
        run_config.training.lambda_box, run_config.lora.box_rank = weight, rank
        model = small_vlm(share="image")
        if rank:
            model.decoder.embedder.add_box_adapter(rank, nnx.Rngs(1))
        graphdef = partition(model, run_config.trainable)[0]
        batches = [random_batch(seed=number) for number in range(5)]
        _, (state, frozen) = take_steps(typed_config(run_config), model, _mesh(run_config), batches)
        model = nnx.merge(graphdef, state.trainable, frozen)
        hidden = answer_states(model, jax.tree.map(jnp.asarray, random_batch(seed=9)))
        logits = model.logits(hidden)
        log_p = np.asarray(jax.nn.log_softmax(logits))
        others = {
            k: v for k, v in named_leaves(nnx.state(model)).items() if "embedder/lora" not in k
        }
        seen.append((log_p[..., is_loc], logits[..., ~is_loc], log_p[..., ~is_loc], others))
    for without, shielded in zip(seen[0][1:], seen[1][1:], strict=True):
        assert_close(shielded, without, atol=1e-6)
    assert np.abs(seen[1][0] - seen[0][0]).max() > 0.1
    merge_lora(model)
    merged = model.logits(hidden)
    assert_close(jax.nn.log_softmax(merged[..., is_loc]), jax.nn.log_softmax(seen[1][0]), atol=1e-4)
    np.testing.assert_allclose(merged[..., ~is_loc], seen[1][1], atol=1e-6)


@pytest.mark.parametrize("skips", [False, True])
def test_a_gradient_that_is_not_finite_is_skipped_where_the_loss_is(run_config, monkeypatch, skips):
    """The square root of 0 is 0, and its slope infinite."""

    class Rooted(objectives.MultitaskObjective):
        def loss(self, model, *given):
            found, parts = super().loss(model, *given)
            return found + jnp.sqrt(0 * jnp.sum(model.projector.bias[...])), parts

    monkeypatch.setattr(objectives, "MultitaskObjective", Rooted)
    run_config.training.skip_nonfinite = int(skips)
    graphdef, trainable, frozen = partition(TinyModel(), run_config.trainable)
    state = step.init_state(trainable, make_optimizer(typed_config(run_config).optimizer, 10))
    function = jax.jit(step.make_train_step(graphdef, typed_config(run_config), steps=10))
    after, metrics = function(state, frozen, jax.tree.map(jnp.asarray, random_batch()))
    assert np.isfinite(metrics.loss) and not np.isfinite(metrics.grad_norm)
    same = [
        np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (after, state)), strict=True)
    ]
    assert all(same) == skips
