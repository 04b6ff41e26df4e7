"""Processes for work on images, and what they may use."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool

from cxrjax.errors import UserError

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
        processes, multiprocessing.get_context("spawn"), _ignore_interrupts
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


def _ignore_interrupts() -> None:
    # Ctrl-C reaches every process; the one that started the others tells them to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
