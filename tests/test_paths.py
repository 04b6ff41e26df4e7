"""Addresses that can be used and those that cannot, and files of buckets as `pathlib.Path`.

The storage here is in memory; tests/test_buckets.py has servers that speak GCS and S3.
"""

import ast
import importlib.machinery
import os
import pickle
import platform
import re
import subprocess
import sys
import time
import types
from pathlib import Path

import fsspec
import pytest

from cxrjax import lease, paths
from cxrjax.commands import build, review
from cxrjax.errors import BucketError, UserError
from cxrjax.files import KeyedLines, read_json_object, replacing, write_json
from cxrjax.images.decode import read_image
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.lock import file_lock, folder_lock
from cxrjax.paths import buckets
from cxrjax.training import store
from cxrjax.training.metric_log import MetricsFile

_ROOT = Path(__file__).parents[1]
_SAMPLE = _ROOT / "data/ms_cxr/sample"
_BUCKET = "bucket"


class Objects(fsspec.AbstractFileSystem):
    """Buckets in memory; `fail` is raised by every request. GCS's preconditions are honoured."""

    cachable = False

    def __init__(self):
        super().__init__()
        self.objects, self.fail, self.read, self.number = {}, None, [], 0
        self._location = "memory"

    @classmethod
    def _strip_protocol(cls, path):
        return str(path).partition("://")[2].strip("/") if "://" in str(path) else path.strip("/")

    def ls(self, path, detail=True, **_):
        if self.fail:
            raise self.fail
        path = self._strip_protocol(path)
        found = {}
        for key, (content, version) in self.objects.items():
            if key == path or key.startswith(f"{path}/"):
                name = path if key == path else f"{path}/{key[len(path) + 1 :].partition('/')[0]}"
                size = len(content) if name == key else 0
                kind = "file" if name == key else "directory"
                found[name] = {"name": name, "size": size, "type": kind, "generation": version}
        if not found and path != _BUCKET:
            raise FileNotFoundError(path)
        return list(found.values()) if detail else list(found)

    def cat_file(self, path, start=None, end=None, **_):
        self.ls(path)
        self.read.append((self._strip_protocol(path), start, end))
        return self.objects[self._strip_protocol(path)][0][start:end]

    def pipe_file(self, path, value, mode="overwrite", **_):
        if self.fail:
            raise self.fail
        self.number += 1
        self.objects[self._strip_protocol(path)] = bytes(value), str(self.number)

    def put_file(self, lpath, rpath, **_):
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def get_file(self, rpath, lpath, **_):
        Path(lpath).write_bytes(self.cat_file(rpath))

    def cp_file(self, path1, path2, **_):
        self.pipe_file(path2, self.cat_file(path1))

    def rm(self, path, **_):
        for key in [key for key in self.objects if key.startswith(self._strip_protocol(path))]:
            del self.objects[key]

    def rm_file(self, path):
        self.ls(path)
        del self.objects[self._strip_protocol(path)]

    def call(self, method, address, *place, data=None, name=None, ifGenerationMatch=None, **_):
        key = "/".join(place) or f"{_BUCKET}/{name}"
        if str(ifGenerationMatch) != self.objects.get(key, (b"", "0"))[1]:
            raise OSError("412 At least one of the pre-conditions did not hold")
        if method == "DELETE":
            del self.objects[key]
            return {}
        self.pipe_file(f"gs://{key}", data)
        return {"generation": self.objects[key][1]}


@pytest.fixture
def storage(monkeypatch, tmp_path):
    """The storage of all addresses."""
    found = Objects()
    for module in ("gcsfs", "s3fs"):
        fake = types.ModuleType(module)
        fake.__spec__ = importlib.machinery.ModuleSpec(module, None)
        monkeypatch.setitem(sys.modules, module, fake)
    monkeypatch.setattr(buckets, "_filesystem", lambda scheme, process: found)
    monkeypatch.setattr(buckets, "_asked", set())
    monkeypatch.setattr(buckets, "_added", {"bytes": 2.0**63})
    monkeypatch.setattr(buckets, "_ahead", {})
    monkeypatch.setenv(buckets.CACHE, f"{tmp_path / 'cache'},1MB")
    return found


