"""Parameters from Hugging Face's safetensors files, read straight into (sharded) device arrays.

Each parameter is read alone, of stacked layers each tensor into its place, straight from the mapped
file, and of a tensor only the part that a device holds. So the host never has two copies of the
weights: on a CPU, where host and device are one, reading needs the weights and what the system maps
of the tensor being read.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import read_json_object, reading
from cxrjax.models import hf_layout
from cxrjax.models.hf_config import CONFIG_FILE, MOST_CONFIG_BYTES
from cxrjax.models.partition import parameter_shapes, path_of
from cxrjax.models.presets import VLMConfig
from cxrjax.models.vlm import VLM
from cxrjax.paths import local_copy, to_path
from cxrjax.untrusted.foreign_files import MIB, open_foreign
from cxrjax.untrusted.names import file_name
from cxrjax.untrusted.weights import Stored, read_safetensors_header

INDEX_FILE, WEIGHTS_FILE = "model.safetensors.index.json", "model.safetensors"
_MOST_INDEX_BYTES = 8 * MIB
_MOST_SHARDS = 10_000
_FETCH = "fetch the checkpoint again, all of its files"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_DTYPES = {"F32": np.dtype("<f4"), "BF16": np.dtype(jnp.bfloat16), "F16": np.dtype("<f2")}
_LM_HEAD, _EMBEDDING = "lm_head.weight", "text.embed_tokens.weight"

# Rows of a kernel that are transposed at a time: a line of the cache for each, of sixteen numbers.
_TRANSPOSED_ROWS = 16
# Rows of the embedding compared at a time with an output layer that should equal it.
_ROWS = 8192

ShardingOf = Callable[[str, tuple[int, ...]], jax.sharding.Sharding]


class SafetensorsFiles:
    """The tensors of one or more safetensors files. Opening reads names and shapes alone.

    Args:
        paths: of the files.
        rename: from the name in a file to the name to find the tensor by.

    Attributes:
        tensors: by that name.
        files: of each tensor, by the same name.
        metadata: free texts of the files.

    Raises:
        UserError: a file that is not there, is cut short or no safetensors file; a tensor in two
            files, or in a dtype other than float32, bfloat16 and float16.
    """

    def __init__(
        self, paths: Sequence[Path], rename: Callable[[str], str] = hf_layout.canonical_name
    ):
        self.tensors: dict[str, Stored] = {}
        self.files: dict[str, Path] = {}
        self.metadata: dict[str, str] = {}
        self._states: dict[Path, tuple[int, ...]] = {}
        for path in paths:
            with reading(path, hint=_FETCH):
                path = local_copy(path)
                self._states[path] = _state(os.stat(path))
                tensors, metadata = read_safetensors_header(path)
            self.metadata |= metadata
            for name, found in tensors.items():
                if found.dtype not in _DTYPES:
                    raise UserError(
                        f"{path}: {name} is of dtype {found.dtype}, expected one of "
                        f"{', '.join(_DTYPES)}; save the model again in bfloat16 or float32"
                    )
                key = rename(name)
                if key in self.tensors:
                    raise UserError(
                        f"{path}: {name} is the same tensor as {self.tensors[key].name} of "
                        f"{self.files[key]}; expected each one once"
                    )
                self.tensors[key], self.files[key] = found, path

    def leave_out(self, names: Iterable[str]) -> None:
        """Forgets these tensors."""
        for name in names:
            del self.tensors[name], self.files[name]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """A tensor, or the part of it that `index` names, in its own dtype and own memory.

        Raises:
            UserError: the file is no longer what it was.
        """
        return np.array(self.mapped(name, index))

    def mapped(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """`read` without a copy: the file's pages, which are to be let go of soon.

        What the system has mapped of a file counts as this process's memory.
        """
        path, stored = self.files[name], self.tensors[name]
        try:
            with open_foreign(path) as file:
                if _state(os.fstat(file.fileno())) != self._states[path]:
                    raise ForeignError("it has changed since it was opened")
                kind = _DTYPES[stored.dtype]
                nbytes = math.prod(stored.shape) * kind.itemsize
                if not nbytes:
                    return np.empty(stored.shape, kind)[index or ...]
                pages = np.memmap(file, np.uint8, "r", stored.start, (nbytes,))
        except (ForeignError, OSError, ValueError) as error:
            raise UserError(f"{path}: {stored.name} cannot be read ({error}); {_FETCH}") from None
        return pages.view(np.ndarray).view(kind).reshape(stored.shape)[index or ...]


def _state(found: os.stat_result) -> tuple[int, ...]:
    """The identity of a file and of what is in it."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def open_checkpoint(directory: str | Path) -> SafetensorsFiles:
    """The weights of a Hugging Face directory.

    Raises:
        UserError: as `SafetensorsFiles`; a directory without safetensors files, or whose index
            names a shard or a tensor that is not there.
    """
    directory = to_path(directory)
    # First, as in transformers, which leaves the index of older shards lying there.
    if (directory / WEIGHTS_FILE).exists():
        return SafetensorsFiles([directory / WEIGHTS_FILE])
    index_file = directory / INDEX_FILE
    if index_file.is_file():
        return _open_shards(index_file)
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles:
        config = directory / CONFIG_FILE
        sees = not config.is_file() or "vision_config" in read_json_object(
            config, MOST_CONFIG_BYTES
        )
        kind = "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"
        raise UserError(
            f"{directory}: weights as pickle ({shortened(pickles)}), which can run code when read; "
            "expected safetensors. Where you trust the files: python -c 'import transformers as t; "
            f't.{kind}.from_pretrained("{directory}").save_pretrained("{directory}-safetensors")\''
        )
    raise UserError(f"{directory}: no weights; expected {WEIGHTS_FILE} or {INDEX_FILE}")


