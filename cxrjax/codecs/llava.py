"""LLaVA-1.5's boxes: a list of four fractions of the padded square, with two decimals.

    [0.12, 0.30, 0.55, 0.71]    x_min y_min x_max y_max

Written as RadVLM's are, and of another frame: LLaVA-1.5 pads images to a square, centred, before
it looks, and was tuned on boxes of that square (its public training data and its issue tracker; the
paper gives the form alone, arXiv 2310.03744). The padding belongs to the convention, so `geometry`
changes nothing.
"""

from typing import ClassVar

import numpy as np
from jaxtyping import Float

from cxrjax.codecs.base import Geometry
from cxrjax.codecs.medgemma_json import padded_square
from cxrjax.codecs.radvlm import RadVlm


class Llava(RadVlm):
    """The `llava` codec. The grid is hundredths of the padded square."""

    name: ClassVar[str] = "llava"

    def _to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: Geometry | None
    ) -> Float[np.ndarray, "n 4"]:
        size, padding, side = padded_square(height, width)
        return super()._to_grid((boxes * size + padding) / side, height, width, geometry)

    def _from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: Geometry | None
    ) -> Float[np.ndarray, "n 4"]:
        size, padding, side = padded_square(height, width)
        return (super()._from_grid(grid, height, width, geometry) * side - padding) / size
