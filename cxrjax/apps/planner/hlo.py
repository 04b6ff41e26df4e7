"""Reads what a compiled program does from its text: operations, traffic, collectives.

XLA's own cost analysis counts the body of a loop once; here every loop's trip count multiplies. A
program is the work of one device, so everything here is per chip.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

from cxrjax.apps.planner.hlo_text import (
    Array,
    Instruction,
    collective_kind,
    constant,
    groups_of,
    parameter_number,
    parse_text,
    passed_through,
    place_in_chain,
    through,
)

_CHAIN = re.compile(r'chain_id="?(\w+)')
# Pallas on TPUs, cuDNN's attention on GPUs: the text has none of their products.
_HAND_WRITTEN = re.compile(r'custom_call_target="(tpu_custom_call|__cudnn\$fmha)')
# What is sent from slice to slice, by the hosts.
_BETWEEN = re.compile(r'xla_megascale_runtime".*_xla_megascale_transfer_type="(\w+)"')
# They move no data themselves.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"),
    *("partition-id", "replica-id", "opt-barrier", "add-dependency", "domain"),
}


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation, which one instruction may start and another await (`overlapped`).

    Attributes:
        bytes: of the whole (unsharded) array that it gathers, sums or moves, each time.
        group: devices that take part together.
        sent_bytes: what one chip sends each time, on a ring.
        begun, awaited: how many of the program's `work` are before its start and its end, in the
            compiler's order.
        across: between slices, over the data-centre network.
    """

    kind: str
    times: int
    bytes: int
    group: int
    sent_bytes: float
    overlapped: bool
    begun: int = 0
    awaited: int = 0
    across: bool = False


@dataclasses.dataclass(frozen=True)
class Work:
    """One instruction's products and memory traffic, and how often it runs in a step."""

    name: str
    times: int
    flops: float
    hbm_bytes: float


@dataclasses.dataclass(frozen=True)
class Program:
    """Result of `read_program`: all that runs on its own, fused matrix products counted in."""

    work: tuple[Work, ...]
    collectives: tuple[Collective, ...]
    unknown_loops: int  # loops whose trip count the text does not tell; their bodies count once
    # Runs of hand-written kernels (Pallas, cuDNN's attention), whose products the text does
    # not show.
    kernels: int = 0

    @property
    def flops(self) -> float:
        return sum(w.times * w.flops for w in self.work)

    @property
    def hbm_bytes(self) -> float:
        return sum(w.times * w.hbm_bytes for w in self.work)

    def collective_bytes(self) -> dict[str, float]:
        """Bytes of the arrays that a chip takes part in gathering, summing or moving, by kind."""
        found: dict[str, float] = {}
        for one in self.collectives:
            found[one.kind] = found.get(one.kind, 0.0) + one.times * one.bytes
        return found

    @property
    def across_slices(self) -> tuple[int, float]:
        """Collectives between slices in a step, and the bytes of their arrays."""
        across = [one for one in self.collectives if one.across]
        return sum(one.times for one in across), sum(one.times * one.bytes for one in across)

    @property
    def launches(self) -> int:
        """Instructions that run on their own in a step; on a GPU each is a launch of a kernel."""
        return sum(w.times for w in self.work)

    @property
    def sent_bytes(self) -> float:
        """Bytes that a chip sends: rings add (n - 1) / n of the array for each of two rounds."""
        return sum(one.times * one.sent_bytes for one in self.collectives)


def read_program(text: str, devices: int, slices: int = 1) -> Program:
    """Reads `compiled.as_text()`.

    Of a conditional the branch with the most work counts: what a full batch takes.

    Args:
        devices: that the program runs on; the group of a collective that names none.
        slices: of which these are, one after the other.
    """
    computations, entry = parse_text(text)
    reader = _Reader(computations, devices, slices)
    reader.visit(entry, 1)
    return reader.program()


