"""Parsers that are not ours at work on foreign bytes: in a child process, with limits.

A decoder in C that is handed a made-up file may take all memory, all time, or the whole process
with it. Here it is the child that ends, and the file that is refused. Children are fresh
interpreters (threads of JAX forbid to fork) that are kept for the next job, one for each caller at
a time; they end with their parent, since their socket ends.

The child is no sandbox: it has the rights of its user, but writes no files. What it answers is
JSON and bytes of bounded size, and never unpickled.
"""

import atexit
import contextlib
import importlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cxrjax.errors import ForeignError, UserError
from cxrjax.untrusted.foreign_files import MIB
from cxrjax.untrusted.json_text import parse_object

# Takes the foreign bytes and arguments by name; returns what JSON can say of them, and bytes.
Job = Callable[..., tuple[Mapping[str, Any], bytes | bytearray | memoryview]]

_SIZES = struct.Struct("!QQ")  # bytes of JSON, bytes after it
_MOST_JSON = MIB
_LONGEST_WORDS = 300
_START_SECONDS = 120.0  # until a job is imported, on a busy machine
_NO_CHILD = "the process that decodes files of others cannot be started"
# Wall time that a job may take for each second of processor time that it is allowed.
_WALL = 10


def run_in_child(
    job: Job,
    content: bytes | bytearray | memoryview,
    arguments: Mapping[str, Any] | None = None,
    *,
    seconds: float,
    memory: int,
    most: int,
) -> tuple[dict[str, Any], bytearray]:
    """Runs a function on untrusted bytes in a child process. May be called from any thread.

    Args:
        job: of a module's top level. What it raises makes the bytes unusable.
        arguments: that JSON can carry.
        seconds: of processor time. Ten times as many may pass.
        memory: bytes beyond what the child takes after its imports; the content is part of it.
        most: bytes that may be answered.

    Raises:
        ForeignError: the job refuses the bytes, breaks a limit or crashes. The next job gets
            another child.
        UserError: no child can be started.
    """
    module, name = job.__module__, job.__qualname__
    limits = {"seconds": seconds, "memory": memory}
    request = {"module": module, "name": name, "arguments": dict(arguments or {}), **limits}
    with _pool.places:
        child = _pool.ready_for(json.dumps(request).encode(), len(content))
        try:
            answer, extra = child.ask(content, seconds, most)
        except TimeoutError:
            _pool.end(child)
            raise ForeignError(f"it took longer than {_WALL * seconds:g} s") from None
        except (EOFError, ConnectionError):
            raise ForeignError(_words(_pool.end(child), seconds)) from None
        except BaseException:
            _pool.end(child)
            raise
        if answer.get("memory"):
            _pool.end(child)  # it may hold what it could not give back
        else:
            _pool.idle.append(child)
    if answer.get("memory"):
        raise ForeignError(f"it took more than {memory // MIB:,} MiB of memory")
    if "error" in answer:
        raise ForeignError(_plain(answer["error"]))
    return answer["found"], extra


def _words(code: int, seconds: float) -> str:
    """Describes a child's exit status."""
    if code == -signal.SIGPROF:
        return f"it took longer than {seconds:g} s"
    if code < 0:
        return f"the decoder crashed ({signal.Signals(-code).name})"
    return "the decoder ended without an answer"


def _plain(words: object) -> str:
    """Words of a child in one line that is safe to print."""
    line = " ".join(str(words).split())[:_LONGEST_WORDS]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


class _Child:
    """An interpreter that waits for jobs."""

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder),
                    "OPENBLAS_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                },
            )

    def prepare(self, request: bytes, size: int) -> None:
        """Announces a job and the number of its bytes, and waits until the child is ready for them.

        Raises:
            TimeoutError, EOFError, ConnectionError: it never is.
        """
        deadline = time.monotonic() + _START_SECONDS
        self._send(_SIZES.pack(len(request), size) + request, deadline)
        _receive(self.link, 1, deadline)

    def ask(
        self, content: bytes | bytearray | memoryview, seconds: float, most: int
    ) -> tuple[dict[str, Any], bytearray]:
        """The answer to the content, of a job that it is ready for.

        Raises:
            TimeoutError, EOFError, ConnectionError: as it says.
            ForeignError: the answer is malformed.
        """
        deadline = time.monotonic() + _WALL * seconds
        self._send(content, deadline)
        of_json, of_bytes = _SIZES.unpack(_receive(self.link, _SIZES.size, deadline))
        if of_json > _MOST_JSON or of_bytes > most:
            raise ForeignError(f"it became {of_json + of_bytes:,} bytes, at most {most:,} fit")
        answer = parse_object(bytes(_receive(self.link, of_json, deadline)))
        if not (answer.get("memory") or "error" in answer or type(answer.get("found")) is dict):
            raise ForeignError("the child that parses it answered something else")
        return answer, _receive(self.link, of_bytes, deadline)

    def _send(self, content: bytes | bytearray | memoryview, deadline: float) -> None:
        self.link.settimeout(max(deadline - time.monotonic(), 1e-3))
        self.link.sendall(content, socket.MSG_NOSIGNAL)

    def end(self) -> int:
        """Ends it, whatever it is at; the exit status is its own where it has ended already."""
        self.link.settimeout(0)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if not self.link.recv(1):  # it is about to have one
                self.process.wait(10)
        self.link.close()
        self.process.kill()
        return self.process.wait()


