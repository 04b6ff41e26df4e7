"""Builds a data set from the release, or from reports and regions.

DIR/native/scene_graphs.zip, qa.zip                        constructed content, a file a study
DIR/metadata/<level>_metadata.csv.gz, .parquet             seven levels
DIR/metadata/quality_mappings.csv, DIR/dataset_info.json, DIR/tables.md
DIR/records, questions, statistics.json, quality.json, manifest.json     as every build
"""

import collections
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cxrjax
from cxrjax.errors import UserError
from cxrjax.files import write_json, writing
from cxrjax.language_model.flags import CACHE_NAME, ClientFlags, client_from_flags
from cxrjax.papers.cxr_qba import statistics, study_files
from cxrjax.papers.cxr_qba.construct import extraction
from cxrjax.papers.cxr_qba.construct.checks import dangling_questions
from cxrjax.papers.cxr_qba.construct.construction import (
    CxrQbaConstruction,
    add_comparisons,
    construct_graph,
    construct_questions,
)
from cxrjax.papers.cxr_qba.construct.entity_mapping import embedding_mapper
from cxrjax.papers.cxr_qba.construct.region_cache import RegionCache
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.papers.cxr_qba.metadata import MetadataWriter, write_quality_mappings
from cxrjax.papers.cxr_qba.native import StudyQuestions, StudySceneGraph
from cxrjax.papers.cxr_qba.records import ExportFilter, nothing_exported, to_records
from cxrjax.papers.cxr_qba.release_tables import named_images, read_release_tables, stated_counts
from cxrjax.paths import relative
from cxrjax.progress import progress_bar
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.records import GeneratorInfo, QARecord
from cxrjax.records_io.builder import Builder, SourceOptions
from cxrjax.records_io.image_check import check_images
from cxrjax.records_io.quality import QualityLog, Unusable, usable_record
from cxrjax.records_io.split import divide

if TYPE_CHECKING:
    from cxrjax.language_model.client import Client
    from cxrjax.papers.cxr_qba.construct.language_model_extractor import LanguageModelExtractor
    from cxrjax.papers.cxr_qba.construct.language_model_rater import LanguageModelRater

NATIVE = "native"
_ARCHIVES = ("scene_graphs.zip", "qa.zip")
DANGLING = "questions about observations that their scene graph lacks"
NO_EARLIER = "questions on change whose earlier image cannot be used, not exported"
SPLIT_NOT_TOLD = "studies of which no table tells the split, divided here"
# How questions with no are chosen where we make them.
BALANCE_RULE = (
    "none by count: of what a report does not mention, findings and regions are drawn to be asked "
    "about with weight (positive + 1) / (negative + 1), of their mentions in all reports"
)
SPLIT_NOT_FOLLOWED = "studies whose own split is not followed, since others have none"

StudyPair = tuple[StudySceneGraph, StudyQuestions]


