"""From the release, or from reports and regions, to a data set on disk.

DIR/native/p1x/.../s....scene_graph.json, s....qa.json     what was constructed
DIR/metadata/<level>_metadata.csv.gz, .parquet             seven levels
DIR/metadata/quality_mappings.csv, DIR/dataset_info.json, DIR/tables.md
DIR/records, questions, statistics.json, quality.json, manifest.json     as every build
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

import cxrjax
from cxrjax.errors import UserError
from cxrjax.files import write_json, writing
from cxrjax.papers.cxr_qba.construct.checks import dangling_questions
from cxrjax.papers.cxr_qba.construct.construction import (
    CxrQbaConstruction,
    construct_graph,
    construct_questions,
)
from cxrjax.papers.cxr_qba.construct.entity_mapping import embedding_mapper
from cxrjax.papers.cxr_qba.construct.extraction import Extractor, ReportSections
from cxrjax.papers.cxr_qba.construct.language_model_extractor import LanguageModelExtractor
from cxrjax.papers.cxr_qba.construct.language_model_rater import LanguageModelRater
from cxrjax.papers.cxr_qba.construct.negative_sampling import MentionCounts
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.papers.cxr_qba.construct.study import StudyImage
from cxrjax.papers.cxr_qba.metadata import MetadataWriter, write_quality_mappings
from cxrjax.papers.cxr_qba.native import StudyQuestions, StudySceneGraph
from cxrjax.papers.cxr_qba.records import ExportFilter, refuse_empty, to_records
from cxrjax.papers.cxr_qba.release_tables import named_images, read_release_tables, stated_counts
from cxrjax.papers.cxr_qba.statistics import StudyStatistics, markdown, published
from cxrjax.papers.cxr_qba.study_files import (
    QA,
    SCENE_GRAPH,
    Key,
    StudyFiles,
    holds_studies,
    write_study,
)
from cxrjax.records import GeneratorInfo, QARecord
from cxrjax.records_io.builder import finish_build, prepare_folder, write_split
from cxrjax.records_io.quality import QualityLog, Unusable
from cxrjax.records_io.split import validation_groups
from cxrjax.records_io.statistics import RecordStatistics, compare

NATIVE = "native"
DANGLING = "questions about observations that their scene graph lacks"
SPLIT_NOT_TOLD = "studies of which no table tells the split, divided here"
SPLIT_NOT_FOLLOWED = "studies whose own split is not followed, since others have none"


@dataclasses.dataclass(frozen=True)
class QBABuild:
    """What to build, from what.

    Attributes:
        surrogate: rate questions and answers by rules, under names that say so.
        least_grade: leave out of the records what is below it ("" takes all). Grades are the
            release's; of what is constructed here those of a language model's verdicts, or the
            surrogate's where `surrogate` is on.
        entity_model: folder of a sentence-transformers model that maps names of findings; None: by
            their wording.
        lean: leave out of the release's records what only the way back to its files needs. Records
            of what is constructed never have it: the files lie beside them.
    """

    source: Path
    out: Path
    seed: int = 0
    surrogate: bool = False
    least_grade: str = ""
    entity_model: Path | None = None
    lean: bool = False

    def construction(self) -> CxrQbaConstruction:
        """How to construct.

        Raises:
            UserError: `entity_model` cannot be used.
        """
        how = CxrQbaConstruction(seed=self.seed, surrogate=self.surrogate)
        if self.entity_model:
            how.mapper = embedding_mapper(self.entity_model)
        return how

    @property
    def export(self) -> ExportFilter:
        """What becomes records."""
        return ExportFilter(self.least_grade, self.surrogate)

    @property
    def entity_mapping(self) -> str:
        """What maps names of findings, for the manifest."""
        return self.entity_model.name if self.entity_model else "wording"


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A study on disk: what is needed of it beside its two files."""

    images: tuple[StudyImage, ...]
    split: str


@dataclasses.dataclass(frozen=True)
class _MadeBy:
    """What constructed.

    Attributes:
        grades: "surrogate", "language_model" or "unrated".
    """

    grades: str
    extractor: Extractor
    rater: LanguageModelRater | None

    @property
    def generator(self) -> GeneratorInfo:
        if isinstance(self.extractor, LanguageModelExtractor):
            return GeneratorInfo(name=self.extractor.name, version=self.extractor.version)
        return GeneratorInfo(name="cxrjax-rules", version=cxrjax.__version__)

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        named = {"extractor": self.extractor, "rater": self.rater}
        made = {what: {"name": o.name, "version": o.version} for what, o in named.items() if o}
        return {"grades": self.grades, **made}


