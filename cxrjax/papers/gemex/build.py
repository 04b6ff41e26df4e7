"""From what one can get of GEMeX to a data set on disk. A source is one of

FOLDER with sub_training_data.json, test/*_question.jsonl   the released questions, as they are
FOLDER or zip with <dicom_id>_SceneGraph.json           constructed: regions and boxes; beside
    mimic-cxr-*-split.csv.gz, mimic-cxr-*-metadata.csv.gz and files/p1x/... where there are any
NLMCXR_reports.tgz, its folder or wheel (OpenI)         constructed: regions without boxes
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tqdm

from cxrjax.errors import UserError
from cxrjax.files import file_sha256, writing
from cxrjax.papers.gemex import native_files
from cxrjax.papers.gemex.box_convention import BOX_FORMATS
from cxrjax.papers.gemex.construct.construction import GemexConstruction, findings_of
from cxrjax.papers.gemex.construct.curation import TEST_IMAGES, classes_of, curate
from cxrjax.papers.gemex.construct.drawings import draw_figures
from cxrjax.papers.gemex.construct.questions import QuestionGenerator, RefinedReport
from cxrjax.papers.gemex.construct.refine import Refiner, RuleRefiner
from cxrjax.papers.gemex.construct.template_generator import TemplateGenerator
from cxrjax.papers.gemex.source_images import (
    check,
    images_beside,
    records_with_images,
    reports_with_images,
)
from cxrjax.papers.gemex.statistics import PAPER, GemexStatistics, table_3
from cxrjax.papers.sources import mimic_tables
from cxrjax.papers.sources.graph_files import (
    GraphFile,
    find_scene_graphs,
    image_paths,
    read_reports,
    read_scene_graph,
)
from cxrjax.papers.sources.openi import OpenIReport, is_openi, read_openi
from cxrjax.papers.sources.report import ImageReport, ReportSentence, split_sentences
from cxrjax.radiology_text.english import comparing_word
from cxrjax.records import Provenance, QARecord, read_records
from cxrjax.records_io.builder import finish_build, prepare_folder, write_split
from cxrjax.records_io.quality import QualityLog, Unusable
from cxrjax.records_io.split import validation_groups
from cxrjax.records_io.statistics import RecordStatistics, compare

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class GemexBuild:
    """What to build, from what.

    Attributes:
        coord_format: of released files' boxes: `xyxy`, `xywh`, or `auto`, by each file's evidence.
        keep_reports: whether released rows keep `ori_report`, a credentialed text.
        drop_longitudinal: whether released questions that compare with an earlier study are set
            aside; else they are kept and counted.
        test_images: most test images of a construction; of more, those that fit Figure 7 best.
    """

    source: Path
    out: Path
    seed: int = 0
    processes: int = 1
    coord_format: str = "auto"
    keep_reports: bool = False
    drop_longitudinal: bool = False
    test_images: int = TEST_IMAGES

    def __post_init__(self) -> None:
        if self.coord_format not in BOX_FORMATS:
            raise UserError(f"--coord_format={self.coord_format}: expected one of {BOX_FORMATS}")
        if self.test_images < 1:
            raise UserError(f"--test_images={self.test_images}: expected at least 1")


def build_gemex(
    build: GemexBuild,
    refiner: Refiner | None = None,
    generator: QuestionGenerator | None = None,
    quality: QualityLog | None = None,
) -> None:
    """Writes records, questions, the release's form of them, statistics, figures and quality.

    Args:
        refiner, generator: rules and templates, where none are given.
        quality: the log that they write to, where they write to one.

    Raises:
        UserError: the source cannot be read, nothing usable is in it, or the folder cannot be
            written.
    """
    released = _released(build.source)
    if released:
        _build_released(build, released)
        return
    quality = QualityLog() if quality is None else quality
    splits, reports_of = _reports(build, quality)
    construction = GemexConstruction(
        refiner or RuleRefiner(), generator or TemplateGenerator(build.seed), quality
    )
    _build_constructed(build, construction, splits, reports_of)


def plan_gemex(build: GemexBuild) -> list[RefinedReport]:
    """The reports that a construction would ask about, refined by rules; for estimates.

    Raises:
        UserError: as `build_gemex`.
    """
    quality = QualityLog()
    splits, reports_of = _reports(build, quality)
    construction = GemexConstruction(RuleRefiner(), TemplateGenerator(build.seed), quality)
    return [one for split in splits for one in construction.refine(reports_of(split))]


_ReportsOf = Callable[[str], Iterable[ImageReport]]


def _reports(build: GemexBuild, quality: QualityLog) -> tuple[dict[str, list[str]], _ReportsOf]:
    """(split -> ids, split -> reports) of a source to construct from."""
    source = build.source
    if not source.exists():
        raise UserError(f"{source}: no such file or folder")
    graphs = find_scene_graphs(source, quality)
    if graphs:
        splits = _graph_splits(build, graphs)
        sizes = _sizes(source)
        images = images_beside(source)

        def from_graphs(split: str) -> Iterable[ImageReport]:
            found = read_reports(graphs, splits[split], sizes, quality)
            if images is None:
                return found
            paths = image_paths(graphs, splits[split])
            checks = check(paths, images, build.out, quality, build.processes)
            return reports_with_images(found, checks, build.out, quality)

        return splits, from_graphs
    if is_openi(source):
        openi = {one.report_id: _openi_report(one) for one in read_openi(source, quality)}
        held_out = validation_groups(set(openi), build.seed)
        splits = {
            "train": [one for one in openi if one not in held_out],
            "validation": [one for one in openi if one in held_out],
        }
        return splits, lambda split: (openi[one] for one in splits[split])
    raise UserError(
        f"{source}: found no {native_files.TRAIN_FILE}, no {native_files.TEST_PATTERN}, no scene "
        "graphs (*_SceneGraph.json) and no OpenI reports; data/gemex/README.md shows the layouts"
    )


def _build_constructed(
    build: GemexBuild,
    construction: GemexConstruction,
    splits: Mapping[str, Sequence[str]],
    reports_of: _ReportsOf,
) -> None:
    quality = construction.quality
    prepare_folder(build.out, splits)
    counts, statistics = RecordStatistics(), GemexStatistics()
    entries: dict[str, Any] = {}
    for split, ids in splits.items():
        reports = tqdm.tqdm(reports_of(split), total=len(ids), unit="report", desc=split)
        refined: Iterable[RefinedReport] = construction.refine(reports)
        if split == "test":
            # Held in memory: MIMIC-CXR's test split has some three thousand reports.
            refined = _curated(list(refined), build, statistics)
        records = statistics.watch(construction.records(refined, split))
        entries[split] = write_split(build.out, split, records, counts)
    statistics.regions = construction.regions
    if not any(entry["questions"] for entry in entries.values()):
        named = {reason: n for reason, n in quality.counts().items() if n}
        raise UserError(f"{build.source}: no question left to write; set aside: {named or 'none'}")
    _finish(
        build,
        quality,
        counts,
        statistics,
        entries,
        {
            "refiner": {"name": construction.refiner.name, "version": construction.refiner.version},
            "generator": {
                "name": construction.generator.name,
                "version": construction.generator.version,
            },
        },
    )


def _curated(
    refined: Sequence[RefinedReport], build: GemexBuild, statistics: GemexStatistics
) -> list[RefinedReport]:
    labels = {one.report.image_id: findings_of(one) for one in refined}
    chosen = set(curate(labels, build.seed, build.test_images))
    for image_id in sorted(chosen):
        statistics.classes.update(labels[image_id])
    return [one for one in refined if one.report.image_id in chosen]


def _finish(
    build: GemexBuild,
    quality: QualityLog,
    counts: RecordStatistics,
    statistics: GemexStatistics,
    entries: Mapping[str, Any],
    made_by: Mapping[str, Any],
) -> None:
    with writing(build.out):
        _write_released_form(build.out, entries)
    draw_figures(build.out / "figures", statistics)
    values = counts.values() | statistics.values()
    for split, entry in entries.items():
        values[f"{split}_images"] = entry["images"]
    with writing(build.out):
        (build.out / "tables.md").write_text(table_3(values), encoding="utf-8")
    if values["images_with_more_than_11_questions"]:
        quality.warnings["images with more than 11 questions"] = int(
            values["images_with_more_than_11_questions"]
        )
    source = {"path": build.source.name}
    if build.source.is_file():
        source["sha256"] = file_sha256(build.source)
    finish_build(
        build.out,
        quality,
        compare(values, PAPER),
        {
            "dataset": "gemex",
            "seed": build.seed,
            "source": source,
            **made_by,
            "splits": dict(entries),
        },
    )


def _write_released_form(out: Path, entries: Mapping[str, Any]) -> None:
    """The records in the release's files, under native/."""
    folder = out / "native"
    folder.mkdir(exist_ok=True)
    if "train" in entries:
        native_files.write_train(
            folder / native_files.TRAIN_FILE, read_records(out / "records/train.jsonl")
        )
    if "test" in entries:
        native_files.write_test(
            folder / native_files.TEST_FOLDER, read_records(out / "records/test.jsonl")
        )


