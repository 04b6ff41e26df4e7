"""Runs cases in a process of its own, in a folder of its own, and notes what goes wrong."""

import contextlib
import dataclasses
import gc
import io
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.fuzz.mutate import mutated

SECONDS = 2.0  # of processor time that a case may take
MEGABYTES = 500  # above start
SECRET = "canary of another folder"
ROOT = Path(__file__).parents[2]
# What mutations name to be read, and what pyvi's own model is made of.
_BAITS = ("/etc/passwd", "/dev/", "/proc/self/mem", "/tmp/", tempfile.gettempdir())
_PICKLED = ("sklearn", "numpy", "scipy")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Fault(Exception):  # noqa: N818 - of what is attacked, not of this program
    """A promise is broken, though nothing was raised."""


@dataclasses.dataclass
class Outcome:
    """Results of a target's cases.

    Attributes:
        slowest: seconds of processor time, and the case.
        peak: megabytes above start.
        faults: fault (one a place) -> the case, file name, its bytes and the story.
    """

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    slowest: tuple[float, int] = (0.0, -1)
    peak: float = 0.0
    faults: dict[str, tuple[int, str, bytes, str]] = dataclasses.field(default_factory=dict)
    broken: int = 0
    last: bool = False  # of its slice

    def add(self, other: "Outcome") -> None:
        self.cases += other.cases
        self.accepted += other.accepted
        self.refused += other.refused
        self.broken += other.broken
        self.slowest = max(self.slowest, other.slowest)
        self.peak = max(self.peak, other.peak)
        for key, fault in other.faults.items():
            self.faults.setdefault(key, fault)


class Sandbox:
    """A folder beside which nothing may appear; opening files elsewhere is noticed.

    Attributes:
        inside: empty at the start of each case, and the working folder.
        outside: lies beside it and holds a secret.
    """

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="cxrjax_fuzz_"))
        self.inside = self.root / "deep" / "er" / "inside"
        self.outside = self.root / "deep" / "er" / "outside"
        self.inside.mkdir(parents=True)
        self.outside.mkdir()
        (self.outside / "secret.txt").write_text(SECRET)
        temporary = self.root / "tmp"
        temporary.mkdir()
        tempfile.tempdir = str(temporary)
        os.environ["TMPDIR"] = str(temporary)
        self._expected = self._listing()
        self._watching = False
        self._reads_anywhere = False
        self.seen: list[str] = []
        self._own = (str(self.inside), str(temporary), "/dev/null", "/dev/shm/")
        sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def watched(self, reads_anywhere: bool) -> Any:
        """Empties the folder, makes it the working folder, and watches.

        Raises:
            Fault: something was opened, written or changed outside of it.
        """
        with os.scandir(self.inside) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                shutil.rmtree(entry.path) if is_folder else os.unlink(entry.path)
        os.chdir(self.inside)
        self.seen.clear()
        self._reads_anywhere, self._watching = reads_anywhere, True
        try:
            yield
        finally:
            self._watching = False
        if self.seen:
            raise Fault(f"outside of its folder: {self.seen[0]}")
        if self._listing() != self._expected:
            self._expected = self._listing()
            raise Fault("a file appeared beside the working folder")

    def _listing(self) -> list[str]:
        folders = (self.root, self.root / "deep", self.root / "deep" / "er", self.outside)
        return [name for folder in folders for name in sorted(os.listdir(folder))]

    def _audit(self, event: str, words: tuple) -> None:
        if not self._watching:
            return
        if event == "open" and isinstance(words[0], str | bytes):
            path = os.path.abspath(os.fsdecode(words[0]))
            writes = bool((words[2] or 0) & _WRITES)
            bad = writes or (not self._reads_anywhere and path.startswith(_BAITS))
            if bad and not path.startswith(self._own):
                self.seen.append(f"{'writes' if writes else 'reads'} {path[:200]}")
        elif event == "os.system" or (
            event == "pickle.find_class" and not words[0].startswith(_PICKLED)
        ):
            self.seen.append(f"{event} {words!r}"[:200])
        elif event == "socket.connect" and isinstance(words[1], tuple):
            if words[1][0] not in ("127.0.0.1", "::1") or words[1][1] == 9:
                self.seen.append(f"connects to {words[1]!r}"[:200])
        elif event in ("os.remove", "os.rmdir", "os.mkdir", "os.rename", "os.symlink"):
            path = os.path.abspath(os.fsdecode(words[0]))
            if not path.startswith(self._own) and not os.path.isdir(path):
                self.seen.append(f"{event} {path[:200]}")


def case_of(target: Any, seeds: Any, seed: int, index: int) -> tuple[str, bytes]:
    """Name and bytes of a case; the first ones are the seeds as they are."""
    if index < len(seeds.all):
        return seeds.all[index]
    rng = random.Random(f"{seed}/{target.name}/{index}")
    name, data = rng.choice(seeds.broken if seeds.broken and rng.random() < 0.1 else seeds.sound)
    others = [other for _, other in seeds.sound if other is not data and len(other) < 2**16]
    return name, mutated(rng, name, data, others)


