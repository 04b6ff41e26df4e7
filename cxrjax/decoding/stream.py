"""One answer token by token, for whoever watches it being written."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

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

_HALF = "\ufffd"  # of a character whose other bytes are still to come


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
    graphdef, state = nnx.split(generator.model)
    strategy, grammar = generator.strategy, generator.grammar
    keys = None
    if strategy.temperature > 0:
        keys = sample_keys(strategy.seed, jnp.asarray(inputs[3]), 1)
    writing = _begin(graphdef, strategy, state, grammar, inputs)
    for step in range(strategy.max_answer_tokens):
        token, writing = _next(graphdef, strategy, state, grammar, writing, jnp.int32(step), keys)
        if int(token) in strategy.stop_ids:
            return
        yield int(token)


def _writer(model: VLM, strategy: Strategy, grammar: Any) -> TokenWriter:
    sizes = model.config
    vocabulary = TokenVocabulary(sizes.decoder.vocab_size, sizes.loc_token_start, strategy.stop_ids)
    watched = jnp.zeros((0, 1), jnp.int32)
    return TokenWriter(model, model.decoder.blocks(), vocabulary, watched, strategy.boxes, grammar)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _begin(
    graphdef: Any, strategy: Strategy, state: Any, grammar: Any, inputs: tuple[Any, ...]
) -> Writing:
    """The prefill, as of `generate`."""
    model = nnx.merge(graphdef, state)
    images, tokens, mask, _, *context = inputs
    blocks = model.decoder.blocks() if model.decoder.unroll else None
    hidden, decode = model.prefill(
        images, tokens, mask, strategy.max_answer_tokens, *context, blocks
    )
    return _writer(model, strategy, grammar).start(hidden, decode, ~jnp.any(mask, axis=-1))


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=(4,))
def _next(
    graphdef: Any,
    strategy: Strategy,
    state: Any,
    grammar: Any,
    writing: Writing,
    step: Any,
    keys: Any,
) -> tuple[Array, Writing]:
    """One more token of the only answer."""

    def draw(choices: Array) -> tuple[Array, Array]:
        drawn = filter_logits(choices, strategy.temperature, strategy.top_k, strategy.top_p)
        token = sample_tokens(keys, step, drawn)
        return token, jnp.ones(token.shape, bool)

    writer = _writer(nnx.merge(graphdef, state), strategy, grammar)
    slots = strategy.max_answer_tokens
    written, _, writing = writer(writing, step, slots, None if keys is None else draw)
    return written.tokens[0, 0], writing
