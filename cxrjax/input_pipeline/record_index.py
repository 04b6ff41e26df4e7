"""Columns of a records file from one pass over it, cached by the file's hash.

A start needs of each record where it is, which image it shows, whom it is about, and what is wrong
with it; a resume of the same file reads these columns instead of parsing a million lines again.
"""

import dataclasses
import functools
import hashlib
import importlib
import json
import uuid
import zipfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from cxrjax.codecs import get_codec
from cxrjax.errors import UserError
from cxrjax.files import reading
from cxrjax.paper import closed_classes
from cxrjax.paths import local_copy, user_cache
from cxrjax.records import QARecord, parse_record
from cxrjax.records_io.quality import Unusable, check_box
from cxrjax.untrusted.foreign_files import open_foreign, raw_lines, read_bytes
from cxrjax.untrusted.json_text import parse_object

# What decoding reports of a text without any box: nothing is wrong with that here.
_NO_BOX = ("no_box", "refusal")
# Modules that decide what the columns hold, beside this one and the codec's.
_RULES = ("cxrjax.records", "cxrjax.codecs.base", "cxrjax.records_io.quality")
# Errors of reading a damaged index; UserError: a data set is no longer installed.
_DAMAGED = (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile, UserError)


class Fault(NamedTuple):
    """The first thing wrong with a record itself, whatever its image file is."""

    question_id: str
    reason: str
    found: str


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """Columns of a records file, one entry a record."""

    sha256: str  # of the file
    # `starts`, `lengths`, `lines`: byte offset, bytes and line number of each record.
    starts: Int[np.ndarray, " n"]
    lengths: Int[np.ndarray, " n"]
    lines: Int[np.ndarray, " n"]
    images: Int[np.ndarray, " n"]  # number of the images shown, an index into `shown`
    sizes: Int[np.ndarray, "n 2"]  # `image_hw`, zeros where it is null
    answers: Int[np.ndarray, " n"]  # letters of the answer and of its reason
    findings: Int[np.ndarray, " n"]  # index into `finding_names`, -1 where the question names none
    # `questions`, `image_ids`, `patients`: `identity_hash` of each id; 0 for no patient.
    questions: UInt64[np.ndarray, " n"]
    image_ids: UInt64[np.ndarray, " n"]
    patients: UInt64[np.ndarray, " n"]
    finding_names: tuple[str, ...]
    # (image id, path[, path of the earlier image]) of each number, as `QARecord.shown`.
    shown: tuple[tuple[str, ...], ...]
    # Id of the earlier image of each number; None: there is none.
    earlier_ids: tuple[str | None, ...]
    datasets: tuple[str, ...]  # of the records
    faults: dict[int, Fault] | None  # position of a record -> its fault; None: not checked


_COLUMNS = [f.name for f in dataclasses.fields(RecordIndex) if "ndarray" in str(f.type)]
_WORDS = ("finding_names", "shown", "earlier_ids", "datasets", "faults")


def identity_hash(*parts: str) -> int:
    """A 64-bit number for an identity, above 0 and the same in every process.

    Among 42 million, two differ and have the same number once in 20,000 data sets.
    """
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def find_fault(record: QARecord, record_codec: str) -> Fault | None:
    """Returns what is wrong with a record as far as it says itself, most basic first.

    A record without `image_hw` has no fault here: nothing can be said of its boxes.

    Args:
        record_codec: how answers write boxes, a key of `cxrjax.codecs.CODECS`.
    """
    if record.image_hw is None:
        return None
    try:
        for x_min, y_min, x_max, y_max in record.boxes:
            check_box((x_min, y_min, x_max, y_max), record.image_hw)
        codec = get_codec(record_codec)
        decoded = codec.decode(record.answer_text, *record.image_hw, strict=True)
        for failure in decoded.failures:
            if failure.category not in _NO_BOX:
                raise Unusable(
                    "box_text",
                    f"{failure.text!r} is {failure.category}, expected the notation of "
                    f"{record_codec}",
                )
        classes = closed_classes(record.dataset)
        for name in _named_findings(record) if classes else ():
            if name not in classes:
                raise Unusable("unknown_class", f"{name!r} is not a class of {record.dataset}")
    except Unusable as verdict:
        return Fault(record.question_id, verdict.reason, verdict.found)
    return None


def _named_findings(record: QARecord) -> Iterator[str]:
    """Every finding the record names as such."""
    for answer in record.answers:
        yield from answer.labels
    if record.gt_finding is not None:
        yield record.gt_finding
    if record.finding is not None:
        yield record.finding


