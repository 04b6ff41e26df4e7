"""Accelerators by their makers' published figures, and the slices they come in."""

import dataclasses
import math
import re
from typing import Literal

from cxrjax.errors import UserError
from cxrjax.files import read_packaged

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One accelerator. Bandwidths are in bytes per second."""

    name: str
    kind: Literal["tpu", "gpu"]
    # What JAX calls it; empty where no program is compiled for it here.
    device_kinds: tuple[str, ...]
    hbm_bytes: int  # as published; compilers keep a little for themselves
    flops: float  # dense bfloat16 products per second, a product and its sum counted as two
    hbm_bandwidth: float  # of the memory
    link_bandwidth: float  # of all links to other chips together, both directions added up
    shapes: tuple[tuple[int, ...], ...]  # the slices that can be had, as the torus of their chips
    source: str  # where the figures come from
    cores: int = 1  # cores of a chip that the vendor's slice names count; v5p-8 has 4 chips


def _shape(name: str) -> tuple[int, ...]:
    return tuple(int(side) for side in name.split("x"))


def _read_chips() -> dict[str, Chip]:
    rows = read_packaged(str(__package__), "chips.toml")
    chips = {}
    for name, row in rows.items():
        kinds, shapes = tuple(row["device_kinds"]), tuple(map(_shape, row["shapes"].split()))
        chips[name] = Chip(name, **(row | {"device_kinds": kinds, "shapes": shapes}))
    return chips


CHIPS = _read_chips()
_ALSO_CALLED = {"a100": "a100-80"}


def chip_of_device(device_kind: str) -> Chip | None:
    """The chip that JAX calls `device_kind`; None where the table has none, as of CPUs."""
    return next((chip for chip in CHIPS.values() if device_kind in chip.device_kinds), None)


@dataclasses.dataclass(frozen=True)
class Topology:
    """Chips of one kind, joined to a torus of `shape`; or several such slices."""

    chip: Chip
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def chips(self) -> int:
        return math.prod(self.shape) * self.slices

    @property
    def slice_name(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def name(self) -> str:
        return self.slice_name if self.slices == 1 else f"{self.slices} x {self.slice_name}"

    @property
    def vendor_name(self) -> str:
        """Name by the vendor's count, such as v5e-8, or v5p-8 for four chips of two cores."""
        of_slice = f"{self.chip.name}-{math.prod(self.shape) * self.chip.cores}"
        return of_slice if self.slices == 1 else f"{of_slice}x{self.slices}"


def parse_topology(name: str) -> Topology:
    """`v5e:2x4` or `v5e-8` of eight v5e chips; `v5p-8` or `v5p:2x2x1` of four v5p chips.

    `v5e-256x2` is two slices. A GPU's name alone is one of it, and `a100` the one of 80 GB.

    Raises:
        UserError: no such chip or slice; lists those that there are.
    """
    generation, shape, count, slices = name, None, None, 1
    if match := re.fullmatch(r"(.+):(\d+(?:x\d+)*)", name):
        generation, shape = match[1], _shape(match[2])
    elif match := re.fullmatch(r"(.+)-(\d+)(?:x([1-9]\d{0,2}))?", name):
        generation, count, slices = match[1], int(match[2]), int(match[3] or 1)
    chip = CHIPS.get(_ALSO_CALLED.get(generation, generation))
    if chip is not None and chip.kind == "gpu" and slices > 1:
        raise UserError(f"--topology={name}: slices are of TPUs; write {generation}-N for N GPUs")
    if chip is not None and chip.kind == "gpu" and name in (generation, chip.name):
        return Topology(chip, (1,))
    if chip is None:
        raise UserError(
            f"--topology={name}: unknown chip {generation!r}; known are "
            f"{', '.join(CHIPS)}, written as v5e:2x4 or v5e-8"
        )
    for known in (Topology(chip, s) for s in chip.shapes):
        if known.shape == shape or known.chips * chip.cores == count:
            return dataclasses.replace(known, slices=slices)
    there = ", ".join(
        f"{t.name} ({t.vendor_name})" for t in (Topology(chip, s) for s in chip.shapes)
    )
    raise UserError(f"--topology={name}: no such slice of {chip.name}; there are {there}")