def run_case(target: Any, sandbox: Sandbox, name: str, data: bytes) -> str:
    """`accepted` or `refused`.

    Raises:
        Exception: anything that the target may not raise.
    """
    from bench.fuzz.targets import REFUSALS

    told, out = io.StringIO(), "accepted"
    quiet = contextlib.redirect_stderr(told), contextlib.redirect_stdout(told)
    with sandbox.watched(target.reads_anywhere), quiet[0], quiet[1]:
        try:
            target.run(sandbox.inside, name, data)
        except REFUSALS as refusal:
            out = "refused"
            _check_message(str(refusal))
        except SystemExit as end:
            if end.code != 2:
                raise Fault(f"leaves with code {end.code}") from None
            out = "refused"
    # Orbax's threads tell of their own ends.
    text = told.getvalue()
    if "Traceback (most recent call last)" in text and "Event loop is closed" not in text:
        raise Fault("a traceback on the terminal:\n" + told.getvalue()[-1_500:])
    return out


def _check_message(message: str) -> None:
    if not message.strip():
        raise Fault("a refusal without a word")
    if SECRET in message:
        raise Fault(f"a message quotes another file: {message[:300]!r}")


def place_of(error: BaseException) -> str:
    """Returns the origin of an error: its type, and the last frame of the package."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/cxrjax/" in f.filename and "site-packages" not in f.filename]
    last = (ours or frames)[-1:]
    where = "".join(f"{Path(frame.filename).name}:{frame.name}" for frame in last)
    told = f" {str(error).partition(':')[0][:40]}" if isinstance(error, Fault) else ""
    return f"{type(error).__name__} at {where}{told}"


def story(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    return "".join(lines)[-1_800:]


def work(pipe: Connection, now: Any) -> None:
    """Serves jobs ((target name, seed, first case, how many, seconds)) until the pipe ends.

    Args:
        now: shared numbers for the monitor: the case under way (-1: none), and when it began, in
            seconds on the clock and of this process and its children.
    """
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(os.devnull, "w") as nowhere:  # what libraries in C say
        os.dup2(nowhere.fileno(), 2)
    sandbox = Sandbox()
    from bench.fuzz.targets import TARGETS, seeds_of

    warm: set[str] = set()
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            job = pipe.recv()
            now[0] = -1
            if job[0] == "stop":
                break
            name = job[0]
            target, seeds = TARGETS[name], seeds_of(name)
            if name not in warm:
                for each, data in seeds.sound[:3]:
                    with contextlib.suppress(BaseException):
                        run_case(target, sandbox, each, data)
                warm.add(name)
            for outcome in _slice(target, seeds, sandbox, now, job[1:]):
                pipe.send(outcome)
    shutil.rmtree(sandbox.root, ignore_errors=True)


def _slice(
    target: Any, seeds: Any, sandbox: Sandbox, now: Any, job: tuple[Any, ...]
) -> Iterator[Outcome]:
    """Outcomes of a slice, every now and then: what came before a deadly case is not lost."""
    seed, first, count, seconds, given = job
    gc.collect()
    outcome = Outcome()
    start = _reset_peak()
    told = time.monotonic()
    end = told + seconds
    for index in range(first, first + count):
        name, data = given or case_of(target, seeds, seed, index)
        _reset_peak()  # making a case may take more than reading it
        before = now[2] = spent()
        now[1] = time.monotonic()
        now[0] = index
        try:
            if run_case(target, sandbox, name, data) == "accepted":
                outcome.accepted += 1
            else:
                outcome.refused += 1
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            outcome.broken += 1
            outcome.faults.setdefault(place_of(error), (index, name, data, story(error)))
        now[0] = -1
        outcome.cases += 1
        took, peak = spent() - before, _peak() - start
        outcome.slowest = max(outcome.slowest, (took, index))
        outcome.peak = max(outcome.peak, peak)
        for what, found, most in (("slow", took, SECONDS), ("memory", peak, MEGABYTES)):
            if found > most:
                text = f"{what}: {found:.1f}, at most {most}"
                outcome.faults.setdefault(what, (index, name, data, text))
        if peak > MEGABYTES / 2:
            gc.collect()
            _reset_peak()
        if time.monotonic() > end:
            break
        if time.monotonic() > told + 0.3:
            yield outcome
            outcome, told = Outcome(), time.monotonic()
    outcome.last = True
    yield outcome


def spent() -> float:
    """Processor seconds of this process and its finished children."""
    return sum(os.times()[:4])


def _reset_peak() -> float:
    """Forgets the peak of memory; megabytes that are held now."""
    Path("/proc/self/clear_refs").write_text("5")
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def _peak() -> float:
    status = Path("/proc/self/status").read_text()
    at = status.index("VmHWM:")
    return int(status[at + 6 : status.index("kB", at)]) / 1024
