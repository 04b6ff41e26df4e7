"""The multi-task loss: cross-entropy of the answer's tokens plus lambda times a box loss.

The paper (arXiv 2511.00504, section 3.1) has L = L_vqa + 0.5 L_bbox with an "IoU-based" L_bbox and
does not say how a loss on boxes reaches a model that emits tokens. Here are two routes to a box
with a gradient; what the box then costs is `cxrjax.training.box_loss`:

loc     a coordinate is the expectation of the bin centres under the softmax over the 1,024 `<loc>`
        logits at its position (temperature 1).
digits  a coordinate is the place-weighted sum of the expectations of its digits, each under the
        softmax over the ten digits' logits at its position, mapped to fractions. All of it under
        teacher forcing: each digit's distribution is the one after the target's own earlier
        digits, and the number of digits is the target's. So it is not the expectation of the
        number that the model would generate: a wrong first digit costs what its place says,
        while a longer or shorter number, or text in its stead, is for the cross-entropy alone.

Read from top to bottom: `multitask_loss` takes the model's states of the answers, then each term.
A term is a function of `LossInputs` and a key of the group `training`, its weight; `TERMS` joins
the two (CONTRIBUTING.md adds one).

Each term is a sum with its count: tokens, or questions that have boxes. Micro-batches, devices and
hosts add sums; one division by the counts of the whole batch makes the gradient what one large
batch would give. The box loss has two means (`training.box_mean`):

questions  lambda / Q x the sum over questions of the mean of their boxes, the paper's. A box weighs
           against its own tokens' nats by lambda T / (Q n), with T answer tokens and Q questions
           with boxes in the batch and n boxes in its question: 12 for lambda 0.5 in the demo (10
           tokens a question, a third of them with 1.3 boxes), and more where answers are longer.
tokens     lambda / T x the sum over boxes: against its own tokens a box weighs lambda, in every
           batch. A lambda of the one is lambda T / (Q n) of the other.

The logits of a vocabulary of 262 thousand for every answer token of a batch are more than a chip
has room for; they exist for a chunk of the tokens at a time, forward and backward.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from cxrjax.input_pipeline.batch import ArrayLike, Batch
from cxrjax.input_pipeline.coordinates import BoxRoute
from cxrjax.models.vlm import VLM, context_of_two
from cxrjax.training import box_loss
from cxrjax.training.coordinate_targets import CoordinateTargets

# Sum and count of each figure by name; those of two parts of a batch add up to the batch's.
Figures = dict[str, tuple[Any, Any]]


@runtime_checkable
class AnswerModel(Protocol):
    """A model as the loss needs it: see `cxrjax.models.VLM`."""

    def __call__(
        self,
        images: ArrayLike,
        prefix_tokens: ArrayLike,
        prefix_mask: ArrayLike,
        answer_tokens: ArrayLike,
        answer_mask: ArrayLike,
        question_index: ArrayLike | None = None,
        dropout_key: Array | None = None,
        packed_length: int | None = None,
    ) -> Array: ...

    def logits(self, hidden: Array) -> Array: ...

    def loc_logits(self, hidden: Array) -> Array: ...

    def token_logits(self, hidden: Array, tokens: Sequence[int]) -> Array: ...


class Denominators(NamedTuple):
    """Divisors of the sums of a whole batch, float32 scalars."""

    tokens: Any  # answer tokens
    questions: Any  # questions that have at least one box


class LossInputs(NamedTuple):
    """Input of a term of the loss."""

    model: AnswerModel  # of the states
    batch: Batch  # device arrays
    hidden: Float[Array, "B QA D"]  # states that predict the answers' tokens, [B, QA, D]
    # Answer tokens, over all of the batch's images, whose logits over the vocabulary may exist at a
    # time (`sum_in_chunks`).
    chunk: int
    box_route: BoxRoute  # the loss's way to boxes; the batch must have been made for it
    coordinates: CoordinateTargets | None  # targets of location tokens; None: their bins
    box: "BoxTerm"  # which box loss


class BoxTerm(NamedTuple):
    """The box loss of the keys `training.box_*`."""

    # What it is divided by (the module's docstring).
    mean: Literal["questions", "tokens"] = "questions"
    window: float = 0.0  # of `box_loss.local_coordinates`; 0: whole distributions


AS_PUBLISHED = BoxTerm()


class Term(NamedTuple):
    """A term of the loss."""

    name: str  # of its figure
    # Returns its sum over a batch, which is differentiated, and sums that are reported.
    sums: Callable[[LossInputs], tuple[Array, Mapping[str, Array]]]
    # What it and they are means over; of the box loss itself, `BoxTerm.mean`.
    per: Literal["tokens", "questions"] = "tokens"
    always: bool = False  # computed and reported at weight 0 too


def multitask_loss(*args: Any, **options: Any) -> tuple[Float[Array, ""], Figures]:
    """Computes the loss of a batch, or of a micro-batch of a larger one: all of `loss_parts`."""
    parts, figures = loss_parts(*args, **options)
    return sum(parts.values(), jnp.zeros(())), figures


def loss_parts(
    model: AnswerModel,
    batch: Batch,
    weights: Mapping[str, float | Float[Array, ""]],
    dropout_key: Key[Array, ""] | None = None,
    denominators: Denominators | None = None,
    logit_chunk: int = 512,
    box_route: BoxRoute = "loc",
    coordinates: CoordinateTargets | None = None,
    box: BoxTerm = AS_PUBLISHED,
) -> tuple[dict[str, Float[Array, ""]], Figures]:
    """Computes the weighted terms of the loss of a batch, or of a micro-batch of a larger one.

    Args:
        model: `cxrjax.models.VLM`, or anything that is called the same way.
        weights: key of `TERMS` -> weight of the term beside the cross-entropy; what is not there
            is not computed. At 0 a term is only reported.
        dropout_key: noise of this step; None turns dropout off.
        denominators: counts of the whole batch that `batch` is a part of; None: its own. The
            losses of the parts add up to the loss of the whole.
        logit_chunk, box_route, coordinates, box: as in `LossInputs`.

    Returns:
        The terms by name, and sum and count over `batch` of each figure. A batch without any box
        has no box loss; one without a token, no loss.

    Raises:
        ValueError: the route needs what the batch does not have.
    """
    hidden = answer_states(model, batch, dropout_key)
    answers = LossInputs(model, batch, hidden, logit_chunk, box_route, coordinates, box)
    counts = batch_denominators(batch)
    over = counts if denominators is None else denominators
    parts, figures = {}, Figures()
    for term, weight in [(CROSS_ENTROPY, 1.0), *((TERMS[key], w) for key, w in weights.items())]:
        total, reported = term.sums(answers)
        per = box.mean if term.sums is box_sums else term.per
        parts[term.name] = weight * total / jnp.maximum(getattr(over, per), 1)
        figures[term.name] = (total, getattr(counts, per))
        figures |= {name: (value, getattr(counts, term.per)) for name, value in reported.items()}
    return parts, figures


def batch_denominators(batch: Batch) -> Denominators:
    """Counts of a batch, from its masks alone."""
    return Denominators(
        tokens=jnp.sum(batch.answer_mask, dtype=jnp.float32),
        questions=jnp.sum(jnp.any(batch.box_mask, axis=-1), dtype=jnp.float32),
    )


def answer_states(
    model: AnswerModel, batch: Batch, dropout_key: Key[Array, ""] | None = None
) -> Float[Array, "B QA D"]:
    """Hidden states that predict the tokens of a batch's answers."""
    hidden = model(
        batch.images,
        batch.prefix_tokens,
        batch.prefix_mask,
        batch.answer_tokens,
        batch.answer_mask,
        question_index=batch.question_index,
        dropout_key=dropout_key,
        packed_length=batch.packed_length,
        **_contexts(model, batch),
    )
    rows, questions, slots, width = hidden.shape
    return hidden.reshape(rows, questions * slots, width)


