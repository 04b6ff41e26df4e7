"""Files and folders of buckets as `pathlib.Path`, by fsspec; `cxrjax.paths.to_path` makes them.

An object of a bucket appears when it is closed, whole or not at all: what is written goes to a
temporary local file first. Folders of buckets exist as long as something is in them. Whatever
storage reports becomes an OSError of one line without credentials.
"""

import contextlib
import errno
import functools
import hashlib
import io
import logging
import os
import posixpath
import re
import shutil
import stat
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, TypeVar

import fsspec
import fsspec.config
from etils.epath.gpath import PosixGPath

from cxrjax.errors import BucketError, UserError
from cxrjax.paths import CACHE, ROOM, STORAGES, AnyPath, is_address, to_path, user_cache

# Orbax's paths, too, are then fsspec's, with the same credentials, where TensorFlow is installed.
os.environ.setdefault("EPATH_USE_TF", "0")
for _name, *_ in STORAGES.values():  # listings that are kept would be of before others wrote
    fsspec.config.conf.setdefault(_name, {})["use_listings_cache"] = False
fsspec.config.conf["gcs"].setdefault("requests_timeout", 60)  # seconds; s3fs has a limit
_BLOCK = 4 * 2**20  # bytes of a request, where a file is read in order
_COPY = 2**20
_IN_USE = 60.0  # seconds for which a copy is not removed
# Copies that are made at a time, and that are remembered, of files that are read soon.
_REQUESTS, _REMEMBERED = 32, 100_000
# What the libraries call an answer, or the lack of one.
_NO_CREDENTIALS = re.compile(r"(?i)credential|anonymous caller|invalid_grant|\b401\b")
_FORBIDDEN = re.compile(r"(?i)forbidden|denied|permission|\b403\b")
_CHANGED = re.compile(r"(?i)\b412\b|pre-?condition|ConditionalRequestConflict")
_NO_BUCKET = re.compile(r"(?i)bucket does not exist|NoSuchBucket|bucket.{0,80}not (?:be )?found")
Result = TypeVar("Result")


