"""A stand-in for Google's `gcloud`: notes what it is asked, runs a worker's commands here."""

import os
import subprocess
import textwrap
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "launch"

_GCLOUD = """\
    #!/usr/bin/env bash
    printf '%s\\n' "$*" >> "$FAKE/calls"
    case "$*" in
      *"queued-resources describe"*) [ -e "$FAKE/there" ] ;;
      *"queued-resources create"*) touch "$FAKE/there" ;;
      *"queued-resources delete"*) rm "$FAKE/there" ;;
      *"tpu-vm ssh"*)
        for word in "$@"; do
          case $word in --command=*) cd "$FAKE/worker" && bash -c "${word#*=}" ;; esac
        done ;;
    esac
    """


class Pod:
    """launch/tpu_vm.sh against the stand-in; `worker` is a worker's home folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.worker = folder / "worker"
        self.worker.mkdir()
        binary = folder / "bin" / "gcloud"
        binary.parent.mkdir()
        binary.write_text(textwrap.dedent(_GCLOUD))
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