@dataclasses.dataclass(frozen=True)
class QbaOptions(SourceOptions):
    """Flags of CXR-QBA.

    Attributes:
        generator: what reads the reports; words of questions are always templates'.
        rate_with: what rates constructed questions; surrogate: rules, under that name.
        least_grade: leave out of the records what is below it; grades are the release's, or those
            that --rate_with gives.
        include_unmentioned: export questions too whose answer is that the report does not mention
            what is asked: a fact about the report, which no image shows.
        entity_model: map names of findings by this sentence-transformers model (a folder; default:
            by wording).
        regions_cache: folder where regions of images are kept for the next build.
        images: folder that paths of images are relative to, such as MIMIC-CXR-JPG's: all of them
            are decoded, and what is built are questions about those that can be.
        longitudinal: ask what has changed since a patient's earlier study too, where the source
            says when studies were made.
        lean: write no questions/train.jsonl, which nobody answers, and of the release records
            without what only the way back to its files needs (a third of the size).
    """

    generator: Literal["rules", "language_model"] = "rules"
    rate_with: Literal["none", "surrogate", "language_model"] = "none"
    least_grade: Literal["", "A++", "A+", "A", "B"] = ""
    include_unmentioned: bool = False
    entity_model: Path | None = None
    regions_cache: Path | None = None
    images: Path | None = None
    longitudinal: bool = False
    lean: bool = False
    client: ClientFlags = dataclasses.field(default_factory=ClientFlags)

    @property
    def surrogate(self) -> bool:
        """Returns whether rules rate questions and answers, under names that mark this."""
        return self.rate_with == "surrogate"

    def construction(self) -> CxrQbaConstruction:
        """Returns how to construct.

        Raises:
            UserError: `entity_model` cannot be used.
        """
        how = CxrQbaConstruction(seed=self.seed, surrogate=self.surrogate)
        if self.entity_model:
            how.mapper = embedding_mapper(self.entity_model)
        return how

    @property
    def export(self) -> ExportFilter:
        """The filter of what becomes records."""
        return ExportFilter(self.least_grade, self.surrogate, self.include_unmentioned)

    @property
    def entity_mapping(self) -> str:
        """The manifest's name for what maps names of findings."""
        return self.entity_model.name if self.entity_model else "wording"


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A study on disk: what is needed of it beside its two files."""

    images: tuple[extraction.StudyImage, ...]
    split: str
    date: str = ""


class QbaBuilder(Builder[QbaOptions]):
    """Reads the release, or constructs from reports.

    Args:
        extractor: reads the reports; by default what the options say.
        rater: gives the verdicts that the release's grades are made from; by default what the
            options say, never beside the surrogate's.
    """

    dataset = "cxr_qba"
    options_class = QbaOptions

    def __init__(
        self,
        options: QbaOptions,
        extractor: "LanguageModelExtractor | None" = None,
        rater: "LanguageModelRater | None" = None,
    ) -> None:
        super().__init__(options)
        self.statistics = statistics.StudyStatistics()
        self.entries: dict[study_files.Key, _Entry] = {}
        self.release = False
        self.generator: GeneratorInfo | None = None  # the release's own is not ours to name
        self._extractor, self._rater = extractor, rater
        self._made_by: dict[str, Any] = {"grades": "release"}
        self._questions: Callable[[study_files.Key], StudyPair | None] = lambda key: None
        self._open = ExitStack()

    @functools.cached_property
    def _client(self) -> "Client":
        client = client_from_flags(self.options.client, self.options.out / CACHE_NAME, ["cxr_qba"])
        self._open.callback(client.close)
        return client

    @functools.cached_property
    def extractor(self) -> "LanguageModelExtractor | None":
        """Reads the reports; None: rules do."""
        if self._extractor or self.options.generator != "language_model":
            return self._extractor
        from cxrjax.papers.cxr_qba.construct.language_model_extractor import LanguageModelExtractor

        return LanguageModelExtractor(self._client)

    @functools.cached_property
    def rater(self) -> "LanguageModelRater | None":
        """Gives verdicts; None: rules do, or nobody."""
        if self._rater or self.options.rate_with != "language_model":
            return self._rater
        from cxrjax.papers.cxr_qba.construct.language_model_rater import LanguageModelRater

        return LanguageModelRater(self._client)

    def estimate(self) -> str | None:
        options = self.options
        asked = "language_model" in (options.generator, options.rate_with)
        if not asked or not options.client.dry_run:
            return None
        from cxrjax.papers.cxr_qba.construct.language_model_extractor import estimate_language_model

        with self._open:
            return estimate_language_model(options.source, options.seed, self.extractor, self.rater)

    def build(self) -> str:
        with self._open:
            return super().build()

    def read(self) -> Mapping[str, Iterable[QARecord]]:
        options = self.options
        self.release = is_release(options.source)
        rated = options.surrogate or self.rater is not None
        if options.surrogate and self.rater is not None:
            raise UserError("rated by rules or by a language model, not by both")
        if self.release and (self.extractor or rated or options.entity_model):
            raise UserError(
                f"{options.source}: the release is read as it is, with its own grades; leave out "
                "--generator, --rate_with and --entity_model, which are for what is constructed "
                "from reports"
            )
        self.published = statistics.published() | (
            stated_counts(options.source) if self.release else {}
        )
        if self.release:
            self._read_release()
        else:
            refuse_ungraded(options, rated)
            self._construct()
        if options.images is not None:
            self._audit_images(options.images)
        splits = _divide(self.entries, options.seed, self.quality)
        self.prepare(splits)
        with writing(options.out):
            self.metadata = self._open.enter_context(MetadataWriter(options.out / "metadata"))
        return {split: self._records(split, keys) for split, keys in splits.items()}

    def _audit_images(self, folder: Path) -> None:
        """Leaves images that can be used, with their size and path from the built folder."""
        out = self.options.out
        files = {
            image.image_id: folder / (image.path or image.image_id)
            for entry in self.entries.values()
            for image in entry.images
        }
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        checks = check_images(files.values(), self.quality, out, self.options.processes)
        for key, entry in list(self.entries.items()):
            kept = []
            for image in entry.images:
                file = files[image.image_id]
                with self.quality.rejecting(image.image_id, str(file)):
                    size = checks[file].size()
                    if image.image_hw not in (None, size):
                        found = f"the table has {image.image_hw}, the file {size} (height, width)"
                        raise Unusable("size_mismatch", found)
                    path = relative(file, out)
                    kept.append(dataclasses.replace(image, image_hw=size, path=path))
            if kept or not entry.images:
                self.entries[key] = dataclasses.replace(entry, images=tuple(kept))
            else:
                del self.entries[key]
        if not self.entries:
            raise self.nothing_left("study")

    def _construct(self) -> None:
        options, quality = self.options, self.quality
        how = options.construction()
        native = options.out / NATIVE
        if options.regions_cache:
            cache = RegionCache(options.regions_cache / "regions.sqlite")
            how.regions = self._open.enter_context(cache)
        if self.extractor:
            how.extractor = self.extractor

            def reports() -> Iterator[
                extraction.ReportSections
            ]:  # without the images: many would be held
                return (study.report for study in read_studies(options.source, QualityLog()))

            self.extractor.require_permission(reports())
            self.extractor.ask_ahead(reports())
        counts = MentionCounts()
        for name in _ARCHIVES:
            (native / name).unlink(missing_ok=True)  # of an earlier build
        with writing(options.out), study_files.StudyArchive(native / _ARCHIVES[0]) as archive:
            graphs = construct_graphs(options.source, how, quality, counts)
            for study, graph in progress_bar(graphs, "scene graphs", unit="study"):
                archive.write(graph)
                images = [dataclasses.replace(i, boxes={}, masks={}) for i in study.images]
                key = (study.patient_id, study.study_id)
                self.entries[key] = _Entry(tuple(images), study.split, study.date)
            if not self.entries:
                raise self.nothing_left("study")
            write_json(options.out / "sampling_weights.json", counts.to_json())

        earlier = self._earlier() if options.longitudinal else {}

        def unrated(key: study_files.Key, files: study_files.StudyFiles) -> StudyPair:
            graph, _ = files.read(key)
            assert graph is not None  # it was written above
            made = construct_questions(graph, counts, how)
            if key in earlier:
                before, _ = files.read(earlier[key])
                assert before is not None
                images = self.entries[earlier[key]].images
                add_comparisons(made, graph, before, images, how, quality)
            return graph, made

        def questions(key: study_files.Key) -> StudyPair:
            graph, made = unrated(key, files)
            if self.rater:
                self.rater.rate(graph, made, quality)
            made_archive.write(made)
            return graph, made

        if self.rater:
            with study_files.StudyFiles(native, QualityLog()) as written:
                self.rater.require_permission_for(unrated(key, written) for key in self.entries)
        files = self._open.enter_context(study_files.StudyFiles(native, quality))
        made_archive = self._open.enter_context(study_files.StudyArchive(native / _ARCHIVES[1]))
        self._questions = questions
        self._made_by = self._constructed_by(how.extractor)

    def _earlier(self) -> dict[study_files.Key, study_files.Key]:
        """A study's key -> that of the patient's study before it."""
        of_patient: dict[str, list[study_files.Key]] = collections.defaultdict(list)
        for key, entry in self.entries.items():
            if entry.date:
                of_patient[key[0]].append(key)
            else:
                self.quality.warnings["studies without a date, not compared"] += 1
        found: dict[study_files.Key, study_files.Key] = {}
        for keys in of_patient.values():
            ordered = sorted(keys, key=lambda key: self.entries[key].date)
            for before, after in itertools.pairwise(ordered):
                # Of two of the same moment neither is the earlier.
                if self.entries[before].date < self.entries[after].date:
                    found[after] = before
        return found

    def _constructed_by(self, extractor: extraction.Extractor) -> dict[str, Any]:
        """Names what made the questions, for the manifest and for the records."""
        self.generator = GeneratorInfo(name="cxrjax-rules", version=cxrjax.__version__)
        if self.extractor:
            name, version = self.extractor.name, self.extractor.version
            self.generator = GeneratorInfo(name=name, version=version)
        named = {"extractor": extractor, "rater": self.rater}
        made = {what: {"name": o.name, "version": o.version} for what, o in named.items() if o}
        rated_by = "language_model" if self.rater else "unrated"
        grades = "surrogate" if self.options.surrogate else rated_by
        return {"grades": grades, **made, "entity_mapping": self.options.entity_mapping}

    def _read_release(self) -> None:
        source, quality = self.options.source, self.quality
        files = self._open.enter_context(study_files.StudyFiles(source, quality))
        tables = read_release_tables(source)
        every = [image for key in files.members for image in tables.images_of(key)]
        sizes = {image.image_id: image.image_hw for image in every if image.image_hw}
        quality.warnings["images of which no table tells the size"] += len(every) - len(sizes)
        self.entries = {
            key: _Entry(tables.images_of(key), tables.split_of(key)) for key in files.members
        }
        if self.entries and not any(entry.split for entry in self.entries.values()):
            quality.warnings[SPLIT_NOT_TOLD] += len(self.entries)

        def questions(key: study_files.Key) -> StudyPair | None:
            there = files.members[key]
            if study_files.QA not in there:
                found = f"no {study_files.QA} beside its {study_files.SCENE_GRAPH}"
                quality.set_aside("missing_file", "/".join(key), str(source), found)
                return None
            graph, made = files.read(key, sizes)
            if graph is None and study_files.SCENE_GRAPH not in there:
                quality.warnings[f"studies without a {study_files.SCENE_GRAPH}"] += 1
                graph = StudySceneGraph(patient_id=key[0], study_id=key[1])
            elif graph is not None and made is not None:
                quality.warnings[DANGLING] += dangling_questions(graph, made)
            if graph is None or made is None:
                return None  # set aside by the reader
            return graph, made

        self._questions = questions

    def _records(self, split: str, keys: Iterable[study_files.Key]) -> Iterator[QARecord]:
        """Both kinds of source, from here on alike."""
        for patient_id, count in collections.Counter(patient for patient, _ in keys).items():
            self.metadata.patient(patient_id, split, count)
        for key in progress_bar(keys, f"questions, {split}", unit="study"):
            found = self._questions(key)
            if found is None:
                continue
            graph, made = found
            images = self.entries[key].images
            if self.release and not images:
                self.quality.warnings["studies of which no table tells the images"] += 1
                images = named_images(graph, made)
            self.statistics.add(made, split, sum(i.frontal for i in images))
            self.metadata.study(graph, made, images, split)
            earlier = self._images_before(key, made)
            kept, shown = self.options.export.apply(made, images, self.quality)
            keep = self.release and not self.options.lean
            item = "/".join(key)
            with self.quality.rejecting(item, "its questions"):
                with usable_record():
                    records = list(
                        to_records(kept, shown, split, None, self.generator, keep, earlier)
                    )
                ids = collections.Counter(record.question_id for record in records)
                if twice := next((name for name, count in ids.items() if count > 1), ""):
                    told = f"{twice!r} comes twice, of the questions or a table's images"
                    raise Unusable("duplicate_id", told)
                yield from records

    def balance_rule(self) -> str:
        if self.release:
            return super().balance_rule()
        return BALANCE_RULE

    def write_split(self, split: str, records: Iterable[QARecord]) -> dict[str, Any]:
        entry = super().write_split(split, records)
        if self.options.lean and split == "train":
            (self.options.out / "questions" / "train.jsonl").unlink()
            del entry["questions_sha256"]
        return entry

    def _images_before(
        self, key: study_files.Key, made: StudyQuestions
    ) -> dict[str, extraction.StudyImage]:
        """Images of the earlier studies that questions on change name; without theirs they go."""
        found: dict[str, extraction.StudyImage] = {}
        left = []
        for question in made.questions:
            name = question.variables.get("earlier_image")
            if name is not None and name not in found:
                entry = self.entries.get((key[0], str(question.variables.get("earlier_study"))))
                same = [i for i in entry.images if i.image_id == name] if entry else []
                if not same:
                    self.quality.warnings[NO_EARLIER] += 1
                    continue
                found[name] = same[0]
            left.append(question)
        made.questions[:] = left
        return found

    def nothing_left(self, what: str = "question", remedy: str = "") -> UserError:
        if not self.statistics.values()["studies"]:
            return super().nothing_left("study", remedy)
        return nothing_exported(self.options.source, self.quality)

    def values(self) -> dict[str, float | None]:
        self._open.close()  # the metadata are whole
        values = {**self.counts.values(), **self.statistics.values()}
        if not self.release:
            counted = statistics.definition_counts(load_definitions())
            values |= {f"definitions/{name}": count for name, count in counted.items()}
        return values

    def write_files(self, comparison: Mapping[str, Any]) -> None:
        out = self.options.out
        values = {name: entry["value"] for name, entry in comparison.items()}
        write_quality_mappings(out / "metadata" / "quality_mappings.csv")
        by_rules = self.generator is not None and self.extractor is None
        (out / "tables.md").write_text(statistics.markdown(comparison, by_rules), encoding="utf-8")
        names = ("patients", "studies", "questions", "sub_answers")
        write_json(out / "dataset_info.json", {name: values[name] for name in names})

    def describe(self) -> dict[str, Any]:
        return {
            "seed": self.options.seed,
            "source": {"path": self.options.source.name, "release": self.release},
            **self._made_by,
            "least_grade": self.options.least_grade or None,
        }

    def report(self) -> Iterator[str]:
        if "language_model" in (self.options.generator, self.options.rate_with):
            yield json.dumps({self._client.settings.model: self._client.account.to_json()})


def construct_graphs(
    source: Path,
    how: CxrQbaConstruction,
    quality: QualityLog,
    counts: MentionCounts,
    wanted: Callable[[str], bool] = lambda patient_id: True,
) -> Iterator[tuple[extraction.SourceStudy, StudySceneGraph]]:
    """Studies of a source with their scene graphs, which `counts` counts.

    Args:
        quality: receives studies that stood earlier in the source, and those without a graph.
        wanted: says of a patient's id whether the studies are.
    """
    seen: set[study_files.Key] = set()
    for study in read_studies(source, quality, wanted):
        key = (study.patient_id, study.study_id)
        with quality.rejecting(study.study_id, str(source)):
            if key in seen:
                raise Unusable("duplicate_id", "a study that stood earlier in the source")
            graph = construct_graph(study, how, quality)
            seen.add(key)
            counts.add(graph)
            yield study, graph


def refuse_ungraded(options: QbaOptions, rated: bool) -> None:
    """Raises `UserError` where constructed questions are to be filtered by grades they lack."""
    if options.least_grade and not rated:
        raise UserError(
            f"--least_grade={options.least_grade} needs grades: constructed questions are unrated; "
            "add --rate_with=surrogate to rate them by rules"
        )


def is_release(source: Path) -> bool:
    """Returns whether a path has the release's files, in folders or in archives at any depth."""
    if source.suffix == ".zip":
        return True
    return source.is_dir() and study_files.holds_studies(source)


def _divide(
    entries: Mapping[study_files.Key, _Entry], seed: int, quality: QualityLog
) -> dict[str, list[study_files.Key]]:
    """Keys by split: the source's own where all have one, else 15 % of the patients held out."""
    stated = sum(bool(entry.split) for entry in entries.values())
    if entries and stated == len(entries):
        splits: dict[str, list[study_files.Key]] = collections.defaultdict(list)
        for key, entry in entries.items():
            splits[entry.split].append(key)
        return dict(sorted(splits.items()))
    if stated:
        quality.warnings[SPLIT_NOT_FOLLOWED] += stated
    return divide(entries, lambda key: key[0], seed)
