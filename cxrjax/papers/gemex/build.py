"""Builds a data set from one of GEMeX's sources:

FOLDER with sub_training_data.json, test/*_question.jsonl   the released questions, unchanged;
    *valid*.json too, or else 1 % of the patients of training are for validation
FOLDER or zip with <dicom_id>_SceneGraph.json           constructed: regions and boxes; beside
    mimic-cxr-*-split.csv.gz, mimic-cxr-*-metadata.csv.gz and files/p1x/... where there are any
NLMCXR_reports.tgz, its folder or wheel (OpenI)         constructed: regions without boxes
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from cxrjax.errors import UserError
from cxrjax.files import file_sha256
from cxrjax.language_model.flags import ClientFlags
from cxrjax.papers.gemex import native_files
from cxrjax.papers.gemex.construct.construction import (
    TEST_IMAGES,
    GemexConstruction,
    classes_of,
    curate,
    findings_of,
)
from cxrjax.papers.gemex.construct.questions import QuestionGenerator, RefinedReport
from cxrjax.papers.gemex.construct.refine import Refiner, RuleRefiner
from cxrjax.papers.gemex.construct.template_generator import TemplateGenerator
from cxrjax.papers.gemex.native import patient_of
from cxrjax.papers.gemex.native_files import (
    check,
    images_beside,
    records_with_images,
    reports_with_images,
)
from cxrjax.papers.gemex.statistics import PAPER, TABLE_3, GemexStatistics
from cxrjax.papers.sources import chest_imagenome, mimic_tables
from cxrjax.papers.sources.openi import OpenIReport, is_openi, read_openi
from cxrjax.papers.sources.report import ImageReport, ReportSentence, split_sentences
from cxrjax.progress import progress_bar
from cxrjax.radiology_text.english import comparing_word
from cxrjax.radiology_text.error_rates import about_reading
from cxrjax.records import Provenance, QARecord, read_records
from cxrjax.records_io.builder import Builder, SourceOptions, describe_file
from cxrjax.records_io.quality import QualityLog, Unusable
from cxrjax.records_io.row_files import ROWS, UNPACKED, find_shards
from cxrjax.records_io.split import divide, validation_groups
from cxrjax.records_io.statistics import tables_markdown

if TYPE_CHECKING:
    from cxrjax.papers.gemex.construct.language_model import (
        LanguageModelGenerator,
        LanguageModelRefiner,
    )

SPLITS = ("train", "validation", "test")
_GIVES_AWAY = 5  # points above chance
_HELD_OUT_PERCENT = 1  # of the patients; of its images the paper validated on 0.8 %
ReportsOf = Callable[[str], Iterable[ImageReport]]


@dataclasses.dataclass(frozen=True)
class GemexOptions(SourceOptions):
    """Flags of GEMeX.

    Attributes:
        coord_format: of released files' boxes; auto: by each file's evidence.
        keep_reports: keep ori_report of released rows, which is credentialed text.
        drop_longitudinal: set released questions aside that compare with an earlier examination;
            else they are kept and counted.
        test_images: most test images of a construction; of more, those that fit Figure 7 best.
        generator: what words constructed questions.
        demonstrations: image-question pairs that a language model is shown, JSON Lines; None: 30
            of the package.
    """

    coord_format: Literal["auto", "xyxy", "xywh"] = "auto"
    keep_reports: bool = False
    drop_longitudinal: bool = False
    test_images: int = TEST_IMAGES
    generator: Literal["templates", "language_model"] = "templates"
    demonstrations: Path | None = None
    client: ClientFlags = dataclasses.field(default_factory=ClientFlags)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test_images < 1:
            raise UserError(f"--test_images={self.test_images}: expected at least 1")


class GemexBuilder(Builder[GemexOptions]):
    """Writes records, the release's form of them, figures and Table 3."""

    dataset = "gemex"
    options_class = GemexOptions

    def __init__(self, options: GemexOptions) -> None:
        super().__init__(options)
        self.published = PAPER
        self.statistics = GemexStatistics()
        self._made_by: dict[str, Any] = {}
        self._patients: set[str] = set()  # of training rows, held out for validation
        self._held_out: list[QARecord] = []

    def balance_rule(self) -> str:
        if "refiner" not in self._made_by:  # the release
            return super().balance_rule()
        return (
            "constructed closed and choice questions: sets with the same options, each right once"
        )

    @functools.cached_property
    def construction(self) -> GemexConstruction:
        """Refines reports and asks about them."""
        refiner: Refiner = RuleRefiner()
        generator: QuestionGenerator = TemplateGenerator(self.options.seed)
        if self.options.generator == "language_model":
            refiner, generator = self._stages
        return GemexConstruction(refiner, generator, self.quality)

    @functools.cached_property
    def _stages(self) -> "tuple[LanguageModelRefiner, LanguageModelGenerator]":
        from cxrjax.papers.gemex.construct.language_model import make_stages

        options = self.options
        terms = (options.client, options.out, options.seed, self.quality)
        return make_stages(*terms, options.demonstrations)

    def estimate(self) -> str | None:
        if self.options.generator == "templates" or not self.options.client.dry_run:
            return None
        refiner, generator = self._stages
        refined = self.plan()
        first = refiner.estimate(one.report for one in refined)
        return f"refining: {first}\nquestions: {generator.estimate(refined)}"

    def plan(self) -> list[RefinedReport]:
        """The reports that a construction would ask about, refined by rules; for estimates.

        Raises:
            UserError: as `read`.
        """
        splits, reports_of = self._reports()
        rules = TemplateGenerator(self.options.seed)
        construction = GemexConstruction(RuleRefiner(), rules, QualityLog())
        return [one for split in splits for one in construction.refine(reports_of(split))]

    @functools.cached_property
    def _source(self) -> Path:
        """The source; where it has rows as the hub has them, the folder they are unpacked into."""
        source, unpacked = self.options.source, self.options.out / UNPACKED
        if _released(source) or not (shards := find_shards(source, ROWS)):
            return source
        native_files.unpack_rows(shards, unpacked, self.quality)
        return unpacked

    def read(self) -> Mapping[str, Iterable[QARecord]]:
        if released := _released(self._source):
            return self._read_released(released)
        splits, reports_of = self._reports()
        made = self.construction
        self.statistics.regions = made.regions
        for role, one in (("refiner", made.refiner), ("generator", made.generator)):
            self._made_by[role] = {"name": one.name, "version": one.version}
        return {split: self._constructed(split, ids, reports_of) for split, ids in splits.items()}

    def _constructed(
        self, split: str, ids: Sequence[str], reports_of: ReportsOf
    ) -> Iterator[QARecord]:
        reports = progress_bar(reports_of(split), total=len(ids), unit="report", desc=split)
        refined: Iterable[RefinedReport] = self.construction.refine(reports)
        if split == "test":
            # Held in memory: MIMIC-CXR's test split has some three thousand reports.
            refined = self._curated(list(refined))
        yield from self.statistics.watch(self.construction.records(refined, split))

    def _curated(self, refined: Sequence[RefinedReport]) -> list[RefinedReport]:
        labels = {one.report.image_id: findings_of(one) for one in refined}
        chosen = set(curate(labels, self.options.seed, self.options.test_images))
        for image_id in sorted(chosen):
            self.statistics.classes.update(labels[image_id])
        return [one for one in refined if one.report.image_id in chosen]

    def _reports(self) -> tuple[dict[str, list[str]], ReportsOf]:
        """(split -> ids, split -> reports) of a source to construct from."""
        options, quality = self.options, self.quality
        source = options.source
        if not source.exists():
            raise UserError(f"{source}: no such file or folder")
        graphs = chest_imagenome.find_scene_graphs(source, quality)
        if graphs:
            splits = _graph_splits(source, options.seed, graphs)
            sizes = _sizes(source)
            images = images_beside(source)

            def from_graphs(split: str) -> Iterable[ImageReport]:
                found = chest_imagenome.read_reports(graphs, splits[split], sizes, quality)
                if images is None:
                    return found
                paths = chest_imagenome.image_paths(graphs, splits[split])
                checks = check(paths, images, options.out, quality, options.processes)
                return reports_with_images(found, checks, options.out, quality)

            return splits, from_graphs
        if is_openi(source):
            openi = {one.report_id: _openi_report(one) for one in read_openi(source, quality)}
            splits = divide(openi, lambda one: one, options.seed)
            return splits, lambda split: (openi[one] for one in splits[split])
        raise UserError(
            f"{source}: found no {native_files.TRAIN_FILE}, no {native_files.TEST_PATTERN}, no "
            "*.parquet, no scene graphs (*_SceneGraph.json) and no OpenI reports; "
            "data/gemex/README.md shows the layouts"
        )

    def _read_released(self, files: Sequence[tuple[Path, str]]) -> dict[str, Iterable[QARecord]]:
        convention = self.options.coord_format
        formats = {file.name: native_files.box_format(file, convention) for file, _ in files}
        self._made_by["coord_format"] = formats
        splits = [split for split in SPLITS if any(split == one for _, one in files)]
        if "train" in splits and "validation" not in splits:
            self._hold_out([file for file, split in files if split == "train"])
            splits[1:1] = ["validation"] * bool(self._patients)
        tests = [file for file, split in files if split == "test"]
        _count_reports(tests, self.statistics)
        records: dict[str, Iterable[QARecord]] = {
            split: self._released_records(split, [file for file, one in files if one == split])
            for split in splits
        }
        if self._patients:  # of training rows, which are read before
            records["validation"] = self.statistics.watch(self._held_out)
        return records

    def _hold_out(self, files: Iterable[Path]) -> None:
        """Chooses patients of the training rows for validation, as no file has its rows."""
        paths = (path for file in files for path in native_files.image_paths(file))
        patients = {patient_of(path) or PurePosixPath(path).stem for path in paths}
        self._patients = validation_groups(patients, self.options.seed, _HELD_OUT_PERCENT)
        held_out = f"validation: {len(self._patients)} of {len(patients)} patients of training rows"
        self._made_by["validation"] = held_out

    def _without_held_out(self, records: Iterable[QARecord]) -> Iterator[QARecord]:
        """Yields the training records that stay, and keeps those held out for validation."""
        for record in records:
            if (record.patient_id or record.image_id) in self._patients:
                self._held_out.append(record.model_copy(update={"split": "validation"}))
            else:
                yield record

    def _released_records(self, split: str, files: Sequence[Path]) -> Iterator[QARecord]:
        options, quality = self.options, self.quality
        rows = (
            record
            for file in files
            for record in native_files.read_native(
                file,
                split,
                quality,
                self._made_by["coord_format"][file.name],
                options.keep_reports,
                Provenance(source_file=file.name, source_sha256=file_sha256(file)),
            )
        )
        records: Iterable[QARecord] = progress_bar(rows, unit="question", desc=split)
        if options.drop_longitudinal:
            records = _without_comparisons(records, quality)
        if images := images_beside(self._source) or images_beside(options.source):
            paths = (path for file in files for path in native_files.image_paths(file))
            checks = check(paths, images, options.out, quality, options.processes)
            records = records_with_images(records, checks, options.out, quality)
        if split == "train":
            records = self._without_held_out(records)
        yield from self.statistics.watch(records)

    def values(self) -> dict[str, float | None]:
        values = self.counts.values() | self.statistics.values()
        for split, entry in self.splits.items():
            values[f"{split}_images"] = entry["images"]
        if left_out := "refiner" in self._made_by and self.construction.generator.left_out:
            self.quality.warnings["questions left out to balance options and contents"] = left_out
        if crowded := values["images_with_more_than_11_questions"]:
            self.quality.warnings["images with more than 11 questions"] = int(crowded)
        for kind, _, _, count in self._told_by_words():
            self.quality.warnings[f"{kind} questions that option words tell"] = count
        return values

    def _told_by_words(self) -> Iterator[tuple[str, float, float, int]]:
        """Yields types of held-out questions that option words alone answer better than chance,
        by more than two standard errors of a guess."""
        for kind, (guessed, luck, count) in self.statistics.giveaways().items():
            error = math.sqrt(luck * (100 - luck) / count)
            if guessed > luck + max(_GIVES_AWAY, 2 * error):
                yield kind, guessed, luck, count

    def nothing_left(self, what: str = "question", remedy: str = "") -> UserError:
        if "refiner" in self._made_by and (left_out := self.construction.generator.left_out):
            remedy = (
                f"; {left_out:,} questions are in no set with the same options and another right "
                "one; add reports, with findings and without"
            )
        return super().nothing_left(what, remedy)

    def write_files(self, comparison: Mapping[str, Any]) -> None:
        out = self.options.out
        _write_released_form(out, self.splits)
        by_rules = "refiner" in self._made_by and self.options.generator == "templates"
        about = [about_reading("openi_en")] if by_rules else []
        text = tables_markdown("GEMeX", about, comparison, {"Table 3": TABLE_3})
        (out / "tables.md").write_text(text, encoding="utf-8")

    def describe(self) -> dict[str, Any]:
        source = self.options.source
        found = describe_file(source) if source.is_file() else {"path": source.name}
        return {"seed": self.options.seed, "source": found, **self._made_by}

    def report(self) -> Iterator[str]:
        for kind, guessed, luck, count in self._told_by_words():
            yield (
                f"Warning: option words alone answer {guessed:.1f} % of {count:,} held-out {kind} "
                f"questions; chance is {luck:.1f} %. A model can learn these without an image."
            )
        if self.options.generator == "language_model":
            refiner, generator = self._stages
            yield json.dumps({"refining": refiner.client.account.to_json()})
            yield json.dumps({"questions": generator.client.account.to_json()})


