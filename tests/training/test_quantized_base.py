"""model.frozen_dtype int8 and nf4: the base's hash, a step of training, and the mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.decoding.generate import Generator
from cxrjax.decoding.strategy import Strategy
from cxrjax.distributed import meshes
from cxrjax.models import LoRAConfig, apply_lora, partition
from cxrjax.models.layers import Linear
from cxrjax.models.quantize import TILE, QuantizedKernel, quantize_kernel
from cxrjax.training.base_model import arrays_sha256
from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config, validate
from cxrjax.training.optimizer import make_optimizer
from cxrjax.training.step import cast_params, init_state, make_train_step
from tests.training.conftest import random_batch


@pytest.mark.parametrize("dtype", ["int8", "nf4"])
def test_adapters_are_trained_and_the_base_stays_what_it_was(dtype):
    config = default_config()
    config.model.frozen_dtype, config.model.init = dtype, "random"
    config.training.batch_images = config.training.steps = 1
    validate(typed_config(config))
    model = nnx.Dict(map=Linear(TILE, 4, rngs=nnx.Rngs(0)))
    apply_lora(model, LoRAConfig(rank=2, alpha=2.0, targets=("map",)), nnx.Rngs(1))
    graphdef, trainable, frozen = partition(model, config.trainable)
    before = arrays_sha256(frozen)
    stored = cast_params(frozen, config.model.frozen_dtype)
    assert arrays_sha256(frozen) == before  # what a checkpoint remembers its base by

    optimizer = make_optimizer(typed_config(config).optimizer, 1)
    state = init_state(trainable, optimizer)
    x = jnp.ones((3, TILE), jnp.bfloat16)

    def loss(trainable):
        y = nnx.merge(graphdef, trainable, stored).map(x)
        assert y.dtype == jnp.bfloat16
        return jnp.mean((y.astype(jnp.float32) - 1.0) ** 2)

    gradients = jax.grad(loss)(state.trainable)
    updates, _ = optimizer.update(gradients, state.opt_state, state.trainable)
    assert float(jnp.abs(updates["map"]["lora"]["b"][...]).min()) > 0
    assert gradients["map"]["lora"]["b"][...].dtype == jnp.float32


@pytest.mark.parametrize("dtype", ["int8", "nf4"])
def test_a_quantised_kernel_is_spread_over_the_mesh_as_the_kernel_would_be(dtype):
    stored = quantize_kernel(jnp.ones((2, 4 * TILE, 4 * TILE)), dtype)
    layer = {"mlp": {"gate_proj": {"kernel": stored}, "down_proj": {"kernel": stored}}}
    mesh = meshes.make_mesh(meshes.MeshConfig(fsdp=2, tensor=2))
    found = meshes.tree_shardings(mesh, {"decoder": layer})["decoder"]
    columns, rows = (found["mlp"][name]["kernel"] for name in ("gate_proj", "down_proj"))
    assert columns.codes.spec[2] == columns.scale.spec[2] == "tensor"
    assert rows.codes.spec[1] == "tensor"
    assert rows.scale.spec[1] == ("tensor" if dtype == "nf4" else None)
    spread = jax.device_put(layer, found)["mlp"]["down_proj"]["kernel"]
    assert isinstance(spread, QuantizedKernel)
    np.testing.assert_array_equal(spread.astype(jnp.float32), stored.astype(jnp.float32))


def test_a_magnitude_is_whole_on_every_device():
    mesh = meshes.make_mesh(meshes.MeshConfig(tensor=2))
    lora = {"magnitude": jnp.ones((2, 8)), "a": jnp.ones((2, 8, 2)), "b": jnp.ones((2, 2, 8))}
    towers = {"decoder": {"q_proj": {"lora": lora}}, "vision": {"layers": {"fc1": {"lora": lora}}}}
    found = meshes.tree_shardings(mesh, towers)
    for tower in (found["decoder"]["q_proj"]["lora"], found["vision"]["layers"]["fc1"]["lora"]):
        assert set(tower["magnitude"].spec) <= {None} and tower["b"].spec[2] == "tensor"


@pytest.mark.parametrize("dtype", ["int8", pytest.param("nf4", marks=pytest.mark.slow)])
def test_a_whole_model_trains_and_answers_on_a_quantised_base(small_vlm, dtype):
    config = default_config()
    model, batch = small_vlm(), jax.tree.map(jnp.asarray, random_batch())
    targets = ("decoder/.*", "vision/.*", "projector")
    apply_lora(model, LoRAConfig(rank=2, alpha=2.0, targets=targets), nnx.Rngs(1))
    graphdef, trainable, frozen = partition(model, ("/lora/",))
    losses = {}
    for stored_as in ("float32", dtype):
        stored = cast_params(frozen, stored_as)
        state = init_state(trainable, make_optimizer(typed_config(config).optimizer, 5))
        step = jax.jit(make_train_step(graphdef, typed_config(config), 5))
        losses[stored_as] = []
        for _ in range(3):
            state, metrics = step(state, stored, batch)
            losses[stored_as].append(float(metrics.loss))
            assert float(metrics.grad_norm) > 0
    quantised, whole = np.array(losses[dtype]), np.array(losses["float32"])
    assert (quantised != whole).all()
    np.testing.assert_allclose(quantised, whole, rtol=0.02 if dtype == "int8" else 0.1)

    trained = nnx.merge(graphdef, state.trainable, stored)
    answer = Generator(trained, Strategy(5, (1,)))(
        batch.images, batch.prefix_tokens, batch.prefix_mask
    )
    hidden = trained(
        batch.images,
        batch.prefix_tokens,
        batch.prefix_mask,
        jnp.asarray(answer.tokens),
        jnp.ones(answer.tokens.shape, bool),
    )
    logprobs = np.asarray(jax.nn.log_softmax(trained.logits(hidden)))
    said = answer.tokens > 0
    np.testing.assert_allclose(answer.logprobs[said], logprobs.max(-1)[said], atol=1e-3)
