"""A plan: what one configuration takes on one slice."""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic

from cxrjax.apps.planner import gpu, hlo, program
from cxrjax.apps.planner.estimate import (
    Guess,
    StepEstimate,
    abstract_mesh,
    by_formula,
    mfu,
    roofline,
)
from cxrjax.distributed import meshes
from cxrjax.distributed.hardware import Topology
from cxrjax.files import read_json_object
from cxrjax.models import presets
from cxrjax.models.flops import Flops, step_flops, total
from cxrjax.models.layers import recomputes
from cxrjax.training import checkpoint
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.workdir import make_writable, write_json

# What is kept of a compiled program: raise it when reading programs changes.
_KEPT_VERSION = 6
# Where compiled programs' figures are kept; compiling one takes minutes.
KEPT = Path.home() / ".cache" / "cxrjax" / "plans"
# What compilers read from the environment.
_FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")


@dataclasses.dataclass(frozen=True)
class Measured:
    """Figures of a compiled program; `seconds` is the time of compilation.

    Where it does not fit, there is no memory and no program. `limit` and `needed` are bytes of a
    chip, None where the compiler did not report them.
    """

    memory: program.Memory | None
    limit: int | None
    needed: int | None
    program: hlo.Program | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> "Measured":
        return pydantic.TypeAdapter(cls).validate_python(kept)


@dataclasses.dataclass(frozen=True)
class Plan:
    """One configuration on one slice, measured by the compiler or guessed by formula."""

    config: ExperimentConfig
    topology: Topology
    flops: dict[str, Flops]  # of a step, by part, all chips together
    measured: Measured | None  # None where nothing was compiled
    guess: Guess | None
    decode: Measured | None = None  # of prefill and decode loop; None if not requested

    def __str__(self) -> str:
        from cxrjax.apps.planner.describe import describe  # which reads plans

        return describe(self)

    @property
    def memory(self) -> program.Memory | None:
        if self.guess:
            return self.guess.memory
        return self.measured.memory if self.measured else None

    @property
    def limit(self) -> int:
        """Bytes of a chip that a program may have."""
        return (self.measured and self.measured.limit) or self.topology.chip.hbm_bytes

    @property
    def fits(self) -> bool:
        return self.memory is not None and self.memory.peak <= self.limit

    @property
    def estimate(self) -> StepEstimate | None:
        if self.guess:
            return self.guess.estimate
        if self.measured is None or self.measured.program is None:
            return None
        return roofline(self.measured.program, self.topology, self._flops_per_chip)

    @property
    def _flops_per_chip(self) -> float:
        return total(self.flops).computed / self.topology.chips

    @property
    def collectives(self) -> dict[str, float] | None:
        """Bytes of the arrays that a chip takes part in gathering or summing in a step, by kind."""
        if self.guess:
            return self.guess.collectives
        if self.measured is None or self.measured.program is None:
            return None
        return self.measured.program.collective_bytes()

    @property
    def across_slices(self) -> tuple[int, float] | None:
        """Collectives between slices in a step, and the bytes of their arrays."""
        if self.guess:
            return self.guess.across_slices
        if self.measured is None or self.measured.program is None:
            return None
        return self.measured.program.across_slices

    def _across_json(self) -> dict[str, Any]:
        if self.topology.slices == 1 or self.across_slices is None:
            return {}
        count, size = self.across_slices
        return {"across_slices": {"collectives": count, "bytes_per_chip": size}}

    @property
    def mfu(self) -> float | None:
        if self.estimate is None:
            return None
        needed = total(self.flops).model
        return mfu(needed, self.estimate.step, self.topology.chip, self.topology.chips)

    def to_json(self) -> dict[str, Any]:
        """The contract's keys, then everything by who says it."""
        memory, estimate, flops = self.memory, self.estimate, total(self.flops)
        needed = self.measured.needed if self.measured else None
        sent = self.collectives
        compiled = self.measured.program if self.measured else None
        return {
            "topology": self.topology.name,
            "fits": self.fits,
            "chips": self.topology.chips,
            "hbm_bytes_per_chip": memory.peak if memory else needed,
            "hbm_limit_bytes": self.limit,
            "flops_per_step": flops.model,
            "collective_bytes_per_chip": None if sent is None else sum(sent.values()),
            "step_seconds_estimate": estimate and estimate.step,
            "mfu_estimate": self.mfu,
            "limited_by": estimate and estimate.limit,
            **self._across_json(),
            "batch_images": self.config.batch_images,
            "accumulation_steps": self.config.training.accumulation_steps,
            "mesh": dict(sorted(dataclasses.asdict(self.config.mesh).items())),
            "remat": self.config.model.remat,
            "source": "formula" if self.guess else "compiler",
            "compiler": {
                "memory": dataclasses.asdict(memory) if memory and not self.guess else None,
                "collectives": None if self.guess else sent,
                "flops_per_chip": compiled and compiled.flops,
                "hbm_traffic_per_chip": compiled and compiled.hbm_bytes,
                "sent_bytes_per_chip": compiled and compiled.sent_bytes,
                "unknown_loops": compiled and compiled.unknown_loops,
                "kernels": compiled and compiled.kernels,
                "launches": compiled and compiled.launches,
                "decode": self.decode and _decode_json(self.decode, self.topology),
            },
            "model": {
                "flops": {name: dataclasses.asdict(f) for name, f in self.flops.items()},
                "flops_recomputed": flops.recompute,
                "seconds": estimate and dataclasses.asdict(estimate),
                "memory": self.guess and dataclasses.asdict(self.guess.memory),
                "collectives": sent if self.guess else None,
                "chip": {**dataclasses.asdict(self.topology.chip), "shapes": None},
            },
        }


