"""The pipeline on Beam's local runner: the same files for any number of processes (`make beam`)."""

import pytest

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.commands.build_cxr_qba_shards import main
from cxrjax.papers.cxr_qba.construct.pipeline import LOCAL_RUNNER, beam_flags
from tests.papers.cxr_qba.builds import content

pytest.importorskip("apache_beam", reason="needs the environment that `make beam` makes")


def build(sample, out, *flags):
    main([f"--source={sample / 'reports'}", f"--out={out}", "--num_shards=3", *flags])
    return content(out)


def times(out):
    return {path: path.stat().st_mtime_ns for path in (out / "parts").glob("*.json")}


def test_runs_are_equal_and_a_shard_is_done_again(sample, tmp_path):
    first = build(sample, tmp_path / "one")
    assert first == build(sample, tmp_path / "two")
    before = times(tmp_path / "two")
    assert first == build(sample, tmp_path / "two", "--shards=1")
    after = times(tmp_path / "two")
    changed = {path.name for path in after if after[path] != before[path]}
    assert changed == {"graphs-00001-of-00003.json", "questions-00001-of-00003.json"}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_worker_processes_make_the_same(sample, tmp_path, processes):
    whole = build(sample, tmp_path / "one")
    assert whole == build(sample, tmp_path / "two", f"--processes={processes}")


@pytest.mark.slow
def test_a_shard_that_failed_in_a_worker_process_is_done_again_alone(sample, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    obstacle = out / "qa" / "shard-00001-of-00003.array_record"
    obstacle.mkdir(parents=True)  # so that the file cannot get its name
    with pytest.raises(UserError, match=r"1 of 3 .* shard 1: .*--shards=1 or without"):
        build(sample, out, "--processes=2")
    assert not (out / "manifest.json").exists()
    obstacle.rmdir()
    before = times(out)
    assert build(sample, out, "--processes=2") == build(sample, whole)
    after = times(out)
    assert all(after[path] == before[path] for path in before if "failed" not in path.name)
    assert {path.name for path in after if path not in before} == {"questions-00001-of-00003.json"}


def test_flags_that_beam_does_not_know_are_refused(sample, tmp_path):
    for flag in ("--flink_mastr=a:1", "--reports=3", "stray"):
        with pytest.raises(UserError, match=f"{flag}: neither this command nor Beam"):
            build(sample, tmp_path / "out", flag)
    assert not (tmp_path / "out").exists()


def test_flags_of_engines_reach_beam():
    assert beam_flags([], [], 1) == [f"--runner={LOCAL_RUNNER}"]
    flink = ["--runner=FlinkRunner", "--flink_master=a:1", "--environment_type=DOCKER"]
    assert beam_flags(flink, ["--of_the_job_server=1"], 1) == [*flink, "--of_the_job_server=1"]
    for one in (
        ["--runner=SparkRunner", "--spark_master_url=spark://a:7077"],
        ["--runner=DataflowRunner", "--project=p", "--region=r", "--sdk_container_image=i"],
    ):
        assert beam_flags(one, [], 1) == one


@pytest.mark.slow
def test_the_tfds_data_set_is_the_same_from_beam_s_workers(sample, tmp_path):
    import tensorflow_datasets as tfds

    from cxrjax.papers.cxr_qba.construct.tfds_builder import write_qba_tfds

    def told(one):
        asked = one["questions"]
        return one["image_id"], list(asked["index"]), list(asked["record"])

    def examples(folder):
        builder = tfds.builder_from_directory(str(folder / "cxr_qba/1.0.0"))
        splits = builder.info.splits
        return {split: [told(one) for one in builder.as_data_source(split)] for split in splits}

    written = []
    for processes in (1, 2):
        root = tmp_path / str(processes)
        build(sample, root / "out", f"--tfds={root / 'tfds'}", f"--processes={processes}")
        written.append(examples(root / "tfds"))
    write_qba_tfds(tmp_path / "1/out", tmp_path / "alone")
    assert written[0] == written[1] == examples(tmp_path / "alone")
    assert sum(len(one) for one in written[0].values()) == 3
