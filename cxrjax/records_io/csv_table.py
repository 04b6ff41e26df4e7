"""CSV tables as the world writes them, a row at a time: with a byte-order mark or CRLF, compressed,
and with rows that are broken, which are told apart from the sound ones by line.

One kind is at home here: sizes of images that are not here, or are here smaller than they were.
"""

import csv
import dataclasses
import functools
import io
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.paths import relative
from cxrjax.progress import progress_bar
from cxrjax.records import LARGEST_SIDE, QARecord, read_records
from cxrjax.records_io.builder import Builder, SourceOptions, describe_file
from cxrjax.records_io.quality import QualityLog, Unusable, check_box
from cxrjax.untrusted.archives import ZipArchive, open_gzip
from cxrjax.untrusted.foreign_files import MIB, open_foreign

_LONGEST_TABLE = 64 * MIB  # of a table in a wheel, packed
# A row of reports has some 10 kB; the csv module takes 128 kB a cell.
_LONGEST_LINE = MIB
_MOST_LINES = 100  # of a row; text in quotes may have several
_MOST_UNUSABLE = 100_000  # rows, and lines without one
_MOST_COLUMNS = 4_096
_SHOWN = 50  # columns in a message


class TableRow(NamedTuple):
    """One row."""

    cells: Mapping[str, str]  # by column name; of a broken row those that could be read, others ""
    where: str  # file and line
    fault: Unusable | None  # why the row cannot be used, None where it can be read


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
        UserError: the file cannot be read, or a column is missing or occurs twice.
    """
    with reading(path, "the table"), _open(path, wheel_member) as file:
        lines = _Lines(file)
        reader = csv.reader(lines)
        try:
            header = [(spellings or {}).get(name, name) for name in next(reader, [])]
            _check_header(path, header, required)
            header = [_printable(name) for name in header]
            lines.begin_row()
            blank = faults = 0
            name = path.name
            for values in reader:
                blank += not values
                if blank > _MOST_UNUSABLE or faults > _MOST_UNUSABLE:
                    found = f"more than {_MOST_UNUSABLE:,} blank lines or broken rows"
                    raise UserError(f"{path}:{lines.first}: {found}; fetch the table again")
                if values:
                    fault = _fault(header, values)
                    where = f"{name}:{lines.number}"
                    if fault is None:
                        yield TableRow(dict(zip(header, values, strict=True)), where, None)
                    else:
                        faults += 1
                        if lines.first < lines.number:
                            where = f"{name}:{lines.first}-{lines.number}"
                        read = zip(header, map(_printable, values), strict=False)
                        yield TableRow(dict.fromkeys(header, "") | dict(read), where, fault)
                lines.begin_row()
        except csv.Error as error:
            raise UserError(f"{path}:{lines.first}: {error}; is a quote not closed?") from None


def _open(path: Path, wheel_member: str | None) -> io.BufferedReader:
    if path.suffix == ".whl":
        with ZipArchive(path, _LONGEST_TABLE) as wheel:
            if wheel_member not in wheel.names:
                raise ForeignError(f"no {wheel_member} in it; expected torchxrayvision 1.5.7")
            return open_gzip(wheel.read(wheel_member))
    return open_gzip(path) if path.suffix == ".gz" else open_foreign(path)


class _Lines:
    """Lines of a table for `csv.reader`, each of bounded length.

    Attributes:
        number: of the line that was read last, from 1.
        first: the line in which the row begins.
    """

    def __init__(self, file: io.BufferedReader) -> None:
        # Bytes that are no UTF-8 come through as lone surrogates, so that one row of another
        # encoding does not cost the table.
        self._text = io.TextIOWrapper(
            file, encoding="utf-8-sig", errors="surrogateescape", newline=""
        )
        self.number, self.first = 0, 1

    def begin_row(self) -> None:
        self.first = self.number + 1

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(_LONGEST_LINE + 1):
            self.number += 1
            if len(line) > _LONGEST_LINE:
                raise ForeignError(f"line {self.number} has more than {_LONGEST_LINE:,} characters")
            if self.number - self.first >= _MOST_LINES:
                raise csv.Error(f"a row of more than {_MOST_LINES} lines")
            yield line


def _check_header(path: Path, header: Sequence[str], required: Collection[str]) -> None:
    if len(header) > _MOST_COLUMNS:
        raise UserError(f"{path}:1: {len(header):,} columns; at most {_MOST_COLUMNS:,} are read")
    found = [_printable(name) for name in header]
    missing = [name for name in required if name not in header]
    if missing:
        _check_writing(path, "".join(header), missing)
        expected = ", ".join(required)
        shown = f"{found[:_SHOWN]}{' and more' * (len(found) > _SHOWN)}"
        raise UserError(
            f"{path}:1: column {missing[0]} is missing; found {shown}, expected {expected}"
        )
    twice = [name for name, count in Counter(found).items() if count > 1]
    if twice:
        raise UserError(f"{path}:1: column {twice[0]} occurs twice; remove one of them")


# What stands in the header of a table that separates or encodes otherwise.
_WRITTEN_OTHERWISE = {
    "\0": "it is UTF-16",
    "\udcff\udcfe": "it is UTF-16",
    ";": "semicolons separate its cells",
    "\t": "tabs separate its cells",
    "|": "'|' separates its cells",
}


def _check_writing(path: Path, header: str, missing: Sequence[str]) -> None:
    """Names the delimiter or the encoding where that is why columns are not found."""
    plain = header.replace("\0", "")
    found = next((told for sign, told in _WRITTEN_OTHERWISE.items() if sign in header), None)
    if found and any(name in plain for name in missing):
        raise UserError(f"{path}:1: {found}; save the table as UTF-8 with commas between cells")


def columns_of(path: Path) -> list[str]:
    """The names in a table's first line.

    Raises:
        UserError: the file cannot be read.
    """
    with reading(path, "the table"), _open(path, None) as file:
        return next(csv.reader(_Lines(file)), [])


def _fault(header: Sequence[str], values: Sequence[str]) -> Unusable | None:
    together = "".join(values)
    if not together.isascii() and together != _printable(together):
        value = next(value for value in values if value != _printable(value))
        return Unusable("bad_encoding", f"{_printable(value)[:200]!r} is not UTF-8")
    if "\0" in together:
        return Unusable("malformed_row", "a zero byte; expected text")
    if len(values) != len(header):
        found = f"{len(values)} cells, expected {len(header)} as in the header"
        return Unusable("malformed_row", found)
    return None


def _printable(text: str) -> str:
    """The text with bytes that are no UTF-8 written as \\xNN, fit for JSON and terminals."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


