"""The release's files to records: images written out, texts checked, four questions a radiograph.

OUT/images/<image id>.jpg                   the images, byte for byte as the rows have them
OUT/records/<split>.jsonl                   all stages
OUT/records/<split>_stage{1,2,3}.jsonl      one stage, to train on
OUT/questions/...                           the same without answers, no history answered
OUT/questions/<split>_stage3_gold.jsonl     stage 3's second turn with the true findings as its
                                            history: an input asked for by choosing this file
OUT/statistics.json, tables.md
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from cxrjax.errors import UserError
from cxrjax.files import file_sha256, reading, writing
from cxrjax.papers.vix_ray import statistics
from cxrjax.papers.vix_ray.deidentification import find_identifiers, redact
from cxrjax.papers.vix_ray.native import (
    SPLITS,
    NativeRow,
    count_rows,
    find_shards,
    read_rows,
    write_rows,
)
from cxrjax.papers.vix_ray.records import NATIVE_ROW, STAGES, VixRayStudy, records, understand
from cxrjax.papers.vix_ray.segmenters import load_segmenter
from cxrjax.progress import progress_bar
from cxrjax.records import QARecord, format_record, strip_answers
from cxrjax.records_io.builder import (
    Builder,
    BuildOptions,
    SourceOptions,
    describe_file,
    write_split,
)
from cxrjax.records_io.image_check import check_images
from cxrjax.records_io.quality import QualityLog
from cxrjax.records_io.split import follow_manifest, read_split_manifest
from cxrjax.records_io.statistics import RecordStatistics
from cxrjax.untrusted.foreign_files import read_bytes
from cxrjax.untrusted.names import path_inside

_SUFFIXES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg"}
# What the files of a split are called after it.
_PARTS = ("", *(f"_{stage}" for stage in STAGES), "_stage3_gold")


@dataclasses.dataclass(frozen=True)
class VixRayOptions(SourceOptions):
    """Flags of ViX-Ray: `source` is a Parquet file, or a folder laid out as the release or the hub.

    Attributes:
        redact: put ___ in the place of what may be a name, date, address or number of a person.
        segmenter: for statistics: pyvi, syllables, vncorenlp.
        split_manifest: JSON {split: [image ids]} (default: the release's own division).
    """

    segmenter: str = "pyvi"
    split_manifest: Path | None = None
    redact: bool = False


class VixRayBuilder(Builder[VixRayOptions]):
    """Writes images, records of each stage and tables.

    An interrupted build reads the rows again, and writes only images that are not there yet.
    """

    dataset = "vix_ray"
    options_class: ClassVar[type[BuildOptions]] = VixRayOptions

    def __init__(self, options: VixRayOptions) -> None:
        super().__init__(options)
        self.studies: dict[str, list[VixRayStudy]] = {}
        self.kind: str = "vix_ray"

    def read(self) -> Mapping[str, Iterable[QARecord]]:
        self.published = statistics.PAPER
        self.segment = load_segmenter(self.options.segmenter)
        out, path = self.options.out, self.options.split_manifest
        self.prepare(SPLITS)
        with writing(out):
            studies = list(_extract(self.options, self.quality))
        studies = list(self._measured(studies))
        if path is not None:
            studies = _divided(path, studies, self.quality)
        if not studies:
            raise self.nothing_left("row")
        _note_repeated_images(studies, self.quality)
        _note_identifiers(studies, self.quality)
        self.kind = "vix_ray_synthetic" if any(s.generator for s in studies) else "vix_ray"
        self.studies = {split: [s for s in studies if s.split == split] for split in SPLITS}
        return {split: self._records(split) for split in SPLITS}

    def _measured(self, studies: Sequence[VixRayStudy]) -> Iterator[VixRayStudy]:
        """Studies whose image decodes, with its size; others are set aside."""
        out = self.options.out
        paths = [out / study.image_path for study in studies]
        checks = check_images(paths, self.quality, out, self.options.processes)
        for study, path in zip(studies, paths, strict=True):
            with self.quality.rejecting(study.image_id, study.where):
                yield dataclasses.replace(study, image_hw=checks[path].size())

    def _records(self, split: str, stage: str | None = None) -> Iterator[QARecord]:
        rejected = {entry.item for entry in self.quality.entries}
        for study in self.studies[split]:
            for record in records(study, self.kind):
                if stage in (None, record.question_strategy) and record.question_id not in rejected:
                    yield record

    def prepare(self, splits: Iterable[str]) -> None:
        super().prepare([f"{split}{part}" for split in splits for part in _PARTS])

    def write_split(self, split: str, records: Iterable[QARecord]) -> dict[str, Any]:
        out = self.options.out
        entry = super().write_split(split, records)
        entry["stages"] = {
            stage: write_split(
                out, f"{split}_{stage}", self._records(split, stage), RecordStatistics()
            )
            for stage in STAGES
        }
        gold = out / "questions" / f"{split}_stage3_gold.jsonl"
        with gold.open("w", encoding="utf-8") as file:
            for record in self._records(split, "stage3"):
                if record.history:
                    asked = strip_answers(record).model_copy(update={"history": record.history})
                    file.write(format_record(asked) + "\n")
        entry["stage3_gold_questions_sha256"] = file_sha256(gold)
        return entry

    def values(self) -> dict[str, float | None]:
        return self.counts.values() | statistics.table_values(self.studies, self.segment)

    def write_files(self, comparison: Mapping[str, Any]) -> None:
        out = self.options.out
        synthetic = self.kind != self.dataset
        tables = statistics.tables(comparison, self.options.segmenter, synthetic)
        (out / "tables.md").write_text(tables, encoding="utf-8")

    def describe(self) -> dict[str, Any]:
        studies = [study for split in self.studies.values() for study in split]
        path = self.options.split_manifest
        return {
            "synthetic": sorted({s.generator for s in studies if s.generator}),
            "segmenter": self.options.segmenter,
            **({"redacted": True} if self.options.redact else {}),
            "source": [describe_file(file) for _, file in find_shards(self.options.source)],
            **({"split_manifest": describe_file(path)} if path else {}),
        }


def write_native(folder: Path, stage1: Iterable[QARecord], image_root: Path) -> None:
    """Writes records of stage 1 back into the release's layout, a file at a time.

    Args:
        stage1: in the order in which `build` wrote them, rows of a file together.
        image_root: what their image paths are relative to.

    Raises:
        UserError: a record has no row, or its image cannot be read.
    """
    for name, group in itertools.groupby(stage1, key=lambda record: _native_row(record)["file"]):
        rows = []
        for record in group:
            with reading(image_root / record.image_path):
                image = read_bytes(path_inside(image_root, record.image_path))
            rows.append((_native_row(record)["columns"], image))
        write_rows(path_inside(folder, str(name)), rows)


def _native_row(record: QARecord) -> Mapping[str, Any]:
    row: Mapping[str, Any] | None = record.quality.get(NATIVE_ROW)
    if row is None:
        raise UserError(
            f"question {record.question_id}: no quality.{NATIVE_ROW}; expected a record of "
            "stage 1, with its answer"
        )
    return row


def _extract(options: VixRayOptions, quality: QualityLog) -> Iterator[VixRayStudy]:
    """Writes each usable row's image; the rows without their images."""
    (options.out / "images").mkdir(exist_ok=True)
    shards = find_shards(options.source)
    rows = read_rows(shards, quality)
    for row in progress_bar(rows, total=count_rows(shards), unit="row", desc="reading"):
        suffix = next((s for start, s in _SUFFIXES.items() if row.image.startswith(start)), "bin")
        path = f"images/{row.image_id}.{suffix}"
        if options.redact:
            row = _redacted(row, quality)
        _write_once(options.out / path, row.image)
        yield understand(row, path, hashlib.sha256(row.image).hexdigest(), quality)


def _redacted(row: NativeRow, quality: QualityLog) -> NativeRow:
    """The row without what may identify a person, in all of its texts, and counts it."""
    native = dict(row.native)
    for column, text in row.native.items():
        if isinstance(text, str):
            native[column], kinds = redact(text)
            quality.warnings.update(f"redacted, possible {kind} of a person" for kind in kinds)
    values = {f: redact(v)[0] if isinstance(v, str) else v for f, v in row.values.items()}
    return dataclasses.replace(row, values=values, native=native)


def _write_once(path: Path, content: bytes) -> None:
    if path.is_file() and path.stat().st_size == len(content) and read_bytes(path) == content:
        return
    aside = path.with_suffix(".tmp")
    aside.write_bytes(content)
    aside.replace(path)


def _divided(path: Path, studies: Sequence[VixRayStudy], quality: QualityLog) -> list[VixRayStudy]:
    """Studies in the splits that the file says; those that it does not name are set aside."""
    manifest = read_split_manifest(path, SPLITS)
    image_ids = [study.image_id for study in studies]
    split_of = follow_manifest(manifest, image_ids, (), path.name, quality)
    return [
        dataclasses.replace(study, split=split_of[study.image_id])
        for study in studies
        if study.image_id in split_of
    ]


def _note_repeated_images(studies: Iterable[VixRayStudy], quality: QualityLog) -> None:
    first: dict[str, VixRayStudy] = {}
    for study in studies:
        other = first.setdefault(study.image_sha256, study)
        if other is not study:
            kind = "in two splits" if other.split != study.split else "twice in a split"
            quality.warnings[f"the same image {kind}"] += 1
            quality.warnings[f"the same image {kind}: {other.image_id}, {study.image_id}"] += 1


def _note_identifiers(studies: Iterable[VixRayStudy], quality: QualityLog) -> None:
    """Counts what may tell who a patient is, and where; never what it says."""
    for study in studies:
        for field in ("findings", "impression", "note"):
            kinds = [found.kind for found in find_identifiers(getattr(study, field))]
            for kind in kinds:
                quality.warnings[f"possible {kind} of a person"] += 1
                place = f"{field} of {study.image_id} ({study.where})"
                quality.warnings[f"possible {kind} of a person: {place}"] += 1
