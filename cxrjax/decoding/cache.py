"""Several answers to one question: what of the key-value cache they share, and what each has.

Candidates (beams or samples) are further questions beside their own. The keys and values of the
image, by far the largest part, are not copied: with `share="image"` all questions of a row read
them anyway, and with `share="tower"`, where a question has a row of its own, its candidates are
the questions of that row. The prompt's are copied once for each candidate, after the prefill; the
answer's are each candidate's own, and beam search gathers those, and those alone, at every step.
"""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Int

from cxrjax.distributed.meshes import batch_sharding, cache_sharding
from cxrjax.models.gemma import LayerCache
from cxrjax.models.vlm import DecodeState

# The axis of questions: [B, K, Q, P, H] and [B, K, Q, A, H]; the context has none.
_QUESTIONS = 2


def spread_cache(state: DecodeState, mesh: Mesh) -> DecodeState:
    """Keeps the cache split over the mesh through the decode loop. Traceable."""
    heads = cache_sharding(mesh, state.layers[0].prefix_k.shape[1])
    layers = jax.lax.with_sharding_constraint(state.layers, heads)
    rest = state._replace(layers=[])
    rest = jax.lax.with_sharding_constraint(rest, batch_sharding(mesh))
    return rest._replace(layers=layers)


def repeat_questions(state: DecodeState, count: int) -> DecodeState:
    """Each question `count` times in a row: question q becomes q * count, q * count + 1 and on."""
    if count == 1:
        return state

    def repeat(cache: LayerCache) -> LayerCache:
        own = {
            name: jnp.repeat(values, count, axis=_QUESTIONS)
            for name, values in cache._asdict().items()
            if name.startswith(("prefix_", "answer_"))
        }
        return cache._replace(**own)

    return state._replace(
        layers=[repeat(cache) for cache in state.layers],
        prefix_mask=jnp.repeat(state.prefix_mask, count, axis=1),
        next_position=jnp.repeat(state.next_position, count, axis=1),
    )


def reorder_answers(state: DecodeState, parents: Int[Array, "B Q n"]) -> DecodeState:
    """Candidate i of a question goes on with the answer that candidate `parents[..., i]` gave.

    Args:
        state: from `repeat_questions` with a count of n, or from a decode step after it.
    """
    count = parents.shape[-1]
    rows, slots = state.next_position.shape
    own = parents.reshape(rows, slots // count, count)
    chosen = (own + count * jnp.arange(slots // count)[:, None]).reshape(rows, slots)
    gather = jax.vmap(lambda values, index: jnp.take(values, index, axis=_QUESTIONS - 1))

    def reorder(cache: LayerCache) -> LayerCache:
        answers = {
            name: gather(values, chosen)
            for name, values in cache._asdict().items()
            if name.startswith("answer_")
        }
        return cache._replace(**answers)

    return state._replace(layers=[reorder(cache) for cache in state.layers])
