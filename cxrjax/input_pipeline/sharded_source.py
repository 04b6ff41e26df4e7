"""Random access to tens of millions of questions in ArrayRecord shards, chosen by their table.

What is kept in memory does not grow with the number of questions: shards' names and sizes. Which
questions were chosen, and where each element begins, is computed once from the tables
(cxrjax.records_io.shards), a shard at a time, and kept in a file beside the data; a later run
with the same choice opens that.
"""

import bisect
import collections
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordReader
from jaxtyping import Int32

from cxrjax.errors import UserError, first_line
from cxrjax.files import file_sha256, read_json_object, reading, replace_text
from cxrjax.images.files import AnyFile
from cxrjax.input_pipeline.record_index import identity_hash
from cxrjax.input_pipeline.sources import Identities, ImageQuestions
from cxrjax.paths import in_bucket, inside, local_beside, local_copy, to_path
from cxrjax.records import QARecord, parse_record
from cxrjax.records_io.shard_layout import FOLDER, SELECTABLE
from cxrjax.untrusted.foreign_files import read_text
from cxrjax.untrusted.names import file_name, shown_value

SELECTIONS = "selections"
# What a value of a choice says of an empty cell.
EMPTY = "none"
# Not a column: how many of the questions to draw at random.
SAMPLE = "sample"
_INDEX = np.dtype("<i8")
# A shard's files -> what the manifest calls their hashes.
_HASHES = {"array_record": "records_sha256", "parquet": "table_sha256"}


