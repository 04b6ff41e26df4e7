"""Models of runs: the one that a run starts from, and the one that it has made.

A run's workdir holds its `config.json`, the tokenizer and checkpoints of what was trained (store.py
has their files); the frozen base stays where it is (base_model.py), known by path and hash.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh

from cxrjax.distributed.meshes import tree_shardings
from cxrjax.errors import UserError
from cxrjax.files import read_json_object, read_packaged
from cxrjax.models import VLM, apply_lora, partition
from cxrjax.models.layers import Linear, salt
from cxrjax.models.partition import path_of
from cxrjax.models.peft import LOC_DELTA, adapter_parameters, read_peft
from cxrjax.models.presets import VLMConfig
from cxrjax.paths import to_path
from cxrjax.training import store
from cxrjax.training.base_model import (
    MODEL_FILE,
    PARAMS,
    arrays_sha256,
    base_config,
    base_directory,
    base_sha256,
    check_finite,
    model_sizes,
    new_model,
    read_model_json,
    tokenizer_in,
    tokenizer_path,
)
from cxrjax.training.config import ExperimentConfig, flatten
from cxrjax.training.config_file import typed_config
from cxrjax.training.key_names import SOURCES
from cxrjax.training.preset_names import FROM_BASE
from cxrjax.training.step import cast_params
from cxrjax.training.workdir import CONFIG_FILE

# Keys that a resumed run may change, and beginnings of such keys.
_FREE_KEYS = tuple(read_packaged("cxrjax.training", "key_rules.toml")["free"])


class LoadedModel(NamedTuple):
    """A model for inference."""

    model: VLM  # base, adapters and trained parameters together
    # The run's configuration, or the default one with the base's own settings.
    config: ExperimentConfig
    tokenizer_path: Path  # its tokenizer's file


def model_config(directory: Path) -> ExperimentConfig:
    """The configuration of what `load_model` would load, without loading it.

    Raises:
        UserError: the directory holds no model.
    """
    if (directory / MODEL_FILE).is_file():
        return base_config(directory)
    if (directory / CONFIG_FILE).is_file():
        return read_config(directory)
    raise UserError(
        f"{directory}: no model here; expected a base directory with {MODEL_FILE} or a training "
        f"workdir with {CONFIG_FILE}"
    )


def load_model(
    directory: str | Path, step: int | None = None, mesh: Mesh | None = None
) -> LoadedModel:
    """Reads a model from a run's workdir or from a base directory.

    Args:
        step: checkpoint of a run; None: the best one, the last one where none was scored.
        mesh: as in `build_model`.

    Raises:
        UserError: the directory is neither, or the run's base is absent or not the same.
    """
    directory = to_path(directory)
    config = model_config(directory)
    if not (directory / MODEL_FILE).is_file():
        return _load_run(directory, config, step, mesh)
    graphdef, params = nnx.split(build_model(config, mesh)[0])
    model = nnx.merge(graphdef, cast_params(params, config.model.frozen_dtype))
    return LoadedModel(model, config, tokenizer_path(config))


def _load_run(
    workdir: Path, config: ExperimentConfig, step: int | None, mesh: Mesh | None
) -> LoadedModel:
    if not (workdir / store.DIRECTORY).is_dir():
        raise UserError(f"{workdir}: the run has no checkpoint yet")
    checkpoints = store.CheckpointStore(workdir, config.training.best_metric, writing=False)
    step = checkpoints.best_step() if step is None else step
    if step is None or step not in checkpoints.all_steps():
        raise UserError(f"{workdir}: no checkpoint {'yet' if step is None else f'of step {step}'}")
    base = checkpoints.restore_json(step, "base")
    settings = dataclasses.replace(config.model, attention="auto")  # by this machine
    if settings.init_from is not None and not to_path(settings.init_from).is_dir():
        # Absolute: the run was started elsewhere.
        settings = dataclasses.replace(settings, init_from=base["path"])
    # The checkpoint has what became of the adapter that it started from.
    lora = dataclasses.replace(config.lora, init_from=None)
    settings = dataclasses.replace(settings, start_from=None)
    config = dataclasses.replace(config, model=settings, lora=lora)
    model, found = build_model(config, mesh)
    check_same_base(workdir, base, found)
    graphdef, trainable, frozen = partition(model, config.trainable)
    trainable = checkpoints.restore_parameters(step, cast_params(trainable, "float32"))
    checkpoints.close()
    frozen = cast_params(frozen, config.model.frozen_dtype)
    return LoadedModel(nnx.merge(graphdef, trainable, frozen), config, tokenizer_in(workdir))


def best_step(workdir: Path) -> int:
    """The step that `load_model` takes of a run.

    Raises:
        UserError: the run has no checkpoint.
    """
    config = read_config(workdir)
    checkpoints = store.CheckpointStore(workdir, config.training.best_metric, writing=False)
    step = checkpoints.best_step()
    checkpoints.close()
    if step is None:
        raise UserError(f"{workdir}: no checkpoint yet")
    return step


def build_model(config: ExperimentConfig, mesh: Mesh | None = None) -> tuple[VLM, dict[str, Any]]:
    """The model a run starts from: base or random parameters, adapters as configured.

    Args:
        mesh: every device reads or draws its own part of the parameters (distributed/meshes.py),
            so that no device needs room for all of them; called by all processes of the mesh.
            None: one device of this process has all.

    Returns:
        The model (a base's parameters in the dtype they are stored in), and a reference to what
        it was made of, fit for JSON: `kind`, `sha256`, and `path` or `seed`; with adapters `lora`,
        their rank and alpha.

    Raises:
        UserError: no such preset, no base where one is asked for, or a base of another preset; an
            adapter to start from that is not of this base or not what is configured; kernels that
            this machine cannot run.
    """
    settings, seed = config.model, config.training.seed
    needed = {"splash": "tpu", "cudnn": "gpu"}.get(settings.attention)
    if needed is not None and jax.default_backend() != needed:
        raise UserError(
            f"model.attention={settings.attention!r} needs a {needed.upper()}, and this is a "
            f"{jax.default_backend()}; set 'auto' or 'dense'"
        )
    if settings.init == "random":
        sizes = model_sizes(config)
        model = _draw_model(config, sizes, mesh)
        if settings.tower_from is not None:
            _take_tower(model, settings.tower_from, mesh)
        add_adapters(model, config)
        frozen = partition(model, config.trainable)[2]
        reference: dict[str, Any] = {
            "kind": "random",
            "seed": seed,
            "sha256": arrays_sha256(frozen, mesh),
        }
        fill_adapters(model, config, reference["sha256"], lambda: new_model(config, sizes))
        return _started(model, config, reference | adapter_reference(config), mesh)
    directory = base_directory(config)
    own = dataclasses.replace(config, model=dataclasses.replace(settings, preset=FROM_BASE))
    theirs, sizes = model_sizes(own), model_sizes(config)
    if theirs.at_resolution_of(sizes) != sizes:
        raise UserError(
            f"{directory} is of preset {read_model_json(directory)['preset']!r}, model.preset is "
            f"{settings.preset!r}, and they differ in more than the image's size; set one of them "
            "to match the other"
        )
    sha256 = base_sha256(directory)
    shapes = nnx.state(nnx.eval_shape(lambda: new_model(config, theirs)))
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: new_model(config, sizes)))
    model = nnx.merge(graphdef, _restore_params(directory / PARAMS, shapes, mesh))
    if theirs != sizes:
        model.vision.resize_positions(sizes.vision)
    add_adapters(model, config)
    path = str(directory.resolve())
    reference = {"kind": "checkpoint", "path": path, "sha256": sha256}
    fill_adapters(model, config, reference["sha256"], lambda: new_model(config, sizes))
    return _started(model, config, reference | adapter_reference(config), mesh)


def _started(
    model: VLM, config: ExperimentConfig, reference: dict[str, Any], mesh: Mesh | None
) -> tuple[VLM, dict[str, Any]]:
    """The model with what the run that it starts from has trained, its best checkpoint's.

    Raises:
        UserError: that run is of another base, or trained other parameters.
    """
    if config.model.start_from is None:
        return model, reference
    workdir = to_path(config.model.start_from)
    graphdef, trainable, frozen = partition(model, config.trainable)
    if not (workdir / CONFIG_FILE).is_file():
        raise UserError(
            f"model.start_from={workdir}: no training run there (no {CONFIG_FILE}). "
            f"{config.missing_data_help}"
        )
    step = best_step(workdir)
    checkpoints = store.CheckpointStore(
        workdir, read_config(workdir).training.best_metric, writing=False
    )
    check_same_base(workdir, checkpoints.restore_json(step, "base"), reference)
    trainable = checkpoints.restore_parameters(step, cast_params(trainable, "float32"))
    checkpoints.close()
    started = {"path": str(workdir.resolve()), "sha256": arrays_sha256(trainable, mesh)}
    return nnx.merge(graphdef, trainable, frozen), reference | {"started_from": started}


def abstract_model(config: ExperimentConfig) -> VLM:
    """The model that `build_model` makes, shapes in the place of its parameters.

    Raises:
        UserError: no such preset, or adapters that do not fit the model.
    """
    sizes = model_sizes(config)

    def build() -> VLM:
        model = new_model(config, sizes)
        add_adapters(model, config)
        return model

    return nnx.eval_shape(build)


def read_config(workdir: Path) -> ExperimentConfig:
    """The configuration of a run.

    Raises:
        UserError: unreadable, or with keys this version does not have.
    """
    path = workdir / CONFIG_FILE
    return typed_config(read_json_object(path), str(path))


def check_same_run(workdir: Path, config: ExperimentConfig) -> None:
    """Checks that a configuration may resume the run in a workdir.

    Raises:
        UserError: names every key that differs and decides what is learnt.
    """
    saved, now = flatten(read_config(workdir).to_json()), flatten(config.to_json())
    differing = [
        f"{key} is {saved.get(key, 'absent')!r} there and {now.get(key, 'absent')!r} now"
        for key in {**saved, **now}
        if saved.get(key, "absent") != now.get(key, "absent")
        and not key.startswith(_FREE_KEYS)
        and not (key in saved and key in now and _is_free_of_source(key))
    ]
    if differing:
        raise UserError(
            f"{workdir} holds a run of another configuration: {'; '.join(differing)}; use that "
            "configuration or another workdir"
        )


def _is_free_of_source(key: str) -> bool:
    return key.startswith(SOURCES) and key.endswith((".train", ".image_root"))


def check_same_base(workdir: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Checks that frozen parameters and adapters are those of a run's checkpoints.

    Raises:
        UserError: they are not.
    """
    kind, lora = saved.get("kind"), saved.get("lora", {})
    if not (isinstance(saved.get("sha256"), str) and isinstance(lora, Mapping)):
        raise UserError(f"{workdir}: its checkpoints do not say which base they belong to")
    if saved["sha256"] != now["sha256"]:
        raise UserError(
            f"{workdir}: its checkpoints belong to base {saved.get('path', kind)} with "
            f"hash {saved['sha256'][:12]}, and {now.get('path', now['kind'])} has hash "
            f"{now['sha256'][:12]}; put the same base back or use another workdir"
        )
    start, here = (each.get("started_from", {}).get("sha256") for each in (saved, now))
    if here is not None and start != here:
        raise UserError(
            f"{workdir}: its run started from parameters with hash {str(start)[:12]}, and those of "
            f"{now['started_from']['path']} have hash {here[:12]}; put them back or use another "
            "workdir"
        )
    for key, value in lora.items():
        found = now.get("lora", {}).get(key)
        if found != value:
            raise UserError(
                f"{workdir}: its adapters were trained with lora.{key}={value!r}, and the "
                f"configuration has {found!r}; set it back or use another workdir"
            )


def _draw_model(config: ExperimentConfig, sizes: VLMConfig, mesh: Mesh | None) -> VLM:
    """A model with random parameters, the same ones on every mesh."""
    graphdef, shapes = nnx.split(nnx.eval_shape(lambda: new_model(config, sizes)))
    shardings = None if mesh is None else tree_shardings(mesh, shapes)
    draw = jax.jit(lambda: nnx.state(new_model(config, sizes)), out_shardings=shardings)
    return nnx.merge(graphdef, draw())


def _take_tower(model: VLM, directory: str, mesh: Mesh | None) -> None:
    """Replaces the vision tower by that of another model."""
    theirs = load_model(directory, mesh=mesh).model
    if theirs.config.vision != model.config.vision or model.vision is None:
        raise UserError(
            f"model.tower_from={directory}: its tower is {theirs.config.vision}, and the "
            f"configured preset's is {model.config.vision}"
        )
    nnx.update(model.vision, nnx.state(theirs.vision))


def _restore_params(path: Path, like: Any, mesh: Mesh | None) -> Any:
    """Parameters of a base in the dtype they are stored in, on a mesh or on one device."""
    with store.readable(path), ocp.StandardCheckpointer() as checkpointer:
        metadata = checkpointer.metadata(str(path.absolute())).item_metadata
        if metadata is None:
            raise UserError(f"{path}: no parameters there; the base directory is not complete")
        store.check_arrays(str(path), metadata.tree, like)
        shardings = {}
        if mesh is not None:
            shardings = store.flat_arrays(tree_shardings(mesh, like))
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        wanted = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=shardings.get(name, device))
            for name, leaf in metadata.tree.items()
        }
        restored = store.unflatten(checkpointer.restore(str(path.absolute()), wanted), like)
    check_finite(str(path), restored)
    return restored


