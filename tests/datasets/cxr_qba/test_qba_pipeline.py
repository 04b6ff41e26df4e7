"""The pipeline on Beam's local runner: the same files for any number of processes (`make beam`)."""

import pytest

from cxrjax.datasets.cxr_qba.pipeline import main
from cxrjax.datasets.cxr_qba.shards import ShardedBuild, build_questions

pytest.importorskip("apache_beam", reason="needs the environment that `make beam` makes")


def content(out):
    files = (path for path in sorted(out.rglob("*")) if path.is_file())
    return {path.relative_to(out): path.read_bytes() for path in files}


def build(sample, out, *flags):
    main([f"--source={sample / 'reports'}", f"--out={out}", "--num_shards=3", *flags])
    return content(out)


def test_runs_are_equal_and_a_shard_is_done_again(sample, tmp_path, monkeypatch):
    first = build(sample, tmp_path / "one")
    assert first == build(sample, tmp_path / "two")
    built = []

    def counted(job: ShardedBuild, number, facts):
        built.append(number)
        build_questions(job, number, facts)

    monkeypatch.setattr("cxrjax.datasets.cxr_qba.pipeline.build_questions", counted)
    assert first == build(sample, tmp_path / "two", "--shards=1")
    assert built == [1]


@pytest.mark.slow
def test_worker_processes_make_the_same(sample, tmp_path):
    assert build(sample, tmp_path / "one") == build(sample, tmp_path / "two", "--processes=2")