def _decode_json(decode: Measured, topology: Topology) -> dict[str, Any]:
    found = decode.program and roofline(decode.program, topology)
    return {
        "fits": decode.memory is not None,
        "memory": decode.memory and dataclasses.asdict(decode.memory),
        "seconds_estimate": found and found.step,
    }


def make_plan(
    config: ExperimentConfig,
    topology: Topology,
    *,
    compiled: bool = True,
    kept_only: bool = False,
    decode: bool = False,
    kept: Path | None = KEPT,
    log_line: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Plans a configuration for a slice.

    Args:
        config: valid; needs neither data nor weights.
        compiled: False plans by formula alone, as without the compiler for a GPU.
        kept_only: compile nothing: a step of which no figures are kept is planned by formula, and
            a decode loop not at all. Without libtpu everything is by formula.
        decode: also the decode loop, for as many images as a batch has; reinforcement learning
            has it in any case, as it draws its answers by it.
        kept: where figures of compiled programs are kept; None: nowhere.
        log_line: told when a compilation begins.

    Raises:
        UserError: the mesh does not fit the slice or the model, or libtpu is absent.
    """
    mesh = abstract_mesh(config, topology)
    meshes.check_batch_divides(mesh, config.batch_images, config.training.batch_questions)
    count = meshes.micro_batches(mesh, config.batch_images, config.training.accumulation_steps)
    training = dataclasses.replace(config.training, accumulation_steps=count)
    config = dataclasses.replace(config, training=training)
    inputs, shape = program.step_inputs(config), program.batch_shape(config)
    model = checkpoint.abstract_model(config)
    flops = step_flops(
        model,
        tuple(config.trainable),
        shape,
        remat=recomputes(config.model.remat),
        loc_loss=config.box_route == "loc",
    )
    # What training refuses is told at once.
    presets.check_heads_divide(mesh.shape["tensor"], model.config)
    measured = answered = None
    if compiled and topology.chip.kind == "gpu":
        compiled = gpu.can_compile(topology)
        if compiled and not gpu.is_installed():
            log_line(
                f"{topology.name}: by formula: XLA's compiler for GPUs is not installed (pip "
                "install 'cxrjax[plan-gpu]')"
            )
            compiled = False
    elif compiled and kept_only and importlib.util.find_spec("libtpu") is None:
        log_line(
            f"{topology.name}: by formula: which figures are kept of a step, libtpu says, and it "
            "is not installed (pip install 'cxrjax[plan]')"
        )
        compiled = False
    if compiled:
        devices = program.devices_of(topology)
        lowered = program.lower_step(config, devices)
        file = file_of(lowered, topology, kept)
        if not kept_only or (file is not None and file.is_file()):
            measured = measure(lowered, topology, "the training step", file, log_line)
        draws = config.rl.kind != "none" and config.rl.pairs is None
        if measured and (decode or draws):
            lower = program.lower_rollouts if draws else program.lower_decode
            lowered = lower(config, devices)
            file = file_of(lowered, topology, kept)
            if not kept_only or (file is not None and file.is_file()):
                answered = measure(lowered, topology, "the decode loop", file, log_line)
            else:
                log_line(f"{topology.name}: no figures of the decode loop are kept")
    if measured is None:
        guess = by_formula(config, inputs, model.config, shape, total(flops), topology)
        return Plan(config, topology, flops, None, guess)
    return Plan(config, topology, flops, measured, None, answered)


def file_of(lowered: Any, topology: Topology, kept: Path | None) -> Path | None:
    """The file that keeps the figures of a program, named by all that decides them."""
    if kept is None:
        return None
    is_gpu = topology.chip.kind == "gpu"
    compiler = ("jax-cuda12-pjrt", "jax-cuda12-plugin") if is_gpu else ("libtpu",)
    versions = [importlib.metadata.version(name) for name in ("jax", "jaxlib", *compiler)]
    versions += [gpu.target_config(topology)] if is_gpu else []
    told = [f"{name}={os.environ[name]}" for name in _FLAGS if os.environ.get(name)]
    key = [str(_KEPT_VERSION), topology.name, *versions, *told, lowered.as_text()]
    return kept / f"{hashlib.sha256(chr(0).join(key).encode()).hexdigest()}.json"


def measure(
    lowered: Any,
    topology: Topology,
    what: str,
    file: Path | None,
    log_line: Callable[[str], None],
) -> Measured:
    """Compiles a program and reads it, or takes up what was found of the very same one before."""
    if file is not None and file.is_file():
        return Measured.from_json(read_json_object(file))
    if file is not None:  # told before the minutes, not behind them
        make_writable(file.parent, "--kept")
    log_line(f"{topology.name}: compiling {what}, some minutes")
    begun = time.monotonic()
    try:
        compiled = program.compile_program(lowered)
        read = hlo.read_program(compiled.as_text(), topology.chips, topology.slices)
        memory = program.memory_of(compiled)
        found = Measured(memory, None, None, read, time.monotonic() - begun)
    except program.DoesNotFitError as error:
        found = Measured(None, error.limit, error.needed, None, time.monotonic() - begun)
    if file is not None:
        write_json(file, found.to_json())
    return found
