"""Drawing tokens: temperature, top-k, top-p (arXiv 1904.09751), and whose random numbers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt


def filter_logits(
    logits: Float[Array, "*batch V"], temperature: float, top_k: int, top_p: float
) -> Float[Array, "*batch V"]:
    """Logits to draw from; what is not to be drawn is minus infinity.

    Temperature first, then top-k, then top-p of what top-k has left, as transformers does it.

    Args:
        temperature: above 0.
        top_k: the k likeliest tokens, with those as likely as the k-th; 0: all.
        top_p: the fewest tokens, likeliest first, whose probabilities sum to at least this, with
            those as likely as the last of them; 1: all.
    """
    logits = logits / temperature
    vocab_size = logits.shape[-1]
    top_k = min(top_k or vocab_size, vocab_size)
    if top_k == vocab_size and top_p >= 1:
        return logits
    likeliest, _ = jax.lax.top_k(logits, top_k)
    threshold = likeliest[..., -1]
    if top_p < 1:
        probabilities = jax.nn.softmax(likeliest, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        # The first one always stays: nothing comes before it.
        last = jnp.sum(before < top_p, axis=-1, keepdims=True) - 1
        threshold = jnp.take_along_axis(likeliest, last, axis=-1)[..., 0]
    return jnp.where(logits < threshold[..., None], -jnp.inf, logits)


def sample_keys(
    seed: int | UInt[Array, ""], question_index: Int[Array, "B Q"], count: int
) -> Key[Array, "B Q*n"]:
    """A key for each of `count` samples of each question.

    It hangs on the seed, the question's global index and the sample's number alone: not on what
    else is in the batch.
    """
    fold_in = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    of_questions = fold_in(jax.random.key(seed), question_index.reshape(-1))
    keys = jax.vmap(fold_in, in_axes=(0, None))(of_questions, jnp.arange(count))
    return keys.reshape(question_index.shape[0], -1)


def sample_tokens(
    keys: Key[Array, "B C"], step: Int[Array, ""] | int, logits: Float[Array, "B C V"]
) -> Int[Array, "B C"]:
    """One token from each row of logits, with the key of its step."""

    def draw(key: Key[Array, ""], row: Float[Array, " V"]) -> Int[Array, ""]:
        return jax.random.categorical(jax.random.fold_in(key, step), row)

    return jax.vmap(jax.vmap(draw))(keys, logits).astype(jnp.int32)
