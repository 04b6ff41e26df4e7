"""Attacks everything that reads what others wrote, with files that are wrong in every way.

    python -m bench.fuzz --seconds=600

A target is a reader with sound files of its kind; a case is one of them, made hostile by `mutate`.
It may be accepted or refused in a line. A fault is anything else: another exception, a process that
dies, more than 2 s or 500 MB, an item that is neither kept nor counted, a file outside of the
working folder. Case N of a target is the same in every run with the same seed: `--target=NAME
--case=N` runs it alone. What is found is made smaller and put into corpus/regressions.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.fuzz.worker import MEGABYTES, SECONDS, Outcome, case_of, work

REGRESSIONS = Path(__file__).parent / "corpus" / "regressions"
_LIMIT_MB = 3_000  # a worker that holds more is killed before the machine suffers
_WAIT = 10.0  # seconds on the clock that a case may wait without computing


class Worker:
    """A process that runs slices of targets; the monitor's side of it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.now = context.Array("d", [-1.0, 0.0, 0.0], lock=False)
        self.process = context.Process(target=work, args=(theirs, self.now), daemon=False)
        self.process.start()
        theirs.close()
        self.job: tuple[Any, ...] | None = None

    def begin(self, *job: Any) -> None:
        self.job = job
        self.now[0] = -1
        self.pipe.send(job)

    def look(self) -> Outcome | str | None:
        """The slice's outcome, why the process had to end, or None while all is well."""
        with contextlib.suppress(EOFError, OSError):
            if self.pipe.poll(0):
                found: Outcome = self.pipe.recv()
                if found.last:
                    self.job = None
                return found
        if not self.process.is_alive():
            return f"died: exit code {self.process.exitcode}"
        index, began, spent = self.now
        if _resident_mb(self.process.pid) > _LIMIT_MB:
            return f"memory: more than {_LIMIT_MB:,} MB"
        if index >= 0:
            if _spent(self.process.pid) - spent > SECONDS * 2:
                return f"slow: more than {SECONDS * 2} s of processor time"
            if time.monotonic() - began > _WAIT and _spent(self.process.pid) - spent < SECONDS / 2:
                return f"hangs: {_WAIT} s without computing"
        return None

    def end(self) -> None:
        if self.job is None:
            with contextlib.suppress(OSError):
                self.pipe.send(("stop",))
                self.process.join(5)
        self.process.kill()
        self.process.join()


def _spent(pid: int | None) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int | None) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20
    except OSError:
        return 0.0


def alone(name: str, seed: int, index: int, given: tuple[str, bytes] | None = None) -> Outcome:
    """One case in a fresh process; what kills it becomes a fault."""
    worker, whole = Worker(), Outcome()
    try:
        worker.begin(name, seed, index, 1, 60.0, given)
        while True:
            found = worker.look()
            if isinstance(found, Outcome):
                whole.add(found)
                if found.last:
                    return whole
            elif found is not None:
                return Outcome(faults={found.partition(":")[0]: (index, "", b"", found)})
            time.sleep(0.02)
    finally:
        worker.end()


class Attack:
    """A run over targets, by turns, for so many seconds."""

    def __init__(self, targets: list[str], seed: int, processes: int) -> None:
        from bench.fuzz.targets import TARGETS

        self.targets = TARGETS
        self.names, self.seed, self.processes = targets, seed, processes
        self.outcomes = {name: Outcome() for name in targets}
        self.next = dict.fromkeys(targets, 0)
        self.used = dict.fromkeys(targets, 0.0)
        self.suspects: list[tuple[str, int, str]] = []

    def replay(self) -> None:
        """Every seed and every file that once broke something, as it is."""
        from bench.fuzz.targets import seeds_of

        left = sorted(self.names, key=lambda name: len(seeds_of(name).all))

        def whole(free: set[str]) -> tuple[str, int, float] | None:
            name = left.pop() if left else None
            again = name and self.next[name] < len(seeds_of(name).all)
            return (
                (name, len(seeds_of(name).all) - self.next[name], 60.0) if name and again else None
            )

        self._work(whole)

    def run(self, seconds: float, slice_seconds: float) -> None:
        """Hostile cases by turns: whoever had least of its share of the time is next."""
        end = time.monotonic() + seconds

        def turn(free: set[str]) -> tuple[str, int, float] | None:
            if time.monotonic() > end or not free:
                return None
            name = min(free, key=lambda name: self.used[name] / self.targets[name].share)
            return name, 10**6, slice_seconds

        self._work(turn)

    def _work(self, choose: Callable[[set[str]], tuple[str, int, float] | None]) -> None:
        workers = [Worker() for _ in range(self.processes)]
        begun: dict[int, tuple[str, float]] = {}
        while True:
            for place, worker in enumerate(workers):
                if place in begun:
                    name, since = begun[place]
                    found = worker.look()
                    if isinstance(found, Outcome):
                        self._take(name, found)
                    elif found is not None:
                        self._bury(name, worker, found)
                        workers[place] = worker = Worker()
                    if found is None or (isinstance(found, Outcome) and not found.last):
                        continue
                    del begun[place]
                    self.used[name] += time.monotonic() - since
                job = choose({n for n in self.names if n not in {b[0] for b in begun.values()}})
                if job is not None:
                    name, count, seconds = job
                    begun[place] = (name, time.monotonic())
                    worker.begin(name, self.seed, self.next[name], count, seconds, None)
            if not begun:
                break
            time.sleep(0.02)
        for worker in workers:
            worker.end()

    def _take(self, name: str, found: Outcome) -> None:
        self.next[name] += found.cases
        for what in ("slow", "memory"):
            if what in found.faults:
                index, _, _, told = found.faults.pop(what)
                self.suspects.append((name, index, told))
        self.outcomes[name].add(found)

    def _bury(self, name: str, worker: Worker, why: str) -> None:
        """Notes the case that a process died of, and goes on behind it."""
        index = max(int(worker.now[0]), self.next[name])
        worker.end()
        self.suspects.append((name, index, why))
        self.outcomes[name].cases += index + 1 - self.next[name]
        self.next[name] = index + 1

    def confirm(self, most: int = 4) -> None:
        """Runs slow, large and deadly cases again alone: a busy machine counts for nothing.

        Args:
            most: suspects of a target and kind that are looked at.
        """
        from bench.fuzz.targets import seeds_of

        tried: collections.Counter[tuple[str, str]] = collections.Counter()
        for name, index, told in self.suspects:
            kind = told.partition(":")[0]
            tried[name, kind] += 1
            if tried[name, kind] > most:
                continue
            faults = alone(name, self.seed, index).faults
            for _ in range(2 if kind in ("slow", "hangs") else 0):
                faults = faults and alone(name, self.seed, index).faults
            if faults:
                self.outcomes[name].broken += 1
                file, data = case_of(self.targets[name], seeds_of(name), self.seed, index)
                for what, (_, _, _, again) in faults.items():
                    self.outcomes[name].faults.setdefault(
                        what, (index, file, data, f"{told}; alone: {again}")
                    )

    def table(self) -> str:
        lines = ["target                  cases  accepted   refused  slowest s   peak MB  faults"]
        total = Outcome()
        for name, one in sorted(self.outcomes.items()):
            lines.append(_row(name, one))
            total.add(one)
        return "\n".join([*lines, _row("all", total)])