@pytest.fixture
def bucket(storage):
    return paths.to_path(f"gs://{_BUCKET}/folder")


_REFUSED = {
    "http://host/records.jsonl": "http://host/records.jsonl: an address that cannot be read",
    "gs://": "not an address of a bucket",
    "gs://Bucket/x": "not an address of a bucket",
    "gs://bucket/a//b": "without empty names",
    "s3://bucket/x?X-Amz-Signature=hush": "s3://bucket/x: an address with a query",
    "s3://key:hush@bucket/x": "an address with a user name",
}


def test_addresses_that_cannot_be_used_are_refused_without_what_is_secret(storage, subtests):
    for address, told in _REFUSED.items():
        with subtests.test(address=address), pytest.raises(UserError) as refused:
            paths.in_path(address)
        assert told in str(refused.value) and "\n" not in str(refused.value)
        assert "hush" not in str(refused.value)


def test_buckets_take_their_extra_and_local_paths_load_nothing(monkeypatch):
    assert type(paths.to_path("runs/a:b")) is type(Path()) and not paths.is_address("C:/x")
    loaded = "import sys, cxrjax.files; assert not {'fsspec', 'etils'} & {*sys.modules}"
    subprocess.run(
        [sys.executable, "-c", loaded], check=True, env={**os.environ, "PYTHONPATH": str(_ROOT)}
    )
    monkeypatch.setattr(paths.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"s3://bucket/x: needs s3fs; pip install 'cxrjax\[s3\]'"):
        paths.to_path("s3://bucket/x")


def test_paths_of_buckets_are_paths(bucket):
    file = bucket / "records" / "train.jsonl"
    assert isinstance(file, Path) and str(file) == "gs://bucket/folder/records/train.jsonl"
    assert (file.name, file.stem, file.suffix, file.parent.name) == (
        "train.jsonl",
        "train",
        ".jsonl",
        "records",
    )
    assert str(bucket / "../images/./1.png") == "gs://bucket/images/1.png"
    assert pickle.loads(pickle.dumps(file)) == file == paths.to_path(Path(str(file)))
    assert paths.inside(Path("here"), "s3://other/1.png") == paths.to_path("s3://other/1.png")
    assert paths.relative(bucket / "1.png", bucket / "out") == "../1.png"
    assert paths.relative(bucket / "1.png", Path("out")) == str(bucket / "1.png")
    assert file.relative_to(bucket).as_posix() == "records/train.jsonl"


def test_objects_are_written_whole_or_not_at_all(bucket, storage):
    write_json(bucket / "a.json", {"is": "there"})
    assert read_json_object(bucket / "a.json") == {"is": "there"}
    with pytest.raises(ZeroDivisionError), replacing(bucket / "a.json") as file:
        file.write("half")
        file.write(str(1 / 0))
    left = (bucket / "b.bin").open("wb")
    left.write(b"half")
    del left  # as an error leaves it
    assert read_json_object(bucket / "a.json") == {"is": "there"}
    assert list(storage.objects) == ["bucket/folder/a.json"]


def test_reading_asks_for_ranges_and_folders_are_what_is_in_them(bucket, storage):
    (bucket / "in" / "b.bin").write_bytes(bytes(range(256)) * 100_000)
    with (bucket / "in" / "b.bin").open("rb") as file:
        file.seek(256 * 90_000)
        assert file.read(4) == bytes(range(4))
    assert [len(range(*where[1:])) for where in storage.read] == [256 * 10_000]
    assert bucket.is_dir() and not (bucket / "no").exists()
    assert [path.name for path in bucket.iterdir()] == ["in"] and list(bucket.rglob("*.bin"))
    with pytest.raises(IsADirectoryError):
        bucket.open("rb")
    (bucket / "in").rename(bucket / "out")
    assert list(paths.walk(bucket))[-1] == ("gs://bucket/folder/out", [], ["b.bin"])
    paths.remove_tree(bucket)
    assert not storage.objects


