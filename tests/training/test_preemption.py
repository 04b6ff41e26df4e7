"""Told to stop: the run saves, says so with its exit code, and goes on as if never stopped."""

import json
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
from cxrjax.training import loop
from cxrjax.training.config_file import typed_config
from cxrjax.training.preemption import Preemption
from cxrjax.training.store import CheckpointStore

_SCRIPT = Path(__file__).with_name("killed_run.py")
_CLOCK = ("_per_second", "_seconds", "_gb", "seconds_left", "mfu")


@pytest.fixture
def run(run_config, tiny_model, batch_stream, tmp_path):
    """`run(workdir, signal_at=None, evaluate=None)`: six steps, evaluated at every second one."""
    run_config.training.log_every = 1
    run_config.training.eval_every = 2
    run_config.optimizer.learning_rate = 0.01

    def train(workdir, signal_at=None, evaluate=None):
        lines = []
        stream = batch_stream()
        if signal_at is not None:
            stream = _Signalled(stream, *signal_at)
        with Preemption() as preemption:
            loop.train(
                typed_config(run_config),
                tmp_path / workdir,
                loop.Start(tiny_model(), {"kind": "random", "seed": 0, "sha256": "abc"}),
                loop.TrainingData(stream, 6),
                evaluate=None if evaluate is None else lambda n, m: evaluate(n, m, preemption),
                log_line=lines.append,
                preemption=preemption,
            )
        return lines

    return train


class _Signalled:
    """A stream of batches while one of which is made this process gets a signal."""

    def __init__(self, stream, step, number):
        self._stream, self._step, self._number = stream, step, number

    def __next__(self):
        batch = next(self._stream)
        if self._stream.step == self._step:
            _send(self._number)
        return batch

    def __getattr__(self, name):
        return getattr(self._stream, name)


def _send(number):
    os.kill(os.getpid(), number)
    time.sleep(0.3)  # for the thread that listens


def _figures(step, model):
    kernel = np.asarray(model.projector.kernel[...])
    return {"vqa/f1": float(np.abs(kernel).sum()), "n": step}


def _metrics(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.endswith(_CLOCK)} for line in lines]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_saves_after_the_step_in_work_and_goes_on_bit_for_bit(
    run, number, saved_arrays, tmp_path, capfd
):
    before = signal.getsignal(number)
    run("whole")
    # The checkpoint of step 2 is being written when the signal comes.
    with pytest.raises(Preempted, match=f"{number.name}: saved step 3 and stopped"):
        run("cut", signal_at=(3, number))
    assert f"{number.name}: saving as soon as the step in work is done" in capfd.readouterr().err
    assert CheckpointStore(tmp_path / "cut", "vqa/f1", writing=False).latest_step() == 3
    assert signal.getsignal(number) == before
    assert "resumed from the checkpoint of step 3" in run("cut")
    assert _metrics(tmp_path / "cut") == _metrics(tmp_path / "whole")
    ours, theirs = saved_arrays(tmp_path / "cut", 6), saved_arrays(tmp_path / "whole", 6)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("step", [4, 6])
def test_an_evaluation_is_abandoned_and_made_up_for(run, step, tmp_path):
    asked = []

    def evaluate(number, model, preemption):
        for answer in range(3):
            asked.append((number, answer))
            if interrupt and (number, answer) == (step, 1):
                _send(signal.SIGTERM)
            preemption.check()
        return _figures(number, model)

    interrupt = False
    run("whole", evaluate=evaluate)
    asked.clear()
    interrupt = True
    with pytest.raises(Preempted, match=f"SIGTERM: saved step {step}"):
        run("cut", evaluate=evaluate)
    assert asked[-1] == (step, 1)
    assert CheckpointStore(tmp_path / "cut", "vqa/f1", writing=False).latest_step() == step
    interrupt = False
    asked.clear()
    run("cut", evaluate=evaluate)
    assert asked[:3] == [(step, 0), (step, 1), (step, 2)]
    assert _metrics(tmp_path / "cut") == _metrics(tmp_path / "whole")
    ours, theirs = (
        CheckpointStore(tmp_path / name, "vqa/f1", writing=False) for name in ("cut", "whole")
    )
    assert ours.best_step() == theirs.best_step()
    assert ours.metrics(step) == theirs.metrics(step) != {}
    assert ours.all_steps() == theirs.all_steps()


def test_before_the_first_step_there_is_nothing_to_save():
    with pytest.raises(Preempted, match="before the first step"), Preemption():
        _send(signal.SIGTERM)
        time.sleep(1.0)
    with Preemption() as preemption:
        preemption.check()
        assert not preemption.reached(1)


def test_the_listening_thread_ends_with_it():
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


def _start(workdir, *options):
    command = [sys.executable, "-u", str(_SCRIPT), str(workdir), "4", "0.0", *options]
    environment = {**os.environ, "PYTHONPATH": str(_SCRIPT.parents[2])}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0"  # compiling is to take a while
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _read_until(process, text):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("".join(lines))


@pytest.mark.slow
def test_a_signal_during_compilation_is_told_at_once_and_heeded_after_the_step(tmp_path):
    process = _start(tmp_path / "run", "--slow_to_compile")
    _read_until(process, "compiling for")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    rest = "".join(process.communicate(timeout=300)[0])
    assert process.returncode == cli.EXIT_RESUME, rest
    # Said while XLA was at work, and nothing of it was lost.
    assert rest.index("SIGTERM: saving") < rest.index("step 1/4")
    assert "saved step 1 and stopped" in rest
    assert CheckpointStore(tmp_path / "run", "vqa/f1", writing=False).latest_step() == 1


@pytest.mark.slow
def test_a_second_signal_ends_even_a_compilation_at_once(tmp_path):
    process = _start(tmp_path / "run", "--slow_to_compile")
    _read_until(process, "compiling for")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    _read_until(process, "SIGTERM: saving")
    process.send_signal(signal.SIGTERM)
    rest = "".join(process.communicate(timeout=300)[0])
    assert process.returncode == 128 + signal.SIGTERM, rest
    assert "step 1/4" not in rest
