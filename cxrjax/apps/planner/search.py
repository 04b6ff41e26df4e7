"""Compares plans to find a batch size and a mesh."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from cxrjax.apps.planner import program
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


def spread(
    config: ExperimentConfig, mesh: Mapping[str, int], remat: str, micro_batches: int
) -> ExperimentConfig:
    """Returns the configuration with another mesh, remat policy and number of micro-batches."""
    return dataclasses.replace(
        config,
        mesh=MeshConfig(**mesh, strategy=config.mesh.strategy),
        model=dataclasses.replace(config.model, remat=remat),
        training=dataclasses.replace(config.training, accumulation_steps=micro_batches),
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
    """Meshes of data, fsdp and tensor over so many chips, powers of two, the same on each slice."""
    chips //= config.mesh.slices
    for tensor in (1, 2, 4, 8):
        for fsdp in (2**n for n in range(chips.bit_length())):
            if chips % (tensor * fsdp) == 0:
                others = {axis: 1 for axis in meshes.AXES}
                yield {**others, "data": chips // (tensor * fsdp), "fsdp": fsdp, "tensor": tensor}


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of a sweep: a mesh, what layers keep, micro-batches, and its plans."""

    mesh: dict[str, int]
    remat: str
    micro_batches: int
    guessed: Plan
    compiled: Plan | None = None

    @property
    def plan(self) -> Plan:
        return self.compiled or self.guessed


def sweep(
    config: ExperimentConfig, topology: Topology, plan: Planner, most_compiles: int = 4
) -> list[Choice]:
    """All meshes and remat policies by formula, then the most promising ones compiled.

    Each with the fewest micro-batches that the formula lets fit; one that then does not fit is
    compiled again with the next number of them.

    Args:
        plan: takes `compiled=False` for a plan by formula.

    Returns:
        Best first: compiled and fitting by time, then the rest by the formula's time.
    """
    found = []
    for mesh in mesh_candidates(config, topology.chips):
        for remat in REMAT:
            try:
                found.append(fewest(config, mesh, remat, plan))
            except UserError:
                continue  # the batch or a dimension does not divide
    if not found:
        raise UserError(
            f"--sweep: no mesh over {topology.chips} chips divides the batch of "
            f"{config.batch_images} images"
        )
    found.sort(key=rank)
    compiles, index = most_compiles if program.can_compile(topology) else 0, 0
    while compiles and index < len(found):
        choice = found[index]
        compiled = plan(spread(config, choice.mesh, choice.remat, choice.micro_batches))
        compiles -= 1
        found[index] = dataclasses.replace(choice, compiled=compiled)
        more = [n for n in _counts(config, choice.mesh) if n > choice.micro_batches]
        if not compiled.fits and more:
            guessed = plan(spread(config, choice.mesh, choice.remat, more[0]), compiled=False)
            found.insert(index + 1, Choice(choice.mesh, choice.remat, more[0], guessed))
        index += 1
    return sorted(found, key=rank)


def _counts(config: ExperimentConfig, mesh: Mapping[str, int]) -> list[int]:
    """Numbers of micro-batches that a device's share of the batch divides into, ascending."""
    share = config.batch_images // math.prod(mesh[axis] for axis in meshes.BATCH_AXES)
    return [count for count in range(1, share + 1) if share % count == 0]


def fewest(config: ExperimentConfig, mesh: dict[str, int], remat: str, plan: Planner) -> Choice:
    """The fewest micro-batches with which a plan by formula fits; else the most there are.

    Raises:
        UserError: the batch or a dimension does not divide.
    """
    *fewer, most = _counts(config, mesh) or [1]
    count, guessed = most, plan(spread(config, mesh, remat, most), compiled=False)
    for each in fewer if guessed.fits else ():
        found = plan(spread(config, mesh, remat, each), compiled=False)
        if found.fits:
            count, guessed = each, found
            break
    return Choice(mesh, remat, count, guessed)


def rank(choice: Choice) -> tuple[bool, bool, float]:
    """Sorts by whether there is room, who says so, and time."""
    estimate = choice.plan.estimate
    # The formula is not exact: what it has a little above the limit is worth compiling.
    memory, limit = choice.plan.memory, choice.plan.limit
    room = choice.plan.fits or (
        choice.compiled is None and memory is not None and memory.peak < 1.2 * limit
    )
    return not room, choice.compiled is None, estimate.step if estimate else float("inf")


def sweep_table(choices: list[Choice], shown: int = 12) -> str:
    """A line a choice."""
    lines = [
        f"{'mesh':34} {'remat':9} {'micro':>5} {'fits':5} "
        f"{'peak GiB':>9} {'step s':>8} {'MFU':>6}  by"
    ]
    for choice in choices[:shown]:
        plan, memory, estimate = choice.plan, choice.plan.memory, choice.plan.estimate
        mesh = " ".join(f"{axis}={size}" for axis, size in choice.mesh.items() if size > 1)
        lines.append(
            f"{mesh or 'one chip':34} {choice.remat:9} {choice.micro_batches:5} "
            f"{'yes' if plan.fits else 'no':5} "
            f"{memory.peak / 2**30 if memory else float('nan'):9.2f} "
            f"{estimate.step if estimate else float('nan'):8.3f} "
            f"{plan.mfu if plan.mfu else float('nan'):6.1%}  "
            f"{'compiler' if choice.compiled else 'formula'}"
        )
    best = choices[0]
    if best.plan.fits:
        mesh = " ".join(f"--config.mesh.{axis}={size}" for axis, size in best.mesh.items())
        lines.append(
            f"best: {mesh} --config.model.remat={best.remat} "
            f"--config.training.accumulation_steps={best.micro_batches}"
        )
    else:
        lines.append("none fits: more chips, or a smaller batch")
    return "\n".join(lines)