def add_adapters(model: VLM, config: ExperimentConfig) -> None:
    """Gives the model LoRA adapters and rows for location tokens, where configured."""
    settings = config.lora
    if settings.rank > 0:
        key = jax.random.fold_in(jax.random.key(config.training.seed), salt("lora"))
        apply_lora(model, settings.branches(), nnx.Rngs(key))
    if settings.untied:
        model.untie()
    if settings.loc_rows:
        model.decoder.embedder.add_loc_delta()
    if settings.box_rank:
        key = jax.random.fold_in(jax.random.key(config.training.seed), salt("box_lora"))
        model.decoder.embedder.add_box_adapter(settings.box_rank, nnx.Rngs(key))


def fill_adapters(
    model: VLM, config: ExperimentConfig, base: str, new_model: Callable[[], VLM]
) -> None:
    """Gives the model's adapters the values that the configured PEFT adapter has, if there is one.

    Args:
        base: the model's hash.
        new_model: makes the same model without adapters; only its shapes are asked for.

    Raises:
        UserError: the adapter is of another base, or not what is configured.
    """
    directory = config.lora.init_from
    if directory is None:
        return
    adapter = read_peft(directory, model.config)
    if adapter.base_sha256 not in (None, base):
        raise UserError(
            f"{directory}: trained on a base with hash {adapter.base_sha256[:12]}, and this one "
            f"has hash {base[:12]}; use the base it was trained on"
        )

    def as_it_was() -> VLM:
        model = new_model()
        apply_lora(model, adapter.config, nnx.Rngs(0))
        return model

    trained = adapter_parameters(model, adapter)
    leaves = {
        path_of(path): (path, leaf)
        for path, leaf in nnx.to_flat_state(nnx.state(model))
        if "/lora/" in path_of(path) or path_of(path) == LOC_DELTA or path_of(path) in trained
    }
    theirs = _adapter_scales(nnx.eval_shape(as_it_was))
    theirs |= {name: array.shape for name, array in trained.items()}
    ours = _adapter_scales(model)
    ours |= {name: leaf.get_value().shape for name, (_, leaf) in leaves.items()}
    names = sorted(theirs.keys() | ours.keys())
    differing = [name for name in names if theirs.get(name) != ours.get(name)]
    if differing:
        first = differing[0]
        raise UserError(
            f"lora.init_from={directory}: not the adapters that are configured, {len(differing)} "
            f"differences, such as {first}: {theirs.get(first)} there, {ours.get(first)} "
            "configured; set lora.rank, alpha, targets and the rest as the adapter has them"
        )
    filled = [(path, leaf.replace(jnp.asarray(trained[n]))) for n, (path, leaf) in leaves.items()]
    nnx.update(model, nnx.from_flat_state(filled))


def _adapter_scales(model: VLM) -> dict[str, Any]:
    return {
        path_of(path): module.lora.scale
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Linear) and module.lora is not None
    }


def adapter_reference(config: ExperimentConfig) -> dict[str, Any]:
    """Settings that must be the same for adapters to mean the same."""
    if config.lora.rank == 0:
        return {}
    described = {key: getattr(config.lora, key) for key in ("rank", "alpha", "use_rslora")}
    patterns = ("rank_pattern", "alpha_pattern")
    return {"lora": described | {key: list(getattr(config.lora, key)) for key in patterns}}
