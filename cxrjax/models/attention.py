"""Attention over a context shared by several questions, each of which also sees itself.

The sequence of a row is [context | question 0's slots | question 1's slots ...]. A dense mask
over it would be mostly zeros; here the structure is the mask: keys come in sections, a section
either shared by all questions of a row (the image) or a question's own, and the softmax runs over
the sections together.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

# A finite stand-in for minus infinity: a row without any key then gives a mean, not NaN.
_MASKED = -1e30


class KeySection(NamedTuple):
    """Keys and values, and who may see them.

    Attributes:
        k, v: [B, K, M, H] where all questions of a row share the section, [B, K, Q, M, H] where
            each question has its own (K key-value heads, M keys, H head size).
        mask: True where query slot r of question q may see key m, [B, Q, R, M]; None: everywhere.
    """

    k: Float[Array, "..."]
    v: Float[Array, "..."]
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
    rows, kv_heads, questions, group, slots, head_dim = q.shape
    logits = []
    for section in sections:
        queries = q.reshape(rows, kv_heads, -1, head_dim)
        if section.k.ndim == 5:
            queries = q.reshape(rows, kv_heads, questions, -1, head_dim)
        scores = jnp.matmul(
            queries, jnp.swapaxes(section.k, -1, -2), preferred_element_type=jnp.float32
        ).reshape(rows, kv_heads, questions, group, slots, -1)
        if softcap is not None:
            scores = softcap * jnp.tanh(scores / softcap)
        if section.mask is not None:
            scores = jnp.where(section.mask[:, None, :, None], scores, _MASKED)
        logits.append(scores)

    largest = jnp.max(logits[0], axis=-1, keepdims=True)
    for scores in logits[1:]:
        largest = jnp.maximum(largest, jnp.max(scores, axis=-1, keepdims=True))
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


def rope_frequencies(head_dim: int, base: float, scale: float = 1.0) -> Float[np.ndarray, " h"]:
    """Radians per position of each pair of a head's entries; `scale` stretches positions."""
    half = head_dim // 2
    return (base ** (-np.arange(half) / half) / scale).astype(np.float32)


def apply_rope(
    x: Float[Array, "B S N H"], positions: Int[Array, "B S"], frequencies: Float[ArrayLike, " h"]
) -> Float[Array, "B S N H"]:
    """Rotary position embedding, the halves of a head rotated against each other (Gemma)."""
    angles = positions.astype(jnp.float32)[..., None, None] * frequencies
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
