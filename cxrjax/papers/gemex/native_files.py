"""Reads and writes GEMeX's released files; finds, checks and ties the images that they name."""

import collections
import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.files import reading
from cxrjax.papers.gemex import native
from cxrjax.papers.gemex.dialogue import QUESTION_TYPES
from cxrjax.papers.sources.report import MAX_REPORT_CHARACTERS, ImageReport
from cxrjax.paths import relative
from cxrjax.records import Provenance, QARecord
from cxrjax.records_io.image_check import ImageCheck, check_images
from cxrjax.records_io.quality import QualityLog, Unusable, usable_json, usable_path, usable_record
from cxrjax.records_io.row_files import RowFolder, Shard, read_rows
from cxrjax.untrusted.foreign_files import MIB, read_lines
from cxrjax.untrusted.json_stream import read_items

Checks = Mapping[str, tuple[Path, ImageCheck]]


def check(
    paths: Iterable[str], images: Path, out: Path, quality: QualityLog, processes: int
) -> Checks:
    """Path in the source -> (image file, what it is), before anything else is read."""
    files = {path: _image_file(images, path) for path in sorted(set(paths))}
    checks = check_images(files.values(), quality, out, processes)
    return {path: (file, checks[file]) for path, file in files.items()}


def records_with_images(
    records: Iterable[QARecord], checks: Checks, out: Path, quality: QualityLog
) -> Iterator[QARecord]:
    """Records with size and path of their images; those of an unusable image are set aside."""
    for record in records:
        file, check = checks[record.image_path]
        with quality.rejecting(record.question_id, str(file)):
            size = check.size()
            path = relative(file, out)
            yield native.locate(record, size).model_copy(update={"image_path": path})


def reports_with_images(
    reports: Iterable[ImageReport], checks: Checks, out: Path, quality: QualityLog
) -> Iterator[ImageReport]:
    """Reports with size and path of their images; one of an unusable image is set aside."""
    for report in reports:
        file, check = checks[report.image_path]
        with quality.rejecting(report.image_id, str(file)):
            size = check.size()
            if report.image_hw not in (None, size):
                found = f"the table has {report.image_hw}, the file {size} (height, width)"
                raise Unusable("size_mismatch", found)
            path = relative(file, out)
            yield dataclasses.replace(report, image_path=path, image_hw=size)


def images_beside(source: Path) -> Path | None:
    """The folder that holds files/p10/... or p10/..., None where there is none."""
    if not source.is_dir():
        return None
    return source if (source / "files").is_dir() or next(source.glob("p1[0-9]"), None) else None


def _image_file(images: Path, path: str) -> Path:
    plain = images / path
    return plain if plain.exists() else images / "files" / path


TRAIN_FILE = "sub_training_data.json"
# The release that has been seen holds no validation rows; so they are called where they are ours.
VALIDATION_FILE = "sub_validation_data.json"
VALIDATION_PATTERN = "*valid*.json"
TEST_PATTERN = "*_question.jsonl"
TEST_FOLDER = "test"


def read_native(
    path: Path,
    split: str,
    quality: QualityLog,
    coord_format: str = "auto",
    keep_reports: bool = False,
    source: Provenance | None = None,
) -> Iterator[QARecord]:
    """Records of a released file, image size unknown; the kind of file is told by its suffix.

    Args:
        coord_format: `xyxy`, `xywh`, or `auto`: by the evidence of the whole file, read before.
        keep_reports: whether `ori_report` is kept in the records.

    Raises:
        UserError: the file cannot be read, or its boxes are of mixed conventions.
    """
    chosen = box_format(path, coord_format)
    known = _Known()
    for where, row in _rows(path, quality):
        quality.examined["questions"] += 1
        item = str(row.get("row_id", "")) if isinstance(row, dict) else ""
        with quality.rejecting(item, where):
            digest = _digest(row)
            with usable_record():
                record = native.to_record(
                    row, split, _file_type(path), chosen, keep_reports, source
                )
            question_id = known.question_id(row, digest, record)
            yield record.model_copy(update={"question_id": question_id})


class _Known:
    """Hashes and ids of a file's rows so far, in some bytes a row."""

    def __init__(self) -> None:
        self._rows: set[bytes] = set()
        self._ids: collections.Counter[str] = collections.Counter()

    def question_id(self, row: Mapping[str, Any], digest: bytes, record: QARecord) -> str:
        """The row's own id, or its image's and the number among that image's of its type.

        Raises:
            Unusable: the row stood there before (`duplicate_row`), or its `q_id` did
                (`duplicate_id`).
        """
        if digest in self._rows:
            raise Unusable("duplicate_row", "a row that stood earlier in the file, word for word")
        number = self._ids[record.question_id]
        if number and "q_id" in row:
            raise Unusable("duplicate_id", "a q_id that stood earlier in the file")
        self._rows.add(digest)
        self._ids[record.question_id] += 1
        return record.question_id if "q_id" in row else f"{record.question_id}-{number}"


