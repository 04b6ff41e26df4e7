"""Frames: what the numbers of a convention count, and of what.

A frame maps boxes as fractions of the original image onto a grid, where whole numbers are what a
codec can write, and back. Several conventions share one, and differ in their grammar alone.
"""

import abc
import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int


@runtime_checkable
class BoxGeometry(Protocol):
    """The placement of an image in the model's input; `cxrjax.images.geometry.Geometry` is one."""

    def apply(self, boxes: Any) -> Any:
        """Boxes [n, 4], fractions of the original image -> fractions of the model's input."""

    def invert(self, boxes: Any) -> Any:
        """Boxes [n, 4], fractions of the model's input -> fractions of the original image."""


class Frame(abc.ABC):
    """Boxes xyxy to and from a grid whose smallest number is 0; `height` and `width` are pixels of
    the original image. Frames other than those of the input leave `geometry` aside."""

    @abc.abstractmethod
    def largest(self, height: int, width: int) -> Int[np.ndarray, "2"]:
        """The largest number on the grid along x and y."""

    @abc.abstractmethod
    def to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        """Fractions of the original image in grid steps, unrounded."""

    @abc.abstractmethod
    def from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        """The inverse of `to_grid`."""


class ImagePixels(Frame):
    """Corners of the original image's pixels, its far edges included."""

    def largest(self, height: int, width: int) -> Int[np.ndarray, "2"]:
        return np.array([width, height])

    def to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return boxes * np.array([width, height, width, height], np.float64)

    def from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return grid / np.array([width, height, width, height], np.float64)


class ImageSteps(Frame):
    """Equal steps over the whole image, however it is stretched, its far edges included."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def largest(self, height: int, width: int) -> Int[np.ndarray, "2"]:
        return np.full(2, self.steps)

    def to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return boxes * float(self.steps)

    def from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return grid / float(self.steps)


class PaddedSquareSteps(Frame):
    """Equal steps over the square that the image is padded to, centred; of an odd number of missing
    rows or columns the smaller half comes first."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def largest(self, height: int, width: int) -> Int[np.ndarray, "2"]:
        return np.full(2, self.steps)

    def to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        size, padding, side = _padded_square(height, width)
        return (boxes * size + padding) / side * self.steps

    def from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        size, padding, side = _padded_square(height, width)
        return (grid / self.steps * side - padding) / size


# Of the processors that made this rule (arXiv 2409.12191; preprocessor_config.json).
SMART_FACTOR, SMART_LEAST, SMART_MOST = 28, 56 * 56, 12_845_056


def smart_resize(
    height: float,
    width: float,
    most: int = SMART_MOST,
    least: int = SMART_LEAST,
    factor: int = SMART_FACTOR,
) -> tuple[int, int]:
    """Returns the size of an input whose sides are multiples of a number, its area within limits.

    Args:
        height, width: of the image, pixels.
        most, least: pixels of the input.
        factor: what both sides are multiples of.
    """
    sides = [max(factor, round(side / factor) * factor) for side in (height, width)]
    if sides[0] * sides[1] > most:
        shrink = math.sqrt(height * width / most)
        sides = [
            max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)
        ]
    elif sides[0] * sides[1] < least:
        grow = math.sqrt(least / (height * width))
        sides = [math.ceil(side * grow / factor) * factor for side in (height, width)]
    return sides[0], sides[1]


def square(height: int, width: int, side: int) -> tuple[int, int]:
    """Returns the size of an input that is always the same."""
    return side, side


