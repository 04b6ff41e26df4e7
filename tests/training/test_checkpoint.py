"""Models on disk: written, read back, and refused where they are not what is asked for."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import ndimage

from cxrjax.distributed import meshes
from cxrjax.errors import UserError
from cxrjax.models import PRESETS, partition
from cxrjax.training import checkpoint, step
from cxrjax.training.base_model import base_sha256, save_base
from cxrjax.training.config_file import typed_config
from cxrjax.training.optimizer import make_optimizer
from cxrjax.training.store import CheckpointStore, flat_arrays
from tests.papers.cases import cases
from tests.training.conftest import SMALL


@pytest.fixture
def config(run_config, monkeypatch):
    monkeypatch.setitem(PRESETS, "small", SMALL)
    run_config.model.preset = "small"
    run_config.model.init = "random"
    run_config.data.prompt = "detect"
    run_config.data.answer_buckets = (8, 16)
    return run_config


_made = []


@pytest.fixture
def save(config, tmp_path):
    """`save(name, model, **options)`: the base directory of a model."""
    tokenizer = tmp_path / "some.model"
    tokenizer.write_bytes(b"pieces")

    def write(name, model, **options):
        save_base(tmp_path / name, model, typed_config(config), tokenizer, **options)
        return tmp_path / name

    return write


@pytest.fixture
def base(config, save):
    """A base directory, and the model in it."""
    if not _made:
        _made.append(_build(config)[0])
    return save("base", _made[0], notes={"seeds": [1]}), _made[0]


def _build(config, mesh=None):
    return checkpoint.build_model(typed_config(config), mesh)


def _arrays(model):
    return {name: np.asarray(leaf) for name, leaf in flat_arrays(nnx.state(model)).items()}


def _with_lora(config, directory):
    config.model.init = "checkpoint"
    config.model.init_from = str(directory)
    config.lora.rank, config.lora.alpha = 2, 4.0
    config.lora.loc_rows = True
    config.trainable = ("/lora/", "loc_delta")
    return config


def _save_run(workdir, config, model, reference, scores):
    """Checkpoints of a run at steps 1, 2, ...: every trained value is the step's number."""
    workdir.mkdir(exist_ok=True)
    (workdir / "config.json").write_text(json.dumps(typed_config(config).to_json()))
    (workdir / "tokenizer.model").write_bytes(b"pieces")
    _, trainable, _ = partition(model, config.trainable)
    store = CheckpointStore(workdir, "vqa/f1")
    optimizer = make_optimizer(typed_config(config).optimizer, 10)
    for number, score in enumerate(scores, start=1):
        trained = jax.tree.map(lambda x, n=number: jnp.full_like(x, n), trainable)
        state = step.init_state(trained, optimizer)
        store.save(number, state, {"step": number}, reference, {"vqa/f1": score})
    store.close()


def test_base_round_trip(base):
    directory, model = base
    loaded = checkpoint.load_model(directory)
    ours, theirs = _arrays(loaded.model), _arrays(model)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert loaded.tokenizer_path.read_bytes() == b"pieces"
    assert loaded.config.data.prompt == "detect"
    assert loaded.config.data.answer_buckets == (8, 16)
    described = json.loads((directory / "model.json").read_text())
    assert described["preset"] == "small" and described["notes"] == {"seeds": [1]}
    assert described["parameters"] == sum(x.size for x in ours.values())


@pytest.fixture
def mesh(config, monkeypatch):
    """Eight devices, every axis of which cuts something."""
    monkeypatch.setattr(meshes, "_FSDP_MIN_SIZE", 16)
    config.mesh.update(data=2, fsdp=2, tensor=2)
    return meshes.make_mesh(typed_config(config).mesh)


def _assert_spread(model, whole, mesh):
    """Every device has its own part of the arrays of a whole model."""
    there = flat_arrays(nnx.state(model))
    wanted = flat_arrays(meshes.tree_shardings(mesh, nnx.state(whole)))
    for name, array in _arrays(whole).items():
        assert there[name].sharding.is_equivalent_to(wanted[name], array.ndim), name
        np.testing.assert_array_equal(np.asarray(there[name]), array, err_msg=name)
    for name in ("decoder.embedder.table", "decoder.layers.attn.q_proj.kernel"):
        assert there[name].addressable_shards[0].data.size * 4 == there[name].size


