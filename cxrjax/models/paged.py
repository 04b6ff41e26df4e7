"""One new token of each slot attends to keys and values that lie in pages (Pallas, TPU).

A page is a run of tokens of a pool that all slots share; a slot's table says which pages are its
sequence, in order. So slots that ask about one image may have its pages in common, and a slot takes
and reads no more of the pool than it has tokens, whatever the longest prompt and answer may be. For
a server whose slots are of very unequal lengths; the caches of `generate` and of the server as it
is (gemma.LayerCache) are dense, and do not need it.

JAX's ragged paged attention does not compile at a head size of 256 (Gemma, MedGemma) for v5e and
v6e (docs/log.md); this one does, for any multiple of 128.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

_MASKED = -1e30
_LANES = 128


def attend_to_pages(
    q: Float[Array, "S N H"],
    k_pages: Float[Array, "P K T H"],
    v_pages: Float[Array, "P K T H"],
    lengths: Int[Array, " S"],
    tables: Int[Array, "S M"],
    *,
    softcap: float | None = None,
    interpret: bool = False,
) -> Float[Array, "S N H"]:
    """Softmax attention of a scaled query a slot over the first `lengths` tokens of its pages.

    Args:
        q: N query heads, a multiple of the K key-value heads.
        k_pages, v_pages: P pages of T tokens; H a multiple of 128, T of 16 (bfloat16) or 8.
        lengths: tokens of each slot, the newest among them; 0: the result is zero.
        tables: numbers of each slot's pages; behind its last one anything that is a page.
        softcap: as in `attend`.
        interpret: without a TPU, slowly.
    """
    slots, heads, size = q.shape
    _, kv_heads, page, _ = k_pages.shape
    group, most = heads // kv_heads, tables.shape[1]

    def of_page(slot: Any, number: Any, lengths: Any, tables: Any) -> tuple[Any, ...]:
        # Behind the last page the same one again: what is there already is not fetched.
        last = jax.lax.div(jnp.maximum(lengths[slot] - 1, 0), page)
        return tables[slot * most + jnp.minimum(number, last)], 0, 0, 0

    def of_slot(slot: Any, number: Any, lengths: Any, tables: Any) -> tuple[Any, ...]:
        return slot, 0, 0, 0

    of_query = pl.BlockSpec((1, kv_heads, group, size), of_slot)
    of_keys = pl.BlockSpec((1, kv_heads, page, size), of_page)
    sums = pltpu.VMEM((kv_heads, group, _LANES), jnp.float32)
    out = pl.pallas_call(
        functools.partial(_kernel, softcap=softcap),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(slots, most),
            in_specs=[of_query, of_keys, of_keys],
            out_specs=of_query,
            scratch_shapes=[sums, sums, pltpu.VMEM((kv_heads, group, size), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((slots, kv_heads, group, size), q.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
    )(
        lengths.astype(jnp.int32),
        tables.reshape(-1).astype(jnp.int32),
        q.reshape(slots, kv_heads, group, size),
        k_pages,
        v_pages,
    )
    return out.reshape(slots, heads, size)


def _kernel(
    lengths: Any,
    tables: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    largest: Any,
    total: Any,
    weighted: Any,
    *,
    softcap: float | None,
) -> None:
    """A page of a slot; what the pages before it came to is in the three last references."""
    slot, number = pl.program_id(0), pl.program_id(1)
    length, page = lengths[slot], k.shape[2]

    @pl.when(number == 0)
    def begin() -> None:
        largest[...] = jnp.full_like(largest, _MASKED)
        total[...] = jnp.zeros_like(total)
        weighted[...] = jnp.zeros_like(weighted)

    @pl.when(number * page < length)
    def read() -> None:
        left = length - number * page
        for head in range(k.shape[1]):
            keys, values = k[0, head], v[0, head]
            scores = jax.lax.dot_general(
                q[0, head], keys, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
            )
            if softcap is not None:
                scores = softcap * jnp.tanh(scores / softcap)
            there = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1) < left
            scores = jnp.where(there, scores, _MASKED)
            before = largest[head][:, :1]
            now = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
            weights, shrunk = jnp.exp(scores - now), jnp.exp(before - now)
            # What an earlier slot left behind the end may be anything, also not a number.
            rows = jax.lax.broadcasted_iota(jnp.int32, values.shape, 0) < left
            values = jnp.where(rows, values, jnp.zeros_like(values))
            part = jnp.dot(weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
            summed = shrunk * total[head][:, :1] + jnp.sum(weights, axis=1, keepdims=True)
            largest[head] = jnp.broadcast_to(now, largest.shape[1:])
            total[head] = jnp.broadcast_to(summed, total.shape[1:])
            weighted[head] = shrunk * weighted[head] + part

    @pl.when(number == pl.num_programs(1) - 1)
    def end() -> None:
        for head in range(k.shape[1]):
            found = weighted[head] / jnp.maximum(total[head][:, :1], 1e-30)
            out[0, head] = found.astype(out.dtype)
