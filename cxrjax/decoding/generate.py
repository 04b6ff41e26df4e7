"""Greedy answers with a key-value cache, as one jitted loop."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from cxrjax.decoding.grammar import BoxState, advance, allowed_tokens, initial_state
from cxrjax.models import VLM
from cxrjax.models.vlm import DecodeState


class Generation(NamedTuple):
    """Answers token by token; after the end-of-sequence token everything is `<pad>` (0).

    Attributes:
        tokens: [B, Q, A].
        logprobs: natural log-probability the model gave each token before the grammar masked
            anything, [B, Q, A]; 0 after the end.
    """

    tokens: Int[Array, "B Q A"]
    logprobs: Float[Array, "B Q A"]


class _Loop(NamedTuple):
    step: Int[Array, ""]
    generation: Generation
    hidden: Float[Array, "B Q D"]
    decode: DecodeState
    box: BoxState
    done: Bool[Array, "B Q"]


def greedy(
    model: VLM,
    images: Array,
    prefix_tokens: Int[Array, "B Q P"],
    prefix_mask: Bool[Array, "B Q P"],
    *,
    max_answer_tokens: int,
    eos_id: int,
    use_grammar: bool = True,
) -> Generation:
    """The likeliest token at each step, until every answer has ended or is full.

    Traceable. Empty questions (no prefix token) are done from the start.

    Args:
        model: in evaluation.
        images, prefix_tokens, prefix_mask: as in `Batch`, prompts padded on the left.
        max_answer_tokens: slots of an answer, end token included.
        eos_id: the end token.
        use_grammar: let `<loc>` come only as boxes (grammar.py).
    """
    config = model.config
    hidden, decode = model.prefill(images, prefix_tokens, prefix_mask, max_answer_tokens)
    blocks = model.decoder.blocks()
    shape = prefix_tokens.shape[:2]
    empty = Generation(
        tokens=jnp.zeros((*shape, max_answer_tokens), jnp.int32),
        logprobs=jnp.zeros((*shape, max_answer_tokens), jnp.float32),
    )

    def unfinished(loop: _Loop) -> Bool[Array, ""]:
        return (loop.step < max_answer_tokens) & ~jnp.all(loop.done)

    def one_token(loop: _Loop) -> _Loop:
        logits = model.logits(loop.hidden)
        choices = logits
        if use_grammar:
            allowed = allowed_tokens(loop.box, logits.shape[-1], config.loc_token_start)
            choices = jnp.where(allowed, logits, -jnp.inf)
        token = jnp.argmax(choices, axis=-1).astype(jnp.int32)
        chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
        logprob = chosen - jax.nn.logsumexp(logits, axis=-1)
        token = jnp.where(loop.done, 0, token)
        logprob = jnp.where(loop.done, 0.0, logprob)
        hidden, decode = model.decode_step(blocks, token, loop.decode, loop.step)
        return _Loop(
            step=loop.step + 1,
            generation=Generation(
                tokens=loop.generation.tokens.at[:, :, loop.step].set(token),
                logprobs=loop.generation.logprobs.at[:, :, loop.step].set(logprob),
            ),
            hidden=hidden,
            decode=decode,
            box=advance(loop.box, token, config.loc_token_start),
            done=loop.done | (token == eos_id),
        )

    start = _Loop(
        step=jnp.zeros((), jnp.int32),
        generation=empty,
        hidden=hidden,
        decode=decode,
        box=initial_state(shape),
        done=~jnp.any(prefix_mask, axis=-1),
    )
    return jax.lax.while_loop(unfinished, one_token, start).generation


class Generator:
    """A model ready to answer batches, compiled once per shape.

    Args:
        model: parameters are read at construction; make a new Generator after training on.
        max_answer_tokens, eos_id, use_grammar: as in `greedy`.
    """

    def __init__(
        self, model: VLM, *, max_answer_tokens: int, eos_id: int, use_grammar: bool = True
    ):
        self._graphdef, self._state = nnx.split(model)
        self._settings = (max_answer_tokens, eos_id, use_grammar)

    def __call__(self, images: Any, prefix_tokens: Any, prefix_mask: Any) -> Generation:
        """Answers of one batch, as NumPy arrays."""
        answers = _answer(
            self._graphdef, self._settings, self._state, images, prefix_tokens, prefix_mask
        )
        return Generation(*(np.asarray(part) for part in answers))  # type: ignore[arg-type]


def _answer_impl(
    graphdef: Any,
    settings: tuple[int, int, bool],
    state: Any,
    images: Array,
    prefix_tokens: Array,
    prefix_mask: Array,
) -> Generation:
    max_answer_tokens, eos_id, use_grammar = settings
    return greedy(
        nnx.merge(graphdef, state),
        images,
        prefix_tokens,
        prefix_mask,
        max_answer_tokens=max_answer_tokens,
        eos_id=eos_id,
        use_grammar=use_grammar,
    )


# One cache of compiled programs for all generators: validation makes a new one each time.
_answer = jax.jit(_answer_impl, static_argnums=(0, 1))
