"""Where an image file's bytes come from: a path, or something that can be opened like one."""

import dataclasses
import io
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias


class StoredFile(Protocol):
    """A file within another one. Its `str()` names it in messages."""

    def open(self) -> BinaryIO:
        """The file's bytes.

        Raises:
            OSError: they cannot be read.
        """


AnyFile: TypeAlias = str | Path | StoredFile


def open_file(file: AnyFile) -> BinaryIO:
    """Opens for reading; raises OSError as `open` does."""
    return open(file, "rb") if isinstance(file, str | Path) else file.open()


def read_once(file: AnyFile) -> AnyFile:
    """A stored file with its bytes in memory, for whoever opens it again and again; a path as it
    is, since the system keeps what was read of it.

    Raises:
        OSError: it cannot be read.
    """
    if isinstance(file, str | Path):
        return file
    with file.open() as opened:
        return _InMemory(str(file), opened.read())


@dataclasses.dataclass(frozen=True)
class _InMemory:
    name: str
    content: bytes = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self.name

    def open(self) -> BinaryIO:
        return io.BytesIO(self.content)
