"""ArrayRecord files of questions, each with a Parquet table to choose questions by.

records/<split>-00003-of-00064.array_record   an element a question: its record as a line of JSON
records/<split>-00003-of-00064.parquet        a row a question in the same order, with `COLUMNS`

Questions of one image stand together. A reader picks questions from the table alone
(cxrjax.input_pipeline.sharded_source) and reads them by their position.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from cxrjax.errors import UserError
from cxrjax.files import file_sha256, hash_lines, read_json_object, write_json, writing
from cxrjax.progress import progress_bar
from cxrjax.records import QARecord, format_record, read_records
from cxrjax.records_io.builder import Builder, SourceOptions, records_files
from cxrjax.records_io.shard_layout import FOLDER, SELECTABLE

# `image` numbers the images of a file.
COLUMNS = pa.schema(
    [(name, pa.int32()) for name in ("image", "height", "width")]
    + [(name, pa.string()) for name in SELECTABLE]
)
# So many elements are compressed together: an eighth of the size that single ones have, and a
# sixteenth of the index that a reader keeps in memory; reading one costs no more.
OPTIONS = "group_size:16"
_BATCH = 50_000


def shard_name(prefix: str, number: int, shards: int) -> str:
    """Returns a shard's name, such as `train-00003-of-00064`; shards count from 0."""
    return f"{prefix}-{number:05d}-of-{shards:05d}"


class ArrayRecordFile:
    """An ArrayRecord file that gets its name when it is whole. Use as a context."""

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_name(path.name + ".tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = ArrayRecordWriter(str(self._part), OPTIONS)

    def write(self, element: bytes) -> None:
        """Adds an element."""
        self._writer.write(element)

    def __enter__(self) -> "ArrayRecordFile":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._writer.close()
        if kind is None:
            self._part.replace(self._path)


def read_elements(path: Path) -> Iterator[bytes]:
    """Elements of an ArrayRecord file, one at a time."""
    reader = ArrayRecordReader(str(path))
    try:
        for index in range(reader.num_records()):
            yield reader.read([index])[0]
    finally:
        reader.close()


class RecordShard:
    """Writes one shard of a split. Use as a context.

    Args:
        out: folder of the data set.
        name: as `shard_name` gives it.
    """

    def __init__(self, out: Path, name: str) -> None:
        self.name = name
        self.questions = self.images = 0
        self._table = out / FOLDER / f"{name}.parquet"
        self._file = ArrayRecordFile(out / FOLDER / f"{name}.array_record")
        self._rows: list[dict[str, Any]] = []
        self._last: tuple[str, ...] | None = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "RecordShard":
        self._open.enter_context(self._file)
        part = self._table.with_name(self._table.name + ".tmp")
        self._parquet = self._open.enter_context(pq.ParquetWriter(part, COLUMNS))
        return self

    def __exit__(self, *exception: Any) -> None:
        if exception[0] is None:
            self._flush()
        self._open.__exit__(*exception)
        if exception[0] is None:
            self._table.with_name(self._table.name + ".tmp").replace(self._table)

    def add(self, record: QARecord) -> None:
        """Adds a question; those of one image must come one after another."""
        height, width = record.image_hw or (None, None)
        self.write(
            format_record(record).encode(),
            record.shown,
            {
                "height": height,
                "width": width,
                "view": record.view,
                "question_type": record.question_type,
                "question_strategy": record.question_strategy,
                "finding": record.finding,
                "grade": record.grade,
                "extraction_grade": record.quality.get("extraction_grade"),
                "surrogate_grade": record.quality.get("surrogate_grade"),
            },
        )

    def write(self, line: bytes, image: tuple[str, ...], row: dict[str, Any]) -> None:
        """Writes a record that is already a line of JSON, and its row plus `image`."""
        if image != self._last:
            self._last = image
            self.images += 1
        row["image"] = self.images - 1
        self._file.write(line)
        self._rows.append(row)
        self.questions += 1
        if len(self._rows) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        self._parquet.write_table(pa.Table.from_pylist(self._rows, COLUMNS))
        self._rows.clear()


def describe_shard(out: Path, shard: RecordShard) -> Mapping[str, Any]:
    """A finished shard's entry of the manifest: counts and hashes."""
    stem = out / FOLDER / shard.name
    return {
        "name": shard.name,
        "questions": shard.questions,
        "images": shard.images,
        "records_sha256": file_sha256(stem.with_name(f"{shard.name}.array_record")),
        "table_sha256": file_sha256(stem.with_name(f"{shard.name}.parquet")),
    }


def describe_split(shards: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """A split's entry of the manifest; its hash is over those of its shards."""
    return {
        "images": sum(shard["images"] for shard in shards),
        "questions": sum(shard["questions"] for shard in shards),
        "split_sha256": hash_lines(shard["records_sha256"] for shard in shards),
        "shards": shards,
    }


@dataclasses.dataclass(frozen=True)
class ShardsOptions(SourceOptions):
    """Flags of a build that is written again in shards.

    Attributes:
        num_shards: of each split.
    """

    num_shards: int = 16


class ShardsBuilder(Builder[ShardsOptions]):
    """Writes OUT/records/<split>-*.array_record, their tables, and a manifest.

    The studies of a split are dealt to its shards by a hash of the patient's (or else the image's)
    id; questions of one image that stand in one run of a study's questions come to stand together.
    """

    options_class = ShardsOptions
    leaves = "records/, manifest.json, for config.data.train"
    unheeded = ("seed", "processes", "strict")

    def read(self) -> dict[str, Iterable[QARecord]]:
        files = records_files(self.options.source)
        return {file.stem: by_image(read_records(file)) for file in files}

    def build(self) -> str:
        out, shards = self.options.out, self.options.num_shards
        manifest = read_json_object(self.options.source / "manifest.json", finite=True)
        if shards < 1:
            raise UserError(f"--num_shards={shards}: expected at least 1")
        splits: dict[str, Any] = {}
        with writing(out):
            (out / "manifest.json").unlink(missing_ok=True)
            for split, records in self.read().items():
                names = [shard_name(split, number, shards) for number in range(shards)]
                with contextlib.ExitStack() as opened:
                    writers = [opened.enter_context(RecordShard(out, name)) for name in names]
                    for record in progress_bar(records, split, unit="question"):
                        writers[_shard_of(record, shards)].add(record)
                splits[split] = describe_split([describe_shard(out, writer) for writer in writers])
            manifest |= {"format": "array_record", "splits": splits}
            write_json(out / "manifest.json", manifest)
        return f"{out}: {self.leaves}"


def by_image(records: Iterable[QARecord]) -> Iterator[QARecord]:
    """The records, of each run with one study (or image) those of one image together.

    Those that compare with an earlier image are another element, and stand by themselves.
    """
    for _, run in itertools.groupby(records, lambda r: r.study_id or r.image_id):
        images: dict[tuple[str, ...], list[QARecord]] = collections.defaultdict(list)
        for record in run:
            images[record.shown].append(record)
        for questions in images.values():
            yield from questions


def _shard_of(record: QARecord, shards: int) -> int:
    digest = hashlib.sha256((record.patient_id or record.image_id).encode()).digest()
    return int.from_bytes(digest[:8], "big") % shards
