"""Texts of compiled programs, written by hand and by XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cxrjax.planner.hlo import read_program

# A loop of 5 rounds with a product, a sum over devices and a gathered array; then a product of
# weights that a fusion slices out of a stack, in TPUs' manner of writing.
TEXT = """HloModule jit_step, is_scheduled=true, entry_computation_layout={()->()}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (carry: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %carry = (s32[], f32[8,16]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%carry), index=0
  %x = f32[8,16]{1,0:T(8,128)} get-tuple-element(%carry), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %w = bf16[16,16]{1,0} constant({...})
  %dot = f32[8,16]{1,0:T(8,128)} convolution(%x, %w), dim_labels=bf_io->bf, metadata={n="a(b)"}
  %reduced = f32[8,16]{1,0} all-reduce(%dot), channel_id=1, replica_groups=GROUPS, to_apply=%add
  ROOT %out = (s32[], f32[8,16]) tuple(%next, %reduced)
}

%condition (carry.1: (s32[], f32[8,16])) -> pred[] {
  %carry.1 = (s32[], f32[8,16]) parameter(0)
  %limit = s32[] constant(5)
  %i.1 = s32[] get-tuple-element(%carry.1), index=0
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}

%sliced (stack: bf16[7,16,16], at: s32[]) -> bf16[16,16] {
  %stack = bf16[7,16,16]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero.1 = s32[] constant(0)
  %cut = bf16[1,16,16]{2,1,0} dynamic-slice(%stack, %at, %zero.1), dynamic_slice_sizes={1,16,16}
  ROOT %flat = bf16[16,16]{1,0} bitcast(%cut)
}

%product (stack.1: bf16[7,16,16], at.1: s32[], y: f32[8,16]) -> f32[8,16] {
  %stack.1 = bf16[7,16,16]{2,1,0} parameter(0)
  %at.1 = s32[] parameter(1)
  %y = f32[8,16]{1,0:T(8,128)S(1)} parameter(2)
  %weights = bf16[16,16]{1,0} fusion(%stack.1, %at.1), kind=kLoop, calls=%sliced
  ROOT %conv = f32[8,16]{1,0:T(8,128)} convolution(%y, %weights), dim_labels=bf_io->bf
}

