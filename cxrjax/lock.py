"""One writer at a time in a folder, or of a file: a lock that ends with the process that holds it.

The lock is `flock` on a file, `.lock` in the folder: the kernel lets go of it however the process
ends, and NFS carries it to other hosts. The file says who holds it, in words that the holder writes
anew every few seconds, for what `flock` cannot tell:

- buckets (gcsfuse) and some cluster file systems lock within a host, or not at all: who goes on
  writing there from another host is noticed by new words;
- a server may keep the lock of a host that is gone: no new words come, and the next one begins.

Words are compared with themselves, so that clocks need not agree.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cxrjax.errors import ForeignError, UserError
from cxrjax.lease import describe, held, holders_word, is_dying, warn
from cxrjax.paths import in_bucket
from cxrjax.untrusted.foreign_files import read_bytes
from cxrjax.untrusted.json_text import parse_object

LOCK_FILE = ".lock"
# Seconds between two words, of silence after which a holder elsewhere counts as gone, and for which
# one that was killed may take to free its memory, before the kernel frees its lock.
_INTERVAL, _SILENCE, _DYING = 5.0, 20.0, 60.0
_POLL = 0.1
_LONGEST_WORD = 4096  # bytes
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# Lock files of this process. A forked child would keep them locked beyond its parent's end.
_open_files: set[int] = set()


def _close_in_child() -> None:
    for descriptor in _open_files:
        os.close(descriptor)
    _open_files.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def folder_lock(folder: Path, remedy: str = "choose another --out") -> Iterator[None]:
    """Locks a folder, which is created if missing, against other processes that write to it.

    Args:
        remedy: alternative to waiting, for messages.

    Raises:
        UserError: another process (named) holds the lock, or the folder is not writable.
    """
    above = () if in_bucket(folder) else (folder, *folder.parents)
    made = [path for path in above if not path.exists()]
    try:
        with _held(folder, folder / LOCK_FILE, remedy):
            yield
    finally:
        with contextlib.suppress(OSError):  # there is something in it
            for path in made:
                path.rmdir()


@contextlib.contextmanager
def file_lock(file: Path, remedy: str = "choose another --out") -> Iterator[None]:
    """Locks a file, or new folder, against other processes that write it; as `folder_lock`."""
    if not in_bucket(file):
        file = Path(os.path.abspath(file))  # of `.` too, which has no name
    with _held(file, file.with_name(file.name + LOCK_FILE), remedy):
        yield


def try_flock(descriptor: int) -> bool | None:
    """Locks an open file; says whether that worked, None where the storage has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


@contextlib.contextmanager
def _held(place: Path, path: Path, remedy: str) -> Iterator[None]:
    if in_bucket(path):
        with held(place, path, remedy):
            yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _take(place, path, remedy)
    except OSError as error:
        where = place if path.parent.is_dir() else path.parent
        raise UserError(f"{where}: cannot write: {error.strerror}; {remedy}") from None
    holder = _Holder(place, path, descriptor)
    try:
        yield
    finally:
        holder.let_go()


def _take(place: Path, path: Path, remedy: str) -> int:
    """Returns the open lock file, locked as far as its storage can."""
    begun, told = time.monotonic(), False
    last, changes = _read(path), 0
    while True:
        descriptor = _open(path)
        locked = try_flock(descriptor)
        word = _read(path)
        if word != last:
            last, changes = word, changes + 1
        if not _is_at(descriptor, path):  # its holder has just removed it
            _close(descriptor)
            continue
        near = word.get("host") in (None, platform.node())
        if (locked and near) or (locked is None and not word):
            return descriptor
        late = time.monotonic() - begun > (_DYING if near else _SILENCE)
        refused = locked is False and near and (late or not is_dying(word))
        # Once may be the last word of a process that was killed, on its way through a cache.
        if refused or changes > 1:
            _close(descriptor)
            raise UserError(
                f"{place}: in use by {describe(word)}; wait until it ends, stop it, or {remedy}"
            )
        if late:
            if locked is False:
                warn(f"{place}: still locked by {describe(word)}, not heard of any more")
            return descriptor
        if not told:
            told = True
            warn(f"{place}: was in use by {describe(word)}; waiting to see whether it still is")
        _close(descriptor)
        time.sleep(_POLL)


class _Holder:
    """Writes words into a lock file, and removes it at the end."""

    def __init__(self, place: Path, path: Path, descriptor: int) -> None:
        self._place, self._path, self._descriptor = place, path, descriptor
        self._word = holders_word()
        self._count = 0
        self._mutex = threading.Lock()
        self._ended = threading.Event()
        self._say()
        threading.Thread(target=self._go_on, daemon=True).start()

    def let_go(self) -> None:
        if os.getpid() != self._word["pid"]:
            return  # a forked child, which has closed it
        self._ended.set()
        # Storage that hangs may hold the other thread for ever; the process's end lets go too.
        if self._mutex.acquire(timeout=_INTERVAL):
            with contextlib.suppress(OSError):  # the folder is gone, or read-only
                if _is_at(self._descriptor, self._path):
                    self._path.unlink()
            _close(self._descriptor)

    def _go_on(self) -> None:
        told = False
        while not self._ended.wait(_INTERVAL):
            with self._mutex:
                if self._ended.is_set():
                    return
                other = _read(self._path)
                if not told and other and other.get("key") != self._word["key"]:
                    told = True
                    who = describe(other)
                    warn(f"{self._place}: {who} writes here as well; stop one of them")
                self._say()

    def _say(self) -> None:
        self._count += 1
        content = json.dumps({**self._word, "word": self._count}).encode() + b"\n"
        with contextlib.suppress(OSError):  # a full disk; the lock is held without words too
            os.pwrite(self._descriptor, content, 0)
            os.ftruncate(self._descriptor, len(content))
            os.fsync(self._descriptor)  # NFS would keep it to itself


def _open(path: Path) -> int:
    # Not through a link, whose target would be written to.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)
    _open_files.add(descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        _close(descriptor)
        raise OSError(errno.EINVAL, f"{path} is not a file")
    return descriptor


def _close(descriptor: int) -> None:
    _open_files.discard(descriptor)
    os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _read(path: Path) -> dict[str, Any]:
    """The last word in a lock file; empty where there is none."""
    try:
        return parse_object(read_bytes(path, _LONGEST_WORD))
    except (OSError, ForeignError):
        return {}
