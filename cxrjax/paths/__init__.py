"""Paths of users: local files and folders, and addresses of buckets and of the hub.

`to_path` turns what a user wrote into a path. A local one is a plain `pathlib.Path`, so that
nothing local changes; an address is a `BucketPath` (`cxrjax/paths/buckets.py`, loaded by the first
address), which is a `pathlib.Path` too and reads and writes by fsspec.
"""

import contextlib
import importlib.util
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from cxrjax.errors import UserError

AnyPath: TypeAlias = str | os.PathLike[str]
# Scheme of an address -> (fsspec's name, its module, our extra, where credentials come from).
STORAGES = {
    "gs": ("gcs", "gcsfs", "gcs", "gcloud auth application-default login"),
    "s3": ("s3", "s3fs", "s3", "aws configure, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
}
# Where copies of files in buckets are kept and how much of them: `DIR,50GB`.
CACHE = "CXRJAX_BUCKET_CACHE"
ROOM = re.compile(r"(.+),\s*(\d+)\s*([MGT])B")
# pathlib makes one slash of two.
_ADDRESS = re.compile(rf"([A-Za-z][A-Za-z0-9+.-]+)://(.*)|({'|'.join(STORAGES)}):/(.*)", re.DOTALL)
_LOCAL = type(Path())
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
if TYPE_CHECKING:
    from cxrjax.paths.buckets import BucketPath


def is_address(path: AnyPath) -> bool:
    """Returns whether a path is an address rather than a local path."""
    return type(path) is not _LOCAL and _ADDRESS.fullmatch(os.fspath(path)) is not None


def in_bucket(path: Path) -> "TypeGuard[BucketPath]":
    """Returns whether a path that `to_path` made is one of a bucket."""
    return type(path) is not _LOCAL


def on_hub(path: AnyPath) -> bool:
    """Returns whether a path is the address of a data set on the Hugging Face hub."""
    return os.fspath(path).startswith(("hf://datasets/", "hf:/datasets/"))


def to_path(path: AnyPath) -> Path:
    """Returns what a user named as a path: a local one, or one of a bucket.

    Raises:
        UserError: an address of another kind, or one that cannot be used; names the remedy.
    """
    if isinstance(path, Path) and in_bucket(path):
        return path
    address = _ADDRESS.fullmatch(os.fspath(path))
    if address is None or address[1] == "hf":  # in_path and cxrjax/training/resolver.py read it
        return Path(path)
    scheme, rest = (address[1] or address[3]).lower(), address[2] or address[4] or ""
    bucket, _, key = rest.partition("/")
    if "@" in bucket:  # not shown: it may hold a password
        raise UserError(
            f"{scheme}://...@{bucket.rpartition('@')[2]}: an address with a user name; leave it "
            "out: credentials come from the environment"
        )
    shown = f"{scheme}://{rest.partition('?')[0]}"
    if scheme not in STORAGES:
        raise UserError(
            f"{shown}: an address that cannot be read; expected a local path, "
            f"{' or '.join(f'{name}://BUCKET/...' for name in STORAGES)}"
        )
    if "?" in rest or "#" in rest:  # not shown: it may hold a signature
        raise UserError(
            f"{shown}: an address with a query or fragment; leave out '?' and '#' and what follows"
        )
    if not _BUCKET.fullmatch(bucket) or "//" in key or ".." in key.split("/"):
        raise UserError(
            f"{shown}: not an address of a bucket; expected {scheme}://BUCKET/NAME, without empty "
            "names and '..'"
        )
    _, module, extra, _ = STORAGES[scheme]
    if importlib.util.find_spec(module) is None:
        raise UserError(f"{shown}: needs {module}; pip install 'cxrjax[{extra}]'")
    from cxrjax.paths.buckets import BucketPath

    return BucketPath(f"{scheme}://{rest}")


def in_path(path: AnyPath) -> Path:
    """`to_path`, and of a bucket a request, once, that shows that it is there and may be read.

    A data set of the hub (`hf://datasets/OWNER/NAME`) is fetched, and its local copy returned.

    Raises:
        UserError: as `to_path`, no credentials, no such bucket or data set, or no right to read.
    """
    if on_hub(path):
        from cxrjax.paths.hub import fetch_data

        return fetch_data(os.fspath(path))
    found = to_path(path)
    if in_bucket(found):
        from cxrjax.paths.buckets import ask

        ask(found)
    return found


def out_path(path: AnyPath) -> Path:
    """`in_path` for what is to be written: an object is written beside it and removed.

    Raises:
        UserError: as `in_path`, or no right to write.
    """
    found = in_path(path)
    if in_bucket(found):
        probe = found.with_name(f"{found.name}.writable-{os.urandom(4).hex()}")
        try:
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise UserError(f"{found}: cannot be written: {error.strerror}") from None
    return found


def user_cache() -> Path:
    """Returns the folder of what is computed or fetched again where it is missing."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cxrjax"


def local_beside(folder: Path) -> Path:
    """Returns where what is computed of a folder is kept: in it, or of a bucket in our cache."""
    name = str(folder).replace("/", "_")
    return user_cache() / "beside" / name if in_bucket(folder) else folder


def local_path(path: AnyPath, why: str) -> Path:
    """`to_path` for what cannot be in a bucket.

    Raises:
        UserError: it is an address.
    """
    if is_address(path):
        raise UserError(f"{to_path(path)}: expected a local path: {why} cannot be in a bucket")
    return Path(path)


def local_copy(path: AnyPath) -> Path:
    """Returns a file of a bucket as a local file, which is kept for the next time; a local one as
    it is.

    Raises:
        OSError: it cannot be read.
    """
    found = path if type(path) is _LOCAL else to_path(path)
    if in_bucket(found):
        from cxrjax.paths.buckets import fetch

        return fetch(found)
    return found


def fetch_ahead(paths: Iterable[Any]) -> None:
    """Starts to copy files of buckets that are read soon, many at a time; leaves others alone."""
    found = [path for path in paths if isinstance(path, Path) and in_bucket(path)]
    if found:
        from cxrjax.paths import buckets

        buckets.fetch_ahead(found)


def relative(path: Path, start: Path) -> str:
    """Returns a path as files in the folder `start` name it: from another storage whole."""
    apart = type(path) is not type(start) or path.parts[:3] != start.parts[:3]
    if apart and (in_bucket(path) or in_bucket(start)):
        return str(path.absolute())
    return os.path.relpath(path, start)


def inside(folder: Path, name: str) -> Path:
    """Returns the file that a file of `folder` names: relative to it, or an address."""
    return to_path(name) if _ADDRESS.fullmatch(name) else folder / name


def is_file(path: AnyPath) -> bool:
    """Returns whether it is a file; False also in a folder that may not be looked into."""
    return to_path(path).is_file() if is_address(path) else os.path.isfile(path)


def copy_file(source: AnyPath, target: AnyPath) -> None:
    """Copies a file between any two storages."""
    source, target = to_path(source), to_path(target)
    if not in_bucket(source) and not in_bucket(target):
        shutil.copyfile(source, target)
        return
    with source.open("rb") as read, target.open("wb") as write:
        shutil.copyfileobj(read, write, 2**20)


def remove_tree(folder: Path, ignore_errors: bool = False) -> None:
    """Removes a folder and what is in it."""
    if not in_bucket(folder):
        shutil.rmtree(folder, ignore_errors=ignore_errors)
        return
    with contextlib.suppress(*[OSError] * ignore_errors):
        folder.rmtree()


def truncate(path: Path, size: int) -> None:
    """Cuts a file to its first `size` bytes."""
    if not in_bucket(path):
        os.truncate(path, size)
    elif path.stat().st_size > size:
        path.write_bytes(path.read_range(0, size) if size else b"")


def walk(folder: AnyPath, followlinks: bool = False) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` of any storage."""
    if is_address(folder):
        yield from to_path(folder).walk_all()  # type: ignore[attr-defined]
    else:
        yield from os.walk(folder, followlinks=followlinks)
