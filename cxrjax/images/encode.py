"""A radiograph as a small file, for models that are asked over a network."""

import io

import PIL.Image

from cxrjax.images.decode import read_image
from cxrjax.images.file import AnyFile

# Longer side of the picture that is sent. Larger ones cost more and are scaled down by most models.
LONG_SIDE = 1024
JPEG_QUALITY = 90


def encode_jpeg(path: AnyFile, long_side: int = LONG_SIDE) -> bytes:
    """The image as a grey JPEG file, its longer side at most `long_side` pixels, in proportion.

    Raises:
        ImageError: it cannot be decoded.
    """
    picture = PIL.Image.fromarray(read_image(path)).convert("L")
    picture.thumbnail((long_side, long_side), PIL.Image.Resampling.LANCZOS)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()
