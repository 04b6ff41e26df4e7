"""Coordinates read from the whole distribution over the location tokens, not from its highest bin.

| `decoding.boxes` | each coordinate is                                                           |
|------------------|------------------------------------------------------------------------------|
| `greedy`         | the likeliest location token                                                 |
| `smoothed`       | the one with the most probability around it, weighted by a Gaussian          |
| `median`         | the one at which half of the probability is reached                          |
| `expected_iou`   | of the box, among `BOX_SAMPLES`, with the highest mean IoU to the others     |

Whether there is a box is decided as greedy decides it, by the likeliest token. The distribution is
that over the location tokens which the grammar allows, renormalised: far corners lie beyond near
ones. A chosen token is fed back, so that the next coordinate is that of this box.
"""

import functools
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from cxrjax import boxes
from cxrjax.decoding.grammar import TokenVocabulary
from cxrjax.models import NUM_LOC_TOKENS

BoxReading = Literal["greedy", "smoothed", "median", "expected_iou"]
BOX_READINGS: tuple[str, ...] = get_args(BoxReading)

# Standard deviation of the smoothing, in bins: 0.8 % of the image.
SMOOTHING = 8.0
# A distribution is handed on as its quantiles at these levels.
LEVELS = (np.arange(16, dtype=np.float32) + 0.5) / 16
# Levels at which the boxes of `expected_iou` take their four coordinates. The first box is at the
# medians; the others are the first eight points of Sobol's sequence, which cover four dimensions
# more evenly than draws would and are the same for every seed.
_SOBOL = """
    0 0 0 0  4 4 4 4  6 2 2 2  2 6 6 6  3 3 5 7  7 7 1 3  5 1 7 5  1 5 3 1
"""
BOX_LEVELS = np.concatenate(
    [np.full((1, 4), 0.5), (np.array(_SOBOL.split(), float).reshape(-1, 4) + 0.5) / 8]
).astype(np.float32)
BOX_SAMPLES = len(BOX_LEVELS)
# Combinations of the four coordinates' quantiles that an expected IoU is a mean over.
_COMBINATIONS = 128


def is_location(token: Int[Array, "*batch"], vocabulary: TokenVocabulary) -> Bool[Array, "*batch"]:
    """Returns whether a token is one of the location tokens."""
    bins = token - vocabulary.loc_token_start
    return (bins >= 0) & (bins < NUM_LOC_TOKENS) & (vocabulary.loc_token_start >= 0)


def location_probability(
    choices: Float[Array, "*batch V"], vocabulary: TokenVocabulary
) -> Float[Array, "*batch 1024"]:
    """The softmax over the location tokens alone; what is forbidden has minus infinity.

    Uniform where all of them are forbidden.
    """
    start = vocabulary.loc_token_start
    logits = choices[..., start : start + NUM_LOC_TOKENS]
    none = jnp.all(jnp.isneginf(logits), axis=-1, keepdims=True)
    return jax.nn.softmax(jnp.where(none, 0.0, logits), axis=-1)


def location_quantiles(
    choices: Float[Array, "*batch V"], vocabulary: TokenVocabulary
) -> Int[Array, "*batch M"]:
    """The bins at which the distribution over locations reaches `LEVELS`; 0 if there are none.

    Args:
        choices: logits; minus infinity of what is forbidden.
    """
    if vocabulary.loc_token_start < 0:
        return jnp.zeros((*choices.shape[:-1], len(LEVELS)), jnp.int32)
    return quantile_bins(location_probability(choices, vocabulary), jnp.asarray(LEVELS))


def quantile_bins(
    probability: Float[Array, "*batch 1024"], levels: Float[Array, "*#batch M"]
) -> Int[Array, "*batch M"]:
    """The first bin at which so much of the probability is reached, for each level."""
    reached = jnp.cumsum(probability, axis=-1)
    # Of the total, which rounding may leave a little short of 1.
    below = reached[..., None, :] < levels[..., None] * reached[..., None, -1:]
    return jnp.sum(below, axis=-1, dtype=jnp.int32)


def smoothed_bins(probability: Float[Array, "*batch 1024"]) -> Int[Array, "*batch"]:
    """The allowed bin with the most probability around it."""
    width = int(4 * SMOOTHING)
    kernel = jnp.exp(-0.5 * jnp.square(jnp.arange(-width, width + 1) / SMOOTHING))
    flat = probability.reshape(-1, NUM_LOC_TOKENS)
    around = jax.vmap(lambda row: jnp.convolve(row, kernel, mode="same"))(flat)
    around = jnp.where(flat > 0, around, -1.0)
    return jnp.argmax(around, axis=-1).astype(jnp.int32).reshape(probability.shape[:-1])


def one_pass_bins(
    reading: BoxReading, probability: Float[Array, "*batch 1024"]
) -> Int[Array, "*batch"]:
    """The bin of each next coordinate, if it is one, with `smoothed` or `median`."""
    if reading == "smoothed":
        return smoothed_bins(probability)
    return quantile_bins(probability, jnp.full(1, 0.5))[..., 0]


def central_boxes(bins: Int[Array, "R n 4"]) -> Int[Array, " R"]:
    """The number of the box with the highest mean IoU to the others of its row.

    Args:
        bins: near corner, far corner.
    """
    edges = bins.astype(jnp.float32)
    overlap = boxes.iou(edges[..., :, None, :], edges[..., None, :, :], swapped="empty")
    return jnp.argmax(jnp.sum(overlap, axis=-1), axis=-1)


def expected_iou(bins: Int[np.ndarray, "4"], quantiles: Int[np.ndarray, "4 M"]) -> float:
    """The mean IoU of a box with the boxes that the model holds possible, each as likely as told.

    Args:
        bins: of the box, near corner, far corner.
        quantiles: of each coordinate, given those before it, at `LEVELS`. They are combined as if
            they were independent: a box that parts from the chosen one in its first coordinate
            has little in common with it whatever the others are.
    """
    likely = np.take_along_axis(quantiles, _combinations(), axis=1).T
    return float(boxes.iou(likely, bins, swapped="empty").mean())


def spreads(quantiles: Int[np.ndarray, "n M"]) -> Float[np.ndarray, " n"]:
    """The standard deviation of coordinates, in bins; of one that is certain, that within a bin."""
    return np.sqrt(np.var(quantiles, axis=-1) + 1 / 12)


@functools.cache
def _combinations() -> Int[np.ndarray, "4 combinations"]:
    """Numbers of levels, each as often, spread evenly over the four dimensions."""
    from scipy.stats import qmc

    points = qmc.Sobol(4, scramble=False).random(_COMBINATIONS)
    return (points.T * len(LEVELS)).astype(np.int64)
