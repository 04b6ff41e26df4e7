"""Construction in shards, each a unit of work that can fail and be done again by itself.

A patient's studies are in one shard, chosen by a hash of the patient's id, so that what a shard
holds depends on no worker and no other shard. Two passes, since questions need counts over the
whole corpus:

    scene_graphs/shard-00003-of-00064.array_record     first pass: a study's scene graph an element
    parts/graphs-00003-of-00064.json                   its images, splits, counts, faults
    qa/shard-00003-of-00064.array_record               second pass: a study's questions, native
    records/<split>-00003-of-00064.array_record, .parquet           cxrjax/records_io/shards.py
    metadata/shard-00003-of-00064/<level>_metadata.csv.gz, .parquet
    parts/questions-00003-of-00064.json                counts, hashes, faults; written last

The last file of a pass marks its shard as done. No engine is needed here; pipeline.py has one.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cxrjax
from cxrjax.errors import UserError
from cxrjax.files import read_json_object, write_json, writing
from cxrjax.language_model.flags import client_from_flags
from cxrjax.papers.cxr_qba.build import (
    BALANCE_RULE,
    SPLIT_NOT_FOLLOWED,
    QbaOptions,
    construct_graphs,
)
from cxrjax.papers.cxr_qba.construct.construction import (
    CorpusFacts,
    construct_questions,
    merge_facts,
)
from cxrjax.papers.cxr_qba.construct.extraction import ReportSections, StudyImage
from cxrjax.papers.cxr_qba.construct.region_cache import RegionCache
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.papers.cxr_qba.metadata import MetadataWriter, write_quality_mappings
from cxrjax.papers.cxr_qba.native import StudySceneGraph
from cxrjax.papers.cxr_qba.records import nothing_exported, to_records
from cxrjax.papers.cxr_qba.statistics import StudyStatistics, markdown, published
from cxrjax.records import GeneratorInfo
from cxrjax.records_io import shards as sharding
from cxrjax.records_io.builder import Polarities, finish_build
from cxrjax.records_io.gate import admit
from cxrjax.records_io.quality import QualityLog
from cxrjax.records_io.shards import shard_name
from cxrjax.records_io.split import validation_groups
from cxrjax.records_io.statistics import RecordStatistics, compare, ratio

if TYPE_CHECKING:
    from cxrjax.language_model.client import Client
    from cxrjax.papers.cxr_qba.construct.language_model_extractor import LanguageModelExtractor
    from cxrjax.papers.cxr_qba.construct.language_model_rater import LanguageModelRater

# Counts of records that add up over shards.
_ADDITIVE = ("images", "boxes", "answer_boxes", "train_images", "validation_images", "test_images")


@dataclasses.dataclass(frozen=True)
class ShardedBuild:
    """A build in so many shards."""

    build: QbaOptions
    shards: int

    def settings(self) -> dict[str, Any]:
        """Returns what a shard's content depends on beside the source's."""
        return {
            "cxrjax_version": cxrjax.__version__,
            "source": str(self.build.source.resolve()),
            "seed": self.build.seed,
            "generator": self.build.generator,
            "rate_with": self.build.rate_with,
            "model": self.build.client.model if self.asks_language_model else None,
            "least_grade": self.build.least_grade,
            "entity_mapping": str(self.build.entity_model or ""),
            "shards": self.shards,
        }

    @property
    def asks_language_model(self) -> bool:
        """True where a language model reads the reports or rates the questions."""
        return "language_model" in (self.build.generator, self.build.rate_with)

    @contextlib.contextmanager
    def client(self, number: int) -> Iterator["Client"]:
        """Opens a client for a shard, whose answers are cached beside it: none is paid for twice.

        A shard may spend its part of --max_cost, in each pass.
        """
        flags = self.build.client
        folder = flags.cache or self.build.out / "answers"
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        part = None if flags.max_cost is None else flags.max_cost / self.shards
        flags = dataclasses.replace(flags, max_cost=part, cache=None)
        name = f"{shard_name('answers', number, self.shards)}.jsonl"
        with contextlib.closing(client_from_flags(flags, folder / name, ["cxr_qba"])) as client:
            yield client

    def holds(self, number: int, patient_id: str) -> bool:
        """Returns true for a patient of a shard."""
        digest = hashlib.sha256(patient_id.encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.shards == number

    def part(self, kind: str, number: int) -> Path:
        """Returns the path of the file that marks a pass over a shard as done."""
        return self.build.out / "parts" / f"{shard_name(kind, number, self.shards)}.json"

    def done(self) -> Iterator[Path]:
        """Yields the files that mark shards as done, of both passes."""
        for kind in ("graphs", "questions"):
            yield from (self.build.out / "parts").glob(f"{kind}-*-of-{self.shards:05d}.json")

    def file(self, folder: str, number: int) -> Path:
        """Returns the path of an ArrayRecord file of native objects."""
        name = shard_name("shard", number, self.shards)
        return self.build.out / folder / f"{name}.array_record"


def build_graphs(job: ShardedBuild, number: int) -> CorpusFacts:
    """First pass over a shard: writes its scene graphs.

    Raises:
        UserError: the source cannot be read, or the folder cannot be written.
    """
    build, how, quality, facts = job.build, job.build.construction(), QualityLog(), CorpusFacts()
    studies: list[dict[str, Any]] = []
    _begin(job, "graphs", number)
    with (
        writing(build.out),
        contextlib.ExitStack() as opened,
        sharding.ArrayRecordFile(job.file("scene_graphs", number)) as file,
    ):
        if build.regions_cache:
            name = f"{shard_name('regions', number, job.shards)}.sqlite"
            how.regions = opened.enter_context(RegionCache(build.regions_cache / name))
        wanted = functools.partial(job.holds, number)
        if build.generator == "language_model":
            client = opened.enter_context(job.client(number))
            how.extractor = _reading_ahead(client, build, wanted)
        for study, graph in construct_graphs(build.source, how, quality, facts.counts, wanted):
            facts.patients.add(study.patient_id)
            facts.without_split += not study.split
            file.write(_dump(graph.to_json(True)))
            images = [_image_to_json(image) for image in study.images]
            studies.append({"split": study.split, "images": images})
    content = {"facts": facts.to_json(), "quality": quality.to_json(), "studies": studies}
    _write_part(job, "graphs", number, content)
    return facts


def _reading_ahead(
    client: "Client", build: QbaOptions, wanted: Callable[[str], bool]
) -> "LanguageModelExtractor":
    """Returns a language model that was asked about all reports of a shard, several at once."""
    from cxrjax.papers.cxr_qba.construct.language_model_extractor import LanguageModelExtractor

    extractor = LanguageModelExtractor(client)

    def reports() -> Iterator[ReportSections]:
        return (study.report for study in read_studies(build.source, QualityLog(), wanted))

    extractor.require_permission(reports())
    extractor.ask_ahead(reports())
    return extractor


def read_facts(job: ShardedBuild, number: int) -> CorpusFacts | None:
    """Returns the facts of a shard whose first pass is done with these settings, else None."""
    content = _read_part(job, "graphs", number)
    return None if content is None else CorpusFacts.from_json(content["facts"])


def questions_done(job: ShardedBuild, number: int, facts: CorpusFacts) -> bool:
    """Returns true for a shard whose second pass is done with these settings and this corpus."""
    content = _read_part(job, "questions", number)
    return content is not None and content["corpus_sha256"] == facts.sha256


def build_questions(job: ShardedBuild, number: int, facts: CorpusFacts) -> None:
    """Second pass over a shard: writes its questions, after the first pass over all shards.

    Raises:
        UserError: the folder cannot be written, or the first pass is not done.
    """
    build, how, quality = job.build, job.build.construction(), QualityLog()
    first = _read_part(job, "graphs", number)
    if first is None:
        raise UserError(
            f"{job.part('graphs', number)}: not there; run again with --shards={number}"
        )
    statistics, records, polarities = StudyStatistics(), RecordStatistics(), Polarities()
    generator = GeneratorInfo(name="cxrjax-rules", version=cxrjax.__version__)
    if build.generator == "language_model":
        generator = GeneratorInfo(name=build.client.model or "language model", version="1")
    _begin(job, "questions", number)
    # Its studies may have gone to other splits since.
    for old in (build.out / sharding.FOLDER).glob(f"{shard_name('*', number, job.shards)}.*"):
        old.unlink()
    metadata_folder = build.out / "metadata" / shard_name("shard", number, job.shards)
    shards: dict[str, sharding.RecordShard] = {}
    studies: collections.Counter[tuple[str, str]] = collections.Counter()
    with (
        writing(build.out),
        contextlib.ExitStack() as files,
        MetadataWriter(metadata_folder) as metadata,
        sharding.ArrayRecordFile(job.file("qa", number)) as native,
    ):
        rater = _rater(job, number, files)
        for graph, images, split in _first_pass(job, number, first["studies"], facts, quality):
            if split not in shards:
                shard = sharding.RecordShard(build.out, shard_name(split, number, job.shards))
                shards[split] = files.enter_context(shard)
            made = construct_questions(graph, facts.counts, how)
            if rater:
                rater.rate(graph, made, quality)
            native.write(_dump(made.to_json(True)))
            statistics.add(made, split, sum(image.frontal for image in images))
            metadata.study(graph, made, images, split)
            studies[split, graph.patient_id] += 1
            kept, shown = build.export.apply(made, images, quality)
            for record in sharding.by_image(
                admit(to_records(kept, shown, split, None, generator, False), quality, split)
            ):
                shards[split].add(record)
                records.add(record)
                polarities.add(split, record)
        for (split, patient_id), count in sorted(studies.items()):
            metadata.patient(patient_id, split, count)
    counted = records.values()
    content = {
        "corpus_sha256": facts.sha256,
        "quality": quality.to_json(),
        "polarities": polarities.to_json(),
        "study_statistics": statistics.to_json(),
        "record_counts": {name: counted[name] or 0 for name in _ADDITIVE if name in counted},
        "splits": {
            split: sharding.describe_shard(build.out, shard)
            for split, shard in sorted(shards.items())
        },
    }
    _write_part(job, "questions", number, content)


def _first_pass(
    job: ShardedBuild,
    number: int,
    entries: Sequence[dict[str, Any]],
    facts: CorpusFacts,
    quality: QualityLog,
) -> Iterator[tuple[StudySceneGraph, list[StudyImage], str]]:
    """Yields scene graph, images and split of each study that the first pass left."""
    validation = validation_groups(facts.patients, job.build.seed) if facts.without_split else set()
    graphs = sharding.read_elements(job.file("scene_graphs", number))
    for element, entry in zip(graphs, entries, strict=True):
        graph = StudySceneGraph.model_validate_json(element)
        split = entry["split"]
        if facts.without_split:
            if split:
                quality.warnings[SPLIT_NOT_FOLLOWED] += 1
            split = "validation" if graph.patient_id in validation else "train"
        yield graph, [_image_from_json(image) for image in entry["images"]], split


def _rater(
    job: ShardedBuild, number: int, files: contextlib.ExitStack
) -> "LanguageModelRater | None":
    """Returns what gives a language model's verdicts, where the job needs them."""
    if job.build.rate_with != "language_model":
        return None
    from cxrjax.papers.cxr_qba.construct.language_model_rater import LanguageModelRater

    return LanguageModelRater(files.enter_context(job.client(number)))


