"""The multi-task loss: cross-entropy of the answer's tokens plus lambda times a box loss.

The paper (arXiv 2511.00504, section 3.1) has L = L_vqa + 0.5 L_bbox with an "IoU-based" L_bbox and
does not say how a loss on boxes reaches a model that emits tokens. Here are three routes to a box
with a gradient, for 1 - GIoU (arXiv 1902.09630):

loc     a coordinate is the expectation of the bin centres under the softmax over the 1,024 `<loc>`
        logits at its position (temperature 1).
digits  a coordinate is the place-weighted sum of the expectations of its digits, each under the
        softmax over the ten digits' logits at its position, mapped to fractions. All of it under
        teacher forcing: each digit's distribution is the one after the target's own earlier
        digits, and the number of digits is the target's. So it is not the expectation of the
        number that the model would generate: a wrong first digit costs what its place says,
        while a longer or shorter number, or text in its stead, is for the cross-entropy alone.
head    `cxrjax.models.box_head` regresses the box from the hidden state that predicts its first
        coordinate. Its loss is 1 - GIoU + 2.5 L1, DETR's 2 : 5 (arXiv 2005.12872, A.4).

Each part is a sum with its count: tokens, and questions that have boxes (a question's own boxes
are averaged first). Micro-batches, devices and hosts add sums; one division by the counts of the
whole batch makes the gradient what one large batch would give.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from cxrjax import boxes
from cxrjax.codecs import paligemma
from cxrjax.input_pipeline.batch import ArrayLike, Batch
from cxrjax.input_pipeline.coordinates import BoxRoute
from cxrjax.training.chunked_sums import sum_in_chunks

# Of the L1 distance of centre and size, summed over the four, relative to 1 - GIoU.
HEAD_L1_WEIGHT = 2.5


@runtime_checkable
class AnswerModel(Protocol):
    """What the loss needs of a model: see `cxrjax.models.VLM`."""

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
    """What the sums of a whole batch are divided by, float32 scalars.

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
        giou_sum: over questions with boxes, the mean of 1 - GIoU over the question's boxes.
        iou_sum: over the same, the mean IoU of the expected boxes.
        giou_count: questions with boxes.
        l1_sum: over the same, the mean L1 distance of centre and size; None but for route `head`.
    """

    ce_sum: Any
    correct_sum: Any
    ce_count: Any
    giou_sum: Any
    iou_sum: Any
    giou_count: Any
    l1_sum: Any = None

    def __add__(self, other: "LossParts") -> "LossParts":
        return jax.tree.map(jnp.add, self, other)

    def total(self, lambda_box: Any, denominators: Denominators) -> Float[Array, ""]:
        """The loss. A batch without any box has no box loss; one without a token, no loss."""
        token_loss = self.ce_sum / jnp.maximum(denominators.tokens, 1)
        box_sum = self.giou_sum
        if self.l1_sum is not None:
            box_sum = box_sum + HEAD_L1_WEIGHT * self.l1_sum
        box_loss = box_sum / jnp.maximum(denominators.questions, 1)
        return token_loss + lambda_box * box_loss


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

    Returns:
        The loss, and its parts as sums over `batch`.

    Raises:
        ValueError: the route needs what the batch or the model does not have.
    """
    hidden = model(
        batch.images,
        batch.prefix_tokens,
        batch.prefix_mask,
        batch.answer_tokens,
        batch.answer_mask,
        question_index=batch.question_index,
        dropout_key=dropout_key,
        packed_length=batch.packed_length,
    )
    rows, questions, slots, width = hidden.shape
    hidden = hidden.reshape(rows, questions * slots, width)

    ce_sum, correct_sum = sum_in_chunks(
        lambda h, target, mask: _token_sums(model.logits(h), target, mask),
        (hidden, batch.answer_tokens.reshape(rows, -1)),
        batch.answer_mask.reshape(rows, -1),
        logit_chunk,
    )
    counts = batch_denominators(batch)
    giou_sum, iou_sum, l1_sum = _box_sums(model, hidden, batch, logit_chunk, box_route)
    parts = LossParts(
        ce_sum=ce_sum,
        correct_sum=correct_sum,
        ce_count=counts.tokens,
        giou_sum=giou_sum,
        iou_sum=iou_sum,
        giou_count=counts.questions,
        l1_sum=l1_sum,
    )
    return parts.total(lambda_box, counts if denominators is None else denominators), parts


def expected_coordinates(loc_logits: Float[Array, "*batch 1024"]) -> Float[Array, "*batch"]:
    """Expectation of the bin centres under the softmax of the `<loc>` logits, in [0, 1]."""
    centers = jnp.asarray(paligemma.bin_centers(), loc_logits.dtype)
    return jnp.sum(jax.nn.softmax(loc_logits, axis=-1) * centers, axis=-1)


def expected_digits(digit_logits: Float[Array, "*batch 10"]) -> Float[Array, "*batch"]:
    """Expectation of the digit under the softmax of the logits of 0 to 9, in [0, 9].

    Of one place under teacher forcing. What the places add up to is not the expectation of the
    number that would be generated; see the module's docstring.
    """
    digits = jnp.arange(10, dtype=digit_logits.dtype)
    return jnp.sum(jax.nn.softmax(digit_logits, axis=-1) * digits, axis=-1)


