"""A frozen tower's features of images on disk, read in the place of pixels.

    DIRECTORY / hash of what made them / ab / abcdef... .npy

A file is named by the SHA-256 of the image file's bytes, so that a moved image is found and a
changed one is not.
"""

import dataclasses
import hashlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import PIL
from jaxtyping import Float, UInt8

from cxrjax.errors import UserError
from cxrjax.images.files import AnyFile, ImageError, open_file
from cxrjax.paths import to_path
from cxrjax.untrusted.foreign_files import open_stream


@dataclasses.dataclass(frozen=True)
class FeatureCache:
    """The features that one tower gives for images prepared in one way. Can be pickled."""

    directory: Path  # of these features alone, named by `made_by`
    # `num_tokens`, `width`: of an image's features, [num_tokens, width].
    num_tokens: int
    width: int
    dtype: str  # of the features, `float32` or `bfloat16`

    @property
    def bytes(self) -> int:
        """Size of an image's features."""
        return self.num_tokens * self.width * jnp.dtype(self.dtype).itemsize

    def file_of(self, image_path: AnyFile) -> Path:
        """The file that holds, or will hold, an image's features.

        Raises:
            ImageError: the image cannot be read.
        """
        try:
            with open_file(image_path) as file:
                name = hashlib.sha256(file.read()).hexdigest()
        except OSError as error:
            raise ImageError(f"{image_path}: cannot be read: {error.strerror}") from None
        return self.directory / name[:2] / f"{name}.npy"

    def read(self, image_path: AnyFile) -> Float[np.ndarray, "N D"] | None:
        """The features of an image; None where there are none.

        Raises:
            ImageError: the image cannot be read.
            UserError: the features are damaged.
        """
        file = self.file_of(image_path)
        try:
            with open_stream(file) as opened:
                features = np.load(opened)
        except FileNotFoundError:
            return None
        except (ValueError, EOFError, MemoryError) as error:
            raise UserError(f"{file}: damaged ({error}); remove it and start again") from None
        # NumPy's format has no name for bfloat16: its files hold plain 16-bit numbers.
        features = features.view(jnp.dtype(self.dtype))
        if features.shape != (self.num_tokens, self.width):
            raise UserError(
                f"{file}: features of shape {features.shape}, expected "
                f"{(self.num_tokens, self.width)}; remove it and start again"
            )
        return features

    def write(self, file: Path, features: Float[np.ndarray, "N D"]) -> None:
        """Puts features where `file_of` has said; a run that is killed leaves no half of a file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        with unfinished.open("wb") as out:
            np.save(out, features.view(np.uint16) if self.dtype == "bfloat16" else features)
        unfinished.replace(file)


def made_by(*parts: object) -> str:
    """A short name for what decides features: tower, weights, preparation of the image, dtype."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


# Raise it when an image decodes or is resized to other pixels than before.
_PREPARATION = 1


@dataclasses.dataclass(frozen=True)
class ImageCache:
    """Images prepared in one way. Can be pickled; threads and hosts may share it."""

    directory: Path  # of the configuration; others' images are beside ours
    # `image_size`, `geometry`, `image_width`, `jpeg_times`: as of `ExampleConfig`.
    image_size: int
    geometry: str
    image_width: int | None = None
    jpeg_times: int = 2

    @property
    def image_hw(self) -> tuple[int, int]:
        """(height, width), of a square where no width is given."""
        return self.image_size, self.image_width or self.image_size

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
            with unfinished.open("wb") as out:
                np.save(out, prepared)
            unfinished.replace(file)
        except OSError as error:
            raise UserError(
                f"data.image_cache: {file} cannot be written: {error.strerror}; make room, or "
                "leave data.image_cache out"
            ) from None
        return prepared

    def _file_of(self, image: AnyFile) -> Path:
        """The place of an image, by its file's path, size and time of change.

        The content of a file within another one stands for these: it has been read already.
        """
        if isinstance(image, str | Path):
            path = to_path(image).resolve()
            status = path.stat()
            identity = f"{path} {status.st_size} {status.st_mtime_ns}".encode()
        else:
            with open_file(image) as opened:
                identity = opened.read()
        size = self.image_size if self.image_width is None else self.image_hw
        how = f"{size} {self.geometry} {_PREPARATION} Pillow {PIL.__version__}"
        how += "" if self.jpeg_times == 2 else f" JPEG {self.jpeg_times}"
        group = hashlib.sha256(how.encode()).hexdigest()[:16]
        name = hashlib.sha256(identity).hexdigest()
        return self.directory / group / name[:2] / f"{name}.npy"

    def _read(self, file: Path) -> UInt8[np.ndarray, "S S *channels"] | None:
        """None where there is none, or one that a crash has damaged: it is prepared again."""
        try:
            with open_stream(file) as opened:
                found = np.load(opened)
        except (OSError, ValueError, EOFError, MemoryError):
            return None
        sound = found.dtype == np.uint8 and found.shape in (self.image_hw, (*self.image_hw, 3))
        return found if sound else None
