"""Construction in shards: the same as in one piece, also as a TFDS data set."""

import collections
import json
import operator
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.build import QbaBuilder, QbaOptions
from cxrjax.papers.cxr_qba.commands.build_cxr_qba_shards import main
from cxrjax.papers.cxr_qba.construct import shards as construction
from cxrjax.papers.cxr_qba.construct.shards import ShardedBuild
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.papers.cxr_qba.construct.tfds_builder import CxrQba, write_qba_tfds
from cxrjax.records import QARecord
from cxrjax.records_io.quality import QualityLog
from cxrjax.records_io.shards import read_elements
from tests.papers.cases import cases
from tests.papers.cxr_qba.builds import content
from tests.papers.cxr_qba.builds import run_shards as run


@pytest.fixture(scope="module")
def source(sample, tmp_path_factory):
    """Six studies of five patients, one study twice, and two lines that are none."""
    lines = (sample / "reports" / "studies.jsonl").read_text().splitlines()
    more = [line.replace("p1999", "p1888").replace("s5999", "s5888") for line in lines]
    path = tmp_path_factory.mktemp("source") / "studies.jsonl"
    path.write_text("\n".join([*lines, "{}", *more, lines[0]]) + "\n")
    with open(path, "ab") as file:
        file.write(b'{"patient_id": "\xff"}\n')
    return path


RATED = {"rate_with": "surrogate"}


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """The build in one piece."""
    out = tmp_path_factory.mktemp("whole") / "out"
    QbaBuilder(QbaOptions(source, out, **RATED)).build()
    return out


@pytest.fixture(scope="module")
def in_three(source, tmp_path_factory):
    """The build in three shards; not to be changed."""
    out = tmp_path_factory.mktemp("three") / "out"
    run(ShardedBuild(QbaOptions(source, out), 3))
    return out


