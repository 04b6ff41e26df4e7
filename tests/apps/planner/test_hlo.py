"""Texts of compiled programs, written by hand and by XLA."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cxrjax.apps.planner.hlo import groups_of, read_program
from tests.papers.cases import cases, data

_PROGRAMS = Path(__file__).with_name("programs")
# A loop of 5 rounds with a product, a sum over devices and a gathered array; then a product of
# weights that a fusion slices out of a stack, in TPUs' manner of writing.
TEXT = (_PROGRAMS / "loop.txt").read_text()
# One gather of parameters in a chain of four fusions, two of them around a product each.
CHAIN = (_PROGRAMS / "chain.txt").read_text()
# Two gradients summed by a group of four, of which each chip keeps its rows, and one kept whole.
SCATTER = (_PROGRAMS / "scatter.txt").read_text()


def _read(*changed, groups="{{0,1,2,3}}"):
    """TEXT for four devices; `changed` are pairs of what stands there and what is to."""
    text = TEXT.replace("GROUPS", groups)
    for before, after in changed:
        assert before in text
        text = text.replace(before, after)
    return read_program(text, 4)


@cases("groups, size")
def test_loops_fusions_and_collectives(groups, size):
    program = _read(groups=groups)
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
    reduced = _read(("%one = s32[] constant(1)", f"%one = s32[] constant({step})")).collectives[0]
    assert reduced.kind == "all-reduce" and reduced.times == rounds


def test_traffic_and_kernels_are_counted_in_a_program_alone():
    """One layer of seven is read; what is kept in S(1), on the chip itself, is not counted."""
    program = _read()
    work = {w.name: w for w in program.work}
    index = 4
    assert work["made"].hbm_bytes == 16 * 16 * 2 + index + 8 * 16 * 4
    assert work["dot"].hbm_bytes == 2 * 8 * 16 * 4 + 16 * 16 * 2
    assert work["dot"].times == 5
    line = '  %k = f32[8,16] custom-call(%x), custom_call_target="tpu_custom_call"\n  %dot = '
    assert _read(("  %dot = ", line)).kernels == 5
    with pytest.raises(ValueError, match="no ENTRY"):
        read_program("HloModule x\n", 1)


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
    early = (
        "  ROOT %less = pred[] compare(%i.1, %limit), direction=LT",
        "  %less = pred[] compare(%i.1, %limit), direction=LT\n"
        "  %going = pred[] constant(true)\n  ROOT %both = pred[] and(%less, %going)",
    )
    assert _read(early).flops == 6 * 2 * 8 * 16 * 16
    program = _read(("direction=LT", "direction=NE"))
    assert program.unknown_loops == 1
    assert program.flops == 2 * 2 * 8 * 16 * 16


def test_work_between_begin_and_end_of_a_collective():
    """The end is found through what follows up a begin, not by its place."""
    later = (
        "  ROOT %gathered = f32[16,16] all-gather-done(%begun)",
        "  %more = f32[8,16]{1,0} negate(%made)\n"
        "  %gathered = f32[16,16] all-gather-done(%begun)\n"
        "  ROOT %last = f32[16,16]{1,0} negate(%gathered)",
    )
    program = _read(later)
    gather = program.collectives[1]
    assert [w.name for w in program.work[gather.begun : gather.awaited]] == ["more"]


def _compiled(function, *arguments, **options):
    return jax.jit(function, **options).lower(*arguments).compile()


def test_scanned_products_compiled_here():
    x, w = (jax.ShapeDtypeStruct((rows, 128), jnp.float32) for rows in (64, 128))

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
    by_slice = read_program(compiled.as_text(), 8, slices=2)  # along data
    assert not any(
        c.across for c in by_slice.collectives if c.kind == "all-gather" and c.group == 4
    )
    assert by_slice.across_slices[1] > 0 == program.across_slices[1]
    forward_and_backward = 3 * 3 * 2 * 64 * 256 * 256 / 8
    assert program.flops == pytest.approx(forward_and_backward, rel=0.01)


def test_a_collective_in_a_chain_counts_once_and_work_beside_it_counts():
    found = read_program(CHAIN, 8)
    (gather,) = found.collectives
    assert gather.kind == "all-gather" and gather.times == 1 and gather.overlapped
    assert gather.bytes == 4 * 16 * 16 and gather.group == 4
    assert [w.name for w in found.work[gather.begun : gather.awaited]] == ["f.1", "f.2"]
    assert found.flops == 2 * (2 * 8 * 16 * 16)
    # Of each step: what the product reads and writes, and a chip's part of what is gathered.
    assert found.hbm_bytes == 2 * 4 * (2 * 8 * 16 + 16 * 16 + 4 * 16)


def test_what_is_sent_for_sums_that_are_kept_in_slices_or_go_between_them():
    scattered, summed = read_program(SCATTER, 8).collectives
    array = 2 * 16 * 8
    assert (scattered.kind, scattered.bytes, scattered.group) == ("reduce-scatter", 2 * array, 4)
    assert scattered.sent_bytes == 2 * array * 3 / 4
    assert (summed.kind, summed.bytes) == ("all-reduce", array)
    assert summed.sent_bytes == 2 * array * 3 / 4
    program = read_program(BETWEEN, 8, slices=2)
    (summed,) = program.collectives
    assert (summed.kind, summed.group, summed.sent_bytes) == ("all-reduce", 2, 4 * 32 * 128)
    assert program.across_slices == (1, 4 * 32 * 128)


BETWEEN = """
ENTRY %main (a: f32[32,128]) -> f32[32,128] {
  %a = f32[32,128]{1,0} parameter(0)
  %t = token[] after-all()
  %s = (f32[32,128]{1,0}, u32[], token[]) send(%a, %t), is_host_transfer=true, NOTED
  %r = (f32[32,128]{1,0}, u32[], token[]) recv(%t), is_host_transfer=true, NOTED
  ROOT %d = f32[32,128]{1,0} get-tuple-element(%r), index=0
}
""".replace(
    "NOTED",
    'frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",'
    '_xla_megascale_transfer_type="ALL_REDUCE"}',
)


def test_every_form_of_groups(subtests):
    for form, groups in data(__file__)["every_form_of_groups"].items():
        with subtests.test(form):
            assert [[*map(int, one)] for one in groups_of(form, 8)] == groups
