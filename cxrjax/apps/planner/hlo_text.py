"""The text of compiled programs as instructions: arrays, operands, what they call, groups."""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

_ITEM_BITS = {
    **{"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16, "f16": 16},
    **{"s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128},
    **{"f8e4m3fn": 8, "f8e5m2": 8, "f8e4m3": 8, "s2": 2, "u2": 2},
}
COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"),
    *("ragged-all-to-all", "collective-broadcast"),
)
_CALLING = ("calls", "to_apply", "condition", "body", "true_computation", "false_computation")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?")


@dataclasses.dataclass(frozen=True)
class Array:
    """An array in the memory of a device."""

    dtype: str
    shape: tuple[int, ...]
    in_hbm: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size by the layout's number of bits, without the padding of tiles."""
        return -(-self.size * _ITEM_BITS.get(self.dtype, 0) // 8)

    @property
    def hbm_bytes(self) -> int:
        return self.bytes if self.in_hbm else 0


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation; `attributes` is everything behind the operands."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    def called(self) -> Iterator[tuple[str, str]]:
        """(role, computation) of what it calls."""
        for role in _CALLING:
            for found in re.finditer(rf"[, ]{role}=%?([\w.\-]+)", self.attributes):
                yield role, found[1]
        if branches := re.search(r"branch_computations=\{([^}]*)\}", self.attributes):
            for name in branches[1].split(","):
                yield "branch", name.strip().lstrip("%")


def parameter_number(parameter: Instruction) -> int:
    return int(parameter.attributes[1 : parameter.attributes.index(")")])


def through(computation: dict[str, Instruction], name: str) -> Instruction:
    """The instruction that makes a value, seen through copies."""
    found = computation[name]
    while found.opcode in ("copy", "bitcast", "convert") and found.operands[0] in computation:
        found = computation[found.operands[0]]
    return found


def constant(instruction: Instruction) -> int | None:
    match = re.match(r"\((-?\d+)\)", instruction.attributes)
    return int(match[1]) if instruction.opcode == "constant" and match else None


def parse_text(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """Instructions by computation and name, and the computation that the program begins with.

    Raises:
        ValueError: no compiled program's text.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    current: dict[str, Instruction] = {}
    entry = ""
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = computations[head[2]] = {}
            entry = head[2] if head[1] else entry
        elif (match := _INSTRUCTION.match(line)) and " = " in line:
            found = _instruction(match[1], match[2], line.lstrip().startswith("ROOT "))
            current[found.name] = found
    if not entry:
        raise ValueError("no ENTRY computation: not the text of a compiled program")
    return computations, entry


def _instruction(name: str, rest: str, is_root: bool) -> Instruction:
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    result, rest = rest[:end], rest[end:].lstrip()
    start = rest.index("(")
    stop = _closing(rest, start)
    body = rest[start + 1 : stop]
    opcode = rest[:start]
    operands = tuple(re.findall(r"%([\w.\-]+)", body))
    attributes = rest[stop + 1 :]
    if opcode in ("constant", "parameter"):
        attributes = f"({body}){attributes}"
    return Instruction(name, opcode, _arrays(result), operands, attributes, is_root)


def _arrays(text: str) -> tuple[Array, ...]:
    found = []
    for dtype, shape, layout in _ARRAY.findall(re.sub(r"/\*.*?\*/", "", text)):
        if dtype in _ITEM_BITS:
            sides = tuple(int(side.lstrip("<=")) for side in shape.split(",") if side)
            # S(n) is another memory than the device's main one: VMEM, SMEM, semaphores.
            found.append(Array(dtype, sides, "S(" not in layout or "S(0)" in layout))
    return tuple(found)


def _closing(text: str, start: int) -> int:
    depth = 0
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise ValueError(f"unbalanced parentheses: {text[:80]}")


def collective_kind(opcode: str) -> str | None:
    """One of `COLLECTIVES`, also of an instruction that begins one."""
    name = opcode.removesuffix("-start")
    return name if name in COLLECTIVES else None


def place_in_chain(fused: Iterable[Instruction]) -> str | None:
    """Place of a fusion in an overlapped collective: `start`, `step` or `done`.

    TPUs cut such a collective into a chain of fusions, all of which name it; the steps between its
    start and its end do other work meanwhile. None: no part of a chain.
    """
    in_chain = False
    for one in fused:
        for place in ("start", "done"):
            if f'"AsyncCollective{place.title()}"' in one.attributes:
                return place
        in_chain |= collective_kind(one.opcode) is not None and "chain_id=" in one.attributes
    return "step" if in_chain else None


def passed_through(fusion: Instruction) -> dict[int, int]:
    """Outputs of a fusion that are its operands as they were given: numbers of both."""
    pairs = re.findall(r"\{(\d+)\}: \((\d+), \{\}", fusion.attributes)
    return {int(output): int(operand) for output, operand in pairs}


def groups_of(attributes: str, devices: int) -> Sequence[Sequence[int]]:
    """Devices of each group of a collective, in each of the forms that XLA writes groups in.

    `{{0,1},{2,3}}`; `[2,4]<=[8]` for two groups of four, `[4,2]<=[2,4]T(1,0)` for four across them;
    `mesh['a'=2,'b'=4] {'b'}` for groups along axis b, where `'b':(1)2` would be two of its four, of
    devices in the order of their numbers or of `device_ids=([2,4]T(1,0))`.
    """
    if meshed := re.search(r"replica_groups=@?\w*mesh\w*\[([^\]]*)\][^{]*\{([^}]*)\}", attributes):
        found = re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", meshed[2])
        along = {axis: (int(before or 1), int(part or 0)) for axis, before, part in found}
        shape: list[int] = []
        for axis, size in re.findall(r"'(\w+)'=(\d+)", meshed[1]):
            before, part = along.get(axis, (1, 1))
            shape += [before, part or int(size), int(size) // before // (part or int(size))]
        order = sorted(range(len(shape)), key=lambda axis: axis % 3 == 1)
        numbers = np.arange(math.prod(shape))
        if listed := re.search(r"device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\)", attributes):
            numbers = _iota(listed[1], listed[2])
        numbers = numbers.reshape(shape).transpose(order)
        return [*map(list, numbers.reshape(-1, math.prod(shape[1::3])))]
    if iota := re.search(
        r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes
    ):
        return [*map(list, _iota(iota[3], iota[4]).reshape(int(iota[1]), int(iota[2])))]
    if listed := re.search(
        r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}", attributes
    ):
        return [[*map(int, one.split(","))] for one in re.findall(r"\d[\d,]*", listed[1])]
    return [range(devices)]


def _iota(sizes: str, axes: str | None) -> np.ndarray:
    shape = [int(size) for size in sizes.split(",")]
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return numbers.transpose([int(axis) for axis in axes.split(",")]) if axes else numbers
