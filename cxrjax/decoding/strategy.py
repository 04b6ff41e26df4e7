"""Drawing tokens: temperature, top-k, top-p (arXiv 1904.09751), and whose random numbers."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt
from pydantic.dataclasses import dataclass

from cxrjax.codecs import get_codec
from cxrjax.decoding.answer_forms import ANSWER_FORMS, LOC_FORMS, answer_grammar
from cxrjax.decoding.box_readings import BoxReading
from cxrjax.decoding.grammar import Grammar
from cxrjax.errors import UserError
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.settings import STRICT, Positive, one_of


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
        threshold = top_p_threshold(likeliest, top_p)
    return jnp.where(logits < threshold[..., None], -jnp.inf, logits)


def top_p_threshold(
    likeliest: Float[Array, "*batch k"], top_p: float | Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """The least logit that is drawn from.

    Args:
        likeliest: logits, the largest first.
        top_p: as in `filter_logits`; of each row, or of all.
    """
    probabilities = jax.nn.softmax(likeliest, axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    # The first one always stays: nothing comes before it.
    last = jnp.sum(before < jnp.asarray(top_p)[..., None], axis=-1, keepdims=True) - 1
    return jnp.take_along_axis(likeliest, last, axis=-1)[..., 0]


def sample_keys(
    seed: int | UInt[Array, ""], question_index: Int[Array, "B Q"], count: int
) -> Key[Array, "B samples"]:
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


@dataclass(frozen=True, config=STRICT)
class DecodingConfig:
    """The group `decoding` of a configuration."""

    max_answer_tokens: Positive = 64
    # What answers may be, see cxrjax/decoding/answer_forms.py.
    grammar: Annotated[str, one_of(ANSWER_FORMS)] = "boxes"
    names: tuple[str, ...] = ()  # of the findings, for the grammars that list them
    stop_tokens: tuple[str, ...] = ()  # that end an answer besides the tokenizer's own (<eos>)
    # How coordinates are read from location tokens, see cxrjax/decoding/box_readings.py.
    boxes: BoxReading = "greedy"
    # How tokens are chosen; cxrjax/decoding/strategy.py explains each key.
    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    temperature: float = 0.0  # 0: the likeliest token; above: drawn
    top_k: int = 0
    top_p: float = 1.0
    best_of: int = 1
    length_normalised: bool = False
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Strategy:
    """The settings that the decode loop is compiled for. Greedy unless told otherwise.

    Raises:
        UserError: a value out of range, or options that exclude each other.
    """

    max_answer_tokens: int  # slots of an answer, stop token included (A)
    stop_ids: tuple[int, ...] = ()  # tokens that end an answer; none: every answer fills its slots
    # How coordinates are read from the distribution over the location tokens.
    boxes: BoxReading = "greedy"
    beams: int = 1  # hypotheses that beam search follows; 1: no beam search
    length_penalty: float = 1.0  # beam search ranks by sum of log-probabilities / length ** this
    # Stop a question's beam search once it has as many finished hypotheses as beams, rather than
    # when no running one can be expected to do better. As transformers' options of these names.
    early_stopping: bool = False
    temperature: float = 0.0  # of sampling; 0: the likeliest token
    # `top_k`, `top_p`: what sampling draws from, see `filter_logits`; 0 and 1: everything.
    top_k: int = 0
    top_p: float = 1.0
    # Samples drawn for each question, from one reading of image and prompt; the one with the
    # largest sum of log-probabilities is the answer.
    best_of: int = 1
    length_normalised: bool = False  # the largest mean instead
    seed: int = 0  # of sampling
    # Answers that are drawn to each question and all kept, side by side in its place.
    samples: int = 1

    def __post_init__(self) -> None:
        for name in ("max_answer_tokens", "beams", "best_of"):
            if getattr(self, name) < 1:
                raise UserError(f"decoding.{name}={getattr(self, name)}: expected 1 or more")
        for name in ("temperature", "top_k", "seed"):
            if getattr(self, name) < 0:
                raise UserError(f"decoding.{name}={getattr(self, name)}: expected 0 or more")
        if self.seed >= 2**32:
            raise UserError(f"decoding.seed={self.seed}: expected less than 2 ** 32")
        if not 0 < self.top_p <= 1:
            raise UserError(f"decoding.top_p={self.top_p}: expected above 0 and at most 1")
        samples = self.top_k > 0 or self.top_p < 1 or self.best_of > 1
        if self.temperature == 0 and samples:
            raise UserError(
                "decoding.top_k, top_p and best_of are about sampling, and decoding.temperature "
                "is 0, which takes the likeliest token; set a temperature, such as 1"
            )
        if self.beams > 1 and self.temperature > 0:
            raise UserError(
                f"decoding.beams={self.beams} and decoding.temperature={self.temperature}: beam "
                "search draws nothing; set beams=1 or temperature=0"
            )
        if self.boxes != "greedy" and (self.beams > 1 or self.temperature > 0):
            raise UserError(
                f"decoding.boxes={self.boxes!r} chooses coordinates itself, which beam search "
                "and sampling do too; set beams=1 and temperature=0, or boxes='greedy'"
            )

    @property
    def candidates(self) -> int:
        """Answers that are written side by side for each question."""
        return max(self.beams, self.best_of, self.samples)


def read_strategy(decoding: DecodingConfig, stop_ids: tuple[int, ...] = ()) -> Strategy:
    """The strategy that a configuration's `decoding.*` keys describe.

    Raises:
        UserError: they do not make one.
    """
    names = {field.name for field in dataclasses.fields(DecodingConfig)}
    names &= {field.name for field in dataclasses.fields(Strategy)}
    return Strategy(stop_ids=stop_ids, **{name: getattr(decoding, name) for name in names})


def read_decoding(
    decoding: DecodingConfig, tokenizer: Tokenizer, codec: str
) -> tuple[Strategy, Grammar | None]:
    """Strategy and grammar of a configuration's `decoding.*` keys, for a `Generator`.

    Args:
        codec: how the model writes boxes, a key of `cxrjax.codecs.CODECS`.

    Raises:
        UserError: a stop token that the tokenizer does not have, or options that do not go
            together.
    """
    added = map(tokenizer.piece_id, decoding.stop_tokens)
    stop_ids = tuple(dict.fromkeys([*tokenizer.stop_ids, *added]))
    form = decoding.grammar
    if form in LOC_FORMS and codec != "paligemma":
        raise UserError(
            f"decoding.grammar={form!r} writes boxes in <loc> tokens, and the model writes them as "
            f"codec {codec!r} does; choose 'none', or another of its answer forms"
        )
    if decoding.boxes != "greedy" and get_codec(codec).coordinate_order is None:
        raise UserError(
            f"decoding.boxes={decoding.boxes!r} reads location tokens, and the model writes boxes "
            f"in digits (codec {codec!r}): only 'greedy' is possible"
        )
    grammar = answer_grammar(form, tokenizer, decoding.names)
    if decoding.boxes == "expected_iou" and grammar is None:
        raise UserError(
            "decoding.boxes='expected_iou' needs a grammar, by which boxes are whole, and "
            "decoding.grammar is 'none'; set 'boxes'"
        )
    strategy = read_strategy(decoding, stop_ids)
    if grammar is not None and grammar.shortest[0] >= strategy.max_answer_tokens:
        raise UserError(
            f"decoding.max_answer_tokens={strategy.max_answer_tokens}: the shortest answer of "
            f"decoding.grammar={form!r} takes {grammar.shortest[0] + 1}, end token included"
        )
    return strategy, grammar
