"""Training targets of location tokens that take the order of the bins into account.

The 1,024 location tokens are an ordered scale, which cross-entropy with single bins does not know:
the bin beside the target costs as much as the one at the other end. Here the target spreads over
the bins beside it, or the loss is one of ordered scales:

gaussian   cross-entropy with a Gaussian about the target.
linear     cross-entropy with weights that fall linearly to 0 at the width. On a grid as coarse as
           the width it is distribution focal loss (arXiv 2006.04388, equation 6), whose targets
           are the two grid points beside the true value.
ranked     the squared distance between the cumulative distribution and the target's step, summed
           over the bins: the ranked probability score, or squared earth mover's distance (arXiv
           1611.05916, equation 13). That the token is a location at all costs its cross-entropy.

`python -m bench.objectives` compares them.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cxrjax.codecs.tokens import NUM_BINS

CoordinateLoss = Literal["gaussian", "linear", "ranked"]
# The even distribution then costs what it does in cross-entropy, in the mean over all targets:
# ln 1024, where the integral over the squared distances is 1/6.
RANKED_WEIGHT = 6 * math.log(NUM_BINS)
# A width, in bins, that leaves the target its bin alone.
_POINT = 1e-3


class CoordinateTargets(NamedTuple):
    """Targets and loss of location tokens.

    Attributes:
        start: id of the first of them.
        kind: see the module.
        width: of a Gaussian its standard deviation, of linear weights where they end; in bins,
            above 0. Of `ranked` nothing.
        weight: of a location token beside another token.
    """

    start: int
    kind: CoordinateLoss
    width: float
    weight: float = 1.0

    def concerns(self, target: Int[Array, "B n"]) -> Bool[Array, "B n"]:
        """Returns whether each target is a location token."""
        return (target >= self.start) & (target < self.start + NUM_BINS)

    def loss(
        self,
        logits: Float[Array, "B n V"],
        target: Int[Array, "B n"],
        log_total: Float[Array, "B n"],
    ) -> Float[Array, "B n"]:
        """The loss of each token, as if all were location tokens.

        Args:
            log_total: logsumexp of the logits over the vocabulary.
        """
        of_bins = logits[..., self.start : self.start + NUM_BINS]
        # Words too have a bin here: without one, linear weights are 0/0, whoever asks for them.
        bins, at = jnp.arange(NUM_BINS), jnp.clip(target - self.start, 0, NUM_BINS - 1)[..., None]
        if self.kind == "ranked":
            log_mass = jax.nn.logsumexp(of_bins, axis=-1)
            reached = jnp.cumsum(jnp.exp(of_bins - log_mass[..., None]), axis=-1)
            away = jnp.mean(jnp.square(reached - (bins >= at)), axis=-1)
            return self.weight * (log_total - log_mass + RANKED_WEIGHT * away)
        away = jnp.abs(bins - at) / self.width
        if self.kind == "linear":
            weights = jax.nn.relu(1 - away)
            weights /= jnp.sum(weights, axis=-1, keepdims=True)
        else:  # cut off at the image's edges
            weights = jax.nn.softmax(-0.5 * jnp.square(away), axis=-1)
        return self.weight * (log_total - jnp.sum(weights * of_bins, axis=-1))


def coordinate_targets(
    kind: CoordinateLoss, pixels: float, weight: float, start: int, image_size: int
) -> CoordinateTargets | None:
    """The targets of the keys `training.coordinate_*`; None: single bins, like other tokens.

    Args:
        pixels: the width in pixels of the model's input.
        weight: of a location token beside another token.
        start: id of the first location token.
        image_size: longer side of the model's input.
    """
    if kind != "ranked" and pixels == 0 and weight == 1:
        return None
    return CoordinateTargets(start, kind, max(pixels * NUM_BINS / image_size, _POINT), weight)
