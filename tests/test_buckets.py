"""Runs and commands whose paths are addresses, with servers that speak GCS and S3.

gcp-storage-emulator knows no preconditions: who wins a lease is tested on S3 and in test_paths.py.
"""

import atexit
import functools
import importlib.util
import io
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils.epath import backend
from PIL import Image

from bench import bucket_input
from bench.bucket_input import Proxy
from bench.fuzz import targets
from cxrjax import lock, paths
from cxrjax.apps.serving import named_models
from cxrjax.commands import (
    build,
    check_records,
    convert,
    evaluate,
    import_annotations,
    plan,
    predict,
    report,
    review,
    score,
)
from cxrjax.errors import UserError
from cxrjax.input_pipeline import sharded_source
from cxrjax.paths import buckets
from cxrjax.training import orbax_s3, store
from tests.training.conftest import BatchStream, settings, trainer

_ROOT = Path(__file__).parents[1]
_SAMPLE = _ROOT / "data/ms_cxr/sample"
_NEEDED = {"gs": ("gcsfs", "gcp_storage_emulator"), "s3": ("s3fs", "moto")}
_KEYS = {
    "AWS_ACCESS_KEY_ID": "known",
    "AWS_SECRET_ACCESS_KEY": "hush",
    "AWS_DEFAULT_REGION": "us-east-1",
}
pytestmark = [pytest.mark.slow, pytest.mark.buckets]
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
def _server(scheme):
    """The server of a session, and the proxy before it, whose address all tests use.

    TensorStore reads the address of GCS once.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, str(_ROOT / "tests/bucket_server.py"), scheme, str(port)]
    env = {**os.environ, **_KEYS}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    atexit.register(server.kill)
    assert server.stdout.readline() == "up\n"
    return Proxy(port)


@pytest.fixture(params=_NEEDED)
def bucket(request, monkeypatch, tmp_path):
    """An empty folder of a bucket."""
    scheme = request.param
    if not all(map(importlib.util.find_spec, _NEEDED[scheme])):
        pytest.skip("needs a bucket server: pip install 'cxrjax[test-buckets]'")
    proxy = _server(scheme)
    proxy.latency, proxy.refuses = 0.0, lambda line: False
    address = f"http://127.0.0.1:{proxy.port}"
    for name, value in {
        "STORAGE_EMULATOR_HOST": address,
        "TENSORSTORE_GCS_HTTP_URL": address,
        "GCE_METADATA_ROOT": "127.0.0.1:9",  # nothing answers there: no credentials
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "AWS_ENDPOINT_URL": address,
        **_KEYS,
        "XDG_CACHE_HOME": str(tmp_path / "home"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(paths.CACHE, f"{tmp_path / 'cache'},1GB")
    monkeypatch.setattr(buckets, "_asked", set())
    monkeypatch.setattr(buckets, "_ahead", {})
    monkeypatch.setattr(buckets, "_filesystems", {})
    monkeypatch.setattr(orbax_s3, "RETRIES", {"max_retries": 2, "initial_delay": "200ms"})
    fsspec.get_filesystem_class(buckets.STORAGES[scheme][0]).clear_instance_cache()
    backend.fsspec_backend._get_filesystem.cache_clear()
    found = paths.out_path(f"{scheme}://bucket/{request.node.name}".partition("[")[0])
    found.proxy = proxy
    return found


@pytest.fixture
def s3(bucket):
    if bucket.parts[1] != "s3":
        pytest.skip("one kind of bucket is enough")
    return bucket


def _copy(folder, target):
    for file in folder.rglob("*"):
        if file.is_file():
            paths.copy_file(file, target / file.relative_to(folder).as_posix())
    return target


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


def test_commands_from_and_to_a_bucket(s3):
    """From the export of a tool to a page, with a model, all of it in the bucket."""
    kinds = [{"id": 1, "name": "nodule"}]
    images, boxes = [], []
    for number in range(4):
        grey = np.random.default_rng(number).integers(0, 256, (80, 64), np.uint8)
        content = io.BytesIO()
        Image.fromarray(grey).save(content, "png")
        (s3 / "own/images" / f"{number}.png").write_bytes(content.getvalue())
        images.append({"id": number, "file_name": f"{number}.png", "width": 64, "height": 80})
        boxes.append({"id": number, "image_id": number, "category_id": 1, "bbox": [5, 6, 20, 30]})
    coco = {"images": images, "annotations": boxes, "categories": kinds}
    (s3 / "own/coco.json").write_text(json.dumps(coco))
    import_annotations.main([f"{s3}/own", f"--out={s3}/data"])
    check_records.main([f"{s3}/data", f"--out={s3}/check"])
    base = _copy(_ROOT / "data/demo_base", s3 / "base")
    convert.main([f"--checkpoint={base}", f"--out={s3}/converted"])
    references = f"--references={s3}/data/records/train.jsonl"
    words = ["--benchmark=vindr_cxr_vqa", references, f"--out={s3}/evaluation", "--resamples=20"]
    evaluate.main([f"--checkpoint={s3}/converted", *words])
    predictions = f"--predictions={s3}/evaluation/predictions.jsonl"
    score.main([*words[:2], predictions, f"--out={s3}/scores", "--resamples=20"])
    report.main([f"--workdir={s3}/scores", predictions, references, f"--out={s3}/page"])
    plan.main(["--config=configs/demo_base.py", "--topology=v5e-8", "--formula", f"--kept={s3}/k"])
    written = ("check/index.html", "scores/metrics.json", "page/index.html", "data/manifest.json")
    assert all((s3 / name).is_file() for name in written)
    served = named_models.open_served(
        s3 / "converted", "m", {}, slots=1, longest_prompt=64, decoding={}
    )
    assert list(served.by_name) == ["m"]
    with pytest.raises(UserError, match="a review's database and locks cannot be in a bucket"):
        review.main([f"--records={s3}/data", f"--out={s3}/review"])


def test_a_bucket_that_refuses_now_and_then_is_asked_again(s3):
    turns = itertools.count()
    s3.proxy.refuses = lambda line: next(turns) % 3 == 0
    (s3 / "a").write_text("content")
    assert (s3 / "a").read_text() == "content"
    assert [one.name for one in s3.iterdir()] == ["a"]


def test_a_bucket_that_refuses_for_good_ends_in_one_line(s3, tmp_path):
    """What was there before stays, and nothing new looks whole."""
    (s3 / "old.jsonl").write_text("before")
    questions = tmp_path / "questions.jsonl"
    build.main(["--dataset=ms_cxr", f"--source={_SAMPLE}", f"--out={tmp_path / 'data'}"])
    questions = next((tmp_path / "data/questions").glob("*.jsonl"))
    records = tmp_path / "data/records" / questions.name
    s3.proxy.refuses = lambda line: line.startswith((b"PUT", b"POST")) and b".lock" not in line
    words = ["--runner=majority", f"--train={records}", f"--questions={questions}"]
    for name in ("new.jsonl", "old.jsonl"):
        with pytest.raises(UserError, match=r"HTTP 503|try again later|cannot be written") as found:
            predict.main([*words, f"--out={s3}/{name}"])
        assert "\n" not in str(found.value) and str(s3) in str(found.value)
    s3.proxy.refuses = lambda line: False
    assert not (s3 / "new.jsonl").exists() and (s3 / "old.jsonl").read_text() == "before"


def test_a_run_whose_bucket_vanishes_resumes_bit_for_bit(s3, tmp_path):
    def vanish():
        while not (s3 / "run/checkpoints/2/commit_success.txt").is_file():
            time.sleep(0.1)
        s3.proxy.refuses = lambda line: True

    with pytest.raises(UserError) as ended:
        trainer(s3, settings())(BatchStream(before={4: vanish}))
    assert "\n" not in str(ended.value)
    s3.proxy.refuses = lambda line: False
    (s3 / "run" / ".lock").unlink(missing_ok=True)
    lines = trainer(s3, settings())()
    assert any(line.startswith("resumed from the checkpoint of step 2") for line in lines)
    trainer(tmp_path, settings())()
    ours, theirs = _arrays(s3 / "run"), _arrays(tmp_path / "run")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_images_of_later_batches_are_on_their_way(s3):
    """Requests answer 50 ms late: one after the other, two an image, they would take 1.6 s."""
    records = bucket_input.fill(s3, images=8 * 16, size=256)
    s3.proxy.latency = 0.05
    found = bucket_input.measure(records, step=0.3, steps=8, workers=0, batch=16)
    assert found["wait"] < 0.5


def test_shards_are_copied_once_when_they_are_needed_and_compared(s3):
    for name, content in targets._shards().items():
        (s3 / name).write_bytes(content)
    asked = []
    s3.proxy.refuses = lambda line: asked.append(line) if line.startswith(b"GET") else False
    source = sharded_source.ShardedSource(s3, "train")
    assert not any(b".array_record" in line for line in asked)
    assert source[0].records and source[len(source) - 1].records
    assert sum(b".array_record" in line for line in asked) == 1
    assert sum(b".parquet" in line for line in asked) == 1
    (shard,) = (s3 / "records").glob("*.array_record")
    shard.write_bytes(b"another one")
    with pytest.raises(UserError, match=r"array_record: has the hash \w+, the manifest \w+; bring"):
        sharded_source.ShardedSource(s3, "train")[0]


def test_a_build_and_predictions(bucket):
    source = _copy(_SAMPLE, bucket / "source")
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
    bucket.proxy.refuses = lambda line: True
    dead = pytest.raises(UserError, match="does not answer as it should")
    with dead as refused, lock.folder_lock(bucket):
        raise AssertionError
    assert "hush" not in str(refused.value)