def _open_shards(index_file: Path) -> SafetensorsFiles:
    directory = index_file.parent
    weight_map = read_json_object(index_file, _MOST_INDEX_BYTES).get("weight_map")
    with reading(index_file, hint=_FETCH):
        if not isinstance(weight_map, dict) or not weight_map:
            raise ForeignError("expected a JSON object with weight_map")
        # Beside the index: what transformers writes is no path.
        names = {name if isinstance(name, str) else "" for name in weight_map.values()}
        shards = {name: directory / file_name(name) for name in sorted(names)}
        if len(shards) > _MOST_SHARDS:
            raise ForeignError(f"{len(shards):,} shards, at most {_MOST_SHARDS:,} are read")
    lacking = [name for name, path in shards.items() if not path.exists()]
    if lacking:
        raise UserError(
            f"{directory}: {shortened(lacking)} of {len(shards)} shards lacking that "
            f"{INDEX_FILE} names; fetch the checkpoint again, all of its files"
        )
    files = SafetensorsFiles(list(shards.values()))
    found = {(tensor.name, files.files[key].name) for key, tensor in files.tensors.items()}
    differing = sorted(name for name, _ in found ^ set(weight_map.items()))
    if differing:
        raise UserError(
            f"{directory}: {INDEX_FILE} and the shards differ in {shortened(differing)}; "
            "fetch the checkpoint again, all of its files"
        )
    return files


def abstract_vlm(config: VLMConfig) -> VLM:
    """A model without adapters that has shapes in place of arrays."""
    return nnx.eval_shape(lambda: VLM(config, rngs=nnx.Rngs(0)))


def read_parameters(
    files: SafetensorsFiles,
    config: VLMConfig,
    dtype: str | None = None,
    sharding_of: ShardingOf | None = None,
    where: str = "checkpoint",
) -> dict[str, jax.Array]:
    """Every parameter of a model, by its path.

    Args:
        files: from `open_checkpoint`.
        dtype: to convert to on the way; None: `common_dtype`.
        sharding_of: (path, shape) -> where a parameter shall live; None: the first device.
        where: for error messages.

    Raises:
        UserError: before anything is allocated: tensors that the model has no place for or that
            it lacks, all in one message; a tensor of another shape. An output layer other than
            the embedding.
    """
    stated = {name: tensor.name for name, tensor in files.tensors.items()}
    shapes = check_tensors(files.shapes, config, where, stated)
    dtype = dtype or common_dtype(files)
    arrays: dict[str, jax.Array] = {}
    before: jax.Array | None = None
    one_device: Any = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for rule in hf_layout.tensor_rules(config):
        shape = shapes[rule.path]
        names = rule.names(config)
        sharding = one_device if sharding_of is None else sharding_of(rule.path, shape)

        def part(
            index: tuple[slice, ...] | None,
            rule: hf_layout.TensorRule = rule,
            names: list[str] = names,
            shape: tuple[int, ...] = shape,
        ) -> np.ndarray:
            return _read_part(files, rule, names, shape, index or (), dtype)

        arrays[rule.path] = jax.make_array_from_callback(shape, sharding, part)
        # One is on its way to the device while the next is read; the host's memory of the one
        # before it is free.
        if before is not None:
            before.block_until_ready()
        before = arrays[rule.path]
    if config.decoder.tied and _has_own_head(files):
        raise _untied(files.tensors[_LM_HEAD].name, files.tensors[_EMBEDDING].name, where)
    return arrays


