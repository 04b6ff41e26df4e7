"""The answer grammar: location tokens come in fours and make a box.

A state machine that runs inside the jitted decode loop. It knows how many tokens of the current
box stand and which bins they name; it forbids what cannot lead to a box: text inside a box, and a
far corner that does not lie beyond the near one.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cxrjax.models import NUM_LOC_TOKENS


class BoxState(NamedTuple):
    """Attributes:
    placed: location tokens of the current box so far, 0 to 3.
    older, newer: bins of the last two tokens; only meaningful where `placed` says so.
    """

    placed: Int[Array, "*batch"]
    older: Int[Array, "*batch"]
    newer: Int[Array, "*batch"]


def initial_state(shape: tuple[int, ...]) -> BoxState:
    """Outside any box."""
    zeros = jnp.zeros(shape, jnp.int32)
    return BoxState(zeros, zeros, zeros)


def allowed_tokens(
    state: BoxState, vocab_size: int, loc_token_start: int
) -> Bool[Array, "*batch V"]:
    """Which tokens may come next.

    Outside a box: any token, but the last bin (it leaves no room for a far corner). Inside: only
    location tokens; the third and fourth must name a later bin than the first and second.
    """
    bins = jnp.arange(vocab_size) - loc_token_start
    is_loc = (bins >= 0) & (bins < NUM_LOC_TOKENS)
    placed = state.placed[..., None]
    far_corner = is_loc & (bins > state.older[..., None])
    near_corner = bins < NUM_LOC_TOKENS - 1
    starts = ~is_loc | near_corner
    return jnp.where(placed == 0, starts, jnp.where(placed == 1, is_loc & near_corner, far_corner))


def advance(state: BoxState, token: Int[Array, "*batch"], loc_token_start: int) -> BoxState:
    """The state after a token."""
    bins = token - loc_token_start
    is_loc = (bins >= 0) & (bins < NUM_LOC_TOKENS)
    return BoxState(
        placed=jnp.where(is_loc, (state.placed + 1) % 4, 0),
        older=state.newer,
        newer=jnp.where(is_loc, bins, 0),
    )