def test_lines_of_a_run_are_in_the_bucket_once_they_are_flushed(bucket):
    with (bucket / "metrics.jsonl").open("w") as file:
        file.write('{"step": 1, "loss": 2.0}\n{"step": 5, "loss": 1.0}\n')
    metrics = MetricsFile(bucket / "metrics.jsonl", start_step=1)
    metrics.write_scalars(2, {"loss": 1.5})
    metrics.flush()
    metrics.write_scalars(2, {"other": 1.0})
    metrics.close()
    assert (bucket / "metrics.jsonl").read_text().splitlines()[1:] == [
        '{"step": 2, "loss": 1.5, "other": 1.0}'
    ]


_TOLD = {
    "credentials": (OSError("401 Anonymous caller: token hush"), "no valid credentials; gcloud"),
    "rights": (PermissionError("hush"), "no right to it"),
    "bucket": (OSError("NoSuchBucket hush"), "no such bucket"),
    "unwell": (RuntimeError("503 hush"), "does not answer as it should (RuntimeError, HTTP 503)"),
}


def test_what_storage_reports_is_one_line_without_credentials(bucket, storage, subtests):
    for name, (error, told) in _TOLD.items():
        storage.fail = error
        with subtests.test(name=name), pytest.raises(UserError) as refused:
            paths.in_path(bucket)
        assert told in str(refused.value) and str(bucket) in str(refused.value)
        assert "hush" not in str(refused.value)


def test_a_bucket_that_may_not_be_written_is_refused_before_anything_is_read(
    bucket, storage, monkeypatch, tmp_path
):
    def refuse(path, value, **_):
        raise PermissionError("403")

    monkeypatch.setattr(storage, "pipe_file", refuse)
    words = ["--dataset=ms_cxr", f"--source={tmp_path / 'absent'}", f"--out={bucket}"]
    with pytest.raises(UserError, match=f"{bucket}: cannot be written: no right to it"):
        build.main(words)
    with pytest.raises(UserError, match="gs://other/x: no such bucket"):
        build.main([*words[:2], "--out=gs://other/x"])


def test_what_cannot_be_in_a_bucket_or_does_not_answer_is_refused(bucket, storage):
    with pytest.raises(UserError, match="expected a local path"):
        KeyedLines(bucket / "c.jsonl", "--cache", "answer", dict, dict)
    with pytest.raises(UserError, match="a review's database and locks cannot be in a bucket"):
        review.parse_arguments(["--records=x", f"--out={bucket}"])
    # Neither a damaged checkpoint, which would be moved, nor an unreadable image, left out
    store.write_checksums(bucket / "6", {})
    (bucket / "1.png").write_bytes(b"a")
    storage.fail = RuntimeError("503")
    for read in (lambda: store.find_damage(bucket / "6"), lambda: read_image(bucket / "1.png")):
        with pytest.raises(BucketError, match="does not answer"):
            read()


def test_a_copy_is_made_once_of_each_version_and_room_is_bounded(
    bucket, storage, tmp_path, monkeypatch
):
    (bucket / "1.png").write_bytes(b"one")
    first = paths.local_copy(bucket / "1.png")
    assert paths.local_copy(bucket / "1.png") == first and first.read_bytes() == b"one"
    assert len(storage.read) == 1
    (bucket / "1.png").write_bytes(b"two")
    assert paths.local_copy(bucket / "1.png").read_bytes() == b"two"
    monkeypatch.setattr(buckets, "_IN_USE", -1.0)
    for number in range(5):
        (bucket / "large").write_bytes(bytes([number]) * 400_000)
        os.utime(paths.local_copy(bucket / "large"), (number, number))
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) <= 1_000_000
    monkeypatch.setenv(buckets.CACHE, "x")
    with pytest.raises(UserError, match=r"_CACHE=x: expected a local folder and a size"):
        paths.local_copy(bucket / "1.png")