def _token_sums(
    logits: Float[Array, "B n V"], target: Int[Array, "B n"], mask: Bool[Array, "B n"]
) -> tuple[Array, Array]:
    """Sums over tokens of the cross-entropy and of whether the target's logit is the largest."""
    # Compare and select rather than gather: it fuses, and shards over the vocabulary as it is.
    is_target = jnp.arange(logits.shape[-1]) == target[..., None]
    chosen = jnp.sum(jnp.where(is_target, logits, 0), axis=-1)
    loss = jax.nn.logsumexp(logits, axis=-1) - chosen
    correct = jax.lax.stop_gradient(chosen >= jnp.max(logits, axis=-1))
    return jnp.sum(jnp.where(mask, loss, 0)), jnp.sum(jnp.where(mask, correct, False), dtype=float)


def _box_sums(
    model: AnswerModel,
    hidden: Float[Array, "B QA D"],
    batch: Batch,
    chunk: int,
    route: BoxRoute,
) -> tuple[Array, Array, Array | None]:
    """Sums over questions of the mean 1 - GIoU, of the mean IoU, and of the head's mean L1."""
    if route == "loc":
        return *_loc_sums(model, hidden, batch, chunk), None
    if route == "none":
        return jnp.zeros(()), jnp.zeros(()), None
    predicted = (_digit_boxes if route == "digits" else _head_boxes)(model, hidden, batch)
    weight, target = _box_weights(batch), jnp.asarray(batch.target_boxes, predicted.dtype)
    giou_sum, iou_sum = _overlap_sums(predicted, target, weight, batch.box_mask)
    if route == "digits":
        return giou_sum, iou_sum, None
    distance = jnp.sum(jnp.abs(_center_and_size(predicted) - _center_and_size(target)), axis=-1)
    return giou_sum, iou_sum, jnp.sum(jnp.where(batch.box_mask, weight * distance, 0))


def _box_weights(batch: Batch) -> Float[Array, "B Q K"]:
    """What each box counts: a question's weights sum to 1."""
    mask = jnp.asarray(batch.box_mask)
    return mask / jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)


def _overlap_sums(
    predicted: Float[Array, "*batch 4"], target: ArrayLike, weight: ArrayLike, mask: ArrayLike
) -> tuple[Array, Array]:
    """Weighted sums of 1 - GIoU and of the IoU, which has no gradient."""
    loss = jnp.where(mask, weight * (1 - boxes.giou(predicted, target)), 0)
    overlap = jax.lax.stop_gradient(boxes.iou(predicted, target))
    return jnp.sum(loss), jnp.sum(jnp.where(mask, weight * overlap, 0))


def _center_and_size(xyxy: Float[Array, "*batch 4"]) -> Float[Array, "*batch 4"]:
    low, high = xyxy[..., :2], xyxy[..., 2:]
    return jnp.concatenate([(low + high) / 2, high - low], axis=-1)


def _digit_boxes(
    model: AnswerModel, hidden: Float[Array, "B QA D"], batch: Batch
) -> Float[Array, "B Q K 4"]:
    """The boxes that the expected digits say, fractions of the model's input."""
    digits = batch.digits
    if digits is None:
        raise ValueError("box_route 'digits' needs a batch with `digits`: see ExampleConfig")
    rows, questions, slots = batch.answer_mask.shape
    # Ten logits for every answer token are less than the states of all digits of all boxes.
    expected = expected_digits(model.token_logits(hidden, digits.token_ids))  # [B, Q*A]
    position = digits.positions + slots * jnp.arange(questions)[:, None, None, None]
    read = jnp.take_along_axis(expected, position.reshape(rows, -1), axis=1)
    numbers = jnp.sum(read.reshape(position.shape) * digits.place_weights, axis=-1)
    return numbers * digits.scale[:, :, None] + digits.offset[:, :, None]


def _head_boxes(
    model: AnswerModel, hidden: Float[Array, "B QA D"], batch: Batch
) -> Float[Array, "B Q K 4"]:
    """The boxes that the model's head regresses, fractions of the model's input."""
    head = getattr(model, "box_head", None)
    if head is None:
        raise ValueError("box_route 'head' needs a model with a box head (model.box_head)")
    rows, questions, slots = batch.answer_mask.shape
    first = jnp.min(batch.coordinate_positions, axis=-1)
    position = first + slots * jnp.arange(questions)[:, None]  # [B, Q, K]
    states = jax.vmap(lambda h, p: h[p])(hidden, position.reshape(rows, -1))
    return head(states).reshape(*position.shape, 4)


def _loc_sums(
    model: AnswerModel, hidden: Float[Array, "B QA D"], batch: Batch, chunk: int
) -> tuple[Array, Array]:
    """Of the boxes that the expected bins say: sums of the mean 1 - GIoU and of the mean IoU."""
    rows, questions, slots = batch.answer_mask.shape
    position = batch.coordinate_positions + slots * jnp.arange(questions)[:, None, None]
    states = jax.vmap(lambda h, p: h[p])(hidden, position.reshape(rows, -1))  # [B, Q*K*4, D]

    def sums(states: Array, target: Array, weight: Array, mask: Array) -> tuple[Array, Array]:
        expected = expected_coordinates(model.loc_logits(states))
        return _overlap_sums(expected, target.astype(expected.dtype), weight, mask)

    items = (
        states.reshape(rows, -1, 4, hidden.shape[-1]),
        batch.target_boxes.reshape(rows, -1, 4),
        _box_weights(batch).reshape(rows, -1),
    )
    # A box takes four positions' logits.
    return sum_in_chunks(sums, items, batch.box_mask.reshape(rows, -1), chunk // 4)
