"""A radiograph as a small file, for models that are asked over a network."""

import io

import numpy as np
import PIL.Image
from jaxtyping import UInt8

from cxrjax.images.decode import read_image
from cxrjax.images.files import AnyFile

# Longer side of the image that is sent. Larger ones cost more and are scaled down by most models.
LONG_SIDE = 1024
JPEG_QUALITY = 90


def encode_jpeg(path: AnyFile, long_side: int = LONG_SIDE, square: bool = False) -> bytes:
    """The image as a grey JPEG file, its longer side at most `long_side` pixels, in proportion.

    Args:
        square: pad it with black to a square first.

    Raises:
        ImageError: it cannot be decoded.
    """
    pixels = read_image(path)
    picture = PIL.Image.fromarray(pad_square(pixels) if square else pixels).convert("L")
    picture.thumbnail((long_side, long_side), PIL.Image.Resampling.LANCZOS)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()


def pad_square(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "side side 3"]:
    """The image centred in a black square; of an odd number of missing rows or columns the smaller
    half comes first."""
    height, width, _ = image.shape
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    return np.pad(image, ((top, side - height - top), (left, side - width - left), (0, 0)))
