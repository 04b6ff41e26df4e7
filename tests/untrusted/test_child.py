"""A parser that takes all memory, all time or its process with it ends its child alone."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from cxrjax.errors import ForeignError, UserError
from cxrjax.untrusted import child
from cxrjax.untrusted.child import run_in_child
from cxrjax.untrusted.foreign_files import MIB
from tests.untrusted import child_jobs as jobs


def run(job, content=b"abc", seconds=20.0, memory=64 * MIB, most=MIB, **arguments):
    return run_in_child(job, content, arguments, seconds=seconds, memory=memory, most=most)


def refusal(job, content=b"abc", **more):
    with pytest.raises(ForeignError) as caught:
        run(job, content, **more)
    message = str(caught.value)
    assert message.isprintable()
    assert run(jobs.reverse)[1] == b"cba"  # the next one has a child that works
    return message


def test_children_answer_writing_no_files(tmp_path):
    found, extra = run(jobs.reverse, sign=-1)
    assert (found["sign"], extra) == (-1, b"cba")
    assert found["pid"] != os.getpid()
    assert run(jobs.reverse)[0]["pid"] == found["pid"]
    content = os.urandom(20 * MIB)
    assert run(jobs.reverse, content, most=len(content))[1] == content[::-1]
    assert "at most 2" in refusal(jobs.reverse, most=2)
    refusal(jobs.write_file, path=str(tmp_path / "file"))
    assert not (tmp_path / "file").exists() or not (tmp_path / "file").stat().st_size
    child._forget_children()  # others have decoded images, with NumPy
    loaded = run(jobs.modules)[0]["modules"]
    assert not {"jax", "tensorflow", "torch", "numpy"} & set(loaded)


def test_errors_and_limits_of_a_child_are_told_apart():
    pid = run(jobs.reverse)[0]["pid"]
    assert refusal(jobs.raise_error, b"a\nb\x1b[31m") == "a b?[31m"
    assert len(refusal(jobs.raise_error, b"x" * 10_000)) == 300
    assert run(jobs.reverse)[0]["pid"] == pid
    assert "crashed (SIGSEGV)" in refusal(jobs.crash)
    assert "without an answer" in refusal(jobs.leave)
    assert "64 MiB" in refusal(jobs.allocate, size=100 * MIB)
    assert "crashed (SIGSEGV)" in refusal(jobs.allocate_in_c, size=100 * MIB)
    for job in (jobs.allocate, jobs.allocate_in_c):
        run(job, size=50 * MIB)
    start = time.monotonic()
    assert "longer than 0.2 s" in refusal(jobs.spin, seconds=0.2)
    assert "longer than 1 s" in refusal(jobs.sleep, seconds=0.1, duration=60)
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"\xff" * 16, "at most"),
        (child._SIZES.pack(2, 2**62) + b"{}", "at most"),
        (child._SIZES.pack(4, 0) + b"null", "JSON object"),
        (child._SIZES.pack(100_000, 0) + b"[" * 100_000, "JSON"),
        (child._SIZES.pack(2, 0) + b"{}", "something else"),
        (child._SIZES.pack(13, 0) + b'{"found": 10}', "something else"),
        (b"", "longer than"),
        (b"\0" * 7, "longer than"),
    ],
)
def test_what_a_child_that_was_taken_over_answers_is_data(answer, words):
    assert words in refusal(jobs.taken_over, answer, seconds=0.1)


def test_threads_have_children_of_their_own_and_leave_few():
    with ThreadPoolExecutor(8) as threads:
        contents = [os.urandom(100_000) for _ in range(40)]
        answers = threads.map(lambda content: run(jobs.reverse, content), contents)
        assert [extra[::-1] for _, extra in answers] == contents
    assert len(child._pool.all) <= os.cpu_count()


def test_a_child_that_was_killed_is_replaced_and_a_terminals_signals_do_not_end_it():
    pid = run(jobs.reverse)[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    psutil.Process(pid).wait(10) if psutil.pid_exists(pid) else None
    assert run(jobs.reverse)[0]["pid"] != pid
    pid = run(jobs.reverse)[0]["pid"]
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    assert run(jobs.reverse)[0]["pid"] == pid


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere"])
def test_no_process_can_be_started(monkeypatch, program):
    """That is no fault of the file, which must not be set aside for it."""
    monkeypatch.setattr(child, "_pool", child._Pool())
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(UserError, match="cannot be started") as caught:
        run(jobs.reverse)
    assert not isinstance(caught.value, ForeignError) and not child._pool.all


def test_a_fork_has_children_of_its_own():
    pid = run(jobs.reverse)[0]["pid"]
    held = threading.Event()
    busy = threading.Thread(target=lambda: (held.set(), run(jobs.sleep, duration=2)))
    busy.start()
    held.wait()
    fork = os.fork()
    if not fork:
        os._exit(run(jobs.reverse)[0]["pid"] == pid)
    assert os.waitpid(fork, 0)[1] == 0
    busy.join()
    assert run(jobs.reverse)[1] == b"cba"


def test_children_end_when_their_parent_is_killed():
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.untrusted import child_jobs, test_child\n"
        "print(test_child.run(child_jobs.reverse)[0]['pid'], flush=True)\n"
        "input()"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parents[2])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        orphan = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        orphan.wait(20)


def test_the_hard_limits_of_a_shell_hold():
    program = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n"
        "from tests.untrusted import child_jobs, test_child\n"
        "for _ in range(2): assert test_child.run(child_jobs.reverse)[1] == b'cba'\n"
        "assert 'memory' in test_child.refusal(child_jobs.allocate, memory=2**40, size=2**31)"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, check=True)
