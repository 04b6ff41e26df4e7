"""A lock is one process's, ends with it however it ends, and says whose it is."""

import contextlib
import errno
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cxrjax import lock
from cxrjax.errors import UserError
from cxrjax.lock import LOCK_FILE, file_lock, folder_lock

_ROOT = Path(__file__).parents[1]
_HOLD = """
import multiprocessing, os, sys, time
from pathlib import Path
from cxrjax.lock import folder_lock

def work():
    print("at work", os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    with folder_lock(Path(sys.argv[1])):
        for kind in sys.argv[2:]:
            multiprocessing.get_context(kind).Process(target=work).start()
        print("holding", os.getpid(), flush=True)
        time.sleep(600)
"""


@pytest.fixture
def hold(tmp_path):
    """`hold(folder, *workers) -> Popen, pids`: a process with the lock, and children of its own."""
    script = tmp_path / "hold.py"
    script.write_text(_HOLD)
    started, children = [], []

    def start(folder, *workers):
        process = subprocess.Popen(
            [sys.executable, str(script), str(folder), *workers],
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        said = [process.stdout.readline() for _ in range(1 + len(workers))]
        pids = [int(line.split()[-1]) for line in said]
        assert process.pid in pids
        children.extend(pid for pid in pids if pid != process.pid)
        return process

    start.children = children
    yield start
    for pid in children:  # they have its output open too
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def quick(monkeypatch):
    """Words every 0.05 s, and 0.5 s of patience."""
    for name, seconds in {"_INTERVAL": 0.05, "_SILENCE": 0.5, "_DYING": 0.5, "_POLL": 0.01}.items():
        monkeypatch.setattr(lock, name, seconds)


def _word(**changed):
    word = {"host": "elsewhere", "pid": 7, "command": "train", "since": "then", "key": "k"}
    return json.dumps(word | changed)


def test_a_second_process_is_told_who_has_it(hold, tmp_path):
    holder = hold(tmp_path / "run")
    begun = time.monotonic()
    with pytest.raises(UserError) as refused, folder_lock(tmp_path / "run", "choose another --x"):
        pass
    assert time.monotonic() - begun < 2
    told = str(refused.value)
    assert told.startswith(f"{tmp_path}/run: in use by process {holder.pid} (hold) on ")
    assert f"on {platform.node()}, since 2" in told
    assert told.endswith(" UTC; wait until it ends, stop it, or choose another --x")


@pytest.mark.parametrize("workers", [(), ("fork",), ("spawn",), ("fork", "spawn")])
def test_it_ends_with_a_process_that_is_killed_whatever_its_children_do(hold, workers, tmp_path):
    holder = hold(tmp_path, *workers)
    holder.kill()
    holder.wait()
    assert (tmp_path / LOCK_FILE).is_file()
    for pid in hold.children:
        os.kill(pid, 0)  # alive
    assert len(hold.children) == len(workers)
    begun = time.monotonic()
    with folder_lock(tmp_path):
        pass
    assert time.monotonic() - begun < 2


def test_a_forked_child_that_ends_leaves_its_parent_the_lock(tmp_path):
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder_lock(tmp_path))
        child = os.fork()
        if not child:
            reused = os.open(os.devnull, os.O_RDONLY)  # the number that the lock had
            try:
                stack.close()
                os.fstat(reused)
            except OSError:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(UserError, match="in use by"), folder_lock(tmp_path):
            pass


