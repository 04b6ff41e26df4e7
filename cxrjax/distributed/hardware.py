"""Accelerators by their makers' published figures, and the slices they come in."""

import dataclasses
import math
import re
from typing import Literal

from cxrjax.errors import UserError

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One accelerator. Bandwidths are in bytes per second.

    Attributes:
        device_kinds: what JAX calls it; empty where no program is compiled for it here.
        hbm_bytes: as published; compilers keep a little for themselves.
        flops: dense bfloat16 products per second, a product and its sum counted as two.
        hbm_bandwidth: of the memory.
        link_bandwidth: of all links to other chips together, both directions added up.
        shapes: the slices that can be had, as the torus of their chips.
        cores: cores of a chip that the vendor's slice names count; v5p-8 has 4 chips.
        source: where the figures come from.
    """

    name: str
    kind: Literal["tpu", "gpu"]
    device_kinds: tuple[str, ...]
    hbm_bytes: int
    flops: float
    hbm_bandwidth: float
    link_bandwidth: float
    shapes: tuple[tuple[int, ...], ...]
    cores: int
    source: str


_SQUARE = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_CUBE = (
    *((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8)),
    *((8, 8, 16), (8, 16, 16), (16, 16, 16), (16, 16, 24)),
)
_NODES = tuple((n,) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256))

CHIPS: dict[str, Chip] = {
    "v5e": Chip(
        name="v5e",
        kind="tpu",
        device_kinds=("TPU v5 lite", "TPU v5e"),
        hbm_bytes=16 * GIB,
        flops=197e12,
        hbm_bandwidth=819e9,
        link_bandwidth=400e9,
        shapes=_SQUARE,
        cores=1,
        source="https://docs.cloud.google.com/tpu/docs/v5e",
    ),
    "v5p": Chip(
        name="v5p",
        kind="tpu",
        device_kinds=("TPU v5", "TPU v5p"),
        hbm_bytes=95 * GIB,
        flops=459e12,
        hbm_bandwidth=2765e9,
        link_bandwidth=1200e9,
        shapes=_CUBE,
        cores=2,
        source="https://docs.cloud.google.com/tpu/docs/v5p-training",
    ),
    "v6e": Chip(
        name="v6e",
        kind="tpu",
        device_kinds=("TPU v6 lite", "TPU v6e"),
        hbm_bytes=32 * GIB,
        flops=918e12,
        # The page has had 1,600 and 1,640 GB/s, and 800 and 896 GB/s of links: the lower ones.
        hbm_bandwidth=1600e9,
        link_bandwidth=800e9,
        shapes=_SQUARE,
        cores=1,
        source="https://docs.cloud.google.com/tpu/docs/v6e",
    ),
    "a100-80": Chip(
        name="a100-80",
        kind="gpu",
        device_kinds=("NVIDIA A100-SXM4-80GB",),
        hbm_bytes=80 * 10**9,
        flops=312e12,
        hbm_bandwidth=2039e9,
        link_bandwidth=600e9,
        shapes=_NODES,
        cores=1,
        source="NVIDIA A100 Tensor Core GPU datasheet, SXM, 80 GB, without sparsity",
    ),
    "h100": Chip(
        name="h100",
        kind="gpu",
        device_kinds=("NVIDIA H100 80GB HBM3",),
        hbm_bytes=80 * 10**9,
        flops=989e12,
        hbm_bandwidth=3350e9,
        link_bandwidth=900e9,
        shapes=_NODES,
        cores=1,
        source="NVIDIA H100 Tensor Core GPU datasheet, SXM, without sparsity",
    ),
}


def chip_of_device(device_kind: str) -> Chip | None:
    """The chip that JAX calls `device_kind`; None where the table has none, as of CPUs."""
    return next((chip for chip in CHIPS.values() if device_kind in chip.device_kinds), None)


@dataclasses.dataclass(frozen=True)
class Topology:
    """Chips of one kind, joined to a torus of `shape`."""

    chip: Chip
    shape: tuple[int, ...]

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def name(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def vendor_name(self) -> str:
        """Such as v5e-8, or v5p-8 of four chips."""
        return f"{self.chip.name}-{self.chips * self.chip.cores}"


def parse_topology(name: str) -> Topology:
    """`v5e:2x4` or `v5e-8` of eight v5e chips; `v5p-8` or `v5p:2x2x1` of four v5p chips.

    Raises:
        UserError: no such chip or slice; lists those that there are.
    """
    generation, shape, count = name, None, None
    if match := re.fullmatch(r"(.+):(\d+(?:x\d+)*)", name):
        generation, shape = match[1], tuple(int(side) for side in match[2].split("x"))
    elif match := re.fullmatch(r"(.+)-(\d+)", name):
        generation, count = match[1], int(match[2])
    chip = CHIPS.get(generation)
    if chip is None:
        raise UserError(
            f"--topology={name}: unknown chip {generation!r}; known are "
            f"{', '.join(CHIPS)}, written as v5e:2x4 or v5e-8"
        )
    for known in (Topology(chip, s) for s in chip.shapes):
        if known.shape == shape or known.chips * chip.cores == count:
            return known
    slices = ", ".join(
        f"{t.name} ({t.vendor_name})" for t in (Topology(chip, s) for s in chip.shapes)
    )
    raise UserError(f"--topology={name}: no such slice of {chip.name}; there are {slices}")
