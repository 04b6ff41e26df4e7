"""Commands that are ended from outside: no worker stays, and no file looks whole that is not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

RUN = Path(__file__).parent / "apps" / "finished_run"


def _started(*words: object) -> subprocess.Popen:
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _children(pid: int) -> set[int]:
    return {int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def _until(holds, seconds: float = 60.0):
    end = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_of_a_build_end_with_it(tmp_path, number):
    words = ("cxrjax.build", "--dataset=phantom_studies", "--studies=400", "--processes=2")
    parent = _started(*words, f"--out={tmp_path / 'out'}")
    try:
        workers = _until(lambda: found if len(found := _children(parent.pid)) > 2 else None)
        time.sleep(2)
    finally:
        parent.send_signal(number)
    assert workers and parent.wait(20) == -number  # with what tracks their resources
    assert _until(lambda: not any(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers
                                  if os.path.exists(f"/proc/{pid}")), 10)  # fmt: skip
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["score", "report"])
def test_a_killed_command_leaves_whole_files_or_none(tmp_path, command):
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "run" / "data" / "images").mkdir()
    Image.new("L", (30, 40), 99).save(tmp_path / "run" / "data" / "images" / "a.png")
    words = [f"--workdir={tmp_path / 'run'}"]
    if command == "score":
        words = [
            "--benchmark=vindr_cxr_vqa",
            f"--references={RUN / 'data/records/validation.jsonl'}",
        ]
        words += [f"--predictions={file}" for file in sorted((RUN / "predictions").glob("*.jsonl"))]
    begun = time.monotonic()
    assert _started(f"cxrjax.{command}", *words, f"--out={tmp_path / 'full'}").wait() == 0
    took = time.monotonic() - begun
    whole = {file.name: file.read_bytes() for file in (tmp_path / "full").iterdir()}
    assert len(whole) > (command == "score")
    for share in (0.5, 0.8, 0.9, 0.95, 0.99):
        out = tmp_path / f"{share:.2f}"
        killed = _started(f"cxrjax.{command}", *words, f"--out={out}")
        time.sleep(share * took)
        killed.send_signal(signal.SIGTERM if share == 0.9 else signal.SIGKILL)
        killed.wait()
        for file in out.iterdir() if out.exists() else ():
            if file.is_file() and not file.name.endswith((".tmp", ".lock")):
                is_whole = len(file.read_bytes()) == len(whole[file.name])
                assert is_whole or json.loads(file.read_text()), file  # with its times
