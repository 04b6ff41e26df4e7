"""launch/slurm.sbatch under a real Slurm of one machine; needs root and Debian's slurm-wlm."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.conftest import LAUNCH

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("slurmctld") is None or shutil.which("munged") is None or os.getuid() != 0,
        reason="needs root, and apt-get install slurm-wlm munge",
    ),
]
_CLUSTER = Path(__file__).with_name("slurm_cluster.sh")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment in which Slurm's commands find the cluster."""
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run(["bash", _CLUSTER, "start", folder], check=True, timeout=60)
    yield {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    subprocess.run(["bash", _CLUSTER, "stop", folder], check=True, timeout=60)


def run(slurm, *command, cwd=None):
    done = subprocess.run(command, env=slurm, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def submit(slurm, folder, *command):
    flags = ["--ntasks-per-node=2", "--time=30"]
    out = run(slurm, "sbatch", *flags, LAUNCH / "slurm.sbatch", *command, cwd=folder)
    return re.search(r"\d+", out).group()


def wait_for_state(slurm, job, *states, seconds=60):
    end = time.monotonic() + seconds
    while True:
        shown = run(slurm, "scontrol", "show", "job", job)
        state = re.search(r"JobState=(\w+)", shown).group(1)
        if state in states:
            return shown
        assert time.monotonic() < end, shown
        time.sleep(0.5)


_PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("task", os.environ["SLURM_PROCID"], "of", os.environ["SLURM_NTASKS"], flush=True)
if os.environ.get("SLURM_RESTART_COUNT"):
    sys.exit(0)
time.sleep(60)
"""


def start_tasks(slurm, folder):
    (folder / "program.py").write_text(_PROGRAM)
    job = submit(slurm, folder, "python3", "program.py")
    log = folder / f"cxrjax-{job}.log"
    end = time.monotonic() + 60
    while not (log.exists() and log.read_text().count("of 2") == 2):
        assert time.monotonic() < end
        time.sleep(0.2)
    return job, log


def test_a_job_told_to_go_saves_and_goes_on(slurm, tmp_path):
    job, log = start_tasks(slurm, tmp_path)
    run(slurm, "scancel", "--signal=TERM", "--batch", job)
    wait_for_state(slurm, job, "PENDING")
    # Slurm waits two minutes before it starts a requeued job.
    run(slurm, "scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_for_state(slurm, job, "COMPLETED", seconds=200)
    assert log.read_text().count("of 2") == 4


def test_a_job_that_a_person_stops_is_not_started_again(slurm, tmp_path):
    job, log = start_tasks(slurm, tmp_path)
    (tmp_path / f"stop.{job}").touch()
    run(slurm, "scancel", "--signal=TERM", "--batch", job)
    shown = wait_for_state(slurm, job, "FAILED")
    assert "ExitCode=75:0" in shown
    assert "back into the queue" not in log.read_text()