ENTRY %main (p0: f32[8,16], p1: bf16[7,16,16]) -> f32[16,16] {
  %p0 = f32[8,16]{1,0} parameter(0)
  %p1 = bf16[7,16,16]{2,1,0} parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,16]) tuple(%zero, /*index=1*/%p0)
  %loop = (s32[], f32[8,16]) while(%start), condition=%condition, body=%body
  %y.1 = f32[8,16]{1,0:T(8,128)S(1)} get-tuple-element(%loop), index=1
  %made = f32[8,16]{1,0:T(8,128)} fusion(%p1, %zero, %y.1), kind=kOutput, calls=%product
  %begun = (f32[8,16], f32[16,16]) all-gather-start(%made), replica_groups={{0,1},{2,3}}
  ROOT %gathered = f32[16,16] all-gather-done(%begun)
}
"""


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1,2,3}}", 4),
        ("{{0,1},{2,3}}", 2),
        ("[2,2]<=[4]", 2),
        ("[1,4]<=[2,2]T(1,0)", 4),
        ("mesh['axis_0'=2,'axis_1'=2] {'axis_0','axis_1'}", 4),
        ("mesh['axis_0'=2,'axis_1'=2] {'axis_1'}", 2),
        ("mesh['axis_0'=4] {'axis_0':(1)2}", 2),
        ("mesh['axis_0'=1,'axis_1'=2,'axis_2'=2], device_ids=([2,2]T(1,0)) {'axis_1'}", 2),
    ],
)
def test_loops_fusions_and_collectives(groups, size):
    program = read_program(TEXT.replace("GROUPS", groups), 4)
    assert program.unknown_loops == 0
    product = 2 * 8 * 16 * 16
    assert program.flops == 5 * product + product
    reduce, gather = program.collectives
    assert (reduce.kind, reduce.times, reduce.group) == ("all-reduce", 5, size)
    assert reduce.bytes == 8 * 16 * 4 and not reduce.overlapped
    # A ring sends each part once to be summed and once to be known.
    assert reduce.sent_bytes == pytest.approx(2 * 8 * 16 * 4 * (size - 1) / size)
    assert (gather.kind, gather.times, gather.group, gather.overlapped) == (
        "all-gather",
        1,
        2,
        True,
    )
    assert gather.bytes == 16 * 16 * 4 and gather.sent_bytes == 8 * 16 * 4
    work = [w.name for w in program.work]
    # Nothing stands between the gather's two lines; the sum follows the product in the loop's body.
    assert gather.begun == gather.awaited == work.index("gathered")
    assert reduce.begun == reduce.awaited == work.index("made") == work.index("dot") + 1
    assert program.collective_bytes() == {"all-reduce": 5 * reduce.bytes, "all-gather": 16 * 16 * 4}
    assert program.sent_bytes == 5 * reduce.sent_bytes + gather.sent_bytes


@pytest.mark.parametrize(("step", "rounds"), [(1, 5), (2, 3), (5, 1), (7, 1)])
def test_a_loop_that_the_compiler_unrolled_counts_by_more_than_one(step, rounds):
    text = TEXT.replace("GROUPS", "{{0,1}}").replace(
        "%one = s32[] constant(1)", f"%one = s32[] constant({step})"
    )
    reduced = read_program(text, 2).collectives[0]
    assert reduced.kind == "all-reduce" and reduced.times == rounds


def test_traffic_is_of_the_slice_and_of_main_memory_alone():
    """One layer of seven is read; what is kept in S(1), on the chip itself, is not counted."""
    program = read_program(TEXT.replace("GROUPS", "{{0,1,2,3}}"), 4)
    work = {w.name: w for w in program.work}
    index = 4
    assert work["made"].hbm_bytes == 16 * 16 * 2 + index + 8 * 16 * 4
    assert work["dot"].hbm_bytes == 2 * 8 * 16 * 4 + 16 * 16 * 2
    assert work["dot"].times == 5


def test_batched_products_are_windows_that_see_one_element():
    """TPUs' two ways to write a product with a batch dimension; 4 x 64 by 64 x 32, three times."""
    line = "  ROOT %r = f32[3,4,32] convolution(%a, %b), {}\n}}"
    text = (
        "ENTRY %main (a: f32[3,4,64], b: f32[3,64,32]) -> f32[3,4,32] {{\n"
        "  %a = f32[3,4,64] parameter(0)\n  %b = f32[3,64,32] parameter(1)\n"
    ).replace("{{", "{")
    dilated = "window={size=3 stride=2 lhs_dilate=3}, dim_labels=0bf_0io->0bf"
    program = read_program(text + line.format(dilated), 1)
    assert program.flops == 3 * 2 * 4 * 64 * 32
    folded = (
        "ENTRY %main (a: f32[64,32,1], b: f32[3,4,64]) -> f32[3,32,4] {\n"
        "  %a = f32[64,32,1] parameter(0)\n  %b = f32[3,4,64] parameter(1)\n"
        "  ROOT %r = f32[3,32,4] convolution(%a, %b), "
        "window={size=3 pad=2_2 rhs_reversal=1}, dim_labels=fb0_0oi->0bf\n}"
    )
    assert read_program(folded, 1).flops == 3 * 2 * 4 * 64 * 32


def test_early_end_counts_to_its_limit_and_unknown_loops_are_told():
    early = TEXT.replace(
        "  ROOT %less = pred[] compare(%i.1, %limit), direction=LT",
        "  %less = pred[] compare(%i.1, %limit), direction=LT\n"
        "  %going = pred[] constant(true)\n  ROOT %both = pred[] and(%less, %going)",
    ).replace("GROUPS", "{{0,1,2,3}}")
    assert read_program(early, 4).flops == 6 * 2 * 8 * 16 * 16
    unknown = TEXT.replace("direction=LT", "direction=NE").replace("GROUPS", "{{0,1,2,3}}")
    program = read_program(unknown, 4)
    assert program.unknown_loops == 1
    assert program.flops == 2 * 2 * 8 * 16 * 16


def test_kernels_are_counted():
    line = '  %k = f32[8,16] custom-call(%x), custom_call_target="tpu_custom_call"\n  %dot = '
    program = read_program(TEXT.replace("GROUPS", "{{0,1}}").replace("  %dot = ", line), 4)
    assert program.kernels == 5


def test_work_between_begin_and_end_of_a_collective():
    """The end is found through what follows up a begin, not by its place."""
    text = TEXT.replace("GROUPS", "{{0,1}}").replace(
        "  ROOT %gathered = f32[16,16] all-gather-done(%begun)",
        "  %more = f32[8,16]{1,0} negate(%made)\n"
        "  %gathered = f32[16,16] all-gather-done(%begun)\n"
        "  ROOT %last = f32[16,16]{1,0} negate(%gathered)",
    )
    program = read_program(text, 4)
    gather = program.collectives[1]
    assert [w.name for w in program.work[gather.begun : gather.awaited]] == ["more"]