def finish(job: ShardedBuild) -> None:
    """Merges what all shards counted, and writes what every build leaves.

    Raises:
        UserError: shards are missing or of another corpus, nothing is left, or the folder cannot
            be written.
    """
    build = job.build
    firsts = [_read_part(job, "graphs", number) for number in range(job.shards)]
    _refuse_missing(job, [n for n, part in enumerate(firsts) if part is None])
    facts = merge_facts(CorpusFacts.from_json(part["facts"]) for part in firsts if part)
    _refuse_missing(job, [n for n in range(job.shards) if not questions_done(job, n, facts)])
    quality, statistics, polarities = QualityLog(), StudyStatistics(), Polarities()
    counts: collections.Counter[str] = collections.Counter()
    splits: dict[str, list[Any]] = collections.defaultdict(list)
    for number, first in enumerate(firsts):
        second = _read_part(job, "questions", number)
        assert first is not None and second is not None  # as was just seen
        quality.merge(first["quality"])
        quality.merge(second["quality"])
        statistics.merge(second["study_statistics"])
        polarities.merge(second["polarities"])
        counts.update(second["record_counts"])
        for split, shard in second["splits"].items():
            splits[split].append(shard)
    if not facts.patients:
        reasons = {reason: n for reason, n in quality.counts().items() if n}
        raise UserError(f"{build.source}: no study left to use; set aside: {reasons or 'none'}")
    quality.balance = {"rule": BALANCE_RULE, **polarities.to_json()}
    # The same for any number of shards.
    quality.entries.sort(key=lambda entry: (entry.reason, entry.item, entry.found))
    manifest = {split: sharding.describe_split(shards) for split, shards in sorted(splits.items())}
    questions = sum(entry["questions"] for entry in manifest.values())
    if not questions:
        raise nothing_exported(build.source, quality)
    values = {
        **{name: counts[name] for name in _ADDITIVE},
        "questions_per_image": ratio(questions, counts["images"]),
        **statistics.values(),
    }
    comparison = compare(values, published())
    text = markdown(comparison, build.generator == "rules")
    with writing(build.out):
        write_quality_mappings(build.out / "metadata" / "quality_mappings.csv")
        (build.out / "tables.md").write_text(text, encoding="utf-8")
        write_json(build.out / "sampling_weights.json", facts.counts.to_json())
    described = {
        "dataset": "cxr_qba",
        "format": "array_record",
        "seed": build.seed,
        "source": {"path": build.source.name, "release": False},
        "generator": build.generator,
        "grades": {"none": "unrated"}.get(build.rate_with, build.rate_with),
        "entity_mapping": build.entity_mapping,
        "least_grade": build.least_grade or None,
        "splits": manifest,
    }
    finish_build(build.out, quality, comparison, described)