def check_tensors(
    found: Mapping[str, tuple[int, ...]],
    config: VLMConfig,
    where: str,
    stated: Mapping[str, str] | None = None,
) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's parameters, where a checkpoint has exactly their tensors.

    Args:
        found: shapes by canonical name.
        stated: the file's own names by those, for messages; None: the same.

    Raises:
        UserError: tensors without a place or missing, all in one message; one of another shape.
    """
    stated = stated or {}
    # By name first: it takes the number of layers alone.
    _check_names(found, config, where, stated)
    shapes = parameter_shapes(abstract_vlm(config))
    for rule in hf_layout.tensor_rules(config):
        wanted = rule.their_shape(shapes[rule.path], _patch_size(config))
        for name in rule.names(config):
            _check_shape(stated.get(name, name), found[name], wanted, where)
    if _LM_HEAD in found and config.decoder.tied:
        name = stated.get(_LM_HEAD, _LM_HEAD)
        _check_shape(name, found[_LM_HEAD], found[_EMBEDDING], where)
    return shapes


def parameters_of_stream(
    tensors: Iterable[tuple[str, np.ndarray]],
    config: VLMConfig,
    dtype: str = "float32",
    where: str = "checkpoint",
) -> dict[str, jax.Array]:
    """Reads as `read_parameters`, from whole tensors in any order, as a GGUF file gives them.

    `tensors` are (name in Hugging Face's manner, array), in memory of their own.
    """
    shapes = parameter_shapes(abstract_vlm(config))
    places = {
        name: (rule, layer)
        for rule in hf_layout.tensor_rules(config)
        for layer, name in enumerate(rule.names(config))
    }
    arrays: dict[str, np.ndarray] = {}
    head = None
    seen = {}
    for stated, tensor in tensors:
        name = hf_layout.canonical_name(stated)
        seen[name] = stated
        if name == _LM_HEAD and config.decoder.tied:
            _check_shape(stated, tensor.shape, shapes["decoder/embedder/table"], where)
            head = np.array(tensor, jnp.dtype(dtype))
        if name not in places:
            continue
        rule, layer = places[name]
        shape = shapes[rule.path]
        _check_shape(stated, tensor.shape, rule.their_shape(shape, _patch_size(config)), where)
        whole = arrays.setdefault(rule.path, _aligned_empty(shape, dtype))
        (whole[layer] if rule.stacked else whole)[...] = hf_layout.to_ours(tensor, rule.transform)
    _check_names(seen, config, where, seen)
    if head is not None and not np.array_equal(head, arrays["decoder/embedder/table"]):
        raise _untied(_LM_HEAD, _EMBEDDING, where)
    return {path: jax.device_put(arrays.pop(path)) for path in sorted(arrays)}


def make_model(config: VLMConfig, arrays: Mapping[str, Any], **settings: Any) -> VLM:
    """A model with these parameters.

    Args:
        arrays: every parameter by its path, as `read_parameters` gives them.
        settings: of `VLM`, such as `share`.
    """
    model = nnx.eval_shape(lambda: VLM(config, rngs=nnx.Rngs(0), **settings))
    graphdef, state = nnx.split(model)
    flat = [(path, leaf.replace(arrays[path_of(path)])) for path, leaf in nnx.to_flat_state(state)]
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def common_dtype(files: SafetensorsFiles) -> str:
    """bfloat16 where every tensor is, else float32, which holds all of them."""
    found = {tensor.dtype for tensor in files.tensors.values()}
    return "bfloat16" if found == {"BF16"} else "float32"


def shortened(names: Sequence[str]) -> str:
    """A list for an error message, of which it has the first four."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _check_names(
    found: Iterable[str], config: VLMConfig, where: str, stated: Mapping[str, str]
) -> None:
    """Refuses tensors that are not exactly those that the model has places for.

    The message has the names that stand in the file, and for what is missing those that would.
    """
    wanted = {name for rule in hf_layout.tensor_rules(config) for name in rule.names(config)}
    found = set(found) - ({_LM_HEAD} if config.decoder.tied else set())
    prefixes = hf_layout.published_prefixes(config) | hf_layout.found_prefixes(stated.values())
    unused = sorted(stated.get(name, name) for name in found - wanted)
    missing = sorted(hf_layout.with_prefix(name, prefixes) for name in wanted - found)
    said = [
        f"{len(names)} {what} ({shortened(names)})"
        for what, names in (("tensors without a place", unused), ("tensors missing", missing))
        if names
    ]
    if said:
        raise UserError(
            f"{where}: {' and '.join(said)} for the model that config.json describes; use the "
            "config.json that belongs to the weights"
        )


