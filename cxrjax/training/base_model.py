"""A base model's directory: what runs start from.

It holds `model.json` (what the model is and how it wants to be asked), a tokenizer, `params/`
(Orbax) and `checksums.json`, which all of them are compared with. `model.json` is written last but
for the checksums: it is what makes a directory a base.
"""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh

from cxrjax.distributed.meshes import fetch_whole
from cxrjax.errors import UserError
from cxrjax.files import file_sha256, read_json_object, read_packaged
from cxrjax.models import VLM, count_parameters, presets
from cxrjax.models.families import sizes_of_base
from cxrjax.models.hf_import import shortened
from cxrjax.models.layers import BOUNDS
from cxrjax.models.splash import resolve_attention
from cxrjax.paths import copy_file, to_path
from cxrjax.training import store
from cxrjax.training.config import ExperimentConfig, flatten
from cxrjax.training.config_file import typed_config
from cxrjax.training.preset_names import FROM_BASE, at_size, find_preset, grids_of, is_from_base
from cxrjax.training.step import cast_params
from cxrjax.training.workdir import CONFIG_FILE, write_json
from cxrjax.untrusted.names import shown

MODEL_FILE, TOKENIZER_FILE, PARAMS = "model.json", "tokenizer.model", "params"
TOKENIZER_JSON, HF_FILE = "tokenizer.json", "hf.json"
FORMAT = 1

# What of a configuration goes with a base model, by its name in `model.json`.
_MODEL_KEYS = read_packaged("cxrjax.training", "key_rules.toml")["model_json"]
# What bases of before the key had.
_LATER = {"boxes": "greedy"}


def base_directory(config: ExperimentConfig) -> Path:
    """The base model's directory.

    Raises:
        UserError: none is configured, or it is not there; says what to put where.
    """
    path, hint = config.model.init_from, config.missing_data_help
    if path is None:
        raise UserError(
            "model.init_from is not set: name a base model's directory, or ask for "
            f"model.init='random'. {hint}"
        )
    if not (to_path(path) / MODEL_FILE).is_file():
        kind = "is a training workdir" if (to_path(path) / CONFIG_FILE).is_file() else "has none"
        raise UserError(
            f"model.init_from={path}: expected a base model there ({MODEL_FILE}, "
            f"{TOKENIZER_FILE}, {PARAMS}/), and it {kind}. {hint}"
        )
    return to_path(path)


def read_model_json(directory: Path) -> dict[str, Any]:
    """`model.json` of a base directory.

    Raises:
        UserError: unreadable, of another format, or without one of its keys.
    """
    path = directory / MODEL_FILE
    content = read_json_object(path)
    if content.get("format") != FORMAT:
        raise UserError(f"{path}: format is {content.get('format')!r}, expected {FORMAT}")
    content = _LATER | content
    missing = [name for name in _MODEL_KEYS if name not in content]
    if missing:
        raise UserError(f"{path}: lacks {', '.join(missing)}; write it with save_base again")
    return content


def base_config(directory: Path) -> ExperimentConfig:
    """The default configuration with a base's own settings, ready for `build_model`."""
    described = read_model_json(directory)
    nested: dict[str, dict[str, Any]] = {"model": {"init_from": str(directory)}}
    for name, key in _MODEL_KEYS.items():
        group, _, leaf = key.rpartition(".")
        nested.setdefault(group, {})[leaf] = described[name]
    return typed_config(nested, str(directory / MODEL_FILE))


