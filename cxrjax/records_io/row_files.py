"""Files of rows as the `datasets` library and the hub lay them out: splits, classes, images inside.

    FOLDER[/data]/train-00000-of-00034.parquet ... val-... test-...
    FOLDER/CONFIGURATION/test-00000-of-00001.parquet
    FOLDER[/default]/train/0000.parquet ... validation/... test/...     (as the hub converts it)
    FILE.parquet

JSON and JSON Lines have the same names. Images are bytes, or `{bytes, path}` as the library writes
them; numbers of classes become their names, which the file's own metadata has.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pyarrow

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading, writing
from cxrjax.records_io.quality import QualityLog, Unusable, usable_json, usable_path
from cxrjax.untrusted.foreign_files import read_lines
from cxrjax.untrusted.json_stream import read_items
from cxrjax.untrusted.json_text import parse_object
from cxrjax.untrusted.parquet import open_parquet, read_batches

# Our split -> how its files and folders may begin.
SPLITS: Mapping[str, Sequence[str]] = {
    "train": ("train",),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test",),
}
ROWS = (".parquet", ".jsonl", ".json")
UNPACKED = "unpacked"
_LAYOUTS = ("*", "data/*", "*/*", "default/*/*")
_ROWS_AT_ONCE = 8  # radiographs have megabytes each
# Place and start of a file's signature -> its endings.
_ENDINGS = (
    (0, b"\x89PNG", (".png",)),
    (0, b"\xff\xd8\xff", (".jpg", ".jpeg")),
    (128, b"DICM", (".dcm", ".dicom")),
)

Shard = tuple[str | None, Path]


def find_shards(source: Path, endings: Sequence[str] = (".parquet",)) -> list[Shard]:
    """Returns (split, file) of every file of rows, splits in order; [] where there is none.

    Args:
        source: a folder, or a single file, whose split is None where its name begins with none.
        endings: of the files, the first of which there are any.

    Raises:
        UserError: one of several Parquet files whose name and folder begin with no split.
    """
    if source.is_file():
        return [(split_of(source), source)] if source.suffix in endings else []
    for pattern in (layout + ending for ending in endings for layout in _LAYOUTS):
        shards = [(split_of(file), file) for file in sorted(source.glob(pattern))]
        if not pattern.endswith(".parquet"):  # of JSON there are other files, too
            shards = [shard for shard in shards if shard[0]]
        unnamed = [file for split, file in shards if split is None]
        if unnamed and len(shards) > 1:
            raise UserError(
                f"{unnamed[0]}: begins with no split, expected a name such as train-00000-of-00001."
                "parquet, val-... or test-..., or a folder train/, validation/ or test/ around "
                "it; rename or remove it"
            )
        if shards:
            order = [None, *SPLITS]
            return sorted(shards, key=lambda shard: (order.index(shard[0]), shard[1].name))
    return []


def split_of(file: Path) -> str | None:
    """Returns the split that a file's name begins with, or that its folder is called after."""
    folder = file.parent.name.removeprefix("partial-")
    return _of_name(file) or next((split for split, of in SPLITS.items() if folder in of), None)


def _of_name(file: Path) -> str | None:
    start = re.split(r"[^a-z]", file.name.lower())[0]
    return next((split for split, names in SPLITS.items() if start in names), None)


def place_of(file: Path) -> str:
    """Names a file, with its folder where that says the split, as of converted files."""
    in_folder = _of_name(file) is None and split_of(file) is not None
    return f"{file.parent.name}/{file.name}" if in_folder else file.name


def image_of(value: Any) -> tuple[bytes, dict[str, Any] | None]:
    """Returns the bytes of an image's cell, and what else the cell holds.

    Raises:
        Unusable: `missing_image`.
    """
    rest = None
    if isinstance(value, Mapping):
        rest = {name: other for name, other in value.items() if name != "bytes"}
        value = value.get("bytes")
    if not isinstance(value, bytes) or not value:
        raise Unusable("missing_image", "image holds no bytes; expected those of an image file")
    return value, rest


@dataclasses.dataclass
class Row:
    """A row: its split and place, its cells, its image as a file's bytes with its name there."""

    split: str | None
    where: str
    file: Path
    cells: dict[str, Any]
    image: bytes | None = None
    image_name: str = ""


def read_rows(shards: Sequence[Shard], quality: QualityLog) -> Iterator[Row]:
    """Yields the rows of files, one at a time; those that cannot be read are rejected.

    Raises:
        UserError: a file is damaged, or none of its kind.
    """
    for split, file in shards:
        with reading(file):
            for number, read in enumerate(_CELLS[file.suffix](file)):
                row = Row(split, f"{place_of(file)} row {number}", file, {})
                with quality.rejecting("", row.where):
                    read(row)
                    yield row