def _row(name: str, one: Outcome) -> str:
    return (
        f"{name:20}{one.cases:9,}{one.accepted:10,}{one.refused:10,}{one.slowest[0]:11.2f}"
        f"{one.peak:10.0f}{one.broken:8,}"
    )


def smaller(name: str, key: str, file: str, data: bytes, seconds: float = 20.0) -> bytes:
    """The case with parts left out that it fails without as well."""
    end = time.monotonic() + seconds
    part = len(data) // 2
    worker = Worker()
    while part and time.monotonic() < end:
        at, shorter = 0, False
        while at < len(data) and time.monotonic() < end:
            tried = data[:at] + data[at + part :]
            worker.begin(name, 0, 0, 1, 60.0, (file, tried))
            broken, found = False, None
            while not isinstance(found, str) and not (found and found.last):
                found = worker.look()
                broken = broken or (isinstance(found, Outcome) and key in found.faults)
                time.sleep(0.001)
            if isinstance(found, str):
                break
            if broken:
                data, shorter = tried, True
            else:
                at += part
        part = part if shorter and part < 64 else part // 2
    worker.end()
    return data


def keep(name: str, key: str, file: str, data: bytes) -> None:
    """Puts a case among the regressions, and what was wrong into their notes."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:10]
    path = REGRESSIONS / name / digest / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    notes_file = REGRESSIONS / "notes.json"
    notes = json.loads(notes_file.read_text()) if notes_file.is_file() else {}
    notes[f"{name}/{digest}"] = key
    notes_file.write_text(json.dumps(notes, indent=1, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--slice_seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--target", action="append", help="these alone; begins of names")
    parser.add_argument("--case", type=int, help="this case alone")
    parser.add_argument("--replay", action="store_true", help="the corpus as it is")
    parser.add_argument("--keep", action="store_true", help="put faults into the corpus")
    parser.add_argument("--faults", type=Path, help="write them there")
    flags = parser.parse_args()
    from bench.fuzz.targets import TARGETS

    names = [n for n in TARGETS if not flags.target or n.startswith(tuple(flags.target))]
    if flags.case is not None:
        outcome = alone(names[0], flags.seed, flags.case)
        print(outcome)
        return bool(outcome.faults)
    with tempfile.TemporaryDirectory(prefix="cxrjax_fuzz_") as folder:
        os.environ["TMPDIR"] = folder  # of workers, killed ones too
        return _attack(names, flags)


def _attack(names: list[str], flags: argparse.Namespace) -> int:
    attack = Attack(names, flags.seed, flags.processes)
    if flags.replay:
        attack.replay()
    else:
        attack.run(flags.seconds, flags.slice_seconds or max(1.0, flags.seconds / 120))
    attack.confirm()
    print(attack.table())
    found = 0
    for name, one in sorted(attack.outcomes.items()):
        for key, (index, file, data, told) in one.faults.items():
            found += 1
            report = f"\n## {name} case {index} ({file}, {len(data)} bytes): {key}\n{told}\n"
            print(report)
            if flags.faults:
                with open(flags.faults, "a", encoding="utf-8", errors="replace") as out:
                    out.write(report)
            if flags.keep and len(data) < 200_000:
                deadly = key.partition(":")[0] in ("died", "hangs", "slow", "memory")
                keep(name, key, file, data if deadly else smaller(name, key, file, data))
    print(f"{found} faults; limits: {SECONDS:g} s, {MEGABYTES} MB above start")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