def read_index(path: Path, record_codec: str | None = None) -> RecordIndex:
    """Returns the columns of a file, cached where its faults are requested.

    Args:
        record_codec: find the records' faults, their answers in this box format.

    Raises:
        UserError: the file cannot be read, or has a line that is not a record.
    """
    if record_codec is None:
        return _scan(path, None)
    with reading(path, "records"), open_foreign(path) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    cached = f"{_rules(record_codec)}-{{}}.npz".format
    index = _load(cache_folder() / cached(sha256), sha256)
    if index is None:
        index = _scan(path, record_codec)
        _save(cache_folder() / cached(index.sha256), index)
    return index


def _scan(path: Path, record_codec: str | None) -> RecordIndex:
    columns: dict[str, array] = {
        name: array("Q" if name in ("questions", "image_ids", "patients") else "q")
        for name in _COLUMNS
    }
    names: dict[str, int] = {}
    shown: dict[tuple[str, ...], int] = {}
    earlier_ids: list[str | None] = []
    datasets: dict[str, None] = {}
    faults: dict[int, Fault] = {}
    digest = hashlib.sha256()
    start = position = 0
    with reading(path, "records"):
        for number, line in raw_lines(local_copy(path)):
            digest.update(line)
            if line.strip():
                record = parse_record(line, f"{path}:{number}")
                if record.shown not in shown:
                    earlier_ids.append(record.earlier.image_id if record.earlier else None)
                finding, dataset, patient = record.finding, record.dataset, record.patient_id
                datasets[dataset] = None
                row = {
                    "starts": start,
                    "lengths": len(line),
                    "lines": number,
                    "images": shown.setdefault(record.shown, len(shown)),
                    "findings": -1 if finding is None else names.setdefault(finding, len(names)),
                    "answers": len(record.answer_text) + len(record.reason or ""),
                    "questions": identity_hash(dataset, record.question_id),
                    "image_ids": identity_hash(dataset, record.image_id),
                    "patients": identity_hash(dataset, patient) if patient else 0,
                }
                for name, value in row.items():
                    columns[name].append(value)
                columns["sizes"].extend(record.image_hw or (0, 0))
                if record_codec and (fault := find_fault(record, record_codec)):
                    faults[position] = fault
                position += 1
            start += len(line)
    arrays: dict[str, Any] = {name: np.asarray(column) for name, column in columns.items()}
    arrays["sizes"] = arrays["sizes"].astype(np.int32).reshape(-1, 2)
    return RecordIndex(
        digest.hexdigest(),
        **arrays,
        finding_names=tuple(names),
        shown=tuple(shown),
        earlier_ids=tuple(earlier_ids),
        datasets=tuple(datasets),
        faults=faults if record_codec else None,
    )


def cache_folder() -> Path:
    """The folder of the columns of records files that were checked."""
    return user_cache() / "records"


@functools.cache
def _rules(record_codec: str) -> str:
    """A short name for the code that judges records: other code judges them again."""
    modules = (__name__, *_RULES, type(get_codec(record_codec)).__module__)
    code = hashlib.sha256(record_codec.encode())
    for name in modules:
        code.update(read_bytes(str(importlib.import_module(name).__file__)))
    return code.hexdigest()[:16]


def _save(file: Path, index: RecordIndex) -> None:
    """Caches an index where that is possible; without it the next start takes longer."""
    words: dict[str, Any] = {name: getattr(index, name) for name in _WORDS}
    words["classes"] = {name: closed_classes(name) for name in index.datasets}
    content = np.frombuffer(json.dumps(words).encode(), np.uint8)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{uuid.uuid4().hex}")
        with open(unfinished, "wb") as out:
            np.savez(out, words=content, **{name: getattr(index, name) for name in _COLUMNS})
        unfinished.replace(file)
    except OSError:
        return


def _load(file: Path, sha256: str) -> RecordIndex | None:
    """A cached index; None where there is none, or a damaged one, or classes have changed."""
    try:
        with np.load(file) as content:
            columns = {name: content[name] for name in _COLUMNS}
            words = parse_object(content["words"].tobytes())
        if any(list(closed_classes(name)) != known for name, known in words["classes"].items()):
            return None
        return RecordIndex(
            sha256,
            **columns,
            finding_names=tuple(words["finding_names"]),
            shown=tuple(map(tuple, words["shown"])),
            earlier_ids=tuple(words["earlier_ids"]),
            datasets=tuple(words["datasets"]),
            faults={int(key): Fault(*fault) for key, fault in words["faults"].items()},
        )
    except _DAMAGED:
        return None