def test_not_a_program():
    with pytest.raises(ValueError, match="no ENTRY"):
        read_program("HloModule x\n", 1)


def _compiled(function, *arguments, **options):
    return jax.jit(function, **options).lower(*arguments).compile()


def test_scanned_products_compiled_here():
    x, w = (
        jax.ShapeDtypeStruct((64, 128), jnp.float32),
        jax.ShapeDtypeStruct((128, 128), jnp.float32),
    )

    def steps(x, w):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=11)[0]

    compiled = _compiled(steps, x, w)
    program = read_program(compiled.as_text(), 1)
    assert program.unknown_loops == 0
    assert program.flops == 11 * 2 * 64 * 128 * 128
    # XLA's own count has the body once.
    assert compiled.cost_analysis()["flops"] < program.flops / 5


def test_collectives_of_eight_devices_compiled_here():
    """Parameters cut over four devices are gathered in each round, their gradients summed."""
    mesh = Mesh(np.asarray(jax.devices()).reshape(2, 4), ("data", "fsdp"))
    rows = NamedSharding(mesh, P(("data", "fsdp")))
    x = jax.ShapeDtypeStruct((64, 256), jnp.float32)
    w = jax.ShapeDtypeStruct((3, 256, 256), jnp.float32)

    def loss(w, x):
        def layer(c, w):
            w = jax.lax.with_sharding_constraint(w, NamedSharding(mesh, P()))
            return jnp.tanh(c @ w), None

        return jnp.sum(jax.lax.scan(layer, x, w)[0])

    stacked = NamedSharding(mesh, P(None, "fsdp"))
    compiled = _compiled(jax.grad(loss), w, x, in_shardings=(stacked, rows), out_shardings=stacked)
    program = read_program(compiled.as_text(), 8)
    assert program.unknown_loops == 0
    one = 256 * 256 * 4
    gathers = [c for c in program.collectives if c.kind == "all-gather" and c.bytes == one]
    assert sum(c.times for c in gathers) >= 3
    assert all(c.group == 4 and c.sent_bytes == one * 3 / 4 for c in gathers)
    sums = [c for c in program.collectives if c.kind in ("all-reduce", "reduce-scatter")]
    assert sum(c.times * c.bytes for c in sums) >= 3 * one
    forward_and_backward = 3 * 3 * 2 * 64 * 256 * 256 / 8
    assert program.flops == pytest.approx(forward_and_backward, rel=0.01)


# One gather of parameters in a chain of four fusions, two of them around a product each.
_GATHER = (
    "all-gather(%{0}), channel_id=1, replica_groups=[2,4]<=[8], dimensions={{0}}, "
    'frontend_attributes={{chain_id="7"}}'
)
CHAIN = f"""HloModule jit_step, is_scheduled=true

%begin (a: f32[4,16]) -> (f32[4,16], f32[16,16]) {{
  %a = f32[4,16]{{1,0}} parameter(0)
  %g = f32[16,16]{{1,0}} {_GATHER.format("a")}
  ROOT %c = (f32[4,16], f32[16,16]) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}}

%step (b: f32[4,16], whole: f32[16,16], x: f32[8,16], w: f32[16,16]) -> (f32[8,16], f32[16,16]) {{
  %b = f32[4,16]{{1,0}} parameter(0)
  %whole = f32[16,16]{{1,0}} parameter(1)
  %x = f32[8,16]{{1,0}} parameter(2)
  %w = f32[16,16]{{1,0}} parameter(3)
  %conv = f32[8,16]{{1,0}} convolution(%x, %w), dim_labels=bf_io->bf
  %g.1 = f32[16,16]{{1,0}} {_GATHER.format("b")}
  ROOT %t = (f32[8,16]{{1,0}}, f32[16,16]{{1,0}}) tuple(%conv, %g.1)
}}

%end (d: f32[4,16]) -> f32[16,16] {{
  %d = f32[4,16]{{1,0}} parameter(0)
  %g.2 = f32[16,16]{{1,0}} {_GATHER.format("d")}
  ROOT %e = f32[16,16] custom-call(%d, %g.2), custom_call_target="AsyncCollectiveDone"
}}

ENTRY %main (p: f32[4,16], x.1: f32[8,16], w.1: f32[16,16]) -> f32[8,16] {{
  %p = f32[4,16]{{1,0}} parameter(0)
  %x.1 = f32[8,16]{{1,0}} parameter(1)
  %w.1 = f32[16,16]{{1,0}} parameter(2)
  %f.0 = (f32[4,16], f32[16,16]) fusion(%p), kind=kCustom, calls=%begin
  %all = f32[16,16]{{1,0}} get-tuple-element(%f.0), index=1
  %f.1 = (f32[8,16]{{1,0}}, f32[16,16]{{1,0}}) fusion(%p, %all, %x.1, %w.1), kind=kOutput, STEP
  %y = f32[8,16]{{1,0}} get-tuple-element(%f.1), index=0
  %all.1 = f32[16,16]{{1,0}} get-tuple-element(%f.1), index=1
  %f.2 = (f32[8,16]{{1,0}}, f32[16,16]{{1,0}}) fusion(%p, %all.1, %y, %w.1), kind=kOutput, STEP
  ROOT %f.3 = f32[16,16]{{1,0}} fusion(%p), kind=kCustom, calls=%end
}}
""".replace("STEP", "output_to_operand_aliasing={{1}: (1, {})}, calls=%step")


