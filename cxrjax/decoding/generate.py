"""Answers with a key-value cache, as one jitted loop: greedy, sampled, or by beam search."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, UInt

from cxrjax.decoding import beam
from cxrjax.decoding.box_readings import LEVELS
from cxrjax.decoding.grammar import Grammar, TokenVocabulary
from cxrjax.decoding.strategy import Strategy, filter_logits, sample_keys, sample_tokens
from cxrjax.decoding.token_writer import TokenWriter, Writing
from cxrjax.distributed import meshes
from cxrjax.models import VLM
from cxrjax.models.vlm import DecodeState


class Generation(NamedTuple):
    """Answers token by token; after the token that ends one everything is `<pad>` (0)."""

    tokens: Int[Array, "B Q A"]  # [B, Q, A]
    # Natural log-probability the model gave each token, [B, Q, A], before grammar, temperature,
    # top-k or top-p changed anything; 0 after the end.
    logprobs: Float[Array, "B Q A"]
    # log-probability of each watched word in each token's place, among the tokens that the grammar
    # allows there, [B, Q, A, W]; W = 0 where none is watched; 0 after the end.
    words: Float[Array, "B Q A W"]
    # The bins that `location_quantiles` notes of each location token, [B, Q, A, M].
    quantiles: Int[Array, "B Q A M"]


class _Loop(NamedTuple):
    """C candidates a row: `candidates` of each question, side by side."""

    step: Int[Array, ""]
    answers: Generation
    writing: Writing


def generate(
    model: VLM,
    images: Array | None,
    prefix_tokens: Int[Array, "B Q P"],
    prefix_mask: Bool[Array, "B Q P"],
    question_index: Int[Array, "B Q"],
    strategy: Strategy,
    grammar: Grammar | None = None,
    context_tokens: Int[Array, "B C"] | None = None,
    context_mask: Bool[Array, "B C"] | None = None,
    seed: UInt[Array, ""] | None = None,
    mesh: Mesh | None = None,
    watched: Int[Array, "W n"] | None = None,
) -> Generation:
    """An answer to every question, or several. Traceable, with `strategy` and `mesh` static.

    Image and prompts are read once, whatever the number of beams or samples; beam.py says what of
    the cache is copied for them. Empty questions (no prefix token) are done from the start.

    Args:
        model: in evaluation.
        images, prefix_tokens, prefix_mask: as in `Batch`, prompts padded on the left.
        question_index: global index of each question. Sampling hangs on it, on the seed and on the
            step alone, so that an answer is the same in whatever batch it is asked for.
        grammar: what answers may be, from `answer_grammar`; None: anything.
        context_tokens, context_mask: as in `VLM.__call__`, for rows with several images.
        seed: of sampling, where it is not to be compiled in; None: the strategy's.
        mesh: that model and batch are spread over, and the key-value cache then as well.
        watched: tokens of each word (-1: none) whose probability is noted at every step.
    """
    config = model.config
    watched = jnp.zeros((0, 1), jnp.int32) if watched is None else jnp.asarray(watched)
    vocabulary = TokenVocabulary(
        config.decoder.vocab_size, config.loc_token_start, strategy.stop_ids
    )
    count = strategy.candidates
    hidden, decode = model.prefill(
        images,
        prefix_tokens,
        prefix_mask,
        strategy.max_answer_tokens,
        context_tokens,
        context_mask,
        # Of the last one, what stands before the questions is then keys and values alone.
        model.decoder.blocks() if model.decoder.unroll else None,
    )
    if mesh is not None:
        decode = beam.spread_cache(decode, mesh)
    hidden, decode = jnp.repeat(hidden, count, axis=1), beam.repeat_questions(decode, count)
    asked = jnp.any(prefix_mask, axis=-1)
    if strategy.beams > 1:
        best = beam.beam_search(
            model, hidden, decode, asked, strategy, grammar, vocabulary, watched
        )
        return Generation(*(part[:, :, 0] for part in best[:-1]))
    keys = None
    if strategy.temperature > 0:
        keys = sample_keys(strategy.seed if seed is None else seed, question_index, count)
    answers = _one_by_one(
        model, hidden, decode, asked, keys, strategy, grammar, vocabulary, watched
    )
    return answers if strategy.samples > 1 else _best_of(answers, count, strategy)


def _one_by_one(
    model: VLM,
    hidden: Float[Array, "B C D"],
    decode: DecodeState,
    asked: Bool[Array, "B Q"],
    keys: Key[Array, "B C"] | None,
    strategy: Strategy,
    grammar: Grammar | None,
    vocabulary: TokenVocabulary,
    watched: Int[Array, "W n"],
) -> Generation:
    """Every candidate on its own: the likeliest token, or with `keys` a drawn one, at each step."""
    rows, candidates = hidden.shape[:2]
    slots = strategy.max_answer_tokens
    writer = TokenWriter(
        model, model.decoder.blocks(), vocabulary, watched, strategy.boxes, grammar
    )

    def one_token(loop: _Loop) -> _Loop:
        def draw(choices: Array) -> tuple[Array, Array]:
            drawn = filter_logits(choices, strategy.temperature, strategy.top_k, strategy.top_p)
            assert keys is not None
            token = sample_tokens(keys, loop.step, drawn)
            return token, jnp.ones(token.shape, bool)

        written, _, writing = writer(loop.writing, loop.step, slots, None if keys is None else draw)
        answers = Generation(
            *(
                whole.at[:, :, loop.step].set(part)
                for whole, part in zip(loop.answers, written, strict=True)
            )
        )
        return _Loop(loop.step + 1, answers, writing)

    start = _Loop(
        step=jnp.zeros((), jnp.int32),
        answers=Generation(
            tokens=jnp.zeros((rows, candidates, slots), jnp.int32),
            logprobs=jnp.zeros((rows, candidates, slots), jnp.float32),
            words=jnp.zeros((rows, candidates, slots, len(watched)), jnp.float32),
            quantiles=jnp.zeros((rows, candidates, slots, len(LEVELS)), jnp.int32),
        ),
        writing=writer.start(
            hidden, decode, jnp.repeat(~asked, candidates // asked.shape[1], axis=1)
        ),
    )
    end = jax.lax.while_loop(
        lambda loop: (loop.step < slots) & ~jnp.all(loop.writing.done), one_token, start
    )
    return end.answers


def _best_of(answers: Generation, count: int, strategy: Strategy) -> Generation:
    """The candidate with the best log-probability among each question's `count`."""
    if count == 1:
        return answers
    parts = [
        part.reshape(part.shape[0], part.shape[1] // count, count, *part.shape[2:])
        for part in answers
    ]
    tokens, logprobs, *_ = parts
    scores = jnp.sum(logprobs, axis=-1)
    if strategy.length_normalised:
        stops = jnp.zeros(tokens.shape, bool)
        for stop in strategy.stop_ids:
            stops |= tokens == stop
        scores /= jnp.where(
            jnp.any(stops, axis=-1), jnp.argmax(stops, axis=-1) + 1, tokens.shape[-1]
        )
    best = jnp.argmax(scores, axis=-1)[..., None]
    return Generation(*(beam.take_candidates(part, best)[:, :, 0] for part in parts))


class Generator:
    """A model ready to answer batches, compiled once per shape.

    Args:
        model: parameters are read at construction; make a new Generator after training on.
        strategy, grammar: as in `generate`; `read_decoding` makes both of a configuration.
        mesh: devices that share the work, see `cxrjax.distributed.meshes`; None: where the
            model is.
        watched: as in `generate`.

    Raises:
        ValueError: no answer of the grammar fits into the slots.
    """

    def __init__(
        self,
        model: VLM,
        strategy: Strategy,
        grammar: Grammar | None = None,
        mesh: Mesh | None = None,
        watched: Int[np.ndarray, "W n"] | None = None,
    ):
        if grammar is not None and grammar.shortest[0] > strategy.max_answer_tokens:
            raise ValueError(
                f"{strategy.max_answer_tokens} slots, and the grammar's shortest answer takes "
                f"{grammar.shortest[0]} tokens"
            )
        self.config = model.config
        self.strategy = strategy
        self.mesh = mesh
        self.grammar = grammar
        self._watched = watched
        self.graphdef, self.state = nnx.split(model)
        if mesh is not None:
            self.state = meshes.put_tree(self.state, mesh)

    @property
    def model(self) -> VLM:
        """The model, where the generator has put it."""
        return nnx.merge(self.graphdef, self.state)

    def whole_batch(self, images: int) -> int:
        """Rounds a number of images up to a multiple of the devices that share a batch."""
        shards = 1 if self.mesh is None else meshes.batch_shards(self.mesh)
        return -(-images // shards) * shards

    def __call__(
        self,
        images: Any,
        prefix_tokens: Any,
        prefix_mask: Any,
        question_index: Any = None,
        context_tokens: Any = None,
        context_mask: Any = None,
    ) -> Generation:
        """Answers of one batch, as NumPy arrays.

        With a mesh, of a batch of any size: rows that ask nothing fill up what devices share.
        Of several processes each gives its rows of a whole batch and gets all answers.

        Args:
            question_index: as in `generate`; only sampling needs it.
            context_tokens, context_mask: as in `generate`.

        Raises:
            ValueError: sampling without `question_index`.
        """
        if question_index is None:
            if self.strategy.temperature > 0:
                raise ValueError("sampling needs question_index: a draw belongs to its question")
            question_index = np.zeros(np.shape(prefix_tokens)[:2], np.int32)
        inputs = (images, prefix_tokens, prefix_mask, question_index, context_tokens, context_mask)
        rows = np.shape(prefix_tokens)[0]
        several = jax.process_count() > 1
        if self.mesh is not None:
            if not several:
                extra = self.whole_batch(rows) - rows
                inputs = jax.tree.map(lambda x: _with_rows(x, extra), inputs)
            inputs = meshes.put_batch(inputs, self.mesh)
        answers = answer_batch(
            self.graphdef,
            dataclasses.replace(self.strategy, seed=0),
            self.mesh,
            (self.state,),
            inputs,
            self.grammar,
            # An argument: another seed compiles nothing anew.
            np.uint32(self.strategy.seed),
            self._watched,
        )
        if self.mesh is not None and several:
            return meshes.fetch_whole(answers, self.mesh)
        return Generation(*(np.asarray(part)[:rows] for part in answers))  # type: ignore[arg-type]


def _with_rows(x: Any, count: int) -> np.ndarray:
    """Rows of zeros at the end: without a prompt, a row asks nothing."""
    return np.pad(x, [(0, count)] + [(0, 0)] * (np.ndim(x) - 1))


def _answer_impl(
    graphdef: Any,
    strategy: Strategy,
    mesh: Mesh | None,
    states: tuple[Any, ...],
    inputs: tuple[Any, ...],
    grammar: Grammar | None,
    seed: Array,
    watched: Array | None,
) -> Generation:
    images, prefix_tokens, prefix_mask, question_index, context_tokens, context_mask = inputs
    with meshes.mesh_of_kernels(mesh):
        answers = generate(
            nnx.merge(graphdef, *states),
            images,
            prefix_tokens,
            prefix_mask,
            question_index,
            strategy,
            grammar,
            context_tokens,
            context_mask,
            seed,
            mesh,
            watched,
        )
    if mesh is None:
        return answers
    return jax.lax.with_sharding_constraint(answers, meshes.batch_sharding(mesh))


# `generate` of the model in states, for devices. One cache of compiled programs for all generators:
# validation makes a new one each time.
answer_batch = jax.jit(_answer_impl, static_argnums=(0, 1, 2))
