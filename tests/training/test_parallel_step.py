"""Every way to spread the step over eight devices is the step of one device."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.distributed import meshes
from cxrjax.distributed.meshes import named_leaves
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora, partition
from cxrjax.training import step
from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config
from cxrjax.training.step import make_optimizer, make_parallel_step

VOCAB = 1024 + 16
STEPS = 3
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
# A step takes ten seconds to compile: one kind in every run of the tests, the rest are slow.
FAST = {(mesh, "int8, accumulated") for mesh in ("all", "pmap")}
CASES = [
    pytest.param(mesh, kind, marks=[] if (mesh, kind) in FAST else pytest.mark.heavy)
    for mesh in MESHES
    for kind in KINDS
]


def _model(kind):
    """Four heads, two of keys and values, so that tensor 2 and 4 cut them differently."""
    preset = PRESETS["tiny"]
    sizes = dataclasses.replace(
        preset,
        vision=dataclasses.replace(
            preset.vision, image_size=16, patch_size=8, width=32, depth=2, num_heads=4, mlp_dim=64
        ),
        decoder=dataclasses.replace(
            preset.decoder,
            vocab_size=VOCAB,
            width=32,
            depth=2,
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
            mlp_dim=64,
        ),
        loc_token_start=4,
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
def run(random_batch, monkeypatch):
    """`run(kind, devices, mesh, accumulate=True)`: metrics of three steps, gradients of the first,
    what became of the parameters, and the arrays of the last step."""
    monkeypatch.setattr(meshes, "_FSDP_MIN_SIZE", 16)  # or nothing here would be split

    def train(kind, devices, sizes, accumulate=True):
        config = default_config()
        config.training.batch_images, config.training.steps = 16, STEPS
        config.lora.dropout = 0.0 if kind == "full" else 0.3
        config.optimizer.clip_norm = 0.0
        config.update_from_flattened_dict(KINDS[kind])
        if not accumulate:
            config.training.accumulation_steps = 1
        config.mesh.update(sizes)
        mesh = meshes.make_mesh(typed_config(config).mesh, jax.devices()[:devices])
        graphdef, trainable, frozen = partition(_model(kind), config.trainable)
        frozen = step.cast_params(frozen, config.model.frozen_dtype)
        state = step.init_state(trainable, make_optimizer(typed_config(config).optimizer, STEPS))
        state = jax.device_put(state, meshes.tree_shardings(mesh, state))
        frozen = jax.device_put(frozen, meshes.tree_shardings(mesh, frozen))
        compiled = make_parallel_step(graphdef, typed_config(config), STEPS, mesh, state, frozen)
        before = _parameters(state)
        metrics, states = [], []
        for number in range(STEPS):
            batch = meshes.put_batch(random_batch(seed=number, images=16), mesh)
            with jax.transfer_guard("disallow"):
                state, found = compiled(state, frozen, batch)
            metrics.append(jax.device_get(found))
            states.append(state if number == STEPS - 1 else jax.device_get(state))
        after = _parameters(states[-1])
        changes = {name: after[name] - before[name] for name in after}
        return metrics, _gradients(states[0]), changes, (states[-1], frozen)

    return train


@pytest.fixture(scope="module")
def alone():
    """What one device makes of each kind, once."""
    return {}


def _parameters(state):
    return {name: np.asarray(leaf) for name, leaf in named_leaves(state.trainable).items()}


def _gradients(state):
    """Adam's first moment after one step is 0.1 times the gradient."""
    return {k: v for k, v in named_leaves(state.opt_state).items() if "/mu/" in k}


@pytest.mark.parametrize(("mesh", "kind"), CASES)
def test_eight_devices_make_the_step_of_one(run, alone, mesh, kind):
    if kind not in alone:
        alone[kind] = run(kind, 1, {}, accumulate=False)
    metrics, gradients, changes, _ = alone[kind]
    found_metrics, found_gradients, found_changes, arrays = run(kind, 8, MESHES[mesh])

    # The first step by every number it tells: losses, counts of the whole batch, gradient norm.
    for ours, theirs in zip(*map(jax.tree.leaves, (found_metrics[0], metrics[0])), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose([m.loss for m in found_metrics], [m.loss for m in metrics], 1e-4)
    assert found_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        largest = np.abs(gradient).max()
        np.testing.assert_allclose(
            found_gradients[name], gradient, atol=2e-5 * largest + 1e-9, err_msg=name
        )
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
