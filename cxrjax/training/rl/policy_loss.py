"""The loss of reinforcement learning: the clipped policy gradient over answers that were drawn.

For every token of an answer with advantage a, with p its probability under the parameters, p_old
under those it was drawn with and p_ref under those of the start, the loss is

    -min(r a, clip(r, 1 - e_low, 1 + e_high) a) + beta (p_ref / p - log(p_ref / p) - 1)

with r = p / p_old (arXiv 2402.03300, equations 3 and 4; the two bounds of arXiv 2503.14476). In the
first update after a drawing r is 1 and its gradient that of log p. Each answer counts alike, or
each token (`rl.loss_mean`).

Sums go with their counts, as in cxrjax/training/loss.py, so that micro-batches and devices add up.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Key

from cxrjax.codecs.tokens import NUM_BINS
from cxrjax.input_pipeline.batch import ArrayLike, Batch
from cxrjax.training.loss import AnswerModel, Figures, answer_states, sum_in_chunks
from cxrjax.training.policy_config import PolicyConfig


@struct.dataclass
class Experience:
    """Answers to train on; S of them an image, those to one question side by side."""

    batch: Batch  # each answer in a question slot of its own, without boxes
    advantages: Float[ArrayLike, "B S"]  # of each answer; 0: it teaches nothing
    weights: Float[ArrayLike, "B S"]  # of each token of the answer in the loss
    # log-probability of each token under the parameters of the start.
    reference_logprobs: Float[ArrayLike, "B S A"]
    # The same under those that drew it; None: they are the present ones.
    old_logprobs: Float[ArrayLike, "B S A"] | None
    # Figures of each answer by name, for the log; NaN where there is none.
    told: dict[str, Float[ArrayLike, "B S"]]


class PolicyDenominators(NamedTuple):
    """Divisors of a whole batch's sums, float32 scalars."""

    weight: Any  # of all tokens together


class PolicyObjective:
    """The loss of group `rl` as the step wants it (cxrjax/training/objectives.py)."""

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config

    def denominators(self, batch: Experience) -> PolicyDenominators:
        weight = batch.weights[..., None] * batch.batch.answer_mask
        return PolicyDenominators(jnp.sum(weight, dtype=jnp.float32))

    def loss(
        self,
        model: Any,
        batch: Experience,
        key: Key[Array, ""] | None,
        denominators: PolicyDenominators,
        logit_chunk: int,
    ) -> tuple[Float[Array, ""], Figures]:
        """Computes the loss of a batch or of a part of one, and sum and count of its figures.

        Entropies are in nats: of the vocabulary over tokens, of the location tokens over those.
        """
        rl, answers = self._config, batch.batch
        hidden = answer_states(model, answers, key)
        rows, start = hidden.shape[0], model.config.loc_token_start
        shape = answers.answer_tokens.shape
        of_answers = (batch.advantages, batch.weights)
        old = batch.reference_logprobs if batch.old_logprobs is None else batch.old_logprobs
        items = [
            hidden,
            answers.answer_tokens,
            *(jnp.broadcast_to(x[..., None], shape) for x in of_answers),
            batch.reference_logprobs,
            old,
        ]

        def sums(states: Array, token: Array, *rest: Array) -> tuple[Array, tuple[Array, ...]]:
            advantage, weight, reference, old, mask = rest
            logits = model.logits(states) / rl.temperature
            distribution = jax.nn.log_softmax(logits, axis=-1)
            logprob = chosen(distribution, token)
            before = jax.lax.stop_gradient(logprob) if batch.old_logprobs is None else old
            ratio = jnp.exp(logprob - before)
            bounded = jnp.clip(ratio, 1 - rl.epsilon_low, 1 + rl.epsilon_high)
            gain = jnp.minimum(ratio * advantage, bounded * advantage)
            away = reference - logprob
            kl = jnp.exp(away) - away - 1
            is_bin = mask & (token >= start) & (token < start + NUM_BINS)
            bins = jax.nn.log_softmax(logits[..., start : start + NUM_BINS], axis=-1)

            def total(x: Array, where: Array = mask) -> Array:
                return jnp.sum(jnp.where(where, x, 0), dtype=jnp.float32)

            told = jax.lax.stop_gradient(
                (
                    total(weight * kl),
                    total(bounded * advantage < ratio * advantage),
                    total(entropy(distribution)),
                    total(entropy(bins), is_bin),
                    total(is_bin),
                )
            )
            return total(weight * (rl.kl_weight * kl - gain)), told

        flat = [x.reshape(rows, -1, *x.shape[3:]) if i else x for i, x in enumerate(items)]
        loss, (kl, clipped, words, bins, count) = sum_in_chunks(
            sums, tuple(flat), answers.answer_mask.reshape(rows, -1), logit_chunk
        )
        weight = self.denominators(batch).weight
        tokens = jnp.sum(answers.answer_mask, dtype=jnp.float32)
        figures = {
            **{f"rl/{name}": _sum_and_count(values) for name, values in batch.told.items()},
            "rl/kl": (kl, weight),
            "rl/clipped": (clipped, tokens),
            "rl/entropy": (words, tokens),
            "rl/coordinate_entropy": (bins, count),
        }
        return loss / jnp.maximum(denominators.weight, 1e-6), figures


def entropy(log_probabilities: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
    """Entropy in nats."""
    return -jnp.sum(jnp.exp(log_probabilities) * log_probabilities, axis=-1)


def chosen(logits: Float[Array, "*batch V"], token: ArrayLike) -> Float[Array, "*batch"]:
    """The entry of each token; compared and selected, which shards over the vocabulary as it is."""
    return jnp.sum(jnp.where(jnp.arange(logits.shape[-1]) == token[..., None], logits, 0), axis=-1)


def answer_logprobs(
    model: AnswerModel, batch: Batch, temperature: float, logit_chunk: int
) -> Float[Array, "B S A"]:
    """The log-probability of every token of the answers, 0 in padding.

    Args:
        logit_chunk: tokens, over all rows, whose logits exist at a time.
    """
    hidden = answer_states(model, batch, None)
    rows, length, _ = hidden.shape
    width = min(max(1, logit_chunk // rows), length)
    tokens = jnp.asarray(batch.answer_tokens).reshape(rows, length)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, [(0, 0), (0, -length % width)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(rows, -1, width, *x.shape[2:]), 1, 0)

    def of_chunk(chunk: tuple[Array, Array]) -> Array:
        logits = model.logits(chunk[0]) / temperature
        return chosen(jax.nn.log_softmax(logits, axis=-1), chunk[1])

    found = jax.lax.map(of_chunk, (cut(hidden), cut(tokens)))
    found = jnp.moveaxis(found, 0, 1).reshape(rows, -1)[:, :length]
    return jnp.where(batch.answer_mask, found.reshape(batch.answer_mask.shape), 0)


def _sum_and_count(values: Float[ArrayLike, "B S"]) -> tuple[Array, Array]:
    there = ~jnp.isnan(values)
    return jnp.sum(jnp.where(there, values, 0)), jnp.sum(there, dtype=jnp.float32)
