"""One answer token by token, for whoever watches it being written."""

import functools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int

from cxrjax.decoding.generate import Generator
from cxrjax.decoding.grammar import TokenVocabulary
from cxrjax.decoding.predictor import batch_inputs
from cxrjax.decoding.strategy import Strategy, filter_logits, sample_keys, sample_tokens
from cxrjax.decoding.token_writer import TokenWriter, Writing
from cxrjax.errors import UserError
from cxrjax.input_pipeline.batch import BatchProblem
from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.input_pipeline.loader import eval_loader
from cxrjax.input_pipeline.sources import QuestionSource
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.models import VLM
from cxrjax.models.gemma import Block

_HALF = "\ufffd"  # of a character whose other bytes are still to come
_MOST = 64  # tokens of one call to the device
_UNSEEN = 0.05  # seconds of one call: as many tokens as fit, at least one


class _Loop(NamedTuple):
    number: Int[Array, ""]  # of tokens in this call
    tokens: Int[Array, " most"]
    writing: Writing


def stream_answer(
    generator: Generator, source: QuestionSource, tokenizer: Tokenizer, config: ExampleConfig
) -> Iterator[str | BatchProblem]:
    """Yields the text of the answer to the source's one question, piece by piece.

    Together the pieces are the `text` of `predict_questions`; a question that could not be asked is
    a `BatchProblem` instead.

    Raises:
        UserError: a strategy that chooses among several answers.
    """
    strategy = generator.strategy
    if strategy.candidates > 1:
        raise UserError(
            f"decoding.beams={strategy.beams}, best_of={strategy.best_of}: an answer that is "
            "chosen among several cannot be streamed; load the model with 1 of both"
        )
    (loaded,) = eval_loader(source, tokenizer, config, global_batch_size=1)
    if loaded.problems:
        yield loaded.problems[0]
        return
    told, text, ids = "", "", list[int]()
    for token in _tokens(generator, batch_inputs(generator, loaded.batch)):
        ids.append(token)
        text = tokenizer.decode(ids)
        sure = text.rstrip(_HALF)
        if sure.startswith(told) and len(sure) > len(told):
            yield sure[len(told) :]
            told = sure
    if text[len(told) :]:
        yield text[len(told) :]


def _tokens(generator: Generator, inputs: tuple[Any, ...]) -> Iterator[int]:
    """Yields the tokens of an answer but for the one that ends it."""
    graphdef, state = generator.graphdef, generator.state
    strategy, grammar = generator.strategy, generator.grammar
    keys = None
    if strategy.temperature > 0:
        keys = sample_keys(strategy.seed, jnp.asarray(inputs[3]), 1)
    blocks, writing = _begin(graphdef, strategy, state, grammar, inputs)
    step, count = 0, 1
    while step < strategy.max_answer_tokens:
        start = time.monotonic()
        written, writing = _next(
            graphdef, strategy, state, blocks, grammar, writing, step, count, keys
        )
        tokens = np.asarray(written).tolist()[: min(count, strategy.max_answer_tokens - step)]
        seconds = time.monotonic() - start
        for token in tokens:
            if token in strategy.stop_ids:
                return
            yield token
        step += count
        count = min(max(1, int(count * _UNSEEN / seconds)), _MOST)


def _writer(model: VLM, blocks: list[Block], strategy: Strategy, grammar: Any) -> TokenWriter:
    sizes = model.config
    vocabulary = TokenVocabulary(sizes.decoder.vocab_size, sizes.loc_token_start, strategy.stop_ids)
    watched = jnp.zeros((0, 1), jnp.int32)
    return TokenWriter(model, blocks, vocabulary, watched, strategy.boxes, grammar)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _begin(
    graphdef: Any, strategy: Strategy, state: Any, grammar: Any, inputs: tuple[Any, ...]
) -> tuple[list[Block], Writing]:
    """The decoder's layers, taken apart once for all tokens, and the prefill, as of `generate`."""
    model = nnx.merge(graphdef, state)
    images, tokens, mask, _, *context = inputs
    blocks = model.decoder.blocks()
    hidden, decode = model.prefill(
        images,
        tokens,
        mask,
        strategy.max_answer_tokens,
        *context,
        blocks if model.decoder.unroll else None,
    )
    writer = _writer(model, blocks, strategy, grammar)
    return blocks, writer.start(hidden, decode, ~jnp.any(mask, axis=-1))


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=(5,))
def _next(
    graphdef: Any,
    strategy: Strategy,
    state: Any,
    blocks: list[Block],
    grammar: Any,
    writing: Writing,
    step: Any,
    count: Any,
    keys: Any,
) -> tuple[Int[Array, " most"], Writing]:
    """Up to `count` more tokens of the only answer."""
    writer = _writer(nnx.merge(graphdef, state), blocks, strategy, grammar)

    def one_token(loop: _Loop) -> _Loop:
        def draw(choices: Array) -> tuple[Array, Array]:
            drawn = filter_logits(choices, strategy.temperature, strategy.top_k, strategy.top_p)
            token = sample_tokens(keys, step + loop.number, drawn)
            return token, jnp.ones(token.shape, bool)

        slots = strategy.max_answer_tokens
        drawn = None if keys is None else draw
        written, _, writing = writer(loop.writing, step + loop.number, slots, drawn)
        tokens = loop.tokens.at[loop.number].set(written.tokens[0, 0])
        return _Loop(loop.number + 1, tokens, writing)

    start = _Loop(jnp.int32(0), jnp.zeros(_MOST, jnp.int32), writing)
    end = jax.lax.while_loop(
        lambda loop: (loop.number < count) & ~jnp.all(loop.writing.done), one_token, start
    )
    return end.tokens, end.writing
