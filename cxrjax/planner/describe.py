"""Plans in words, and the tables of docs/planning.md: four recipes on six slices, weak scaling."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from cxrjax.distributed.hardware import GIB, Topology, parse_topology
from cxrjax.distributed.meshes import AXES
from cxrjax.models.flops import total
from cxrjax.planner.estimate import abstract_mesh, roofline
from cxrjax.planner.plans import Measured, Plan
from cxrjax.planner.search import Planner, with_batch
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.config_file import load_config

# NVLink joins those of one machine at the bandwidth in the table of chips.
_GPUS_OF_A_MACHINE = 8


def describe(plan: Plan) -> str:
    """A page for people."""
    topology, flops = plan.topology, total(plan.flops)
    by = "by formula alone: nothing was compiled" if plan.guess else "compiled"
    lines = [
        f"{topology.name} ({topology.vendor_name}), {topology.chips} chips, {by}",
        f"  batch of {plan.config.batch_images} images in "
        f"{plan.config.training.accumulation_steps} micro-batches, mesh "
        + " ".join(f"{axis}={getattr(plan.config.mesh, axis)}" for axis in AXES),
        f"  fits: {'yes' if plan.fits else 'NO'}",
    ]
    memory = plan.memory
    says = "the formula says" if plan.guess else "the compiler says"
    if memory is None:
        needed = plan.measured.needed if plan.measured else None
        lines.append(f"HBM of a chip, {says}: needs {_gib(needed)} of {_gib(plan.limit)}")
    else:
        lines += [
            f"HBM of a chip, {says}: peak {_gib(memory.peak)} of {_gib(plan.limit)}",
            f"  arguments {_gib(memory.arguments)}, outputs {_gib(memory.outputs)}, of these in "
            f"place {_gib(memory.aliased)}, temporaries {_gib(memory.temporaries)}",
        ]
    sent = plan.collectives
    if sent is not None:
        listed = ", ".join(f"{kind} {value / 1e6:,.1f} MB" for kind, value in sent.items())
        lines.append(f"Collectives of a chip in a step, {says}: {listed or 'none'}")
    lines.append(
        f"Operations of a step, by formula: {flops.model:.4g}, and {flops.recompute:.4g} again "
        "to save memory"
    )
    for name, part in plan.flops.items():
        lines.append(
            f"  {name}: forward {part.forward:.3g}, backward {part.backward:.3g}, again "
            f"{part.recompute:.3g}"
        )
    compiled = plan.measured.program if plan.measured else None
    if compiled is not None:
        lines.append(
            f"  the compiled program has {compiled.flops * topology.chips:.4g} in its products, "
            f"and moves {compiled.hbm_bytes / 1e9:,.1f} GB through a chip's HBM"
        )
        if compiled.kernels:
            lines.append("  beside these, hand-written kernels run, with what the formula has more")
        if compiled.unknown_loops:
            lines.append(f"  {compiled.unknown_loops} loops of unknown length were counted once")
    if estimate := plan.estimate:
        lines += [
            f"A step takes at least {estimate.step:.3f} s, a model estimates (MFU at most "
            f"{plan.mfu:.1%}); limited by {estimate.limit}",
            f"  alone: compute {estimate.compute:.3f} s, HBM {estimate.hbm:.3f} s, links "
            f"{estimate.links:.4f} s",
        ]
        if topology.chip.kind == "gpu" and topology.chips > _GPUS_OF_A_MACHINE:
            lines.append("  links as if NVLink joined all GPUs; what joins machines is slower")
    if plan.decode is not None:
        lines.append(_describe_decode(plan.decode, topology))
    lines.append(f"Figures of the chip: {topology.chip.source}")
    return "\n".join(lines)


def _describe_decode(decode: Measured, topology: Topology) -> str:
    if decode.memory is None or decode.program is None:
        return f"Answering a batch: does not fit, needs {_gib(decode.needed)}"
    # The loop ends early where all answers have ended.
    seconds = roofline(decode.program, topology).step
    return (
        f"Answering a batch: peak {_gib(decode.memory.peak)}, at least {seconds:.3f} s where the "
        "longest answer fills its slots"
    )


def _gib(value: int | None) -> str:
    return "an unknown amount" if value is None else f"{value / GIB:.2f} GiB"


# In the order in which they are compiled.
SLICES = ("v5e-8", "v5e-256", "v5e-16", "v6e-8", "v5p-8", "v6e-256")


class Recipe(NamedTuple):
    """A configuration and how it is spread.

    Attributes:
        images_per_chip: of a batch, all micro-batches together.
        fsdp: chips over which one copy of the parameters is cut; the slice's, where it has fewer.
        overrides: what else differs from the file.
    """

    config: str
    images_per_chip: int
    fsdp: int
    overrides: tuple[str, ...] = ()


RECIPES = (
    Recipe("configs/vindr_lora.py", images_per_chip=16, fsdp=1),
    # Trained whole: 16 bytes a parameter, so a copy is cut as far as it goes.
    Recipe(
        "configs/gemex_sft.py",
        images_per_chip=8,
        fsdp=16,
        overrides=("--config.training.accumulation_steps=8",),
    ),
    Recipe(
        "configs/cxr_qba.py",
        images_per_chip=4,
        fsdp=1,
        overrides=("--config.training.accumulation_steps=4",),
    ),
    Recipe("configs/vix_ray_stage1.py", images_per_chip=16, fsdp=1),
)
# Weak scaling is looked at between these, at equal batch per chip.
SCALING = ("v5e-16", "v5e-256")


def recipe_config(recipe: Recipe, topology: Topology) -> ExperimentConfig:
    """A recipe on a slice, its batch as large as its chips are many."""
    config = load_config(recipe.config, recipe.overrides)
    mesh = dataclasses.replace(config.mesh, fsdp=math.gcd(recipe.fsdp, topology.chips))
    config = dataclasses.replace(config, mesh=mesh)
    return with_batch(config, recipe.images_per_chip * topology.chips)


def tables(plan: Planner, log_line: Callable[[str], None]) -> str:
    """Both tables in Markdown.

    Args:
        plan: `make_plan`, of a configuration and a topology.
        log_line: told what is planned.
    """
    plans: dict[tuple[str, str], Plan] = {}
    for name in SLICES:  # all recipes on one, then on the next: what tells most comes first
        for recipe in RECIPES:
            topology = parse_topology(name)
            log_line(f"{recipe.config} on {name}")
            plans[recipe.config, name] = plan(recipe_config(recipe, topology), topology=topology)
    lines = [
        "| recipe | slice | images a step | mesh | fits | peak GiB of a chip | limit | "
        "collectives MB a chip and step | step s, at least | MFU, at most | limited by | said by |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for recipe in RECIPES:
        for name in sorted(SLICES, key=_by_generation):
            lines.append(_row(recipe.config, name, plans[recipe.config, name]))
    lines += [
        "",
        f"| recipe | collectives MB a chip, {SCALING[0]} | {SCALING[1]} | grows by | weak-scaling "
        "efficiency, estimated | said by |",
        "|---|---|---|---|---|---|",
    ]
    for recipe in RECIPES:
        ends = [plans[recipe.config, name] for name in SCALING]
        if len({end.guess is None for end in ends}) > 1:  # compiler and formula do not compare
            ends = [plan(end.config, topology=end.topology, compiled=False) for end in ends]
        lines.append(_scaling_row(recipe.config, *ends))
    return "\n".join(lines)


def _by_generation(name: str) -> tuple[str, int]:
    generation, _, count = name.partition("-")
    return generation, int(count)


def _row(config: str, name: str, plan: Plan) -> str:
    said = plan.to_json()
    shape = abstract_mesh(plan.config, plan.topology).shape
    mesh = " ".join(f"{axis}={size}" for axis, size in shape.items() if size != 1)
    needed, sent = said["hbm_bytes_per_chip"], said["collective_bytes_per_chip"]
    cells = [
        config.removeprefix("configs/").removesuffix(".py"),
        name,
        str(said["batch_images"]),
        mesh,
        "yes" if plan.fits else "no",
        "?" if needed is None else f"{needed / 2**30:.2f}",
        f"{plan.limit / 2**30:.2f}",
        "" if sent is None else f"{sent / 1e6:,.0f}",
        "" if plan.estimate is None else f"{plan.estimate.step:.2f}",
        "" if plan.mfu is None else f"{plan.mfu:.0%}",
        "" if plan.estimate is None else plan.estimate.limit,
        said["source"],
    ]
    return f"| {' | '.join(cells)} |"


def _scaling_row(config: str, small: Plan, large: Plan) -> str:
    name = config.removeprefix("configs/").removesuffix(".py")
    if small.estimate is None or large.estimate is None:
        return f"| {name} | does not fit | | | | |"
    sent = [sum((plan.collectives or {}).values()) for plan in (small, large)]
    growth = sent[1] / sent[0] - 1 if sent[0] else 0.0
    efficiency = small.estimate.step / large.estimate.step
    return (
        f"| {name} | {sent[0] / 1e6:,.1f} | {sent[1] / 1e6:,.1f} | {growth:.1%} | "
        f"{efficiency:.1%} | {'formula' if small.guess else 'compiler'} |"
    )
