"""Targets of the fuzzing: a reader of each kind of file, with sound files to start from.

A target's function gets an empty working folder, the name and the bytes of a case. It returns,
raises one of `REFUSALS`, or has found a fault.
"""

import contextlib
import dataclasses
import functools
import io
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.fuzz.mutate import KEY
from bench.fuzz.worker import ROOT, SECRET, Fault
from cxrjax.errors import ForeignError, UserError
from cxrjax.language_model.request import NoAnswer
from cxrjax.records_io.quality import QualityLog, Unusable

REFUSALS = (UserError, ForeignError, Unusable, NoAnswer)
CORPUS = Path(__file__).parent / "corpus"
_SAMPLES = ROOT / "data"
_LARGEST_SEED = 80_000  # bytes

Run = Callable[[Path, str, bytes], object]


@dataclasses.dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        share: of the time, beside 1.0 of others.
        seeds: makes sound files, name -> bytes.
        reads_anywhere: files may name files elsewhere to be read.
    """

    name: str
    run: Run
    share: float
    seeds: Callable[[], dict[str, bytes]]
    reads_anywhere: bool


TARGETS: dict[str, Target] = {}


def target(
    *patterns: str,
    share: float = 1.0,
    seeds: Callable[[], dict[str, bytes]] | None = None,
    reads_anywhere: bool = False,
    name: str = "",
) -> Callable[[Run], Run]:
    """Makes a function a target. `patterns` are seeds in the repository, relative to its root."""

    def add(run: Run) -> Run:
        called = name or run.__name__

        def found() -> dict[str, bytes]:
            made = dict(seeds()) if seeds else {}
            for pattern in (*patterns, f"bench/fuzz/corpus/{called}/*"):
                for path in sorted(ROOT.glob(pattern)):
                    if path.is_file() and path.stat().st_size <= _LARGEST_SEED:
                        made[path.name] = path.read_bytes()
            assert made, f"{called} has no seeds"
            return made

        TARGETS[called] = Target(called, run, share, found, reads_anywhere)
        return run

    return add


class Seeds:
    """Sound files of a target, and those that once broke it: (file name, bytes)."""

    def __init__(self, name: str) -> None:
        self.sound = sorted(TARGETS[name].seeds().items())
        top = CORPUS / "regressions" / name
        broken = [path for path in sorted(top.glob("*/**/*")) if path.is_file()]
        self.broken = [
            ("/".join(path.relative_to(top).parts[1:]), path.read_bytes()) for path in broken
        ]

    @property
    def all(self) -> list[tuple[str, bytes]]:
        return self.sound + self.broken


@functools.cache
def seeds_of(name: str) -> Seeds:
    return Seeds(name)


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def strict_json(content: Any) -> None:
    """Refuses what cannot be written into the files that we leave."""
    try:
        json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise Fault(f"unwritable: {error}") from error


def all_accounted(quality: QualityLog, what: str, kept: int) -> None:
    """Checks that what was looked at was kept or set aside, and that it can be told."""
    strict_json(quality.to_json())
    aside = len(quality.entries)
    if quality.examined[what] > kept + aside:
        raise Fault(f"silent loss: {quality.examined[what]} {what}, {kept} kept, {aside} aside")


def _lines(data: bytes) -> int:
    return sum(bool(line.strip()) for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))


# ---- JSON and records


@target("data/vindr_cxr_vqa/sample/data_v1.json", "data/demo_base/*.json", share=0.5)
def json_files(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.files import read_json_list, read_json_object
    from cxrjax.untrusted.json_text import parse_json

    path = write(folder, name, data)
    for read in (read_json_object, read_json_list):
        with contextlib.suppress(UserError):
            read(path)
    parse_json(data)


@target()
def records(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.records import format_record, parse_record, read_records, strip_answers

    found = list(read_records(write(folder, name, data)))
    for record in found:
        line = format_record(record)
        line.encode()
        format_record(strip_answers(record)).encode()
        if format_record(parse_record(line, "again")) != line:
            raise Fault("a record that is not itself when read again")
    if len(found) != _lines(data):
        raise Fault(f"silent loss: {_lines(data)} lines, {len(found)} records")


@target()
def questions(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.evaluation.systems.systems import SYSTEMS, WORDINGS, question_text, read_answer
    from cxrjax.input_pipeline.prompts import PROMPTS
    from cxrjax.records import read_records

    systems = list(SYSTEMS.values())
    for number, record in enumerate(read_records(write(folder, name, data))):
        for prompt in PROMPTS.values():
            with contextlib.suppress(*REFUSALS):
                prompt.prefix(record)
        system = systems[number % len(systems)]
        for wording in WORDINGS:
            question_text(record, wording, system)
        read_answer(record, record.answer_text, system.reading, system.codec)


@target()
def predictions(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.codecs import CODECS
    from cxrjax.evaluation.predictions import read_boxes, read_predictions

    found = read_predictions(write(folder, name, data))
    if len(found) != _lines(data):
        raise Fault(f"silent loss: {_lines(data)} lines, {len(found)} predictions")
    for prediction in found:
        for codec in list(CODECS.values())[:3]:
            with contextlib.suppress(UserError):
                read_boxes(prediction, codec, 1000, 800, "here")


def _own_records(folder: Path, name: str, data: bytes, out: Path) -> None:
    from cxrjax.records_io.own_records import OwnRecordsBuilder, OwnRecordsOptions

    source = folder / "source"
    shutil.copytree(CORPUS / "own_records_images", source)
    write(source, "records.jsonl", data)
    builder = OwnRecordsBuilder(OwnRecordsOptions(source, out))
    builder.build()
    from cxrjax.records import read_records

    files = sorted((out / "records").glob("*.jsonl"))
    kept = sum(len(list(read_records(file))) for file in files)
    aside = len({entry.where for entry in builder.quality.entries})
    if kept + aside != _lines(data):
        raise Fault(f"silent loss: {_lines(data)} lines, {kept} kept, {aside} set aside")
    json.loads((out / "quality.json").read_text("utf-8"))


@target(reads_anywhere=True, share=2.0)
def own_records(folder: Path, name: str, data: bytes) -> None:
    _own_records(folder, name, data, folder / "out")


@target("bench/fuzz/corpus/own_records/*", reads_anywhere=True)
def check_records(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.commands import check_records

    shutil.copytree(CORPUS / "own_records_images", folder / "source")
    write(folder / "source", "records.jsonl", data)
    file = folder / "source" / "records.jsonl"
    check_records.main([str(file), f"--out={folder / 'out'}", "--processes=1", "--samples=3"])


@target("data/vindr_cxr_vqa/sample/data_v1.json")
def vindr_release(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.papers.vindr_cxr_vqa.native import read_native, to_native
    from cxrjax.records import format_record

    quality = QualityLog()
    found = read_native(write(folder, name, data), quality)
    for record in found:
        format_record(record).encode()
    json.dumps(to_native(found), ensure_ascii=False).encode()
    all_accounted(quality, "questions", len(found))


@target("data/gemex/sample/sub_training_data.json", "data/gemex/sample/test/*.jsonl")
def gemex_release(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.papers.gemex.native import to_native
    from cxrjax.papers.gemex.native_files import read_native
    from cxrjax.records import format_record

    quality = QualityLog()
    kept = 0
    for record in read_native(write(folder, name, data), "train", quality, keep_reports=True):
        format_record(record).encode()
        json.dumps(to_native(record), ensure_ascii=False).encode()
        kept += 1
    all_accounted(quality, "questions", kept)
    if name.endswith("jsonl") and kept + len(quality.entries) < _lines(data):
        raise Fault(f"silent loss: {_lines(data)} lines, {kept} kept, {len(quality.entries)} aside")


@target("cxrjax/papers/gemex/construct/demonstrations.jsonl")
def gemex_demonstrations(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.papers.gemex.construct.language_model import read_demonstrations

    read_demonstrations(write(folder, name, data)).encode()


@target("data/ms_cxr/sample/*")
def ms_cxr(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.papers.ms_cxr.native import read_native
    from cxrjax.records import format_record

    quality = QualityLog()
    found = list(read_native(write(folder, name, data), quality))
    for record in found:
        format_record(record).encode()
    all_accounted(quality, "questions", len(found))


@target("data/gemex/sample/scene_graph/*.json")
def scene_graph(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.papers.sources.chest_imagenome import find_scene_graphs, read_reports

    quality = QualityLog()
    write(folder / "scene_graph", name, data)
    places = find_scene_graphs(folder, quality)
    reports = list(read_reports(places, sorted(places), {}, quality))
    all_accounted(quality, "scene graphs", len(reports))


@target("data/cxr_qba/sample/release/p19/p19990002/*.json")
def cxr_qba_study(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.papers.cxr_qba.study_files import StudyFiles

    quality = QualityLog()
    write(folder / "p19" / "p19990002", name, data)
    with StudyFiles(folder, quality) as files:
        for key in files.members:
            graph, asked = files.read(key)
            for found in (graph, asked):
                if found is not None:
                    found.model_dump_json()
    strict_json(quality.to_json())


@target("data/cxr_qba/sample/reports/studies.jsonl")
def cxr_qba_reports(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.papers.cxr_qba.construct.sources import read_studies

    quality = QualityLog()
    found = list(read_studies(write(folder, name, data), quality))
    strict_json(quality.to_json())
    if len(found) + len(quality.entries) < _lines(data):
        raise Fault(f"silent loss: {_lines(data)} lines, {len(found)} kept")


@target()
def splits(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.records_io.split import read_split_manifest

    path = write(folder, name, data)
    read_split_manifest(path, None)


@target()
def manifest(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.evaluation.run_record import check_split
    from cxrjax.training.workdir import describe_run

    (folder / "records").mkdir()
    references = folder / "records" / "validation.jsonl"
    shutil.copy(CORPUS / "records" / "records.jsonl", references)
    path = write(folder, "manifest.json", data)
    base = dict.fromkeys(("seed", "steps", "resumed_from"), 0)
    describe_run(parameters={}, base={}, data_files=[references], **base)  # type: ignore[arg-type]
    check_split(references, manifest=path)


@target()
def run_config(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.training.checkpoint import check_same_run, read_config
    from cxrjax.training.config import ExperimentConfig
    from cxrjax.training.config_file import validate

    write(folder, "config.json", data)
    with contextlib.suppress(UserError):
        check_same_run(folder, ExperimentConfig())
    config = read_config(folder)
    json.dumps(config.to_json())
    validate(config)


def _flags() -> dict[str, bytes]:
    variants = {
        "vindr_lora": ":phantom",
        "gemex_sft": ":tiny",
        "mixture": ":tiny",
        "cxr_qba": ":tiny",
    }
    words = (
        "lora.rank=4",
        "training.steps=10",
        "optimizer.learning_rate=1e-4",
        "model.init_from=None",
        "data.train=x/records/train.jsonl",
        "lora.targets=('a', 'b')",
        "decoding.grammar=boxes",
        "mesh.data=-1",
        "mixture.temperature=1.0",
        "training.batch_images=4",
    )
    given = "\n".join(f"--config.{word}" for word in words)
    files = sorted(ROOT.glob("configs/*.py"))
    return {
        f"{file.stem}.txt": f"{file.stem}{variants.get(file.stem, '')}\n{given}".encode()
        for file in files
    }


@target(seeds=_flags)
def config_flags(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.training.config_file import load_config

    spec, *words = data.decode("utf-8", "surrogateescape").split("\n")
    variant = spec.partition(":")[2]  # the file itself is trusted code
    file = ROOT / "configs" / name.replace(".txt", ".py")
    load_config(f"{file}:{variant}", [word for word in words if word][:40])


@target()
def metrics_log(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.apps.results.curves import charts, read_series
    from cxrjax.training.metric_log import _cut_after

    path = write(folder, "metrics.jsonl", data)
    with contextlib.suppress(UserError):
        read_series(path)
        charts(path)
    _cut_after(path, 3)


@target()
def base_model(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.training.base_model import base_config, model_sizes

    write(folder, "model.json", data)
    model_sizes(base_config(folder))


@target()
def checksums(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.training.store import find_damage

    write(folder, "params/a.txt", b"a")
    write(folder, "checksums.json", data)
    for parts in (None, ("params",)):
        found = find_damage(folder, parts)
        if found and SECRET in found:
            raise Fault(f"checksums tell {found[:200]!r}")


@target(share=0.6)
def answer_cache(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.language_model.account import AnswerCache
    from cxrjax.language_model.judges.asked import VerdictStore

    with contextlib.suppress(UserError):
        store = VerdictStore(write(folder, "verdicts.jsonl", data))
        getattr(store, "close", lambda: None)()
    cache = AnswerCache(write(folder, "cache.jsonl", data))
    try:
        for key in cache:
            cache.get(key)
    finally:
        cache.close()


@target()
def judgements(folder: Path, name: str, data: bytes) -> None:
    from bench.judge_agreement import read_marks

    read_marks(write(folder, name, data))


# ---- Tables


@target("data/gemex/sample/*.csv", "data/vindr_cxr_vqa/sample/*.csv")
def tables(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.papers.sources import mimic_tables
    from cxrjax.papers.vindr_cxr_vqa.box_table import read_box_table
    from cxrjax.records_io.csv_table import read_size_table

    path = write(folder, name, data)
    for read in (mimic_tables.read_splits, mimic_tables.read_sizes):
        with contextlib.suppress(UserError):
            read(path)
    for read_into in (read_size_table, read_box_table):
        quality = QualityLog()
        with contextlib.suppress(UserError):
            read_into(path, quality)
        strict_json(quality.to_json())


@target("data/cxr_qba/hand_check.csv")
def sheets(folder: Path, name: str, data: bytes) -> None:
    from bench.cxr_qba_validation.human_labels import read_label_table
    from bench.judge_agreement import read_marks
    from cxrjax.apps.review.sheet import read_sheet

    path = write(folder, name, data)
    for read in (read_marks, lambda path: read_label_table(path, QualityLog())):
        with contextlib.suppress(UserError):
            read(path)
    read_sheet(path)


# ---- Archives and XML


@target()
def openi(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.papers.sources.openi import read_openi

    if name.endswith(".xml"):
        (folder / "reports").mkdir()
        write(folder / "reports", name, data)
        path = folder / "reports"
    else:
        path = write(folder, name, data)
    quality = QualityLog()
    found = list(read_openi(path, quality))
    given = _reports_in(data) if name.endswith(".tgz") else 1
    if len(found) + len(quality.entries) < given:
        raise Fault(
            f"silent loss: {given} reports, {len(found)} kept, {len(quality.entries)} aside"
        )
    all_accounted(quality, "reports", len(found))


def _reports_in(data: bytes) -> int:
    import tarfile

    with contextlib.suppress(Exception), tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return sum(member.isfile() and member.name.endswith(".xml") for member in tar)
    return 0


@target()
def archives(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.papers.cxr_qba.study_files import StudyFiles, holds_studies
    from cxrjax.papers.sources.chest_imagenome import find_scene_graphs, read_reports

    path = write(folder, name, data)
    holds_studies(folder)
    quality = QualityLog()
    if "scene" in name:
        places = find_scene_graphs(path, quality)
        reports = list(read_reports(places, sorted(places), {}, quality))
        all_accounted(quality, "scene graphs", len(reports))
        return
    with StudyFiles(path, quality) as files:
        for key in files.members:
            files.read(key)
    strict_json(quality.to_json())


@target()
def packed_tables(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.papers.sources import mimic_tables
    from cxrjax.records_io.csv_table import read_size_table

    path = write(folder, name, data)
    with contextlib.suppress(UserError):
        mimic_tables.read_sizes(path)
    quality = QualityLog()
    read_size_table(path, quality)
    strict_json(quality.to_json())


def _rows() -> dict[str, bytes]:
    """Seeds: files of rows as the hub has them, one with an image and numbers of classes."""
    import pyarrow
    import pyarrow.parquet
    from PIL import Image

    image, out = io.BytesIO(), io.BytesIO()
    Image.new("L", (4, 4)).save(image, "PNG")
    row = {"image": {"bytes": image.getvalue(), "path": "a.png"}, "objects": {"category": [0]}}
    names = {"objects": {"feature": {"category": {"names": ["Nodule"]}}}}
    noted = {"huggingface": json.dumps({"info": {"features": names}})}
    table = pyarrow.Table.from_pylist([row]).replace_schema_metadata(noted)
    pyarrow.parquet.write_table(table, out)
    line = b'{"image_id": "a", "question": "Is there a mass?"}\n'
    return {"train.parquet": out.getvalue(), "train.jsonl": line, "train.json": b"[" + line + b"]"}


@target(seeds=_rows)
def hub_rows(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.records_io.row_files import ROWS, RowFolder, find_shards, read_rows

    write(folder, name, data)
    quality = QualityLog()
    with RowFolder(folder / "unpacked") as out:
        for row in read_rows(find_shards(folder, ROWS), quality):
            with quality.rejecting("", row.where):
                if row.image:
                    out.image(f"images/{row.image_name}", row.image)
                out.add("rows.json", row.cells)
    strict_json(quality.to_json())


def _release(path: str, files: str = "**/*") -> Callable[[], dict[str, bytes]]:
    """Seeds: small files below a folder, by their relative paths."""
    top = _SAMPLES / path

    def found() -> dict[str, bytes]:
        return {
            file.relative_to(top).as_posix(): file.read_bytes()
            for pattern in files.split()
            for file in sorted(top.glob(pattern))
            if file.is_file() and file.stat().st_size < _LARGEST_SEED
        }

    return found


def _build(dataset: str, sample: str, share: float, files: str = "**/*") -> None:
    """A whole build of a sample of which one file is hostile."""

    def run(folder: Path, name: str, data: bytes) -> None:
        from cxrjax.paper import find_paper

        source = folder / "source"
        shutil.copytree(_SAMPLES / sample, source)
        write(source, name, data)
        made = find_paper(dataset).part("builder")
        builder = made(made.options_class(source=source, out=folder / "out"))
        builder.build()
        json.loads((folder / "out" / "quality.json").read_text("utf-8"))

    target(name=f"build_{dataset}", seeds=_release(sample, files), share=share)(run)


_build("vindr_cxr_vqa", "vindr_cxr_vqa/sample", 1.0)
_build("gemex", "gemex/sample", 1.0, files="*.csv sub_training_data.json scene_graph/*34*.json")
_build("ms_cxr", "ms_cxr/sample", 0.5)
_build("grounded_reports", "grounded_reports/sample", 0.5)
_build("vix_ray", "vix_ray/sample", 1.0)
_build("cxr_qba", "cxr_qba/sample/release", 1.0)


# ---- Annotations of any tool, reports, shards, the review's database

_FORMATS = ROOT / "tests" / "apps" / "annotations" / "formats"


@functools.cache
def _annotated() -> dict[str, bytes]:
    """A file of each format of annotations, and small images that it is about."""
    found = {}
    for path in sorted(_FORMATS.glob("*/**/*")):
        if path.is_file():
            found[path.relative_to(_FORMATS).as_posix()] = path.read_bytes()
    return found


def _small_image(level: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.linear_gradient("L").resize((80, 60)).point(lambda v: v // 2 + level).save(out, "PNG")
    return out.getvalue()


@target(seeds=_annotated, share=3.0)
def importers(folder: Path, name: str, data: bytes) -> None:
    """One file of an export is hostile; its entries are kept or rejected, one by one."""
    from cxrjax.apps.annotations import checks
    from cxrjax.apps.annotations.annotation import Stated
    from cxrjax.apps.annotations.folder import Folder
    from cxrjax.apps.annotations.formats import read_annotations

    kind, _, inside = name.partition("/")
    for number, letter in enumerate("abcdef"):
        write(folder, f"images/{letter}.png", _small_image(20 * number))
    for other, content in _annotated().items():
        if other.startswith(f"{kind}/") and other != name:
            write(folder, other.partition("/")[2], content)
    write(folder, inside or name, data)
    quality = QualityLog()
    _, found = read_annotations(Folder(folder), Stated(label="x"), quality)
    checks.drop_normal(found, lambda one: (60, 80))
    checks.spell_classes(found)
    list(checks.class_doubts(found))
    for file, of in found.account().items():
        if of["entries"] != of["kept"] + sum(of["rejected"].values()):
            raise Fault(f"silent loss: {file}: {of}")
    strict_json(quality.to_json())


def _zipped() -> dict[str, bytes]:
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("annotations.xml", _annotated()["cvat/annotations.xml"])
        archive.writestr("images/a.png", _small_image(0))
    return {"cvat.zip": out.getvalue()}


@target(seeds=_zipped)
def exported_zips(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.apps.annotations.zips import unpack

    unpack([write(folder, name, data)], folder / "out")


def _structured_report() -> dict[str, bytes]:
    import tempfile

    from tests.apps.annotations.samples import report

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "report.dcm"
        report(path, [("1.2.3.1", "Effusion", (10, 20, 40, 50))])
        return {"report.dcm": path.read_bytes()}


@target(seeds=_structured_report)
def dicom_reports(folder: Path, name: str, data: bytes) -> None:
    """Sniffing of reports, and reading of one."""
    from cxrjax.untrusted.dicom_reports import head, is_report, read_report

    path = write(folder, name, data)
    is_report(path)
    for read in (lambda of: head(of, "SOPInstanceUID"), read_report):
        with contextlib.suppress(ForeignError):
            read(path)


@functools.cache
def _shards() -> dict[str, bytes]:
    import tempfile

    from cxrjax.records_io.shards import ShardsBuilder, ShardsOptions

    with tempfile.TemporaryDirectory() as place:
        source, out = Path(place) / "source", Path(place) / "out"
        (source / "records").mkdir(parents=True)
        shutil.copy(CORPUS / "records" / "records.jsonl", source / "records" / "train.jsonl")
        (source / "manifest.json").write_text("{}")
        ShardsBuilder(ShardsOptions(source, out, num_shards=1)).build()
        files = [path for path in sorted(out.rglob("*")) if path.is_file()]
        return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


@target(seeds=_shards)
def sharded_source(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.input_pipeline.sharded_source import ShardedSource

    for other, content in _shards().items():
        write(folder, other, content)
    write(folder, name, data)
    source = ShardedSource(folder, "train")
    for element in range(len(source)):
        _ = source[element]
    source.image_sizes()


_SHEET = [{"question_id": "q1", "comment": ""}]


@functools.cache
def _database() -> dict[str, bytes]:
    import tempfile

    from cxrjax.apps.review.store import ReviewStore

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "review.sqlite"
        ReviewStore(path, _SHEET, ["anna", "bao"]).close()
        return {"review.sqlite": path.read_bytes()}


@target(seeds=_database)
def review_database(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.apps.review.store import ReviewStore, kept_reviews

    path = write(folder, "review.sqlite", data)
    with contextlib.suppress(UserError):
        kept_reviews(path, _SHEET)
    ReviewStore(path, _SHEET, ["anna", "bao"]).close()


# ---- Images


@target(share=3.0)
def images(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.images.decode import audit_header, audit_image, image_size, read_image
    from cxrjax.images.encode import encode_jpeg

    path = write(folder, name, data)
    audit_header(path)
    size = image_size(path)
    picture = read_image(path)
    if picture.shape[:2] != size:
        raise Fault(f"image_size gives {size}, read_image {picture.shape}")
    audit_image(picture)
    if picture.size < 10**6:
        encode_jpeg(path)


@target(share=4.0)
def dicom(folder: Path, name: str, data: bytes) -> None:
    images(folder, name, data)


# ---- Weights, tokenizers, configurations of models


def _small_sizes() -> Any:
    from cxrjax.models.presets import DecoderConfig, VisionConfig, VLMConfig

    vision = VisionConfig(image_size=8, patch_size=4, width=8, depth=1, num_heads=2, mlp_dim=16)
    decoder = DecoderConfig(
        vocab_size=1040, width=8, depth=2, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=16
    )
    return VLMConfig(vision=vision, decoder=decoder, loc_token_start=4)


@target("bench/fuzz/corpus/hf_folder/*", share=1.5)
def hf_folder(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.models.hf_import import open_checkpoint, read_parameters

    for file in (CORPUS / "hf_folder").iterdir():
        shutil.copy(file, folder)
    write(folder, name, data)
    files = open_checkpoint(folder)
    for tensor in list(files.tensors)[:5]:
        files.read(tensor)
    read_parameters(files, _small_sizes())


@target("bench/fuzz/corpus/hf_config/*", share=1.5)
def hf_config(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.models.hf_config import read_config
    from cxrjax.models.hf_layout import tensor_rules, vlm_config
    from cxrjax.training.interchange import kind_of

    write(folder, "config.json", data)
    kind_of(folder)
    sizes = vlm_config(read_config(folder), str(folder), 4)
    for rule in tensor_rules(sizes):
        rule.names(sizes)


@target("bench/fuzz/corpus/adapter/*")
def adapter(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.models.peft import read_peft

    for file in (CORPUS / "adapter").iterdir():
        shutil.copy(file, folder)
    write(folder, name, data)
    read_peft(folder, _small_sizes())


def _tokenizers() -> dict[str, bytes]:
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "\n", *"abcdefghijklmnop", "▁", "▁the"]
    names = [*pieces, *(f"<loc{number:04d}>" for number in range(1024))]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": number, "content": name, "special": number < 4, **flags}
        for number, name in enumerate(names)
        if name[0] == "<"
    ]
    vocabulary = {name: number for number, name in enumerate(names)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>"}
    whole = {"version": "1.0", "added_tokens": added, "model": model}
    whole |= dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "decoder"))
    return {
        "tokenizer.model": (_SAMPLES / "demo_base" / "tokenizer.model").read_bytes(),
        "tokenizer.json": json.dumps(whole | {"post_processor": None}).encode(),
    }


@target(seeds=_tokenizers)
def tokenizers(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.input_pipeline.tokenizer import check_vocabulary, load_tokenizer

    write(folder, name, data)
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode("Where is the nodule? <loc0001> 12\n")
    tokenizer.decode(ids)
    check_vocabulary(tokenizer, tokenizer.vocab_size)


@target()
def chat_template(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.input_pipeline.chat import CHAT_FORMS, check_template

    write(folder, name, data)
    check_template(folder, CHAT_FORMS["medgemma"])


@target()
def gguf(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.models.gguf import GGUFFile

    file = GGUFFile(write(folder, name, data))
    with contextlib.suppress(UserError):
        strict_json(file.config())
    with contextlib.suppress(UserError):
        file.tokenizer()
    for number, _ in enumerate(file.tensors()):
        if number == 3:
            break


@target(seeds=_release("demo_base"), share=0.5)
def checkpoint(folder: Path, name: str, data: bytes) -> None:
    """The checkpoint that ships, with one file of another; its checksums are none that tell."""
    from cxrjax.training.base_model import base_config, base_sha256, model_sizes

    source = folder / "base"
    shutil.copytree(_SAMPLES / "demo_base", source)
    write(source, name, data)
    base_sha256(source)
    model_sizes(base_config(source))
    import orbax.checkpoint as ocp

    # The library's own faults are nothing of ours; that it dies or hangs would be.
    with ocp.StandardCheckpointer() as reader, contextlib.suppress(Exception):
        reader.metadata(source / "params")


# ---- A language model's answers


class _Answering:
    """A server on loopback that answers every request with the same bytes."""

    def __init__(self) -> None:
        self.answer = b""
        self.requests = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection:
            connection.settimeout(5)
            head = b""
            while b"\r\n\r\n" not in head:
                more = connection.recv(65536)
                if not more:
                    return
                head += more
            told = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
            missing = int(told or 0) - len(head.partition(b"\r\n\r\n")[2])
            while missing > 0 and (more := connection.recv(65536)):
                missing -= len(more)
            self.requests += 1
            connection.sendall(self.answer)


@functools.cache
def _answering() -> _Answering:
    return _Answering()


def _ask(folder: Path, answer: bytes) -> None:
    import pydantic

    from cxrjax.language_model.account import AnswerCache
    from cxrjax.language_model.client import Client
    from cxrjax.language_model.request import Message, Request
    from cxrjax.language_model.settings import Prices, Settings

    class City(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        city: str
        people: int | None = None
        near: list["City"] = []

    server = _answering()
    server.answer = answer
    settings = Settings(
        base_url=f"http://127.0.0.1:{server.port}/v1",
        model="m",
        api_key=KEY,
        timeout=1.5,
        attempts=1,
        answers=2,
        prices=Prices(1.0, 1.0),
        max_cost=1e9,
    )
    request = Request((Message("user", ("Which city?",)),), City)
    results: list[str] = []
    for _ in range(2):  # the second time from the cache
        sent = server.requests
        client = Client(settings, AnswerCache(folder / "cache.jsonl"))
        try:
            results.append(client.ask(request).model_dump_json())
        except REFUSALS as refusal:
            results.append(type(refusal).__name__ + str(refusal))
            kind = getattr(refusal, "category", "http_error")
            service = kind in ("http_error", "timeout", "connection")
        else:
            service = False
        finally:
            client.close()
        told = client.account.to_json()
        strict_json(told)
        if any(isinstance(value, int | float) and value < 0 for value in told.values()):
            raise Fault(f"an account below zero: {told}")
        if len(results) == 2 and server.requests != sent and not service:
            raise Fault("an answer that was paid for is asked for again")
    for text in (*results, (folder / "cache.jsonl").read_text("utf-8")):
        if KEY in "".join(text.split()):
            raise Fault(f"the key comes out: {text[:300]!r}")
    if results[0] != results[1] and not service:
        raise Fault(f"another result from the cache: {results[0][:150]!r}, {results[1][:150]!r}")
    if not results[0].startswith("{"):
        raise ForeignError(results[0][:3_000])


@target(share=2.0)
def language_model(folder: Path, name: str, data: bytes) -> None:
    if name.endswith(".json"):
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        data = f"{head}\r\nConnection: close\r\n\r\n".encode() + data
    _ask(folder, data)


# ---- Servers


@functools.cache
def _review() -> tuple[int, str]:
    """Port and token of a review that is served as long as this process lives."""
    import tempfile

    from cxrjax.apps.page_server import listen, serve
    from cxrjax.apps.review.correction import Correctable
    from cxrjax.apps.review.server import LIMITS, Review
    from cxrjax.apps.review.sheet import sheet_rows
    from cxrjax.apps.review.store import ReviewStore
    from cxrjax.records import read_records

    sample = list(read_records(CORPUS / "records" / "records.jsonl"))
    place = Path(tempfile.mkdtemp()) / "review.sqlite"
    correctable = {one.question_id: Correctable((1000, 1000), 1, ()) for one in sample}
    store = ReviewStore(place, sheet_rows(sample), ("a", "b"), correctable)
    pictures = [CORPUS / "images" / "grey.png"]
    guard = Review(store, "<html>page</html>", pictures, lambda: "<html>all</html>").guarded(())
    listening = listen("127.0.0.1", 0)
    threading.Thread(target=serve, args=(guard, listening, LIMITS), daemon=True).start()
    return listening.getsockname()[1], next(iter(store.tokens().values()))


@target(share=2.0)
def review_server(folder: Path, name: str, data: bytes) -> None:
    port, token = _review()
    answer = _exchange(port, data.replace(b"TOKEN", token.encode()).replace(b"PORT", b"%d" % port))
    if b"Traceback" in answer or SECRET.encode() in answer:
        raise Fault(f"an answer that tells too much: {answer[:300]!r}")
    # It still serves the others.
    head = f"Host: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    plain = f"GET /{token}/ HTTP/1.1\r\n{head}".encode()
    if not _exchange(port, plain, 5.0).startswith(b"HTTP/1.1 200"):
        raise Fault("no longer serves")
    if not answer.startswith(b"HTTP/1.1 2"):
        raise ForeignError(f"refused: {answer[:40]!r}")


def _exchange(port: int, data: bytes, patience: float = 0.1) -> bytes:
    """The answer; what there is of it where the server waits for more."""
    answer = b""
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    with connection, contextlib.suppress(OSError):
        connection.sendall(data)
        connection.settimeout(patience)
        while len(answer) < 10**6 and (more := connection.recv(65536)):
            answer += more
    return answer


# ---- Text that models write, and names


def _written_boxes() -> dict[str, bytes]:
    import numpy as np

    from cxrjax.codecs import CODECS

    boxes = np.array([[0.1, 0.2, 0.5, 0.6], [0.3, 0.1, 0.9, 0.4]])
    made = {}
    for name, codec in CODECS.items():
        try:
            text = codec.encode(boxes, 1000, 800, labels=["nodule", "opacity"])
        except Exception:  # needs a geometry
            text = "<loc0001> [1, 2, 3, 4]"
        made[f"{name}.txt"] = f"Yes, there is a nodule at {text}. No other finding.".encode()
    return made


@target(seeds=_written_boxes, share=2.0)
def codecs(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.codecs import CODECS
    from cxrjax.codecs.base import declines

    text = data.decode("utf-8", "surrogateescape")
    codec = CODECS[name.removesuffix(".txt")]
    geometry = codec.makers_geometry(1000, 800)
    found = codec.decode(text, 1000, 800, geometry)
    codec.decode(text, 1000, 800, geometry, strict=True)
    read, numbers = codec.read_numbers(text, 1000, 800, geometry)
    if not len(found.boxes) <= len(read) == len(numbers):
        raise Fault(f"{len(found.boxes)} boxes of {len(numbers)} with numbers")
    if len(codec.read_as_written(text, 1000, 800, geometry).spans) != len(found.boxes):
        raise Fault("two readings of one text differ")
    declines(text)


_ANSWERS = {
    "answer.txt": b"Yes, there is a small left pleural effusion (A). No pneumothorax. "
    b"The heart is enlarged, which was not seen before.\nC. Right lung <loc_1_2_3_4>",
    "vietnamese.txt": "Có tràn dịch màng phổi trái lượng ít. Không thấy tổn thương.".encode(),
    "thinking.txt": b"<think>hm</think> Final answer: B, because the left lung is clear.",
}


@target(seeds=lambda: _ANSWERS, share=2.0)
def answers(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.evaluation.systems.systems import READINGS
    from cxrjax.papers.gemex.choices import named_options
    from cxrjax.papers.gemex.dialogue import parse_answer, split_choices
    from cxrjax.papers.sources.regions import find_places
    from cxrjax.papers.vix_ray.deidentification import find_identifiers
    from cxrjax.radiology_text.facts import align, decompose, is_refusal
    from cxrjax.radiology_text.lexicon import plain_text
    from cxrjax.radiology_text.mentions import yes_or_no

    text = data.decode("utf-8", "surrogateescape")
    readers: dict[str, Callable[[], object]] = {
        "options": lambda: named_options(text, "single_choice", ["A", "B", "left lung"]),
        "closed": lambda: named_options(text, "closed_ended", None, "Is there an effusion?"),
        "split": lambda: split_choices(text),
        "gemex": lambda: parse_answer(text, "single-choice", ["A: left", "B: right"]),
        "places": lambda: find_places(text),
        "identifiers": lambda: find_identifiers(text),
        "english": lambda: decompose(text, "en"),
        "vietnamese": lambda: decompose(text, "vi"),
        "align": lambda: align(text, "There is a left effusion.", "en"),
        "plain": lambda: (plain_text(text), yes_or_no(text), is_refusal(text)),
        "readings": lambda: [read(text) for read in READINGS.values()],
    }
    # One a case, so that each has the whole time; by the text, so that it is the same again.
    list(readers.values())[sum(data[:64]) % len(readers)]()


@target(seeds=lambda: {"name.txt": b"images/a.png"}, share=0.3)
def names(folder: Path, name: str, data: bytes) -> None:
    from cxrjax.untrusted.foreign_files import read_bytes
    from cxrjax.untrusted.names import file_name, path_inside

    text = data.decode("utf-8", "surrogateescape")
    with contextlib.suppress(ForeignError):
        (folder / file_name(text)).write_bytes(b"")
    path = path_inside(folder, text)
    if not os.path.abspath(path).startswith(str(folder)):
        raise Fault(f"{path} is outside")
    with contextlib.suppress(OSError):
        read_bytes(path)


# ---- Whole commands


def _score(benchmark: str, folder: Path, name: str, data: bytes) -> None:
    from cxrjax.commands import report, score

    here = CORPUS / "score" / benchmark
    for file in here.iterdir():
        shutil.copy(file, folder)
    write(folder, name, data)
    references, out = folder / "references.jsonl", folder / "out"
    words = [f"--references={references}", f"--out={out}", f"--benchmark={benchmark}"]
    if benchmark == "vindr_cxr_vqa":  # its baselines alone take the 2 s that a case may take
        words += ["--floors=never"]
    score.main([*words, f"--predictions={folder / 'predictions.jsonl'}", "--resamples=10"])
    json.loads((out / "metrics.json").read_text("utf-8"))
    shown = [f"--workdir={out}", f"--references={references}", "--pictures=none"]
    report.main([*shown, f"--predictions={folder / 'predictions.jsonl'}", f"--out={out / 'page'}"])
    for page in _pages(out):
        text = page.read_text("utf-8")
        if "<script>alert(1)" in text or "<img src=x onerror" in text:
            raise Fault("foreign text is markup on the page")
        if not text.strip():
            raise Fault("an empty page")


def _pages(out: Path) -> Iterator[Path]:
    return out.rglob("*.html")


def _add_scores(benchmarks: Iterable[str]) -> None:
    for benchmark in benchmarks:
        target(f"bench/fuzz/corpus/score/{benchmark}/*", name=f"score_{benchmark}", share=1.0)(
            functools.partial(_score, benchmark)
        )


_add_scores(("vindr_cxr_vqa", "gemex", "cxr_qba", "vix_ray", "ms_cxr"))
if os.environ.get("CXRJAX_FUZZ_PLANTED"):
    import bench.fuzz.planted  # noqa: F401