def test_a_file_that_its_holder_removes_meanwhile_is_no_lock(tmp_path, monkeypatch):
    path = tmp_path / LOCK_FILE
    tried = []

    def try_flock(descriptor):
        tried.append(descriptor)
        if len(tried) == 1:
            path.unlink()
        return True

    monkeypatch.setattr(lock, "try_flock", try_flock)
    with folder_lock(tmp_path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert len(tried) == 2


@pytest.mark.parametrize("end", [None, ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_it_at_the_end(end, tmp_path):
    folder = tmp_path / "a/b"
    with contextlib.suppress(ValueError, KeyboardInterrupt), folder_lock(folder):
        assert (folder / LOCK_FILE).is_file()
        if end:
            raise end
    with file_lock(folder / "c.jsonl"):
        assert [path.name for path in folder.iterdir()] == [f"c.jsonl{LOCK_FILE}"]
        (folder / "c.jsonl").touch()
    assert [path.name for path in folder.iterdir()] == ["c.jsonl"]
    with folder_lock(tmp_path / "d"):
        pass
    assert not (tmp_path / "d").exists()  # which it had made itself


def test_waiting_for_one_that_is_being_killed(hold, tmp_path, capfd):
    """Its memory is given back before its lock; until then it has no command line any more."""
    holder = hold(tmp_path)
    word = json.loads((tmp_path / LOCK_FILE).read_text())
    # As that of a process whose memory is gone: a number that nobody has.
    (tmp_path / LOCK_FILE).write_text(json.dumps(word | {"pid": 2**22 + 1}))
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -9 {holder.pid}"])
    with folder_lock(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    assert "waiting to see whether it still is" in capfd.readouterr().err


@contextlib.contextmanager
def _written_on(path):
    """A process writes words meanwhile, but has no lock that could be seen from here."""
    code = (
        "import os, time\n"
        f"file = os.open({str(path)!r}, os.O_RDWR | os.O_CREAT)\n"
        "for n in range(10, 100):\n"
        f"    os.pwrite(file, {_word()!r}.replace('7', str(n)).encode(), 0)\n"
        "    time.sleep(0.05)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    while not path.exists() or not path.read_text():
        time.sleep(0.01)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=[True, False])
def with_and_without_locks(request, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    if not request.param:
        monkeypatch.setattr(lock.fcntl, "flock", no_locks)


@pytest.mark.usefixtures("quick", "with_and_without_locks")
def test_words_from_another_host_refuse_while_they_are_heard(tmp_path):
    told = r"in use by process \d+ \(train\) on elsewhere, since"
    with (
        _written_on(tmp_path / LOCK_FILE),
        pytest.raises(UserError, match=told),
        folder_lock(tmp_path),
    ):
        pass
    (tmp_path / LOCK_FILE).write_text(_word())
    with folder_lock(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_lock_that_a_server_keeps_for_a_host_that_is_gone(quick, hold, tmp_path, capfd):
    holder = hold(tmp_path)
    holder.send_signal(signal.SIGSTOP)  # no words
    (tmp_path / LOCK_FILE).write_text(_word())
    with folder_lock(tmp_path):
        pass
    said = capfd.readouterr().err
    assert "still locked by process 7 (train) on elsewhere, since then, not heard of" in said


def test_two_that_write_at_once_are_told(quick, tmp_path, capfd):
    said, began = "", time.monotonic()
    with folder_lock(tmp_path):
        while "warning" not in said and time.monotonic() - began < 30:
            (tmp_path / LOCK_FILE).write_text(_word())
            time.sleep(0.3)
            said += capfd.readouterr().err
        (tmp_path / LOCK_FILE).write_text(_word(pid=8))
        time.sleep(0.2)
    said += capfd.readouterr().err
    assert said.count("process 7 (train) on elsewhere, since then writes here as well") == 1
    assert said.count("warning") == 1


def test_a_folder_that_goes_away_meanwhile(quick, tmp_path):
    folder = tmp_path / "run"
    with folder_lock(folder):
        folder.rename(tmp_path / "moved")
        with folder_lock(folder):  # another one now
            time.sleep(0.2)
    assert not folder.exists()


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 5000, b"[" * 4000, b'{"pid": "\\ud800\\n", "host": [1]}', b"\xff{"]
)
def test_whatever_is_in_the_file_it_is_one_line(quick, content, hold, tmp_path):
    (tmp_path / LOCK_FILE).write_bytes(content)
    with folder_lock(tmp_path):
        pass
    hold(tmp_path)
    (tmp_path / LOCK_FILE).write_bytes(content)
    try:
        with folder_lock(tmp_path):
            pass
    except UserError as error:
        assert "\n" not in str(error)
        assert str(error).startswith(f"{tmp_path}: in use by ")


def test_a_lock_file_that_is_none(tmp_path):
    (tmp_path / "target").write_text("whole")
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "target")
    with pytest.raises(UserError, match="cannot write: Too many levels"), folder_lock(tmp_path):
        pass
    assert (tmp_path / "target").read_text() == "whole"
    (tmp_path / LOCK_FILE).unlink()
    os.mkfifo(tmp_path / LOCK_FILE)
    with pytest.raises(UserError, match=r"cannot write: .* is not a file"), folder_lock(tmp_path):
        pass
    inside_of_file = folder_lock(tmp_path / "target" / "x")
    with pytest.raises(UserError, match="cannot write: Not a directory"), inside_of_file:
        pass
