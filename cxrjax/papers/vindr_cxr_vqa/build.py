"""From what one can get of VinDr-CXR-VQA (table, release file, images) to a data set on disk.

`source.py` says what a source is made of. Without the release file, questions are constructed from
the table.
"""

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import tqdm

from cxrjax.errors import UserError
from cxrjax.files import file_sha256, write_json, writing
from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.box_table import check_image_labels, read_box_table
from cxrjax.papers.vindr_cxr_vqa.construct.mix import MIXES
from cxrjax.papers.vindr_cxr_vqa.construct.plan import Assembly, PlannedQuestion, Writer
from cxrjax.papers.vindr_cxr_vqa.construct.splits import (
    Images,
    PlannedSplits,
    Questions,
    pick_normal,
    plan_splits,
)
from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import TemplateWriter
from cxrjax.papers.vindr_cxr_vqa.image_files import ImageFiles, annotate_sizes, join_image_files
from cxrjax.papers.vindr_cxr_vqa.native import FILE_NAME, read_native, write_native
from cxrjax.papers.vindr_cxr_vqa.source import SPLIT as TEST_SPLIT
from cxrjax.papers.vindr_cxr_vqa.source import (
    Source,
    find_source,
    join_table,
    read_official_test,
    sample_test300,
)
from cxrjax.papers.vindr_cxr_vqa.statistics import (
    PAPER,
    SOURCE_TABLE,
    annotation_values,
    fill_rates,
    recall_ceiling,
    table_3,
    table_values,
    tables,
)
from cxrjax.records import Provenance, QARecord
from cxrjax.records_io.builder import finish_build, prepare_folder, write_split
from cxrjax.records_io.quality import QualityLog
from cxrjax.records_io.sizes import read_size_table
from cxrjax.records_io.split import follow_manifest, read_split_manifest, stratified_validation
from cxrjax.records_io.statistics import Published, RecordStatistics, compare

SPLITS = ("train", "validation")
SPLIT_FILE = "splits.json"
TABLES_FILE = "tables.md"


@dataclasses.dataclass(frozen=True)
class VinDrBuild:
    """What to build, from what.

    Attributes:
        sizes: table of image sizes.
        mix: a key of `MIXES`.
        list_all: whether each image with findings is also asked for all of them.
        split_manifest: image ids per split; None: stratified by the seed.
    """

    source: Path
    out: Path
    seed: int = 0
    processes: int = 1
    sizes: Path | None = None
    mix: str = "released"
    list_all: bool = False
    split_manifest: Path | None = None


@dataclasses.dataclass
class _Result:
    """What is ready to be written.

    Attributes:
        records: split -> its records, made while they are written.
        images: split -> annotations of its images; empty without a box table.
        order: image ids as the source has them, for the release's form.
        notes: what to say about the build, for manifest.json.
    """

    records: dict[str, Iterable[QARecord]]
    images: dict[str, list[ImageAnnotation]]
    order: list[str]
    notes: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Opened:
    """A source that has been read, images excepted.

    Attributes:
        test: images of the official test part, where the source has it.
        manifest: image id -> split, where one is given.
    """

    source: Source
    table: list[ImageAnnotation] | None
    test: list[ImageAnnotation]
    files: ImageFiles
    manifest: Mapping[str, str] | None


def build_vindr(
    build: VinDrBuild, writer: Writer | None = None, quality: QualityLog | None = None
) -> str:
    """Writes records, questions, the release's form of them, splits, statistics and quality.

    Args:
        writer: gives words to constructed questions; default: the templates.
        quality: becomes quality.json, with what the writer has noted in it.

    Returns:
        What was built, and Table 3 of it, for people.

    Raises:
        UserError: the source cannot be read, nothing usable is in it, or the folder cannot be
            written.
    """
    quality = quality or QualityLog()
    opened = _open(build, quality)
    values: dict[str, float | None] = {}
    published: dict[str, Published] = dict(PAPER)
    if opened.table is not None:
        values |= table_values(opened.table)
        published |= SOURCE_TABLE
    if opened.source.release and writer is not None:
        raise UserError(f"{opened.source.release}: brings its own questions: nothing to word")
    if opened.source.release:
        result = _released(build, opened, quality)
    else:
        result = _constructed(build, opened, writer or TemplateWriter(build.seed), quality)
    return _write(build, opened.source, result, values, published, quality)


def plan_vindr(build: VinDrBuild) -> list[PlannedQuestion]:
    """The questions that `build_vindr` would have worded. Writes nothing.

    Raises:
        UserError: as `build_vindr`.
    """
    quality = QualityLog()
    opened = _open(build, quality)
    if opened.source.release:
        raise UserError(f"{opened.source.release}: brings its own questions: nothing to word")
    questions = _plan(build, opened, quality)
    return [plan for plans in questions.plans.values() for plan in plans]


