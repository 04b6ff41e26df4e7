"""CSV tables as the world writes them, a row at a time: with a byte-order mark or CRLF, compressed,
and with rows that are broken, which are told apart from the sound ones by line."""

import csv
import gzip
import io
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO, cast

from cxrjax.errors import UserError
from cxrjax.records_io.quality import Unusable


class TableRow(NamedTuple):
    """One row.

    Attributes:
        cells: by column name; of a broken row those that could be read, others "".
        where: file and line.
        fault: why the row cannot be used, None where it can be read.
    """

    cells: Mapping[str, str]
    where: str
    fault: Unusable | None


def read_table(
    path: Path,
    required: Sequence[str],
    spellings: Mapping[str, str] | None = None,
    wheel_member: str | None = None,
) -> Iterator[TableRow]:
    """The rows below the header, blank lines left out.

    Args:
        path: a csv, csv.gz, or a wheel that carries one.
        required: columns that must be there, as `spellings` has them.
        spellings: other spelling of a column name -> ours.
        wheel_member: the csv.gz within a wheel.

    Raises:
        UserError: the file cannot be read, or a column is missing or stands twice.
    """
    try:
        with _open_text(path, wheel_member) as text:
            reader = csv.reader(text)
            header = [(spellings or {}).get(name, name) for name in next(reader, [])]
            _check_header(path, header, required)
            for values in reader:
                if values:
                    where = f"{path.name}:{reader.line_num}"
                    cells = dict.fromkeys(header, "") | dict(zip(header, values, strict=False))
                    printable = {name: _printable(cell) for name, cell in cells.items()}
                    yield TableRow(printable, where, _fault(header, values))
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot read the table: {reason}") from None


def _open_text(path: Path, wheel_member: str | None) -> TextIO:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            if wheel_member not in wheel.namelist():
                raise UserError(f"{path}: no {wheel_member} in it; expected torchxrayvision 1.5.7")
            packed = io.BytesIO(wheel.read(wheel_member))
        return _as_text(gzip.open(packed))
    return _as_text(gzip.open(path) if path.suffix == ".gz" else open(path, "rb"))


def _as_text(file: gzip.GzipFile | BinaryIO) -> TextIO:
    # Bytes that are no UTF-8 come through as lone surrogates, so that one row of another encoding
    # does not cost the table.
    return io.TextIOWrapper(
        cast(BinaryIO, file), encoding="utf-8-sig", errors="surrogateescape", newline=""
    )


def _check_header(path: Path, header: Sequence[str], required: Collection[str]) -> None:
    found = [_printable(name) for name in header]
    missing = [name for name in required if name not in header]
    if missing:
        expected = ", ".join(required)
        raise UserError(
            f"{path}:1: column {missing[0]} is missing; found {found}, expected {expected}"
        )
    twice = [name for name in found if found.count(name) > 1]
    if twice:
        raise UserError(f"{path}:1: column {twice[0]} stands twice; remove one of them")


def _fault(header: Sequence[str], values: Sequence[str]) -> Unusable | None:
    for value in values:
        if value != _printable(value):
            return Unusable("bad_encoding", f"{_printable(value)!r} is not UTF-8")
    if len(values) != len(header):
        found = f"{len(values)} cells, expected {len(header)} as in the header"
        return Unusable("malformed_row", found)
    return None


def _printable(text: str) -> str:
    """The text with bytes that are no UTF-8 written as \\xNN, fit for JSON and terminals."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
