"""The release's files to records: images written out, texts checked, four questions a radiograph.

OUT/images/<image id>.jpg                   the images, byte for byte as the rows have them
OUT/records/<split>.jsonl                   all stages
OUT/records/<split>_stage{1,2,3}.jsonl      one stage, to train on
OUT/questions/...                           the same without answers, no history answered
OUT/questions/<split>_stage3_gold.jsonl     stage 3's second turn with the true findings as its
                                            history: an input asked for by choosing this file
OUT/statistics.json, tables.md, phrases.json, body_parts.png, diagnoses.png
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tqdm

from cxrjax.errors import UserError
from cxrjax.files import file_sha256, write_json, writing
from cxrjax.papers.vix_ray.deidentification import find_identifiers
from cxrjax.papers.vix_ray.native import SPLITS, count_rows, find_shards, read_rows, write_rows
from cxrjax.papers.vix_ray.records import NATIVE_ROW, STAGES, VixRayStudy, records, understand
from cxrjax.papers.vix_ray.segmentation import load_segmenter
from cxrjax.papers.vix_ray.statistics import (
    PAPER,
    count_phrases,
    plot_phrases,
    table_values,
    tables_markdown,
)
from cxrjax.records import DatasetName, QARecord, format_record, strip_answers
from cxrjax.records_io.builder import finish_build, prepare_folder, write_split
from cxrjax.records_io.image_check import check_images
from cxrjax.records_io.quality import QualityLog, Unusable
from cxrjax.records_io.split import follow_manifest, read_split_manifest
from cxrjax.records_io.statistics import RecordStatistics, compare

_SUFFIXES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg"}


@dataclasses.dataclass(frozen=True)
class ViXRayBuild:
    """What to build, from what.

    Attributes:
        source: folder with the Parquet files, or with data/ that holds them.
        segmenter: a key of `segmentation.SEGMENTERS`, for the statistics.
        split_manifest: JSON, {split: [image ids]}; None: the release's own division.
    """

    source: Path
    out: Path
    processes: int = 1
    segmenter: str = "pyvi"
    split_manifest: Path | None = None


def build_vix_ray(build: ViXRayBuild) -> None:
    """Writes images, records, questions, statistics and everything set aside.

    An interrupted build reads the rows again, and writes only images that are not there yet.

    Raises:
        UserError: a file is unusable, no row can be used, or the folder cannot be written to.
    """
    segment = load_segmenter(build.segmenter)
    quality = QualityLog()
    prepare_folder(build.out, [f"{s}{part}" for s in SPLITS for part in _PARTS])
    with writing(build.out):
        studies = list(_extract(build, quality))
    studies = list(_measured(build, studies, quality))
    if build.split_manifest is not None:
        studies = _divided(build.split_manifest, studies, quality)
    if not studies:
        first = quality.entries[0] if quality.entries else None
        reason = f"; the first: {first.where}: {first.reason}: {first.found}" if first else ""
        raise UserError(f"{build.source}: no usable row{reason}")
    _note_repeated_images(studies, quality)
    _note_identifiers(studies, quality)
    by_split = {split: [study for study in studies if study.split == split] for split in SPLITS}
    dataset: DatasetName = "synthetic" if any(s.generator for s in studies) else "vix_ray"
    statistics = RecordStatistics()
    entries = {
        split: _write_split(build.out, split, here, dataset, statistics)
        for split, here in by_split.items()
    }
    values = statistics.values() | table_values(by_split, segment)
    comparison = compare(values, PAPER)
    phrases = count_phrases(studies)
    with writing(build.out):
        write_json(build.out / "phrases.json", phrases)
        plot_phrases(phrases, build.out)
        tables = tables_markdown(comparison, phrases, build.segmenter, dataset == "synthetic")
        (build.out / "tables.md").write_text(tables, encoding="utf-8")
    files = [file for _, file in find_shards(build.source)]
    manifest: dict[str, Any] = {
        "dataset": "vix_ray",
        "synthetic": sorted({s.generator for s in studies if s.generator}),
        "segmenter": build.segmenter,
        "source": [{"path": f.name, "sha256": file_sha256(f)} for f in files],
        "splits": entries,
    }
    if build.split_manifest is not None:
        sha256 = file_sha256(build.split_manifest)
        manifest["split_manifest"] = {"path": build.split_manifest.name, "sha256": sha256}
    finish_build(build.out, quality, comparison, manifest)


def native_rows(
    stage1: Iterable[QARecord], image_root: Path
) -> Iterator[tuple[str, tuple[dict[str, Any], bytes]]]:
    """(file name, row for `native.write_rows`) of records of stage 1, as they were read."""
    for record in stage1:
        row = record.quality.get(NATIVE_ROW)
        if row is None:
            raise UserError(
                f"question {record.question_id}: no quality.{NATIVE_ROW}; expected a record of "
                "stage 1, with its answer"
            )
        yield row["file"], (row["columns"], (image_root / record.image_path).read_bytes())


def write_native(folder: Path, stage1: Iterable[QARecord], image_root: Path) -> None:
    """Writes records of stage 1 back into the release's layout, a file at a time.

    Args:
        stage1: in the order in which `build` wrote them, rows of a file together.
        image_root: what their image paths are relative to.
    """
    rows: list[tuple[dict[str, Any], bytes]] = []
    open_file = ""
    for file, row in native_rows(stage1, image_root):
        if rows and file != open_file:
            write_rows(folder / open_file, rows)
            rows = []
        open_file = file
        rows.append(row)
    if rows:
        write_rows(folder / open_file, rows)


# What the files of a split are called after it.
_PARTS = ("", *(f"_{stage}" for stage in STAGES), "_stage3_gold")


def _write_split(
    out: Path,
    split: str,
    studies: Sequence[VixRayStudy],
    dataset: DatasetName,
    statistics: RecordStatistics,
) -> dict[str, Any]:
    """Writes a split's files; returns its entry of the manifest."""

    def stage(name: str) -> Iterator[QARecord]:
        for record in _all():
            if record.question_strategy == name:
                yield record

    def _all() -> Iterator[QARecord]:
        for study in studies:
            yield from records(study, dataset)

    entry = write_split(out, split, _all(), statistics)
    entry["stages"] = {
        name: write_split(out, f"{split}_{name}", stage(name), RecordStatistics())
        for name in STAGES
    }
    gold = out / "questions" / f"{split}_stage3_gold.jsonl"
    with writing(out), open(gold, "w", encoding="utf-8") as file:
        for record in stage("stage3"):
            if record.history:
                asked = strip_answers(record).model_copy(update={"history": record.history})
                file.write(format_record(asked) + "\n")
    entry["stage3_gold_questions_sha256"] = file_sha256(gold)
    return entry


