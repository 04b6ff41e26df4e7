"""How a process finds the others: flags, environment, launchers, and the roll call."""

import argparse
import contextlib
import csv
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cxrjax.distributed import hosts
from cxrjax.distributed.hosts import roll_call
from cxrjax.errors import UserError
from cxrjax.flags import add_options
from tests.papers.cases import cases

_ROOT = Path(__file__).resolve().parents[2]
_CHECKS = Path(__file__).with_name("checks.py")


def _flags(*words):
    parser = argparse.ArgumentParser()
    add_options(parser, hosts.HostFlags)
    return parser.parse_args(words)


def test_alone_nothing_is_asked_of_anybody_and_nobody_waited_for():
    hosts.initialize(_flags(), {})
    hosts.initialize(_flags("--distributed=off"), {"SLURM_STEP_NUM_TASKS": "4"})
    hosts.initialize(_flags(), {"SLURM_STEP_NUM_TASKS": "1", "TPU_WORKER_HOSTNAMES": "a"})
    assert hosts.alone() and hosts.is_first()
    assert hosts.gather({"a": 1}) == [{"a": 1}] and hosts.from_first(2) == 2
    roll_call("localhost:1", 0, 1, 0.0)


_HALF_TOLD = Path(__file__).with_name("half_told.tsv").read_text().splitlines()


@pytest.mark.parametrize("row", csv.DictReader(_HALF_TOLD, delimiter="\t"))
def test_half_told_is_refused(row):
    environment = dict(pair.split("=") for pair in row["environment"].split())
    with pytest.raises(UserError, match=row["told"]):
        hosts.initialize(_flags(*row["flags"].split()), environment)


@pytest.mark.parametrize(
    ("tasks_per_node", "devices"), [("1", None), ("1(x16)", None), ("8(x2)", [3]), ("16", [3])]
)
def test_a_task_alone_on_its_node_has_all_of_its_devices(tasks_per_node, devices, monkeypatch):
    environment = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "tpu[3-4],x",
        "SLURM_NTASKS": "16",
        "SLURM_PROCID": "11",
        "SLURM_LOCALID": "3",
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = hosts._detect(5, environment)
    assert found[0].startswith("tpu3:") and found[1:] == (16, 11, devices)


@pytest.mark.slow
def test_two_processes_agree_on_what_each_has(tmp_path):
    (tmp_path / "shared").mkdir()
    local = [sys.executable, str(_ROOT / "launch/local.py"), "--processes=2"]
    command = [*local, "--devices_per_process=2", "--", sys.executable, str(_CHECKS)]
    process = subprocess.run(
        [*command, str(tmp_path / "shared")],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "[0] process 0 has seen it all" in process.stdout
    assert "[1] process 1 has seen it all" in process.stdout


@pytest.mark.slow
def test_tasks_of_slurm_find_each_other_by_what_it_tells_them(tmp_path):
    (tmp_path / "shared").mkdir()
    job = str(int.from_bytes(os.urandom(2), "big"))  # JAX makes the coordinator's port of it
    environment = {
        **os.environ,
        "PYTHONPATH": str(_ROOT),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "SLURM_JOB_ID": job,
        "SLURM_STEP_NODELIST": socket.gethostname(),
        "SLURM_NTASKS": "2",
    }
    command = [sys.executable, str(_CHECKS), str(tmp_path / "shared"), "--distributed=auto"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    tasks = [
        subprocess.Popen(
            command, env=environment | {"SLURM_PROCID": n, "SLURM_LOCALID": n}, **streams
        )
        for n in "01"
    ]
    for output in [task.communicate(timeout=200)[0] for task in tasks]:
        assert "has seen it all" in output
    assert [task.returncode for task in tasks] == [0, 0]


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _call_all(port, calls, timeout=10.0):
    """Errors of roll_call(process, count) for each of the calls, all at once."""
    found = [None] * len(calls)

    def one(place, process, count):
        try:
            roll_call(f"127.0.0.1:{port}", process, count, timeout)
        except UserError as error:
            found[place] = str(error)

    threads = [
        threading.Thread(target=one, args=(place, *call)) for place, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return found


def test_all_come_in_any_order_or_the_missing_are_named_to_all_who_came(port):
    assert _call_all(port, [(3, 4), (1, 4), (0, 4), (2, 4)]) == [None] * 4
    assert _call_all(port, [(0, 2), (1, 2)]) == [None] * 2
    with socket.create_server(("127.0.0.1", port)):
        pass
    start = time.monotonic()
    errors = _call_all(port, [(0, 4), (2, 4)], timeout=1.0)
    assert errors[0] == errors[1]
    assert errors[0].startswith("processes 1, 3 of 4 did not start within 1 s")
    assert time.monotonic() - start < 10
    (error, other) = _call_all(port, [(0, 3), (1, 3)], timeout=1.0)
    assert error == other and error.startswith("process 2 of 3 did not start")
    assert "8 and 91 more of 100" in _call_all(port, [(0, 100)], timeout=0.1)[0]


def test_addresses_where_nobody_answers_or_that_are_none_are_told(port):
    (error,) = _call_all(port, [(1, 2)], timeout=0.5)
    assert error.startswith(f"process 0 of 2 did not answer at 127.0.0.1:{port} within 0.5 s")
    with pytest.raises(UserError, match="'localhost': expected HOST:PORT"):
        roll_call("localhost", 0, 2, 1.0)
    with socket.create_server(("", port)), pytest.raises(UserError, match="choose another"):
        roll_call(f"localhost:{port}", 0, 2, 1.0)


@cases("calls, message")
def test_processes_that_do_not_belong_together_are_refused(port, calls, message):
    errors = _call_all(port, calls, timeout=1.0)
    assert message in errors[0]


def test_strangers_on_the_port_are_passed_over(port):
    def stranger():
        for word in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b""):
            for _ in range(100):
                with contextlib.suppress(OSError):
                    with socket.create_connection(("127.0.0.1", port), 1.0) as call:
                        call.sendall(word)
                    break
                time.sleep(0.02)

    knocking = threading.Thread(target=stranger)
    knocking.start()
    late = threading.Timer(0.5, roll_call, (f"127.0.0.1:{port}", 1, 2, 10.0))
    late.start()
    assert _call_all(port, [(0, 2)]) == [None]
    knocking.join()
    late.join()