def build_cxr_qba(
    build: QBABuild,
    extractor: LanguageModelExtractor | None = None,
    rater: LanguageModelRater | None = None,
) -> None:
    """Reads the release, or constructs from reports, and writes what can be used.

    Args:
        extractor: reads the reports; rules where there is none.
        rater: gives the verdicts that the release's grades are made from; never beside the
            surrogate's.

    Raises:
        UserError: the source cannot be read, nothing in it can be used, the folder cannot be
            written, or the language model cannot be used.
    """
    release = is_release(build.source)
    rated = build.surrogate or rater is not None
    if build.surrogate and rater is not None:
        raise UserError("rated by rules or by a language model, not by both")
    if release and (extractor or rated or build.entity_model):
        raise UserError(
            f"{build.source}: the release is read as it is, with its own grades; leave out "
            "--generator, --rate_with and --entity_model, which are for what is constructed from "
            "reports"
        )
    if not release:
        refuse_ungraded(build, rated)
    quality = QualityLog()
    if release:
        _read_release(build, quality)
    else:
        _construct(build, quality, extractor, rater)


def _nothing_left(build: QBABuild, quality: QualityLog) -> UserError:
    reasons = {reason: n for reason, n in quality.counts().items() if n}
    first = f"; the first: {quality.entries[0].found}" if quality.entries else ""
    return UserError(f"{build.source}: no study left to use; set aside: {reasons or 'none'}{first}")


def refuse_ungraded(build: QBABuild, rated: bool) -> None:
    """Raises `UserError` where constructed questions are to be filtered by grades they lack."""
    if build.least_grade and not rated:
        raise UserError(
            f"--least_grade={build.least_grade} needs grades: constructed questions are unrated; "
            "add --rate_with=surrogate to rate them by rules"
        )


def is_release(source: Path) -> bool:
    """Whether a path holds the release's files, in folders or in archives at any depth."""
    if source.suffix == ".zip":
        return True
    return source.is_dir() and holds_studies(source)


def _construct(
    build: QBABuild,
    quality: QualityLog,
    extractor: LanguageModelExtractor | None,
    rater: LanguageModelRater | None,
) -> None:
    how = build.construction()
    if extractor:
        how.extractor = extractor

        def reports() -> Iterator[
            ReportSections
        ]:  # without the images, of which many would be held
            return (study.report for study in read_studies(build.source, QualityLog()))

        extractor.require_permission(reports())
        extractor.ask_ahead(reports())
    counts = MentionCounts()
    entries: dict[Key, _Entry] = {}
    with writing(build.out):
        for study in tqdm(read_studies(build.source, quality), "scene graphs", unit=" studies"):
            key = (study.patient_id, study.study_id)
            if key in entries:
                found = "a study that stood earlier in the source"
                quality.set_aside("duplicate_id", study.study_id, str(build.source), found)
                continue
            try:
                graph = construct_graph(study, how, quality)
            except Unusable as fault:
                quality.set_aside(fault.reason, study.study_id, str(build.source), fault.found)
                continue
            counts.add(graph, how.definitions)
            write_study(build.out / NATIVE, graph)
            entries[key] = _Entry(
                tuple(dataclasses.replace(i, boxes={}, masks={}) for i in study.images), study.split
            )
    if not entries:
        raise _nothing_left(build, quality)
    with writing(build.out):
        write_json(build.out / "sampling_weights.json", counts.to_json())

    def unrated(key: Key, files: StudyFiles) -> tuple[StudySceneGraph, StudyQuestions]:
        graph, _ = files.read(key)
        assert graph is not None  # it was written above
        return graph, construct_questions(graph, counts, how)

    def questions(key: Key, files: StudyFiles) -> tuple[StudySceneGraph, StudyQuestions] | None:
        graph, made = unrated(key, files)
        if rater:
            rater.rate(graph, made, quality)
        write_study(build.out / NATIVE, made)
        return graph, made

    grades = "surrogate" if build.surrogate else "language_model" if rater else "unrated"
    made_by = _MadeBy(grades, how.extractor, rater)
    if rater:
        with StudyFiles(build.out / NATIVE, QualityLog()) as files:
            rater.require_permission(unrated(key, files) for key in entries)
    with StudyFiles(build.out / NATIVE, quality) as files:
        _write(build, entries, lambda key: questions(key, files), quality, made_by)


