"""Hugging Face files read: every number in its place, sharded or not, and bad ones refused."""

import dataclasses
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cxrjax.errors import UserError
from cxrjax.models.hf_config import read_config
from cxrjax.models.hf_import import open_checkpoint, parameters_of_stream, read_parameters
from cxrjax.models.hf_layout import vlm_config
from tests.models.sizes import PLAIN, changed
from tests.papers.cases import cases, data

SIZES = changed(PLAIN, decoder={"vocab_size": 1040})
_TEXT, _VISION = "language_model.model.", "vision_tower.vision_model."
_HEAD = "language_model.lm_head.weight"


@pytest.fixture
def read(tmp_path, write_hf):
    """`read(sharding_of=None, **written) -> (tensors, arrays)`."""

    def both(sharding_of=None, **written):
        tensors = write_hf(tmp_path, SIZES, **written)
        return tensors, read_parameters(open_checkpoint(tmp_path), SIZES, None, sharding_of)

    return both


def test_every_tensor_is_in_its_place(read):
    tensors, arrays = read(shards=3)
    for layer in range(3):
        name = f"{_TEXT}layers.{layer}.self_attn.q_proj.weight"
        found = arrays["decoder/layers/attn/q_proj/kernel"][layer]
        np.testing.assert_array_equal(found, tensors[name].T)
        name = f"{_TEXT}layers.{layer}.post_attention_layernorm.weight"
        np.testing.assert_array_equal(arrays["decoder/layers/mlp_norm/scale"][layer], tensors[name])
    name = f"{_VISION}encoder.layers.1.mlp.fc1.bias"
    np.testing.assert_array_equal(arrays["vision/layers/mlp/fc1/bias"][1], tensors[name])
    np.testing.assert_array_equal(
        arrays["decoder/embedder/table"], tensors[f"{_TEXT}embed_tokens.weight"]
    )
    # A patch of pixels [row, column, colour], flattened, against the convolution's weights.
    patch = np.random.default_rng(1).normal(size=(4, 4, 3)).astype(np.float32)
    weight = tensors[f"{_VISION}embeddings.patch_embedding.weight"]
    expected = np.einsum("rck,okrc->o", patch, weight)
    ours = patch.reshape(-1) @ np.asarray(arrays["vision/patch_embed/kernel"])
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    count = sum(tensor.size for tensor in tensors.values())
    assert count == sum(array.size for array in arrays.values())


def test_devices_read_their_own_part_alone(read, monkeypatch):
    from cxrjax.models import hf_import

    whole = read()[1]
    largest: dict[str, int] = {}
    plain = hf_import.SafetensorsFiles.mapped

    def recorded(self, name, index=()):
        part = plain(self, name, index)
        largest[name] = max(largest.get(name, 0), part.size)
        return part

    monkeypatch.setattr(hf_import.SafetensorsFiles, "mapped", recorded)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))

    def sharding_of(path, shape):
        axes = [None] * (len(shape) - 2) + ["x", "y"]
        axes = [a if n % 2 == 0 else None for a, n in zip(axes[-len(shape) :], shape, strict=True)]
        return NamedSharding(mesh, PartitionSpec(*axes))

    parts = read(sharding_of=sharding_of)[1]
    for path, array in whole.items():
        np.testing.assert_array_equal(parts[path], array)
    assert largest["text.layers.1.mlp.up_proj.weight"] == 24 * 8 // 4
    assert largest["text.embed_tokens.weight"] == 1040 * 8 // 4


@cases("stored, asked, kept")
def test_dtypes_are_kept_or_converted_on_the_way(tmp_path, write_hf, stored, asked, kept):
    tensors = write_hf(tmp_path, SIZES, dtype=stored)
    arrays = read_parameters(open_checkpoint(tmp_path), SIZES, asked)
    assert {str(array.dtype) for array in arrays.values()} == {kept}
    expected = jnp.asarray(tensors[f"{_TEXT}embed_tokens.weight"], kept)
    np.testing.assert_array_equal(arrays["decoder/embedder/table"], expected)


def test_a_stream_of_tensors_gives_the_same(read):
    tensors, arrays = read()
    found = parameters_of_stream(reversed(tensors.items()), SIZES)
    assert found.keys() == arrays.keys()
    for path, array in arrays.items():
        np.testing.assert_array_equal(found[path], array)
    one = f"{_TEXT}norm.weight"
    with pytest.raises(
        UserError, match=r"1 tensors missing \(language_model\.model\.norm\.weight\)"
    ):
        parameters_of_stream(((k, v) for k, v in tensors.items() if k != one), SIZES)
    head = tensors[f"{_TEXT}embed_tokens.weight"]
    parameters_of_stream({**tensors, "lm_head.weight": head}.items(), SIZES)
    with pytest.raises(UserError, match=r"lm_head\.weight is not equal"):
        parameters_of_stream({"lm_head.weight": head + 1, **tensors}.items(), SIZES)