def _released(source: Path) -> list[tuple[Path, str]]:
    """(file, split) of released files at a path."""
    if source.is_file():
        if source.suffix == ".json":
            return [(source, "train")]
        return [(source, "test")] if source.suffix == ".jsonl" else []
    train = source / native_files.TRAIN_FILE
    return [
        *([(train, "train")] if train.is_file() else []),
        *(
            (file, "test")
            for folder in (source, source / native_files.TEST_FOLDER)
            for file in sorted(folder.glob(native_files.TEST_PATTERN))
        ),
    ]


def _build_released(build: GemexBuild, files: Sequence[tuple[Path, str]]) -> None:
    quality = QualityLog()
    counts, statistics = RecordStatistics(), GemexStatistics()
    splits = [split for split in SPLITS if any(split == one for _, one in files)]
    prepare_folder(build.out, splits)
    images = images_beside(build.source)
    entries = {}
    formats = {}
    for split in splits:
        chosen = [file for file, one in files if one == split]
        for file in chosen:
            formats[file.name] = native_files.box_format(file, build.coord_format)
        rows = (
            record
            for file in chosen
            for record in native_files.read_native(
                file,
                split,
                quality,
                formats[file.name],
                build.keep_reports,
                Provenance(source_file=file.name, source_sha256=file_sha256(file)),
            )
        )
        records = tqdm.tqdm(rows, unit="question", desc=split)
        if build.drop_longitudinal:
            records = _without_comparisons(records, quality)
        if images:
            paths = (path for file in chosen for path in native_files.image_paths(file))
            checks = check(paths, images, build.out, quality, build.processes)
            records = records_with_images(records, checks, build.out, quality)
        entries[split] = write_split(build.out, split, statistics.watch(records), counts)
    if not any(entry["questions"] for entry in entries.values()):
        named = {reason: n for reason, n in quality.counts().items() if n}
        raise UserError(f"{build.source}: no usable question; set aside: {named or 'none'}")
    _count_reports([file for file, split in files if split == "test"], statistics)
    _finish(build, quality, counts, statistics, entries, {"coord_format": formats})


