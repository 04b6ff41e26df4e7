"""How a process finds out that it is one of several: flags, environment, launchers."""

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cxrjax.distributed import hosts
from cxrjax.errors import UserError

_ROOT = Path(__file__).resolve().parents[2]
_CHECKS = Path(__file__).with_name("checks.py")


def _flags(*words):
    parser = argparse.ArgumentParser()
    hosts.add_flags(parser)
    return parser.parse_args(words)


def test_alone_nothing_is_asked_of_anybody():
    hosts.initialize(_flags(), {})
    hosts.initialize(_flags("--distributed=off"), {"SLURM_STEP_NUM_TASKS": "4"})
    hosts.initialize(_flags(), {"SLURM_STEP_NUM_TASKS": "1", "TPU_WORKER_HOSTNAMES": "a"})
    assert hosts.alone() and hosts.is_first()
    assert hosts.gather({"a": 1}) == [{"a": 1}] and hosts.from_first(2) == 2


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        ((), {"SLURM_STEP_NUM_TASKS": "4"}, "one of 4 processes; add --distributed=auto"),
        ((), {"OMPI_COMM_WORLD_SIZE": "2"}, "one of 2 processes; add"),
        ((), {"TPU_WORKER_HOSTNAMES": "a,b,c"}, "one of 3 processes; add"),
        (("--num_processes=2",), {}, "coordinator is None, num_processes 2, process_id None"),
        ((), {"JAX_COORDINATOR_ADDRESS": "h:1"}, "coordinator is h:1, num_processes None"),
        ((), {"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES='two': expected a number"),
        (
            ("--coordinator=h:1", "--num_processes=2", "--process_id=2"),
            {},
            "process_id 2 of 2 processes: expected 0 to 1",
        ),
        (
            ("--coordinator=h:99999", "--num_processes=2", "--process_id=1"),
            {},
            "'h:99999': expected HOST:PORT, the port from 1 to 65535",
        ),
        (("--distributed=auto",), {}, "neither Cloud TPU nor GKE, Slurm or MPI"),
    ],
)
def test_half_told_is_refused(words, environment, message):
    with pytest.raises(UserError, match=message):
        hosts.initialize(_flags(*words), environment)


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


def _finish(processes):
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    return outputs


def _start(folder, environment):
    return subprocess.Popen(
        [sys.executable, str(_CHECKS), str(folder), *environment.pop("WORDS", ())],
        env={
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


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
    tasks = [
        _start(
            tmp_path / "shared",
            {
                "SLURM_JOB_ID": job,
                "SLURM_STEP_NODELIST": socket.gethostname(),
                "SLURM_NTASKS": "2",
                "SLURM_PROCID": str(task),
                "SLURM_LOCALID": str(task),
                "WORDS": ("--distributed=auto",),
            },
        )
        for task in range(2)
    ]
    assert all("has seen it all" in output for output in _finish(tasks))
