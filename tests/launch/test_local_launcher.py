"""launch/local.py: several processes that start, write, fail and end together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.papers.cases import data

_LOCAL = Path(__file__).resolve().parents[2] / "launch/local.py"


def _start(code, *flags):
    command = [sys.executable, _LOCAL, *flags, "--", sys.executable, "-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True)


def _run(code, *flags):
    process = _start(code, *flags)
    out, err = process.communicate(timeout=60)
    return process.returncode, sorted(out.splitlines()), err


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A killed process whose parent has not asked for it is there, but no longer runs.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_every_process_knows_who_it_is_and_its_lines_say_so(monkeypatch):
    code = (
        "import os, sys; e = os.environ; sys.stderr.write('oops\\n');"
        "print(e['JAX_PROCESS_ID'], e['JAX_NUM_PROCESSES'], e['XLA_FLAGS'], e['JAX_PLATFORMS'])"
    )
    monkeypatch.setenv("XLA_FLAGS", "--a=b --xla_force_host_platform_device_count=8")
    code, lines, _ = _run(code, "--processes=3", "--devices_per_process=2")
    assert code == 0
    told = "3 --a=b --xla_force_host_platform_device_count=2 cpu"
    assert lines == [f"[{i}] {text}" for i in range(3) for text in (f"{i} {told}", "oops")]


def test_the_coordinator_is_the_same_and_signals_show_in_the_exit_code():
    code = "import os; print(os.environ['JAX_COORDINATOR_ADDRESS'])"
    _, lines, _ = _run(code, "--processes=2", "--port=12345")
    assert lines == ["[0] 127.0.0.1:12345", "[1] 127.0.0.1:12345"]
    _, lines, _ = _run(code, "--processes=2")
    assert len({line.split()[1] for line in lines}) == 1
    code, _, err = _run("import os; os.kill(os.getpid(), 9)", "--processes=2")
    assert code == 128 + signal.SIGKILL
    assert "ended with signal 9" in err


def test_when_one_fails_the_others_may_end_and_are_then_killed():
    code = (
        "import os, sys, time, subprocess; i = os.environ['JAX_PROCESS_ID']\n"
        "if i == '1': time.sleep(1); sys.exit(7)\n"
        "if i == '2': time.sleep(1.5); print('ended by itself'); sys.exit(0)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"  # as a data worker
        "print(os.getpid(), child.pid, flush=True); time.sleep(600)"
    )
    start = time.monotonic()
    code, lines, err = _run(code, "--processes=3", "--grace=2")
    assert code == 7 and time.monotonic() - start < 30
    assert lines[1] == "[2] ended by itself"
    assert "[1] ended with exit code 7" in err and "[0] killed" in err
    time.sleep(0.2)
    assert not any(_alive(int(pid)) for pid in lines[0].split()[1:])


def test_a_launcher_that_is_killed_leaves_nothing_behind():
    code = (
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"  # as a data worker
        "print(os.getpid(), child.pid, flush=True); time.sleep(600)"
    )
    process = _start(code, "--processes=3")
    lines = [process.stdout.readline().split() for _ in range(3)]
    pids = [int(pid) for _, *both in lines for pid in both]
    assert len(pids) == 6 and all(map(_alive, pids))
    process.kill()
    # Waits for the one that kills as well, which has the same output.
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    time.sleep(0.2)
    assert not any(map(_alive, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_goes_to_all_and_they_end_as_they_like(number):
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(75))\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    process = _start(code, "--processes=2")
    lines = [process.stdout.readline() for _ in range(2)]
    assert sorted(lines) == ["[0] ready\n", "[1] ready\n"]
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and "killed" not in err


def test_processes_go_on_where_nobody_reads_their_lines(tmp_path):
    code = f"for _ in range(20000): print('x' * 50)\nopen({str(tmp_path / 'done')!r}, 'w').close()"
    process = _start(code, "--processes=1")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0 and (tmp_path / "done").exists()
    process.stderr.close()


def test_unusable_arguments_are_refused():
    for arguments, message in data(__file__)["unusable_arguments_are_refused"].items():
        command = [sys.executable, _LOCAL, *arguments.split()]
        process = subprocess.run(command, capture_output=True, text=True)
        assert process.returncode == 2 and message in process.stderr
