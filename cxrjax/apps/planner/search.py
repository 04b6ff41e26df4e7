"""Compares plans to find a batch size and a mesh."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from cxrjax.apps.planner.estimate import abstract_mesh
from cxrjax.apps.planner.plans import Plan
from cxrjax.distributed import meshes
from cxrjax.distributed.hardware import Topology
from cxrjax.distributed.meshes import MeshConfig
from cxrjax.errors import UserError
from cxrjax.models.layers import REMAT
from cxrjax.training.config import ExperimentConfig

# Makes a plan of a configuration; compiled or not.
Planner = Callable[..., Plan]


def with_batch(config: ExperimentConfig, images: int) -> ExperimentConfig:
    """Returns the configuration with a batch of `images` images."""
    batch = dataclasses.replace(config.training, batch_questions=None, batch_images=images)
    return dataclasses.replace(config, training=batch)


def spread(config: ExperimentConfig, mesh: Mapping[str, int], remat: str) -> ExperimentConfig:
    """Returns the configuration with another mesh and another remat policy."""
    return dataclasses.replace(
        config,
        mesh=MeshConfig(**mesh, strategy=config.mesh.strategy),
        model=dataclasses.replace(config.model, remat=remat),
    )


def find_batch(
    config: ExperimentConfig, topology: Topology, plan: Planner, most_compiles: int = 6
) -> tuple[Plan | None, Plan | None]:
    """The largest batch that fits, at as many micro-batches as configured.

    Memory grows almost linearly with the batch: two plans give the line, which says what to try
    next; then halves, until the two are neighbours or there have been enough compilations.

    Args:
        plan: of a configuration; raises what `make_plan` raises.
        most_compiles: plans made at most.

    Returns:
        The plan of the largest batch found to fit, None where none was; and that of the smallest
        found not to.
    """
    mesh = abstract_mesh(config, topology)
    shards = math.prod(mesh.shape[axis] for axis in meshes.BATCH_AXES)
    unit = shards * config.training.accumulation_steps
    made: dict[int, Plan] = {}

    def fits(units: int) -> bool:
        made[units] = plan(with_batch(config, units * unit))
        return made[units].fits

    good, bad = 0, None
    units = max(1, config.batch_images // unit)
    while len(made) < most_compiles and (bad is None or bad - good > 1):
        if fits(units):
            good = units
        else:
            bad = units
        units = _next(made, good, bad)
    return made.get(good), None if bad is None else made[bad]


def _next(made: dict[int, Plan], good: int, bad: int | None) -> int:
    """The next batch to try: where the line meets the limit, between what is known."""
    peaks = sorted(
        (units, plan.memory.peak if plan.memory else (plan.measured and plan.measured.needed) or 0)
        for units, plan in made.items()
    )
    peaks = [(units, peak) for units, peak in peaks if peak]
    top = bad - 1 if bad is not None else good * (2 if len(peaks) < 2 else 64)
    guess = top if bad is None else (good + bad) // 2
    if len(peaks) >= 2:
        (x0, y0), (x1, y1) = peaks[-2:]
        limit = next(iter(made.values())).limit
        if y1 > y0:
            guess = int(x0 + (limit - y0) * (x1 - x0) / (y1 - y0))
    return min(max(guess, good + 1), max(top, good + 1))


def mesh_candidates(config: ExperimentConfig, chips: int) -> Iterator[dict[str, int]]:
    """Meshes of data, fsdp and tensor over so many chips, powers of two."""
    for tensor in (1, 2, 4, 8):
        for fsdp in (2**n for n in range(chips.bit_length())):
            if chips % (tensor * fsdp) == 0:
                others = {axis: 1 for axis in meshes.AXES}
                yield {**others, "data": chips // (tensor * fsdp), "fsdp": fsdp, "tensor": tensor}


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of a sweep: a mesh, what layers keep, and its plans."""

    mesh: dict[str, int]
    remat: str
    guessed: Plan
    compiled: Plan | None = None

    @property
    def plan(self) -> Plan:
        return self.compiled or self.guessed


def sweep(
    config: ExperimentConfig, topology: Topology, plan: Planner, most_compiles: int = 4
) -> list[Choice]:
    """All meshes and remat policies by formula, then the most promising ones compiled.

    Args:
        plan: takes `compiled=False` for a plan by formula.

    Returns:
        Best first: compiled and fitting by time, then the rest by the formula's time.
    """
    found = []
    for mesh in mesh_candidates(config, topology.chips):
        for remat in REMAT:
            try:
                guessed = plan(spread(config, mesh, remat), compiled=False)
                found.append(Choice(mesh, remat, guessed))
            except UserError:
                continue  # the batch or a dimension does not divide
    if not found:
        raise UserError(
            f"--sweep: no mesh over {topology.chips} chips divides the batch of "
            f"{config.batch_images} images in {config.training.accumulation_steps} micro-batches"
        )
    found.sort(key=_rank)
    for index, choice in enumerate(found[:most_compiles]):
        if topology.chip.kind == "tpu":
            compiled = plan(spread(config, choice.mesh, choice.remat))
            found[index] = dataclasses.replace(choice, compiled=compiled)
    return sorted(found, key=_rank)


def _rank(choice: Choice) -> tuple[bool, bool, float]:
    estimate = choice.plan.estimate
    # The formula is not exact: what it has a little above the limit is worth compiling.
    memory, limit = choice.plan.memory, choice.plan.limit
    room = choice.plan.fits or (
        choice.compiled is None and memory is not None and memory.peak < 1.2 * limit
    )
    return not room, choice.compiled is None, estimate.step if estimate else float("inf")


def sweep_table(choices: list[Choice], shown: int = 12) -> str:
    """A line a choice."""
    lines = [f"{'mesh':34} {'remat':9} {'fits':5} {'peak GiB':>9} {'step s':>8} {'MFU':>6}  by"]
    for choice in choices[:shown]:
        plan, memory, estimate = choice.plan, choice.plan.memory, choice.plan.estimate
        mesh = " ".join(f"{axis}={size}" for axis, size in choice.mesh.items() if size > 1)
        lines.append(
            f"{mesh or 'one chip':34} {choice.remat:9} {'yes' if plan.fits else 'no':5} "
            f"{memory.peak / 2**30 if memory else float('nan'):9.2f} "
            f"{estimate.step if estimate else float('nan'):8.3f} "
            f"{plan.mfu if plan.mfu else float('nan'):6.1%}  "
            f"{'compiler' if choice.compiled else 'formula'}"
        )
    best = choices[0]
    if best.plan.fits:
        mesh = " ".join(f"--config.mesh.{axis}={size}" for axis, size in best.mesh.items())
        lines.append(f"best: {mesh} --config.model.remat={best.remat}")
    else:
        lines.append("none fits: more chips, a smaller batch or more accumulation_steps")
    return "\n".join(lines)
