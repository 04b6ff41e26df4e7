"""Runs and commands whose paths are addresses, with servers that speak GCS and S3.

gcp-storage-emulator knows no preconditions: who wins a lease is tested on S3 and in test_paths.py.
"""

import functools
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils.epath import backend

from cxrjax import lock, paths
from cxrjax.commands import build, predict
from cxrjax.errors import UserError
from cxrjax.paths import buckets
from cxrjax.training import store
from tests.training.conftest import settings, trainer

_ROOT = Path(__file__).parents[1]
_NEEDED = {"gs": ("gcsfs", "gcp_storage_emulator"), "s3": ("s3fs", "moto")}
pytestmark = pytest.mark.slow
_KILLED = """
import os, signal, sys
from cxrjax.paths import to_path
from tests.training.conftest import BatchStream, settings, trainer

class Killed(BatchStream):
    def __next__(self):
        if self.step >= 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__next__()

trainer(to_path(sys.argv[1]), settings())(Killed())
"""


@functools.cache
def _port(scheme):
    """One for all tests: TensorStore reads where GCS is once."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(params=_NEEDED)
def bucket(request, monkeypatch, tmp_path):
    """An empty folder of a bucket."""
    scheme, port = request.param, _port(request.param)
    if not all(map(importlib.util.find_spec, _NEEDED[scheme])):
        pytest.skip("needs a bucket server: pip install 'cxrjax[test_buckets]'")
    address = f"http://127.0.0.1:{port}"
    for name, value in {
        "STORAGE_EMULATOR_HOST": address,
        "TENSORSTORE_GCS_HTTP_URL": address,
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "known",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_DEFAULT_REGION": "us-east-1",
        buckets.CACHE: f"{tmp_path / 'cache'},1GB",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(buckets, "_asked", set())
    monkeypatch.setattr(buckets, "_filesystems", {})
    fsspec.get_filesystem_class(buckets.STORAGES[scheme][0]).clear_instance_cache()
    backend.fsspec_backend._get_filesystem.cache_clear()
    command = [sys.executable, str(_ROOT / "tests/bucket_server.py"), scheme, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "up\n"
        found = paths.out_path(f"{scheme}://bucket/folder")
        found.server = server
        yield found
        server.kill()


def _run(bucket, code, *words):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path])}
    return subprocess.run([sys.executable, "-c", code, *words], env=env, capture_output=True)


def _arrays(workdir):
    """Parameters after the last step."""
    checkpoints = store.CheckpointStore(workdir, "none", writing=False)
    like = ocp.args.Composite(parameters=ocp.args.StandardRestore())
    found = checkpoints._manager.restore(6, args=like)["parameters"]
    checkpoints.close()
    return found


def test_a_killed_run_resumes_bit_for_bit_and_damage_is_moved(bucket, tmp_path):
    assert _run(bucket, _KILLED, str(bucket)).returncode == -signal.SIGKILL
    lines = trainer(bucket, settings())()
    assert any(line.startswith("resumed from the checkpoint of step ") for line in lines)
    trainer(tmp_path, settings())()
    ours, theirs = _arrays(bucket / "run"), _arrays(tmp_path / "run")
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    there = bucket / "run" / "checkpoints" / "6"
    (there / "data" / "metadata").write_bytes(b"damaged")
    lines = trainer(bucket, settings())()
    assert any("6 is damaged and was moved to" in line for line in lines)
    assert (bucket / "run" / "damaged_checkpoints" / "6").is_dir()


def test_a_build_and_predictions(bucket, capsys):
    source = _ROOT / "data/ms_cxr/sample"
    build.main(["--dataset=ms_cxr", f"--source={source}", f"--out={bucket}/data"])
    records = next((bucket / "data" / "records").glob("*.jsonl"))
    questions, out = bucket / "data" / "questions" / records.name, bucket / "predictions.jsonl"
    words = [f"--train={records}", f"--questions={questions}", f"--out={out}"]
    predict.main(["--runner=majority", *words])
    assert len(out.read_text().splitlines()) == len(questions.read_text().splitlines())
    assert json.loads((bucket / "predictions.jsonl.run.json").read_text())


def test_a_lease_keeps_others_out_and_a_server_that_is_gone_is_one_line(bucket, monkeypatch):
    if bucket.parts[1] == "s3":
        version = (bucket / ".lock").swap(b"{}", None)
        assert (bucket / ".lock").swap(b"{}", None) is None
        assert (bucket / ".lock").swap(b"{ }", version) != version
        (bucket / ".lock").unlink()
    with lock.folder_lock(bucket):
        assert json.loads((bucket / ".lock").read_text())["pid"] == os.getpid()
    bucket.server.kill()
    bucket.server.wait()
    dead = pytest.raises(UserError, match="does not answer as it should")
    with dead as refused, lock.folder_lock(bucket):
        raise AssertionError
    assert "hush" not in str(refused.value)