def _open(build: VinDrBuild, quality: QualityLog) -> _Opened:
    source = find_source(build.source, build.sizes)
    if source.release and (build.mix != "released" or build.list_all):
        raise UserError(
            f"{source.release}: --mix and --questions are about constructed questions; "
            "this source brings its own: name the table alone as --source"
        )
    manifest = read_split_manifest(build.split_manifest) if build.split_manifest else None
    sizes = read_size_table(source.sizes, quality) if source.sizes else None
    files = ImageFiles(source.images, build.out, sizes, build.processes)
    table = read_box_table(source.table, quality) if source.table else None
    if table is not None and source.labels:
        check_image_labels(source.labels, table, quality)
    test = [] if source.release else _test_images(build, source, manifest, quality)
    return _Opened(source, table, test, files, manifest)


def _released(build: VinDrBuild, opened: _Opened, quality: QualityLog) -> _Result:
    """The release's own questions, with what the other pieces know of their images."""
    release, table, files, manifest = (
        opened.source.release,
        opened.table,
        opened.files,
        opened.manifest,
    )
    assert release is not None
    records = read_native(release, quality, _provenance(release))
    if table is not None:
        records = join_table(records, table, release.name, quality)
    if files:
        records = join_image_files(records, files, quality)
    by_id = {image.image_id: image for image in table or []}
    labels: dict[str, set[str]] = collections.defaultdict(set)
    for record in records:
        labels[record.image_id].update(record.answers[0].labels)
    # The table knows all classes of an image; the release, those that it asks about.
    label_sets = {key: by_id[key].present if key in by_id else labels[key] for key in labels}
    split_of = _divide(build, label_sets, by_id, manifest, quality)
    _refuse_nothing(build, split_of, quality)
    splits = _names(split_of.values())
    images = {
        split: [by_id[key] for key in split_of if split_of[key] == split and key in by_id]
        for split in splits
    }
    chosen = {
        split: [
            record.model_copy(update={"split": split})
            for record in records
            if split_of.get(record.image_id) == split
        ]
        for split in splits
    }
    return _Result(dict(chosen), images if table is not None else {}, list(label_sets), {})


def _plan(build: VinDrBuild, opened: _Opened, quality: QualityLog) -> PlannedSplits:
    """Questions planned from the table, by split."""
    table, test, files, manifest = opened.table, opened.test, opened.files, opened.manifest
    assert table is not None  # find_source saw to it
    mix = MIXES[build.mix]
    abnormal = [image for image in table if image.findings]
    train_only = [i for i in table if (manifest or {}).get(i.image_id, "train") == "train"]
    normal = pick_normal(train_only, mix, build.seed)
    if files:
        usable = annotate_sizes([*abnormal, *normal], files, quality)
        abnormal = [image for image in usable if image.findings]
        normal = [image for image in usable if image.normal]
    label_sets = {image.image_id: image.present for image in abnormal}
    known = {image.image_id for image in (*table, *test)}
    split_of = _divide(build, label_sets, known, manifest, quality)
    _refuse_nothing(build, split_of, quality)
    splits: dict[str, list[ImageAnnotation]] = {
        split: [image for image in abnormal if split_of.get(image.image_id) == split]
        for split in _names(split_of.values())
    }
    if test:
        splits[TEST_SPLIT] = test
    return plan_splits(Images(splits, normal), Questions(mix, build.list_all), build.seed)


def _constructed(
    build: VinDrBuild, opened: _Opened, writer: Writer, quality: QualityLog
) -> _Result:
    """Questions planned from the table, in the writer's words."""
    questions = _plan(build, opened, quality)
    source, table = opened.source, opened.table
    assert source.table is not None and table is not None
    sources = {split: _provenance(source.table) for split in questions.plans}
    if opened.test:
        assert source.test is not None
        sources[TEST_SPLIT] = _provenance(source.test.table)
    records: dict[str, Iterable[QARecord]] = {
        split: tqdm.tqdm(
            Assembly("vindr_cxr_vqa", writer, sources[split]).records(plans, split),
            desc=f"{split} questions",
            total=len(plans),
            unit="question",
        )
        for split, plans in questions.plans.items()
    }
    images = {
        split: list({plan.image.image_id: plan.image for plan in plans}.values())
        for split, plans in questions.plans.items()
    }
    order = [image.image_id for image in (*table, *opened.test)]
    return _Result(records, images, order, {"mix": build.mix, **questions.notes})


