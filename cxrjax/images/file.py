"""Where an image file's bytes come from: a path, or something that can be opened like one."""

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
