"""launch/tpu_vm.sh with a stand-in for Google's `gcloud`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "launch"


class Pod:
    """launch/tpu_vm.sh against the stand-in; `worker` is a worker's home folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.worker = folder / "worker"
        self.worker.mkdir()
        (folder / "bin").mkdir()
        binary = shutil.copy(Path(__file__).with_name("gcloud.sh"), folder / "bin" / "gcloud")
        binary.chmod(0o755)
        path = f"{binary.parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "FAKE": str(folder), "PATH": path}

    def calls(self, what: str) -> list[str]:
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if what in line]

    def __call__(self, verb: str, *flags: str) -> subprocess.CompletedProcess[str]:
        command = [str(LAUNCH / "tpu_vm.sh"), verb, "--name=cxr", "--zone=z", *flags]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60
        )


@pytest.fixture
def pod(tmp_path):
    return Pod(tmp_path)
