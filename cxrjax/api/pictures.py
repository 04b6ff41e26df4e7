"""Images as people have them in notebooks, for whoever reads files."""

import io
import os
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cxrjax.errors import UserError
from cxrjax.images.files import AnyFile, HeldFile
from cxrjax.paths import to_path

if TYPE_CHECKING:
    from PIL.Image import Image

# What `ask` takes: a file, its bytes, pixels [h, w] or [h, w, 3], or an image of Pillow.
Picture: TypeAlias = "str | os.PathLike[str] | bytes | np.ndarray | Image"


def as_file(image: Picture) -> AnyFile:
    """An image as readers of files take it.

    Raises:
        UserError: it is none of those that `Model.ask` names.
    """
    if isinstance(image, str | os.PathLike):
        return to_path(image)
    if isinstance(image, bytes | bytearray | memoryview):
        return HeldFile("image", bytes(image))
    from PIL import Image

    if isinstance(image, list | tuple):
        raise UserError(f"a {type(image).__name__} of images: ask about one at a time")
    if not isinstance(image, Image.Image):
        pixels = np.asarray(image)
        grey = pixels.ndim == 2 and pixels.dtype in (np.uint8, np.uint16)
        colour = pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.dtype == np.uint8
        if not grey and not colour:
            raise UserError(
                f"an image of {pixels.dtype} and shape {list(pixels.shape)}: expected a file, its "
                "bytes, an image of Pillow, or pixels of uint8 (grey or RGB) or uint16 (grey)"
            )
        image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return HeldFile("image", buffer.getvalue())
