"""Archives of others: zip, tar and gzip, read and never unpacked, each with a budget.

What comes out is at most so many times what goes in, above a megabyte that is free: tables and
reports of radiology shrink by 5 to 20, its JSON by 10 to 60, and zeros, which bombs are made of, by
1,000. An archive in an archive is a member like others.
"""

import gzip
import io
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from cxrjax.errors import ForeignError
from cxrjax.paths import to_path
from cxrjax.untrusted.foreign_files import MIB, open_foreign
from cxrjax.untrusted.names import path_inside

MOST_RATIO = 200  # of a zip's member, of bounded size
MOST_STREAM_RATIO = 100
FREE = MIB  # of which the ratio is not asked
# Chest ImaGenome's archive has 243,000 members in a directory of 36 MB; all are held in memory.
MOST_MEMBERS = 500_000
MOST_DIRECTORY = 128 * MIB
# Headers of one member in a tar: long names, extended attributes.
_MOST_HEADERS = MIB
_BLOCK = tarfile.BLOCKSIZE
_DIRECTORY_ENTRY = b"PK\x01\x02"
_LOCAL_HEADER = 30  # bytes, before the name
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
_LONG_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_PAX_RECORD = re.compile(rb"\d{1,9} ([^=\n]{1,80})=")
# What zipfile raises on damaged archives.
_DAMAGED = (
    *(OSError, EOFError, ValueError, RuntimeError, NotImplementedError),
    *(struct.error, zlib.error, zipfile.BadZipFile),
)


class ZipArchive:
    """A zip archive, whose members are read one by one. Use as a context, or leave it open.

    Attributes:
        path: of the archive.
        names: of the files in it that can be read, in its order.
        refused: (name, why) of the others.

    Args:
        most: bytes that a member may have.

    Raises:
        ForeignError: it is no archive, or one that was made to harm.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        self._file = _Metered(open_foreign(path).detach())
        try:
            self._archive = zipfile.ZipFile(self._file)
            self._refuse_overlaps()
        except ForeignError:
            self._file.close()
            raise
        except _DAMAGED as error:
            self._file.close()
            raise ForeignError(f"not a zip archive ({error}); fetch it again") from None
        self.names: list[str] = []
        self.refused: list[tuple[str, str]] = []
        seen: set[str] = set()
        for member in self._archive.filelist:
            if member.is_dir():
                continue
            fault = _member_fault(member, path.name, most)
            if fault is None and member.filename in seen:
                fault = "a name that occurs twice in the archive"
            if fault is None:
                seen.add(member.filename)
                self.names.append(member.filename)
            else:
                self.refused.append((member.orig_filename, fault))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._archive.close()
        self._file.close()

    def read(self, name: str) -> bytes:
        """The content of one of `names`.

        Raises:
            ForeignError: it is damaged.
        """
        try:
            with self._archive.open(name) as member:
                # Asked for all, zipfile inflates a member whose size the directory belittles.
                return member.read(self._archive.getinfo(name).file_size + 1)
        except _DAMAGED as error:
            raise ForeignError(f"{name}: cannot read: {error}") from None

    def _refuse_overlaps(self) -> None:
        end = 0
        for member in sorted(self._archive.filelist, key=lambda member: member.header_offset):
            if member.header_offset < end:
                raise ForeignError(f"members overlap at byte {member.header_offset}")
            end = member.header_offset + _LOCAL_HEADER + member.compress_size
        if end > self._archive.start_dir:
            raise ForeignError("members reach into the directory; fetch it again")


class _Metered(io.BufferedReader):
    """A zip's file: refuses a directory of too many members before they are in memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        # zipfile asks for the directory at once, and for all of the last 64 kB, where it looks for
        # where that is.
        content = super().read(MIB if size is None or size < 0 else min(size, MOST_DIRECTORY + 1))
        if len(content) > MOST_DIRECTORY:
            raise ForeignError(f"a directory of more than {MOST_DIRECTORY:,} bytes")
        if content.startswith(_DIRECTORY_ENTRY):
            members = content.count(_DIRECTORY_ENTRY)
            if members > MOST_MEMBERS:
                raise ForeignError(f"{members:,} members; at most {MOST_MEMBERS:,} are read")
        return content


def _member_fault(member: zipfile.ZipInfo, archive: str, most: int) -> str | None:
    """Returns why a zip's member is refused, or None if it may be read."""
    fault = _name_fault(member.orig_filename, archive)
    if fault:
        return fault
    if stat.S_ISLNK(member.external_attr >> 16):
        return "a link; expected a file"
    if member.flag_bits & _ENCRYPTED:
        return "encrypted; expected a member without a password"
    if member.compress_type not in _METHODS:
        return f"packed by method {member.compress_type}; expected stored or deflated"
    if member.file_size > most:
        return f"{member.file_size} bytes; expected at most {most}"
    if member.file_size > max(MIB, MOST_RATIO * member.compress_size):
        packed = member.compress_size
        return f"{member.file_size} bytes out of {packed}; expected at most {MOST_RATIO} times"
    return None


def _name_fault(name: str, archive: str) -> str | None:
    try:
        path_inside(to_path(archive), name.replace("\\", "/"))
    except ForeignError as error:
        return f"a path that leads out of the archive, or none: {error}"
    if re.match("[A-Za-z]:", name):
        return "a path that leads out of the archive: it starts with a drive"
    return None


