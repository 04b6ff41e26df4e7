"""Orderly stops on a signal: SIGTERM of a scheduler or of a machine that goes away, or Ctrl-C.

Python runs signal handlers between its own instructions, and a compilation or a step on the
accelerator is a single one that may take minutes. So a thread of its own hears the signals too: it
says at once what will happen, and a second signal ends the process even in the midst of a
compilation.
"""

import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from cxrjax.errors import Preempted

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNAL_EXIT_BASE = 128  # the shell's code of a process that a signal ended is this and its number


class Preemption:
    """Hears signals from `with` on; the main thread must enter it, after `jax.distributed`.

    The first signal raises `Preempted` where that is harmless, at the start of a run in one
    process. Within `deferred()`, and of several processes always, it is only noted, and the run
    asks `check` before its first step and in evaluations, and `reached` after each step: of several
    processes all are told so at the same point, whichever got the signal. The second signal ends
    the process at once, as a signal does without a handler.
    """

    def __init__(self) -> None:
        self._first: signal.Signals | None = None
        # Where one process left alone, the others would fail in their next collective operation.
        self._deferred = self._several = jax.distributed.is_initialized()
        self._restore: list[Callable[[], Any]] = []
        self._tell_jax: Callable[[], Any] | None = None

    def __enter__(self) -> "Preemption":
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        previous_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._restore.append(lambda: signal.set_wakeup_fd(previous_fd))
        if self._several:
            self._tell_jax = _take_jax_handler()
        for number in SIGNALS:
            previous = signal.signal(number, self._on_signal) or signal.SIG_DFL
            self._restore.append(functools.partial(signal.signal, number, previous))
        thread = threading.Thread(target=self._listen, args=(reader,), daemon=True)
        thread.start()
        self._restore += [lambda: os.close(writer), thread.join]
        return self

    def __exit__(self, *_: object) -> None:
        for restore in self._restore:
            restore()
        self._restore = []

    @property
    def requested(self) -> bool:
        """Returns whether this process was requested to stop."""
        return self._first is not None

    @property
    def reason(self) -> str:
        """The signal's name; of another process's signal, that there was one."""
        return self._first.name if self._first is not None else "another process was told to stop"

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Defers signals: they are recorded and raise nothing."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = self._several

    def reached(self, step: int) -> bool:
        """Returns whether to save and exit after this step; equal in all processes."""
        if jax.process_count() > 1:
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self.requested

    def check(self) -> None:
        """To be called by all processes at the same point, where no step is in work.

        Raises:
            Preempted: in all of them, if one was told to stop.
        """
        stop = self.requested
        if jax.process_count() > 1:
            stop = bool(multihost_utils.process_allgather(np.bool_(stop)).any())
        if stop:
            raise Preempted(self.reason)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if not self._deferred:
            raise Preempted(f"{signal.Signals(number).name} before the first step")

    def _listen(self, reader: int) -> None:
        with os.fdopen(reader, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] not in SIGNALS:
                    continue
                received = signal.Signals(number[0])
                if self._first is not None:
                    print(f"{received.name} again: leaving at once", file=sys.stderr, flush=True)
                    os._exit(_SIGNAL_EXIT_BASE + received)
                self._first = received
                print(
                    f"{received.name}: saving as soon as the step in work is done; a second signal "
                    "leaves at once",
                    file=sys.stderr,
                    flush=True,
                )
                if self._tell_jax is not None:
                    self._tell_jax()


def _take_jax_handler() -> Callable[[], Any] | None:
    """Takes out the SIGTERM handler of JAX's preemption service, and returns it.

    It is a C handler, which Python cannot hand back, and Python's own takes its place.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    handler = libc.signal(signal.SIGTERM, None)
    if not handler or handler == int(signal.SIG_IGN):
        return None
    call = ctypes.CFUNCTYPE(None, ctypes.c_int)(handler)
    return lambda: call(signal.SIGTERM)
