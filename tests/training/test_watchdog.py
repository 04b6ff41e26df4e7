"""Processes that hang or are gone: the others leave, and say who it was."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cxrjax import cli
from cxrjax.training import watchdog
from cxrjax.training.watchdog import Watchdog

_SCRIPT = Path(__file__).with_name("watched_run.py")


@pytest.fixture
def ended(monkeypatch):
    """Exit codes of a watchdog that would have ended this process."""
    codes = []

    def leave(code):
        codes.append(code)
        raise SystemExit  # ends the watchdog's thread

    monkeypatch.setattr(watchdog.os, "_exit", leave)
    return codes


def test_no_progress_ends_the_process_and_says_at_what(tmp_path, ended, capfd):
    with Watchdog(tmp_path, 0.5, suspicion=0.1, interval=0.05) as dog:
        for _ in range(10):
            dog.on_phase(3, "reading data")
            time.sleep(0.1)
        assert not ended
        time.sleep(1.2)
    assert ended == [cli.EXIT_RESUME]
    said = capfd.readouterr().err
    assert "no progress for" in said and said.count("\n") == 1
    assert f"pid {os.getpid()}, at step 3, reading data for" in said


def test_an_evaluation_may_take_longer_and_zero_means_never(tmp_path, ended):
    with Watchdog(tmp_path, 0.2, suspicion=0.1, interval=0.05) as dog:
        dog.on_phase(3, watchdog.EVALUATING)
        time.sleep(0.6)
    with Watchdog(tmp_path, 0, suspicion=0.1, interval=0.05):
        time.sleep(0.6)
    assert not ended


@pytest.mark.parametrize(
    "word", ['{"beats": "7", "host": "a\\nb", "step": [1]}', '{"beats": null}', "[", "{}", "\x00"]
)
def test_words_that_nobody_would_write_are_told_in_one_line(tmp_path, word):
    dog = Watchdog(tmp_path, 0.5)
    (tmp_path / watchdog.DIRECTORY).mkdir()
    (tmp_path / watchdog.DIRECTORY / "0.json").write_text(word)
    assert dog._last().startswith("process 0") and "\n" not in dog._last()


@pytest.fixture
def start_two(tmp_path):
    """`start_two(*options)`: two processes of watched_run.py, which end with the test."""
    started = []

    def start(*options):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        environment = {**os.environ, "PYTHONPATH": str(_SCRIPT.parents[2]), "XLA_FLAGS": ""}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        for index in "01":
            command = [sys.executable, "-u", str(_SCRIPT), address, index, str(tmp_path), *options]
            started.append(subprocess.Popen(command, env=environment, **streams))
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _wait_until_running(process):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("running"):
            return
    raise AssertionError("".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_that_is_stopped_or_killed_is_named_by_the_other(start_two, number):
    first, second = start_two()
    _wait_until_running(first)
    second.send_signal(number)
    begun = time.monotonic()
    output, _ = first.communicate(timeout=60)
    assert first.returncode == cli.EXIT_RESUME, output
    assert f"process 1 (host {os.uname().nodename}, pid {second.pid}, at step" in output
    assert "is not heard of any more" in output
    assert time.monotonic() - begun < 40


@pytest.mark.slow
def test_a_process_that_hangs_with_its_threads_alive_is_named_with_what_it_does(start_two):
    first, second = start_two("30")
    output, _ = first.communicate(timeout=120)
    assert first.returncode == cli.EXIT_RESUME, output
    told = output + second.communicate(timeout=60)[0]
    assert second.returncode == cli.EXIT_RESUME
    assert f"pid {second.pid}, at step 30, reading data" in told


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_at_the_same_step(start_two):
    first, second = start_two("heed")
    _wait_until_running(first)
    second.send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [cli.EXIT_RESUME] * 2, outputs
    assert "another process was told to stop at step" in outputs[0]
    assert "SIGTERM at step" in outputs[1]
    steps = [re.search(r"at step (\d+);", output)[1] for output in outputs]
    assert steps[0] == steps[1]
