"""Parquet files of others: read by a child process first, which may crash, and then by this one.

Arrow trusts what a file says of itself. What the footer claims is held against the file's bytes, so
that one of some kilobytes is not a billion rows.
"""

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from cxrjax.errors import ForeignError, first_line
from cxrjax.paths import local_copy
from cxrjax.untrusted.child import run_in_child
from cxrjax.untrusted.foreign_files import MIB, open_foreign

_MOST_COLUMNS = 4_096
# Repeated values take next to nothing: a file may claim more rows than anyone could read. CXR-QBA's
# largest table has less than one row a byte.
_MOST_ROWS_A_BYTE = 20
_FREE_ROWS = 10_000
_MOST_RATIO = 200
_FREE = 64 * MIB
_MOST_MEMORY = 4_096 * MIB  # of the child: a row group of a hundred radiographs is held twice
_BYTES_A_SECOND = 10 * MIB  # what Arrow reads at the least
_ROWS_AT_ONCE = 64


def open_parquet(path: Path) -> pyarrow.parquet.ParquetFile:
    """Opens a Parquet file that a child process has read to its end.

    Raises:
        OSError: it cannot be opened.
        ForeignError: it is none, is damaged, or claims more rows, columns or bytes than one of its
            size has.
    """
    path = local_copy(path)
    with open_foreign(path) as file:
        state = os.fstat(file.fileno())
    _try_out(str(path.absolute()), state.st_size, state.st_mtime_ns)
    # Not ahead: else the next row groups are in memory as well.
    return pyarrow.parquet.ParquetFile(path, pre_buffer=False)


def read_batches(
    parquet: pyarrow.parquet.ParquetFile, rows: int, columns: list[str] | None = None
) -> Iterator[pyarrow.RecordBatch]:
    """The rows, so many at a time.

    Raises:
        ForeignError: the file is damaged.
    """
    try:
        yield from parquet.iter_batches(rows, columns=columns, use_threads=False)
    except (OSError, pyarrow.ArrowException) as error:
        raise _damaged(error) from None


@functools.lru_cache(maxsize=4_096)
def _try_out(path: str, size: int, time: int) -> None:
    """Raises ForeignError where a child cannot read the file; `time` of its last change."""
    del time
    seconds = 2.0 + size / _BYTES_A_SECOND
    arguments = {"path": path, "size": size}
    try:
        run_in_child(_read_all, b"", arguments, seconds=seconds, memory=_MOST_MEMORY, most=0)
    except ForeignError as error:
        raise _damaged(error) from None


def _read_all(content: bytes, path: str, size: int) -> tuple[dict[str, Any], bytes]:
    """The child's part."""
    del content
    # Arrow's own sets memory aside that it may never use.
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as parquet:
        _check_claims(parquet.metadata, size)
        names = parquet.schema_arrow.names
        if len(names) != len(set(names)):
            raise ForeignError("two columns of one name")
        for _ in parquet.iter_batches(_ROWS_AT_ONCE, use_threads=False):
            pass
    return {}, b""


def _check_claims(claimed: Any, size: int) -> None:
    if claimed.num_columns > _MOST_COLUMNS:
        raise ForeignError(f"{claimed.num_columns:,} columns; at most {_MOST_COLUMNS:,} are read")
    if not 0 <= claimed.num_rows <= max(_FREE_ROWS, _MOST_ROWS_A_BYTE * size):
        raise ForeignError(f"{claimed.num_rows:,} rows in {size:,} bytes")
    for number in range(claimed.num_row_groups):
        group = claimed.row_group(number)
        columns = [group.column(place) for place in range(group.num_columns)]
        packed = sum(column.total_compressed_size for column in columns)
        whole = sum(column.total_uncompressed_size for column in columns)
        if packed > size or not 0 <= whole <= max(_FREE, _MOST_RATIO * packed):
            raise ForeignError(f"row group {number} claims {whole:,} bytes out of {packed:,}")


def _damaged(error: Exception) -> ForeignError:
    return ForeignError(f"not a whole Parquet file ({first_line(error)[:300]}); fetch it again")
