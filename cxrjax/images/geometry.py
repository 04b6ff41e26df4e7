"""Moves boxes with an image that is resized, letterboxed or cropped, and back again.

A box is fractions of an image. A `Geometry` maps fractions of the original to fractions of what
the model sees; the same object maps the model's boxes back, so that no other module does
arithmetic on coordinates.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

# NumPy or JAX, whichever goes in comes out; JAX is not imported for users of NumPy.
Boxes = Float[Any, "*batch 4"]

# Antialiased (the filter widens with the reduction). 2.0 lets Pillow average whole blocks first as
# long as twice the target is left: half the time at 1024 -> 224, and no pixel differs by more than
# a few of 256 levels. Neither shifts the image.
_REDUCING_GAP = 2.0


@dataclasses.dataclass(frozen=True)
class Geometry:
    """An axis-parallel scaling and shift: `output = original * scale + offset`, in fractions.

    Scales are positive: nothing here mirrors an image, because a mirrored chest has its heart on
    the wrong side and makes every 'left' and 'right' in the text false.
    """

    scale_x: float = 1.0
    scale_y: float = 1.0
    offset_x: float = 0.0
    offset_y: float = 0.0

    def __post_init__(self) -> None:
        if not (self.scale_x > 0 and self.scale_y > 0):
            raise ValueError(f"scales {self.scale_x}, {self.scale_y}: expected both above 0")

    def apply(self, boxes: Boxes) -> Boxes:
        """Fractions of the original -> fractions of the output; [..., 4] xyxy, NumPy or JAX."""
        return boxes * self._scale() + self._offset()

    def invert(self, boxes: Boxes) -> Boxes:
        """Fractions of the output -> fractions of the original; [..., 4] xyxy, NumPy or JAX.

        A box in the padding of a letterbox comes back outside [0, 1]; it isn't clipped here, so
        that whoever reads a model's text can tell such a box from a good one.
        """
        return (boxes - self._offset()) / self._scale()

    # NumPy arrays of float32: they leave float32 boxes of either kind float32.
    def _scale(self) -> Float[np.ndarray, "4"]:
        return np.array([self.scale_x, self.scale_y] * 2, np.float32)

    def _offset(self) -> Float[np.ndarray, "4"]:
        return np.array([self.offset_x, self.offset_y] * 2, np.float32)


IDENTITY = Geometry()


def resize(
    image: UInt8[np.ndarray, "h w *channels"], height: int, width: int
) -> tuple[UInt8[np.ndarray, "height width *channels"], Geometry]:
    """The whole image at another size, antialiased; the aspect ratio is not kept.

    The geometry is always `IDENTITY`: squeezed or not, every fraction stays what it was.
    """
    from PIL import Image  # here, since those who map boxes alone may be without Pillow

    bicubic = Image.Resampling.BICUBIC
    resized = Image.fromarray(image).resize((width, height), bicubic, reducing_gap=_REDUCING_GAP)
    return np.array(resized), IDENTITY


def resize_window(
    image: UInt8[np.ndarray, "height width *channels"], window: Float[np.ndarray, "4"]
) -> UInt8[np.ndarray, "height width *channels"]:
    """Crops an image to a window and resizes it to the image's size; black beyond the image.

    Args:
        window: xyxy, fractions of the image; may reach beyond it.
    """
    from PIL import Image

    height, width = image.shape[:2]
    left, top, right, bottom = window * [width, height, width, height]
    pad = max(0, math.ceil(-min(left, top, width - right, height - bottom)))
    if pad:
        margins = [(pad, pad)] * 2 + [(0, 0)] * (image.ndim - 2)
        image = np.pad(image, margins)
    box = (left + pad, top + pad, right + pad, bottom + pad)
    bicubic = Image.Resampling.BICUBIC
    return np.array(Image.fromarray(image).resize((width, height), bicubic, box=box))


def is_resize(size: tuple[int, int], original: tuple[int, int]) -> bool:
    """Returns whether an image of this (height, width) can be the original resized in proportion.

    Each side may be off by less than a pixel, as rounding leaves it. Boxes as fractions of the
    original then fit the copy; they would not fit one that was cropped, padded or squeezed.
    """
    sides = zip(size, original, strict=True)
    scales = [((side - 1) / whole, (side + 1) / whole) for side, whole in sides]
    (least_h, most_h), (least_w, most_w) = scales
    return max(least_h, least_w) < min(most_h, most_w)


def letterbox_geometry(height: int, width: int, out_height: int, out_width: int) -> Geometry:
    """The geometry of `letterbox` for an image of that height and width, without pixels.

    The same for an image and for any exact reduction of it (half the height and half the width).
    """
    new_height, new_width = _fit(height, width, out_height, out_width)
    top, left = (out_height - new_height) // 2, (out_width - new_width) // 2
    return Geometry(
        new_width / out_width, new_height / out_height, left / out_width, top / out_height
    )


def letterbox(
    image: UInt8[np.ndarray, "h w *channels"], out_height: int, out_width: int
) -> tuple[UInt8[np.ndarray, "out_height out_width *channels"], Geometry]:
    """The image as large as it fits with its aspect ratio kept, centred on black, as air is."""
    height, width = image.shape[:2]
    new_height, new_width = _fit(height, width, out_height, out_width)
    top, left = (out_height - new_height) // 2, (out_width - new_width) // 2
    out = np.zeros((out_height, out_width, *image.shape[2:]), np.uint8)
    out[top : top + new_height, left : left + new_width] = resize(image, new_height, new_width)[0]
    return out, letterbox_geometry(height, width, out_height, out_width)


def center_crop_geometry(height: int, width: int) -> Geometry:
    """The geometry of cutting the largest square out of an image's middle, without pixels.

    As MAIRA-2's processor does; of an odd number of rows or columns left over the smaller half
    goes first.
    """
    side = min(height, width)
    left, top = (width - side) // 2, (height - side) // 2
    return Geometry(width / side, height / side, -left / side, -top / side)


def _fit(height: int, width: int, out_height: int, out_width: int) -> tuple[int, int]:
    """Height and width, whole pixels, of the largest copy that fits: one side fills the output.

    Integers throughout: floats would round (h, w) and (h/2, w/2) differently once in a while.
    """
    if width * out_height >= height * out_width:
        return max(1, (2 * height * out_width + width) // (2 * width)), out_width
    return out_height, max(1, (2 * width * out_height + height) // (2 * height))
