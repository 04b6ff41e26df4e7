"""A lock in a bucket: an object that its holder renews, written only over the version it saw.

A holder that is killed leaves it behind: who comes next takes it over when it has not been renewed
for a minute, or immediately where that process was of the same machine and is gone. Versions are
compared with themselves, so that clocks need not agree. A holder that could not renew for so long
(a suspended machine, a broken network) may go on to write beside the next one; it is warned.
"""

import contextlib
import datetime
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cxrjax.errors import ForeignError, UserError
from cxrjax.untrusted.foreign_files import read_bytes
from cxrjax.untrusted.json_text import parse_object
from cxrjax.untrusted.names import shown

if TYPE_CHECKING:
    from cxrjax.paths.buckets import BucketPath

_RENEWAL, _EXPIRY, _POLL = 10.0, 60.0, 1.0  # seconds


@contextlib.contextmanager
def held(place: Path, path: "BucketPath", remedy: str) -> Iterator[None]:
    """Holds the lease at `path` for `place`.

    Raises:
        UserError: another process (named) holds it, or the bucket cannot be written.
    """
    word = holders_word()
    try:
        version = _take(place, path, word, remedy)
    except OSError as error:
        raise UserError(f"{place}: cannot be locked: {error.strerror}; {remedy}") from None
    ended = threading.Event()
    renewed = [version]
    thread = threading.Thread(
        target=_renew, args=(place, path, word, renewed, ended), daemon=True, name="lease"
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=_RENEWAL)
        with contextlib.suppress(OSError):
            path.swap(None, renewed[0])


def _take(place: Path, path: "BucketPath", word: dict[str, Any], remedy: str) -> str:
    """Returns the version of the lease, once it is ours."""
    seen: str | None = None
    since = time.monotonic()
    while True:
        found = path.read_version()
        if found is None:
            if version := path.swap(_bytes(word, 0), None):
                return version
            continue
        content, version = found
        try:
            holder = parse_object(content)
        except ForeignError:
            holder = {}
        here = holder.get("host") == platform.node() and holder.get("pid") != os.getpid()
        gone = here and is_dying(holder)
        if (here and not gone) or seen not in (None, version):
            raise UserError(
                f"{place}: in use by {describe(holder)}; wait until it ends, stop it, or {remedy}"
            )
        if gone or time.monotonic() - since > _EXPIRY:
            if taken := path.swap(_bytes(word, 0), version):
                return taken
            continue
        if seen is None:
            warn(
                f"{place}: was in use by {describe(holder)}; waiting up to {_EXPIRY:.0f} s to "
                "see whether it still is"
            )
        seen = version
        time.sleep(_POLL)


def _renew(
    place: Path,
    path: "BucketPath",
    word: dict[str, Any],
    renewed: list[str],
    ended: threading.Event,
) -> None:
    count = 0
    while not ended.wait(_RENEWAL):
        count += 1
        with contextlib.suppress(OSError):  # a bucket that does not answer: the next time
            version = path.swap(_bytes(word, count), renewed[0])
            if version is None:
                warn(f"{place}: another process has taken over its lease; stop one of them")
                return
            renewed[0] = version


def _bytes(word: dict[str, Any], count: int) -> bytes:
    return json.dumps({**word, "word": count}).encode()


def holders_word() -> dict[str, Any]:
    """Returns who this process is, as a lock names its holder."""
    now = datetime.datetime.now(datetime.UTC)
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "command": Path(sys.argv[0]).stem,
        "since": f"{now:%Y-%m-%d %H:%M:%S} UTC",
        "key": os.urandom(8).hex(),
    }


def is_dying(word: Mapping[str, Any]) -> bool:
    """Returns whether a process of this host has ended, or is ending and has freed its memory."""
    pid = word.get("pid")
    try:
        return isinstance(pid, int) and not read_bytes(f"/proc/{pid}/cmdline")
    except OSError:
        return True


def describe(word: Mapping[str, Any]) -> str:
    """Returns who a holder's word names, for messages."""
    if not word:
        return "another process"
    found = {name: shown(str(word.get(name)))[1:-1] for name in ("pid", "command", "host", "since")}
    return "process {pid} ({command}) on {host}, since {since}".format_map(found)


def warn(line: str) -> None:
    """Prints a warning."""
    print(f"warning: {line}", file=sys.stderr, flush=True)
