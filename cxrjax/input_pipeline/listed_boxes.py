"""Answers that open with a list of boxes, longer than there are, in which noise is marked.

    <box> <box> no <box> no Yes, Nodule/Mass at.

Pix2Seq's sequence augmentation (arXiv 2109.10852, section 2.3), of an answer about one finding: a
model that ends its list one box early never says how likely a further one was. Here lists are of
`LISTED` boxes, whatever is there: true ones, then noise. Where noise lies is not learned (in
`multitask_loss` any location is as good there), that a box stands there and is noise is; so a model
goes on with boxes that it believes in less, and the probability of a `no` behind each says how
much. Which ones count decides `predict --listed_above`. The words stand behind the list: before it
they would decide how long it is.
"""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import get_codec
from cxrjax.codecs.tokens import NUM_BINS, PaliGemma

# Prompt formats (prompts.PROMPTS) whose answers are such. Here, since training needs their names on
# machines that lack what records need.
LISTED_FORMATS = frozenset({"vqa_listed"})
# Boxes of a list at least; with as many true ones there is no noise.
LISTED = 3
NOISE = "no"
_BOX = r"(?:<loc[0-9]{4}>){4}"
_ANY_BOX = re.compile(_BOX)
_BOXES = re.compile(rf"\s*{_BOX}(?:(?:\s|,|;|\band\b){{1,9}}{_BOX})*")
_IN_LIST = re.compile(rf"\s*(?P<box>{_BOX})(?P<mark> {NOISE}\b)?")
# Half of the noise beside true boxes is one of them, moved by at most this share of its sides,
# which are multiplied by at most e to this. The other half lies anywhere.
_MOVED, _SCALED = 1.0, 0.5
_SIDES = (0.05, 0.5)  # of boxes anywhere, shares of the image's


def list_boxes(text: str, seed: Sequence[int]) -> str:
    """The answer with its boxes before its words, and noise behind them up to `LISTED`.

    Args:
        text: boxes in location tokens.
        seed: of the noise.
    """
    codec = get_codec(PaliGemma.name)
    true = codec.decode(text, 1, 1)[0]
    rng = np.random.default_rng(list(seed))
    drawn = [_noise(rng, true) for _ in range(LISTED - len(true))]
    noise = (f"{codec.encode(box[None], 1, 1)} {NOISE}" for box in drawn)
    return " ".join([*_ANY_BOX.findall(text), *noise, _BOXES.sub("", text).strip()])


def are_real(text: str) -> list[bool]:
    """Returns for each box of an answer, in order, whether it carries no noise mark."""
    return [match["mark"] is None for match in _IN_LIST.finditer(text)]


def list_of(text: str) -> list[re.Match[str]]:
    """The boxes, in order, with groups `box` and, of noise, `mark`."""
    return list(_IN_LIST.finditer(text))


def only(text: str, counts: Sequence[bool]) -> str:
    """The answer without marks, and without the boxes that do not count.

    Args:
        counts: of each box, in order.
    """
    left = iter(counts)
    return _IN_LIST.sub(lambda m: f" {m['box']}" if next(left) else "", text).strip()


def _noise(rng: np.random.Generator, true: Float[np.ndarray, "n 4"]) -> Float[np.ndarray, "4"]:
    """A box that is none, xyxy, fractions of the model's input."""
    near, chosen = rng.random() < 0.5, rng.random()
    middle, draws = rng.random(2), rng.uniform(-1, 1, 4)
    if near and len(true):
        box = true[int(chosen * len(true))]
        sides = box[2:] - box[:2]
        middle = (box[:2] + box[2:]) / 2 + _MOVED * sides * draws[:2]
        sides = sides * np.exp(_SCALED * draws[2:])
    else:
        low, high = np.log(_SIDES)
        sides = np.exp((low + high) / 2 + (high - low) / 2 * draws[2:])
    corners = np.clip([middle - sides / 2, middle + sides / 2], 0, 1)
    # A true box at the border may have been moved out of the picture.
    least = 2 / NUM_BINS
    start = np.minimum(corners[0], 1 - least)
    return np.concatenate([start, np.maximum(corners[1], start + least)])