def _of_json(file: Path) -> Iterator[Any]:
    lines = (line for _, line in read_lines(file)) if file.suffix == ".jsonl" else read_items(file)
    for line in lines:

        def read(row: Row, line: Any = line) -> None:
            row.cells = usable_json(line) if isinstance(line, bytes) else line
            if not isinstance(row.cells, dict):
                raise Unusable("invalid_record", f"{type(row.cells).__name__}; expected an object")

        yield read


def _of_parquet(file: Path) -> Iterator[Any]:
    with open_parquet(file) as parquet:
        schema = parquet.schema_arrow
        features = _features(schema)
        images = [field.name for field in schema if _holds_images(field.type)]
        shown = next((name for name in images if name == "image"), (images or [None])[0])
        for batch in read_batches(parquet, _ROWS_AT_ONCE):
            for index in range(batch.num_rows):

                def read(row: Row, batch: Any = batch, index: int = index) -> None:
                    try:
                        cells = {name: batch.column(name)[index].as_py() for name in schema.names}
                    except UnicodeDecodeError:
                        raise Unusable("bad_encoding", "a cell is not UTF-8 text") from None
                    if shown and (value := cells[shown]) is not None:
                        if isinstance(value, list):
                            value = value[0] if len(value) == 1 else None  # of several: which?
                        row.image, rest = image_of(value)
                        row.image_name = str((rest or {}).get("path") or "")
                    row.cells = {
                        name: _with_names(cell, features.get(name))
                        for name, cell in cells.items()
                        if name not in images
                    }

                yield read


_CELLS = {".parquet": _of_parquet, ".json": _of_json, ".jsonl": _of_json}


def _holds_images(kind: pyarrow.DataType) -> bool:
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        kind = kind.value_type
    if pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)


def _features(schema: pyarrow.Schema) -> Mapping[str, Any]:
    """Columns' types as the `datasets` library notes them."""
    noted = (schema.metadata or {}).get(b"huggingface")
    try:
        features = parse_object(noted)["info"]["features"] if noted else {}
    except (ForeignError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _with_names(value: Any, feature: Any) -> Any:
    """The value, with the names of classes in the place of their numbers."""
    inner = feature.get("feature", feature) if isinstance(feature, Mapping) else feature
    if isinstance(value, list):
        inner = inner[0] if isinstance(inner, list) and inner else inner
        return [_with_names(one, inner) for one in value]
    known = inner if isinstance(inner, Mapping) else {}
    if isinstance(value, dict):
        return {name: _with_names(one, known.get(name)) for name, one in value.items()}
    names = known.get("names")
    named = isinstance(names, list) and type(value) is int and 0 <= value < len(names)
    return names[value] if named else value  # type: ignore[index]


class RowFolder:
    """A folder that receives rows as JSON and their images as files, for readers of such folders.

    Raises:
        UserError: it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, IO[str]] = {}
        self._images: dict[str, int] = {}

    def __enter__(self) -> "RowFolder":
        return self

    def __exit__(self, *_: object) -> None:
        for name, file in self._files.items():
            file.write("" if name.endswith(".jsonl") else "\n]\n")
            file.close()

    def image(self, name: str, content: bytes) -> str:
        """Writes an image once; returns its name, with the ending of what it is.

        Raises:
            Unusable: `unreadable_image`; `duplicate_id`: another image has this name.
        """
        known = next((of for at, start, of in _ENDINGS if content[at:].startswith(start)), None)
        if known is None:
            raise Unusable("unreadable_image", "neither PNG nor JPEG nor DICOM")
        if PurePosixPath(name).suffix.lower() not in known:
            name += known[0]
        path = self._path(usable_path(name))
        if name not in self._images:
            with writing(self.folder):
                path.write_bytes(content)
        if self._images.setdefault(name, hash(content)) != hash(content):
            raise Unusable("duplicate_id", f"another image is called {name}, too")
        return name

    def add(self, name: str, row: Mapping[str, Any]) -> None:
        """Adds a row to a file: JSON Lines, or an array of JSON.

        Raises:
            Unusable: a cell that JSON has no form for.
        """
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False)
            line.encode()
        except (TypeError, ValueError) as error:
            raise Unusable("invalid_record", f"a cell that is no JSON: {error}") from None
        with writing(self.folder):
            start = "" if name.endswith(".jsonl") else ",\n" if name in self._files else "[\n"
            if name not in self._files:
                self._files[name] = self._path(name).open("w", encoding="utf-8")
            self._files[name].write(f"{start}{line}" + "\n" * name.endswith(".jsonl"))

    def _path(self, name: str) -> Path:
        with writing(self.folder):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        return self.folder / name
