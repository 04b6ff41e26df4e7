"""Beam search, by the rules of transformers' `generate` (generation/utils.py, `_beam_search`).

Candidates (beams or samples) are further questions beside their own. The keys and values of the
image, by far the largest part, are not copied: with `share="image"` all questions of a row read
them anyway, and with `share="tower"`, where a question has a row of its own, its candidates are
the questions of that row. The prompt's are copied once for each candidate, after the prefill; the
answer's are each candidate's own, and beam search gathers those, and those alone, at every step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from cxrjax.decoding.box_readings import LEVELS, is_location, location_quantiles
from cxrjax.decoding.grammar import (
    Grammar,
    GrammarState,
    TokenVocabulary,
    advance,
    allowed_tokens,
    initial_state,
)
from cxrjax.decoding.strategy import Strategy
from cxrjax.distributed.meshes import batch_sharding, cache_sharding
from cxrjax.models import VLM
from cxrjax.models.gemma import LayerCache
from cxrjax.models.vlm import DecodeState

# The axis of questions: [B, K, Q, P, H] and [B, K, Q, A, H]; the context has none.
QUESTIONS = 2


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
            name: jnp.repeat(values, count, axis=QUESTIONS)
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
    gather = jax.vmap(lambda values, index: jnp.take(values, index, axis=QUESTIONS - 1))

    def reorder(cache: LayerCache) -> LayerCache:
        answers = {
            name: gather(values, chosen)
            for name, values in cache._asdict().items()
            if name.startswith("answer_")
        }
        return cache._replace(**answers)

    return state._replace(layers=[reorder(cache) for cache in state.layers])


class Hypotheses(NamedTuple):
    """Beginnings of answers, or whole ones, best first."""

    # `tokens`, `logprobs`: as of `Generation`, [B, Q, n, A].
    tokens: Int[Array, "B Q n A"]
    logprobs: Float[Array, "B Q n A"]
    # `words`, `quantiles`: the same, [B, Q, n, A, W] and [B, Q, n, A, M].
    words: Float[Array, "B Q n A W"]
    quantiles: Int[Array, "B Q n A M"]
    # What they are ranked by, [B, Q, n]; minus infinity: there is none.
    scores: Float[Array, "B Q n"]

    def take(self, index: Int[Array, "B Q m"]) -> "Hypotheses":
        """The hypotheses with these numbers, of each question."""
        return Hypotheses(*(take_candidates(part, index) for part in self))


def watched_logprobs(
    logits: Float[Array, "*batch V"], watched: Int[Array, "W n"]
) -> Float[Array, "*batch W"]:
    """Log-probability of each watched word, summed over its tokens; -1 is none."""
    given = jnp.where(watched >= 0, logits[..., watched], -jnp.inf)
    return jax.nn.logsumexp(given, axis=-1) - jax.nn.logsumexp(logits, axis=-1, keepdims=True)


class _Loop(NamedTuple):
    step: Int[Array, ""]
    running: Hypotheses
    finished: Hypotheses
    searching: Bool[Array, "B Q"]
    hidden: Float[Array, "B C D"]
    decode: DecodeState
    grammar: GrammarState


def take_candidates(values: Array, index: Int[Array, "B Q m"]) -> Array:
    """`values[b, q, index[b, q, i]]`, whatever axes come after."""
    return jax.vmap(jax.vmap(lambda row, chosen: row[chosen]))(values, index)


def beam_search(
    model: VLM,
    hidden: Float[Array, "B C D"],
    decode: DecodeState,
    asked: Bool[Array, "B Q"],
    strategy: Strategy,
    grammar: Grammar | None,
    vocabulary: TokenVocabulary,
    watched: Int[Array, "W n"],
) -> Hypotheses:
    """The best finished hypotheses of each question.

    At each step the `(1 + stop tokens) * n`, at least `2 n`, best continuations of the n running
    hypotheses are looked at. Those among the best n that end go to the finished ones, whose n best
    are kept, ranked with the length penalty; the n best that do not end run on. A question is done
    when its finished ones are n and the best running one would not come before the last of them if
    it ended now, or at once with `early_stopping`. In the last slot everything ends.

    Scores are sums of the model's own log-probabilities: the grammar strikes continuations out and
    leaves the others as they are.

    Args:
        hidden, decode: from the prefill, every question repeated n times; C = Q * n.
        asked: False for empty questions, whose answers stay empty.
        watched: as in `generate`.
    """
    rows, questions = asked.shape
    n, slots = strategy.beams, strategy.max_answer_tokens
    kept = min(max(2, 1 + len(vocabulary.stop_ids)) * n, n * vocabulary.size)
    blocks = model.decoder.blocks()
    shape = (rows, questions, n)
    nothing = Hypotheses(
        tokens=jnp.zeros((*shape, slots), jnp.int32),
        logprobs=jnp.zeros((*shape, slots), jnp.float32),
        words=jnp.zeros((*shape, slots, len(watched)), jnp.float32),
        quantiles=jnp.zeros((*shape, slots, len(LEVELS)), jnp.int32),
        scores=jnp.full(shape, -jnp.inf),
    )

    def one_token(loop: _Loop) -> _Loop:
        logprobs = jax.nn.log_softmax(model.logits(loop.hidden), axis=-1)
        logprobs = logprobs.reshape(*shape, vocabulary.size)
        choices = logprobs
        if grammar is not None:
            remaining = slots - 1 - loop.step
            allowed = allowed_tokens(grammar, loop.grammar, remaining, vocabulary)
            choices = jnp.where(allowed, logprobs, -jnp.inf)
        totals = loop.running.scores[..., None] + choices
        totals, index = jax.lax.top_k(totals.reshape(rows, questions, -1), kept)
        parents, tokens = index // vocabulary.size, (index % vocabulary.size).astype(jnp.int32)
        chosen = jnp.take_along_axis(logprobs.reshape(rows, questions, -1), index, axis=-1)
        words = take_candidates(watched_logprobs(choices, watched), parents)
        quantiles = take_candidates(location_quantiles(choices, vocabulary), parents)
        quantiles = jnp.where(is_location(tokens, vocabulary)[..., None], quantiles, 0)
        following = loop.running.take(parents)
        following = Hypotheses(
            tokens=following.tokens.at[..., loop.step].set(tokens),
            logprobs=following.logprobs.at[..., loop.step].set(chosen),
            words=following.words.at[..., loop.step, :].set(words),
            quantiles=following.quantiles.at[..., loop.step, :].set(quantiles),
            scores=totals,
        )

        length = (loop.step + 1).astype(jnp.float32) ** strategy.length_penalty
        ends = jnp.broadcast_to(loop.step + 1 == slots, tokens.shape)
        for stop in vocabulary.stop_ids:
            ends |= tokens == stop
        counts = ends & (jnp.arange(kept) < n) & loop.searching[..., None]
        ended = following._replace(scores=jnp.where(counts, totals / length, -jnp.inf))
        both = Hypotheses(
            *(jnp.concatenate(pair, axis=2) for pair in zip(loop.finished, ended, strict=True))
        )
        finished = both.take(jax.lax.top_k(both.scores, n)[1])

        scores, best = jax.lax.top_k(jnp.where(ends, -jnp.inf, totals), n)
        running = following.take(best)._replace(scores=scores)
        searching = loop.searching & (scores[..., 0] / length > finished.scores[..., -1])
        if strategy.early_stopping:
            searching &= jnp.isneginf(finished.scores[..., -1])

        parents, tokens = take_candidates(parents, best), take_candidates(tokens, best)
        state = loop.grammar
        if grammar is not None:
            state = GrammarState(*(take_candidates(part, parents) for part in state))
            state = advance(grammar, state, tokens, vocabulary)
        hidden, decode = model.decode_step(
            blocks, tokens.reshape(rows, -1), reorder_answers(loop.decode, parents), loop.step
        )
        return _Loop(loop.step + 1, running, finished, searching, hidden, decode, state)

    # Only the first beam runs at first: the others would be its doubles.
    first = jnp.where(jnp.arange(n) == 0, 0.0, -jnp.inf)
    start = _Loop(
        step=jnp.zeros((), jnp.int32),
        running=nothing._replace(scores=jnp.broadcast_to(first, shape)),
        finished=nothing,
        searching=asked,
        hidden=hidden,
        decode=decode,
        grammar=initial_state(shape),
    )
    end = jax.lax.while_loop(
        lambda loop: (loop.step < slots) & jnp.any(loop.searching), one_token, start
    )
    return end.finished