def _receive(link: socket.socket, size: int, deadline: float | None = None) -> bytearray:
    """Receives exactly `size` bytes.

    Raises:
        EOFError: the other side is gone.
        TimeoutError: the deadline, by `time.monotonic`, has passed.
    """
    content = bytearray(size)
    rest = memoryview(content)
    while rest:
        if deadline is not None:
            link.settimeout(max(deadline - time.monotonic(), 1e-3))
        count = link.recv_into(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return content


class _Pool:
    """The children of this process.

    Attributes:
        places: one for each that may be at work at a time.
        idle: those that wait.
        all: those that have not ended.
    """

    def __init__(self) -> None:
        self.places = threading.BoundedSemaphore(os.cpu_count() or 1)
        self.idle: list[_Child] = []
        self.all: set[_Child] = set()

    def ready_for(self, request: bytes, size: int) -> _Child:
        """A child that waits for the content of a job; a new one where none is idle.

        Raises:
            UserError: no process can be started.
        """
        while True:
            try:
                child, is_new = self.idle.pop(), False
            except IndexError:
                child, is_new = self._start(), True
            try:
                child.prepare(request, size)
                return child
            except (EOFError, ConnectionError, TimeoutError):
                code = self.end(child)  # the system may have ended an idle one
                if is_new:
                    raise UserError(f"{_NO_CHILD} (it ended with {code})") from None
            except BaseException:
                self.end(child)
                raise

    def _start(self) -> _Child:
        try:
            child = _Child()
        except OSError as error:
            raise UserError(f"{_NO_CHILD} ({error.strerror})") from None
        self.all.add(child)
        return child

    def end(self, child: _Child) -> int:
        """Ends one for good; returns its exit status."""
        self.all.discard(child)
        return child.end()


_pool = _Pool()


def _end_children() -> None:
    for child in list(_pool.all):
        _pool.end(child)


def _forget_children() -> None:
    """After a fork: they are the other process's, and so may be the locks."""
    global _pool
    for child in _pool.all:
        child.link.close()
        child.process.returncode = 0  # not ours to wait for
    _pool = _Pool()


def _serve() -> None:
    """The child: does jobs until its parent is gone."""
    # A terminal's and a scheduler's signals go to all processes; the parent says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    link = socket.socket(fileno=os.dup(0))
    ready: set[str] = set()
    own_memory = 0
    while True:
        try:
            of_json, of_bytes = _SIZES.unpack(_receive(link, _SIZES.size))
        except (EOFError, ConnectionError):
            return
        request = json.loads(bytes(_receive(link, of_json)))
        job = getattr(importlib.import_module(request["module"]), request["name"])
        if request["module"] not in ready:
            ready.add(request["module"])
            own_memory = _data_bytes()
        link.sendall(b"r")
        _set_soft(resource.RLIMIT_DATA, own_memory + request["memory"])
        _set_soft(resource.RLIMIT_FSIZE, 0)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        answer, extra = _answer(link, job, of_bytes, request["arguments"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        _set_soft(resource.RLIMIT_DATA, resource.RLIM_INFINITY)
        _set_soft(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
        said = json.dumps(answer).encode()
        link.sendall(_SIZES.pack(len(said), len(extra)) + said)
        link.sendall(extra)


def _answer(
    link: socket.socket, job: Job, size: int, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], memoryview]:
    """Runs a job; returns the reply to the parent and the bytes that follow it."""
    nothing = memoryview(b"")
    try:
        found, extra = job(bytes(_receive(link, size)), **arguments)
        return {"found": dict(found)}, memoryview(extra).cast("B")
    except MemoryError:
        return {"memory": True}, nothing
    except Exception as error:  # each parser has exceptions of its own
        words = str(error) or type(error).__name__
        return {"error": words.encode(errors="replace").decode()}, nothing


def _data_bytes() -> int:
    """Memory of this process as RLIMIT_DATA counts it."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


def _set_soft(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    if hard != resource.RLIM_INFINITY:
        value = hard if value == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, hard))


if __name__ == "__main__":
    _serve()
else:
    atexit.register(_end_children)
    os.register_at_fork(after_in_child=_forget_children)