def _contexts(model: AnswerModel, batch: Batch) -> dict[str, Any]:
    """Returns the model's extra arguments for a batch with two images a row; else none."""
    if batch.has_earlier is None:
        return {}
    if not isinstance(model, VLM):
        raise TypeError(f"{type(model).__name__} takes one image a row, and the batch has two")
    sizes = model.config.of_batch(batch.images)
    tokens, mask = context_of_two(sizes, jnp.asarray(batch.has_earlier))
    return {"context_tokens": tokens, "context_mask": mask}


def token_sums(answers: LossInputs) -> tuple[Array, dict[str, Array]]:
    """Sums over tokens of the cross-entropy in nats, and of those whose logit is the largest."""
    batch, rows, model = answers.batch, answers.hidden.shape[0], answers.model
    if isinstance(model, VLM):  # which the box loss alone trains
        model = model.without_box_adapter()

    def sums(states: Array, target: Array, mask: Array) -> tuple[Array, Array]:
        return _token_sums(model.logits(states), target, mask, answers.coordinates)

    items = (answers.hidden, batch.answer_tokens.reshape(rows, -1))
    mask = batch.answer_mask.reshape(rows, -1)
    total, correct = sum_in_chunks(sums, items, mask, answers.chunk)
    return total, {"token_accuracy": correct}


