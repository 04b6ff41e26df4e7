"""Bars on terminals alone; elsewhere few lines, and no carriage return."""

import os
import pty
import re
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from cxrjax import progress

ROOT = Path(__file__).parents[1]


@pytest.fixture
def log(monkeypatch, capsys):
    """What was written to stderr, which is no terminal; seconds are short."""
    monkeypatch.setattr(progress, "_FIRST", 0.1)
    monkeypatch.setattr(progress, "_LATER", 0.4)
    monkeypatch.setattr(progress._LinesBar, "_shown", -1.0)
    return lambda: capsys.readouterr().err


def work(bar, each: float = 0.01) -> None:
    for _ in bar:
        time.sleep(each)


def test_short_work_says_nothing(log):
    work(progress.progress_bar(range(3), desc="checking", unit="image", disable=False))
    assert log() == ""


def test_long_work_says_a_line_now_and_then(log):
    work(progress.progress_bar(range(100), desc="checking", unit="image", disable=False))
    said = log()
    lines = said.splitlines()
    assert "\r" not in said and 2 <= len(lines) <= 6
    assert re.fullmatch(
        r"checking: \d+ of 100 images in 00:0\d, 00:0\d left, +[\d.]+images/s", lines[0]
    )
    assert lines[-1].startswith("checking: 100 of 100 images")


def test_work_of_unknown_length_and_by_hand(log):
    with progress.progress_bar(unit="study", disable=False) as bar:
        for _ in range(40):
            time.sleep(0.01)
            bar.update()
    lines = log().splitlines()
    assert lines and all(line.startswith("working: ") and "\r" not in line for line in lines)


def test_a_wait_says_what_it_is(log):
    with progress.waiting("loading x"):
        time.sleep(0.01)
    assert log() == ""
    with progress.waiting("loading x"):
        time.sleep(0.7)
    lines = log().splitlines()
    assert lines[0].startswith("loading x ... 0 s so far") and lines[-1] == "loading x: 1 s"
    assert len(lines) == 3


def test_a_wait_ends_with_an_error(log):
    with pytest.raises(ValueError), progress.waiting("loading x"):
        raise ValueError
    assert log() == ""


def test_a_terminal_gets_a_bar():
    code = (
        "import time; from cxrjax.progress import progress_bar\n"
        "for _ in progress_bar(range(5), 'checking', disable=False): time.sleep(0.05)"
    )
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (24, 80))
    subprocess.run([sys.executable, "-c", code], stderr=writer, cwd=ROOT, check=True, timeout=60)
    os.set_blocking(reader, False)
    shown = os.read(reader, 65536).decode()
    os.close(writer)
    os.close(reader)
    assert "\r" in shown and "100%|" in shown


def test_no_module_makes_a_bar_of_its_own():
    """A log of a bar has thousands of carriage returns."""
    for file in sorted((ROOT / "cxrjax").rglob("*.py")):
        if file.name != "progress.py":
            assert "tqdm" not in file.read_text(encoding="utf-8"), f"{file}: use cxrjax.progress"