_REFUSED = json.loads(Path(__file__).with_name("refused_files.json").read_text())
_UP, _NORM = (f"{_TEXT}{name}.weight" for name in ("layers.{}.mlp.up_proj", "norm"))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda tensors: {_UP.format(3): tensors.pop(_UP.format(2))},
            r"1 tensors without a place \(language_model\.model\.layers\.3\.mlp\.up_proj\.weight\)"
            r" and 1 tensors missing \(language_model\.model\.layers\.2\.mlp\.up_proj\.weight\)",
        ),
        (
            lambda tensors: {_NORM: tensors[_NORM][:7]},
            r"norm\.weight has shape \(7,\), expected \(8,\)",
        ),
        (lambda tensors: {_NORM: tensors[_NORM].astype(np.int32)}, "norm.weight is of dtype I32"),
        (
            lambda tensors: {_HEAD: tensors[f"{_TEXT}embed_tokens.weight"] + 1},
            "lm_head.weight is not equal to",
        ),
        (lambda tensors: {"model.norm.weight": tensors[_NORM]}, "is the same tensor as"),
    ],
    ids=["names", "shape", "dtype", "untied", "twice"],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(read, edit, said):
    with pytest.raises(UserError, match=said) as caught:
        read(edit=lambda tensors: tensors.update(edit(tensors)))
    assert "\n" not in str(caught.value)


def test_output_layers_and_single_files_are_taken_as_transformers_does(read, tmp_path, write_hf):
    def tied(tensors):
        tensors[_HEAD] = tensors[f"{_TEXT}embed_tokens.weight"].copy()

    assert read(edit=tied)[1].keys() == read()[1].keys()
    # Which leaves the index there as it saves in one file what were shards.
    write_hf(tmp_path, SIZES, shards=2)
    for shard in tmp_path.glob("model-*.safetensors"):
        shard.unlink()
    tensors = write_hf(tmp_path, SIZES)
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert len(open_checkpoint(tmp_path).tensors) == len(tensors)


def test_files_that_are_not_all_there(tmp_path, write_hf):
    write_hf(tmp_path / "a", SIZES, shards=3)
    (tmp_path / "a/model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-00002-of-00003\.safetensors of 3 shards lacking"):
        open_checkpoint(tmp_path / "a")
    write_hf(tmp_path / "b", SIZES)
    path = tmp_path / "b/model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="not a whole safetensors file"):
        open_checkpoint(tmp_path / "b")
    path.unlink()
    with pytest.raises(UserError, match="no weights"):
        open_checkpoint(tmp_path / "b")
    (tmp_path / "b/pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(UserError, match=r"pickle.*save_pretrained"):
        open_checkpoint(tmp_path / "b")


@pytest.mark.parametrize(("content", "said"), _REFUSED["configurations"])
def test_configurations_of_others_are_refused(tmp_path, content, said):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=said) as caught:
        read_config(tmp_path)
    assert "config.json" in str(caught.value) and "\n" not in str(caught.value)


_SMALL = data(__file__)["small"]


@pytest.mark.parametrize(("changed", "said"), _REFUSED["sizes"])
def test_sizes_that_make_no_model_are_refused(tmp_path, changed, said):
    (tmp_path / "config.json").write_text(json.dumps(_SMALL))
    assert vlm_config(read_config(tmp_path), "c.json", 4).vision.pool == 4
    (tmp_path / "config.json").write_text(json.dumps({**_SMALL, **changed}))
    with pytest.raises(UserError, match=rf"c\.json: its sizes make no model \(.*{said}"):
        vlm_config(read_config(tmp_path), "c.json", 4)


@pytest.mark.parametrize(("name", "said"), _REFUSED["shards"])
def test_shards_are_files_beside_the_index(tmp_path, write_hf, name, said):
    write_hf(tmp_path, SIZES, shards=2)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero").symlink_to("/dev/zero")
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["more.weight"] = name
    index.write_text(json.dumps(content))
    with pytest.raises(UserError, match=said) as caught:
        open_checkpoint(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("weight_map", [None, [], {}, "x", {"a": ["b"]}])
def test_an_index_without_a_map_of_names_is_refused(tmp_path, write_hf, weight_map):
    write_hf(tmp_path, SIZES, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(UserError, match=r"index\.json: (expected a JSON object|the name is empty)"):
        open_checkpoint(tmp_path)


def test_sizes_and_changed_files_are_refused_before_anything_is_made(tmp_path, write_hf):
    write_hf(tmp_path, SIZES)
    decoder = dataclasses.replace(SIZES.decoder, width=2**16, vocab_size=2**22, mlp_dim=2**20)
    for sizes in (
        dataclasses.replace(SIZES, decoder=decoder),
        dataclasses.replace(SIZES, vision=dataclasses.replace(SIZES.vision, image_size=2**13)),
    ):
        with pytest.raises(UserError, match="has shape"):
            read_parameters(open_checkpoint(tmp_path), sizes)
    write_hf(tmp_path, SIZES)
    files = open_checkpoint(tmp_path)
    path = next(tmp_path.glob("*.safetensors"))
    content = path.read_bytes()
    for damaged in (content[:-4], content[:-4] + b"\x00\x00\x80\x3f"):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="has changed since it was opened"):
            read_parameters(files, SIZES)