class ShardedSource:
    """The questions of a split, grouped by image, as `RecordSource` has them of a file.

    Can be pickled. The image files themselves are not looked at; one that is missing shows up when
    it is read.

    Attributes:
        fingerprint: of the shards and of which questions make which element.
        num_records: questions in the shards.
        without_size: questions that would have been chosen, and whose image has no known size.

    Args:
        directory: with manifest.json and records/.
        split: such as `train`.
        image_root: folder that `image_path` is relative to; by default the directory.
        questions_per_image: most questions in an element.
        select: conditions such as `grade=A++|A+|A` and `view=PA`, all of which must hold; columns
            are those of `SELECTABLE`, `none` stands for an empty cell. `sample=1000000` draws so
            many of the questions that the others leave (all, where there are no more): any as
            likely as another, the same ones whenever shards and conditions are the same.

    Raises:
        UserError: no such split, column or file, or nothing is chosen.
    """

    def __init__(
        self,
        directory: str | Path,
        split: str,
        image_root: str | Path | None = None,
        questions_per_image: int = 8,
        select: Collection[str] = (),
    ) -> None:
        if questions_per_image < 1:
            raise UserError(f"questions_per_image is {questions_per_image}, expected at least 1")
        self.directory, self.split = to_path(directory), split
        self.image_root = self.directory if image_root is None else to_path(image_root)
        self.questions_per_image = questions_per_image
        self._select = parse_selection(select)
        identity: list[Any] = [sorted(self._select.items()), questions_per_image]
        sample = self._select.pop(SAMPLE, None)
        self._sample = None if sample is None else int(sample[0])
        manifest = self.directory / "manifest.json"
        splits = read_json_object(manifest).get("splits")
        if not isinstance(splits, dict) or split not in splits:
            known = sorted(splits) if isinstance(splits, dict) else "none"
            raise UserError(f"{directory}: no split {split!r}, found {known}")
        self._shards: Sequence[Mapping[str, Any]] = _shards_of(manifest, split, splits[split])
        self._ends = list(itertools.accumulate(shard["questions"] for shard in self._shards))
        self.num_records = sum(shard["questions"] for shard in self._shards)
        identity.insert(0, self._shards)
        self.fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        self._folder = self._selection()
        self._compare_hashes()
        counts = self._counts()
        self._chosen, self.without_size = counts["questions"], counts["without_size"]
        self._elements = counts["elements"]
        # Selections that were kept before images were counted have none.
        self.num_images = counts.get("images", self._elements)
        if not self._chosen:
            raise UserError(
                f"{directory}: no question of split {split} to learn from: {self.num_records:,} in "
                f"all, of those chosen by {sorted(select)} {self.without_size:,} are without image "
                "size"
            )
        self._open_files()

    def _counts(self) -> dict[str, int]:
        """Counts of the selection that is kept, if its files are as long as they say.

        Raises:
            UserError: they are damaged.
        """
        counts = read_json_object(self._folder / "counts.json")
        names = ("questions", "without_size", "elements", *({"images"} & counts.keys()))
        sound = all(type(counts.get(name)) is int and counts[name] >= 0 for name in names)
        if sound:
            lengths = {"positions": counts["questions"], "starts": counts["elements"] + 1}
            sound = all(
                (path := self._folder / name).is_file()
                and path.stat().st_size == length * _INDEX.itemsize
                for name, length in lengths.items()
            )
        if not sound:
            raise UserError(f"{self._folder}: a damaged selection; remove the folder")
        return counts

    def _compare_hashes(self) -> None:
        """Compares local shards with the manifest; those of a bucket are as they are copied.

        Raises:
            UserError: a file is not the one that was built.
        """
        for shard in self._shards:
            for kind in _HASHES:
                path = self._path(shard, kind)
                # One that is missing is named when it is needed: a kept selection needs no table.
                if not in_bucket(path) and path.is_file():
                    self._compare_hash(path, path, shard.get(_HASHES[kind]))

    def _compare_hash(self, path: Path, copy: Path, expected: str | None) -> None:
        """Compares a file with the manifest, once: one that has not changed since is trusted."""
        found = copy.stat()
        changed = 0 if in_bucket(path) else found.st_mtime_ns  # a copy's name tells its version
        stamp = f"{copy.name} {found.st_size} {changed} {expected}"
        seen = local_beside(self.directory) / SELECTIONS / f"{path.name}.checked"
        if expected is None or (seen.is_file() and read_text(seen, 4096) == stamp):
            return
        if (actual := file_sha256(copy)) != expected:
            raise UserError(
                f"{path}: has the hash {actual[:12]}, the manifest {expected[:12]}; bring "
                "this shard back or build it again"
            )
        replace_text(seen, stamp)

    def _open_files(self) -> None:
        self._positions = os.open(self._folder / "positions", os.O_RDONLY)
        self._starts = os.open(self._folder / "starts", os.O_RDONLY)
        # Opened when they are first read from, then kept: what each holds in memory is the place of
        # every sixteenth question.
        self._readers: dict[int, ArrayRecordReader] = {}

    def _path(self, shard: Mapping[str, Any], kind: str) -> Path:
        return self.directory / FOLDER / f"{shard['name']}.{kind}"

    def _file(self, shard: Mapping[str, Any], kind: str) -> Path:
        """The shard's file; of a bucket its copy, compared with the manifest."""
        path = self._path(shard, kind)
        if not path.is_file():
            raise UserError(f"{path}: not there, and the manifest names it; build it again")
        copy = local_copy(path)
        if copy is not path:
            self._compare_hash(path, copy, shard.get(_HASHES[kind]))
        return copy

    def _selection(self) -> Path:
        """The folder that keeps which questions were chosen; made where it is missing."""
        kept = local_beside(self.directory) / SELECTIONS / self.fingerprint[:16]
        if (kept / "counts.json").is_file():
            return kept
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=kept.parent, prefix="unfinished-"))
        except OSError as error:
            raise UserError(
                f"{kept.parent}: cannot write which questions are chosen: {error.strerror}"
            ) from None
        try:
            self._choose(part)
            part.replace(kept)
        except OSError:
            # Another process of the same run was first.
            if not (kept / "counts.json").is_file():
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return kept

    def _choose(self, folder: Path) -> None:
        first = chosen = elements = images = without_size = 0
        rng = np.random.default_rng(int(self.fingerprint, 16))
        drawn = self._drawn_of_shards(rng)
        with (
            (folder / "positions").open("wb") as positions,
            (folder / "starts").open("wb") as starts,
        ):
            for number, shard in enumerate(self._shards):
                table = self._table(shard)
                wanted, sized = self._matches(table), _valid(table["height"])
                rows = np.flatnonzero(wanted & sized)
                without_size += int(np.count_nonzero(wanted & ~sized))
                if drawn is not None:
                    rows = np.sort(rng.choice(rows, drawn[number], replace=False))
                shown = table["image"].to_numpy()[rows]
                begins = _element_starts(shown, self.questions_per_image)
                images += len(_element_starts(shown, max(1, len(shown))))
                positions.write((rows + first).astype(_INDEX).tobytes())
                starts.write((begins + chosen).astype(_INDEX).tobytes())
                first += shard["questions"]
                chosen += len(rows)
                elements += len(begins)
            starts.write(np.array([chosen], _INDEX).tobytes())
        counts = {"questions": chosen, "elements": elements, "images": images}
        counts["without_size"] = without_size
        replace_text(folder / "counts.json", json.dumps(counts))

    def _drawn_of_shards(self, rng: np.random.Generator) -> np.ndarray | None:
        """The number of questions to draw from each shard; None where all are taken."""
        if self._sample is None:
            return None
        tables = map(self._table, self._shards)
        able = [int(np.sum(self._matches(table) & _valid(table["height"]))) for table in tables]
        # As if drawn from all together.
        return rng.multivariate_hypergeometric(able, min(self._sample, sum(able)))

    def _table(self, shard: Mapping[str, Any]) -> pa.Table:
        path = self._file(shard, "parquet")
        names = list(self._select)
        try:
            table = pq.read_table(
                path, columns=["image", "height", *names], read_dictionary=names, use_threads=False
            )
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{path}: cannot read the table: {first_line(error)}") from None
        if table.num_rows != shard["questions"]:
            raise UserError(
                f"{path}: {table.num_rows} rows, the manifest has {shard['questions']}; build "
                "this shard again"
            )
        return table

    def _matches(self, table: pa.Table) -> np.ndarray:
        """[rows] bool: those that every condition holds for."""
        matches = np.ones(table.num_rows, bool)
        for column, values in self._select.items():
            named = [value for value in values if value != EMPTY] + [None] * (EMPTY in values)
            cells = table[column].cast(pa.string())
            matches &= pc.is_in(cells, pa.array(named, pa.string())).to_numpy()
        return matches

    def __len__(self) -> int:
        return self._elements

    def __getitem__(self, element: int) -> ImageQuestions:
        if not 0 <= element < self._elements:
            raise IndexError(element)
        start, stop = _read(self._starts, element, element + 2)
        indices = tuple(_read(self._positions, start, stop)) if 0 <= start < stop else ()
        if not indices or not all(0 <= index < self.num_records for index in indices):
            raise UserError(f"{self._folder}: a damaged selection; remove the folder")
        records = tuple(self.record(index) for index in indices)
        first = records[0]
        return ImageQuestions(self.image_of(first), indices, records, self.earlier_of(first))

    @property
    def num_questions(self) -> int:
        """Questions that were chosen."""
        return self._chosen

    def image_of(self, record: QARecord) -> Path:
        """The place of the record's image, whether it is there or not."""
        return inside(self.image_root, record.image_path)

    def earlier_of(self, record: QARecord) -> Path | None:
        """The place of the earlier image that the record compares with; None: with none."""
        return (
            None if record.earlier is None else inside(self.image_root, record.earlier.image_path)
        )

    def record(self, index: int) -> QARecord:
        """The record at this position of all shards together.

        Raises:
            UserError: the shard is damaged, by its own checksums.
        """
        shard, position = self._place(index)
        try:
            if shard not in self._readers:
                path = self._file(self._shards[shard], "array_record")
                self._readers[shard] = ArrayRecordReader(
                    str(path), options="readahead_buffer_size:0", file_reader_buffer_size=1 << 15
                )
            line = self._readers[shard].read([position])[0]
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"{self.where(index)}: damaged ({first_line(error)}); bring this shard back or "
                "build it again"
            ) from error
        return parse_record(line, self.where(index))

    def where(self, index: int) -> str:
        """File and position of a record, for messages."""
        shard, position = self._place(index)
        return f"{self.directory / FOLDER / self._shards[shard]['name']}.array_record:{position}"

    def _place(self, index: int) -> tuple[int, int]:
        """(shard, position in it) of a position of all together."""
        shard = bisect.bisect_right(self._ends, index)
        return shard, index - (self._ends[shard - 1] if shard else 0)

    def records(self) -> Iterator[tuple[int, QARecord]]:
        """(position, record) of all that were chosen, in the order of the elements."""
        for position in range(self._chosen):
            (index,) = _read(self._positions, position, position + 1)
            yield index, self.record(index)

    def image_sizes(self) -> Int32[np.ndarray, "elements 2"]:
        """(height, width) of each element's image."""
        chosen = np.fromfile(self._folder / "positions", _INDEX)
        firsts = chosen[np.fromfile(self._folder / "starts", _INDEX)[:-1]]
        found = []
        for shard, end in zip(self._shards, self._ends, strict=True):
            path = self._file(shard, "parquet")
            table = pq.read_table(path, columns=["height", "width"], use_threads=False)
            here = firsts[(firsts >= end - shard["questions"]) & (firsts < end)]
            rows = here - (end - shard["questions"])
            found.append(np.stack([table[name].to_numpy()[rows] for name in table.column_names], 1))
        return np.concatenate(found).astype(np.int32)

    @property
    def findings(self) -> frozenset[str]:
        """Findings that any question of the split asks about, from the tables alone."""
        found: set[str] = set()
        for shard in self._shards:
            path = self._file(shard, "parquet")
            table = pq.read_table(path, columns=["finding"], read_dictionary=["finding"])
            found.update(pc.unique(table["finding"].cast(pa.string())).drop_null().to_pylist())
        return frozenset(found)

    def identities(self) -> Identities:
        """Whom the images are of, a row each, from its first chosen question.

        Questions are not read: an image has thousands, and one that is shared shares its image.
        """
        rows = []
        for record in self._first_of_images():
            name, patient = record.dataset, record.patient_id
            image = identity_hash(name, record.image_id)
            file = identity_hash(str(self.image_of(record)))
            rows.append((0, image, file, identity_hash(name, patient) if patient else 0))
        return Identities(*np.array(rows, np.uint64).reshape(-1, 4).T)

    def image_files(self) -> list[AnyFile]:
        """The images of the elements, each once."""
        return list(dict.fromkeys(map(self.image_of, self._first_of_images())))

    def answer_lengths(self) -> None:
        """None: tables have no lengths."""

    def _first_of_images(self) -> Iterator[QARecord]:
        """The first chosen question of each image, found by the tables."""
        chosen = np.fromfile(self._folder / "positions", _INDEX)
        for shard, end in zip(self._shards, self._ends, strict=True):
            first = end - shard["questions"]
            here = chosen[slice(*np.searchsorted(chosen, (first, end)))]
            if len(here):
                table = pq.read_table(self._file(shard, "parquet"), columns=["image"])
                images = table["image"].to_numpy()[here - first]
                yield from map(self.record, here[_element_starts(images, len(images))].tolist())

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_positions", "_starts", "_readers")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_files()

    def __del__(self) -> None:
        for name in ("_positions", "_starts"):
            if (descriptor := self.__dict__.get(name)) is not None:
                os.close(descriptor)