class _Reader:
    """Walks a program from its entry, multiplying by trip counts."""

    def __init__(
        self, computations: dict[str, dict[str, Instruction]], devices: int, slices: int
    ) -> None:
        self.computations = computations
        self.devices, self.slices = devices, slices
        self.work: list[Work] = []
        self.collectives: list[Collective] = []
        self.unknown_loops = 0
        self.kernels = 0
        self._users_of: dict[str, dict[str, list[Instruction]]] = {}

    def program(self) -> Program:
        """Everything that was visited."""
        return Program(tuple(self.work), tuple(self.collectives), self.unknown_loops, self.kernels)

    def visit(self, name: str, times: int) -> None:
        computation = self.computations[name]
        under_way: dict[str, int] = {}  # collectives by what starts them
        for instruction in computation.values():
            place = self._place_in_chain(instruction)
            if place == "done" or instruction.opcode.endswith("-done"):
                for source in self._begins(computation, instruction, place):
                    self._await(under_way.pop(source, None))
            if place == "done":
                continue
            if instruction.opcode == "send" and (sum_of := _BETWEEN.search(instruction.attributes)):
                self._add_between(computation, instruction, sum_of[1], times)
                continue
            kind = None if place == "step" else self._kind(instruction)
            if kind is None:
                self._run(computation, instruction, times)
                continue
            before = len(self.collectives)
            self._add_collective(computation, instruction, kind, times, place == "start")
            for source in self._begins(computation, instruction, place):
                under_way[source] = before

        for still in under_way.values():  # carried into a loop's next round
            self._await(still)

    def _run(self, computation: dict[str, Instruction], found: Instruction, times: int) -> None:
        """Visits what an instruction calls, else counts its own work."""
        if found.opcode == "while":
            called = dict(found.called())
            count = self._trip_count(computation, found, called)
            self.unknown_loops += count is None
            self.visit(called["body"], times * (1 if count is None else count))
        elif found.opcode == "conditional":
            self.visit(max((name for _, name in found.called()), key=self._weight), times)
        elif found.opcode == "call":
            for _, called_name in found.called():
                self.visit(called_name, times)
        elif not found.opcode.endswith(("-start", "-update")) and found.opcode not in _FREE:
            if _HAND_WRITTEN.search(found.attributes):
                self.kernels += times
            flops, moved = self._flops(computation, found), self._hbm_bytes(computation, found)
            if flops or moved:
                self.work.append(Work(found.name, times, flops, moved))

    def _weight(self, name: str) -> float:
        """Work of a branch."""
        reader = _Reader(self.computations, self.devices, self.slices)
        reader.visit(name, 1)
        return reader.program().flops + reader.program().hbm_bytes

    def _await(self, number: int | None) -> None:
        if number is not None and number < len(self.collectives):
            found = self.collectives[number]
            self.collectives[number] = dataclasses.replace(found, awaited=len(self.work))

    def _begins(
        self, computation: dict[str, Instruction], found: Instruction, place: str | None
    ) -> list[str]:
        """The name of an overlapped collective, the same at its begin and at its end."""
        if place is not None:
            called = next(name for _, name in found.called())
            chains = (_CHAIN.search(one.attributes) for one in self.computations[called].values())
            return [chain[1] for chain in chains if chain][:1]
        while found.opcode.endswith(("-done", "-update")) and found.operands[0] in computation:
            found = computation[found.operands[0]]
        return [found.name] if found.opcode.endswith("-start") else []

    def _trip_count(
        self, computation: dict[str, Instruction], loop: Instruction, called: dict[str, str]
    ) -> int | None:
        """Trip count: the compiler's, else that of `counter < limit`, its start and step."""
        if known := re.search(r'known_trip_count"?:\{"n":"(\d+)"', loop.attributes):
            return int(known[1])
        found = list(self._limits(called["condition"], {}))
        if len(found) != 1:
            return None
        counter, bound = found[0]
        index = int(re.search(r"index=(\d+)", counter.attributes)[1])  # type: ignore[index]
        made = computation.get(loop.operands[0])
        if made is None or made.opcode != "tuple":
            return None
        start = constant(through(computation, made.operands[index]))
        if start is None:
            return None
        return max(0, math.ceil((bound - start) / self._counter_step(called["body"], index)))

    def _counter_step(self, body: str, index: int) -> int:
        """Increment of the counter: 2 where the compiler has unrolled a loop by two."""
        inside = self.computations[body]
        root = next(one for one in inside.values() if one.is_root)
        made = through(inside, root.operands[index])
        added = [constant(inside[name]) for name in made.operands if name in inside]
        steps = [step for step in added if step] if made.opcode == "add" else []
        return steps[0] if len(steps) == 1 else 1

    def _limits(
        self, name: str, given: dict[int, Instruction]
    ) -> Iterator[tuple[Instruction, int]]:
        """(counter, limit) of every `counter < limit` in a condition, also within its fusions.

        A condition that may also end the loop early, as of decoding, has its limit counted.

        Args:
            given: what stands for the parameters, in a fusion.
        """
        inside = self.computations[name]

        def made_by(operand: str) -> Instruction:
            found = through(inside, operand)
            if found.opcode == "parameter":
                return given.get(parameter_number(found), found)
            return found

        for one in inside.values():
            if one.opcode == "fusion":
                called = next(called for _, called in one.called())
                yield from self._limits(called, dict(enumerate(map(made_by, one.operands))))
            if one.opcode == "compare" and "direction=LT" in one.attributes:
                counter, limit = map(made_by, one.operands)
                bound = constant(limit)
                if bound is not None and counter.opcode == "get-tuple-element":
                    yield counter, bound

    def _kind(self, instruction: Instruction) -> str | None:
        """Kind of a collective, by itself or within an async wrapper or a fusion."""
        wraps = instruction.opcode in ("async-start", "fusion")
        return collective_kind(instruction.opcode) or (
            self._wrapped_collective(instruction) if wraps else None
        )

    def _wrapped_collective(self, instruction: Instruction) -> str | None:
        """The kind of collective within an async wrapper or a fusion.

        TPUs write a reduce-scatter as a fusion of an all-reduce and of the slices that are kept.
        """
        for _, name in instruction.called():
            computation = self.computations.get(name, {})
            for inner in computation.values():
                if kind := collective_kind(inner.opcode):
                    if kind == "all-reduce" and _keeps_slices(computation, inner):
                        return "reduce-scatter"
                    return kind
        return None

    def _place_in_chain(self, fusion: Instruction) -> str | None:
        if fusion.opcode != "fusion":
            return None
        called = next(name for _, name in fusion.called())
        return place_in_chain(self.computations[called].values())

    def _add_collective(
        self,
        computation: dict[str, Instruction],
        found: Instruction,
        kind: str,
        times: int,
        in_chain: bool,
    ) -> None:
        inner = found
        if found.opcode in ("async-start", "fusion"):
            for _, name in found.called():
                inner = next(
                    i for i in self.computations[name].values() if collective_kind(i.opcode)
                )
                computation = self.computations[name]
        groups = groups_of(inner.attributes, self.devices)
        group = len(groups[0])
        if group < 2:
            return
        given = sum(a.bytes for name in inner.operands for a in computation[name].arrays)
        summed = kind in ("all-reduce", "reduce-scatter", "collective-permute")
        whole = given if summed else given * group
        if kind == "collective-permute":
            sent = float(given)
        else:
            parts = 1 if kind == "all-gather" else group
            sent = (2 if kind == "all-reduce" else 1) * given * (group - 1.0) / parts
        overlapped, now = found.opcode.endswith("-start") or in_chain, len(self.work)
        slices = ({int(n) * self.slices // self.devices for n in one} for one in groups)
        across = any(len(met) > 1 for met in slices)
        self.collectives.append(
            Collective(kind, times, whole, group, sent, overlapped, now, now, across)
        )

    def _add_between(
        self, computation: dict[str, Instruction], send: Instruction, kind: str, times: int
    ) -> None:
        """Adds what goes to the other slices through the hosts, as TPUs' compiler writes it."""
        given = sum(a.bytes for a in computation[send.operands[0]].arrays)
        sent = 2 * given * (1 - 1 / self.slices)
        name, now = kind.lower().replace("_", "-"), len(self.work)
        found = Collective(name, times, given, self.slices, sent, False, now, now, across=True)
        self.collectives.append(found)

    def _flops(self, computation: dict[str, Instruction], instruction: Instruction) -> float:
        opcode = instruction.opcode
        if opcode == "dot":
            left = computation[instruction.operands[0]].arrays[0].shape
            dims = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
            inner = math.prod(left[int(d)] for d in dims[1].split(",") if d) if dims else 1
            return 2.0 * instruction.arrays[0].size * inner
        if opcode == "convolution":
            return convolution_flops(computation, instruction)
        if opcode in ("fusion", "call", "map", "async-start"):
            return sum(
                self._flops(self.computations[name], inner)
                for _, name in instruction.called()
                for inner in self.computations[name].values()
            )
        return 0.0

    def _hbm_bytes(self, computation: dict[str, Instruction], instruction: Instruction) -> float:
        """Read from and written to the device's main memory.

        What is sliced out of an operand is read, not the operand; what is put into an array in
        place is written, not the array.
        """
        in_chain = self._place_in_chain(instruction) == "step"
        passed = passed_through(instruction) if in_chain else {}
        written = float(
            sum(a.hbm_bytes for i, a in enumerate(instruction.arrays) if i not in passed)
        )
        operands = [
            [a for a in computation[name].arrays]
            if name in computation and number not in passed.values()
            else []
            for number, name in enumerate(instruction.operands)
        ]
        opcode = instruction.opcode
        if opcode in ("dynamic-slice", "slice", "gather"):
            return written + sum(a.bytes for a in instruction.arrays if operands[0][0].in_hbm)
        if opcode == "dynamic-update-slice":
            update = operands[1][0]
            return float(update.hbm_bytes + (update.bytes if instruction.arrays[0].in_hbm else 0))
        if opcode.endswith("-done"):
            # The copy between memories that its start began; both ends in main memory: two ways.
            started = computation.get(instruction.operands[0])
            ends = [a for a in (started.arrays if started else ()) if a.size > 1][:2]
            moved = sum(a.bytes for a in instruction.arrays)
            return float(moved * max(1, sum(a.in_hbm for a in ends)))
        if opcode == "custom-call" and re.search(
            "ConcatBitcast|AllocateBuffer", instruction.attributes
        ):
            return 0.0
        if opcode != "fusion":
            return written + sum(a.hbm_bytes for arrays in operands for a in arrays)
        called = next(name for _, name in instruction.called())
        return self._fusion_bytes(called, operands, written)

    def _fusion_bytes(self, name: str, operands: list[list[Array]], written: float) -> float:
        total = written
        for one in self.computations[name].values():
            if one.opcode != "parameter":
                continue
            whole = sum(a.hbm_bytes for a in operands[parameter_number(one)])
            if not whole:
                continue
            read, in_place = self._read_of(name, one.name, whole)
            total += min(read, whole)
            if in_place:  # of the result, what was put in is written, not the rest
                total -= min(written, whole)
        return max(total, 0.0)

    def _read_of(self, computation: str, value: str, whole: int) -> tuple[int, bool]:
        """Bytes of a value that a fused computation touches, and whether it updates it in place."""
        inner, read, in_place = self.computations[computation], 0, False
        for user in self._users(computation, value):
            if user.opcode in ("dynamic-slice", "slice", "gather"):
                read += sum(a.bytes for a in user.arrays)
            elif user.opcode == "dynamic-update-slice" and user.operands[0] == value:
                read += inner[user.operands[1]].arrays[0].bytes
                in_place = True
            elif user.opcode in ("bitcast", "fusion"):
                part = self._read_of(*self._inner_name(computation, user, value), whole)
                read, in_place = read + part[0], in_place or part[1]
            else:
                return whole, in_place
        return read, in_place

    def _inner_name(self, computation: str, user: Instruction, value: str) -> tuple[str, str]:
        """Computation and name of a value behind a bitcast or within a fusion."""
        if user.opcode == "bitcast":
            return computation, user.name
        called = next(name for _, name in user.called())
        number = user.operands.index(value)
        inside = self.computations[called].values()
        parameters = (one for one in inside if one.opcode == "parameter")
        return called, next(p.name for p in parameters if parameter_number(p) == number)

    def _users(self, computation: str, value: str) -> list[Instruction]:
        if computation not in self._users_of:
            found = self._users_of[computation] = {}
            for one in self.computations[computation].values():
                for operand in set(one.operands):
                    found.setdefault(operand, []).append(one)
        return self._users_of[computation].get(value, [])


def _keeps_slices(computation: dict[str, Instruction], summed: Instruction) -> bool:
    """Returns whether only slices of a sum leave a fused computation."""
    parts = {summed.name} | {
        one.name
        for one in computation.values()
        if one.opcode == "get-tuple-element" and one.operands[0] == summed.name
    }
    others = (one for one in computation.values() if one.name not in parts)
    users = {one.opcode for one in others if parts & set(one.operands)}
    return users == {"dynamic-slice"}


def convolution_flops(computation: dict[str, Instruction], instruction: Instruction) -> float:
    """Products of a convolution, those with padding and with the gaps of dilation left out.

    TPUs write every matrix product as one, with batch dimensions as windows that see one element.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    assert labels is not None
    window = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    settings = dict(part.split("=") for part in window[1].split()) if window else {}
    shapes = [computation[name].arrays[0].shape for name in instruction.operands[:2]]
    given, kernel, result = (
        dict(zip(names, shape, strict=True))
        for names, shape in zip(
            labels.groups(), (*shapes, instruction.arrays[0].shape), strict=True
        )
    )
    products = float(result["b"] * result["f"] * kernel["i"])
    for axis in (label for label in labels[3] if label.isdigit()):

        def of(key: str, default: str, axis: str = axis) -> str:
            return settings[key].split("x")[int(axis)] if key in settings else default

        stride, spread, gaps = (int(of(key, "1")) for key in ("stride", "rhs_dilate", "lhs_dilate"))
        before = int(of("pad", "0_0").split("_")[0])
        last = (given[axis] - 1) * gaps
        products *= sum(
            0 <= place <= last and place % gaps == 0
            for out in range(result[axis])
            for place in (out * stride + k * spread - before for k in range(kernel[axis]))
        )
    return 2.0 * products