def test_every_device_reads_or_draws_its_own_part(base, config, mesh, tmp_path):
    alone, alone_reference = _build(config)
    model, reference = _build(config, mesh)
    assert reference == alone_reference
    _assert_spread(model, alone, mesh)
    directory, model = base
    run, reference = _build(_with_lora(config, directory), mesh)
    _save_run(tmp_path / "run", config, run, reference, [0.5])
    for found in (directory, tmp_path / "run"):
        _assert_spread(checkpoint.load_model(found, mesh=mesh).model, model, mesh)


def test_base_in_bfloat16_takes_half_the_room_and_is_read_as_configured(base, save):
    _, model = base
    loaded = _arrays(checkpoint.load_model(save("half", model, dtype="bfloat16")).model)
    rounded = flat_arrays(step.cast_params(nnx.state(model), "bfloat16"))
    for name in loaded:
        assert loaded[name].dtype == np.float32
        np.testing.assert_array_equal(loaded[name], np.asarray(rounded[name], np.float32))


def test_a_new_decoder_on_the_tower_of_another_model(base, config, monkeypatch):
    directory, model = base
    config.training.seed += 1
    config.model.tower_from = str(directory)
    ours, theirs = _arrays(_build(config)[0]), _arrays(model)
    same = {name for name in ours if np.array_equal(ours[name], theirs[name])}
    assert {name for name in ours if name.startswith("vision.")} <= same
    assert "decoder.embedder.table" not in same
    wider = dataclasses.replace(SMALL.vision, width=32)
    monkeypatch.setitem(PRESETS, "small", dataclasses.replace(SMALL, vision=wider))
    theirs = checkpoint.LoadedModel(model, typed_config(config), "")
    monkeypatch.setattr(checkpoint, "load_model", lambda _, mesh: theirs)
    with pytest.raises(UserError, match=r"tower_from=.*the configured preset's is"):
        _build(config)


def test_a_run_starts_from_its_base_with_adapters_that_change_nothing(base, config):
    directory, base_model = base
    model, reference = _build(_with_lora(config, directory))
    assert reference["kind"] == "checkpoint"
    assert reference["sha256"] == base_sha256(directory)
    ours, theirs = _arrays(model), _arrays(base_model)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    added = ours.keys() - theirs.keys()
    assert {name.rsplit(".", 1)[1] for name in added} == {"a", "b", "loc_delta"}
    assert not any(ours[name].any() for name in added if not name.endswith(".a"))


def test_workdir_gives_the_best_checkpoint_on_its_base(base, config, tmp_path):
    directory, base_model = base
    model, reference = _build(_with_lora(config, directory))
    _save_run(tmp_path / "run", config, model, reference, scores=(0.2, 0.6, None, 0.4))
    loaded = checkpoint.load_model(tmp_path / "run")
    found, frozen = _arrays(loaded.model), _arrays(base_model)
    assert found["decoder.layers.attn.q_proj.lora.b"].max() == 2
    assert found["decoder.embedder.loc_delta"].min() == 2
    assert all(np.array_equal(found[name], frozen[name]) for name in frozen)
    assert loaded.tokenizer_path == tmp_path / "run/tokenizer.model"
    last = _arrays(checkpoint.load_model(tmp_path / "run", step=4).model)
    assert last["decoder.embedder.loc_delta"].min() == 4
    with pytest.raises(UserError, match="no checkpoint of step 3"):
        checkpoint.load_model(tmp_path / "run", step=3)


def test_workdir_of_a_run_from_random_parameters(config, tmp_path):
    config.trainable = ("decoder/embedder/table",)
    model, reference = _build(config)
    _save_run(tmp_path / "run", config, model, reference, scores=(None,))
    found = _arrays(checkpoint.load_model(tmp_path / "run").model)
    assert (found["decoder.embedder.table"] == 1).all()
    assert np.array_equal(found["projector.kernel"], _arrays(model)["projector.kernel"])


