"""The error of this package, and the size above which it refuses to decode."""

from cxrjax.errors import UserError
from cxrjax.images.file import AnyFile

# 8192 x 8192. The largest radiography detectors give about 20 million pixels; a file that claims
# more than this is damaged or made to exhaust memory (the decoded array would exceed 200 MB).
MAX_PIXELS = 8192 * 8192


class ImageError(UserError):
    """An image file cannot be used: the message names the path, what was found and what to do."""


def check_size(path: AnyFile, height: int, width: int) -> None:
    """Refuses a size that no radiograph has, before any pixel is decoded.

    Raises:
        ImageError: a side is below 1, or the image has more than `MAX_PIXELS` pixels.
    """
    if height < 1 or width < 1:
        raise ImageError(
            f"{path}: header gives {height} rows and {width} columns; expected at least one of "
            "each: the file is damaged, fetch it again"
        )
    if height * width > MAX_PIXELS:
        raise ImageError(
            f"{path}: {height} x {width} pixels, more than the {MAX_PIXELS} that are decoded: "
            "scale the image down (and its boxes with it), or check that it is a radiograph"
        )


def one_line(error: Exception) -> str:
    """What another library's exception says, in one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
