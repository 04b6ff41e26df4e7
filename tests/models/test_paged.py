"""Attention over pages: interpreted, against plain attention; and compiled for TPUs."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from cxrjax.distributed.hardware import parse_topology
from cxrjax.models.attention import KeySection, attend
from cxrjax.models.paged import attend_to_pages
from cxrjax.planner.program import tpu_devices

PAGE, SIZE = 8, 256


def in_pages(lengths, tables, heads=(4, 2), pages=9):
    """Queries, and a pool in which all is drawn at random."""
    rng = np.random.default_rng(0)
    pool = (pages, heads[1], PAGE, SIZE)
    q, k, v = (
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in ((len(lengths), heads[0], SIZE), pool, pool)
    )
    return q / SIZE**0.5, k, v, jnp.asarray(lengths), jnp.asarray(tables)


def plainly(q, k, v, lengths, tables, softcap):
    """The same by `attend`, each slot's pages put one behind the other."""
    keys, values = (
        jnp.moveaxis(pool[tables], 1, 2).reshape(len(lengths), k.shape[1], -1, SIZE)
        for pool in (k, v)
    )
    seen = jnp.arange(keys.shape[2]) < lengths[:, None]
    grouped = q.reshape(len(lengths), k.shape[1], 1, -1, 1, SIZE)
    section = KeySection(keys, values, seen[:, None, None])
    return attend(grouped, [section], softcap).reshape(q.shape)


@pytest.mark.parametrize("softcap", [pytest.param(None, marks=pytest.mark.slow), 0.5])
def test_pages_are_one_sequence_whatever_lies_behind_its_end(softcap):
    # Two slots share the pages of an image; the third has pages out of order, the last one is full.
    lengths = [11, 18, 17, 24]
    tables = [[3, 5, 0], [3, 1, 6], [8, 2, 7], [4, 0, 5]]
    q, k, v, lengths, tables = in_pages(lengths, tables)
    expected = plainly(q, k, v, lengths, tables, softcap)
    # Behind the ends: of slot 0 in page 5 is read by slot 3, so only what nobody reads is spoilt.
    spoilt = [pool.at[6, :, 2:].set(jnp.nan).at[7, :, 1:].set(jnp.nan) for pool in (k, v)]
    found = attend_to_pages(q, *spoilt, lengths, tables, softcap=softcap, interpret=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_slot_without_tokens_is_zero():
    q, k, v, lengths, tables = in_pages([0, 8], [[0], [1]])
    found = attend_to_pages(q, k, v, lengths, tables, interpret=True)
    assert not found[0].any() and found[1].any()


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the TPU's compiler, is not installed (pip install cxrjax[plan])",
)
@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v5e-1", "v6e-1"])
@pytest.mark.parametrize(("heads", "size"), [((8, 4), 256), ((8, 1), 256), ((32, 8), 128)])
def test_compiles_for_tpus(topology, heads, size):
    """MedGemma 4B's, PaliGemma 3B's and Mistral's heads, 64 slots of up to 768 tokens."""
    place = SingleDeviceSharding(tpu_devices(parse_topology(topology))[0])
    pool = jax.ShapeDtypeStruct((300, heads[1], 64, size), jnp.bfloat16)
    query = jax.ShapeDtypeStruct((64, heads[0], size), jnp.bfloat16)
    numbers = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((64,), (64, 12)))
    step = jax.jit(attend_to_pages, in_shardings=place, out_shardings=place)
    compiled = step.lower(query, pool, pool, *numbers).compile()
    assert "tpu_custom_call" in compiled.as_text()
    # The pool is read where it lies.
    assert compiled.memory_analysis().temp_size_in_bytes < pool.size * 2 / 10