def test_a_changed_base_is_refused(base, config, tmp_path):
    directory, _ = base
    model, reference = _build(_with_lora(config, directory))
    _save_run(tmp_path / "run", config, model, reference, scores=(0.2,))
    described = json.loads((directory / "model.json").read_text())
    (directory / "model.json").write_text(json.dumps({**described, "prompt": "vqa"}))
    with pytest.raises(UserError, match=r"model\.json' is not what was written"):
        checkpoint.load_model(tmp_path / "run")
    (directory / "checksums.json").unlink()  # as of before there were any
    with pytest.raises(UserError, match="put the same base back"):
        checkpoint.load_model(tmp_path / "run")


def test_a_base_goes_on_with_larger_images(base, config, monkeypatch):
    directory, model = base
    config = _with_lora(config, directory)
    vision = dataclasses.replace(SMALL.vision, image_size=2 * SMALL.vision.image_size)
    monkeypatch.setitem(PRESETS, "larger", dataclasses.replace(SMALL, vision=vision))
    config.model.preset = "larger"
    found = _build(config)[0]
    assert found.config.vision == vision
    ours, theirs = _arrays(found), _arrays(model)
    name = "vision.position_embed"
    assert all(np.array_equal(ours[key], theirs[key]) for key in theirs if key != name)
    # Row by column, as SciPy interpolates between the middles of patches.
    side = vision.image_size // vision.patch_size // 2
    grid = theirs[name].reshape(side, side, -1)
    wanted = ndimage.zoom(grid, (2, 2, 1), order=1, mode="nearest", grid_mode=True)
    np.testing.assert_allclose(ours[name], wanted.reshape(4 * side**2, -1), atol=1e-6)


def test_a_base_says_how_its_boxes_are_read(base, config, save):
    config.decoding.boxes = "median"
    median = save("median", base[1])
    assert checkpoint.load_model(median).config.decoding.boxes == "median"
    # Bases of before the key were read greedily.
    described = json.loads((median / "model.json").read_text())
    del described["boxes"]
    (median / "model.json").write_text(json.dumps(described))
    (median / "checksums.json").unlink()
    assert checkpoint.load_model(median).config.decoding.boxes == "greedy"


def test_bases_of_other_presets_and_shapes_are_refused(base, config, monkeypatch):
    config = _with_lora(config, base[0])
    config.model.preset = "tiny"
    with pytest.raises(UserError, match=r"is of preset 'small', model\.preset is 'tiny'"):
        _build(config)
    wider = dataclasses.replace(SMALL.decoder, mlp_dim=48)
    monkeypatch.setitem(PRESETS, "small", dataclasses.replace(SMALL, decoder=wider))
    with pytest.raises(UserError, match=r"down_proj\.kernel is \(2, 32, 16\) there and"):
        checkpoint.load_model(base[0])


@cases("change, said")
def test_absent_weights_are_told_in_a_line_with_the_config_s_hint(config, change, said):
    config.missing_data_help = "Put the weights there, or use :demo"
    config.model.update(change)
    with pytest.raises(UserError) as caught:
        _build(config)
    assert said in str(caught.value)
    assert "preset" in change or str(caught.value).endswith("or use :demo")


def test_a_base_is_not_overwritten_and_holds_no_adapters(base, config, save, tmp_path):
    directory, model = base
    with pytest.raises(UserError, match="already"):
        save("base", model)
    adapted, _ = _build(_with_lora(config, directory))
    with pytest.raises(UserError, match="absent in the configured model"):
        save("new", adapted)
    assert not (tmp_path / "new").exists()


def test_directories_without_a_model(tmp_path, config):
    with pytest.raises(UserError, match="no model here"):
        checkpoint.load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(typed_config(config).to_json()))
    with pytest.raises(UserError, match="no checkpoint yet"):
        checkpoint.load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        checkpoint.load_model(tmp_path)
