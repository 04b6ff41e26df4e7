"""Durations of tests: kept by each run in build/test_durations.json, printed as tables.

`python -m tests.durations` prints the slowest tests and a table by folder.
"""

import argparse
import collections
import contextlib
import json
import os
import re
import resource
import time
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "build" / "test_durations.json"
_PROC = Path("/proc/self")
_BEGAN = pytest.StashKey[tuple[float, float]]()
_last_module: list[Path] = []


def _processor_seconds() -> float:
    """Processor time of this process and of the children that it has waited for, in seconds."""
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _peak_mb() -> int | None:
    try:
        status = (_PROC / "status").read_text()
    except OSError:
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) >> 10 if found else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Notes when a test starts, fixtures included; its last report carries the figures."""
    if _last_module != [item.path]:
        _last_module[:] = [item.path]
        with contextlib.suppress(OSError):  # else it is the peak since the start
            (_PROC / "clear_refs").write_text("5")
    item.stash[_BEGAN] = time.monotonic(), _processor_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        began, used = item.stash[_BEGAN]
        figures = {
            "seconds": round(_processor_seconds() - used, 3),
            "wall": round(time.monotonic() - began, 3),
            "peak_mb": _peak_mb(),
        }
        report.user_properties.append(("durations", figures))
    return report


class Recorder:
    """Collects the figures of all workers, prints failures as they happen, writes the file."""

    def __init__(self, config):
        self.config = config
        self.rows = {}
        self.began = time.monotonic()

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._print_failure(report)
        figures = dict(report.user_properties).get("durations")
        if figures is not None:
            self.rows[report.nodeid] = figures

    def _print_failure(self, report):
        out = self.config.pluginmanager.get_plugin("terminalreporter")
        if out is not None:
            out.ensure_newline()
            out.write_line(f"FAILED ({report.when}) {report.nodeid}", red=True)
            out.write_line(report.longreprtext)

    def pytest_sessionfinish(self):
        if self.rows:
            FILE.parent.mkdir(exist_ok=True)
            content = {"wall": round(time.monotonic() - self.began, 1), "tests": self.rows}
            # Another run may write at the same time.
            part = FILE.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(content, indent=0), encoding="utf-8")
            part.replace(FILE)


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # not in xdist's workers
        config.pluginmanager.register(Recorder(config), "durations")


def _table(rows: list[tuple], header: tuple[str, ...]) -> str:
    lines = [header, *rows]
    return "\n".join(
        "  ".join(f"{cell:>9}" for cell in line[:-1]) + f"  {line[-1]}" for line in lines
    )


def _by_folder(tests: dict[str, dict]) -> list[tuple]:
    """(processor seconds, number of tests, largest peak in MB, folder), the slowest first."""
    groups = collections.defaultdict(list)
    for name, figures in tests.items():
        file = Path(name.partition("::")[0])
        groups[str(file if len(file.parts) == 2 else Path(*file.parts[:2]))].append(figures)
    rows = [
        (
            round(sum(row["seconds"] for row in group), 1),
            len(group),
            max(row["peak_mb"] or 0 for row in group),
            folder,
        )
        for folder, group in groups.items()
    ]
    return sorted(rows, reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=FILE, help="what a run has kept")
    parser.add_argument("--top", type=int, default=40, help="number of tests to print")
    arguments = parser.parse_args()
    content = json.loads(arguments.file.read_text(encoding="utf-8"))
    tests = content["tests"]
    total = sum(row["seconds"] for row in tests.values())
    print(
        f"{len(tests)} tests, {total / 60:.1f} core-minutes, {content['wall'] / 60:.1f} minutes\n"
    )
    slowest = sorted(tests.items(), key=lambda item: -item[1]["seconds"])[: arguments.top]
    rows = [(row["seconds"], row["wall"], row["peak_mb"], name) for name, row in slowest]
    print(_table(rows, ("cpu s", "wall s", "peak MB", "test")), end="\n\n")
    print(_table(_by_folder(tests), ("cpu s", "tests", "peak MB", "folder")))


if __name__ == "__main__":
    main()
