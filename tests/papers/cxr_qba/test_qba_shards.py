"""Construction in shards: the same as in one piece, and each shard again by itself."""

import collections
import json
import shutil

import pyarrow.parquet as pq
import pytest

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.build import QbaBuilder, QbaOptions
from cxrjax.papers.cxr_qba.construct import shards as construction
from cxrjax.papers.cxr_qba.construct.construction import merge_facts
from cxrjax.papers.cxr_qba.construct.pipeline import graphs_of, main, questions_of
from cxrjax.papers.cxr_qba.construct.shards import ShardedBuild, finish, prepare
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.records_io.quality import QualityLog
from cxrjax.records_io.shards import read_elements


@pytest.fixture
def source(sample, tmp_path):
    """Six studies of five patients, one study twice, and two lines that are none."""
    lines = (sample / "reports" / "studies.jsonl").read_text().splitlines()
    more = [line.replace("p1999", "p1888").replace("s5999", "s5888") for line in lines]
    path = tmp_path / "source" / "studies.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join([*lines, "{}", *more, lines[0]]) + "\n")
    with open(path, "ab") as file:
        file.write(b'{"patient_id": "\xff"}\n')
    return path


def run(job, again=()):
    """What the engine does, in this process and in any order."""
    prepare(job)
    numbers = list(reversed(range(job.shards)))
    facts = merge_facts([graphs_of(number, job, again) for number in numbers])
    for number in numbers:
        questions_of(number, facts, job, again)
    finish(job)


def lines_of(out, split):
    files = sorted((out / "records").glob(f"{split}-*.array_record"))
    return sorted(line.decode() for file in files for line in read_elements(file))


def content(out):
    """Every file that should not depend on who made it when."""
    files = (path for path in sorted(out.rglob("*")) if path.is_file())
    return {path.relative_to(out): path.read_bytes() for path in files}


@pytest.mark.parametrize("shards", [1, 4])
def test_shards_hold_what_one_build_holds(source, tmp_path, shards):
    whole, out = tmp_path / "whole", tmp_path / "out"
    QbaBuilder(QbaOptions(source, whole, rate_with="surrogate")).build()
    run(ShardedBuild(QbaOptions(source, out, rate_with="surrogate"), shards))
    for split in ("train", "validation"):
        expected = (whole / "records" / f"{split}.jsonl").read_text().splitlines()
        assert lines_of(out, split) == sorted(expected)
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


def test_a_failed_shard_alone_is_done_again(source, tmp_path, monkeypatch):
    whole, out = (tmp_path / name for name in ("whole", "out"))
    run(ShardedBuild(QbaOptions(source, whole), 4))
    job = ShardedBuild(QbaOptions(source, out), 4)
    build = construction.construct_questions
    broken = next(n for n in range(4) if job.holds(n, "p19990001"))

    def fails(graph, counts, how):
        if graph.patient_id == "p19990001":
            raise OSError(28, "No space left on device")
        return build(graph, counts, how)

    monkeypatch.setattr(construction, "construct_questions", fails)
    with pytest.raises(UserError, match=rf"1 of 4 .* shard {broken}: .*--shards={broken} or"):
        run(job)
    assert not (out / "manifest.json").exists()
    monkeypatch.setattr(construction, "construct_questions", build)
    done = {path: path.stat().st_mtime_ns for path in job.done()}
    run(job, {broken})
    kept = {path for path, time in done.items() if path.stat().st_mtime_ns == time}
    assert len(kept) == 2 * 4 - 2  # of the other shards, both passes
    assert content(out) == content(whole)


def test_a_fault_in_the_first_pass_stops_the_second(source, tmp_path, monkeypatch):
    job = ShardedBuild(QbaOptions(source, tmp_path / "out"), 2)
    monkeypatch.setattr("cxrjax.papers.cxr_qba.build.construct_graph", lambda *_: 1 / 0)
    with pytest.raises(UserError, match="2 of 2 shards are not done; shard 0: ZeroDivisionError"):
        run(job)
    assert not list((tmp_path / "out").glob("parts/questions-*"))


def test_other_settings_begin_anew(source, tmp_path):
    out = tmp_path / "out"
    run(ShardedBuild(QbaOptions(source, out, seed=1), 2))
    run(ShardedBuild(QbaOptions(source, out, seed=2), 2))
    run(ShardedBuild(QbaOptions(source, tmp_path / "two", seed=2), 2))
    assert content(out) == content(tmp_path / "two")


def test_another_number_of_shards_is_another_build(source, tmp_path):
    run(ShardedBuild(QbaOptions(source, tmp_path / "out"), 2))
    with pytest.raises(UserError, match="another number of shards than 3"):
        run(ShardedBuild(QbaOptions(source, tmp_path / "out"), 3))


def test_another_report_changes_the_counts_of_all_shards(source, tmp_path):
    out = tmp_path / "out"
    job = ShardedBuild(QbaOptions(source, out), 3)
    run(job)
    lines = source.read_text(errors="surrogateescape")
    source.write_text(lines.replace("p1888", "p1777"), errors="surrogateescape")
    run(job, set(range(3)))
    run(ShardedBuild(QbaOptions(source, tmp_path / "new"), 3))
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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shards=3,x"], "expected numbers such as 3,7"),
        (["--shards=16"], "16 is not in 0 to 15"),
        (["--num_shards=0"], "expected at least 1"),
        (["--least_grade=A"], "add --rate_with=surrogate"),
        (["--source=/none"], "not there"),
    ],
)
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
