"""Images that come with a request: data URIs of JPEG, PNG or DICOM, to the model's input."""

import base64
import binascii
import contextlib
import dataclasses
import hashlib
import re
import threading
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from cxrjax.apps.serving.byte_lru import ByteLRU
from cxrjax.apps.serving.engine import SeenImages
from cxrjax.apps.serving.refusals import invalid
from cxrjax.images.decode import image_size
from cxrjax.images.files import HeldFile, ImageError
from cxrjax.input_pipeline.examples import ExampleConfig, load_image

# The bytes say what they are; the name is only not to be another kind.
_DATA_URI = re.compile(r"data:(?:image/(?:png|jpe?g|dicom)|application/(?:dicom|octet-stream));")
_PARAM = "image_url"
# Of images that are being decoded for all requests together; a pixel takes eight bytes meanwhile.
_DECODED_BYTES = 512 * 2**20
_PIXEL_BYTES = 8


@dataclasses.dataclass(frozen=True)
class UploadedImage:
    """One image, decoded and at the model's size; `size` is (height, width) of the original."""

    digest: bytes
    size: tuple[int, int]
    pixels: np.ndarray = dataclasses.field(repr=False)


def data_of(uri: str, name: str) -> HeldFile:
    """The file in a data URI.

    Raises:
        RefusedError: it is something else; nothing is fetched from elsewhere.
    """
    head = uri[:64]
    found = _DATA_URI.match(head)
    if found is None:
        raise invalid(
            _PARAM,
            f"{name}: expected a data URI, data:image/png;base64,... (JPEG, PNG or DICOM); this "
            "server fetches nothing from elsewhere",
            "invalid_image_url",
        )
    begins = uri.find("base64,", found.end() - 1, 200)
    if begins < 0:
        raise invalid(_PARAM, f"{name}: expected base64", "invalid_base64_image")
    try:
        content = base64.b64decode(uri[begins + len("base64,") :].encode("ascii"), validate=True)
    except (ValueError, binascii.Error):
        raise invalid(_PARAM, f"{name}: not base64", "invalid_base64_image") from None
    return HeldFile(name, content)


class Uploads:
    """Decodes images, and keeps them for those who ask again.

    Args:
        kept_bytes: of decoded images.
    """

    def __init__(self, kept_bytes: int) -> None:
        self._kept: ByteLRU[UploadedImage] = ByteLRU(kept_bytes, lambda one: one.pixels.nbytes)
        self._free, self._changed = _DECODED_BYTES, threading.Condition()

    @contextlib.contextmanager
    def _reserved(self, size: tuple[int, int]) -> Iterator[None]:
        """Waits until the decoded bytes of all requests leave room for an image of this size."""
        needed = min(size[0] * size[1] * _PIXEL_BYTES, _DECODED_BYTES)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= needed)
            self._free -= needed
        try:
            yield
        finally:
            with self._changed:
                self._free += needed
                self._changed.notify_all()

    def read(self, file: HeldFile, examples: ExampleConfig, who: Hashable) -> UploadedImage:
        """The image in a file; to be called in a thread.

        Args:
            who: what was kept of others is not looked at.

        Raises:
            RefusedError: it cannot be decoded, or is too large.
        """
        digest = hashlib.sha256(file.content).digest()
        how = (examples.geometry, examples.image_hw, examples.grids, examples.jpeg_times)
        key = (who, digest, *how)
        known = self._kept.get(key)
        if known is not None:
            return known
        try:
            size = image_size(file)
            with self._reserved(size):
                picture = UploadedImage(digest, size, load_image(file, examples, image_hw=size))
        except ImageError as error:
            raise invalid(_PARAM, str(error), "invalid_image") from None
        self._kept.put(key, picture)
        return picture


def seen_images(
    pictures: Sequence[UploadedImage], examples: ExampleConfig, who: Hashable, adapter: int
) -> SeenImages:
    """Images as the engine takes them.

    Args:
        pictures: the one that is asked about, and one of an earlier study.
        adapter: that looks at them.
    """
    key = (who, adapter, examples.geometry, *(picture.digest for picture in pictures))
    if not examples.earlier_images:
        return SeenImages(key, pictures[0].pixels)
    both = [picture.pixels for picture in pictures]
    if len(both) == 1:
        both.append(np.zeros_like(both[0]))
    return SeenImages(key, np.stack(both), len(pictures) == 2)
