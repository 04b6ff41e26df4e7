"""The box loss: the cost of predicted boxes, and the sums that are reported of them.

A loss on expected coordinates can go wrong in two ways, and this project went both (docs/log.md):

order   GIoU of sorted corners does not see that a box is the wrong way round: E[x0] at the
        target's x1 and E[x1] at its x0 is a second optimum. Giving such a box no area is not
        enough: on the target's own edges, swapped, intersection and hull are flat and nothing
        pulls. So the extent by which corners are swapped costs too, as soon as it is more than
        the model's own doubt.
spread  An expectation can be right while no part of the distribution is. Probability at the far
        end of the axis is the cheapest way to move it. So a coordinate also costs its expected
        distance from the target, which is linear in the probabilities: mass costs in proportion
        to how far away it lies, and the one distribution without cost is a point on the target.

`python -m bench.box_losses` compares the first with what else could be done. What is reported of
boxes is not sorted either: a report must not share a symmetry with what it reports on.

In the order in which it is computed: the coordinates that the model says, what a box costs, sums.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from cxrjax import boxes
from cxrjax.codecs import tokens
from cxrjax.input_pipeline.batch import ArrayLike

# Of the expected distance, summed over the four coordinates, relative to 1 - GIoU: DETR's 5 : 2 of
# L1 and GIoU (arXiv 2005.12872, A.4).
DISTANCE_WEIGHT = 2.5
# Of swapped corners, by their share in swapped and true extent together. Where nothing overlaps
# 1 - GIoU is from 1 to 2: from 2 on the target itself, with two corners swapped, costs more than
# any box beside it. Bounded, as one such box would else outweigh a batch (docs/log.md).
ORDER_WEIGHT = 2.5
# Extents of targets that are smaller than a location token count as one.
_MIN_EXTENT = 1 / tokens.NUM_BINS
# How far from the target, in fractions of the frame, probability counts as being there.
NEAR = 0.05
XYXY = ("x_min", "y_min", "x_max", "y_max")


class Coordinates(NamedTuple):
    """The four coordinates of boxes as a model says them, xyxy, fractions of its input."""

    expected: Float[ArrayLike, "*batch 4"]  # expectation of each
    distance: Float[ArrayLike, "*batch 4"]  # expected distance from the target
    near: Float[ArrayLike, "*batch 4"]  # probability within `NEAR` of the target
    spread: Float[ArrayLike, "*batch 4"]  # standard deviation
    likeliest: Float[ArrayLike, "*batch 4"]  # the value with the highest probability
    median: Float[ArrayLike, "*batch 4"]  # the value at which half of the probability is reached


def coordinates_of_bins(
    loc_logits: Float[Array, "*batch 4 1024"], target: Float[ArrayLike, "*batch 4"]
) -> Coordinates:
    """Reads distributions over the bins, temperature 1; each bin is its centre."""
    centers = jnp.asarray(tokens.bin_centers(), loc_logits.dtype)
    probability = jax.nn.softmax(loc_logits, axis=-1)
    away = jnp.abs(centers - target[..., None].astype(loc_logits.dtype))
    expected = jnp.sum(probability * centers, axis=-1)
    variance = jnp.sum(probability * jnp.square(centers - expected[..., None]), axis=-1)
    return Coordinates(
        expected=expected,
        distance=jnp.sum(probability * away, axis=-1),
        near=jnp.sum(jnp.where(away <= NEAR, probability, 0), axis=-1),
        spread=jnp.sqrt(variance),
        likeliest=centers[jnp.argmax(probability, axis=-1)],
        median=centers[_median(probability)],
    )


def local_coordinates(
    loc_logits: Float[Array, "*batch 4 1024"], target: Float[ArrayLike, "*batch 4"], window: float
) -> tuple[Coordinates, Float[Array, "*batch"]]:
    """Reads the part of each distribution that lies about the target's mode.

    The expectation of a distribution over two lesions lies between them, where there is none. Here
    a coordinate is read from the bins within `window`, in fractions of the frame, of the likeliest
    bin that is itself within `window` of the target, as if there were no others. Which bins these
    are has no gradient, and their probability is for the cross-entropy alone.

    Returns:
        The coordinates, and the probability of the four windows together, without gradient.
    """
    centers = jnp.asarray(tokens.bin_centers(), loc_logits.dtype)
    away = jnp.abs(centers - target[..., None].astype(loc_logits.dtype))
    # At the frame's edge no bin may be near enough; the nearest is.
    is_near = away <= jnp.maximum(window, jnp.min(away, axis=-1, keepdims=True))
    mode = jnp.argmax(jnp.where(is_near, loc_logits, -jnp.inf), axis=-1)
    inside = jnp.abs(centers - centers[mode][..., None]) <= window
    within = jnp.sum(jnp.where(inside, jax.nn.softmax(loc_logits, axis=-1), 0), axis=-1)
    masked = jnp.where(inside, loc_logits, -jnp.inf)
    weight = jax.lax.stop_gradient(jnp.prod(within, axis=-1))
    return coordinates_of_bins(masked, target), weight


def coordinates_of_digits(
    digit_logits: Float[Array, "*batch 4 D 10"],
    written: Int[ArrayLike, "*batch 4 D"],
    place_weights: Float[ArrayLike, "*batch 4 D"],
    scale: Float[ArrayLike, "*#batch 4"],
    offset: Float[ArrayLike, "*#batch 4"],
) -> Coordinates:
    """Reads distributions over the digits of each place, the earlier digits being the target's.

    A number's distance is the sum of its places'; it is near where no place alone takes it away;
    its likeliest value and its median are those of each place.

    Args:
        written: the target's digits.
        place_weights: 1000, 100, 10 or 1, what the digit counts; 0 in padding.
        scale, offset: number * scale + offset is a fraction of the model's input.
    """
    probability = jax.nn.softmax(digit_logits, axis=-1)
    digits = jnp.arange(10, dtype=probability.dtype)
    expected = jnp.sum(probability * digits, axis=-1)
    place = place_weights * scale[..., None]  # of one of the digit, in fractions
    away = jnp.abs(digits - written[..., None]) * jnp.abs(place)[..., None]
    variance = jnp.sum(probability * jnp.square(digits - expected[..., None]), axis=-1)

    def number(digit: Array) -> Array:
        return jnp.sum(digit * place_weights, axis=-1) * scale + offset

    return Coordinates(
        expected=number(expected),
        distance=jnp.sum(probability * away, axis=(-2, -1)),
        near=jnp.prod(jnp.sum(jnp.where(away <= NEAR, probability, 0), axis=-1), axis=-1),
        spread=jnp.sqrt(jnp.sum(variance * jnp.square(place), axis=-1)),
        likeliest=number(jnp.argmax(probability, axis=-1)),
        median=number(_median(probability)),
    )


def _median(probability: Float[Array, "*batch n"]) -> Int[Array, "*batch"]:
    """The first index at which half of the probability is reached."""
    return jnp.argmax(jnp.cumsum(probability, axis=-1) >= 0.5, axis=-1)


def ordered_giou_loss(
    predicted: Float[ArrayLike, "*batch 4"],
    target: Float[ArrayLike, "*batch 4"],
    spread: Float[ArrayLike, "*batch 4"] | float = 0.0,
) -> Float[Array, "*batch"]:
    """1 - GIoU of boxes as they stand, and what swapped corners cost.

    Args:
        predicted: xyxy, fractions, corners in any order.
        target: xyxy, corners in order.
        spread: standard deviation of each coordinate. By so much a corner may be on the wrong side
            of the other: where a model cannot tell which of two boxes is meant, its expectations
            lie between them in an order that says nothing.

    Returns:
        From 0 to 2 where corners are in order. Beyond the spread, swapped corners cost the more the
        farther they are swapped, with a finite gradient that moves each to its own side.
    """
    spread = jax.lax.stop_gradient(jnp.broadcast_to(spread, predicted.shape))
    doubt = jnp.hypot(spread[..., :2], spread[..., 2:])
    extent = jnp.maximum(target[..., 2:] - target[..., :2], _MIN_EXTENT)
    swapped = jax.nn.relu(predicted[..., :2] - predicted[..., 2:] - doubt)
    overlap = boxes.giou(predicted, target, swapped="empty")
    return 1 - overlap + ORDER_WEIGHT * jnp.sum(swapped / (extent + swapped), axis=-1)


def box_loss(found: Coordinates, target: Float[ArrayLike, "*batch 4"]) -> Float[Array, "*batch"]:
    """Returns the loss of each box: `ordered_giou_loss` of the expected one, and the distance."""
    overlapping = ordered_giou_loss(found.expected, target, found.spread)
    return overlapping + DISTANCE_WEIGHT * jnp.sum(found.distance, axis=-1)


@struct.dataclass
class BoxSums:
    """Reported sums over questions with boxes, each of the mean over the question's boxes."""

    giou: Any  # 1 - GIoU of the expected box; one with swapped corners has no area
    iou: Any  # IoU of the same
    swapped: Any  # 1 where its corners are swapped along an axis
    distance: Any  # expected distance of coordinates, mean of the four
    near: Any  # probability within `NEAR` of the target, [4]
    spread: Any  # standard deviation of each coordinate, [4]

    def named(self) -> dict[str, Any]:
        """The sums by the names of their figures."""
        return {
            "giou_loss": self.giou,
            "box_iou": self.iou,
            "coordinates/swapped": self.swapped,
            "coordinates/expected_distance": self.distance,
            **{f"coordinates/mass_within_{NEAR}/{n}": self.near[i] for i, n in enumerate(XYXY)},
            **{f"coordinates/spread/{n}": self.spread[i] for i, n in enumerate(XYXY)},
        }


