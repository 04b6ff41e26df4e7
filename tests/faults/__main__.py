"""Plants each fault of this folder in a copy of the project and sees its test fail.

    python -m tests.faults [--jobs=2] [--only=TEXT] [--check]

A fault is a file NAME.patch: `Breaks: ...` and `Test: FILE::FUNCTION`, then a diff, as a careless
programmer might have written it. It is caught where pytest says that the test failed; a test that
is gone, or cannot be collected, catches nothing. Ends with 1 unless all are caught.
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
_LIMIT = 600  # seconds that a test may take
_TOLD = {0: "SURVIVED", 1: "caught", 4: "no such test", 5: "no such test"}


class Fault(NamedTuple):
    """A fault: its file, what it breaks, and the test that must fail, as pytest names it."""

    patch: Path
    breaks: str
    test: str


def read_fault(patch: Path) -> Fault:
    """Reads the head of a patch.

    Raises:
        ValueError: a line of it is missing, or the test is in no file.
    """
    head = patch.read_text(encoding="utf-8").partition("\n--- a/")[0]
    said = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    if not said.keys() >= {"Breaks", "Test"}:
        raise ValueError(f"{patch.name}: expected `Breaks: ...` and `Test: ...` before the diff")
    file, _, function = said["Test"].partition("::")
    there = ROOT / file
    if not there.is_file() or f"def {function}(" not in there.read_text(encoding="utf-8"):
        raise ValueError(f"{patch.name}: no test {said['Test']}")
    return Fault(patch, said["Breaks"], said["Test"])


def apply(fault: Fault, root: Path, *flags: str) -> str | None:
    """Changes the files under `root`; returns why it could not."""
    command = ["git", "apply", *flags, str(fault.patch)]
    # In a folder of another repository git would skip all files without a word.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(root.parent)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else None


def _pytest(root: Path, *arguments: str, limit: float | None = None) -> tuple[int, str]:
    """Exit code and output of tests of a copy; what they start sees the copy as well."""
    compiled = ROOT / ".pytest_cache" / "compiled"
    environment = {"JAX_COMPILATION_CACHE_DIR": str(compiled)} | os.environ
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=root,
        env=environment | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
    )
    return done.returncode, done.stdout


def _copy_project(to: Path) -> Path:
    """A copy of the files that git tracks, or would, as they are now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def _outcome(fault: Fault, copies: "queue.Queue[Path]") -> str:
    """What becomes of a fault in one of the copies, which afterwards is as it was."""
    root = copies.get()
    if (why := apply(fault, root)) is not None:
        copies.put(root)
        return f"does not apply: {why}"
    try:
        code, _ = _pytest(root, "-x", fault.test, limit=_LIMIT)
        return _TOLD.get(code, f"pytest ended with {code}")
    except subprocess.TimeoutExpired:
        return f"no end within {_LIMIT} s"
    finally:
        apply(fault, root, "--reverse")
        copies.put(root)


def _without_faults(tests: set[str], root: Path, *flags: str) -> list[str]:
    """What pytest says of tests that do not pass as they are."""
    code, told = _pytest(root, *flags, *sorted(tests)) if tests else (0, "")
    return [f"without any fault:\n{told}"] if code else []


def main() -> int:
    """Prints what becomes of each fault as soon as it is known; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time")
    parser.add_argument("--only", default="", help="faults with this in their names")
    parser.add_argument("--check", action="store_true", help="only whether faults and tests fit")
    asked = parser.parse_args()
    began = time.monotonic()
    faults = [
        read_fault(path) for path in sorted(FOLDER.glob("*.patch")) if asked.only in path.stem
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.jobs) as pool:
        roots = [_copy_project(Path(folder) / str(job)) for job in range(asked.jobs)]
        if asked.check:
            bad = _without_faults({fault.test for fault in faults}, roots[0], "--collect-only")
            told = [(fault.patch.stem, apply(fault, roots[0], "--check")) for fault in faults]
            bad += [f"{name} does not apply: {why}" for name, why in told if why is not None]
            print(*bad, f"{len(faults)} faults looked at", sep="\n")
            return bool(bad or not faults)
        shares = [{fault.test for fault in faults[job :: asked.jobs]} for job in range(asked.jobs)]
        failing = [told for share in pool.map(_without_faults, shares, roots) for told in share]
        print(*failing, sep="\n", end="", flush=True)
        missed = []
        copies: queue.Queue[Path] = queue.Queue()
        for root in roots:
            copies.put(root)
        running = {pool.submit(_outcome, fault, copies): fault for fault in faults}
        for future in as_completed(running):
            fault, outcome = running[future], future.result()
            print(f"{outcome:9} {fault.patch.stem}", flush=True)
            if outcome != "caught":
                missed.append(f"{outcome} {fault.patch.stem}\n  {fault.breaks}\n  {fault.test}")
    told = f"{len(faults) - len(missed)} of {len(faults)} caught"
    print(*missed, f"{told} in {time.monotonic() - began:.0f} s", sep="\n")
    return bool(failing or missed or not faults)


if __name__ == "__main__":
    sys.exit(main())
