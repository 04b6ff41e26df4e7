"""Scripts pass shellcheck, and the SkyPilot task holds together."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.launch.conftest import LAUNCH

ROOT = LAUNCH.parent
# Beside the interpreter, which need not be on PATH.
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
SCRIPTS = [
    *LAUNCH.glob("*.sh"),
    *LAUNCH.glob("*.sbatch"),
    *Path(__file__).parent.glob("*.sh"),
    ROOT / ".ci" / "run",
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck(script):
    done = subprocess.run([SHELLCHECK, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_skypilot_task_uses_only_known_keys():
    """Keys of SkyPilot's task; its own package is too large for the tests."""
    task = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    known = {"name", "resources", "num_nodes", "workdir", "envs", "file_mounts", "setup", "run"}
    assert set(task) <= known
    assert set(task["resources"]) <= {"accelerators", "use_spot", "disk_size", "job_recovery"}
    for script in (task["setup"], task["run"]):
        done = subprocess.run(
            [SHELLCHECK, "-s", "bash", "-"], input=script, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout
    assert set(task["envs"]) == {"CONFIG", "RUN"}
    assert (ROOT / task["envs"]["CONFIG"]).is_file()


def test_slurm_prints_what_it_would_run():
    done = subprocess.run(
        ["bash", LAUNCH / "slurm.sbatch", "python", "-m", "cxrjax.train", "--config=a b"],
        env={"DRY_RUN": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    step = "srun --kill-on-bad-exit=0 --wait=60"
    assert done.stdout == f"{step} python -m cxrjax.train --config=a\\ b \n"
    assert subprocess.run(["bash", LAUNCH / "slurm.sbatch"], capture_output=True).returncode == 2