def box_sums(
    found: Coordinates,
    target: Float[ArrayLike, "*batch 4"],
    weight: Float[Array, "*batch"],
    cost: Float[Array, "*batch"] | None = None,
) -> tuple[Float[Array, ""], BoxSums]:
    """Weighted sums of the loss, and of the reported figures, which have no gradient.

    Args:
        target: the boxes that the answer's tokens say, fractions of the model's input.
        weight: of each box; 0: there is none, and its values are ignored.
        cost: of each box, before its weight; None: `box_loss`.
    """
    target = target.astype(found.expected.dtype)
    there = weight > 0
    cost = box_loss(found, target) if cost is None else cost
    loss = jnp.sum(jnp.where(there, weight * cost, 0))
    at = jax.tree.map(jax.lax.stop_gradient, found)

    def total(values: Array) -> Array:
        of_four = values.ndim > weight.ndim
        mask, by = (there[..., None], weight[..., None]) if of_four else (there, weight)
        return jnp.sum(jnp.where(mask, by * values, 0), axis=tuple(range(weight.ndim)))

    swapped = jnp.any(at.expected[..., :2] > at.expected[..., 2:], axis=-1)
    return loss, BoxSums(
        giou=total(1 - boxes.giou(at.expected, target, swapped="empty")),
        iou=total(boxes.iou(at.expected, target, swapped="empty")),
        swapped=total(swapped.astype(weight.dtype)),
        distance=total(jnp.mean(at.distance, axis=-1)),
        near=total(at.near),
        spread=total(at.spread),
    )
