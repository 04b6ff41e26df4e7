"""Scripts pass shellcheck, and the SkyPilot task holds together."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from string import Template

import pytest
import yaml

from cxrjax.commands import plan
from cxrjax.training.config_file import load_config
from tests.launch.conftest import LAUNCH

ROOT = LAUNCH.parent
# Beside the interpreter, which need not be on PATH.
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
SCRIPTS = [*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch"), *Path(__file__).parent.glob("*.sh")]
SCRIPTS.append(ROOT / ".ci" / "run")


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
    assert set(re.findall(r"\$(\w+)", task["run"])) == set(task["envs"])


def test_the_skypilot_task_trains_on_the_gpus_it_asks_for(monkeypatch):
    """Its batch divides over them, and nothing is looked for where `workdir` puts no data."""
    monkeypatch.chdir(ROOT)
    task = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    words = shlex.split(Template(task["run"]).substitute(task["envs"]), comments=True)
    flags = [word for word in words if word.startswith("--config")]
    for gpu, count in task["resources"]["accelerators"].items():
        topology = f"{gpu.lower().removesuffix('gb')}-{count}"
        plan.main([*flags, f"--topology={topology}"])
    config = load_config(flags[0].removeprefix("--config="), flags[1:])
    for path in (config.model.init_from, config.data.train, config.data.validation):
        assert path.startswith(tuple(f"{mount}/" for mount in task["file_mounts"]))


@pytest.mark.parametrize("script", ["tpu_vm.sh", "gke.py", "slurm.sbatch"])
def test_heads_of_scripts_for_several_hosts_make_one_run_of_them(script):
    trainings = re.findall(r"cxrjax\.train (\S+)", (LAUNCH / script).read_text())
    assert trainings and set(trainings) == {"--distributed=auto"}


def test_slurm_prints_what_it_would_run():
    command = ["bash", LAUNCH / "slurm.sbatch", "python", "-m", "cxrjax.train", "--config=a b"]
    environment = {"DRY_RUN": "1", "PATH": "/usr/bin:/bin"}
    told = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
    step = "srun --kill-on-bad-exit=0 --wait=60"
    assert told == f"{step} python -m cxrjax.train --config=a\\ b \n"
    assert subprocess.run(["bash", LAUNCH / "slurm.sbatch"], capture_output=True).returncode == 2
