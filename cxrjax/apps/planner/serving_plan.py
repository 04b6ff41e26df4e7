"""Capacity of a chip as a server: slots, and tokens a second by the model of estimate.py.

The step of `serve` itself is compiled by the TPU's compiler for several numbers of slots: the whole
model, a cache with as many rows, and one token of each.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import SingleDeviceSharding

from cxrjax.apps.planner import program
from cxrjax.apps.planner.estimate import roofline
from cxrjax.apps.planner.plans import KEPT, Measured, file_of, measure
from cxrjax.apps.serving.programs import Programs, Shapes
from cxrjax.decoding.grammar import FREE_TEXT, compile_grammar
from cxrjax.decoding.strategy import read_strategy
from cxrjax.distributed.hardware import GIB, Topology
from cxrjax.errors import UserError
from cxrjax.training import checkpoint
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.data import example_config
from cxrjax.training.step import cast_params

SLOTS = (1, 4, 16, 64, 256)
_STOP = 1


@dataclasses.dataclass(frozen=True)
class SlotsPlan:
    """Slots of a server on one chip; `seconds` of a step, None where it does not fit."""

    slots: int
    measured: Measured
    seconds: float | None

    @property
    def tokens_per_second(self) -> float | None:
        """Throughput while every slot generates and no prompt is prefilled."""
        return None if self.seconds is None else self.slots / self.seconds

    def to_json(self) -> dict[str, Any]:
        memory = self.measured.memory
        return {
            "slots": self.slots,
            "fits": memory is not None,
            "hbm_bytes": memory.peak if memory else self.measured.needed,
            "step_seconds_estimate": self.seconds,
            "tokens_per_second_estimate": self.tokens_per_second,
        }


def plan_serving(
    config: ExperimentConfig,
    topology: Topology,
    slots: Sequence[int] = SLOTS,
    kept: Path | None = KEPT,
    log_line: Callable[[str], None] = lambda line: None,
) -> list[SlotsPlan]:
    """Plans for each number of slots, up to the first that does not fit.

    Raises:
        UserError: the slice is no single TPU chip, or libtpu is absent.
    """
    if topology.chip.kind != "tpu" or topology.chips != 1:
        raise UserError(
            f"--serve: a server has one device, and is compiled for a TPU; {topology.name} is "
            f"{topology.chips} of a {topology.chip.kind}: pass --topology=v5e-1"
        )
    device = program.devices_of(topology)[0]
    found = []
    for count in slots:
        lowered = lower_serving(config, count, SingleDeviceSharding(device))
        what = f"the step of {count} slots"
        file = file_of(lowered, topology, kept)
        measured = measure(lowered, topology, what, file, log_line)
        seconds = None
        if measured.program is not None:
            seconds = roofline(measured.program, topology).step
        found.append(SlotsPlan(count, measured, seconds))
        if seconds is None:
            break
    return found


def lower_serving(config: ExperimentConfig, slots: int, sharding: Any) -> Any:
    """The step of a server of the configured model, made of shapes alone."""
    examples = example_config(config)
    graphdef, state = nnx.split(checkpoint.abstract_model(config))
    state = jax.eval_shape(lambda s: cast_params(s, config.model.frozen_dtype), state)
    strategy = read_strategy(config.decoding)
    shapes = Shapes(
        slots,
        tuple(examples.prefix_buckets),
        strategy.max_answer_tokens,
        2 if examples.earlier_images else 1,
    )
    programs = Programs(
        nnx.merge(graphdef, state),
        shapes,
        compile_grammar(FREE_TEXT),
        (_STOP,),
        strategy.boxes,
        np.full((6, 8), -1, np.int32),
        shapes_alone=True,
    )
    return programs.lower_step(sharding)


def describe_serving(plans: Sequence[SlotsPlan], topology: Topology) -> str:
    """A table for people."""
    lines = [
        f"{topology.name} ({topology.vendor_name}): the step of a server, compiled; seconds by a "
        "model, at least",
        "| slots | HBM | step | tokens/s |",
        "|---|---|---|---|",
    ]
    for plan in plans:
        memory = plan.measured.memory
        size = memory.peak if memory else plan.measured.needed
        told = "unknown" if size is None else f"{size / GIB:.2f} GiB"
        if plan.seconds is None or plan.tokens_per_second is None:
            lines.append(f"| {plan.slots} | needs {told}: does not fit | | |")
        else:
            lines.append(
                f"| {plan.slots} | {told} | {plan.seconds * 1e3:.2f} ms "
                f"| {plan.tokens_per_second:,.0f} |"
            )
    return "\n".join(lines)