ImageSizes = dict[str, tuple[int, int]]

# NumPy's order of axes, as the Kaggle mirrors' train_meta.csv has it.
_SPELLINGS = {"dim0": "height", "dim1": "width"}


def read_size_table(path: Path, quality: QualityLog) -> ImageSizes:
    """Image id -> (height, width) in pixels of the original.

    Args:
        path: csv or csv.gz with the columns image_id and height, width (or dim0, dim1).
        quality: where broken rows are noted. An image with two rows of different sizes is set
            aside whole; one with the same row twice is not.

    Raises:
        UserError: the file cannot be read, a column is missing, or no row can be used.
    """
    sizes: ImageSizes = {}
    ambiguous: set[str] = set()
    for row in read_table(path, ("image_id", "height", "width"), _SPELLINGS):
        quality.examined["rows of sizes"] += 1
        image_id = row.cells["image_id"]
        try:
            if row.fault:
                raise row.fault
            size = parse_size(row.cells["height"], row.cells["width"])
            if sizes.setdefault(image_id, size) != size:
                ambiguous.add(image_id)
                found = f"height, width {list(size)}, and {list(sizes[image_id])} further up"
                raise Unusable("duplicate_id", found)
        except Unusable as fault:
            quality.set_aside(fault.reason, image_id, row.where, fault.found)
    usable = {image_id: size for image_id, size in sizes.items() if image_id not in ambiguous}
    if not usable:
        raise UserError(f"{path}: no usable size in it; expected image_id, height, width")
    return usable


@functools.lru_cache
def parse_size(height: str, width: str) -> tuple[int, int]:
    """(height, width) of two cells.

    Raises:
        Unusable: not two whole numbers above zero.
    """
    try:
        size = float(height), float(width)
    except ValueError:
        size = (0.0, 0.0)
    if not all(1 <= value <= LARGEST_SIDE and value == int(value) for value in size):
        found = f"height={height!r}, width={width!r}; expected whole pixels"
        raise Unusable("bad_size", found)
    return int(size[0]), int(size[1])


def size_of(sizes: ImageSizes, image_id: str) -> tuple[int, int]:
    """The size that the table gives for an image.

    Raises:
        Unusable: none.
    """
    if image_id not in sizes:
        raise Unusable("unknown_size", "an image that the size table does not have")
    return sizes[image_id]


@dataclasses.dataclass(frozen=True)
class SizesOptions(SourceOptions):
    """Flags of a build that is written again with the sizes of its images' originals.

    Attributes:
        sizes: table of image sizes.
    """

    sizes: Path


class SizesBuilder(Builder[SizesOptions]):
    """Writes a build's records again, each with the size of its image's original.

    Rejects records whose image the table does not have, whose `image_hw` is another, or with a
    box that reaches beyond the image.
    """

    dataset = "sizes"
    options_class = SizesOptions

    def read(self) -> dict[str, Iterable[QARecord]]:
        source, out = self.options.source, self.options.out
        self.files = {path.stem: path for path in sorted((source / "records").glob("*.jsonl"))}
        if not self.files:
            raise UserError(f"{source}: no records/*.jsonl there; expected the folder of a build")
        if out.resolve() == source.resolve():
            raise UserError(f"{out}: --out is the folder that is read; choose another")
        sizes = read_size_table(self.options.sizes, self.quality)
        return {
            split: progress_bar(self._joined(path, sizes), split, unit="question")
            for split, path in self.files.items()
        }

    def _joined(self, path: Path, sizes: ImageSizes) -> Iterator[QARecord]:
        for record in read_records(path):
            self.quality.examined["questions"] += 1
            try:
                size = size_of(sizes, record.image_id)
                if record.image_hw not in (None, size):
                    found = f"image_hw is {list(record.image_hw or ())}, the table has {list(size)}"
                    raise Unusable("size_mismatch", found)
                for x_min, y_min, x_max, y_max in record.boxes:
                    check_box((x_min, y_min, x_max, y_max), size)
            except Unusable as verdict:
                self.quality.set_aside(verdict.reason, record.question_id, path.name, verdict.found)
                continue
            image_path = relative(self.options.source / record.image_path, self.options.out)
            yield record.model_copy(update={"image_hw": size, "image_path": image_path})

    def describe(self) -> dict[str, Any]:
        pieces = {f"records/{name}": path for name, path in self.files.items()}
        pieces["sizes"] = self.options.sizes
        return {"source": {name: describe_file(path) for name, path in pieces.items()}}
