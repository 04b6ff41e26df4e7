"""Models written as Hugging Face files are, bit for bit, what was read."""

import json

import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file

from cxrjax.errors import UserError
from cxrjax.models import LoRAConfig, apply_lora
from cxrjax.models.hf_export import hf_tensors, write_shards
from cxrjax.models.hf_import import make_model, open_checkpoint, read_parameters
from cxrjax.models.hf_layout import found_prefixes, published_prefixes
from tests.models.sizes import arrays, named

SIZES = named("normed")


@pytest.fixture
def written(tmp_path, write_hf):
    """`written(dtype) -> (tensors, model)` of the directory `theirs`."""

    def make(dtype="float32"):
        tensors = write_hf(tmp_path / "theirs", SIZES, dtype=dtype)
        files = open_checkpoint(tmp_path / "theirs")
        return tensors, make_model(SIZES, read_parameters(files, SIZES))

    return make


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_round_trip_is_bit_equal(written, tmp_path, dtype):
    tensors, model = written(dtype)
    write_shards(tmp_path, hf_tensors(model, SIZES, found_prefixes(tensors)))
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor)
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_large_models_become_shards_with_an_index(written, tmp_path):
    tensors, model = written()
    limit = 20_000
    write_shards(tmp_path, hf_tensors(model, SIZES, published_prefixes(SIZES)), limit)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) > 1 and shards[0].endswith(f"-of-{len(shards):05d}.safetensors")
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    for shard in shards:
        found = load_file(tmp_path / shard)
        assert {name for name, file in index["weight_map"].items() if file == shard} == set(found)
        assert len(found) == 1 or sum(tensor.nbytes for tensor in found.values()) <= limit
    again = read_parameters(open_checkpoint(tmp_path), SIZES)
    ours = arrays(model)
    for path, array in again.items():
        np.testing.assert_array_equal(array, ours[path])


def test_quantised_kernels_are_made_whole_and_adapters_have_no_place(written, tmp_path):
    from cxrjax.models.quantize import quantize_params

    tensors, model = written()
    graphdef, state = nnx.split(model)
    model = nnx.merge(graphdef, quantize_params(state, "int8"))
    write_shards(tmp_path, hf_tensors(model, SIZES, published_prefixes(SIZES), "float32"))
    name = "language_model.model.layers.2.mlp.up_proj.weight"
    found = load_file(tmp_path / "model.safetensors")[name]
    step = np.abs(tensors[name]).max(axis=1, keepdims=True) / 127
    assert (np.abs(found - tensors[name]) <= step).all()
    _, model = written()
    apply_lora(model, LoRAConfig(rank=2), nnx.Rngs(0))
    with pytest.raises(UserError, match=r"8 parameters.*merge its adapters first"):
        hf_tensors(model, SIZES, published_prefixes(SIZES))
