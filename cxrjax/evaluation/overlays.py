"""Boxes over radiographs: one set of colours for the page and for TensorBoard."""

import base64
import io
from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageColor, ImageDraw

# VinDr-CXR-VQA, Fig. 2: truth green, pretrained yellow, fine-tuned red.
TRUTH, BASE, TUNED = "truth", "base", "tuned"
COLOURS = {TRUTH: "#2ecc71", BASE: "#ffd60a", TUNED: "#ff4d4f"}
# For further systems, told apart from the three above and from each other on grey.
_OTHERS = ("#4cc9f0", "#f72585", "#b388ff", "#ff9f1c", "#a0e426", "#ffffff")


def system_colours(systems: Iterable[str]) -> dict[str, str]:
    """A colour for every system, '#rrggbb'; `base` and `tuned` keep the paper's.

    Colours repeat only after nine systems. Without a `base` or a `tuned`, their colours go to the
    first systems of another name, so that a page of two systems always looks like Fig. 2.
    """
    names = list(systems)
    free = [COLOURS[name] for name in (BASE, TUNED) if name not in names] + list(_OTHERS)
    others = [name for name in names if name not in COLOURS]
    return {
        name: COLOURS[name] if name in COLOURS else free[others.index(name) % len(free)]
        for name in names
    }


def overlay(
    image: UInt8[np.ndarray, "H W"] | UInt8[np.ndarray, "H W 3"],
    boxes_by_colour: Mapping[str, Float[np.ndarray, "n 4"]],
) -> UInt8[np.ndarray, "H W 3"]:
    """A copy of the image with the outlines of boxes drawn on it.

    Args:
        image: grey or RGB pixels; left as it is.
        boxes_by_colour: colour ('#rrggbb' or a CSS name) -> boxes as fractions of the image, xyxy.
            Later colours are drawn over earlier ones. A box beyond the border is cut off there.

    Returns:
        RGB pixels of the same height and width.

    Raises:
        ValueError: the colour is unknown, or the boxes are not [n, 4].
    """
    canvas = Image.fromarray(image).convert("RGB")
    draw = ImageDraw.Draw(canvas)
    width, height = canvas.size
    # About two pixels on a 300-pixel thumbnail, and never thinner than one.
    line = max(1, round(min(width, height) / 160))
    for colour, boxes in boxes_by_colour.items():
        rgb = ImageColor.getrgb(colour)
        array = np.asarray(boxes, dtype=np.float64)
        if array.size and (array.ndim != 2 or array.shape[1] != 4):
            raise ValueError(f"boxes of {colour} have the shape {array.shape}: expected (n, 4)")
        for x0, y0, x1, y1 in array.reshape(-1, 4):
            left, right = np.clip(np.sort([x0, x1]) * width, 0, width - 1).round().astype(int)
            top, bottom = np.clip(np.sort([y0, y1]) * height, 0, height - 1).round().astype(int)
            draw.rectangle((left, top, right, bottom), outline=rgb, width=line)
    return np.array(canvas)


def jpeg(
    image: UInt8[np.ndarray, "H W"] | UInt8[np.ndarray, "H W 3"],
    long_side: int = 512,
    quality: int = 82,
) -> bytes:
    """The image as a JPEG file, shrunk to `long_side` pixels if it is larger."""
    picture = Image.fromarray(image)
    if image.ndim == 3 and (image == image[..., :1]).all():
        picture = picture.convert("L")  # a radiograph: a third of the pixels to compress
    picture.thumbnail((long_side, long_side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()


def jpeg_data_uri(
    image: UInt8[np.ndarray, "H W"] | UInt8[np.ndarray, "H W 3"], long_side: int = 512
) -> str:
    """Encodes an image as JPEG in a `data:` address."""
    return data_uri(jpeg(image, long_side))


def data_uri(content: bytes) -> str:
    """A JPEG file as a `data:` address."""
    return "data:image/jpeg;base64," + base64.b64encode(content).decode("ascii")
