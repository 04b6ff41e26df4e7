"""Told to stop: the run saves, says so with its exit code, and goes on as if never stopped."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from cxrjax import cli
from cxrjax.errors import Preempted
from cxrjax.training.preemption import Preemption
from tests.training.conftest import BatchStream, assert_same_arrays, open_store, read_metrics

_SCRIPT = Path(__file__).with_name("killed_run.py")


@pytest.fixture
def heeding(run):
    """`heeding(workdir, before=(), evaluate=None)`: a run that is evaluated at every second step.

    `before` as BatchStream has it.
    """
    run.config.training.eval_every = 2

    def train(workdir, before=(), evaluate=None):
        with Preemption() as preemption:
            told = evaluate and (lambda number, model: evaluate(number, model, preemption))
            batches = BatchStream(before=before)
            return run(batches, workdir, evaluate=told, preemption=preemption)

    return train


def _send(number):
    os.kill(os.getpid(), number)
    time.sleep(0.3)  # for the thread that listens


def _figures(step, model):
    kernel = np.asarray(model.projector.kernel[...])
    return {"vqa/f1": float(np.abs(kernel).sum()), "n": step}


def _metrics(workdir):
    return read_metrics(workdir, timed=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_saves_after_the_step_in_work_and_goes_on_bit_for_bit(heeding, number, tmp_path, capfd):
    before = signal.getsignal(number)
    heeding("whole")
    # The checkpoint of step 2 is being written when the signal comes.
    with pytest.raises(Preempted, match=f"{number.name}: saved step 3 and stopped"):
        heeding("cut", {3: lambda: _send(number)})
    assert f"{number.name}: saving as soon as the step in work is done" in capfd.readouterr().err
    assert open_store(tmp_path / "cut").latest_step() == 3
    assert signal.getsignal(number) == before
    assert "resumed from the checkpoint of step 3" in heeding("cut")
    assert _metrics(tmp_path / "cut") == _metrics(tmp_path / "whole")
    assert_same_arrays(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize("step", [4, 6])
def test_an_evaluation_is_abandoned_and_made_up_for(heeding, step, tmp_path):
    asked = []

    def evaluate(number, model, preemption):
        for answer in range(3):
            asked.append((number, answer))
            if interrupt and (number, answer) == (step, 1):
                _send(signal.SIGTERM)
            preemption.check()
        return _figures(number, model)

    interrupt = False
    heeding("whole", evaluate=evaluate)
    asked.clear()
    interrupt = True
    with pytest.raises(Preempted, match=f"SIGTERM: saved step {step}"):
        heeding("cut", evaluate=evaluate)
    assert asked[-1] == (step, 1)
    assert open_store(tmp_path / "cut").latest_step() == step
    interrupt = False
    asked.clear()
    heeding("cut", evaluate=evaluate)
    assert asked[:3] == [(step, 0), (step, 1), (step, 2)]
    assert _metrics(tmp_path / "cut") == _metrics(tmp_path / "whole")
    ours, theirs = (open_store(tmp_path / name) for name in ("cut", "whole"))
    assert ours.best_step() == theirs.best_step()
    assert ours.metrics(step) == theirs.metrics(step) != {}
    assert ours.all_steps() == theirs.all_steps()


def test_threads_end_and_before_the_first_step_nothing_is_saved():
    with pytest.raises(Preempted, match="before the first step"), Preemption():
        _send(signal.SIGTERM)
        time.sleep(1.0)
    with Preemption() as preemption:
        preemption.check()
        assert not preemption.reached(1)
    before = threading.active_count()
    with Preemption():
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_the_exit_code_means_resume_me(capsys):
    def main():
        raise Preempted("SIGTERM: saved step 3 and stopped")

    with pytest.raises(SystemExit) as caught:
        cli.run(main)
    assert caught.value.code == cli.EXIT_RESUME == os.EX_TEMPFAIL
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture
def compiling(tmp_path):
    """A process whose step is being compiled."""
    command = [sys.executable, "-u", str(_SCRIPT), str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(_SCRIPT.parents[2])}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0"  # compiling is to take a while
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, env=environment, **streams)
    _read_until(process, "compiling for")
    time.sleep(0.5)
    return process


def _read_until(process, text):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("".join(lines))


@pytest.mark.slow
def test_a_signal_during_compilation_is_told_at_once_and_heeded_after_the_step(compiling, tmp_path):
    compiling.send_signal(signal.SIGTERM)
    rest = "".join(compiling.communicate(timeout=300)[0])
    assert compiling.returncode == cli.EXIT_RESUME, rest
    # Said while XLA was at work, and nothing of it was lost.
    assert rest.index("SIGTERM: saving") < rest.index("step 1/4")
    assert "saved step 1 and stopped" in rest
    assert open_store(tmp_path / "run").latest_step() == 1


@pytest.mark.slow
def test_a_second_signal_ends_even_a_compilation_at_once(compiling):
    compiling.send_signal(signal.SIGTERM)
    _read_until(compiling, "SIGTERM: saving")
    compiling.send_signal(signal.SIGTERM)
    rest = "".join(compiling.communicate(timeout=300)[0])
    assert compiling.returncode == 128 + signal.SIGTERM, rest
    assert "step 1/4" not in rest
