"""Changes of training images at every visit; boxes move along.

The change of an image is a function of (seed, its position in the run's order) alone: the same for
any number of workers and hosts, and after a resume. Nothing is mirrored (left and right would
change places). A rotated box is that of the ellipse in it, since one around its corners would be no
longer tight. What comes into the image from beyond its border is black, as collimation is:
repeated border pixels were looked at, and smear letters and tubes into bars that no radiograph has.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from pydantic.dataclasses import dataclass

from cxrjax.errors import UserError
from cxrjax.images.geometry import IDENTITY, Geometry, resize_window
from cxrjax.settings import STRICT, NotNegativeFloat, Share


@dataclass(frozen=True, config=STRICT)
class AugmentConfig:
    """The group `data.augment`: how training images are changed at every visit; 0: not at all."""

    # Sides are multiplied by a factor from 1 / (1 + zoom) to 1 + zoom, even in its logarithm.
    zoom: NotNegativeFloat = 0.0
    # Width is multiplied, and height divided, by a factor from 1 / (1 + stretch) to 1 + stretch.
    stretch: NotNegativeFloat = 0.0
    shift: Share = 0.0  # along each axis, by at most this share of the side
    # Degrees, at most, either way; of an image that is not square in fractions of its sides.
    rotate: NotNegativeFloat = 0.0
    # One rectangle becomes grey, with sides of at most this share of the picture's.
    erase: Share = 0.0
    # Grey values v of 0..1 become v^g, g from exp(-gamma) to exp(gamma), even in its logarithm.
    gamma: NotNegativeFloat = 0.0
    # Standard deviation of noise in grey values of 0..1 is drawn from 0 to this.
    noise: Share = 0.0
    # A question is left out of a visit that leaves less than this share of one of its boxes' area
    # to be seen (counted as `out_of_picture`); other boxes are clipped.
    min_visibility: Share = 0.5

    def __bool__(self) -> bool:
        of_places = self.zoom or self.stretch or self.shift or self.rotate or self.erase
        return bool(of_places or self.gamma or self.noise)


class OutOfPictureError(UserError):
    """A change of the image leaves too little of a question's box in the image."""


class ImageChange(NamedTuple):
    """One change of an image."""

    geometry: Geometry  # fractions of the original image -> of the changed one, which has its size
    gamma: float  # exponent of grey values in 0..1
    min_visibility: float  # of a box's area, the share that must stay
    noise: float = 0.0  # standard deviation, in grey values of 0..1
    noise_seed: tuple[int, ...] = (0,)  # of the noise
    # By which the image is turned about its middle after that, in radians, clockwise.
    angle: float = 0.0
    # Xyxy of what is grey then, fractions of the image; empty: nothing.
    erased: tuple[float, ...] = ()

    def of_boxes(self, boxes: Float[np.ndarray, "n 4"]) -> Float[np.ndarray, "n 4"]:
        """Boxes xyxy, fractions of the original image, moved along and clipped to the image.

        Raises:
            OutOfPictureError: too little of one is left.
        """
        moved = _turned(self.geometry.apply(boxes), self.angle)
        clipped = np.clip(moved, 0.0, 1.0)
        whole, left = (np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (moved, clipped))
        if self.erased:
            low = np.maximum(clipped[:, :2], self.erased[:2])
            high = np.minimum(clipped[:, 2:], self.erased[2:])
            left = left - np.prod(np.maximum(high - low, 0), axis=1)
        lost = (left <= 0) | (left < self.min_visibility * whole)
        if lost.any():
            row = int(np.argmax(lost))
            raise OutOfPictureError(
                f"box {boxes[row].round(3).tolist()}: {left[row] / whole[row]:.0%} of it is in the "
                "changed picture"
            )
        return clipped

    def of_pixels(
        self, image: UInt8[np.ndarray, "h w *channels"], placed: Geometry = IDENTITY
    ) -> UInt8[np.ndarray, "h w *channels"]:
        """The changed pixels of an input in which the image is placed so.

        The image changes within its place; a letterbox's margins stay.
        """
        height, width = image.shape[:2]
        place = placed.apply(np.array([0.0, 0.0, 1.0, 1.0]))
        left, top, right, bottom = np.rint(place * [width, height, width, height]).astype(int)
        picture = image[top:bottom, left:right]
        if self.geometry != IDENTITY:
            picture = resize_window(picture, self.geometry.invert(np.array([0.0, 0.0, 1.0, 1.0])))
        if self.angle:
            picture = _turned_picture(picture, self.angle)
        if self.erased:
            rows, columns = picture.shape[:2]
            x0, y0, x1, y1 = np.rint(np.multiply(self.erased, [columns, rows] * 2)).astype(int)
            picture = picture.copy()
            picture[y0:y1, x0:x1] = 127
        if self.gamma != 1:
            picture = (255 * (np.arange(256) / 255) ** self.gamma).round().astype(np.uint8)[picture]
        if self.noise:
            # One for all channels: a grey image stays grey.
            drawn = np.random.default_rng(self.noise_seed).standard_normal(picture.shape[:2])
            drawn = drawn.reshape(*drawn.shape, *[1] * (picture.ndim - 2)) * 255 * self.noise
            picture = np.clip(np.rint(picture + drawn), 0, 255).astype(np.uint8)
        changed = image.copy()
        changed[top:bottom, left:right] = picture
        return changed