def _digest(row: Any) -> bytes:
    """Hashes a row, to detect repeated ones.

    Raises:
        Unusable: it cannot be written back: invalid Unicode, not a finite number, or too deep.
    """
    try:
        text = json.dumps(row, sort_keys=True, ensure_ascii=False, allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=8).digest()
    except UnicodeEncodeError:
        raise Unusable("bad_encoding", "half of a surrogate pair, which is no text") from None
    except (ValueError, RecursionError) as error:
        raise Unusable("invalid_record", str(error)) from None


def box_format(path: Path, coord_format: str = "auto") -> native.BoxFormat:
    """The convention of a file's boxes, by its evidence where none is named.

    Raises:
        UserError: the evidence is mixed.
    """
    if coord_format == "xyxy" or coord_format == "xywh":
        return coord_format  # type: ignore[return-value]
    boxes = (box for _, row in _rows(path, QualityLog()) for box in native.native_boxes(row))
    return native.decide(native.weigh(boxes), str(path))


def image_paths(path: Path) -> set[str]:
    """The images that a file's rows name."""
    named: set[str] = set()
    for _, row in _rows(path, QualityLog()):
        if isinstance(row, dict):
            with contextlib.suppress(Unusable):  # set aside where it is read
                named.add(usable_path(row.get("image", row.get("image_path"))))
    return named


def reports(path: Path) -> dict[str, str]:
    """Image -> report, of test rows that have one.

    Raises:
        UserError: the file cannot be read, or a report is too long to be one.
    """
    found = {}
    for where, row in _rows(path, QualityLog()):
        if not isinstance(row, dict):
            continue
        image, report = row.get("image_path"), row.get(native.REPORT_FIELD)
        if not isinstance(image, str) or not isinstance(report, str):
            continue
        if len(report) > MAX_REPORT_CHARACTERS:
            expected = f"expected at most {MAX_REPORT_CHARACTERS}"
            raise UserError(
                f"{where}: {native.REPORT_FIELD} has {len(report)} characters; {expected}"
            )
        found[image] = report
    return found


def write_train(path: Path, records: Iterable[QARecord]) -> None:
    """Writes records as a training file, one row at a time."""
    with path.open("w", encoding="utf-8") as out:
        for number, record in enumerate(records):
            text = json.dumps(native.to_native(record), ensure_ascii=False)
            out.write(("[\n" if number == 0 else ",\n") + text)
        out.write("\n]\n" if out.tell() else "[]\n")


def write_test(folder: Path, records: Iterable[QARecord]) -> None:
    """Writes records as test files into a folder, one for each question type."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        name: (folder / f"{kind.test_name}_question.jsonl").open("w", encoding="utf-8")
        for name, kind in QUESTION_TYPES.items()
    }
    try:
        for record in records:
            line = json.dumps(native.to_native(record), ensure_ascii=False)
            files[record.question_type].write(line + "\n")
    finally:
        for file in files.values():
            file.close()


def unpack_rows(shards: Sequence[Shard], folder: Path, quality: QualityLog) -> None:
    """Writes rows of Parquet or JSON as a release's files, images under files/.

    Raises:
        UserError: a file cannot be read, or the folder not be written.
    """
    with RowFolder(folder) as out:
        for row in read_rows(shards, quality):
            cells = {name: value for name, value in row.cells.items() if value is not None}
            with quality.rejecting(str(cells.get("row_id", ""))[:200], row.where):
                talks = "conversations" in cells
                if talks and row.split == "test":
                    found = f"a conversation in a test split; expected {list(native.TEST_FIELDS)}"
                    raise Unusable("invalid_record", found)
                column = "image" if talks else "image_path"
                if row.image:
                    path = cells.get(column) or row.image_name
                    place = path or f"{row.file.parent.name}-{row.where.rpartition(' ')[2]}"
                    named = out.image(f"files/{usable_path(place)}", row.image)
                    cells[column] = named.removeprefix("files/")
                if talks:
                    file = VALIDATION_FILE if row.split == "validation" else TRAIN_FILE
                else:
                    kind = native.fit_test_row(cells, "/".join(row.file.parts[-2:]))
                    file = f"{TEST_FOLDER}/{QUESTION_TYPES[kind].test_name}_question.jsonl"
                out.add(file, cells)


def _file_type(path: Path) -> str | None:
    """The question type that a test file's name tells.

    Raises:
        UserError: it tells none.
    """
    if path.suffix == ".json":
        return None
    for name in QUESTION_TYPES:
        if name.split("_")[0] in path.name:
            return name
    raise UserError(f"{path}: the name tells no question type; expected {TEST_PATTERN}")


def _rows(path: Path, quality: QualityLog) -> Iterator[tuple[str, Any]]:
    """(file and line, row) of a file, one at a time; lines that are no JSON are set aside."""
    with reading(path):
        if path.suffix == ".json":
            for number, row in enumerate(read_items(path)):
                yield f"{path.name}[{number}]", row
            return
        for number, line in read_lines(path, MIB):
            where = f"{path.name}:{number}"
            try:
                row = usable_json(line)
            except Unusable as fault:
                quality.set_aside(fault.reason, "", where, fault.found)
            else:
                yield where, row
