"""Processes for work on images, what they may use, and work that is taken up again."""

import concurrent.futures
import contextlib
import ctypes
import functools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.files import read_json_object, replace_text

_PR_SET_PDEATHSIG = 1  # Linux: a signal for a process whose parent has ended
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextlib.contextmanager
def pool(processes: int) -> Iterator[Callable]:
    """A map that keeps the order, over this many processes; 1 works in this one.

    Functions given to it must be importable by name.

    Raises:
        UserError: a process was killed, as happens where memory runs out.
    """
    if processes == 1:
        yield map
        return
    # "spawn" starts processes afresh: a forked one may hold a lock of jax's threads.
    executor = concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), _start, (os.getpid(),)
    )
    with _one_thread_each():
        try:
            yield executor.map
        except BrokenProcessPool:
            raise UserError(
                f"a worker process was killed; is there memory for --processes={processes}?"
            ) from None
        finally:
            executor.shutdown(cancel_futures=True)


def _start(parent: int) -> None:
    # Ctrl-C reaches every process; the one that started the others tells them to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Who is killed tells nothing: the kernel ends the others with it.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """One BLAS thread in processes that start meanwhile: they are as many as there are cores.

    The variables are read when a process loads its libraries, so they must be set before.
    """
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def resumable(
    work: Callable[[Any], list[dict[str, Any]]],
    chunks: Mapping[str, Any],
    files: Callable[[dict[str, Any]], Iterable[str]],
    out: Path,
    fingerprint: str,
    processes: int,
) -> Iterator[list[dict[str, Any]]]:
    """Yields what `work` makes of each chunk, in order, made or taken up again from OUT/parts.

    Args:
        work: makes files in `out` of a chunk, and returns what to keep of each as JSON has it.
        chunks: by name.
        files: of what was kept, paths of its files relative to `out`.
        fingerprint: of all that decides what is made; what was made under another is made again.
    """
    once = functools.partial(_once, work, files, out, fingerprint)
    with pool(processes) as apply:
        yield from apply(once, chunks.items())


def _once(
    work: Callable[[Any], list[dict[str, Any]]],
    files: Callable[[dict[str, Any]], Iterable[str]],
    out: Path,
    fingerprint: str,
    chunk: tuple[str, Any],
) -> list[dict[str, Any]]:
    part = out / "parts" / f"{chunk[0]}.json"
    if part.exists():
        done = read_json_object(part)
        there = all((out / name).is_file() for one in done["made"] for name in files(one))
        if done["fingerprint"] == fingerprint and there:
            return done["made"]
    made = work(chunk[1])
    # A part is there only when all of its files are.
    content = {"fingerprint": fingerprint, "made": made}
    replace_text(part, json.dumps(content, ensure_ascii=False))
    return made
