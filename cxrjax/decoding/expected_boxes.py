"""Boxes with the highest expected IoU: sampled side by side after the answer that they share.

Where a question's next token begins a box, `BOX_SAMPLES` boxes are written from there, in three
decode steps, on copies of the question's own keys and values (those of the image are shared), and
one of them is chosen. The answer then goes on token by token with its coordinates. Of each row of
the cache one question is looked at at a time, so that no work is done for those that write text.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cxrjax.decoding import box_readings
from cxrjax.decoding.beam import QUESTIONS
from cxrjax.decoding.grammar import Grammar, GrammarState, TokenVocabulary, advance, allowed_tokens
from cxrjax.models import VLM
from cxrjax.models.gemma import Block, LayerCache
from cxrjax.models.vlm import DecodeState


class _Chosen(NamedTuple):
    waiting: Bool[Array, "R G"]
    bins: Int[Array, "R G 4"]


def choose_boxes(
    model: VLM,
    blocks: list[Block],
    hidden: Float[Array, "B C D"],
    decode: DecodeState,
    state: GrammarState,
    waiting: Bool[Array, "B C"],
    step: Int[Array, "*rows"],
    slots: int | Int[Array, "R 1"],
    grammar: Grammar,
    vocabulary: TokenVocabulary,
) -> Int[Array, "B C 4"]:
    """The bins of the box that each waiting question is to write; any for the others.

    Args:
        hidden, decode, state: before the token that begins the box.
        waiting: whose next token begins a box.
        step: the slot of that token; of each row, [R], or of all.
        slots: of each row's answers, or of all.
    """
    rows, questions = decode.next_position.shape

    def by_row(values: Array) -> Array:
        return values.reshape(rows, questions, *values.shape[2:])

    hidden, state, asked = by_row(hidden), jax.tree.map(by_row, state), by_row(waiting)

    def one_each(chosen: _Chosen) -> _Chosen:
        question = jnp.argmax(chosen.waiting, axis=1)
        index = jnp.broadcast_to(question[:, None], (rows, box_readings.BOX_SAMPLES))
        copies = _take_questions(decode, index)
        now = GrammarState(*(jnp.take_along_axis(part, index, axis=1) for part in state))
        at = jnp.take_along_axis(hidden, index[..., None], axis=1)
        found = []
        for coordinate in range(4):
            remaining = slots - 1 - step.reshape(-1, 1) - coordinate
            allowed = allowed_tokens(grammar, now, remaining, vocabulary)
            logits = jnp.where(allowed, model.logits(at), -jnp.inf)
            levels = jnp.asarray(box_readings.BOX_LEVELS)[:, coordinate, None]
            bins = box_readings.quantile_bins(
                box_readings.location_probability(logits, vocabulary), levels
            )[..., 0]
            found.append(bins)
            if coordinate < 3:
                token = vocabulary.loc_token_start + bins
                now = advance(grammar, now, token, vocabulary)
                at, copies = model.decode_step(blocks, token, copies, step + coordinate)
        boxes = jnp.stack(found, axis=-1)
        best = boxes[jnp.arange(rows), box_readings.central_boxes(boxes)]
        is_it = (jnp.arange(questions) == question[:, None]) & chosen.waiting
        return _Chosen(
            chosen.waiting & ~is_it, jnp.where(is_it[..., None], best[:, None], chosen.bins)
        )

    start = _Chosen(asked, jnp.zeros((rows, questions, 4), jnp.int32))
    end = jax.lax.while_loop(lambda chosen: jnp.any(chosen.waiting), one_each, start)
    return end.bins.reshape(*waiting.shape, 4)


def _take_questions(state: DecodeState, index: Int[Array, "R n"]) -> DecodeState:
    """Other questions in each row's place, by their numbers."""
    take = jax.vmap(lambda values, chosen: jnp.take(values, chosen, axis=QUESTIONS - 1))

    def of_layer(cache: LayerCache) -> LayerCache:
        own = {
            name: take(values, index)
            for name, values in cache._asdict().items()
            if name.startswith(("prefix_", "answer_"))
        }
        return cache._replace(**own)

    return state._replace(
        layers=[of_layer(cache) for cache in state.layers],
        prefix_mask=jnp.take_along_axis(state.prefix_mask, index[..., None], axis=1),
        next_position=jnp.take_along_axis(state.next_position, index, axis=1),
    )