def test_a_build_in_a_bucket_is_the_one_on_disk(bucket, storage, tmp_path, capsys):
    for out in (tmp_path / "out", bucket):
        build.main(["--dataset=ms_cxr", f"--source={_SAMPLE}", f"--out={out}"])
    local = sorted(path for path in (tmp_path / "out").rglob("*.json*") if path.is_file())
    assert [(bucket / p.relative_to(tmp_path / "out")).read_bytes() for p in local] == [
        p.read_bytes() for p in local
    ]
    file = next((bucket / "records").glob("*.jsonl"))
    there = RecordSource(file)
    here = RecordSource(tmp_path / "out" / "records" / file.name)
    assert list(there.records()) == list(here.records()) and there.fingerprint == here.fingerprint
    assert str(there[0].image_path).startswith("gs://bucket/")


def _word(**changed):
    return {"host": platform.node(), "pid": 1, "command": "train", "since": "now", **changed}


def test_a_lease_is_one_process_s_and_that_of_a_dead_one_is_taken(bucket, storage, monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, alive = _word(pid=ended.pid), _word(pid=os.getppid())
    write_json(bucket / ".lock", dead)
    with folder_lock(bucket):
        holder = read_json_object(bucket / ".lock")
        assert holder["pid"] == os.getpid()
    assert not storage.objects
    write_json(bucket / ".lock", alive)
    with pytest.raises(UserError, match=r"in use by process \d+ \(train\)"), folder_lock(bucket):
        raise AssertionError
    monkeypatch.setattr(lease, "_POLL", 0.01)
    monkeypatch.setattr(lease, "_EXPIRY", 0.1)
    write_json(bucket / "p.jsonl.lock", _word(host="gone"))
    begun = time.monotonic()
    with file_lock(bucket / "p.jsonl"):
        assert time.monotonic() - begun > 0.1


def test_a_lease_that_is_renewed_is_respected_and_one_that_was_lost_is_told(
    bucket, storage, monkeypatch, capsys
):
    monkeypatch.setattr(lease, "_POLL", 0.01)
    monkeypatch.setattr(lease, "_RENEWAL", 0.05)
    write_json(bucket / ".lock", _word(host="far"))
    monkeypatch.setattr(lease, "warn", lambda _: write_json(bucket / ".lock", _word(host="far")))
    with pytest.raises(UserError, match="in use by process 1"), folder_lock(bucket):
        raise AssertionError
    told = []
    monkeypatch.setattr(lease, "warn", told.append)
    with folder_lock(bucket / "other"):
        write_json(bucket / "other" / ".lock", _word(host="far"))
        for _ in range(100):
            time.sleep(0.02)
            if told:
                break
    assert "has taken over its lease" in told[0] and (bucket / "other" / ".lock").exists()


# These make paths of what no user wrote: of the lock's own folder, of temporary ones.
_OWN = (
    "paths/__init__.py",
    "paths/buckets.py",
    "lease.py",
    "lock.py",
    "apps/demo/gate.py",
    "apps/demo/run.py",
)


def test_no_path_of_a_user_s_words_is_made_elsewhere():
    found = []
    for file in sorted((_ROOT / "cxrjax").rglob("*.py")):
        name = file.relative_to(_ROOT / "cxrjax").as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            words = ast.unparse(node) if isinstance(node, ast.Call | ast.keyword) else ""
            made = re.match(r"(?:pathlib\.)?Path\((?!__file__|tempfile\.|['\")])", words)
            if not name.startswith(_OWN) and (made or words == "type=Path"):
                found.append(f"{name}: {words}")
    assert found == []
