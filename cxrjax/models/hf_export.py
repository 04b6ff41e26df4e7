"""A model as Hugging Face's safetensors files, written tensor by tensor.

Source of the file format: https://github.com/huggingface/safetensors (README, "Format").
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from cxrjax.errors import UserError
from cxrjax.models.hf_import import INDEX_FILE, WEIGHTS_FILE
from cxrjax.models.hf_layout import tensor_rules, to_theirs, with_prefix
from cxrjax.models.partition import path_of
from cxrjax.models.presets import VLMConfig

MAX_SHARD_BYTES = 5 * 10**9
_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64"}


class LazyTensor(NamedTuple):
    """A tensor that is made when it is written.

    `shape` and `dtype` are those of what `make` returns, contiguous.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    make: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * jnp.dtype(self.dtype).itemsize


def write_safetensors(
    path: Path, tensors: Iterable[LazyTensor], metadata: Mapping[str, str] | None = None
) -> None:
    """One file; no more than one tensor is in memory at a time.

    The package's own `save_file` wants all tensors of a file at once, and copies them.
    """
    # As the package writes them: larger items first, so that everything is aligned, then by name.
    tensors = sorted(tensors, key=lambda t: (-jnp.dtype(t.dtype).itemsize, t.name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        header[tensor.name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    described = json.dumps(header, separators=(",", ":")).encode()
    described += b" " * (-len(described) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(described)))
        file.write(described)
        for tensor in tensors:
            array = tensor.make()
            assert array.shape == tensor.shape and array.dtype == jnp.dtype(tensor.dtype)
            # Files take no bfloat16 from NumPy, only bytes.
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def write_shards(
    directory: Path, tensors: Iterable[LazyTensor], max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """`model.safetensors`, or shards and their index where that would be larger than allowed."""
    shards: list[list[LazyTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    if len(shards) == 1:
        write_safetensors(directory / WEIGHTS_FILE, shards[0])
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(directory / name, shard)
        weight_map |= {tensor.name: name for tensor in shard}
    total = sum(tensor.nbytes for shard in shards for tensor in shard)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def hf_tensors(
    model: nnx.Module, config: VLMConfig, prefixes: Mapping[str, str], dtype: str | None = None
) -> list[LazyTensor]:
    """A model's parameters as a checkpoint's tensors, in the order of `tensor_rules`.

    Args:
        model: without adapters (`merge_lora`); quantised kernels are made whole.
        prefixes: how to call the parts (`published_prefixes`).
        dtype: of the tensors; None: each in its own, float32 for quantised ones.

    Raises:
        UserError: the model has parameters that a checkpoint has no place for, such as adapters.
    """
    _, state = nnx.split(model)
    arrays = {path_of(path): leaf.get_value() for path, leaf in nnx.to_flat_state(state)}
    rules = {rule.path: rule for rule in tensor_rules(config)}
    extra = sorted(arrays.keys() - rules.keys())
    if extra:
        raise UserError(
            f"the model has {len(extra)} parameters that Hugging Face's has no place for, such as "
            f"{extra[0]}; merge its adapters first (--to=merged)"
        )
    patch_size = 0 if config.vision is None else config.vision.patch_size
    tensors = []
    for path, rule in rules.items():
        array = arrays[path]
        own = "float32" if not isinstance(array, jax.Array) else str(array.dtype)
        kind = dtype or own
        shape = rule.their_shape(tuple(array.shape), patch_size)
        for layer, name in enumerate(rule.names(config)):

            def make(
                array: Any = array,
                layer: int | None = layer if rule.stacked else None,
                rule: Any = rule,
                kind: str = kind,
            ) -> np.ndarray:
                part = array if layer is None else jax.tree.map(lambda leaf: leaf[layer], array)
                return to_theirs(np.asarray(part.astype(kind)), rule.transform, patch_size)

            tensors.append(LazyTensor(with_prefix(name, prefixes), shape, kind, make))
    return tensors
