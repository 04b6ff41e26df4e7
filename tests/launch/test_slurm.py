"""launch/slurm.sbatch under a real Slurm of one machine; needs root and Debian's slurm-wlm."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.distributed.conftest import write_experiment
from tests.launch.conftest import LAUNCH

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("slurmctld") is None or shutil.which("munged") is None or os.getuid() != 0,
        reason="needs root, and apt-get install slurm-wlm munge",
    ),
]
_ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
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
        assert state not in _ENDS, shown
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


def wait_for_text(log, text, count=1, seconds=60):
    end = time.monotonic() + seconds
    while not (log.exists() and log.read_text().count(text) >= count):
        assert time.monotonic() < end, log.read_text() if log.exists() else "no log"
        time.sleep(0.2)


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def start_tasks(slurm, folder):
    (folder / "program.py").write_text(_PROGRAM)
    job = submit(slurm, folder, "python3", "program.py")
    log = folder / f"cxrjax-{job}.log"
    wait_for_text(log, "of 2", count=2)
    return job, log


def tell_to_go(slurm, job, seconds=60):
    """As before the time limit; the job is then started again without Slurm's wait of minutes.

    Not in the same second: slurmd refuses a job whose credential is as old as the last one's end.
    """
    run(slurm, "scancel", "--signal=TERM", "--batch", job)
    wait_for_state(slurm, job, "PENDING", seconds=seconds)
    run(slurm, "scontrol", "update", f"JobId={job}", "StartTime=now+3")


def test_a_job_told_to_go_saves_and_goes_on(slurm, tmp_path):
    job, log = start_tasks(slurm, tmp_path)
    tell_to_go(slurm, job)
    wait_for_state(slurm, job, "COMPLETED", seconds=200)
    assert log.read_text().count("of 2") == 4


def test_two_tasks_train_as_one_run_and_go_on_after_they_were_told_to_go(slurm, tmp_path):
    steps = 40
    experiment = write_experiment(tmp_path)
    root = str(LAUNCH.parent)
    settings = {"training.steps": steps, "training.checkpoint_every": 0}
    job = submit(
        {**slurm, "PYTHONPATH": root, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        tmp_path,
        *(sys.executable, "-m", "cxrjax.train", "--distributed=auto"),
        *(f"--config={experiment / 'experiment.py'}", f"--workdir={tmp_path / 'run'}"),
        *(f"--config.{key}={value}" for key, value in settings.items()),
    )
    log = tmp_path / f"cxrjax-{job}.log"
    wait_for_text(log, f"step 3/{steps}", seconds=240)
    tell_to_go(slurm, job, seconds=120)
    saved = int(re.search(r"saved step ([\d,]+) and stopped", log.read_text()).group(1))
    assert 3 <= saved < steps
    wait_for_state(slurm, job, "COMPLETED", seconds=400)
    text = log.read_text()
    assert text.count("back into the queue") == 1
    assert text.count(f"resumed from the checkpoint of step {saved}") == 1  # the first task's
    lines = read_lines(tmp_path / "run/metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert lines[-1]["train/loss"] < lines[0]["train/loss"]
    assert "validation/vqa/f1" in lines[-1]
    devices = json.loads((tmp_path / "run/run.json").read_text())["devices"]
    assert devices["processes"] == 2
    read = {path.name: read_lines(path) for path in (tmp_path / "run/examples").iterdir()}
    rows = {(line["step"], line["row"]) for lines in read.values() for line in lines}
    assert read.keys() == {"0_of_2.jsonl", "1_of_2.jsonl"}
    assert rows == {(step, row) for step in range(1, steps + 1) for row in range(8)}


def test_a_job_that_a_person_stops_is_not_started_again(slurm, tmp_path):
    job, log = start_tasks(slurm, tmp_path)
    (tmp_path / f"stop.{job}").touch()
    run(slurm, "scancel", "--signal=TERM", "--batch", job)
    shown = wait_for_state(slurm, job, "FAILED")
    assert "ExitCode=75:0" in shown
    assert "back into the queue" not in log.read_text()