def prepare(job: ShardedBuild) -> None:
    """Makes the folder, and takes away the manifest of an earlier run: this one is unfinished.

    Raises:
        UserError: it cannot be written to, or holds a build in another number of shards.
    """
    out, ours = job.build.out, f"-of-{job.shards:05d}.json"
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for path in (out / "parts").glob("*.json"):
            if not path.name.endswith(ours):
                raise UserError(
                    f"{path}: of a build in another number of shards than {job.shards}; choose "
                    "another --out or remove it"
                )
        (out / "manifest.json").unlink(missing_ok=True)


def note_failure(job: ShardedBuild, number: int, error: Exception) -> None:
    """Stores why a shard failed, for `finish` to report."""
    _write_part(job, "failed", number, {"error": f"{type(error).__name__}: {error}"})


def _refuse_missing(job: ShardedBuild, missing: Sequence[int]) -> None:
    if not missing:
        return
    failed = ((number, _read_part(job, "failed", number)) for number in missing)
    why = "".join(f"; shard {number}: {part['error']}" for number, part in failed if part)
    raise UserError(
        f"{job.build.out}: {len(missing)} of {job.shards} shards are not done{why}; the others are "
        f"kept: run again, with --shards={','.join(map(str, missing))} or without"
    )


def _image_to_json(image: StudyImage) -> dict[str, Any]:
    # The scene graph has what came of the others.
    names = ("image_id", "image_hw", "view", "orientation", "path")
    return {name: getattr(image, name) for name in names}


def _image_from_json(content: dict[str, Any]) -> StudyImage:
    size = content["image_hw"]
    return StudyImage(**{**content, "image_hw": None if size is None else tuple(size)})


def _dump(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()


def _begin(job: ShardedBuild, kind: str, number: int) -> None:
    for name in (kind, "failed"):
        job.part(name, number).unlink(missing_ok=True)


def _write_part(job: ShardedBuild, kind: str, number: int, content: dict[str, Any]) -> None:
    path = job.part(kind, number)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".tmp")
        part.write_bytes(_dump({"settings": job.settings(), **content}))
        part.replace(path)


def _read_part(job: ShardedBuild, kind: str, number: int) -> dict[str, Any] | None:
    path = job.part(kind, number)
    if not path.is_file():
        return None
    content = read_json_object(path)
    return content if content.get("settings") == job.settings() else None