def _write_released_form(out: Path, entries: Mapping[str, Any]) -> None:
    """The records in the release's files, under native/."""
    folder = out / "native"
    folder.mkdir(exist_ok=True)
    if "train" in entries:
        native_files.write_train(
            folder / native_files.TRAIN_FILE, read_records(out / "records/train.jsonl")
        )
    if "validation" in entries:
        native_files.write_train(
            folder / native_files.VALIDATION_FILE, read_records(out / "records/validation.jsonl")
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
        *((file, "validation") for file in sorted(source.glob(native_files.VALIDATION_PATTERN))),
        *(
            (file, "test")
            for folder in (source, source / native_files.TEST_FOLDER)
            for file in sorted(folder.glob(native_files.TEST_PATTERN))
        ),
    ]


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


def _graph_splits(
    source: Path, seed: int, graphs: Mapping[str, chest_imagenome.GraphFile]
) -> dict[str, list[str]]:
    """split -> image ids: by MIMIC-CXR's table, else 15 % of the patients for validation."""
    table = mimic_tables.find_table(source, mimic_tables.SPLIT_PATTERN)
    ids = sorted(graphs)
    if table:
        splits = mimic_tables.read_splits(table)
        missing = [image_id for image_id in ids if image_id not in splits]
        if missing:
            raise UserError(f"{table}: has no image {missing[0]}, of which there is a graph")
        return {split: [i for i in ids if splits[i] == split] for split in SPLITS}
    groups = {image_id: _patient(graphs[image_id], image_id) for image_id in ids}
    return divide(ids, groups.__getitem__, seed)


def _patient(place: chest_imagenome.GraphFile, image_id: str) -> str:
    """The patient; of an unreadable graph, which is set aside later, the image itself."""
    try:
        return chest_imagenome.read_scene_graph(place).patient_id
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
