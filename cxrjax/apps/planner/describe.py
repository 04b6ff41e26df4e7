"""A plan in words."""

from cxrjax.apps.planner.estimate import roofline
from cxrjax.apps.planner.plans import Measured, Plan
from cxrjax.distributed.hardware import GIB, Topology
from cxrjax.distributed.meshes import AXES
from cxrjax.models.flops import total

# NVLink joins those of one machine at the bandwidth in the table of chips.
_GPUS_OF_A_MACHINE = 8


def describe(plan: Plan) -> str:
    """A page for people."""
    topology, flops = plan.topology, total(plan.flops)
    by = "by formula only; nothing was compiled" if plan.guess else "compiled"
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
    if topology.slices > 1 and plan.across_slices:
        count, size = plan.across_slices
        lines.append(
            f"  of these between {topology.slices} slices, over the data-centre network: {count:,} "
            f"of {size / 1e6:,.1f} MB in all, estimated as if the chips' own links carried them"
        )
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