def _extract(build: ViXRayBuild, quality: QualityLog) -> Iterator[VixRayStudy]:
    """Writes each usable row's image; the rows without their images."""
    (build.out / "images").mkdir(exist_ok=True)
    shards = find_shards(build.source)
    rows = read_rows(shards, quality)
    for row in tqdm.tqdm(rows, total=count_rows(shards), unit="row", desc="reading"):
        suffix = next((s for start, s in _SUFFIXES.items() if row.image.startswith(start)), "bin")
        path = f"images/{row.image_id}.{suffix}"
        _write_once(build.out / path, row.image)
        yield understand(row, path, hashlib.sha256(row.image).hexdigest(), quality)


def _write_once(path: Path, content: bytes) -> None:
    if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
        return
    aside = path.with_suffix(".tmp")
    aside.write_bytes(content)
    os.replace(aside, path)


def _measured(
    build: ViXRayBuild, studies: Sequence[VixRayStudy], quality: QualityLog
) -> Iterator[VixRayStudy]:
    """Studies whose image decodes, with its size; others are set aside."""
    paths = [build.out / study.image_path for study in studies]
    checks = check_images(paths, quality, build.out, build.processes)
    for study, path in zip(studies, paths, strict=True):
        try:
            yield dataclasses.replace(study, image_hw=checks[path].size())
        except Unusable as fault:
            quality.set_aside(fault.reason, study.image_id, study.where, fault.found)


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
