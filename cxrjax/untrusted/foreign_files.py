"""Files of others: regular ones, read up to a limit, as text of UTF-8."""

import codecs
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cxrjax.errors import ForeignError
from cxrjax.paths import is_address, local_copy, to_path

MIB = 2**20
# Of a file that is read whole. The largest that belong here, tokenizers, have 40 MiB.
MOST_BYTES = 512 * MIB
LONGEST_LINE = 16 * MIB


def open_foreign(path: str | Path) -> io.BufferedReader:
    """Opens a regular file for reading; a device or a pipe would never end.

    Of a bucket's file its local copy (`cxrjax.paths.buckets.local_copy`).

    Raises:
        OSError: it cannot be opened.
        ForeignError: it is no regular file, or no path at all.
    """
    path = local_copy(path)
    try:
        # A pipe without a writer would hold `open` for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # a NUL or half a surrogate pair in it
        raise ForeignError("no file can have this name") from None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    os.close(descriptor)
    raise ForeignError(f"{'a folder' if is_folder else 'a device or pipe'}, expected a file")


def open_stream(path: str | Path) -> io.BufferedReader:
    """`open_foreign` for what is read once, from front to back: of a bucket without a copy."""
    return to_path(path).open("rb") if is_address(path) else open_foreign(path)  # type: ignore


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """A file's bytes.

    Raises:
        OSError: it cannot be read.
        ForeignError: it is no regular file, or has more than `most` bytes.
    """
    with open_stream(path) as file:
        # A buffer larger than the file costs time; what grows, or tells no size, is read on.
        told = most if is_address(path) else os.fstat(file.fileno()).st_size
        content = file.read(min(most, told) + 1)
        if len(content) > told:
            content += file.read(most + 1 - len(content))
    if len(content) > most:
        raise ForeignError(f"more than the {most:,} bytes that are read of such a file")
    return content


def read_text(path: str | Path, most: int = MOST_BYTES) -> str:
    """A file's text; a byte order mark is left out, and lines end as they are.

    Raises:
        OSError: it cannot be read.
        ForeignError: as `read_bytes`, or it is not UTF-8.
    """
    return decode_text(read_bytes(path, most))


def decode_text(content: bytes) -> str:
    """UTF-8 as text; a byte order mark is left out.

    Raises:
        ForeignError: it is something else; says where.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ForeignError(f"not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def raw_lines(path: str | Path, longest: int = LONGEST_LINE) -> Iterator[tuple[int, bytes]]:
    """Number, from 1, and bytes of every line; one line in memory at a time.

    Raises:
        OSError: the file cannot be read.
        ForeignError: it is no regular file, or a line has more than `longest` bytes.
    """
    with open_stream(path) as file:
        number = 0
        while line := file.readline(longest + 1):
            number += 1
            if len(line) > longest:
                raise ForeignError(f"a line of more than {longest:,} bytes", number)
            yield number, line


def read_lines(path: str | Path, longest: int = LONGEST_LINE) -> Iterator[tuple[int, bytes]]:
    """Yields the non-blank lines of a file with their numbers, without a byte order mark.

    Raises:
        OSError: the file cannot be read.
        ForeignError: as `raw_lines`.
    """
    for number, line in raw_lines(path, longest):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield number, line
