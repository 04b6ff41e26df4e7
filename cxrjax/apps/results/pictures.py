"""The page's images: small ones in it or in a folder beside it, and those with all pixels there.

An image with all its pixels is a file that a browser loads when somebody looks closely; of a page
that is sent without its folder the small one is shown in its place.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import UInt8

from cxrjax.evaluation.overlays import data_uri, jpeg
from cxrjax.images.decode import read_image
from cxrjax.paths import remove_tree
from cxrjax.progress import progress_bar, waiting

# With more images than this, images and texts stand in a folder beside the page.
MOST_IN_ONE_FILE = 300
FOLDER = "index_files"
# How images come to the page. `auto` is `folder` for many images; for few they are in the file,
# and beside it as well where they have more pixels than fit in there.
PICTURES = ("auto", "file", "folder", "none")
_THREADS = 2
# Of the page without its tables; and what is tried of images, long side and quality, to stay
# within it. The page shows them 420 pixels wide.
_INLINE_BYTES = 5_000_000
_INLINE_FORMS = ((512, 82), (448, 75), (448, 65), (384, 60), (320, 55), (288, 45))
_FILE_SIDE = 768
_FULL_QUALITY = 90  # of JPEG


class Shown(Protocol):
    """Fields of a case that its image needs."""

    image_path: str
    image_hw: tuple[int, int] | None


class CasePicture(NamedTuple):
    """A case's image.

    Attributes:
        address: on the page; None without one.
        full: of the file with all pixels, from the page; None where there is none or need be none.
        height, width: of the original in pixels; by each other alone where it is not known.
    """

    address: str | None
    full: str | None
    height: int
    width: int


def no_pictures(cases: Sequence[Shown]) -> Iterator[CasePicture]:
    """Boxes are drawn on a blank of the image's shape."""
    for case in cases:
        yield CasePicture(None, None, *(case.image_hw or (1, 1)))


def inline_pictures(
    cases: Sequence[Shown], image_root: Path, texts: int, folder: Path, full: int
) -> Iterator[CasePicture]:
    """Images as `data:` addresses, the smaller the more there are and the more is said.

    Args:
        texts: characters that the page's texts take.
        folder: for those with all pixels.
        full: how many cases have such, the first ones.

    Raises:
        UserError: an image that cannot be read.
    """

    most = (_INLINE_BYTES - texts) * 3 // 4 // max(1, len(cases))  # base64: 3 bytes as 4

    def shrink(number: int) -> CasePicture:
        image = read_image(image_root / cases[number].image_path)
        content, side = _small(image, most)
        whole = write_full(image, side, folder, number) if number < full else None
        return CasePicture(data_uri(content), whole, *image.shape[:2])

    return _in_threads(shrink, len(cases))


def _small(image: UInt8[np.ndarray, "..."], most: int) -> tuple[bytes, int]:
    """The first of the forms with at most so many bytes, else the last; and its long side."""
    for side, quality in _INLINE_FORMS:
        content = jpeg(image, side, quality)
        if len(content) <= most:
            break
    return content, side


def picture_files(
    cases: Sequence[Shown], image_root: Path, folder: Path, full: int
) -> Iterator[CasePicture]:
    """Images as files in `folder`, called by their numbers; arguments as above.

    Raises:
        UserError: an image that cannot be read.
    """

    def write(number: int) -> CasePicture:
        image = read_image(image_root / cases[number].image_path)
        path = folder / f"image-{number}.jpg"
        path.write_bytes(jpeg(image, _FILE_SIDE))
        whole = write_full(image, _FILE_SIDE, folder, number) if number < full else None
        return CasePicture(f"{folder.name}/{path.name}", whole, *image.shape[:2])

    return _in_threads(write, len(cases))


def write_full(
    image: UInt8[np.ndarray, "..."], shown: int, folder: Path, number: int
) -> str | None:
    """Writes an image with all its pixels into the folder, which is made if need be.

    Args:
        shown: long side of what the page has of it anyhow.

    Returns:
        Its address from the folder's parent; None where the page has all of it.
    """
    long_side = max(image.shape[:2])
    if long_side <= shown:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"full-{number}.jpg"
    path.write_bytes(jpeg(image, long_side, _FULL_QUALITY))
    return f"{folder.name}/{path.name}"


def empty_folder(out_dir: Path, wanted: bool) -> Path:
    """The folder beside the page, without what an earlier page left in it; gone if not wanted."""
    folder = out_dir / FOLDER
    if folder.exists():
        with waiting(f"removing what an earlier page left in {folder}"):
            remove_tree(folder)
    if wanted:
        folder.mkdir(parents=True)
    return folder


def _in_threads(make: Callable[[int], CasePicture], count: int) -> Iterator[CasePicture]:
    """Yields images in order, decoded in threads (decoding releases the GIL), a few at a time."""
    bar = progress_bar(desc="pictures", total=count, unit="picture")
    with bar, ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, count, 4 * _THREADS):
            for picture in pool.map(make, range(start, min(start + 4 * _THREADS, count))):
                bar.update()
                yield picture
