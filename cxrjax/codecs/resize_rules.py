"""Resize rules of the model families, and the coordinate frame that each family's boxes use.

A processor stretches, pads or snaps an image to its model's input, and the model's numbers count
pixels of that input, steps of the padded square, or steps of the image. A `ResizeRule` has both
sides of one family, so that a box in pixels of the original goes to what the model is told, and
back, at any size and aspect; nothing else need know which family resizes how.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import frames
from cxrjax.codecs.medgemma import Qwen25VlInput
from cxrjax.images.geometry import IDENTITY, Geometry, letterbox_geometry


@dataclasses.dataclass(frozen=True)
class ResizeRule:
    """One family's way from pixels of the original to what its model is told, and back.

    Attributes:
        codec: by which the family writes boxes (`cxrjax.codecs`); it counts in `frame`.
        placing: `resize` stretches the image over the input, `letterbox` pads it.
        frame: what the numbers count.
        size_of: (height, width) of the original -> (height, width) of the input.
    """

    codec: str
    placing: Literal["resize", "letterbox"]
    frame: frames.Frame
    size_of: Callable[[int, int], tuple[int, int]]

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the model's input for an original of this size."""
        return self.size_of(height, width)

    def geometry(self, height: int, width: int) -> Geometry:
        """The place of the original in the input."""
        if self.placing == "resize":
            return IDENTITY
        return letterbox_geometry(height, width, *self.size_of(height, width))

    def told(
        self, boxes: Float[np.ndarray, "n 4"], height: int, width: int
    ) -> Float[np.ndarray, "n 4"]:
        """Boxes xyxy in pixels of the original as the model's numbers, x first, unrounded."""
        size = np.tile(np.array([width, height], np.float64), 2)
        return self.frame.to_grid(boxes / size, height, width, self.geometry(height, width))

    def original(
        self, numbers: Float[np.ndarray, "n 4"], height: int, width: int
    ) -> Float[np.ndarray, "n 4"]:
        """The inverse of `told`: pixels of the original."""
        size = np.tile(np.array([width, height], np.float64), 2)
        return self.frame.from_grid(numbers, height, width, self.geometry(height, width)) * size

    def step(self, height: int, width: int) -> Float[np.ndarray, "4"]:
        """Pixels of the original that one step of the numbers is, along x, y, x, y."""
        ends = self.original(np.array([[0.0] * 4, [1.0] * 4]), height, width)
        return ends[1] - ends[0]


def _square(side: int) -> Callable[[int, int], tuple[int, int]]:
    return lambda height, width: (side, side)


def _snapped_qwen3(height: int, width: int) -> tuple[int, int]:
    return frames.smart_resize(
        height, width, frames.QWEN3_MOST, frames.QWEN3_LEAST, frames.QWEN3_FACTOR
    )


def on_grids(family: Literal["qwen2.5_vl", "qwen3_vl"], *grids: tuple[int, int]) -> ResizeRule:
    """Qwen-VL's rule on a run's grids, as it is trained and asked here.

    The image is padded to the nearest, so that nothing is stretched.

    Args:
        grids: (height, width) of inputs, pixels.
    """

    def size_of(height: int, width: int) -> tuple[int, int]:
        return frames.nearest_grid(height, width, grids)

    if family == "qwen3_vl":
        return ResizeRule("qwen3_vl", "letterbox", frames.InputSteps(1000), size_of)
    pixels = Qwen25VlInput(*grids)
    return ResizeRule(pixels.name, "letterbox", pixels.frame, size_of)


def padded_to(grids: Sequence[tuple[int, int]], image_hw: tuple[int, int]) -> Geometry | None:
    """The place of an image in the nearest of a model's inputs; None, stretched, without one."""
    return letterbox_geometry(*image_hw, *frames.nearest_grid(*image_hw, grids)) if grids else None


# By family, at the size that it is published with. Sources: the preprocessor_config.json of each,
# and for the numbers the module of its codec.
RESIZE_RULES: dict[str, ResizeRule] = {
    "paligemma": ResizeRule("paligemma", "resize", frames.InputBins(1024), _square(224)),
    # Its processor would stretch the image; its makers' notebooks pad it first.
    "medgemma": ResizeRule(
        "medgemma_json", "letterbox", frames.PaddedSquareSteps(1000), _square(896)
    ),
    # Within 280 tokens; its makers' pages speak of thousandths of the image (`box_2d`).
    "gemma4": ResizeRule("gemini_json", "resize", frames.ImageSteps(1000), frames.gemma4_resize),
    # On one grid a run, as it is trained and asked here: padded to a square, of which the numbers
    # are then thousandths, since the padding is all that the model knows of the image's edges.
    "gemma4_768": ResizeRule(
        "medgemma_json", "letterbox", frames.PaddedSquareSteps(1000), _square(768)
    ),
    # `image_aspect_ratio: pad`; hundredths of the square.
    "llava": ResizeRule("llava", "letterbox", frames.PaddedSquareSteps(100), _square(336)),
    # One tile, as its processor makes where it may make no more.
    "internvl": ResizeRule("internvl", "resize", frames.ImageSteps(1000), _square(448)),
    "internvl_tiles": ResizeRule(
        "internvl", "resize", frames.ImageSteps(1000), frames.internvl_tiles
    ),
    "qwen2_vl": ResizeRule("qwen2_vl", "resize", frames.ImageSteps(1000), frames.smart_resize),
    "qwen2.5_vl": ResizeRule(
        "qwen2.5_vl", "resize", frames.SmartResizedPixels(), frames.smart_resize
    ),
    "qwen2.5_vl_448": on_grids("qwen2.5_vl", (448, 448)),
    "qwen3_vl": ResizeRule("qwen3_vl", "resize", frames.InputSteps(1000), _snapped_qwen3),
    "qwen3_vl_512": on_grids("qwen3_vl", (512, 512)),
}
