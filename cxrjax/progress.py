"""Progress of long work: a bar on a terminal, elsewhere a line now and then.

A log, a pipe or a notebook gets no carriage returns: nothing of what takes less than five seconds,
then a line after five and one each half a minute, and the last one.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, TypeVar

import tqdm

_FIRST = 5.0  # seconds after which a wait says what it is
_LATER = 30.0  # seconds between lines
_LINE = "{desc}: {n_fmt} of {total_fmt} {unit} in {elapsed}, {remaining} left, {rate_noinv_fmt}"
# The first one's time has loading and compiling in it: no rate to go by.
_BEGUN = "{desc}: {n_fmt} of {total_fmt} {unit} in {elapsed}"
_ENDLESS = "{desc}: {n_fmt} {unit} in {elapsed}, {rate_noinv_fmt}"
Item = TypeVar("Item")


class _Lines:
    """A stream on which each state of a bar is a line."""

    encoding = "utf-8"

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        line = text.strip("\r\n ")
        if line:
            self._stream.write(line + "\n")

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False


class _LinesBar(tqdm.tqdm):  # type: ignore[type-arg]
    """A bar that writes few lines."""

    bar_format: str
    _shown = -_LATER
    _closing = False

    def display(self, *arguments: Any, **named: Any) -> Any:
        """The state, unless it was written a moment ago."""
        now = time.monotonic()
        if now - self._shown >= _LATER or self._closing:
            self._shown = now
            told = self.bar_format
            if told == _LINE and self.n <= 1 < self.total:
                self.bar_format = _BEGUN
            shown = super().display(*arguments, **named)
            self.bar_format = told
            return shown
        return True

    def close(self) -> None:
        """The last state, where there was time for one."""
        self._closing = True
        super().close()


def progress_bar(
    iterable: Iterable[Item] | None = None,
    desc: str | None = None,
    total: float | None = None,
    *,
    unit: str = "it",
    **settings: Any,
) -> Any:
    """Returns `tqdm.tqdm` of the same arguments on a terminal, and else a bar that prints lines."""
    if sys.stderr.isatty():
        return tqdm.tqdm(iterable, desc, total, unit=unit, **settings)
    if total is None and iterable is not None and hasattr(iterable, "__len__"):
        total = len(iterable)  # type: ignore[arg-type]
    return _LinesBar(
        iterable,
        desc or "working",
        total,
        unit=unit.strip() if total == 1 else _plural(unit.strip()),
        file=_Lines(sys.stderr),
        bar_format=_ENDLESS if total is None else _LINE,
        mininterval=_FIRST,
        maxinterval=_LATER,
        miniters=1,
        delay=_FIRST,
        **settings,
    )


def _plural(unit: str) -> str:
    if unit == "it":
        return unit
    stem, ending = (unit[:-1], "ies") if unit.endswith("y") else (unit, "s")
    return stem + ("es" if stem.endswith(("s", "ch")) else ending)


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Reports a wait after five seconds, then every half minute, and when it ended.

    Args:
        what: such as "compiling the step".
    """
    ended = threading.Event()
    began = time.monotonic()
    said = False

    def say() -> None:
        nonlocal said
        pause = _FIRST
        while not ended.wait(pause):
            said, pause = True, _LATER
            seconds = time.monotonic() - began
            print(f"{what} ... {seconds:.0f} s so far", file=sys.stderr, flush=True)

    teller = threading.Thread(target=say, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        if said:
            seconds = time.monotonic() - began
            print(f"{what}: {seconds:.0f} s", file=sys.stderr, flush=True)