def _token_sums(
    logits: Float[Array, "B n V"],
    target: Int[Array, "B n"],
    mask: Bool[Array, "B n"],
    coordinates: CoordinateTargets | None,
) -> tuple[Array, Array]:
    # Compare and select rather than gather: it fuses, and shards over the vocabulary as it is.
    token = jnp.arange(logits.shape[-1])
    chosen = jnp.sum(jnp.where(token == target[..., None], logits, 0), axis=-1)
    # It cancels out of the sum, so that gradients through it would be work for nothing.
    largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    log_total = jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1)) + largest[..., 0]
    loss = log_total - chosen
    if coordinates is not None:
        of_bins = coordinates.loss(logits, target, log_total)
        loss = jnp.where(coordinates.concerns(target), of_bins, loss)
    # The first of the largest. Not `chosen >= max`: a model whose logits are all alike would be
    # right every time. And neither argmax nor the least place, which hold integers of their size.
    earlier = jnp.any((logits == largest) & (token < target[..., None]), axis=-1)
    correct = (chosen == largest[..., 0]) & ~earlier
    return jnp.sum(jnp.where(mask, loss, 0)), jnp.sum(jnp.where(mask, correct, False), dtype=float)


def box_sums(answers: LossInputs) -> tuple[Array, dict[str, Array]]:
    """Sums of the box loss as `BoxTerm.mean` weighs boxes, and of what is reported of them."""
    model, batch, hidden, chunk, route, _, box = answers
    if route == "none":
        return jnp.zeros(()), {}
    weight, target = _box_weights(batch), jnp.asarray(batch.target_boxes)
    # What makes a mean over the question's boxes their sum.
    counted = jnp.sum(batch.box_mask, axis=-1, keepdims=True) if box.mean == "tokens" else 1.0
    counted = jnp.broadcast_to(counted, weight.shape)
    if route == "digits":
        found = _digit_coordinates(model, hidden, batch)
        cost = counted * box_loss.box_loss(found, target)
        total, reported = box_loss.box_sums(found, target, weight, cost)
        return total, reported.named()

    def sums(
        states: Array, target: Array, weight: Array, counted: Array, mask: Array
    ) -> tuple[Array, box_loss.BoxSums]:
        logits = model.loc_logits(states)
        found = meant = box_loss.coordinates_of_bins(logits, target)
        if box.window:
            meant, near = box_loss.local_coordinates(logits, target, box.window)
            counted = counted * near
        cost = counted * box_loss.box_loss(meant, target)
        return box_loss.box_sums(found, target, jnp.where(mask, weight, 0), cost)

    rows = hidden.shape[0]
    items = (
        _loc_states(hidden, batch).reshape(rows, -1, 4, hidden.shape[-1]),
        target.reshape(rows, -1, 4),
        weight.reshape(rows, -1),
        counted.reshape(rows, -1),
    )
    # A box takes four positions' logits.
    total, reported = sum_in_chunks(sums, items, batch.box_mask.reshape(rows, -1), chunk // 4)
    return total, reported.named()


def read_coordinates(model: AnswerModel, batch: Batch, route: BoxRoute) -> box_loss.Coordinates:
    """Coordinates of a batch's boxes as a model's answer says them, teacher-forced.

    Args:
        route: `loc` or `digits`, how the answer writes them.

    Returns:
        [B, Q, K, 4] each.

    Raises:
        ValueError: another route, or the batch has not what it needs.
    """
    hidden = answer_states(model, batch)
    if route == "digits":
        return _digit_coordinates(model, hidden, batch)
    if route != "loc":
        raise ValueError(f"box_route {route!r}: no tokens of the answer are its coordinates")
    target = jnp.asarray(batch.target_boxes)
    logits = model.loc_logits(_loc_states(hidden, batch))
    return box_loss.coordinates_of_bins(logits.reshape(*target.shape, -1), target)


def _box_weights(batch: Batch) -> Float[Array, "B Q K"]:
    """The weight of each box: a question's weights sum to 1."""
    mask = jnp.asarray(batch.box_mask)
    return mask / jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)