def _turned(boxes: Float[np.ndarray, "n 4"], angle: float) -> Float[np.ndarray, "n 4"]:
    """Boxes of the ellipses in boxes, turned about the picture's middle."""
    if not angle:
        return boxes
    cosine, sine = math.cos(angle), math.sin(angle)
    half = (boxes[:, 2:] - boxes[:, :2]) / 2
    away = (boxes[:, 2:] + boxes[:, :2]) / 2 - 0.5
    middle = 0.5 + away @ np.array([[cosine, sine], [-sine, cosine]])
    half = np.sqrt(half**2 @ np.array([[cosine**2, sine**2], [sine**2, cosine**2]]))
    return np.concatenate([middle - half, middle + half], axis=1)


def _turned_picture(
    picture: UInt8[np.ndarray, "h w *channels"], angle: float
) -> UInt8[np.ndarray, "h w *channels"]:
    """Rotates an image about its centre; corners are filled with black."""
    from PIL import Image

    height, width = picture.shape[:2]
    cosine, sine = math.cos(angle), math.sin(angle)
    # From a place in the turned image to where it was, in pixels.
    across, down = sine * width / height, -sine * height / width
    x = width / 2 * (1 - cosine) - across * height / 2
    y = height / 2 * (1 - cosine) - down * width / 2
    back = (cosine, across, x, down, cosine, y)
    turned = Image.fromarray(picture).transform(
        (width, height), Image.Transform.AFFINE, back, Image.Resampling.BICUBIC
    )
    return np.array(turned)


def draw_change(config: AugmentConfig, seed: int, position: int) -> ImageChange | None:
    """The change of the image at this position of the run's order; None: no change is wanted."""
    if not config:
        return None
    rng = np.random.default_rng([seed, position])
    zoom, *shift, gamma = 2 * rng.random(4) - 1
    stretch, noise = 2 * rng.random() - 1, rng.random()
    turn, *erased = 2 * rng.random() - 1, *rng.random(4)
    scale, stretch = (1 + config.zoom) ** zoom, (1 + config.stretch) ** stretch
    scales = (scale * stretch, scale / stretch)
    # About the middle, which then moves.
    x, y = (
        0.5 - 0.5 * each + config.shift * along for each, along in zip(scales, shift, strict=True)
    )
    return ImageChange(
        Geometry(*scales, x, y),
        math.exp(config.gamma * gamma),
        config.min_visibility,
        config.noise * noise,
        (seed, position, 1),
        math.radians(config.rotate * turn),
        _drawn_rectangle(config.erase, erased) if config.erase else (),
    )


def _drawn_rectangle(most: float, drawn: list[float]) -> tuple[float, ...]:
    """xyxy in fractions, with sides of at most `most`, all of it in the image."""
    sides = most * drawn[0], most * drawn[1]
    low = (1 - sides[0]) * drawn[2], (1 - sides[1]) * drawn[3]
    return (*low, low[0] + sides[0], low[1] + sides[1])
