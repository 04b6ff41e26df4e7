"""Rules of sharding cover every parameter; a tiny model learns boxes in two places."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.experimental import topologies
from jax.sharding import PartitionSpec as P

from cxrjax.distributed import meshes
from cxrjax.distributed.meshes import named_leaves
from cxrjax.errors import UserError
from cxrjax.input_pipeline.batch import Batch, empty_batch
from cxrjax.models import PRESETS, VLM, LoRAConfig, apply_lora, partition, presets
from cxrjax.models.partition import parameter_shapes
from cxrjax.models.presets import DecoderConfig, VisionConfig, VLMConfig
from cxrjax.models.quantize import quantize_kernel
from cxrjax.training import step
from cxrjax.training.config_file import typed_config, validate
from cxrjax.training.coordinate_report import summarize
from cxrjax.training.loss import multitask_loss, read_coordinates
from cxrjax.training.optimizer import make_optimizer
from tests.papers.cases import data


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
    # Parameters cut for more devices than there are lie on all that there are.
    assert dict(_mesh(run_config, data=-1, fsdp=16).shape) == shape | {"data": 1, "fsdp": 8}
    with pytest.raises(UserError, match=r"fsdp=12 .* does not fill the 8 devices"):
        _mesh(run_config, data=-1, fsdp=12)
    with pytest.raises(UserError, match=r"replica=16 .* does not fill the 8 devices"):
        _mesh(run_config, data=-1, replica=16)
    mesh = _mesh(run_config, replica=2, data=2, fsdp=2)
    meshes.check_batch_divides(mesh, 16)
    with pytest.raises(UserError, match="12 images"):
        meshes.check_batch_divides(mesh, 12)
    # Of eight devices: as many micro-batches as asked, or as divide a device's share.
    for images, most, expected in ((128, 8, 8), (16, 8, 2), (8, 4, 1), (48, 4, 3), (64, 1, 1)):
        assert meshes.micro_batches(mesh, images, most) == expected


def test_pmap_has_the_data_axis_alone(run_config):
    assert _mesh(run_config, strategy="pmap").shape["data"] == 8
    with pytest.raises(UserError, match=r"fsdp=2 tensor=1: strategy 'pmap' .* only the data axis"):
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
    for name, value in data(__file__)["a_copy_of_the_model_lies_on_one_slice"].items():
        monkeypatch.setenv(name, value)
    slices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2", num_slices=2)
    run_config.mesh.update(slices=2, fsdp=2, tensor=2)
    mesh = meshes.make_mesh(typed_config(run_config).mesh, slices.devices)
    for replica, devices in enumerate(mesh.devices):
        assert {device.slice_index for device in devices.flat} == {replica}
    run_config.mesh.update(slices=1, data=2)
    with pytest.raises(UserError, match=r"mesh\.slices=1, and the devices are of 2 slices; set"):
        meshes.make_mesh(typed_config(run_config).mesh, slices.devices)
    # The four chips of a ring, in its order.
    run_config.mesh.update(data=1, fsdp=4, tensor=1)
    one = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    mesh = meshes.make_mesh(typed_config(run_config).mesh, one)
    ring = [device.coords[:2] for device in mesh.devices.flat]
    for here, there in zip(ring, ring[1:] + ring[:1], strict=True):
        assert abs(here[0] - there[0]) + abs(here[1] - there[1]) == 1


LOC_START, SIDE, STEPS, IMAGES = 4, 32, 900, 16
LAMBDA = 2.0
# Right and left lung of a frontal radiograph.
PLACES = np.array([[0.11, 0.15, 0.445, 0.85], [0.56, 0.15, 0.80, 0.85]])


def _model() -> VLM:
    vision = VisionConfig(image_size=SIDE, patch_size=8, width=64, depth=1, num_heads=2, mlp_dim=64)
    decoder = DecoderConfig(
        vocab_size=1040, width=64, depth=2, num_heads=2, num_kv_heads=1, head_dim=32, mlp_dim=128
    )
    return VLM(VLMConfig(vision, decoder, loc_token_start=LOC_START), rngs=nnx.Rngs(0))


def _batch(seed: int) -> Batch:
    """Bright boxes at one of the places, edges off by up to 0.06, on noise."""
    rng = np.random.default_rng(seed)
    boxes = PLACES[rng.integers(0, 2, IMAGES)] + rng.uniform(-0.06, 0.06, (IMAGES, 4))
    bins = np.floor(boxes * 1024).astype(np.int32)
    grid = (np.arange(SIDE) + 0.5) / SIDE
    inside = (grid >= boxes[:, :1]) & (grid < boxes[:, 2:3])
    inside = inside[:, None, :] & ((grid >= boxes[:, 1:2]) & (grid < boxes[:, 3:]))[:, :, None]
    pixels = 60 + 120 * inside + rng.normal(0, 20, inside.shape)
    batch = empty_batch(IMAGES, np.zeros((SIDE, SIDE, 3), np.uint8), 1, 1, 5, 1)
    batch.images[...] = np.clip(pixels, 0, 255)[..., None]
    batch.prefix_tokens[...], batch.prefix_mask[...] = 2, True
    batch.answer_tokens[:, 0, :4] = LOC_START + bins[:, [1, 0, 3, 2]]
    batch.answer_tokens[:, 0, 4], batch.answer_mask[...] = 1, True
    batch.coordinate_positions[...] = [1, 0, 3, 2]
    batch.target_boxes[:, 0, 0] = (bins + 0.5) / 1024
    batch.box_mask[...], batch.question_index[:, 0] = True, np.arange(IMAGES)
    return batch


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")  # it computes for longer than it compiles
def test_corners_stay_in_order_and_greedy_is_near_the_median():
    graphdef, state = nnx.split(_model())
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adam(optax.warmup_cosine_decay_schedule(0, 2e-3, 50, STEPS)),
    )

    @jax.jit
    def step(state, moments, batch):
        def loss(state):
            return multitask_loss(nnx.merge(graphdef, state), batch, {"lambda_box": LAMBDA})[0]

        updates, moments = optimizer.update(jax.grad(loss)(state), moments)
        return optax.apply_updates(state, updates), moments

    moments = optimizer.init(state)
    for number in range(STEPS):
        state, moments = step(state, moments, jax.tree.map(jnp.asarray, _batch(number)))

    read = jax.jit(lambda batch: read_coordinates(nnx.merge(graphdef, state), batch, "loc"))
    found, targets = [], []
    for seed in range(20):
        batch = _batch(10**6 + seed)
        found.append(jax.tree.map(lambda x: np.asarray(x)[:, 0, 0], read(batch)))
        targets.append(batch.target_boxes[:, 0, 0])
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    told = summarize(whole, np.concatenate(targets))
    for half in ("left_half", "right_half"):
        assert told[half]["n"] > 100
        assert told[half]["swapped_x"] == told[half]["swapped_y"] == 0
        assert min(told[half]["mass_within_0.05_where_right"]) > 0.85
    assert told["all"]["expected_iou"] > 0.85
    assert told["all"]["argmax_iou"] > told["all"]["median_iou"] - 0.03