def _count_reports(files: Iterable[Path], statistics: GemexStatistics) -> None:
    """Figures 3 and 7 of the released test images: their reports, by the rules' refiner."""
    texts = {image: text for file in files for image, text in native_files.reports(file).items()}
    reports = (
        ImageReport(image, image, image, tuple(map(ReportSentence, split_sentences(text))), {})
        for image, text in sorted(texts.items())
    )
    for _, refinement in RuleRefiner().refine(reports):
        statistics.regions.update(sentence.region for sentence in refinement.sentences)
        statistics.classes.update(classes_of(refinement.sentences))


def _without_comparisons(records: Iterable[QARecord], quality: QualityLog) -> Iterator[QARecord]:
    """The records that one image can answer (of the released sample one in five cannot)."""
    for record in records:
        word = comparing_word(record)
        if word is None:
            yield record
        else:
            source = record.provenance.source_file if record.provenance else ""
            quality.set_aside("longitudinal", record.question_id, source, f"the word {word!r}")


def _sizes(source: Path) -> dict[str, tuple[int, int]]:
    table = mimic_tables.find_table(source, mimic_tables.METADATA_PATTERN)
    return mimic_tables.read_sizes(table) if table else {}


def _graph_splits(build: GemexBuild, graphs: Mapping[str, GraphFile]) -> dict[str, list[str]]:
    """split -> image ids: by MIMIC-CXR's table, else 15 % of the patients for validation."""
    table = mimic_tables.find_table(build.source, mimic_tables.SPLIT_PATTERN)
    ids = sorted(graphs)
    if table:
        splits = mimic_tables.read_splits(table)
        missing = [image_id for image_id in ids if image_id not in splits]
        if missing:
            raise UserError(f"{table}: has no image {missing[0]}, of which there is a graph")
        return {split: [i for i in ids if splits[i] == split] for split in SPLITS}
    groups = {image_id: _patient(graphs[image_id], image_id) for image_id in ids}
    held_out = validation_groups(set(groups.values()), build.seed)
    return {
        split: [i for i in ids if (groups[i] in held_out) == (split == "validation")]
        for split in SPLITS[:2]
    }


def _patient(place: GraphFile, image_id: str) -> str:
    """Whose image it is; of an unreadable graph, which is set aside later, the image itself."""
    try:
        return read_scene_graph(place).patient_id
    except Unusable:
        return image_id


def _openi_report(report: OpenIReport) -> ImageReport:
    texts = [*split_sentences(report.findings), *split_sentences(report.impression)]
    image_id = report.image_ids[0] if report.image_ids else report.report_id
    return ImageReport(
        report_id=report.report_id,
        image_id=report.report_id,
        image_path=f"images/{image_id}.png",
        sentences=tuple(ReportSentence(text) for text in texts),
        boxes={},
        study_id=report.report_id,
        where=report.where,
    )
