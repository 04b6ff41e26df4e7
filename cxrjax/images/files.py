"""Image files in folders, archives and memory: opening them, their error and size limit."""

import dataclasses
import errno
import io
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from cxrjax.errors import ForeignError, UserError
from cxrjax.untrusted.foreign_files import MIB, open_foreign

OpenedFile: TypeAlias = io.BufferedReader | io.BytesIO


@runtime_checkable
class StoredFile(Protocol):
    """A file within another one. Its `str()` names it in messages."""

    def open(self) -> OpenedFile:
        """The file's bytes.

        Raises:
            OSError: they cannot be read.
        """


AnyFile: TypeAlias = str | Path | StoredFile


def open_file(file: AnyFile) -> OpenedFile:
    """Opens for reading; raises OSError as `open` does, also for what is no regular file."""
    if not isinstance(file, str | Path):
        return file.open()
    try:
        return open_foreign(file)
    except ForeignError as error:
        raise OSError(errno.EINVAL, str(error)) from None


def read_once(file: AnyFile) -> AnyFile:
    """A stored file with its bytes in memory, for whoever opens it again and again; a path as it
    is, since the system keeps what was read of it.

    Raises:
        OSError: it cannot be read.
    """
    if isinstance(file, str | Path):
        return file
    with file.open() as opened:
        content = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"more than the {MOST_BYTES:,} bytes that an image may have")
    return HeldFile(str(file), content)


@dataclasses.dataclass(frozen=True)
class HeldFile:
    """A file in memory, as image readers open one."""

    name: str
    content: bytes = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self.name

    def open(self) -> io.BytesIO:
        return io.BytesIO(self.content)


# 8192 x 8192. The largest radiography detectors give about 20 million pixels; a file that claims
# more than this is damaged or made to exhaust memory (the decoded array would exceed 200 MB).
MAX_PIXELS = 8192 * 8192

# Of a file that is held in memory.
MOST_BYTES = 256 * MIB


class ImageError(UserError):
    """An image file cannot be used: the message names the path, what was found and what to do."""


def check_size(path: AnyFile, height: int, width: int) -> None:
    """Refuses a size that no radiograph has, before any pixel is decoded.

    Raises:
        ImageError: a side is below 1, or the image has more than `MAX_PIXELS` pixels.
    """
    if height < 1 or width < 1:
        raise ImageError(
            f"{path}: header has {printable(height)} rows and {printable(width)} columns; "
            "expected at least one of each: the file is damaged, fetch it again"
        )
    if height * width > MAX_PIXELS:
        raise ImageError(
            f"{path}: {printable(height)} x {printable(width)} pixels, more than the {MAX_PIXELS} "
            "that are decoded: scale the image down (and its boxes with it), or check that it is a "
            "radiograph"
        )


def one_line(error: Exception) -> str:
    """Another library's exception in one line; its type where it says nothing."""
    return printable(" ".join(str(error).split()), most=300) or type(error).__name__


def printable(value: object, most: int = 60) -> str:
    """Formats a value of a file for a message: on one line, cut after `most` characters."""
    text = str(value)
    text = "".join(letter if letter.isprintable() else "?" for letter in text[:most])
    return text + "..." * (len(str(value)) > most)