def _shards_of(manifest: Path, split: str, entry: Any) -> Sequence[Mapping[str, Any]]:
    """The shards of a split's entry.

    Raises:
        UserError: it is of another form.
    """
    shards = entry.get("shards", ()) if isinstance(entry, dict) else None
    if not isinstance(shards, list | tuple) or not all(
        isinstance(shard, dict)
        and isinstance(shard.get("name"), str)
        and type(shard.get("questions")) is int
        and shard["questions"] >= 0
        and all(isinstance(shard.get(f"{k}_sha256", ""), str) for k in ("records", "table"))
        for shard in shards
    ):
        raise UserError(
            f"{manifest}: split {split!r} is {shown_value(entry)}; expected shards, each with a "
            "name and a number of questions"
        )
    for shard in shards:
        with reading(manifest):
            file_name(shard["name"])
    for name, count in collections.Counter(shard["name"] for shard in shards).most_common(1):
        if count > 1:
            told = f"lists shard {shown_value(name)} {count:,} times; expected each once"
            raise UserError(f"{manifest}: split {split!r} {told}")
    return shards


def parse_selection(conditions: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Column -> values that it may have, of conditions such as `grade=A++|A+`.

    Raises:
        UserError: a condition is not of that form, or names no column or one twice.
    """
    selection: dict[str, tuple[str, ...]] = {}
    for condition in conditions:
        column, equals, values = condition.partition("=")
        if not equals or column not in (*SELECTABLE, SAMPLE) or column in selection:
            raise UserError(
                f"data.select: {condition!r}: expected COLUMN=VALUE|VALUE, each column once, of "
                f"{', '.join(SELECTABLE)}, or {SAMPLE}=NUMBER"
            )
        if column == SAMPLE and not (values.isdecimal() and int(values)):
            raise UserError(f"data.select: {condition!r}: expected a whole number above 0")
        selection[column] = tuple(sorted(values.split("|")))
    return selection


def _valid(column: pa.ChunkedArray) -> np.ndarray:
    return pc.is_valid(column).to_numpy()


def _element_starts(images: np.ndarray, questions_per_image: int) -> np.ndarray:
    """The beginnings of elements: at every new image, and after so many questions of one.

    Args:
        images: [n] number of the image of each chosen question; those of one stand together.
    """
    if not len(images):
        return np.zeros(0, np.int64)
    groups = np.flatnonzero(np.diff(images, prepend=images[0] - 1))
    sizes = np.diff(groups, append=len(images))
    rank = np.arange(len(images)) - np.repeat(groups, sizes)
    return np.flatnonzero(rank % questions_per_image == 0)


def _read(descriptor: int, start: int, stop: int) -> list[int]:
    # pread: nothing is mapped, so that nothing stays in memory.
    size = _INDEX.itemsize
    content = os.pread(descriptor, (stop - start) * size, start * size)
    return np.frombuffer(content, _INDEX).tolist()
