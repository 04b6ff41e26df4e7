"""Targets that break every promise, to see that each is found. Known where PLANTED is set."""

import os
import sqlite3
import time
from pathlib import Path

from bench.fuzz.targets import target
from bench.fuzz.worker import Fault
from cxrjax.errors import UserError

PLANTED = "CXRJAX_FUZZ_PLANTED"


def _planted(number: int) -> dict[str, bytes]:
    return {"seed.txt": b"sound %d" % number}


@target(seeds=lambda: _planted(0))
def planted_sound(folder: Path, name: str, data: bytes) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "a.txt").write_bytes(data)
    if not data.startswith(b"sound"):
        raise UserError("a.txt: not sound")


@target(seeds=lambda: _planted(1))
def planted_exception(folder: Path, name: str, data: bytes) -> None:
    data.decode("ascii")


@target(seeds=lambda: _planted(2))
def planted_hang(folder: Path, name: str, data: bytes) -> None:
    while b"sound" not in data:
        pass


@target(seeds=lambda: _planted(3))
def planted_memory(folder: Path, name: str, data: bytes) -> None:
    if b"sound" not in data:
        _ = b"x" * (700 * 2**20)


@target(seeds=lambda: _planted(4))
def planted_death(folder: Path, name: str, data: bytes) -> None:
    if b"sound" not in data:
        os.abort()


@target(seeds=lambda: _planted(5))
def planted_write(folder: Path, name: str, data: bytes) -> None:
    if b"sound" not in data:
        (folder / ".." / "escaped.txt").write_bytes(b"")


@target(seeds=lambda: _planted(6))
def planted_silent_write(folder: Path, name: str, data: bytes) -> None:
    """Writes through a library in C, which no audit hook sees."""
    if b"sound" not in data:
        with sqlite3.connect(folder.parent / f"escaped{time.time_ns()}.db") as database:
            database.execute("CREATE TABLE a (b)")


@target(seeds=lambda: _planted(7))
def planted_read(folder: Path, name: str, data: bytes) -> None:
    if b"sound" not in data:
        raise UserError((folder.parent / "outside" / "secret.txt").read_text())


@target(seeds=lambda: _planted(8))
def planted_loss(folder: Path, name: str, data: bytes) -> None:
    if b"sound" not in data:
        raise Fault("silent loss: 2 given, 1 kept")