def _check_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...], where: str) -> None:
    if found != wanted:
        raise UserError(
            f"{where}: {name} has shape {found}, expected {wanted} by config.json; use the "
            "config.json that belongs to the weights"
        )


def with_own_head(config: VLMConfig, files: SafetensorsFiles) -> VLMConfig:
    """The sizes, untied where the weights have an output layer that is not the embedding again.

    So transformers 5 reads them, whatever `config.json` says.
    """
    if not config.decoder.tied or not _has_own_head(files):
        return config
    return dataclasses.replace(config, decoder=dataclasses.replace(config.decoder, tied=False))


def _has_own_head(files: SafetensorsFiles) -> bool:
    if _LM_HEAD not in files.tensors or files.shapes[_LM_HEAD] != files.shapes.get(_EMBEDDING):
        return False
    return not all(
        np.array_equal(files.mapped(_LM_HEAD, rows), files.mapped(_EMBEDDING, rows))
        for rows in _row_blocks(files.shapes[_LM_HEAD][0])
    )


def _untied(head: str, embedding: str, where: str) -> UserError:
    return UserError(
        f"{where}: {head} is not equal to {embedding}, and the sizes have one table for both; "
        "take the model as safetensors, whose output layer may be another"
    )


def _row_blocks(rows: int) -> Iterator[tuple[slice, ...]]:
    for start in range(0, rows, _ROWS):
        yield (slice(start, min(start + _ROWS, rows)),)


def _read_part(
    files: SafetensorsFiles,
    rule: hf_layout.TensorRule,
    names: list[str],
    shape: tuple[int, ...],
    index: tuple[slice, ...],
    dtype: str,
) -> np.ndarray:
    """The part of a parameter that one device holds."""
    bounds = [slice(*part.indices(size)) for part, size in zip(index, shape, strict=True)]
    part = _aligned_empty([bound.stop - bound.start for bound in bounds], dtype)
    layers: Sequence[str] = names[bounds[0]] if rule.stacked else names
    inner = tuple(bounds[1:] if rule.stacked else bounds)
    for layer, name in enumerate(layers):
        # The axes of these are cut and joined: whole, then the part.
        if rule.transform in ("patches", "frames", "first"):
            tensor = hf_layout.to_ours(files.mapped(name), rule.transform)[inner]
        else:
            theirs = inner[::-1] if rule.transform == "transposed" else inner
            tensor = hf_layout.to_ours(files.mapped(name, theirs), rule.transform)
        place = part[layer, ...] if rule.stacked else part
        if rule.transform == "transposed":
            # Half the time of a whole copy, which goes through memory at strides of a row.
            for start in range(0, tensor.shape[1], _TRANSPOSED_ROWS):
                rows = slice(start, start + _TRANSPOSED_ROWS)
                place[:, rows] = tensor[:, rows]
        else:
            place[...] = tensor
    return part


def _aligned_empty(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Memory that JAX's CPU backend takes over as it is: it copies what is not so aligned."""
    alignment = 64
    kind = jnp.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size].view(kind).reshape(shape)


def _patch_size(config: VLMConfig) -> int:
    return 0 if config.vision is None else config.vision.patch_size