class BucketPath(PosixGPath, PosixPath):  # type: ignore[misc]
    """A file or folder of a bucket, for all that takes a `pathlib.Path`; made by `to_path`."""

    @property
    def _fs(self) -> Any:
        return _filesystem(self.parts[1], os.getpid())

    def _ask(self, call: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
        return _in_words(self, lambda: call(str(self), *arguments, **how))

    @property
    def _path_str(self) -> str:
        # Names of images lead up and down again (`../images/1.png`); buckets know no `..`.
        inner = posixpath.normpath("/" + "/".join(self.parts[3:])).rstrip("/")
        return f"{''.join(self.parts[1:2])}://{''.join(self.parts[2:3])}{inner}"

    def relative_to(self, *other: AnyPath) -> Any:
        return Path(PurePosixPath(str(self)).relative_to(*map(str, other)))

    def __truediv__(self, name: AnyPath) -> Any:
        text = os.fspath(name)
        if text.startswith("/") or is_address(text):
            return to_path(text)
        return super().__truediv__(text)

    def resolve(self, strict: bool = False) -> Any:
        return type(self)(str(self))

    def stat(self, *, follow_symlinks: bool = True) -> Any:
        """Size, kind and time of change; `version` is another one for other content."""
        info: dict[str, Any] = self._ask(self._fs.info)
        changed = info.get("mtime") or info.get("LastModified") or info.get("updated") or 0
        seconds = changed.timestamp() if hasattr(changed, "timestamp") else 0
        mode = stat.S_IFDIR if info["type"] == "directory" else stat.S_IFREG
        return types.SimpleNamespace(
            st_size=info.get("size") or 0,
            st_mode=mode,
            st_mtime=seconds,
            st_mtime_ns=int(seconds * 10**9),
            version=str(info.get("generation") or info.get("ETag") or info.get("etag") or changed),
        )

    lstat = stat

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_IFMT)

    def is_file(self) -> bool:
        return self._is(stat.S_ISREG)

    def is_dir(self) -> bool:
        return self._is(stat.S_ISDIR)

    def _is(self, kind: Callable[[int], Any]) -> bool:
        try:
            return bool(kind(self.stat().st_mode))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def iterdir(self) -> Any:
        found = self._ask(self._fs.ls, detail=False)
        if found == [str(self).partition("://")[2]]:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self))
        names = {place.rstrip("/").rpartition("/")[2] for place in found}
        yield from (self / name for name in sorted(names - {"", self.name}))

    def glob(self, pattern: str) -> Any:
        whole = f"{self}/{pattern}"
        found = _in_words(self, lambda: self._fs.glob(whole))
        yield from (type(self)(f"{self.parts[1]}://{place}") for place in sorted(found))

    def walk_all(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yields what `os.walk` does."""
        found = self._ask(lambda place: list(self._fs.walk(place)))
        for place, folders, names in found:
            yield f"{self.parts[1]}://{place.rstrip('/')}", folders, [n for n in names if n]

    def read_range(self, start: int, end: int) -> bytes:
        """Bytes from `start` to `end`, by one request."""
        content: bytes = self._ask(self._fs.cat_file, start=start, end=end)
        return content

    def read_version(self) -> tuple[bytes, str] | None:
        """Returns content and version; None where there is no object."""
        try:
            version = self.stat().version
            return self.read_bytes(), version
        except FileNotFoundError:
            return None

    def swap(self, content: bytes | None, version: str | None) -> str | None:
        """Writes (None: removes) the object if it still is of a version (None: is not there).

        Returns:
            The new version; None: it is of another version, and was left as it is.
        """
        change = _SWAPS[self.parts[1]]
        try:
            return _in_words(self, lambda: change(self, content, version))
        except FileExistsError:
            return None

    def read_bytes(self) -> bytes:
        content: bytes = self._ask(self._fs.cat_file)
        return content

    def write_bytes(self, data: Any) -> int:
        self._ask(self._fs.pipe_file, bytes(data))
        return len(data)

    def open(self, mode: str = "r", buffering: int = -1, *_: Any, **how: Any) -> Any:
        """Opens for reading in ranges, or for writing; `a` writes the whole object anew."""
        text, kind = "b" not in mode, mode.replace("b", "").replace("t", "")
        how = {"encoding": how.get("encoding") or "utf-8", "newline": how.get("newline")}
        if kind == "r":
            reader = io.BufferedReader(_RangeReader(self), _BLOCK)
            return io.TextIOWrapper(reader, **how) if text else reader
        if kind not in ("w", "a", "x"):
            raise ValueError(f"{self}: mode {mode!r}")
        if kind == "x" and self.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self))
        upload = _Upload(self, kind == "a")
        return _TextUpload(_BinaryUpload(upload), **how) if text else _BinaryUpload(upload)

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        """Refuses what is there; a folder comes with what is in it."""
        if not exist_ok and self.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self))

    def unlink(self, missing_ok: bool = False) -> None:
        with contextlib.suppress(*[FileNotFoundError] * missing_ok):
            self._ask(self._fs.rm_file)

    def rmtree(self, missing_ok: bool = False) -> None:
        with contextlib.suppress(*[FileNotFoundError] * missing_ok):
            self._ask(self._fs.rm, recursive=True)

    def rename(self, target: AnyPath) -> Any:
        """Moves an object, or one after the other those of a folder."""
        found = to_path(target)
        start = len(str(self).partition("://")[2])
        places = self._fs.find(str(self)) if self.is_dir() else [str(self).partition("://")[2]]
        for place in places:
            move = functools.partial(
                self._fs.mv, f"{self.parts[1]}://{place}", f"{found}{place[start:]}"
            )
            _in_words(self, move)
        return found

    replace = rename


class _RangeReader(io.RawIOBase):
    """Reads an object by requests for ranges."""

    def __init__(self, path: BucketPath) -> None:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a folder, expected a file", str(path))
        self._path, self._size, self._at = path, found.st_size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def _take(self, count: int) -> bytes:
        end = min(self._size, self._at + count)
        content = self._path.read_range(self._at, end) if end > self._at else b""
        self._at += len(content)
        return content

    def readinto(self, buffer: Any) -> int:
        content = self._take(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        return self._take(self._size)


class _Upload(io.FileIO):
    """A temporary local file that becomes an object when it is flushed or closed."""

    def __init__(self, path: BucketPath, append: bool) -> None:
        descriptor, self._local = tempfile.mkstemp(prefix="cxrjax-upload-")
        os.close(descriptor)
        super().__init__(self._local, "a" if append else "w")
        self._path, self._changed, self.discarded = path, True, False
        if append and path.exists():
            with path.open("rb") as old:
                shutil.copyfileobj(old, self, _COPY)
            self._changed = False

    def write(self, content: Any) -> int:
        self._changed = True
        return super().write(content) or 0

    def send(self) -> None:
        if self._changed and not self.discarded:
            self._changed = False
            put = self._path._fs.put_file
            _in_words(self._path, lambda: put(self._local, str(self._path)))

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        try:
            self.send()
        finally:
            os.unlink(self._local)


class _Whole:
    """Part of what writes an object: after an error nothing is written."""

    def upload(self) -> _Upload:
        """The file beneath."""
        found: Any = self
        while not isinstance(found, _Upload):
            found = found.raw if isinstance(found, io.BufferedWriter) else found.buffer
        return found

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self.upload().discarded |= kind is not None
        super().__exit__(kind, *rest)  # type: ignore[misc]

    def __del__(self) -> None:  # left open by an error
        if not self.closed:  # type: ignore[attr-defined]
            self.upload().discarded = True
            self.close()  # type: ignore[attr-defined]


class _BinaryUpload(_Whole, io.BufferedWriter):
    def flush(self) -> None:
        super().flush()
        self.upload().send()


class _TextUpload(_Whole, io.TextIOWrapper): ...


def _swap_gs(path: BucketPath, content: bytes | None, version: str | None) -> str:
    bucket, key, fs = path.parts[2], "/".join(path.parts[3:]), path._fs
    if content is None:
        fs.call("DELETE", "b/{}/o/{}", bucket, key, ifGenerationMatch=version)
        return ""
    address = f"{fs._location}/upload/storage/v1/b/{bucket}/o"
    how = {"uploadType": "media", "name": key, "ifGenerationMatch": version or 0}
    return str(fs.call("POST", address, data=content, json_out=True, **how)["generation"])


def _swap_s3(path: BucketPath, content: bytes | None, version: str | None) -> str:
    place = {"Bucket": path.parts[2], "Key": "/".join(path.parts[3:])}
    if content is None:  # S3 has no condition for it
        if path.stat().version == version:
            path._fs.call_s3("delete_object", **place)
        return ""
    condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
    return str(path._fs.call_s3("put_object", **place, Body=content, **condition)["ETag"])


_SWAPS = {"gs": _swap_gs, "s3": _swap_s3}
_filesystems: dict[tuple[str, int], Any] = {}
_asked: set[str] = set()


def _filesystem(scheme: str, process: int) -> Any:
    """fsspec's file system of a scheme: one a process, since none survives a fork."""
    if (scheme, process) not in _filesystems:
        # Errors are raised as well.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
        _filesystems[scheme, process] = fsspec.filesystem(STORAGES[scheme][0])
    return _filesystems[scheme, process]


def ask(path: BucketPath) -> None:
    """Shows by a request, once for each bucket, that it is there and may be read.

    Raises:
        UserError: it is not there, does not answer, or may not be read.
    """
    bucket = f"{path.parts[1]}://{path.parts[2]}"
    if bucket in _asked:
        return
    try:
        _in_words(path, lambda: path._fs.info(str(path)))
    except FileNotFoundError:
        # Of the bucket, or of an object in one that is there.
        try:
            _in_words(path, lambda: path._fs.ls(bucket, detail=False))
        except FileNotFoundError:
            raise UserError(f"{path}: no such bucket; create it, or check the name") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be reached: {error.strerror}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be reached: {error.strerror}") from None
    _asked.add(bucket)


_ahead: dict[tuple[str, int], Future[Path]] = {}


@functools.cache
def _pool(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_REQUESTS, f"bucket-{process}")


def fetch_ahead(paths: Iterable[BucketPath]) -> None:
    """Starts to copy objects, many at a time; `fetch` then asks for no newer versions of them."""
    for path in paths:
        key = str(path), os.getpid()
        earlier = _ahead.get(key)
        if earlier is None or (earlier.done() and _of_copy(earlier) is None):
            _ahead[key] = _pool(os.getpid()).submit(_fetch, path)
        if len(_ahead) > _REMEMBERED:
            del _ahead[next(iter(_ahead))]


def _of_copy(made: Future[Path]) -> Path | None:
    """Returns a copy that is still there, and marks it as used; None: it is to be made anew."""
    with contextlib.suppress(OSError):
        copy = made.result()
        os.utime(copy)  # what was used last is removed last
        return copy
    return None


def fetch(path: BucketPath) -> Path:
    """Returns the local copy of an object, made where the cache has none of this version."""
    made = _ahead.get((str(path), os.getpid()))
    return (made and _of_copy(made)) or _fetch(path)


def _cache() -> tuple[Path, int]:
    text = os.environ.get(CACHE) or f"{user_cache()}/buckets,20GB"
    found = ROOM.fullmatch(text)
    if found is None or is_address(found[1]):
        raise UserError(f"{CACHE}={text}: expected a local folder and a size, such as DIR,50GB")
    return Path(found[1]), int(found[2]) * 1000 ** (" MGT".index(found[3]) + 1)


def _fetch(path: BucketPath) -> Path:
    folder, most = _cache()
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder, expected a file", str(path))
    name = hashlib.sha256(f"{path} {found.version} {found.st_size}".encode()).hexdigest()
    copy = folder / name[:2] / f"{name}-{path.name[-60:]}"
    with contextlib.suppress(FileNotFoundError):
        os.utime(copy)
        return copy
    copy.parent.mkdir(parents=True, exist_ok=True)
    part = copy.with_name(f".{name}.{os.urandom(8).hex()}")
    try:
        _in_words(path, lambda: path._fs.get_file(str(path), str(part)))
        if part.stat().st_size != found.st_size:
            raise OSError(errno.EIO, "it changed while it was read", str(path))
        _make_room(folder, most, found.st_size)
        part.replace(copy)
    finally:
        part.unlink(missing_ok=True)
    return copy


_added = {"bytes": 2.0**63}  # since the folder was last looked through


def _make_room(folder: Path, most: int, size: int) -> None:
    """Removes the copies that were not used for longest, down to nine tenths of the room."""
    _added["bytes"] += size
    if _added["bytes"] < most / 20:
        return
    _added["bytes"] = 0
    found = []
    for path in folder.glob("??/*"):
        with contextlib.suppress(FileNotFoundError):  # another process makes room too
            found.append((path.stat().st_mtime, path.stat().st_size, path))
    excess = sum(size for _, size, _ in found) + size - most
    for used, size, path in sorted(found) if excess > 0 else ():
        if excess <= -most / 10 or used > time.time() - _IN_USE:
            break
        path.unlink(missing_ok=True)
        excess -= size


def _in_words(path: BucketPath, call: Callable[[], Result]) -> Result:
    """Calls; what storage reports becomes an OSError without credentials."""
    try:
        return call()
    except Exception as error:  # each library has its own
        raise _os_error(path, error) from None


def _os_error(path: BucketPath, error: Exception) -> OSError:
    login = STORAGES[path.parts[1]][3]
    said = f"{type(error).__name__} {getattr(error, 'code', '')} {error}"
    if _NO_BUCKET.search(said):
        return FileNotFoundError(errno.ENOENT, "no such bucket", str(path))
    if _CHANGED.search(said):
        return FileExistsError(errno.EEXIST, "of another version", str(path))
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if isinstance(error, NotADirectoryError | IsADirectoryError | FileExistsError):
        number = error.errno or errno.EEXIST
        return type(error)(number, os.strerror(number), str(path))
    if _NO_CREDENTIALS.search(said):
        return BucketError(errno.EACCES, f"no valid credentials; {login}", str(path))
    if isinstance(error, PermissionError) or _FORBIDDEN.search(said):
        words = "no right to it with these credentials; ask the bucket's owner, or log in anew: "
        return BucketError(errno.EACCES, words + login, str(path))
    code = re.search(r"\b[45]\d\d\b", said)
    what = f"{type(error).__name__}{f', HTTP {code[0]}' if code else ''}"
    return BucketError(
        errno.EIO, f"the storage does not answer as it should ({what}); try again later", str(path)
    )
