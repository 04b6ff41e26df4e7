"""A run killed at any moment and started again ends with the parameters of one left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cxrjax.training.store import DAMAGED, find_damage

_SCRIPT = Path(__file__).with_name("killed_run.py")
_STEPS, _KILLS = 300, 30


def _start(workdir, pause=0.0):
    command = [sys.executable, str(_SCRIPT), str(workdir), str(_STEPS), str(pause)]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _finish(workdir):
    process = _start(workdir)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def _losses(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["train/loss"], line["train/grad_norm"]) for line in lines]


def _last_checkpoint(workdir):
    """The last one that is complete; 0 if there is none."""
    names = [path.name for path in (workdir / "checkpoints").glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def _wait(process, condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.002)


def _in_a_save(workdir):
    """Whether a checkpoint is being written right now."""
    return any("tmp" in path.name for path in (workdir / "checkpoints").glob("*"))


def _kill(process):
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output
    return output


@pytest.mark.heavy
def test_killed_at_thirty_moments_ends_with_the_same_parameters(tmp_path, saved_arrays):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    _finish(whole)
    rng = random.Random(time.time_ns())
    inside = 0
    for attempt in range(_KILLS):
        before = _last_checkpoint(killed)
        # Slow enough that the kill comes in the middle; the pause is no part of the arithmetic.
        process = _start(killed, pause=0.1)
        if attempt % 3 == 0:  # from the very start on: imports, the restore, compilation
            time.sleep(rng.uniform(0.0, 6.0))
        else:
            _wait(process, lambda before=before: _last_checkpoint(killed) > before)
        if attempt % 3 == 1:  # inside a save
            _wait(process, lambda: _in_a_save(killed))
            time.sleep(rng.uniform(0.0, 0.05))
        elif attempt % 3 == 2:
            time.sleep(rng.uniform(0.0, 0.6))
        output = _kill(process)
        inside += _in_a_save(killed)
        if "resumed" in output:
            assert f"resumed from the checkpoint of step {before:,}" in output
        assert _last_checkpoint(killed) >= before
        for path in (killed / "checkpoints").glob("*"):
            assert not path.name.isdigit() or find_damage(path) is None
    print(f"{inside} of {_KILLS} kills were inside a save")
    assert inside >= 3
    assert _last_checkpoint(killed) < _STEPS
    assert "resumed from the checkpoint" in _finish(killed)
    assert not (killed / DAMAGED).exists()
    assert _losses(killed) == _losses(whole)
    assert [step for step, *_ in _losses(killed)] == list(range(1, _STEPS + 1))
    for item in ("parameters", "optimizer"):
        ours, theirs = saved_arrays(killed, _STEPS, item), saved_arrays(whole, _STEPS, item)
        assert ours.keys() == theirs.keys() and len(ours) >= 3
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def _demo(workdir, data):
    """The demo's own training, model and loader included: 96 images are 12 steps."""
    settings = {
        "data.train": f"{data}/records/train.jsonl",
        "data.validation": f"{data}/records/validation.jsonl",
        "training.log_every": 1,
        "training.checkpoint_every": 3,
    }
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "cxrjax.train", "--config=configs/vindr_lora.py:demo"]
    command += [f"--workdir={workdir}"]
    command += [f"--config.{key}={value}" for key, value in settings.items()]
    return subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_the_demos_training_is_the_same_bit_for_bit_whether_killed_or_not(tmp_path, saved_arrays):
    data = tmp_path / "data"
    build = ["-m", "cxrjax.build", "--dataset=phantom", "--images=96", "--validation_images=2"]
    build += ["--long_side=144", "--seed=3", f"--out={data}"]
    subprocess.run([sys.executable, *build], check=True, capture_output=True)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    output, _ = (process := _demo(whole, data)).communicate(timeout=600)
    assert process.returncode == 0, output

    process = _demo(killed, data)
    deadline = time.monotonic() + 600
    while _last_checkpoint(killed) < 3 and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    output, _ = (process := _demo(killed, data)).communicate(timeout=600)
    assert process.returncode == 0, output
    assert "resumed from the checkpoint of step" in output
    assert len(_losses(whole)) == 12
    assert _losses(killed) == _losses(whole)
    for item in ("parameters", "optimizer"):
        ours, theirs = saved_arrays(killed, 12, item), saved_arrays(whole, 12, item)
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