def _test_images(
    build: VinDrBuild,
    source: Source,
    manifest: Mapping[str, str] | None,
    quality: QualityLog,
) -> list[ImageAnnotation]:
    """Images with findings of the official test part: the manifest's, or a sample."""
    if source.test is None:
        return []
    images = [image for image in read_official_test(source.test, quality) if image.findings]
    files = ImageFiles(source.test.images, build.out, None, build.processes)
    if files:
        images = annotate_sizes(images, files, quality)
    if manifest and TEST_SPLIT in manifest.values():
        return [image for image in images if manifest.get(image.image_id) == TEST_SPLIT]
    return sample_test300(images, build.seed)


def _divide(
    build: VinDrBuild,
    label_sets: Mapping[str, Iterable[str]],
    known: Collection[str],
    manifest: Mapping[str, str] | None,
    quality: QualityLog,
) -> dict[str, str]:
    """Image id -> split, by the manifest or stratified; `known`: images that are not divided."""
    if manifest is not None:
        assert build.split_manifest is not None
        return follow_manifest(manifest, label_sets, known, build.split_manifest.name, quality)
    validation = stratified_validation(
        {key: list(labels) for key, labels in label_sets.items()}, build.seed
    )
    return {key: "validation" if key in validation else "train" for key in label_sets}


def _names(splits: Iterable[str]) -> list[str]:
    """Training and validation, empty or not, and what other splits there are."""
    return list(dict.fromkeys([*SPLITS, *sorted(set(splits))]))


def _refuse_nothing(build: VinDrBuild, images: Mapping[str, str], quality: QualityLog) -> None:
    if not images:
        counts = {reason: n for reason, n in quality.counts().items() if n}
        raise UserError(f"{build.source}: no question left to write; set aside: {counts or 'none'}")


def _write(
    build: VinDrBuild,
    source: Source,
    result: _Result,
    values: dict[str, float | None],
    published: dict[str, Published],
    quality: QualityLog,
) -> str:
    prepare_folder(build.out, result.records)
    statistics = RecordStatistics()
    splits: dict[str, Any] = {}
    written: list[QARecord] = []
    members: dict[str, list[str]] = {}
    for split, records in result.records.items():
        # The test images are none of the paper's 4,394.
        counted = statistics if split != TEST_SPLIT else RecordStatistics()
        kept: list[QARecord] = []
        splits[split] = write_split(build.out, split, _keeping(records, kept), counted)
        members[split] = list(dict.fromkeys(record.image_id for record in kept))
        if split == "validation":
            values["validation_recall_ceiling"] = recall_ceiling(result.images.get(split, []), kept)
        # The release's form has one finding a question: the questions for all have no place in it.
        written += [record for record in kept if len(record.answers) == 1]
    rank = {image_id: number for number, image_id in enumerate(result.order)}
    written.sort(key=lambda record: rank[record.image_id])
    values |= statistics.values()
    own = {split: images for split, images in result.images.items() if split != TEST_SPLIT}
    if own:
        values |= annotation_values(own)
    if TEST_SPLIT in splits:
        values["test_images"] = splits[TEST_SPLIT]["images"]
    values |= fill_rates(written)
    entries = compare(values, published)
    generator = written[0].generator if written else None
    name = f"{generator.name} {generator.version}" if generator else "the release"
    built = f"Source: {build.source.name}; questions by {name}; " + "; ".join(
        f"{key} {value}" for key, value in {"seed": build.seed, **result.notes}.items()
    )
    with writing(build.out):
        write_native(build.out / FILE_NAME, written)
        write_json(build.out / SPLIT_FILE, members)
        (build.out / TABLES_FILE).write_text(tables(entries, name, built), "utf-8")
    pieces = {
        "table": source.table,
        "release": source.release,
        "sizes": source.sizes,
        "test": source.test.table if source.test else None,
        "split_manifest": build.split_manifest,
    }
    finish_build(
        build.out,
        quality,
        entries,
        {
            "dataset": "vindr_cxr_vqa",
            "seed": build.seed,
            "generator": generator.model_dump() if generator else None,
            **result.notes,
            "source": {
                name: {"path": path.name, "sha256": file_sha256(path)}
                for name, path in pieces.items()
                if path
            },
            "splits": splits,
        },
    )
    return f"{built}\n\n{table_3(entries)}"


def _keeping(records: Iterable[QARecord], kept: list[QARecord]) -> Iterable[QARecord]:
    for record in records:
        kept.append(record)
        yield record


def _provenance(path: Path) -> Provenance:
    return Provenance(source_file=path.name, source_sha256=file_sha256(path))
