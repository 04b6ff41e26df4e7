"""Training targets of location tokens that take the order of the bins into account.

The 1,024 location tokens are an ordered scale, which cross-entropy with single bins does not know:
the bin beside the target costs as much as the one at the other end. Here the target is a Gaussian
about its bin.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cxrjax.codecs.tokens import NUM_BINS

# A width, in bins, that leaves the target its bin alone.
_POINT = 1e-3


class CoordinateTargets(NamedTuple):
    """Targets and loss of location tokens."""

    start: int  # id of the first of them
    width: float  # standard deviation in bins, above 0
    weight: float = 1.0  # of a location token beside another token

    def concerns(self, target: Int[Array, "B n"]) -> Bool[Array, "B n"]:
        """Returns whether each target is a location token."""
        return (target >= self.start) & (target < self.start + NUM_BINS)

    def loss(
        self,
        logits: Float[Array, "B n V"],
        target: Int[Array, "B n"],
        log_total: Float[Array, "B n"],
    ) -> Float[Array, "B n"]:
        """Returns the cross-entropy of each token, as if all were location tokens.

        Args:
            log_total: logsumexp of the logits over the vocabulary.
        """
        of_bins = logits[..., self.start : self.start + NUM_BINS]
        # Words too have a bin here.
        bins, at = jnp.arange(NUM_BINS), jnp.clip(target - self.start, 0, NUM_BINS - 1)[..., None]
        away = jnp.abs(bins - at) / self.width
        weights = jax.nn.softmax(-0.5 * jnp.square(away), axis=-1)  # cut off at the image's edges
        return self.weight * (log_total - jnp.sum(weights * of_bins, axis=-1))


def coordinate_targets(
    pixels: float, weight: float, start: int, image_size: int
) -> CoordinateTargets | None:
    """Returns the targets of the keys `training.coordinate_*`; None: single bins.

    Args:
        pixels: the width in pixels of the model's input.
        weight: of a location token beside another token.
        start: id of the first location token.
        image_size: longer side of the model's input.
    """
    if pixels == 0 and weight == 1:
        return None
    return CoordinateTargets(start, max(pixels * NUM_BINS / image_size, _POINT), weight)