def base_sha256(directory: Path) -> str:
    """One hash over what makes a base, whose files are compared with `checksums.json` before.

    Two conversions of a model have the same: Orbax gives files of the same arrays other names, so
    that `checksums.json` holds a hash over the arrays. Of bases that lack it, it is over the files.

    Raises:
        UserError: a file is not the one that was written, or odd (a link, say).
    """
    found = {name: file_sha256(directory / name) for name in _base_files(directory)}
    _check_whole(directory, found)
    checksums = directory / store.CHECKSUMS
    arrays = read_json_object(checksums).get("arrays") if checksums.is_file() else None
    if arrays is not None:
        described = {k: v for k, v in read_model_json(directory).items() if k != "notes"}
        tokenizer = found.get(tokenizer_in(directory).name)
        text = json.dumps([arrays, tokenizer, described], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
    text = "".join(f"{name} {sha256}\n" for name, sha256 in found.items() if name != HF_FILE)
    return hashlib.sha256(text.encode()).hexdigest()


def arrays_sha256(tree: Any, mesh: Mesh | None = None) -> str:
    """One hash over the names and bytes of a tree's arrays, one array at a time.

    Args:
        mesh: that arrays are on which this process does not see whole; called by all of its
            processes.
    """
    digest = hashlib.sha256()
    for name, leaf in store.flat_arrays(tree).items():
        digest.update(name.encode())
        digest.update(np.asarray(leaf if mesh is None else fetch_whole(leaf, mesh)).tobytes())
    return digest.hexdigest()


def _base_files(directory: Path) -> list[str]:
    odd = store.find_odd_file(directory / PARAMS)
    if odd is not None:
        raise UserError(f"{odd}; fetch or make the base again")
    names = (MODEL_FILE, TOKENIZER_FILE, TOKENIZER_JSON, HF_FILE)
    params = sorted(path for path in (directory / PARAMS).rglob("*") if path.is_file())
    present = [directory / name for name in names if (directory / name).is_file()]
    return [path.relative_to(directory).as_posix() for path in (*present, *params)]


def _check_whole(directory: Path, found: Mapping[str, str]) -> None:
    """Compares the hashes of a base's files with those of its `checksums.json`."""
    if not (directory / store.CHECKSUMS).exists():
        print(
            f"warning: {directory}: no {store.CHECKSUMS}, so damage to its files would go "
            "unnoticed; convert the model again to have one",
            file=sys.stderr,
        )
        return
    again = "fetch or make the base again"
    try:
        written = store.read_checksums(directory)
    except UserError as error:
        raise UserError(f"{error}; {again}") from None
    for name in sorted(written.keys() | found.keys()):
        if written.get(name) != found.get(name):
            what = "is missing" if name not in found else "is not what was written"
            raise UserError(f"{directory}: {shown(name)} {what} ({store.CHECKSUMS}); {again}")


def check_finite(where: str, params: Any) -> None:
    """Refuses parameters that are not numbers; bounds of maps may be infinite.

    Raises:
        UserError: names the first one.
    """
    arrays = store.flat_arrays(params)

    @jax.jit
    def all_finite(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {
            name: ~jnp.isnan(x).any() if name.endswith(BOUNDS) else jnp.isfinite(x).all()
            for name, x in arrays.items()
            if jnp.issubdtype(x.dtype, jnp.floating)
        }

    odd = sorted(name for name, finite in all_finite(arrays).items() if not finite)
    if odd:
        raise UserError(
            f"{where}: numbers that are not finite in {shortened(odd)}; use weights that are whole"
        )


def model_sizes(config: ExperimentConfig) -> presets.VLMConfig:
    """The sizes of the configured model: a preset's, or with preset 'from_base' the base's own.

    Raises:
        UserError: no such preset, no base, or a base that does not carry its sizes.
    """
    if not is_from_base(config.model.preset):
        return find_preset(config.model.preset)
    size = config.model.preset.partition("@")[2]
    directory = base_directory(config)
    described = read_model_json(directory)
    if not is_from_base(described["preset"]):
        return at_size(find_preset(described["preset"]), size)
    try:
        found = sizes_of_base(described["sizes"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{directory / MODEL_FILE}: sizes cannot be read ({error}); convert the model again"
        ) from None
    return at_size(found, size)


def model_grids(config: ExperimentConfig) -> tuple[tuple[int, int], ...]:
    """The (height, width) of each size of input that is named: by the preset, else by the base."""
    preset = config.model.preset
    if preset == FROM_BASE and config.model.init_from is not None:
        preset = read_model_json(base_directory(config))["preset"]
    return grids_of(preset)


def preset_of(sizes: presets.VLMConfig) -> str:
    """The name of the preset with these sizes; 'from_base' where there is none."""
    return next((name for name, preset in presets.PRESETS.items() if preset == sizes), FROM_BASE)


def unrolls(choice: bool | None, device: Any) -> bool:
    """Returns whether `model.unroll` writes loops over layers out on a device."""
    return device.platform == "gpu" if choice is None else choice


def new_model(config: ExperimentConfig, sizes: presets.VLMConfig) -> VLM:
    """A model with random parameters."""
    settings = config.model
    return VLM(
        sizes,
        rngs=nnx.Rngs(config.training.seed),
        share=settings.share,
        remat=settings.remat,
        unroll=unrolls(settings.unroll, jax.local_devices()[0]),
        dtype=settings.dtype,
        attention=resolve_attention(
            settings.attention, jax.local_devices()[0], settings.dtype, sizes
        ),
    )


def save_base(
    directory: str | Path,
    model: VLM,
    config: ExperimentConfig,
    tokenizer_file: str | Path,
    dtype: str | None = "float32",
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Writes a model as a base directory, for `model.init_from` and `load_model`.

    Args:
        directory: must not hold a base yet.
        model: without adapters; merge them first.
        config: of the run that made it; says how it wants to be asked.
        tokenizer_file: copied into the directory.
        dtype: of the parameters on disk; bfloat16 takes half the room; None: as they are.
        notes: more to keep in `model.json`, such as what the model was trained on.

    Raises:
        UserError: the directory holds a base already, or the model is not of its preset.
    """
    directory = to_path(directory)
    if (directory / MODEL_FILE).exists():
        raise UserError(f"{directory}: holds a base model already; remove it or write elsewhere")
    params = nnx.state(model)
    if dtype is not None:
        params = cast_params(params, dtype)
    # Also of a preset whose output layer was untied.
    carries = is_from_base(config.model.preset) or config.lora.untied
    sizes = model.config if carries else find_preset(config.model.preset)
    fresh = nnx.state(nnx.eval_shape(lambda: new_model(config, sizes)))
    store.check_arrays("the model to save", store.flat_arrays(params), fresh)
    check_finite("the model to save", params)
    directory.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(tokenizer_file, directory)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(
            str((directory / PARAMS).absolute()), store.flat_arrays(params), force=True
        )
    marker = directory / PARAMS / "commit_success.txt"
    if marker.is_file():
        # Orbax writes this machine's path into it: a base is to be the same wherever it is made.
        marker.write_text("committed\n", encoding="utf-8")
    values = flatten(config.to_json())
    described = {name: values[key] for name, key in _MODEL_KEYS.items()}
    if carries:
        grids = model_grids(config)
        several = ",".join(f"{height}x{width}" for height, width in grids if len(grids) > 1)
        described["preset"] = f"{FROM_BASE}@{several}".removesuffix("@")
        described["sizes"] = dataclasses.asdict(sizes)
    # It is what makes the directory a base.
    write_json(
        directory / MODEL_FILE,
        {
            "format": FORMAT,
            **described,
            "dtype": dtype or str(jax.tree.leaves(params)[0].dtype),
            "parameters": count_parameters(params),
            "notes": dict(notes or {}),
        },
    )
    store.write_checksums(directory, _base_files(directory), arrays=arrays_sha256(params))


def tokenizer_path(config: ExperimentConfig) -> Path:
    """The tokenizer's file: as configured, else the one beside the base model."""
    if config.model.tokenizer is not None:
        return to_path(config.model.tokenizer)
    if config.model.init == "random":
        raise UserError("model.tokenizer is not set, and model.init='random' brings none")
    return tokenizer_in(base_directory(config))


def tokenizer_in(directory: Path) -> Path:
    """The tokenizer's file in a base directory or a workdir."""
    has_json = (directory / TOKENIZER_JSON).is_file()
    return directory / (TOKENIZER_JSON if has_json else TOKENIZER_FILE)


def copy_tokenizer(file: str | Path, directory: Path) -> None:
    """Puts a tokenizer's file where `tokenizer_in` finds it."""
    is_json = to_path(file).name == TOKENIZER_JSON
    copy = directory / (TOKENIZER_JSON if is_json else TOKENIZER_FILE)
    if to_path(file).resolve() != copy.resolve():
        copy_file(file, copy)
