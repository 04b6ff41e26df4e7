"""Writes one token of each answer: the step that a batch's loop and a server's slots share.

What comes out hangs on the answers' own state alone, so that an answer is the same whatever else is
written beside it.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cxrjax.decoding import box_readings
from cxrjax.decoding.beam import watched_logprobs
from cxrjax.decoding.expected_boxes import choose_boxes
from cxrjax.decoding.grammar import (
    Grammar,
    GrammarState,
    TokenVocabulary,
    advance,
    allowed_tokens,
    initial_state,
)
from cxrjax.models import VLM
from cxrjax.models.gemma import Block
from cxrjax.models.vlm import DecodeState


class Writing(NamedTuple):
    """Answers that are being written: C candidates a row."""

    # Bins of the box that each is writing, where they were chosen before.
    boxes: Int[Array, "B C 4"]
    hidden: Float[Array, "B C D"]  # what predicts the next token
    decode: DecodeState  # keys and values of all that stands before it
    grammar: GrammarState
    done: Bool[Array, "B C"]  # which of them write no more


class WrittenTokens(NamedTuple):
    """The next token of each answer, as `Generation` has them; zeros where an answer is done."""

    tokens: Int[Array, "B C"]
    logprobs: Float[Array, "B C"]
    words: Float[Array, "B C W"]
    quantiles: Int[Array, "B C M"]


# From logits, forbidden ones minus infinity: tokens, and which of them were drawn and not chosen.
Draw = Callable[[Float[Array, "B C V"]], tuple[Int[Array, "B C"], Bool[Array, "B C"]]]


@dataclasses.dataclass(frozen=True)
class TokenWriter:
    """Writes with one model. Traceable.

    Raises:
        ValueError: `expected_iou` without a grammar.
    """

    model: VLM
    blocks: list[Block]  # the model's, taken apart once outside the loop
    vocabulary: TokenVocabulary
    watched: Int[Array, "W n"]  # as in `generate`
    # How coordinates are read; what was drawn stays as it is.
    reading: box_readings.BoxReading = "greedy"
    grammar: Grammar | None = None  # what answers may be; None: anything

    def __post_init__(self) -> None:
        if self.reading == "expected_iou" and self.grammar is None:
            raise ValueError("decoding.boxes='expected_iou' needs a grammar: it makes boxes whole")

    def start(
        self, hidden: Float[Array, "B C D"], decode: DecodeState, done: Bool[Array, "B C"]
    ) -> Writing:
        """Before the first token.

        Args:
            hidden, decode: from the prefill.
        """
        shape = done.shape
        boxes = jnp.zeros((*shape, 4), jnp.int32)
        return Writing(boxes, hidden, decode, initial_state(shape), done)

    def __call__(
        self,
        writing: Writing,
        step: Int[Array, "*rows"],
        slots: int | Int[Array, "B 1"],
        draw: Draw | None = None,
        free: Bool[Array, "B C"] | None = None,
    ) -> tuple[WrittenTokens, Float[Array, "B C V"], Writing]:
        """One more token for each answer.

        Args:
            step: how many tokens each answer has: of each row, [B], or of all.
            slots: how many it may have, stop token included.
            draw: in place of the likeliest token.
            free: answers that the grammar does not hold to anything.

        Returns:
            The tokens, the logits that the model gave in their place, and what follows.
        """
        vocabulary, grammar = self.vocabulary, self.grammar
        logits = self.model.logits(writing.hidden)
        choices, state, done = logits, writing.grammar, writing.done
        if grammar is not None:
            remaining = slots - 1 - step
            if step.ndim:
                remaining = slots - 1 - step[:, None]
            allowed = allowed_tokens(grammar, state, remaining, vocabulary)
            if free is not None:
                allowed |= free[..., None]
            choices = jnp.where(allowed, logits, -jnp.inf)
        words = watched_logprobs(choices, self.watched)
        quantiles = box_readings.location_quantiles(choices, vocabulary)
        if draw is None:
            token, is_drawn = jnp.argmax(choices, axis=-1).astype(jnp.int32), None
        else:
            token, is_drawn = draw(choices)
        is_box = box_readings.is_location(token, vocabulary)
        boxes = writing.boxes
        if self.reading != "greedy":
            is_read = is_box if is_drawn is None else is_box & ~is_drawn
            bins, boxes = self._read_bins(writing, choices, is_read, step, slots)
            token = jnp.where(is_read, vocabulary.loc_token_start + bins, token)
        chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
        logprob = chosen - jax.nn.logsumexp(logits, axis=-1)
        token = jnp.where(done, 0, token)
        noted = (is_box & ~done)[..., None]
        written = WrittenTokens(
            tokens=token,
            logprobs=jnp.where(done, 0.0, logprob),
            words=jnp.where(done[..., None], 0.0, words),
            quantiles=jnp.where(noted, quantiles, 0),
        )
        for stop in vocabulary.stop_ids:
            done |= token == stop
        if grammar is not None:
            state = advance(grammar, state, token, vocabulary)
        hidden, decode = self.model.decode_step(self.blocks, token, writing.decode, step)
        return written, logits, Writing(boxes, hidden, decode, state, done)

    def _read_bins(
        self,
        writing: Writing,
        choices: Float[Array, "B C V"],
        is_box: Bool[Array, "B C"],
        step: Int[Array, "*rows"],
        slots: int | Int[Array, "B 1"],
    ) -> tuple[Int[Array, "B C"], Int[Array, "B C 4"]]:
        """The bin of each next coordinate, if it is one, and the boxes that are being written."""
        if self.reading != "expected_iou":
            probability = box_readings.location_probability(choices, self.vocabulary)
            return box_readings.one_pass_bins(self.reading, probability), writing.boxes
        assert self.grammar is not None
        coordinate = jnp.asarray(self.grammar.coordinate)[writing.grammar.node]
        begins = is_box & (coordinate == 0) & ~writing.done
        boxes = choose_boxes(
            self.model,
            self.blocks,
            writing.hidden,
            writing.decode,
            writing.grammar,
            begins,
            step,
            slots,
            self.grammar,
            self.vocabulary,
        )
        boxes = jnp.where(begins[..., None], boxes, writing.boxes)
        return jnp.take_along_axis(boxes, coordinate[..., None], axis=-1)[..., 0], boxes