def _read_release(build: QBABuild, quality: QualityLog) -> None:
    with StudyFiles(build.source, quality) as files:
        tables = read_release_tables(build.source)
        every = [image for key in files.members for image in tables.images_of(key)]
        sizes = {image.image_id: image.image_hw for image in every if image.image_hw}
        quality.warnings["images of which no table tells the size"] += len(every) - len(sizes)
        entries = {
            key: _Entry(tables.images_of(key), tables.split_of(key)) for key in files.members
        }
        if entries and not any(entry.split for entry in entries.values()):
            quality.warnings[SPLIT_NOT_TOLD] += len(entries)

        def questions(key: Key) -> tuple[StudySceneGraph, StudyQuestions] | None:
            there = files.members[key]
            if QA not in there:
                found = f"no {QA} beside its {SCENE_GRAPH}"
                quality.set_aside("missing_file", "/".join(key), str(build.source), found)
                return None
            graph, made = files.read(key, sizes)
            if graph is None and SCENE_GRAPH not in there:
                quality.warnings[f"studies without a {SCENE_GRAPH}"] += 1
                graph = StudySceneGraph(patient_id=key[0], study_id=key[1])
            elif graph is not None and made is not None:
                quality.warnings[DANGLING] += dangling_questions(graph, made)
            if graph is None or made is None:
                return None  # set aside by the reader
            return graph, made

        _write(build, entries, questions, quality, None)


def _write(
    build: QBABuild,
    entries: Mapping[Key, _Entry],
    questions: Callable[[Key], tuple[StudySceneGraph, StudyQuestions] | None],
    quality: QualityLog,
    made_by: _MadeBy | None,
) -> None:
    """Both kinds of source, from here on alike; `made_by` is None for the release."""
    release = made_by is None
    splits = _divide(entries, build.seed, quality)
    prepare_folder(build.out, splits)
    statistics, records = StudyStatistics(), RecordStatistics()
    # The release's own generator is not ours to name.
    generator = made_by.generator if made_by else None
    manifest = {}
    with writing(build.out), MetadataWriter(build.out / "metadata") as metadata:
        for split, keys in splits.items():
            per_patient = collections.Counter(patient for patient, _ in keys)
            for patient_id, count in per_patient.items():
                metadata.patient(patient_id, split, count)

            def of_split(split: str = split, keys: Iterable[Key] = keys) -> Iterator[QARecord]:
                for key in tqdm(keys, f"questions, {split}", unit=" studies"):
                    found = questions(key)
                    if found is None:
                        continue
                    graph, made = found
                    images = entries[key].images
                    if release and not images:
                        quality.warnings["studies of which no table tells the images"] += 1
                        images = named_images(graph, made)
                    statistics.add(made, split, sum(i.frontal for i in images))
                    metadata.study(graph, made, images, split)
                    kept, shown = build.export.apply(made, images, quality)
                    keep = release and not build.lean
                    yield from to_records(kept, shown, split, None, generator, keep)

            manifest[split] = write_split(build.out, split, of_split(), records)
        write_quality_mappings(build.out / "metadata" / "quality_mappings.csv")
        values = {**records.values(), **statistics.values()}
        if not values["studies"]:
            raise _nothing_left(build, quality)
        refuse_empty(build.source, sum(own["questions"] for own in manifest.values()), quality)
        (build.out / "tables.md").write_text(markdown(values), encoding="utf-8")
        write_json(
            build.out / "dataset_info.json",
            {name: values[name] for name in ("patients", "studies", "questions", "sub_answers")},
        )
    finish_build(
        build.out,
        quality,
        compare(values, published() | (stated_counts(build.source) if release else {})),
        {
            "dataset": "cxr_qba",
            "seed": build.seed,
            "source": {"path": build.source.name, "release": release},
            **(made_by.to_json() if made_by else {"grades": "release"}),
            **({"entity_mapping": build.entity_mapping} if made_by else {}),
            "least_grade": build.least_grade or None,
            "splits": manifest,
        },
    )


def _divide(entries: Mapping[Key, _Entry], seed: int, quality: QualityLog) -> dict[str, list[Key]]:
    """Keys by split: the source's own where all have one, else 15 % of the patients held out."""
    stated = sum(bool(entry.split) for entry in entries.values())
    if entries and stated == len(entries):
        splits: dict[str, list[Key]] = collections.defaultdict(list)
        for key, entry in entries.items():
            splits[entry.split].append(key)
        return dict(sorted(splits.items()))
    if stated:
        quality.warnings[SPLIT_NOT_FOLLOWED] += stated
    validation = validation_groups({patient for patient, _ in entries}, seed)
    divided: dict[str, list[Key]] = {"train": [], "validation": []}
    for key in entries:
        divided["validation" if key[0] in validation else "train"].append(key)
    return divided
