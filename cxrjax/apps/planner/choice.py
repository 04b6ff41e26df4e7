"""`model.remat='auto'`: what layers keep and how a batch is cut, by a search or by formula.

`plan --sweep` stores the best compiled choice of each mesh; a run on such devices takes it. Where
nothing is stored, the fastest by formula that leaves a fifth of the memory free is taken.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax.apps.planner import search
from cxrjax.apps.planner.estimate import abstract_mesh
from cxrjax.apps.planner.plans import KEPT, make_plan
from cxrjax.apps.planner.program import batch_shape
from cxrjax.distributed.hardware import Topology, chip_of_device
from cxrjax.files import read_json_object
from cxrjax.models.layers import REMAT
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.workdir import make_writable, write_json

AUTO = "auto"
# Of a chip's memory, that a plan by formula may take.
_MOST = 0.8


def store(
    choices: Sequence[search.Choice], config: ExperimentConfig, topology: Topology, kept: Path
) -> None:
    """Stores the best compiled choice of each mesh for runs with `model.remat='auto'`."""
    best: dict[str, list[Any]] = {}
    for choice in choices:
        if choice.compiled is not None and choice.plan.fits:
            best.setdefault(_mesh_name(choice.mesh), [choice.remat, choice.micro_batches])
    if best:
        file = _file(config, topology, kept)
        make_writable(file.parent, "--kept")
        write_json(file, best)


def resolved(
    config: ExperimentConfig,
    devices: Sequence[Any],
    kept: Path = KEPT,
    log_line: Callable[[str], None] = print,
) -> ExperimentConfig:
    """Returns the configuration with `model.remat='auto'` replaced for the devices of a run."""
    if config.model.remat != AUTO:
        return config
    chip = chip_of_device(devices[0].device_kind)
    if chip is None:
        log_line(f"model.remat=auto: none (no figures of {devices[0].device_kind})")
        return _with(config, "none", config.training.accumulation_steps)
    return resolved_for(config, Topology(chip, (len(devices),)), kept, log_line)


def resolved_for(
    config: ExperimentConfig,
    topology: Topology,
    kept: Path = KEPT,
    log_line: Callable[[str], None] = print,
) -> ExperimentConfig:
    """Returns the configuration with `model.remat='auto'` replaced for a slice.

    Raises:
        UserError: the batch does not divide over it.
    """
    if config.model.remat != AUTO:
        return config
    mesh = dict(abstract_mesh(config, topology).shape)
    file = _file(config, topology, kept)
    found = read_json_object(file).get(_mesh_name(mesh)) if file.is_file() else None
    if isinstance(found, list) and len(found) == 2 and found[0] in REMAT and _is_count(found[1]):
        remat, count, by = found[0], found[1], "by plan --sweep"
    else:
        chip = dataclasses.replace(topology.chip, hbm_bytes=int(_MOST * topology.chip.hbm_bytes))
        smaller = dataclasses.replace(topology, chip=chip)
        plan = functools.partial(make_plan, topology=smaller)
        choices = [search.fewest(config, mesh, remat, plan) for remat in REMAT]
        best = min(choices, key=search.rank)
        remat, count, by = best.remat, best.micro_batches, "by formula"
    log_line(f"model.remat=auto: {remat} with {count} micro-batches ({by})")
    return _with(config, remat, count)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _with(config: ExperimentConfig, remat: str, count: int) -> ExperimentConfig:
    model = dataclasses.replace(config.model, remat=remat)
    training = dataclasses.replace(config.training, accumulation_steps=count)
    return dataclasses.replace(config, model=model, training=training)


def _mesh_name(mesh: Mapping[str, int]) -> str:
    return " ".join(f"{axis}={size}" for axis, size in sorted(mesh.items()))


def _file(config: ExperimentConfig, topology: Topology, kept: Path) -> Path:
    """The file of the choices for programs like this one on so many chips."""
    model = {k: v for k, v in vars(config.model).items() if k not in ("remat", "unroll")}
    places = ("init_from", "start_from", "tokenizer", "tower_from")
    model = {k: v for k, v in model.items() if k not in places}
    parts: tuple[Any, ...] = (
        model,
        vars(config.lora),
        config.trainable,
        dataclasses.asdict(batch_shape(config)),
    )
    parts += (topology.chip.name, topology.chips, config.rl.kind, config.training.logit_chunk)
    name = hashlib.sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()
    return kept / f"choice-{name}.json"