def _loc_states(hidden: Float[Array, "B QA D"], batch: Batch) -> Float[Array, "B QK4 D"]:
    rows, questions, slots = batch.answer_mask.shape
    position = batch.coordinate_positions + slots * jnp.arange(questions)[:, None, None]
    return jax.vmap(lambda h, p: h[p])(hidden, position.reshape(rows, -1))


def _digit_coordinates(
    model: AnswerModel, hidden: Float[Array, "B QA D"], batch: Batch
) -> box_loss.Coordinates:
    digits = batch.digits
    if digits is None:
        raise ValueError("box_route 'digits' needs a batch with `digits`: see ExampleConfig")
    rows, questions, slots = batch.answer_mask.shape
    # Ten logits for every answer token are less than the states of all digits of all boxes.
    logits = model.token_logits(hidden, digits.token_ids)  # [B, Q*A, 10]
    position = digits.positions + slots * jnp.arange(questions)[:, None, None, None]
    flat = position.reshape(rows, -1)
    read = jax.vmap(lambda x, p: x[p])(logits, flat).reshape(*position.shape, 10)
    written = jnp.take_along_axis(batch.answer_tokens.reshape(rows, -1), flat, axis=1)
    is_digit = written.reshape(*position.shape, 1) == jnp.asarray(digits.token_ids)
    return box_loss.coordinates_of_digits(
        read,
        jnp.argmax(is_digit, axis=-1),
        digits.place_weights,
        digits.scale[:, :, None],
        digits.offset[:, :, None],
    )