def whole_tokens(height: int, width: int, tokens: int, unit: int) -> tuple[int, int]:
    """Returns the size of an input of whole tokens, as many as fit, of about the same aspect.

    Args:
        height, width: of the image, pixels.
        tokens: the most of an image.
        unit: pixels along a side of a token.
    """
    scale = math.sqrt(tokens * unit**2 / (height * width))
    down, across = (math.floor(scale * side / unit) for side in (height, width))
    # Of what is thinner than a token one row or column is left, so long as the image is thin.
    if down == 0:
        down, across = 1, min(width // height, tokens)
    elif across == 0:
        down, across = min(height // width, tokens), 1
    return down * unit, across * unit


def nearest_tiles(height: int, width: int, most: int = 12, tile: int = 448) -> tuple[int, int]:
    """Returns the size of an input of whole tiles, those whose aspect is nearest.

    Of grids of one aspect, the larger where the image has more than half of its pixels. Source:
    arXiv 2404.16821, section 3.1, and its published code.

    Args:
        height, width: of the image, pixels.
        most: tiles, without the one that shows the whole image.
        tile: pixels along a side.
    """
    best, least = (1, 1), math.inf
    for count in range(1, most + 1):
        for down in (n for n in range(1, count + 1) if count % n == 0):
            across = count // down
            off = abs(width / height - across / down)
            fills = off == least and 2 * height * width > tile**2 * count
            if off < least or fills:
                best, least = (down, across), off
    return best[0] * tile, best[1] * tile


def nearest_grid(height: int, width: int, grids: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The (height, width) that an image fills best, padded to it; of those alike the largest.

    Of one size, the highest: whatever their order, it is the same one.

    Args:
        height, width: of the image, pixels.
        grids: sizes of the model's input, pixels.
    """

    def fills(grid: tuple[int, int]) -> tuple[float, int, int]:
        down, across = grid[0] * width, grid[1] * height
        return round(min(down, across) / max(down, across), 9), grid[0] * grid[1], grid[0]

    return max(grids, key=fills)


class SmartResizedPixels(Frame):
    """Corners of the pixels of the input that `smart_resize` makes, its far edges included."""

    def __init__(self, most: int = SMART_MOST) -> None:
        self.most = most

    def largest(self, height: int, width: int) -> Int[np.ndarray, "2"]:
        return np.array(smart_resize(height, width, self.most)[::-1])

    def to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return boxes * np.tile(self.largest(height, width), 2).astype(np.float64)

    def from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return grid / np.tile(self.largest(height, width), 2).astype(np.float64)


class InputSteps(Frame):
    """Equal steps over the model's input, padding and all, its far edges included.

    Args:
        steps: along a side, or along the height.
        across: along the width, where that is another number.
    """

    def __init__(self, steps: int, across: int | None = None) -> None:
        self.steps = np.array([across or steps, steps])

    def largest(self, height: int, width: int) -> Int[np.ndarray, "2"]:
        return self.steps

    def to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        placed = boxes if geometry is None else geometry.apply(boxes)
        return np.asarray(placed, np.float64) * np.tile(self.steps, 2)

    def from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        placed = grid / np.tile(self.steps, 2).astype(np.float64)
        return placed if geometry is None else np.asarray(geometry.invert(placed), np.float64)


class InputPixels(Frame):
    """Corners of the pixels of the model's input, its far edges included.

    Args:
        grids: (height, width) of inputs, of which each image has its `nearest_grid`.
    """

    def __init__(self, *grids: tuple[int, int]) -> None:
        self.grids = grids

    def _of(self, height: int, width: int) -> InputSteps:
        return InputSteps(*nearest_grid(height, width, self.grids))

    def largest(self, height: int, width: int) -> Int[np.ndarray, "2"]:
        return self._of(height, width).steps

    def to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return self._of(height, width).to_grid(boxes, height, width, geometry)

    def from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        return self._of(height, width).from_grid(grid, height, width, geometry)


class InputBins(Frame):
    """Bins of the model's input, read as their middles: bin b of n holds b/n up to (b+1)/n."""

    def __init__(self, bins: int) -> None:
        self.bins = bins

    def largest(self, height: int, width: int) -> Int[np.ndarray, "2"]:
        return np.full(2, self.bins - 1)

    def to_grid(
        self, boxes: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        placed = boxes if geometry is None else geometry.apply(boxes)
        return np.asarray(placed, np.float64) * self.bins - 0.5

    def from_grid(
        self, grid: np.ndarray, height: int, width: int, geometry: BoxGeometry | None
    ) -> Float[np.ndarray, "n 4"]:
        boxes = (grid + 0.5) / self.bins
        return boxes if geometry is None else geometry.invert(boxes)


def _padded_square(
    height: int, width: int
) -> tuple[Float[np.ndarray, "4"], Float[np.ndarray, "4"], int]:
    """The image's size and its offset in the padded square, for xyxy; the side. All in pixels."""
    side = max(height, width)
    left, top = (side - width) // 2, (side - height) // 2
    size = np.array([width, height, width, height], np.float64)
    return size, np.array([left, top, left, top], np.float64), side
