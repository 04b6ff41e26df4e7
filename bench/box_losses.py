"""Losses of a predicted box, side by side: where gradient descent from any start ends.

    python -m bench.box_losses

A loss of the four expected coordinates is descended from random starts, half of them with swapped
corners, to random targets. A row a loss: the share of starts that end at the target with corners in
order, the share that end with corners swapped, the largest gradient met on the way, and the share
of pairs in which the target with swapped corners costs more than a box that does not overlap it.
The losses but `ours` stand here for comparison alone.
"""

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cxrjax import boxes
from cxrjax.training.box_loss import DISTANCE_WEIGHT, ordered_giou_loss

Box = Float[Array, "4"]
STEPS, FIRST_STEP, AT_TARGET = 4000, 3e-3, 0.01


def sorted_giou(e: Box, t: Box) -> Array:
    """1 - GIoU of the box that the corners span in either order (the loss before it was fixed)."""
    return 1 - boxes.giou(e, t)


def empty_giou(e: Box, t: Box) -> Array:
    """A box with swapped corners has no area, and nothing else happens to it."""
    return 1 - boxes.giou(e, t, swapped="empty")


def hinge(e: Box, t: Box) -> Array:
    """Adds to `empty_giou` the distance by which corners are swapped."""
    return empty_giou(e, t) + jnp.sum(jax.nn.relu(e[:2] - e[2:]))


def sorted_giou_and_l1(e: Box, t: Box) -> Array:
    """DETR's sum (arXiv 2005.12872, A.4)."""
    return sorted_giou(e, t) + 2.5 * jnp.sum(jnp.abs(e - t))


def signed_giou(e: Box, t: Box) -> Array:
    """Areas have the sign of their smaller extent."""

    def area(low: Array, high: Array) -> Array:
        size = high - low
        return jnp.where(jnp.min(size) < 0, -1, 1) * jnp.abs(size[0] * size[1])

    inner = area(jnp.maximum(e[:2], t[:2]), jnp.minimum(e[2:], t[2:]))
    union = jnp.abs(area(e[:2], e[2:])) + area(t[:2], t[2:]) - jax.nn.relu(inner)
    hull = area(jnp.minimum(e[:2], t[:2]), jnp.maximum(e[2:], t[2:]))
    return 1 - inner / union + (hull - union) / hull


def edge_distances(e: Box, t: Box) -> Array:
    """IoU of the distances from the target's centre to four edges (FCOS, arXiv 1904.01355)."""
    center = (t[:2] + t[2:]) / 2
    ours = jax.nn.relu(jnp.concatenate([center - e[:2], e[2:] - center])) + 1e-6
    theirs = jnp.concatenate([center - t[:2], t[2:] - center])

    def area(d: Array) -> Array:
        return (d[0] + d[2]) * (d[1] + d[3])

    inner = area(jnp.minimum(ours, theirs))
    return -jnp.log(inner / (area(ours) + area(theirs) - inner))


def center_and_log_size(e: Box, t: Box) -> Array:
    """Distances of centre, relative to the target's size, and of log size."""
    size, true = jnp.maximum(e[2:] - e[:2], 1e-3), t[2:] - t[:2]
    moved = (e[:2] + e[2:] - t[:2] - t[2:]) / 2 / true
    return jnp.sum(jnp.abs(moved) + jnp.abs(jnp.log(size / true)))


def ours(e: Box, t: Box) -> Array:
    """Box loss that the package trains with, for distributions that are points."""
    return ordered_giou_loss(e, t) + DISTANCE_WEIGHT * jnp.sum(jnp.abs(e - t))


LOSSES: dict[str, Callable[[Box, Box], Array]] = {
    "GIoU of sorted corners": sorted_giou,
    "GIoU, swapped has no area": empty_giou,
    "the same + hinge": hinge,
    "GIoU of sorted corners + 2.5 L1": sorted_giou_and_l1,
    "GIoU with signed areas": signed_giou,
    "distances to four edges": edge_distances,
    "centre and log size": center_and_log_size,
    "ordered GIoU alone": ordered_giou_loss,
    "ours": ours,
}


def random_boxes(key: Array, count: int) -> Float[Array, "n 4"]:
    """Sides of 0.03 to 0.6, anywhere in the frame."""
    size_key, place_key = jax.random.split(key)
    size = jax.random.uniform(size_key, (count, 2), minval=0.03, maxval=0.6)
    low = jax.random.uniform(place_key, (count, 2)) * (1 - size)
    return jnp.concatenate([low, low + size], axis=-1)


def compare(loss: Callable[[Box, Box], Array], count: int, seed: int = 0) -> dict[str, float]:
    """The figures of one row."""
    keys = jax.random.split(jax.random.key(seed), 3)
    targets, starts = random_boxes(keys[0], count), jax.random.uniform(keys[1], (count, 4))
    gradient = jax.vmap(jax.grad(loss))

    def step(carry: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], None]:
        at, steepest = carry
        slope = gradient(at, targets)
        norm = jnp.linalg.norm(slope, axis=-1, keepdims=True)
        # Steps as long as an optimiser with a norm makes them, and shorter towards the end.
        length = FIRST_STEP * (1 - i / STEPS)
        at = at - length * slope / jnp.maximum(norm, 1.0)
        return (jnp.clip(at, 0, 1), jnp.maximum(steepest, jnp.max(norm))), None

    (ends, steepest), _ = jax.jit(
        lambda: jax.lax.scan(step, (starts, jnp.zeros(())), jnp.arange(STEPS))
    )()
    swapped = jnp.any(ends[:, :2] > ends[:, 2:], axis=-1)
    arrived = jnp.max(jnp.abs(ends - targets), axis=-1) < AT_TARGET
    others = random_boxes(keys[2], count)
    apart = boxes.iou(others, targets) == 0
    dearer = jax.vmap(loss)(targets[:, jnp.array([2, 1, 0, 3])], targets) > jax.vmap(loss)(
        others, targets
    )
    return {
        "at the target": float(jnp.mean(arrived)),
        "swapped": float(jnp.mean(swapped)),
        "steepest": float(steepest),
        "swapped dearer": float(jnp.sum(dearer & apart) / jnp.sum(apart)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=2000)
    flags = parser.parse_args()
    print("| loss | at the target | swapped | steepest gradient | swapped dearer than apart |")
    print("|---|---|---|---|---|")
    for name, loss in LOSSES.items():
        row = compare(loss, flags.starts)
        print(
            f"| {name} | {row['at the target']:.1%} | {row['swapped']:.1%} | "
            f"{row['steepest']:.0f} | {row['swapped dearer']:.1%} |"
        )


if __name__ == "__main__":
    main()
