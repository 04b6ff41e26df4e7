"""Processes for work on images, and what they may use."""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextlib.contextmanager
def pool(processes: int) -> Iterator[Callable]:
    """A lazy map that keeps the order, over this many processes; 1 works in this one.

    Functions given to it must be importable by name.
    """
    if processes == 1:
        yield map
        return
    # As many processes as wanted are at work: further BLAS threads would only get in their way.
    # The variables are read when a process loads its libraries, so they are set before it starts,
    # and "spawn" makes it start afresh (a forked process may hold a lock of jax's threads).
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        with multiprocessing.get_context("spawn").Pool(processes) as processes_pool:
            yield processes_pool.imap
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
