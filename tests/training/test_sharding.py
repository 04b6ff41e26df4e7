"""Rules cover every parameter, split what they say, and refuse what does not divide."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.experimental import topologies
from jax.sharding import PartitionSpec as P

from cxrjax.distributed import meshes
from cxrjax.distributed.meshes import named_leaves
from cxrjax.errors import UserError
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora, partition, presets
from cxrjax.models.layers import BoxHead
from cxrjax.models.partition import parameter_shapes
from cxrjax.models.quantize import quantize_kernel
from cxrjax.training import step
from cxrjax.training.config_file import typed_config, validate
from cxrjax.training.step import make_optimizer


def _mesh(config, **sizes):
    config.mesh.update(sizes)
    return meshes.make_mesh(typed_config(config).mesh)


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
    optimizer = make_optimizer(typed_config(run_config).optimizer, 10)
    state = jax.eval_shape(lambda t: step.init_state(t, optimizer), trainable)
    specs = {k: v.spec for k, v in named_leaves(meshes.tree_shardings(mesh, state)).items()}
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
    expected = {
        (3, 512, 256): P(None, "fsdp", None),
        (3, 513, 256): P(None, None, "fsdp"),
        (301, 303): P(None, None),
        (4096, 7, 9): P(None, None, None),  # layers first
        (8, 8): P(None, None),
    }
    tree = {str(shape): jax.ShapeDtypeStruct(shape, jnp.float32) for shape in expected}
    found = meshes.tree_shardings(mesh, tree, rules=((".*", None),))
    assert {s: found[str(s)].spec for s in expected} == expected


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ({"head": {"extra": jnp.zeros((2, 2))}}, "covers the parameter head/extra"),
        (
            {"attn": {"q_proj": {"kernel": jnp.zeros((8, 12))}}},
            r"mesh\.tensor=8 does not divide dimension -1",
        ),
    ],
)
def test_a_parameter_without_a_rule_or_that_tensor_does_not_divide(run_config, tree, told):
    with pytest.raises(UserError, match=told):
        meshes.tree_shardings(_mesh(run_config, tensor=8), tree)


def test_scales_of_row_blocks_that_tensor_does_not_divide_stay_whole(run_config):
    """SigLIP's 4,304 rows are 68 blocks of nf4: eight devices split the codes alone."""
    kernel = quantize_kernel(jnp.ones((4304, 64)), "nf4")
    assert kernel.scale.shape == (68, 64)
    found = meshes.tree_shardings(
        _mesh(run_config, tensor=8), {"vision": {"layers": {"fc2": {"kernel": kernel}}}}
    )
    spread = found["vision"]["layers"]["fc2"]["kernel"]
    assert (spread.codes.spec, spread.scale.spec) == (P("tensor", None), P(None, None))


def test_every_rule_is_for_some_parameter():
    """A rule that no published model needs, or that one before it hides, is a mistake."""

    def make(sizes):
        model = VLM(sizes, rngs=nnx.Rngs(0))
        targets = ["decoder/.*_proj"]
        if sizes.vision:
            targets += ["projector", *["vision/layers/.*"][: sizes.vision.depth]]
        apply_lora(model, LoRAConfig(rank=4, targets=targets, use_dora=True), nnx.Rngs(1))
        if sizes.loc_token_start >= 0:
            model.decoder.embedder.add_loc_delta()
            model.box_head = BoxHead(sizes.decoder.width, nnx.Rngs(2))
        return model

    models = (nnx.eval_shape(functools.partial(make, sizes)) for sizes in PRESETS.values())
    paths = {path for model in models for path in parameter_shapes(model)}
    used = {next(r for r, _ in meshes.TENSOR_RULES if re.search(r, path)) for path in paths}
    assert used == {rule for rule, _ in meshes.TENSOR_RULES}


def test_mesh_must_fill_the_devices_and_divide_the_batch(run_config):
    shape = dict(_mesh(run_config, data=-1, fsdp=4).shape)
    assert shape == {"replica": 1, "data": 2, "fsdp": 4, "tensor": 1}
    with pytest.raises(UserError, match="replica=1 data=3 fsdp=1 tensor=1 does not fill the 8 dev"):
        _mesh(run_config, data=3, fsdp=1)
    with pytest.raises(UserError, match=r"replica=16 .* does not fill the 8 devices"):
        _mesh(run_config, data=-1, replica=16)
    mesh = _mesh(run_config, replica=2, data=2, fsdp=2)
    meshes.check_batch_divides(mesh, 16, 2)
    with pytest.raises(UserError, match="12 images"):
        meshes.check_batch_divides(mesh, 12, 1)


def test_pmap_has_the_data_axis_alone(run_config):
    assert _mesh(run_config, strategy="pmap").shape["data"] == 8
    with pytest.raises(UserError, match=r"fsdp=2 tensor=1: strategy 'pmap' .* data axis alone"):
        _mesh(run_config, fsdp=2)
    run_config.mesh.strategy = "pjit"
    with pytest.raises(UserError, match=r"mesh\.strategy='pjit': expected one of jit, pmap"):
        validate(typed_config(run_config))


def test_heads_must_divide(run_config):
    """PaliGemma has 8 query heads and one of keys, its tower 16."""
    sizes = PRESETS["paligemma_3b_224"]
    mesh = _mesh(run_config, tensor=8)
    presets.check_heads_divide(mesh.shape["tensor"], sizes)
    assert meshes.cache_sharding(mesh, sizes.decoder.num_kv_heads).spec[1] is None
    assert meshes.cache_sharding(mesh, 8).spec[1] == "tensor"
    more = dataclasses.replace(sizes, vision=dataclasses.replace(sizes.vision, num_heads=12))
    with pytest.raises(UserError, match=r"tensor=8 does not divide the 12 .* of the vision tower"):
        presets.check_heads_divide(mesh.shape["tensor"], more)
    with pytest.raises(UserError, match=r"tensor=8 does not divide the 4 attention heads of the d"):
        presets.check_heads_divide(mesh.shape["tensor"], PRESETS["tiny"])


@pytest.mark.slow
def test_a_copy_of_the_model_lies_on_one_slice(run_config, monkeypatch):
    """As libtpu describes two slices of four chips that are not there."""
    pytest.importorskip("libtpu")
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }.items():
        monkeypatch.setenv(name, value)
    slices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2", num_slices=2)
    run_config.mesh.update(replica=2, fsdp=2, tensor=2)
    mesh = meshes.make_mesh(typed_config(run_config).mesh, slices.devices)
    for replica, devices in enumerate(mesh.devices):
        assert {device.slice_index for device in devices.flat} == {replica}
    run_config.mesh.update(replica=1, data=2)
    with pytest.raises(UserError, match="replica=1 is not a multiple of the 2 slices"):
        meshes.make_mesh(typed_config(run_config).mesh, slices.devices)
    # The four chips of a ring, in its order.
    run_config.mesh.update(data=1, fsdp=4, tensor=1)
    one = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    mesh = meshes.make_mesh(typed_config(run_config).mesh, one)
    ring = [device.coords[:2] for device in mesh.devices.flat]
    for here, there in zip(ring, ring[1:] + ring[:1], strict=True):
        assert abs(here[0] - there[0]) + abs(here[1] - there[1]) == 1
