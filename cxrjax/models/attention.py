"""Attention over a context shared by several questions, each of which also sees itself.

The sequence of a row is [context | question 0's slots | question 1's slots ...]. A dense mask
over it would be mostly zeros; here the structure is the mask: keys come in sections, a section
either shared by all questions of a row (the image) or a question's own, and the softmax runs over
the sections together.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

# A finite stand-in for minus infinity: a row without any key then gives a mean, not NaN.
_MASKED = -1e30
# Scores that exist at a time. More queries than give so many take turns: the 4,096 patches of an
# 896-pixel image would make a gigabyte of them in every layer, and on a CPU what leaves the cache
# costs more than the products (docs/log.md).
_SCORES_AT_A_TIME = 2**22
_FEWEST_QUERIES = 128


class KeySection(NamedTuple):
    """Keys and values, and who may see them."""

    # `k`, `v`: [B, K, M, H] where all questions of a row share the section, [B, K, Q, M, H] where
    # each question has its own (K key-value heads, M keys, H head size).
    k: Float[Array, "..."]
    v: Float[Array, "..."]
    # True where query slot r of question q may see key m, [B, Q, R, M]; None: everywhere.
    mask: Bool[Array, "B Q R M"] | None = None


def attend(
    q: Float[Array, "B K Q G R H"], sections: list[KeySection], softcap: float | None = None
) -> Float[Array, "..."]:
    """Softmax attention of scaled queries over all sections together.

    Args:
        q: scaled queries, [B, K, Q, G, R, H]: G query heads to a key-value head, R query slots to
            a question.
        sections: at least one.
        softcap: scores become softcap * tanh(score / softcap) (Gemma 2); None: as they are.

    Returns:
        [B, K, Q, G, R, H], in the dtype of `q`; logits and softmax are float32.
    """
    slots = q.shape[4]
    scores_a_slot = q.size // (slots * q.shape[5]) * sum(s.k.shape[-2] for s in sections)
    turns = min(-(-slots * scores_a_slot // _SCORES_AT_A_TIME), -(-slots // _FEWEST_QUERIES))
    if turns <= 1:
        return _attend(q, sections, softcap)
    at_a_time = -(-slots // turns)

    def cut(x: Array, axis: int) -> Array:
        """The axis of the query slots in turns, which lead."""
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, turns * at_a_time - slots)
        shape = (*x.shape[:axis], turns, at_a_time, *x.shape[axis + 1 :])
        return jnp.moveaxis(jnp.pad(x, padding).reshape(shape), axis, 0)

    # Scores of a turn are made again in the backward pass, or all of them would be kept after all.
    @jax.checkpoint
    def turn(queries: tuple[Array, dict[int, Array]]) -> Array:
        part, masks = queries
        seen = [s._replace(mask=masks.get(i, s.mask)) for i, s in enumerate(sections)]
        return _attend(part, seen, softcap)

    # Masks that are the same for every slot have an axis of 1 there, and are not cut.
    masks = {
        i: cut(s.mask, 2)
        for i, s in enumerate(sections)
        if s.mask is not None and s.mask.shape[2] == slots
    }
    out = jnp.moveaxis(jax.lax.map(turn, (cut(q, 4), masks)), 0, 4)
    return out.reshape(*q.shape[:4], turns * at_a_time, -1)[..., :slots, :]


def _attend(
    q: Float[Array, "B K Q G R H"], sections: list[KeySection], softcap: float | None
) -> Float[Array, "..."]:
    rows, kv_heads, questions, group, slots, head_dim = q.shape
    logits = []
    for section in sections:
        queries = q.reshape(rows, kv_heads, -1, head_dim)
        if section.k.ndim == 5:
            queries = q.reshape(rows, kv_heads, questions, -1, head_dim)
        scores = _scores(queries, section.k).reshape(rows, kv_heads, questions, group, slots, -1)
        if softcap is not None:
            scores = softcap * jnp.tanh(scores / softcap)
        if section.mask is not None:
            scores = jnp.where(section.mask[:, None, :, None], scores, _MASKED)
        logits.append(scores)

    largest = jnp.max(logits[0], axis=-1, keepdims=True)
    for scores in logits[1:]:
        largest = jnp.maximum(largest, jnp.max(scores, axis=-1, keepdims=True))
    # It cancels out, so that gradients through it would be work for nothing.
    largest = jax.lax.stop_gradient(largest)
    total = jnp.zeros((), jnp.float32)
    weighted = jnp.zeros((), jnp.float32)
    for section, scores in zip(sections, logits, strict=True):
        weights = jnp.exp(scores - largest)
        total = total + jnp.sum(weights, axis=-1, keepdims=True)
        weights = weights.astype(q.dtype)
        if section.v.ndim == 5:
            weights = weights.reshape(rows, kv_heads, questions, group * slots, -1)
        else:
            weights = weights.reshape(rows, kv_heads, questions * group * slots, -1)
        values = jnp.matmul(weights, section.v, preferred_element_type=jnp.float32)
        weighted = weighted + values.reshape(q.shape)
    return (weighted / total).astype(q.dtype)


def _scores(q: Float[Array, "*b R H"], k: Float[Array, "*b M H"]) -> Float[Array, "*b R M"]:
    """Products of queries and keys, float32.

    A CPU copies the factor that is transposed, so that is the smaller one: decoding would copy the
    whole cache for a query.
    """
    if q.shape[-2] < k.shape[-2]:
        return jnp.swapaxes(_scores(k, q), -1, -2)
    return jnp.matmul(q, jnp.swapaxes(k, -1, -2), preferred_element_type=jnp.float32)


def rope_frequencies(
    head_dim: int, base: float, scale: float = 1.0, share: float = 1.0
) -> Float[np.ndarray, " h"]:
    """Radians per position of each pair of a head's entries.

    `scale` stretches positions; of the pairs only the first part `share` turns.
    """
    half = head_dim // 2
    frequencies = base ** (-np.arange(half) / half) / scale
    turns = np.arange(half) < int(share * head_dim // 2)
    return np.where(turns, frequencies, 0.0).astype(np.float32)


def apply_rope(
    x: Float[Array, "B S N H"],
    positions: Int[ArrayLike, "#B S"] | Int[ArrayLike, "#B S h"],
    frequencies: Float[ArrayLike, " h"],
) -> Float[Array, "B S N H"]:
    """Rotary position embedding, the halves of a head rotated against each other (Gemma).

    Args:
        positions: of each token, or of each pair of a token's entries.
    """
    of_pairs = jnp.asarray(positions, jnp.float32)
    if of_pairs.ndim == 2:
        of_pairs = of_pairs[..., None]
    angles = of_pairs[..., None, :] * frequencies
    # Computed once, not within each head's rotation, where XLA would put them.
    sin, cos = jax.lax.optimization_barrier((jnp.sin(angles), jnp.cos(angles)))
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
