"""Ends a run that no longer moves, and says which process keeps it.

A host that hangs or is gone leaves all others waiting in a collective operation: in C++, where no
exception reaches them, for as long as the machines are paid for. So a thread in each process writes
what its process is doing into `workdir/processes/`, and reads what the others write once its own
has waited for long.
"""

import json
import os
import platform
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import jax
from jax.experimental import multihost_utils

from cxrjax import cli
from cxrjax.errors import ForeignError, UserError, first_line
from cxrjax.training.observers import Observer
from cxrjax.training.workdir import storage_errors
from cxrjax.untrusted.foreign_files import read_text
from cxrjax.untrusted.json_text import parse_object
from cxrjax.untrusted.names import shown

DIRECTORY = "processes"
EVALUATING, SAVING = "evaluating", "saving a checkpoint"
# JAX's own service ends all processes 100 s after it last heard of one, naming no host.
_SUSPICION, _SILENCE = 30.0, 45.0
_INTERVAL = 5.0
_LONGEST_WORD = 10_000
# Process -> its last word, and when that was first read.
_Heard = dict[int, tuple[str, float]]


class Watchdog(Observer):
    """Watches from `with` on, which all processes enter.

    A process that is not heard of for `silence` seconds, and a run without progress for `timeout`
    seconds, end this process with the code that means 'resume me' and a line that names the process
    at fault: what another one writes is compared with itself, so that clocks need not agree.

    Args:
        workdir: shared by all processes.
        timeout: seconds; 0: for ever. An evaluation, which makes no steps, may take longer.
        suspicion: seconds that this process must have waited before it looks at the others.
        silence: seconds without a word of another process while this one waits.
        interval: seconds between two words.
    """

    def __init__(
        self,
        workdir: Path,
        timeout: float,
        *,
        suspicion: float = _SUSPICION,
        silence: float = _SILENCE,
        interval: float = _INTERVAL,
    ) -> None:
        self._directory = workdir / DIRECTORY
        self._timeout = timeout
        self._suspicion = suspicion
        self._silence = silence
        self._interval = interval
        self._stop = threading.Event()
        self._words = self._beats = 0
        self.on_phase(0, "starting")

    def __enter__(self) -> "Watchdog":
        with storage_errors(str(self._directory)):
            self._directory.mkdir(parents=True, exist_ok=True)
        self._write()
        if jax.process_count() > 1:  # words of an earlier run are overwritten from here on
            multihost_utils.sync_global_devices("watchdogs")
        self.on_phase(0, "starting")
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def on_phase(self, step: int, doing: str) -> None:
        self._now = (step, doing, time.monotonic())
        self._beats += 1

    def blame(self, error: BaseException) -> None:
        """After an error: does not return if it came of another process's death.

        A collective operation raises whatever its library does, a ValueError with Gloo.
        """
        if jax.process_count() == 1 or isinstance(error, UserError):
            return
        heard: _Heard = {}
        deadline = time.monotonic() + 6 * self._interval
        while time.monotonic() < deadline:
            silent = self._silent(heard, 4 * self._interval)
            if silent:
                self._end(f"{silent} is not heard of any more ({first_line(error)[:200]})")
            time.sleep(self._interval / 2)

    def _watch(self) -> None:
        tick = time.monotonic()
        heard: _Heard = {}
        while not self._stop.wait(self._interval):
            now = time.monotonic()
            if now - tick > 4 * self._interval:  # this very process was stopped for a while
                self._now = (*self._now[:2], now)
                heard.clear()
            tick = now
            self._write()
            _, doing, since = self._now
            waited = time.monotonic() - since
            if waited < self._suspicion:
                heard.clear()
                continue
            silent = self._silent(heard, self._silence)
            if silent:
                self._end(f"{silent} is not heard of any more")
            if self._timeout and waited > self._timeout and doing != EVALUATING:
                self._end(f"no progress for {waited:,.0f} s: {self._last()}")

    def _write(self) -> None:
        step, doing, since = self._now
        self._words += 1
        word = {
            "process": jax.process_index(),
            "host": platform.node(),
            "pid": os.getpid(),
            "step": step,
            "doing": doing,
            "seconds": round(time.monotonic() - since, 1),
            "beats": self._beats,
            "word": self._words,
        }
        path = self._directory / f"{jax.process_index()}.json"
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(word) + "\n", encoding="utf-8")
            temporary.replace(path)
        except OSError:
            pass  # a full disk is told by what must be written; the others may suspect this process

    def _read(self, process: int) -> str:
        try:
            return read_text(self._directory / f"{process}.json", _LONGEST_WORD)
        except (OSError, ForeignError):
            return ""

    def _silent(self, heard: _Heard, seconds: float) -> str:
        """Processes whose word has not changed for so long; empty if there are none.

        Args:
            heard: their words up to now; brought up to date.
        """
        now = time.monotonic()
        silent = []
        for process in range(jax.process_count()):
            if process == jax.process_index():
                continue
            word = self._read(process)
            known, since = heard.get(process, (None, now))
            if word != known:
                heard[process] = (word, now)
            elif now - since >= seconds:
                silent.append(_describe(process, word))
        return "; ".join(silent)

    def _last(self) -> str:
        words = {process: self._read(process) for process in range(jax.process_count())}
        # The same sequence in all of them.
        found = {process: _parse(word).get("beats") for process, word in words.items()}
        beats = {process: n if isinstance(n, int) else 0 for process, n in found.items()}
        behind = [process for process, count in beats.items() if count == min(beats.values())]
        return "; ".join(_describe(process, words[process]) for process in behind[:8])

    def _end(self, problem: str) -> NoReturn:
        print(
            f"error: {problem}; leaving, and the same command goes on from the last checkpoint "
            f"(exit code {cli.EXIT_RESUME})",
            file=sys.stderr,
            flush=True,
        )
        # The others come to the same end by themselves, a word or two later.
        cli.let_others_leave(4 * self._interval)
        # The main thread is out of reach, and JAX's farewell would wait for the others.
        os._exit(cli.EXIT_RESUME)


def _parse(word: str) -> dict[str, Any]:
    try:
        return parse_object(word)
    except ForeignError:
        return {}


def _describe(process: int, word: str) -> str:
    found = _parse(word)
    if not found:
        return f"process {process}"
    names = ("host", "pid", "step", "doing", "seconds")
    host, pid, step, doing, seconds = (shown(str(found.get(name)))[1:-1] for name in names)
    return f"process {process} (host {host}, pid {pid}, at step {step}, {doing} for {seconds} s)"
