"""Estimates without a chip: a step's shortest time, and where there is no compiler, the rest too.

`roofline` goes over the instructions of a compiled program. An estimate, and a friendly one: each
instruction takes what its products need at the published rate or what its memory traffic needs at
the published bandwidth, whichever is more; nothing is lost between them. Real programs reach part
of it. `by_formula` has memory, traffic and collectives by formula, good to some tens of percent:
for GPUs, and to choose which meshes are worth compiling.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from cxrjax.apps.planner.hlo import Program
from cxrjax.apps.planner.program import Memory, StepInputs
from cxrjax.distributed import meshes
from cxrjax.distributed.hardware import Chip, Topology
from cxrjax.errors import UserError
from cxrjax.models.flops import BatchShape, Flops
from cxrjax.models.layers import recomputes
from cxrjax.models.presets import VLMConfig
from cxrjax.training.config import ExperimentConfig

# Of a message from one chip to the next, whatever its size: an assumption, about right for TPUs.
HOP_SECONDS = 1e-6


@dataclasses.dataclass(frozen=True)
class StepEstimate:
    """Seconds of one step, and what products, memory and links would take alone."""

    step: float
    compute: float
    hbm: float
    links: float

    @property
    def limit(self) -> str:
        return max(("compute", "hbm", "links"), key=lambda name: getattr(self, name))


def roofline(program: Program, topology: Topology, needed_flops: float = 0.0) -> StepEstimate:
    """Estimates the time of a program that runs on every chip of a slice.

    Instructions follow one another as the compiler has put them. A collective that is begun and
    awaited apart runs beside the work between; for what that does not cover, the work waits, and
    one collective waits for another, since they share the links.

    Args:
        needed_flops: of one chip by formula; what of them the program does not show is taken to be
            in its hand-written kernels, if it has any.
    """
    chip = topology.chip
    begun: dict[int, list[int]] = {}
    awaited: dict[int, list[int]] = {}
    for number, one in enumerate(program.collectives):
        begun.setdefault(one.begun, []).append(number)
        if one.awaited > one.begun:
            awaited.setdefault(one.awaited, []).append(number)
    # Of a loop's body everything as often as it runs: its waits add up as its work does.
    clock = free = links = 0.0
    ends: dict[int, float] = {}
    for place in range(len(program.work) + 1):
        for number in awaited.get(place, ()):
            clock = max(clock, ends[number])
        for number in begun.get(place, ()):
            one = program.collectives[number]
            seconds = one.times * collective_seconds(one.sent_bytes, one.group, topology)
            links += seconds
            ends[number] = free = max(free, clock) + seconds
            if one.awaited <= one.begun:
                clock = free
        if place < len(program.work):
            work = program.work[place]
            clock += work.times * max(work.flops / chip.flops, work.hbm_bytes / chip.hbm_bandwidth)
    hidden = max(0.0, needed_flops - program.flops) if program.kernels else 0.0
    return StepEstimate(
        step=clock + hidden / chip.flops,
        compute=(program.flops + hidden) / chip.flops,
        hbm=program.hbm_bytes / chip.hbm_bandwidth,
        links=links,
    )


def collective_seconds(sent_bytes: float, group: int, topology: Topology) -> float:
    """Estimates the time of a collective in which a chip sends so many bytes to its neighbours.

    All of a chip's links send at a time, as rings along each side of the torus do. A group of
    fewer chips than the slice has is taken to lie as squarely as the slice does.
    """
    sides = [side for side in topology.shape if side > 1]
    hops = len(sides) * (group ** (1 / len(sides)) - 1) if sides else 0.0
    return sent_bytes / (topology.chip.link_bandwidth / 2) + hops * HOP_SECONDS


def mfu(model_flops: float, seconds: float, chip: Chip, chips: int) -> float:
    """Model FLOPs utilisation (arXiv 2204.02311, appendix B): nothing that is done twice counts."""
    return model_flops / (seconds * chips * chip.flops)


@dataclasses.dataclass(frozen=True)
class Guess:
    """Figures of one chip and step; `collectives`: bytes of arrays gathered or summed, by kind.

    `across_slices`: sums of gradients between slices, and their bytes.
    """

    memory: Memory
    collectives: dict[str, float]
    estimate: StepEstimate
    across_slices: tuple[int, float] = (0, 0.0)


def by_formula(
    config: ExperimentConfig,
    inputs: StepInputs,
    sizes: VLMConfig,
    shape: BatchShape,
    flops: Flops,
    topology: Topology,
) -> Guess:
    """Estimates what a step takes on a slice, without a program.

    Raises:
        UserError: the mesh does not fit the slice.
    """
    mesh: Any = abstract_mesh(config, topology)
    meshes.check_batch_divides(mesh, shape.images, config.training.batch_questions)
    trained = _bytes(mesh, inputs.state.trainable)
    state, frozen = _bytes(mesh, inputs.state), _bytes(mesh, inputs.frozen)
    batch = _bytes(None, inputs.batch) // _shards(mesh)
    temporaries = _temporaries(config, sizes, shape, mesh) + trained
    if config.training.accumulation_steps > 1:
        temporaries += trained
    arguments = state + frozen + batch
    memory = Memory(arguments, state, state, temporaries, arguments + temporaries)

    passes = config.training.accumulation_steps * (3 if recomputes(config.model.remat) else 2)
    whole = _bytes(mesh, (inputs.state.trainable, inputs.frozen), over=("tensor",))
    collectives = _collectives(config, mesh, inputs, sizes, shape)
    chip = topology.chip
    # Weights are read in every pass, activations written and read again; the update is read
    # (parameter, gradient, two moments) and written.
    traffic = passes * whole + 4 * temporaries * config.training.accumulation_steps + 3 * state
    compute, hbm = flops.computed / topology.chips / chip.flops, traffic / chip.hbm_bandwidth
    links = sum(collective_seconds(sent, topology.chips, topology) for sent in collectives.values())
    step = max(compute, hbm) + links
    across = (1, float(trained)) if topology.slices > 1 else (0, 0.0)
    return Guess(memory, collectives, StepEstimate(step, compute, hbm, links), across)


def abstract_mesh(config: ExperimentConfig, topology: Topology) -> AbstractMesh:
    """The mesh of a configuration on a slice, without devices.

    Raises:
        UserError: as `meshes.mesh_sizes`.
    """
    chips = f"the {topology.chips} chips of {topology.name}"
    if config.mesh.slices != topology.slices:
        raise UserError(
            f"mesh.slices={config.mesh.slices} and {topology.name}: set "
            f"--config.mesh.slices={topology.slices}"
        )
    sizes = meshes.mesh_sizes(config.mesh, topology.chips, chips)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes))


def _shards(mesh: Any) -> int:
    return math.prod(mesh.shape[axis] for axis in meshes.BATCH_AXES)


def _bytes(mesh: Any, tree: Any, over: tuple[str, ...] = meshes.AXES) -> int:
    """Bytes of a tree of shapes on one device, cut along the axes `over` alone."""
    if mesh is None:
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
    total = 0
    shardings = meshes.tree_shardings(mesh, tree)
    for leaf, placed in zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True):
        axes = {axis for axis in jax.tree.leaves(tuple(placed.spec)) if axis in over}
        pieces = math.prod(mesh.shape[axis] for axis in axes)
        total += math.prod(leaf.shape) * leaf.dtype.itemsize // pieces
    return total


def _temporaries(config: ExperimentConfig, sizes: VLMConfig, shape: BatchShape, mesh: Any) -> int:
    """Activations of a micro-batch that are kept, one layer at work, a chunk of logits."""
    images = shape.images / config.training.accumulation_steps / _shards(mesh)
    slots = shape.prefix + shape.answer
    if config.model.share == "tower":
        tokens = images * shape.questions * (sizes.num_context + slots)
    else:
        tokens = images * (sizes.num_context + shape.questions * slots)
    item = jnp.dtype(config.model.dtype).itemsize
    decoder = sizes.decoder
    inner = (decoder.num_heads + decoder.num_kv_heads) * decoder.head_dim * 2
    layer = tokens * (4 * decoder.width + inner + 3 * decoder.mlp_dim) * item
    kept = layer
    if recomputes(config.model.remat):
        attended = decoder.num_heads * decoder.head_dim
        width = decoder.width + (attended if config.model.remat == "attention" else 0)
        kept = tokens * width * item
    total = decoder.depth * kept + layer
    total += (
        3
        * 4
        * min(config.training.logit_chunk, images * shape.questions * shape.answer)
        * (decoder.vocab_size / mesh.shape["tensor"])
    )
    if sizes.vision is not None and not shape.from_features:
        patches = images * sizes.vision.num_patches
        total = max(total, patches * (6 * sizes.vision.width + sizes.vision.mlp_dim) * item)
    return int(total)


def _collectives(
    config: ExperimentConfig,
    mesh: Any,
    inputs: StepInputs,
    sizes: VLMConfig,
    shape: BatchShape,
) -> dict[str, float]:
    """Bytes of the arrays that one chip takes part in gathering or summing."""
    found: dict[str, float] = {}
    shards, fsdp, tensor = _shards(mesh), mesh.shape["fsdp"], mesh.shape["tensor"]
    gradients = _bytes(mesh, inputs.state.trainable)
    if shards > 1:
        found["all-reduce"] = float(gradients)
    if fsdp > 1:
        # For each micro-batch, in the precision that is computed in: gathered forward and once more
        # backward, where what is computed again uses them too; gradients summed into their parts.
        trained, frozen = (
            _bytes(mesh, _computed_in(config.model.dtype, tree), over=("tensor",))
            for tree in (inputs.state.trainable, inputs.frozen)
        )
        micro_batches = config.training.accumulation_steps
        found["all-gather"] = float(micro_batches * 2 * (trained + frozen))
        found["reduce-scatter"] = float(micro_batches * trained)
    if tensor > 1:
        images = shape.images / shards
        tokens = images * (sizes.num_context + shape.questions * (shape.prefix + shape.answer))
        item = jnp.dtype(config.model.dtype).itemsize
        # A sum behind attention and one behind the MLP, forward and backward.
        one = tokens * sizes.decoder.width * item
        repeats = 6 if recomputes(config.model.remat) else 4
        found["all-reduce"] = found.get("all-reduce", 0.0) + repeats * sizes.decoder.depth * one
    return found


def _computed_in(dtype: str, tree: Any) -> Any:
    """Shapes of a tree whose wider arrays are rounded to a dtype."""
    limit = jnp.dtype(dtype)
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, min(x.dtype, limit, key=lambda d: d.itemsize)), tree
    )