def test_a_collective_in_a_chain_counts_once_and_work_beside_it_counts():
    found = read_program(CHAIN, 8)
    (gather,) = found.collectives
    assert gather.kind == "all-gather" and gather.times == 1 and gather.overlapped
    assert gather.bytes == 4 * 16 * 16 and gather.group == 4
    assert [w.name for w in found.work[gather.begun : gather.awaited]] == ["f.1", "f.2"]
    assert found.flops == 2 * (2 * 8 * 16 * 16)
    # Of each step: what the product reads and writes, and a chip's part of what is gathered.
    assert found.hbm_bytes == 2 * 4 * (2 * 8 * 16 + 16 * 16 + 4 * 16)


# Two gradients summed by a group of four, of which each chip keeps its rows, and one kept whole.
SCATTER = """HloModule jit_step, is_scheduled=true

%scatter (a: bf16[16,8], b: bf16[16,8]) -> (bf16[4,8], bf16[4,8]) {
  %a = bf16[16,8]{1,0} parameter(0)
  %b = bf16[16,8]{1,0} parameter(1)
  %sum = (bf16[16,8], bf16[16,8]) all-reduce(%a, %b), replica_groups=[2,4]<=[8], to_apply=%add
  %table = u32[8]{0} constant({...})
  %id = u32[] partition-id()
  %row = u32[1]{0} dynamic-slice(%table, %id), dynamic_slice_sizes={1}
  %a.1 = bf16[16,8]{1,0} get-tuple-element(%sum), index=0
  %a.2 = bf16[4,8]{1,0} dynamic-slice(%a.1, %row), dynamic_slice_sizes={4,8}
  %b.1 = bf16[16,8]{1,0} get-tuple-element(%sum), index=1
  %b.2 = bf16[4,8]{1,0} dynamic-slice(%b.1, %row), dynamic_slice_sizes={4,8}
  ROOT %kept = (bf16[4,8], bf16[4,8]) tuple(%a.2, %b.2)
}

%whole (c: bf16[16,8]) -> bf16[16,8] {
  %c = bf16[16,8]{1,0} parameter(0)
  ROOT %sum.1 = bf16[16,8]{1,0} all-reduce(%c), replica_groups=[2,4]<=[8], to_apply=%add
}

ENTRY %main (p: bf16[16,8], q: bf16[16,8]) -> bf16[16,8] {
  %p = bf16[16,8]{1,0} parameter(0)
  %q = bf16[16,8]{1,0} parameter(1)
  %f = (bf16[4,8], bf16[4,8]) fusion(%p, %q), kind=kCustom, calls=%scatter
  ROOT %g = bf16[16,8]{1,0} fusion(%q), kind=kCustom, calls=%whole
}
"""


def test_a_sum_of_which_slices_are_kept_is_a_reduce_scatter():
    scattered, summed = read_program(SCATTER, 8).collectives
    array = 2 * 16 * 8
    assert (scattered.kind, scattered.bytes, scattered.group) == ("reduce-scatter", 2 * array, 4)
    assert scattered.sent_bytes == 2 * array * 3 / 4
    assert (summed.kind, summed.bytes, summed.sent_bytes) == (
        "all-reduce",
        array,
        2 * array * 3 / 4,
    )
