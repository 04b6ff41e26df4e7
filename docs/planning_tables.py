"""Prints the tables of docs/planning.md: four recipes on six slices, and weak scaling.

python docs/planning_tables.py              compiled: 24 programs, hours of a processor
python docs/planning_tables.py --kept_only  those compiled so far, the rest by formula
python docs/planning_tables.py --formula    a minute
"""

import argparse
import dataclasses
import functools
import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax

from cxrjax.apps.planner.estimate import abstract_mesh
from cxrjax.apps.planner.plans import Plan, make_plan
from cxrjax.apps.planner.search import Planner, with_batch
from cxrjax.distributed.hardware import Topology, parse_topology
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.config_file import load_config

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
    Recipe("configs/gemex_sft.py", images_per_chip=8, fsdp=8),
    Recipe(
        "configs/cxr_qba.py",
        images_per_chip=4,
        fsdp=1,
        overrides=("--config.training.accumulation_steps=4",),
    ),
    Recipe("configs/vix_ray_stage1.py:medgemma", images_per_chip=16, fsdp=1),
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
        config.removeprefix("configs/").replace(".py", ""),
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
    name = config.removeprefix("configs/").replace(".py", "")
    if small.estimate is None or large.estimate is None:
        return f"| {name} | does not fit | | | | |"
    sent = [sum((plan.collectives or {}).values()) for plan in (small, large)]
    growth = sent[1] / sent[0] - 1 if sent[0] else 0.0
    efficiency = small.estimate.step / large.estimate.step
    return (
        f"| {name} | {sent[0] / 1e6:,.1f} | {sent[1] / 1e6:,.1f} | {growth:.1%} | "
        f"{efficiency:.1%} | {'formula' if small.guess else 'compiler'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser("docs/planning_tables.py", description=__doc__)
    parser.add_argument("--formula", action="store_true")
    parser.add_argument("--kept_only", action="store_true")
    flags = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    log_line = functools.partial(print, file=sys.stderr, flush=True)
    plan = functools.partial(
        make_plan, compiled=not flags.formula, kept_only=flags.kept_only, log_line=log_line
    )
    print(tables(plan, log_line))


if __name__ == "__main__":
    main()
