"""Full, read-only and vanished storage: one line, and the last whole checkpoint stays."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import shutil
import subprocess
import time

import pytest

from cxrjax.errors import UserError
from cxrjax.training.observers import ExampleLog
from cxrjax.training.workdir import drop_torn_line, silence_writers, storage_errors
from tests.training.conftest import BatchStream, open_store


@pytest.fixture
def disk(tmp_path):
    """A file system of 4 MB of its own."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount)], capture_output=True
    )
    if made.returncode:
        pytest.skip("mounting a file system needs to be root")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def _fill(disk, but=0):
    """Leaves so many bytes free."""
    with open(disk / "ballast", "wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(file.tell() - but)


def _latest(workdir):
    return open_store(workdir).latest_step()


def _wait_for_checkpoint(workdir, step):
    """Its writing goes on while the next steps run."""
    for _ in range(600):
        if (workdir / "checkpoints" / str(step)).is_dir():
            return
        time.sleep(0.05)
    raise AssertionError(f"no checkpoint {step}")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("left", [0, 2**14, 2**15])  # too little for a part of the arrays
def test_a_full_disk_stops_in_one_line_and_the_run_goes_on_when_there_is_room(
    run, disk, left, caplog, capfd
):
    workdir = disk / "run"

    def fill():
        _wait_for_checkpoint(workdir, 2)
        _fill(disk, left)

    with pytest.raises(UserError, match="No space left on device") as caught:
        run(BatchStream(before={4: fill}), workdir)
    assert str(caught.value).startswith(str(workdir)) and "\n" not in str(caught.value)
    gc.collect()  # asyncio tells of errors that nobody has asked for when it forgets them
    assert not [record for record in caplog.records if record.exc_info]
    assert "Traceback" not in capfd.readouterr().err
    (disk / "ballast").unlink()
    assert _latest(workdir) == 2
    run(workdir=workdir)
    assert _latest(workdir) == 6


def test_a_disk_that_becomes_read_only(run, disk):
    workdir = disk / "run"

    def remount():
        _wait_for_checkpoint(workdir, 2)
        # A file open for writing would keep it writable: `ro` of one mount refuses new ones alone.
        subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)

    try:
        with pytest.raises(UserError, match=r"checkpoint of step 4 .*Read-only file system"):
            run(BatchStream(before={4: remount}), workdir)
        with pytest.raises(UserError, match="cannot be written: Read-only file system"):
            run(workdir=workdir)
        assert _latest(workdir) == 2
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    run(workdir=workdir)
    assert _latest(workdir) == 6


def test_a_limit_on_file_sizes_is_told_as_what_it_is(run, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(UserError, match=r"the checkpoint of step 2 .*File too large"):
            run(
                BatchStream(
                    before={2: lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1))}
                ),
                tmp_path,
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert _latest(tmp_path) is None


def test_a_log_of_examples_that_cannot_be_written(tmp_path):
    log = ExampleLog(tmp_path, range(8))
    (tmp_path / "examples/0_of_1.jsonl").mkdir()
    with pytest.raises(UserError, match=r"0_of_1\.jsonl cannot be written: Is a directory"):
        log.on_batch(1, next(BatchStream()))


@pytest.mark.parametrize("name", ["examples", "processes", "metrics.jsonl", "checkpoints", "taken"])
def test_what_stands_in_the_way_of_a_runs_files_is_told_in_one_line(run, tmp_path, name):
    run.config.training.log_examples = True
    if name.endswith("jsonl"):
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("")
    told = rf"{name}.*( cannot be written: (File exists|Not a)|a folder, expected a file)"
    with pytest.raises(UserError, match=told):
        run(workdir="taken/run" if name == "taken" else tmp_path)


def test_a_line_that_a_killed_run_left_half_written_is_dropped(tmp_path):
    path = tmp_path / "lines.jsonl"
    for before, after in (
        (b"", b""),
        (b"half", b""),
        (b"whole\n", b"whole\n"),
        (b"whole\n" + b"x" * 200_000, b"whole\n"),
    ):
        path.write_bytes(before)
        drop_torn_line(path)
        assert path.read_bytes() == after
    drop_torn_line(tmp_path / "absent")
    ExampleLog(tmp_path, range(8)).on_batch(1, next(BatchStream()))
    examples = tmp_path / "examples/0_of_1.jsonl"
    examples.write_bytes(examples.read_bytes()[:-10])
    ExampleLog(tmp_path, range(8)).on_batch(2, next(BatchStream()))
    steps = [json.loads(line)["step"] for line in examples.read_text().splitlines()]
    assert steps == [1] * 7 + [2] * 8


@pytest.mark.parametrize("how", [shutil.rmtree, lambda path: os.rename(path, f"{path}.moved")])
def test_a_workdir_that_goes_away(run, tmp_path, how):
    workdir = tmp_path / "run"

    def leave():
        _wait_for_checkpoint(workdir, 2)
        how(workdir)

    with pytest.raises(UserError, match=r"config\.json is no longer there"):
        run(BatchStream(before={4: leave}), workdir)
    assert not (workdir / "checkpoints").exists()


def test_what_libraries_make_of_storage_that_fails():
    """CLU's thread hides what a writer has raised."""
    full = r"^events cannot be written: No space left on device;"
    with pytest.raises(UserError, match=full), storage_errors("events"):
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise KeyError("thread") from error
    gone = r"^x cannot be written: No such file or directory;"
    with pytest.raises(UserError, match=gone), storage_errors("x"):  # TensorStore's
        raise ValueError('NOT_FOUND: Error opening "zarr" driver: Error writing "x" in OCDBT')
    with pytest.raises(UserError, match="x cannot be written: Is a directory"), storage_errors("x"):
        open("/", "w")  # noqa: SIM115
    with pytest.raises(ValueError, match="of ours"), storage_errors("x"):
        raise ValueError("of ours")


@pytest.mark.parametrize(("file", "shown"), [("/lib/orbax/async_path.py", 0), ("/lib/mine.py", 1)])
def test_asyncio_does_not_show_what_a_writer_of_checkpoints_raises_as_well(
    file, shown, caplog, monkeypatch
):
    """asyncio's own message of a full disk names no file: the trace alone says who wrote."""
    # A server that another test has run in this process takes the trace away.
    monkeypatch.setattr(logging.getLogger("asyncio"), "filters", [])
    silence_writers()
    write = {}
    exec(compile("def write():\n    raise OSError(28, 'No room of ours')", file, "exec"), write)
    loop = asyncio.new_event_loop()
    failed = loop.create_future()
    try:
        write["write"]()
    except OSError as error:
        failed.set_exception(error)
    del failed
    gc.collect()
    loop.close()
    # What other tests have left may be collected, and told, here too.
    told = [record for record in caplog.records if "No room of ours" in record.getMessage()]
    assert len(told) == shown
