"""Images at the model's size on disk, so that a file is decoded and resized once.

    DIRECTORY / hash of how they are prepared / ab / abcdef... .npy

holds uint8 [S, S] of a grey image, [S, S, 3] of one in colours: the pixels that decoding gives.
"""

import dataclasses
import hashlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL
from jaxtyping import UInt8

from cxrjax.errors import UserError
from cxrjax.images import AnyFile, open_file

# Raise it when an image decodes or is resized to other pixels than before.
_PREPARATION = 1


@dataclasses.dataclass(frozen=True)
class ImageCache:
    """Prepared images of one size and geometry. Can be pickled; threads and hosts may share it.

    Attributes:
        directory: of the configuration; others' images are beside ours.
        image_size: side in pixels.
        geometry: `resize` or `letterbox`.
    """

    directory: Path
    image_size: int
    geometry: str

    def get(
        self, image: AnyFile, prepare: Callable[[], UInt8[np.ndarray, "S S *channels"]]
    ) -> UInt8[np.ndarray, "S S *channels"]:
        """An image as `prepare` gives it: kept, or prepared now and kept from here on.

        Raises:
            UserError: it cannot be kept (a full disk), or what `prepare` raises.
        """
        try:
            file = self._file_of(image)
        except OSError:
            return prepare()  # which says what is wrong with it
        kept = self._read(file)
        if kept is not None:
            return kept
        prepared = prepare()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Threads, processes and hosts may be at the same image.
            unfinished = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
            with open(unfinished, "wb") as out:
                np.save(out, prepared)
            unfinished.replace(file)
        except OSError as error:
            raise UserError(
                f"data.image_cache: {file} cannot be written: {error.strerror}; make room, or "
                "leave data.image_cache out"
            ) from None
        return prepared

    def _file_of(self, image: AnyFile) -> Path:
        """Where an image belongs, by its file's path, size and time of change.

        The content of a file within another one stands for these: it has been read already.
        """
        if isinstance(image, str | Path):
            path = os.path.realpath(image)
            status = os.stat(path)
            identity = f"{path} {status.st_size} {status.st_mtime_ns}".encode()
        else:
            with open_file(image) as opened:
                identity = opened.read()
        how = f"{self.image_size} {self.geometry} {_PREPARATION} Pillow {PIL.__version__}"
        group = hashlib.sha256(how.encode()).hexdigest()[:16]
        name = hashlib.sha256(identity).hexdigest()
        return self.directory / group / name[:2] / f"{name}.npy"

    def _read(self, file: Path) -> UInt8[np.ndarray, "S S *channels"] | None:
        """None where there is none, or one that a crash has damaged: it is prepared again."""
        try:
            found = np.load(file)
        except (OSError, ValueError, EOFError):
            return None
        square = (self.image_size, self.image_size)
        sound = found.dtype == np.uint8 and found.shape in (square, (*square, 3))
        return found if sound else None
