"""Resize rules of the model families, and the coordinate frame that each family's boxes use.

A processor stretches, pads or snaps an image to its model's input, and the model's numbers count
pixels of that input, steps of the padded square, or steps of the image. A `ResizeRule` has both
sides of one family, so that a box in pixels of the original goes to what the model is told, and
back, at any size and aspect; nothing else need know which family resizes how.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import frames
from cxrjax.codecs.medgemma import Qwen25VlInput
from cxrjax.family_tables import family_tables
from cxrjax.images.geometry import IDENTITY, Geometry, letterbox_geometry


@dataclasses.dataclass(frozen=True)
class ResizeRule:
    """One family's way from pixels of the original to what its model is told, and back."""

    codec: str  # by which the family writes boxes (`cxrjax.codecs`); it counts in `frame`
    # `resize` stretches the image over the input, `letterbox` pads it.
    placing: Literal["resize", "letterbox"]
    frame: frames.Frame  # what the numbers count
    # (height, width) of the original -> (height, width) of the input.
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

    def on_grids(self, *grids: tuple[int, int]) -> "ResizeRule":
        """Returns the rule on a run's grids, as a model is trained and asked here.

        The image is padded to the nearest, so that nothing is stretched.

        Args:
            grids: (height, width) of inputs, pixels.
        """
        codec, frame = self.codec, self.frame
        if isinstance(frame, frames.SmartResizedPixels):  # whose numbers are then the grid's pixels
            pixels = Qwen25VlInput(*grids)
            codec, frame = pixels.name, pixels.frame
        of_grids = functools.partial(frames.nearest_grid, grids=grids)
        return ResizeRule(codec, "letterbox", frame, of_grids)


def padded_to(grids: Sequence[tuple[int, int]], image_hw: tuple[int, int]) -> Geometry | None:
    """The place of an image in the nearest of a model's inputs; None, stretched, without one."""
    return letterbox_geometry(*image_hw, *frames.nearest_grid(*image_hw, grids)) if grids else None


def _rule(entry: Mapping[str, Any]) -> ResizeRule:
    """Returns the rule that a family's table states: frame and size by name and numbers."""
    kind, *steps = entry["frame"]
    name, *sizes = entry["input_size"]
    frame: frames.Frame = getattr(frames, kind)(*steps)
    size_of = functools.partial(_placed, getattr(frames, name), tuple(sizes))
    rule = ResizeRule(entry["codec"], entry["placing"], frame, size_of)
    grids = entry.get("grids", [])
    return rule.on_grids(*((height, width) for height, width in grids)) if grids else rule


def _placed(
    resize: Callable[..., tuple[int, int]], sizes: tuple[int, ...], height: int, width: int
) -> tuple[int, int]:
    return resize(height, width, *sizes)


# By family, at the size that it is published with.
RESIZE_RULES: dict[str, ResizeRule] = {
    name: _rule(entry) for name, entry in family_tables("resize").items()
}