def sum_in_chunks(
    sums: Callable[..., tuple[Array, Any]],
    items: tuple[ArrayLike, ...],
    mask: Bool[ArrayLike, "B N"],
    chunk: int,
) -> tuple[Array, Any]:
    """`sums(*items, mask)` over a few items at a time.

    Each row's valid items are moved to its front and chunks without any are skipped, so that
    padding costs no logits. Chunks run along the second axis: the first may be sharded.

    Where a gradient is asked for, a chunk's is taken right behind its sums, while its logits are
    there: they are computed once, and all that waits for the backward pass is a gradient of the
    size of the states.

    Args:
        sums: takes slices of the items and of the mask, returns a scalar sum and another or a tree
            of them. The first is differentiated with respect to the first item and to what `sums`
            closes over; the others are only reported.
        items: [B, N, ...] each.
        chunk: items at a time, over all rows.
    """
    rows, length = mask.shape
    width = min(max(1, chunk // rows), length)
    padding = -length % width
    order = jnp.argsort(~mask, axis=1, stable=True)

    def cut(x: ArrayLike) -> Array:
        """[B, N, ...] sorted, padded and cut into [chunks, B, width, ...]."""
        x = jax.vmap(lambda row, index: row[index])(x, order)
        x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(rows, -1, width, *x.shape[2:]), 1, 0)

    states, *rest = (cut(x) for x in (*items, mask))
    # What `sums` closes over has to be an argument for a gradient to reach it.
    of_chunk, closed_over = jax.closure_convert(sums, states[0], *(x[0] for x in rest))

    @jax.custom_vjp
    def total(states: Array, rest: list[Array], closed_over: list[Array]) -> tuple[Array, Any]:
        return _scan_chunks(of_chunk, states, rest, closed_over, None)[0]

    def forward(states: Any, rest: Any, closed_over: list[Any]) -> tuple[Any, Any]:
        # A frozen table is closed over as well; its gradient would be as large as itself.
        wanted = [x.perturbed for x in closed_over]
        values = (states.value, [x.value for x in rest], [x.value for x in closed_over])
        return _scan_chunks(of_chunk, *values, wanted)

    def backward(gradients: tuple[Array, list[Any]], cotangents: tuple[Any, Any]) -> Any:
        of_states, of_closed_over = gradients
        if isinstance(cotangents[0], jax.custom_derivatives.SymbolicZero):
            return None, None, None
        scaled = functools.partial(
            jax.tree.map, lambda g: (g.astype(jnp.float32) * cotangents[0]).astype(g.dtype)
        )
        return scaled(of_states), None, scaled(of_closed_over)

    total.defvjp(forward, backward, symbolic_zeros=True)
    return total(states, rest, closed_over)


def _scan_chunks(
    sums: Callable[..., tuple[Array, Any]],
    states: Float[Array, "chunks B width ..."],
    rest: list[Array],
    closed_over: list[Array],
    wanted: list[bool] | None,
) -> tuple[tuple[Array, Any], Any]:
    """Sums over chunks of `sums(states, *rest, *closed_over)`, and gradients of the first.

    Args:
        rest: what goes with the states; the last is the mask.
        wanted: which of `closed_over` want a gradient; None: there is no gradient at all.

    Returns:
        The sums, and None or their gradients: of the states, [chunks, B, width, ...]; of
        `closed_over`, None where not wanted.
    """
    number = [] if wanted is None else [i for i, is_wanted in enumerate(wanted) if is_wanted]

    def of_chunk(states: Array, rest: tuple[Array, ...]) -> tuple[Any, Any]:
        if wanted is None:
            return sums(states, *rest, *closed_over), None

        def first(states: Array, parameters: list[Array]) -> tuple[Array, Any]:
            replaced = list(closed_over)
            for i, parameter in zip(number, parameters, strict=True):
                replaced[i] = parameter
            return sums(states, *rest, *replaced)

        parameters = [closed_over[i] for i in number]
        (value, other), gradients = jax.value_and_grad(first, argnums=(0, 1), has_aux=True)(
            states, parameters
        )
        return (value, other), gradients

    shapes = jax.eval_shape(of_chunk, states[0], [x[0] for x in rest])
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def add_chunk(carry: Any, chunk: tuple[Array, list[Array]]) -> tuple[Any, Any]:
        present = jnp.any(chunk[1][-1])
        found, gradients = jax.lax.cond(present, of_chunk, lambda *_: zeros, *chunk)
        of_states, of_parameters = (None, None) if gradients is None else gradients
        return jax.tree.map(jnp.add, carry, (found, of_parameters)), of_states

    start = (zeros[0], None if zeros[1] is None else zeros[1][1])
    (found, of_parameters), of_states = jax.lax.scan(add_chunk, start, (states, rest))
    if of_parameters is None:
        return found, None
    of_closed_over: list[Any] = [None] * len(closed_over)
    for i, gradient in zip(number, of_parameters, strict=True):
        of_closed_over[i] = gradient
    return found, (of_states, of_closed_over)


CROSS_ENTROPY = Term("ce", token_sums)
# Key of the group `training` that is the term's weight -> the term.
TERMS = {"lambda_box": Term("box_loss", box_sums, per="questions", always=True)}