class _Inflated(io.RawIOBase):
    """Stream of a gzip file's inflated content, of all members, up to the allowed ratio."""

    def __init__(self, packed: io.BufferedIOBase) -> None:
        self._packed = packed
        self._gzip = gzip.GzipFile(fileobj=packed)
        self._out = 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        try:
            content = self._gzip.read(len(target))
        except (EOFError, zlib.error, gzip.BadGzipFile, struct.error) as error:
            raise _damaged(error) from None
        self._out += len(content)
        if self._out > FREE and self._out > MOST_STREAM_RATIO * self._packed.tell():
            found = f"more than {MOST_STREAM_RATIO} times as many bytes come out as are packed"
            raise ForeignError(f"{found}; no table or report shrinks so far")
        target[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._packed.close()
        super().close()


def inflate(packed: bytes, most: int, window: int = zlib.MAX_WBITS) -> bytes:
    """Everything that zlib has packed.

    Raises:
        ForeignError: it is damaged, or more than `most` bytes.
    """
    stream = zlib.decompressobj(window)
    try:
        content = stream.decompress(packed, most)
    except zlib.error as error:
        raise ForeignError(f"damaged zlib data: {error}") from None
    if stream.unconsumed_tail:
        raise ForeignError(f"it inflates to more than {most:,} bytes")
    return content


def open_gzip(packed: str | Path | bytes) -> io.BufferedReader:
    """Opens a gzip file, or the bytes of one, for reading from front to back.

    Reading raises ForeignError where the file is damaged, cut off, followed by something else, or
    holds too much.

    Raises:
        OSError: it cannot be opened.
        ForeignError: it is no regular file.
    """
    file = io.BytesIO(packed) if isinstance(packed, bytes) else open_foreign(packed)
    return io.BufferedReader(_Inflated(file), 128 * 1024)


class TarMember(NamedTuple):
    """A member of a tar that is no folder."""

    name: str
    content: bytes  # its bytes; b"" where there is a fault
    fault: str | None  # why it is not read: a link, a device, too large, a bad name


def read_tar(packed: str | Path | bytes, most: int, ending: str) -> Iterator[TarMember]:
    """The files in a .tar.gz whose names end so, from front to back.

    Args:
        packed: the file, or its bytes.
        most: bytes that a member may have.

    Raises:
        OSError: it cannot be opened.
        ForeignError: it is damaged, cut off, holds too much, or a header is longer than 1 MiB.
    """
    with open_gzip(packed) as stream:
        for number in range(MOST_MEMBERS + 1):
            header = _next_header(stream)
            if header is None:
                return
            if number == MOST_MEMBERS:
                raise ForeignError(f"more than {MOST_MEMBERS:,} members")
            wanted = not header.isdir() and header.name.endswith(ending)
            fault = _tar_fault(header, most) if wanted else None
            if wanted and fault is None:
                content = _exactly(stream, _padded(header.size))[: header.size]
                yield TarMember(header.name, content, None)
                continue
            _skip(stream, _padded(header.size))
            if wanted:
                yield TarMember(header.name, b"", fault)


def _tar_fault(member: tarfile.TarInfo, most: int) -> str | None:
    if member.type not in _REGULAR:
        return "a link or device; expected a file"
    if member.size > most:
        return f"{member.size} bytes; expected at most {most}"
    return _name_fault(member.name, "the archive")


def _next_header(stream: io.BufferedReader) -> tarfile.TarInfo | None:
    """The next member with its long name; None at the archive's end."""
    # Python's reader takes a damaged header for the end, holds headers of any length, and calls
    # itself for each: here they are read one by one.
    named: dict[bytes, bytes] = {}
    headers = 0
    while True:
        block = _exactly(stream, _BLOCK)
        if not block.strip(b"\0"):
            _only_zeros(stream)
            return None
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            raise _damaged(error) from None
        if member.size < 0:
            raise _damaged("a size below zero")
        if member.type not in (*_LONG_NAMES, *_EXTENDED):
            break
        headers += _BLOCK + member.size
        if headers > _MOST_HEADERS:
            raise ForeignError(f"the headers of a member have more than {_MOST_HEADERS:,} bytes")
        content = _exactly(stream, _padded(member.size))[: member.size]
        if member.type == tarfile.GNUTYPE_LONGNAME:
            named[b"path"] = content.rstrip(b"\0")
        elif member.type in _EXTENDED and member.type != tarfile.XGLTYPE:
            named |= _pax_records(content)
    if b"path" in named:
        member.name = named[b"path"].decode("utf-8", "surrogateescape")
    if b"size" in named:
        if not (named[b"size"].isdigit() and len(named[b"size"]) < 16):
            raise _damaged("a size that is not a number")
        member.size = int(named[b"size"])
    if member.type == tarfile.GNUTYPE_SPARSE or any(key.startswith(b"GNU.sparse") for key in named):
        raise ForeignError("a sparse file in it; expected plain ones")
    if member.isdir() or member.issym() or member.islnk() or member.isdev():
        member.size = 0  # nothing follows
    return member


def _pax_records(content: bytes) -> dict[bytes, bytes]:
    """Keys and values, each `<length> <key>=<value>` and a line's end."""
    records = {}
    place = 0
    while match := _PAX_RECORD.match(content, place):
        length = int(content[place : match.start(1)])
        end = place + length
        if end <= match.end() or end > len(content):
            break
        records[match[1]] = content[match.end() : end - 1]
        place = end
    if content[place:].strip(b"\0"):
        raise _damaged("an extended header")
    return records


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _damaged(what: object) -> ForeignError:
    return ForeignError(f"not a whole archive ({what}); fetch it again")


def _exactly(stream: io.BufferedReader, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise _damaged("it has no end")
    return content


def _skip(stream: io.BufferedReader, size: int) -> None:
    while size > 0:
        size -= len(_exactly(stream, min(size, MIB)))


def _only_zeros(stream: io.BufferedReader) -> None:
    """Reads to the end, where the checksum of the packed file is compared too."""
    while content := stream.read(MIB):
        if content.strip(b"\0"):
            raise _damaged("more comes after its end")