@pytest.mark.parametrize("shards", [1, 4])
def test_shards_hold_what_one_build_holds(source, whole, tmp_path, shards):
    out = tmp_path / "out"
    run(ShardedBuild(QbaOptions(source, out, **RATED), shards))
    for split in ("train", "validation"):
        files = sorted((out / "records").glob(f"{split}-*.array_record"))
        found = sorted(line.decode() for file in files for line in read_elements(file))
        assert found == sorted((whole / "records" / f"{split}.jsonl").read_text().splitlines())
    for name in ("sampling_weights.json", "tables.md", "metadata/quality_mappings.csv"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    one, parts = (json.loads((root / "quality.json").read_text()) for root in (whole, out))
    assert one.pop("set_aside") != [] and parts.pop("set_aside") != []
    del one["examined"]["files"]  # reread between its passes
    assert one == parts and one["counts"]["duplicate_id"] == 1
    one, parts = (json.loads((root / "statistics.json").read_text()) for root in (whole, out))
    for name in ("patients", "studies", "questions", "sub_answers", "images", "boxes"):
        assert one[name] == parts[name], name
    for level in ("patient", "question", "answer_image"):
        name = f"{level}_metadata.parquet"
        expected = pq.read_table(whole / "metadata" / name).to_pylist()
        tables = sorted((out / "metadata").glob(f"shard-*/{name}"))
        found = [row for table in tables for row in pq.read_table(table).to_pylist()]
        key = lambda row: json.dumps(row, sort_keys=True)  # noqa: E731
        assert sorted(found, key=key) == sorted(expected, key=key)


def test_a_failed_shard_alone_is_done_again(source, in_three, tmp_path, monkeypatch):
    out = tmp_path / "out"
    job = ShardedBuild(QbaOptions(source, out), 3)
    build = construction.construct_questions
    broken = next(n for n in range(3) if job.holds(n, "p19990001"))

    def fails(graph, counts, how):
        if graph.patient_id == "p19990001":
            raise OSError(28, "No space left on device")
        return build(graph, counts, how)

    monkeypatch.setattr(construction, "construct_questions", fails)
    with pytest.raises(UserError, match=rf"1 of 3 .* shard {broken}: .*--shards={broken} or"):
        run(job)
    assert not (out / "manifest.json").exists()
    monkeypatch.setattr(construction, "construct_questions", build)
    done = {path: path.stat().st_mtime_ns for path in job.done()}
    run(job, {broken})
    kept = {path for path, time in done.items() if path.stat().st_mtime_ns == time}
    assert len(kept) == 2 * 3 - 2  # of the other shards, both passes
    assert content(out) == content(in_three)


def test_a_fault_in_the_first_pass_stops_the_second(source, tmp_path, monkeypatch):
    job = ShardedBuild(QbaOptions(source, tmp_path / "out"), 2)
    monkeypatch.setattr("cxrjax.papers.cxr_qba.build.construct_graph", lambda *_: 1 / 0)
    with pytest.raises(UserError, match="2 of 2 shards are not done; shard 0: ZeroDivisionError"):
        run(job)
    assert not list((tmp_path / "out").glob("parts/questions-*"))


def test_other_settings_begin_anew_and_another_number_of_shards_is_another_build(
    source, in_three, tmp_path
):
    out = shutil.copytree(in_three, tmp_path / "out")
    with pytest.raises(UserError, match="another number of shards than 2"):
        run(ShardedBuild(QbaOptions(source, out), 2))
    for folder in (out, tmp_path / "two"):
        run(ShardedBuild(QbaOptions(source, folder, seed=2), 3))
    assert content(out) == content(tmp_path / "two") != content(in_three)


def test_another_report_changes_the_counts_of_all_shards(source, tmp_path):
    lines, source = source.read_text(errors="surrogateescape"), tmp_path / "studies.jsonl"
    out = tmp_path / "out"
    job = ShardedBuild(QbaOptions(source, out), 2)
    for text in (lines, lines.replace("p1888", "p1777")):
        source.write_text(text, errors="surrogateescape")
        run(job, set(range(2)))
    run(ShardedBuild(QbaOptions(source, tmp_path / "new"), 2))
    assert content(out) == content(tmp_path / "new")


def test_parts_of_a_source_add_up(source, tmp_path):
    whole, parts = QualityLog(), QualityLog()
    expected = [study.study_id for study in read_studies(source, whole)]
    job, found = ShardedBuild(QbaOptions(source, tmp_path), 5), []
    for number in range(5):
        wanted = lambda patient_id, number=number: job.holds(number, patient_id)  # noqa: E731
        found += [study.study_id for study in read_studies(source, parts, wanted)]
    assert collections.Counter(found) == collections.Counter(expected)
    assert parts.examined == whole.examined and parts.counts() == whole.counts()


def test_nothing_to_use(tmp_path):
    (tmp_path / "studies.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="no study left"):
        run(ShardedBuild(QbaOptions(tmp_path, tmp_path / "out"), 2))


@cases("flags, message")
def test_unusable_flags(sample, tmp_path, flags, message):
    with pytest.raises(UserError, match=message):
        main([f"--source={sample / 'reports'}", f"--out={tmp_path}", *flags])


def test_the_release_is_not_constructed(sample, tmp_path):
    with pytest.raises(UserError, match="is the release"):
        main([f"--source={sample / 'release'}", f"--out={tmp_path}"])


def test_without_the_engine(sample, tmp_path):
    try:
        import apache_beam  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match="make beam"):
            main([f"--source={sample / 'reports'}", f"--out={tmp_path / 'out'}"])
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


@pytest.fixture(scope="module")
def in_shards(plain, tmp_path_factory):
    """The build of three studies in shards; not to be changed."""
    out = tmp_path_factory.mktemp("shards") / "out"
    build.main(["--dataset=shards", f"--source={plain.out}", f"--out={out}", "--num_shards=3"])
    return out


@pytest.fixture
def images(plain, tmp_path):
    """A folder with the images that the records name."""
    root = tmp_path / "images"
    for number, path in enumerate(sorted({r.image_path for r in plain.records})):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(root / path)
    return root


def _examples(folder):
    builder = tfds.builder_from_directory(str(folder))
    return {split: list(builder.as_data_source(split)) for split in builder.info.splits}


def test_examples_are_images_with_their_questions(plain, in_shards, images, tmp_path):
    flags = [f"--source={in_shards}", f"--image_root={images}", f"--out={tmp_path / 'tfds'}"]
    build.main(["--dataset=tfds", *flags])
    found = []
    for split, examples in _examples(tmp_path / "tfds/cxr_qba/1.0.0").items():
        indices = [index for one in examples for index in one["questions"]["index"]]
        assert indices == list(range(len(indices)))  # in the order of the shards
        for one in examples:
            assert one["image"] == (images / one["image_path"].decode()).read_bytes()
            records = [QARecord.model_validate_json(text) for text in one["questions"]["record"]]
            assert {(r.split, r.image_id) for r in records} == {(split, one["image_id"].decode())}
            found += records
    by_id = operator.attrgetter("question_id")
    assert sorted(found, key=by_id) == sorted(plain.records, key=by_id)


def test_without_images_and_by_the_builder_s_name(in_shards, tmp_path):
    data = tfds.data_source(
        "cxr_qba",
        split="train",
        data_dir=str(tmp_path / "tfds"),
        builder_kwargs={"source": str(in_shards)},
        download_and_prepare_kwargs={"download_dir": str(tmp_path / "none")},
    )
    assert CxrQba.name == "cxr_qba" and "image" not in data[0] and len(data[0]["questions"])
    # What is there is left as it is.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "tfds").rglob("*")}
    folder = write_qba_tfds(in_shards, tmp_path / "tfds")
    assert folder == tmp_path / "tfds/cxr_qba/1.0.0"
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "tfds").rglob("*")}


def test_what_cannot_be_written(plain, in_shards, images, tmp_path):
    shards = shutil.copytree(in_shards, tmp_path / "shards")
    path = sorted({record.image_path for record in plain.records})[1]
    (images / path).unlink()
    with pytest.raises(UserError, match=f"{path}: cannot read the image.*--image_root"):
        write_qba_tfds(shards, tmp_path / "tfds", images)
    assert not (tmp_path / "tfds/cxr_qba/1.0.0").exists()
    write_qba_tfds(shards, tmp_path / "tfds")
    manifest = json.loads((shards / "manifest.json").read_text())
    (shards / "manifest.json").write_text(json.dumps({**manifest, "seed": 9}))
    with pytest.raises(UserError, match="of another build"):
        write_qba_tfds(shards, tmp_path / "tfds")
    (shards / "manifest.json").write_text(json.dumps({**manifest, "dataset": "gemex"}))
    with pytest.raises(UserError, match="expected questions of cxr_qba in shards"):
        write_qba_tfds(shards, tmp_path / "other")
