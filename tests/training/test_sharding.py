"""Rules cover every parameter, split what they say, and refuse what does not divide."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from cxrjax.errors import UserError
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora, partition
from cxrjax.training import sharding, step
from cxrjax.training.optimizer import make_optimizer
from cxrjax.training.paths import named_leaves


def _mesh(config, **sizes):
    config.mesh.update(sizes)
    return sharding.make_mesh(config.mesh)


def _abstract_model(preset):
    def make():
        model = VLM(PRESETS[preset], rngs=nnx.Rngs(0))
        targets = ("decoder/layers/.*_proj", "vision/layers/.*", "projector")
        apply_lora(model, LoRAConfig(rank=4, targets=targets), nnx.Rngs(1))
        model.decoder.embedder.add_loc_delta()
        return model

    return nnx.eval_shape(make)


@pytest.mark.parametrize("preset", ["tiny", "paligemma_3b_224"])
def test_rules_cover_every_parameter_and_moment(run_config, preset):
    """LoRA everywhere, trainable <loc> rows, full fine-tuning: nothing is left to chance."""
    mesh = _mesh(run_config, data=2, fsdp=2, tensor=2)
    _, trainable, _ = partition(_abstract_model(preset), (".*",))
    optimizer = make_optimizer(run_config.optimizer, 10)
    state = jax.eval_shape(lambda t: step.init_state(t, optimizer), trainable)
    specs = {k: v.spec for k, v in named_leaves(sharding.tree_shardings(mesh, state)).items()}
    assert specs["step"] == P()
    for name, spec in specs.items():
        if name.startswith("trainable/"):
            moments = [s for n, s in specs.items() if n.endswith("/mu/" + name[10:])]
            assert moments == [spec], name
    at = "trainable/decoder/layers/"
    assert specs[at + "attn/k_proj/kernel"][-1] != "tensor"
    assert specs[at + "mlp/up_proj/kernel"][-1] == "tensor"
    assert specs[at + "mlp/down_proj/kernel"][-2] == "tensor"
    assert specs["trainable/decoder/embedder/table"] == P("tensor", "fsdp")


def test_fsdp_takes_the_largest_dimension_that_divides_and_leaves_small_ones(run_config):
    mesh = _mesh(run_config, data=2, fsdp=4, tensor=1)
    tree = {
        "big": jnp.zeros((3, 512, 256)),
        "odd": jnp.zeros((3, 513, 256)),
        "none": jnp.zeros((301, 303)),
        "layers_first": jnp.zeros((4096, 7, 9)),
        "small": jnp.zeros((8, 8)),
    }
    found = sharding.tree_shardings(mesh, tree, rules=((".*", None),))
    assert {name: s.spec for name, s in found.items()} == {
        "big": P(None, "fsdp", None),
        "odd": P(None, None, "fsdp"),
        "none": P(None, None),
        "layers_first": P(None, None, None),
        "small": P(None, None),
    }


def test_a_parameter_without_a_rule_is_an_error(run_config):
    with pytest.raises(UserError, match="covers the parameter head/extra"):
        sharding.tree_shardings(_mesh(run_config), {"head": {"extra": jnp.zeros((2, 2))}})


def test_a_dimension_that_tensor_does_not_divide_is_an_error(run_config):
    mesh = _mesh(run_config, tensor=8)
    with pytest.raises(UserError, match=r"mesh\.tensor=8 does not divide dimension -1"):
        sharding.tree_shardings(mesh, {"attn": {"q_proj": {"kernel": jnp.zeros((8, 12))}}})


def test_mesh_must_fill_the_devices(run_config):
    assert dict(_mesh(run_config, data=-1, fsdp=4).shape) == {"data": 2, "fsdp": 4, "tensor": 1}
    with pytest.raises(UserError, match="8 devices"):
        _mesh(run_config, data=3, fsdp=1)


def test_batch_must_divide(run_config):
    mesh = _mesh(run_config, data=4, fsdp=2)
    sharding.check_batch_divides(mesh, 16, 2)
    with pytest.raises(UserError, match="12 images"):
        sharding.check_batch_divides(mesh, 12, 1)
