"""The multi-task loss: cross-entropy of the answer's tokens plus lambda times a box loss.

The paper (arXiv 2511.00504, section 3.1) has L = L_vqa + 0.5 L_bbox with an "IoU-based" L_bbox and
does not say how a loss on boxes reaches a model that emits tokens. Here are three routes to a box
with a gradient; what the box then costs is `cxrjax.training.box_loss`:

loc     a coordinate is the expectation of the bin centres under the softmax over the 1,024 `<loc>`
        logits at its position (temperature 1).
digits  a coordinate is the place-weighted sum of the expectations of its digits, each under the
        softmax over the ten digits' logits at its position, mapped to fractions. All of it under
        teacher forcing: each digit's distribution is the one after the target's own earlier
        digits, and the number of digits is the target's. So it is not the expectation of the
        number that the model would generate: a wrong first digit costs what its place says,
        while a longer or shorter number, or text in its stead, is for the cross-entropy alone.
head    `cxrjax.models.layers` regresses the box from the hidden state that predicts its first
        coordinate: a point, without spread.

Each part is a sum with its count: tokens, and questions that have boxes (a question's own boxes
are averaged first). Micro-batches, devices and hosts add sums; one division by the counts of the
whole batch makes the gradient what one large batch would give.

The logits of a vocabulary of 262 thousand for every answer token of a batch are more than a chip
has room for; they exist for a chunk of the tokens at a time, forward and backward.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from cxrjax.codecs.tokens import NUM_BINS
from cxrjax.input_pipeline.batch import ArrayLike, Batch
from cxrjax.input_pipeline.coordinates import BoxRoute
from cxrjax.models.vlm import VLM, context_of_two
from cxrjax.training import box_loss
from cxrjax.training.coordinate_targets import CoordinateTargets


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
    """Divisors of the sums of a whole batch, float32 scalars.

    Attributes:
        tokens: answer tokens.
        questions: questions that have at least one box.
    """

    tokens: Any
    questions: Any


@struct.dataclass
class LossParts:
    """Sums and counts, float32 scalars; those of two parts of a batch add up to the batch's.

    The fields are not typed, since JAX fills pytrees with shapes and shardings as well.

    Attributes:
        ce_sum: cross-entropy in nats over answer tokens.
        correct_sum: answer tokens whose logit is the largest.
        ce_count: answer tokens.
        box_sum: over questions with boxes, the mean box loss of the question's boxes.
        box_count: questions with boxes.
        boxes: what is told of the boxes, sums over the same; None with route `none`.
    """

    ce_sum: Any
    correct_sum: Any
    ce_count: Any
    box_sum: Any
    box_count: Any
    boxes: box_loss.BoxSums | None = None

    def __add__(self, other: "LossParts") -> "LossParts":
        return jax.tree.map(jnp.add, self, other)

    def named(self) -> dict[str, tuple[Any, Any]]:
        """Sum and count of each figure by name."""
        boxes = {} if self.boxes is None else self.boxes.named()
        return {
            "ce": (self.ce_sum, self.ce_count),
            "token_accuracy": (self.correct_sum, self.ce_count),
            "box_loss": (self.box_sum, self.box_count),
            **{name: (total, self.box_count) for name, total in boxes.items()},
        }

    def total(self, lambda_box: Any, denominators: Denominators) -> Float[Array, ""]:
        """The loss. A batch without any box has no box loss; one without a token, no loss."""
        token_loss = self.ce_sum / jnp.maximum(denominators.tokens, 1)
        return token_loss + lambda_box * self.box_sum / jnp.maximum(denominators.questions, 1)


def batch_denominators(batch: Batch) -> Denominators:
    """Counts of a batch, from its masks alone."""
    return Denominators(
        tokens=jnp.sum(batch.answer_mask, dtype=jnp.float32),
        questions=jnp.sum(jnp.any(batch.box_mask, axis=-1), dtype=jnp.float32),
    )


def multitask_loss(
    model: AnswerModel,
    batch: Batch,
    lambda_box: float | Float[Array, ""],
    dropout_key: Key[Array, ""] | None = None,
    denominators: Denominators | None = None,
    logit_chunk: int = 512,
    box_route: BoxRoute = "loc",
    coordinates: CoordinateTargets | None = None,
    boxes: box_loss.BoxCost = box_loss.DEFAULT_COST,
    absent_weight: float = 1.0,
    noise_start: int | None = None,
) -> tuple[Float[Array, ""], LossParts]:
    """Loss of a batch, or of a micro-batch of a larger one.

    Args:
        model: `cxrjax.models.VLM`, or anything that is called the same way.
        batch: device arrays.
        lambda_box: weight of the box loss; at 0 it is still reported.
        dropout_key: noise of this step; None turns dropout off.
        denominators: counts of the whole batch that `batch` is a part of; None: its own. The
            losses of the parts add up to the loss of the whole.
        logit_chunk: answer tokens, over all of the batch's images, whose logits over the
            vocabulary exist at a time.
        box_route: how the loss reaches boxes; the batch must have been made for it.
        coordinates: targets of location tokens; None: their bins alone.
        boxes: what a box costs.
        absent_weight: of the tokens of an answer without a box beside those of one with boxes.
        noise_start: id of the first location token, where those that belong to no box of the batch
            are noise (listed_boxes.py): any location is as good there. None: there is no noise.

    Returns:
        The loss, and its parts as sums over `batch`.

    Raises:
        ValueError: the route needs what the batch or the model does not have.
    """
    hidden = answer_states(model, batch, dropout_key)
    rows = hidden.shape[0]
    items: tuple[ArrayLike, ...] = (hidden, batch.answer_tokens.reshape(rows, -1))
    if absent_weight != 1.0:
        has_box = jnp.any(batch.box_mask, axis=-1, keepdims=True)
        weight = jnp.where(has_box, 1.0, absent_weight)
        items += (jnp.broadcast_to(weight, batch.answer_mask.shape).reshape(rows, -1),)
    if noise_start is not None:
        items += (_is_noise(batch, noise_start).reshape(rows, -1),)

    def sums(h: Array, target: Array, *others: Array) -> tuple[Array, Array]:
        rest = iter(others)
        weight = None if absent_weight == 1.0 else next(rest)
        noise = None if noise_start is None else (noise_start, next(rest))
        return _token_sums(model.logits(h), target, next(rest), coordinates, weight, noise)

    ce_sum, correct_sum = sum_in_chunks(
        sums, items, batch.answer_mask.reshape(rows, -1), logit_chunk
    )
    counts = batch_denominators(batch)
    box_sum, told = _box_sums(model, hidden, batch, logit_chunk, box_route, boxes)
    parts = LossParts(
        ce_sum=ce_sum,
        correct_sum=correct_sum,
        ce_count=counts.tokens,
        box_sum=box_sum,
        box_count=counts.questions,
        boxes=told,
    )
    return parts.total(lambda_box, counts if denominators is None else denominators), parts


def _is_noise(batch: Batch, start: int) -> Bool[Array, "B Q A"]:
    """Returns whether a token of an answer is a location token that belongs to no box."""
    tokens = jnp.asarray(batch.answer_tokens)
    slots = jnp.arange(tokens.shape[-1])
    own = (batch.coordinate_positions[..., None] == slots) & batch.box_mask[..., None, None]
    return (tokens >= start) & (tokens < start + NUM_BINS) & ~jnp.any(own, axis=(-3, -2))


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


def _token_sums(
    logits: Float[Array, "B n V"],
    target: Int[Array, "B n"],
    mask: Bool[Array, "B n"],
    coordinates: CoordinateTargets | None,
    weight: Float[Array, "B n"] | None = None,
    noise: tuple[int, Bool[Array, "B n"]] | None = None,
) -> tuple[Array, Array]:
    """Sums over tokens of the cross-entropy and of whether the target's logit is the largest.

    Args:
        noise: id of the first location token, and which tokens are any of them.
    """
    # Compare and select rather than gather: it fuses, and shards over the vocabulary as it is.
    is_target = jnp.arange(logits.shape[-1]) == target[..., None]
    chosen = jnp.sum(jnp.where(is_target, logits, 0), axis=-1)
    log_total = jax.nn.logsumexp(logits, axis=-1)
    loss = log_total - chosen
    if coordinates is not None:
        of_bins = coordinates.loss(logits, target, log_total)
        loss = jnp.where(coordinates.concerns(target), of_bins, loss)
    if noise is not None:
        start, is_noise = noise
        of_any = jax.nn.logsumexp(logits[..., start : start + NUM_BINS], axis=-1)
        loss = jnp.where(is_noise, log_total - of_any, loss)
    if weight is not None:
        loss = loss * weight
    # Not `chosen >= max`: a model whose logits are all alike would be right every time.
    correct = jnp.argmax(logits, axis=-1) == target
    return jnp.sum(jnp.where(mask, loss, 0)), jnp.sum(jnp.where(mask, correct, False), dtype=float)


def _box_sums(
    model: AnswerModel,
    hidden: Float[Array, "B QA D"],
    batch: Batch,
    chunk: int,
    route: BoxRoute,
    cost: box_loss.BoxCost,
) -> tuple[Array, box_loss.BoxSums | None]:
    """Sums over questions of the mean box loss, and of what is told of their boxes."""
    if route == "none":
        return jnp.zeros(()), None
    weight, target = _box_weights(batch), jnp.asarray(batch.target_boxes)
    if route == "loc":
        rows, states = hidden.shape[0], _loc_states(hidden, batch)
        if cost.matching == "hungarian":
            logits = model.loc_logits(jax.lax.stop_gradient(states))
            found = box_loss.coordinates_of_bins(logits.reshape(*target.shape, -1), target)
            target = box_loss.matched_targets(
                jnp.asarray(found.expected), target, jnp.asarray(batch.box_mask)
            )
        items = (
            states.reshape(rows, -1, 4, hidden.shape[-1]),
            target.reshape(rows, -1, 4),
            weight.reshape(rows, -1),
        )

        def sums(
            states: Array, target: Array, weight: Array, mask: Array
        ) -> tuple[Array, box_loss.BoxSums]:
            found = box_loss.coordinates_of_bins(model.loc_logits(states), target, cost.samples)
            return box_loss.box_sums(found, target, jnp.where(mask, weight, 0), cost.kind)

        # A box takes four positions' logits.
        return sum_in_chunks(sums, items, batch.box_mask.reshape(rows, -1), chunk // 4)
    read = _digit_coordinates if route == "digits" else _head_coordinates
    return box_loss.box_sums(read(model, hidden, batch), target, weight, cost.kind)


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


def _head_coordinates(
    model: AnswerModel, hidden: Float[Array, "B QA D"], batch: Batch
) -> box_loss.Coordinates:
    head = getattr(model, "box_head", None)
    if head is None:
        raise ValueError("box_route 'head' needs a model with a box head (model.box_head)")
    rows, questions, slots = batch.answer_mask.shape
    first = jnp.min(batch.coordinate_positions, axis=-1)
    position = first + slots * jnp.arange(questions)[:, None]  # [B, Q, K]
    states = jax.vmap(lambda h, p: h[p])(hidden, position.reshape(rows, -1))
    boxes = head(states).reshape(*position.shape, 4)
    return box_loss.coordinates_of_points(boxes, jnp.asarray(batch.target_boxes))


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
