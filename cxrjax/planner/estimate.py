"""Estimates a step's shortest time: a roofline over the instructions of a compiled program.

An estimate, and a friendly one. Each instruction takes what its products need at the published
rate or what its memory traffic needs at the published bandwidth, whichever is more; nothing is
lost between them. Real programs reach part of it.
"""

import dataclasses

from cxrjax.distributed.hardware import Chip, Topology
from cxrjax.planner.hlo import Program

# Of a message from one chip to the next, whatever its size: an assumption, about right for TPUs.
HOP_SECONDS = 1e-6


@dataclasses.dataclass(frozen=True)
class StepEstimate:
    """Seconds of one step.

    Attributes:
        step: all of it.
        compute, hbm, links: what products, memory and links would take alone.
        limit: which of the three is the largest: `compute`, `hbm` or `links`.
    """

    step: float
    compute: float
    hbm: float
    links: float

    @property
    def limit(self) -> str:
        return max(("compute", "hbm", "links"), key=lambda name: getattr(self, name))


def roofline(program: Program, topology: Topology, needed_flops: float = 0.0) -> StepEstimate:
    """Of a program that runs on every chip of a slice.

    Collectives that are begun and awaited apart run beside the work; the others stop it.

    Args:
        needed_flops: of one chip by formula; what of them the program does not show is taken to be
            in its hand-written kernels, if it has any.
    """
    chip = topology.chip
    busy = sum(
        w.times * max(w.flops / chip.flops, w.hbm_bytes / chip.hbm_bandwidth) for w in program.work
    )
    hidden = max(0.0, needed_flops - program.flops) if program.kernels else 0.0
    busy += hidden / chip.flops
    beside = alone = 0.0
    for one in program.collectives:
        seconds = one.times * collective_seconds(one.sent_bytes, one.group, topology)
        beside += seconds if one.overlapped else 0.0
        alone += 0.0 if one.overlapped else seconds
    return StepEstimate(
        step=max(busy, beside) + alone,
        compute=(program.flops + hidden) / chip.flops,
        hbm=program.hbm_bytes / chip.hbm_bandwidth,
        links=beside + alone,
    )


def collective_seconds(sent_bytes: float, group: int, topology: Topology) -> float:
    """Of one collective in which a chip sends so many bytes to its neighbours.

    All of a chip's links send at a time, as rings along each side of the torus do. A group of
    fewer chips than the slice has is taken to lie as squarely as the slice does.
    """
    sides = [side for side in topology.shape if side > 1]
    hops = len(sides) * (group ** (1 / len(sides)) - 1) if sides else 0.0
    return sent_bytes / (topology.chip.link_bandwidth / 2) + hops * HOP_SECONDS


def mfu(model_flops: float, seconds: float, chip: Chip, chips: int) -> float:
    """Model FLOPs utilisation (arXiv 2204.02311, appendix B): nothing that is done twice counts."""
    return model_flops / (seconds * chips * chip.flops)
