"""The release's own files: Parquet shards, one row a radiograph with its report.

    FOLDER[/data]/train-00000-of-00034.parquet ... val-... test-...
    FOLDER[/default]/train/0000.parquet ... validation/... test/...     (as the hub converts it)
    FILE.parquet

A single file whose name begins with no split is divided 8:1:1, as the paper divides, by what its
images hold: the same image is never in two splits.

Columns (section 3.1 and the release): `image`, bytes or the `{bytes, path}` that the `datasets`
library writes, `findings`, `impressions`, `Ages`, `sex`, `view`, `Ghi chú` (note), `Kỹ thuật`
(technique). Spellings vary and are matched without regard to case, accents and a plural s. Reading
and writing back gives the same rows, but for what was set aside.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from cxrjax.errors import UserError
from cxrjax.files import read_packaged, reading
from cxrjax.radiology_text.vietnamese_words import without_diacritics
from cxrjax.records_io import row_files
from cxrjax.records_io.quality import QualityLog, Unusable
from cxrjax.records_io.row_files import SPLITS, Shard, image_of, place_of
from cxrjax.records_io.split import split_by_hash
from cxrjax.untrusted.parquet import open_parquet, read_batches

_NAMES = read_packaged(str(__package__), "columns.toml")
# Of a file that names no split (section 3.3).
_SHARES = {"train": 80, "validation": 10, "test": 10}
_REQUIRED = ("image", "findings", "impression")
# In the file's own metadata: who made the rows up. The release has no such key.
SYNTHETIC_KEY = b"cxrjax_synthetic"
_MAX_CHARACTERS = 20_000  # of a text; the reports have some hundred
_ROWS_IN_GROUP = 32
_ROWS_AT_ONCE = 8  # radiographs have megabytes each


@dataclasses.dataclass(frozen=True)
class NativeRow:
    """One row of a file, not yet judged."""

    split: str  # `train`, `validation` or `test`, from the file's name or folder, or by its image
    # Of the row in its split, over all files; set-aside rows count too. Of a file without a split:
    # of the row in the file.
    number: int
    file: str  # path of the file below the source. `row`: of the row in it, from 0.
    row: int
    image: bytes  # bytes of the image file
    # Field -> value, for the fields that the file has; text as it stands there.
    values: Mapping[str, Any]
    # Column -> value of every column but the image's bytes, for writing back.
    native: Mapping[str, Any]
    generator: str | None = None  # what made the row up; None for a real one

    @property
    def image_id(self) -> str:
        """The release has no ids; files and rows are in a fixed order."""
        return f"vixray-{self.split}-{self.number:05d}"

    @property
    def where(self) -> str:
        """File and row, for messages."""
        return f"{self.file} row {self.row}"


def find_shards(source: Path) -> list[Shard]:
    """Returns (split, file) of every shard, as `row_files.find_shards`.

    Raises:
        UserError: as that, or no Parquet file.
    """
    found = row_files.find_shards(source)
    if not found and not source.is_file():
        raise UserError(
            f"{source}: no *.parquet in it, expected train-*.parquet, val-*.parquet, test-*."
            "parquet there or in data/, or train/0000.parquet and so on (data/vix_ray/README.md)"
        )
    return found or [(None, source)]


def count_rows(shards: Iterable[Shard]) -> int:
    """Rows of all files, from their footers."""
    return sum(_open(file).metadata.num_rows for _, file in shards)


def read_rows(shards: Sequence[Shard], quality: QualityLog) -> Iterator[NativeRow]:
    """The rows that have an image and both texts, one at a time; others are set aside.

    A row group is in memory at a time (twice, while its pages are taken apart), never a file; the
    `datasets` library makes groups of 100 rows.

    Raises:
        UserError: a file is no Parquet file, or has none of the required columns.
    """
    numbers: dict[str | None, int] = dict.fromkeys((None, *SPLITS), 0)
    for split, file in shards:
        for position, cells in enumerate(_cells(file)):
            number, numbers[split] = numbers[split], numbers[split] + 1
            quality.examined["rows"] += 1
            item = f"vixray-{split or 'row'}-{number:05d}"
            found = f"{place_of(file)} row {position}"
            with quality.rejecting(item, found):
                yield _row(split, number, file, position, cells, quality)


def write_rows(
    path: Path, rows: Iterable[tuple[Mapping[str, Any], bytes]], synthetic: str | None = None
) -> None:
    """Writes one file.

    Args:
        rows: (column -> value as in `NativeRow.native`, bytes of the image).
        synthetic: what made the rows up, kept in the file's metadata; None for real ones.
    """
    table = pyarrow.Table.from_pylist([_with_image(native, image) for native, image in rows])
    if synthetic is not None:
        metadata = {**(table.schema.metadata or {}), SYNTHETIC_KEY: synthetic.encode()}
        table = table.replace_schema_metadata(metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Small row groups: a reader may go through radiographs without holding the file.
    pyarrow.parquet.write_table(table, path, row_group_size=_ROWS_IN_GROUP, compression="zstd")


def _with_image(native: Mapping[str, Any], image: bytes) -> dict[str, Any]:
    row = dict(native)
    for column, value in native.items():
        if _field(column) == "image":
            row[column] = {"bytes": image, **value} if isinstance(value, Mapping) else image
    return row


def _open(file: Path) -> pyarrow.parquet.ParquetFile:
    with reading(file):
        return open_parquet(file)


def _cells(file: Path) -> Iterator[Mapping[str, Any]]:
    """Each row as {"columns": {name: Arrow value}, "generator": text or None}."""
    with _open(file) as parquet:
        schema = parquet.schema_arrow
        fields = [_field(name) for name in schema.names]
        for required in _REQUIRED:
            if fields.count(required) != 1:
                raise UserError(
                    f"{file}: {fields.count(required)} columns for {required}, expected one; "
                    f"the columns are {schema.names} (data/vix_ray/README.md)"
                )
        made_by = (schema.metadata or {}).get(SYNTHETIC_KEY)
        generator = made_by.decode(errors="replace") if made_by else None
        with reading(file):
            for batch in read_batches(parquet, _ROWS_AT_ONCE):
                for index in range(batch.num_rows):
                    columns = {name: batch.column(name)[index] for name in schema.names}
                    yield {"columns": columns, "generator": generator}


def _row(
    split: str | None,
    number: int,
    file: Path,
    position: int,
    cells: Mapping[str, Any],
    quality: QualityLog,
) -> NativeRow:
    image = b""
    native: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for column, cell in cells["columns"].items():
        field = _field(column)
        try:
            value = cell.as_py()
        except UnicodeDecodeError:
            raise Unusable("invalid_record", f"{column} is not UTF-8 text") from None
        if field == "image":
            image, native[column] = image_of(value)
            continue
        if not isinstance(value, str | int | float | bool | None):
            quality.warnings[f"column {column!r} of type {cell.type} is not kept"] += 1
            continue
        native[column] = value
        if field:
            values[field] = value
    for field in ("findings", "impression"):
        if not isinstance(values[field], str) or not values[field].strip():
            kind = "empty" if not values[field] or isinstance(values[field], str) else "no text"
            raise Unusable("missing_text", f"{field} is {kind}; expected text")
        if len(values[field]) > _MAX_CHARACTERS:
            found = f"{field} has {len(values[field])} characters; expected at most"
            raise Unusable("report_too_long", f"{found} {_MAX_CHARACTERS}")
    if split is None:
        quality.warnings["in no named split: divided 8:1:1 by the image"] += 1
        split = split_by_hash(hashlib.sha256(image).hexdigest(), 0, _SHARES)
    place = place_of(file)
    return NativeRow(split, number, place, position, image, values, native, cells["generator"])


def _field(column: str) -> str | None:
    """The field that a column of this name holds."""
    name = _fold(column)
    return next((field for field, names in _NAMES["columns"].items() if name in names), None)


def _fold(text: str) -> str:
    """Lower case, letters only, without accents."""
    return re.sub(r"[^a-z]", "", without_diacritics(text.lower()))
