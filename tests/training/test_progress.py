"""MFU, memory, warnings of a slow input pipeline, the step line, and the parts of a step's time."""

import json
import os
import time
from concurrent.futures import Future
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.distributed import meshes
from cxrjax.models.flops import BatchShape, step_flops, total
from cxrjax.training import goodput, progress, watchdog
from cxrjax.training.config_file import typed_config
from cxrjax.training.observers import FinishedStep, InputLimit
from cxrjax.training.progress import (
    Load,
    Progress,
    RunningStep,
    StepClock,
    StepFlops,
    StepTimes,
    load_of,
)
from tests.training.conftest import TinyModel, random_batch

TIMES = StepTimes(device=1.5, data_wait=0.4, host=0.1)


def test_operations_of_a_batch_are_those_of_the_formula(run_config, small_vlm):
    model, batch = small_vlm(), random_batch(images=4)
    known = StepFlops(model, typed_config(run_config), processes=2)
    for tokens in (0, 17, 40):
        shape = BatchShape(8, 3, 4, 12, boxes=3, answer_tokens=2 * tokens)
        parts = step_flops(
            model, typed_config(run_config).trainable, shape, remat=False, loc_loss=True
        )
        np.testing.assert_allclose(known.of(batch, tokens), total(parts).model, rtol=1e-12)


def test_the_peak_is_the_chips_or_what_the_configuration_says(run_config, monkeypatch):
    mesh = meshes.make_mesh(typed_config(run_config).mesh)
    assert progress.peak_flops(run_config.training.peak_flops, mesh) is None  # a CPU
    run_config.training.peak_flops = 2e12
    assert progress.peak_flops(run_config.training.peak_flops, mesh) == 2e12 * len(jax.devices())
    run_config.training.peak_flops = None
    tpus = np.array([SimpleNamespace(device_kind="TPU v5 lite")] * 4)
    assert (
        progress.peak_flops(run_config.training.peak_flops, SimpleNamespace(devices=tpus, size=4))
        == 4 * 197e12
    )


def test_memory_is_that_of_the_process_or_of_devices_that_tell(monkeypatch):
    figures = progress.memory_figures()
    assert set(figures) == {"host_peak_memory_gb"}
    assert 0.05 < figures["host_peak_memory_gb"] < 100
    told = ({"bytes_in_use": used, "peak_bytes_in_use": 5e9 - used} for used in (2e9, 1e9))
    devices = [SimpleNamespace(memory_stats=lambda stats=stats: stats) for stats in told]
    monkeypatch.setattr(progress.jax, "local_devices", lambda: devices)
    assert progress.memory_figures() == {"hbm_gb": 2.0, "hbm_peak_gb": 4.0}


def test_rates():
    run = Progress(total_steps=10, peak_flops=100.0)
    for _ in range(2):
        run.count(Load(images=8, questions=20, tokens=300, answer_tokens=90), TIMES, 50.0)
    rates = run.rates(4)
    assert rates == {
        "images_per_second": 4.0,
        "questions_per_second": 10.0,
        "tokens_per_second": 150.0,
        "step_seconds": 2.0,
        "device_seconds": 1.5,
        "data_wait_seconds": 0.4,
        "host_seconds": pytest.approx(0.1),
        "seconds_left": 12.0,
        "mfu": 0.25,
    }
    assert run.rates(4) == {}
    values = dict.fromkeys(("loss", "ce", "box_loss", "token_accuracy"), 0.5)
    line = run.line(4, values, rates | {"hbm_peak_gb": 12.34})
    assert "2 s a step  data wait 20%  host 5%  MFU 25.0%  HBM 12.3 GB  0:12 left" in line


def test_no_mfu_without_a_peak_or_operations(run_config):
    for peak, flops in ((None, 50.0), (100.0, None)):
        run = Progress(10, peak)
        run.count(Load(questions=1), TIMES, flops)
        assert "mfu" not in run.rates(1)
    assert StepFlops(TinyModel(), typed_config(run_config)).of(random_batch(), 10) is None


def test_loads_count_what_is_there_and_slow_pipelines_are_told_after_some_steps(run_config):
    batch = random_batch()
    batch.question_index[3] = -1
    load = load_of(batch)
    assert load.images == 7
    assert load.questions == (batch.question_index >= 0).sum()
    assert load.answer_tokens == batch.answer_mask.sum()
    assert load.tokens == batch.answer_mask.sum() + batch.prefix_mask.sum()
    limit = InputLimit(typed_config(run_config).data, print, steps=5)
    assert [limit.check(TIMES) for _ in range(4)] == [None] * 4
    assert limit.check(TIMES).startswith("the input pipeline is the limit: devices waited for data")


def test_a_slow_input_pipeline_is_told_once(run_config):
    limit = InputLimit(typed_config(run_config).data, print, steps=5)
    fast = StepTimes(device=1.0, data_wait=0.02, host=0.01)
    assert [limit.check(fast) for _ in range(10)] == [None] * 10
    told = [limit.check(TIMES) for _ in range(20)]
    (line,) = [line for line in told if line]
    # Some slow steps among fast ones are not the limit yet.
    assert told[0] is None
    assert "over the last 5 steps" in line and "data.workers (now 0" in line
    assert "data.feature_cache" in line and "\n" not in line


def _finished(at):
    future = Future()
    future.set_result(at)
    return future


@pytest.fixture
def clock_at_zero():
    clock = StepClock(now=lambda: 0.0)
    yield clock
    clock.close()


@pytest.mark.parametrize(
    ("wait", "dispatched", "end", "expected"),
    [
        ((0.0, 3.0), 4.0, 9.0, StepTimes(device=5.0, data_wait=3.0, host=1.0)),
        ((1.0, 3.0), 4.0, 9.0, StepTimes(device=5.0, data_wait=2.0, host=2.0)),
        # Waited and dispatched while the step before was computed.
        ((-5.0, -1.0), -0.5, 2.0, StepTimes(device=2.0, data_wait=0.0, host=0.0)),
        # Computed up to the middle of the wait.
        ((-5.0, 1.0), 1.25, 2.0, StepTimes(device=0.75, data_wait=1.0, host=0.25)),
    ],
)
def test_parts(clock_at_zero, wait, dispatched, end, expected):
    step = RunningStep(wait, dispatched, _finished(end))
    assert clock_at_zero.times(step) == expected


durations = st.floats(0, 10, allow_nan=False)


@given(st.lists(st.tuples(durations, durations, durations), min_size=1), st.integers(0, 3))
def test_the_parts_of_all_steps_add_up_to_the_time(steps, in_flight):
    """Against a simulated device: busy and idle time are known exactly."""
    now = end = busy = 0.0
    clock = StepClock(now=lambda: 0.0)
    running, found = [], StepTimes()
    for wait, host, device in steps:
        begun = now
        now += wait + host
        begin_device = max(now, end)
        end, busy = begin_device + device, busy + device
        running.append(RunningStep((begun, begun + wait), now, _finished(end)))
        if len(running) > in_flight:  # the loop reads the metrics of a step before
            step = running.pop(0)
            now = max(now, step.finished.result())
            found = StepTimes(*map(sum, zip(found, clock.times(step), strict=True)))
    for step in running:
        found = StepTimes(*map(sum, zip(found, clock.times(step), strict=True)))
    clock.close()
    assert min(found) >= 0
    np.testing.assert_allclose(found.total, end, atol=1e-6)
    np.testing.assert_allclose(found.device, busy, atol=1e-6)
    assert found.data_wait <= sum(wait for wait, _, _ in steps) + 1e-6


def _computing(seconds):
    """A jitted function that takes about so long. (One with a callback would not be dispatched
    ahead on a CPU.)"""
    call = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, x: jnp.tanh(x @ x), x))
    x = jnp.eye(128)
    call(x, 10).block_until_ready()
    begun = time.monotonic()
    call(x, 300).block_until_ready()
    count = max(1, round(300 * seconds / (time.monotonic() - begun)))
    return lambda: call(x, count)


def _run(step_seconds, data_seconds, steps=6, in_flight=2):
    call = _computing(step_seconds)
    clock, running, found = StepClock(), [], []
    begun = time.monotonic()
    clock.restart()
    for _ in range(steps):
        with clock.waiting_for_data():
            time.sleep(data_seconds)
        clock.dispatching()
        running.append(clock.watch(call()))
        if len(running) > in_flight:
            found.append(clock.times(running.pop(0)))
    found += [clock.times(step) for step in running]
    seconds = time.monotonic() - begun
    clock.close()
    np.testing.assert_allclose(sum(times.total for times in found), seconds, rtol=0.05)
    return StepTimes(*np.median(found, axis=0))


def test_waits_are_the_loaders_and_restart_leaves_out_what_lies_between():
    times = _run(step_seconds=0.02, data_seconds=0.1)
    assert 0.06 < times.data_wait < 0.11
    assert times.data_wait > 0.5 * times.total
    times = _run(step_seconds=0.2, data_seconds=0.05)
    assert times.data_wait < 0.02
    assert times.device > 0.9 * times.total
    clock, call = StepClock(), _computing(0.01)
    time.sleep(0.2)
    clock.restart()
    clock.dispatching()
    assert clock.times(clock.watch(call())).total < 0.15
    clock.close()


def test_goodput_adds_up_over_a_kill_and_a_stop(tmp_path, monkeypatch):
    """On a clock by hand: a process that saves nothing, one killed after step 4, a third."""
    now, lines = [1000.0], []
    monkeypatch.setattr(goodput, "_loaded", [])
    (tmp_path / "run.json").write_text('{"seed": 1}')
    heard = tmp_path / "processes" / "0.json"
    heard.parent.mkdir()

    def process(first, saved, *spent):
        watch = goodput.Goodput(tmp_path / "run.json", first, lines.append, lambda: now[0])
        now[0] += 5
        watch.on_start(saved)
        watch.on_restart_of_clock()
        for doing, seconds in spent:
            now[0] += seconds
            if doing in ("compiled", "step"):
                times = StepTimes(seconds - 1.5, 1.0, 0.25)  # a quarter is no step's
                watch.on_step(FinishedStep(1, {}, times, (), doing == "compiled"))
            else:
                now[0] -= seconds
                watch.on_phase(4, doing)
                state = watch.state() if doing == watchdog.SAVING else {}
                now[0] += seconds
                watch.on_restart_of_clock()
        return watch, state

    process(0, {}, ("compiled", 20), ("step", 10), ("evaluating", 8), ("step", 10))
    _, state = process(0, {}, ("compiled", 20), ("step", 10), (watchdog.SAVING, 4))
    heard.write_text("")
    os.utime(heard, (now[0], now[0] + 30))
    now[0] += 80
    watch, _ = process(4, state, ("step", 10), (watchdog.SAVING, 2))
    watch.finish()
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["seed"] == 1
    seconds = found["goodput"]["seconds"]
    # The first of the three was killed before a checkpoint, and nothing was heard of it.
    assert seconds == pytest.approx(
        {
            "training": 17, "data_wait": 3, "host": 0.5, "compiling": 18.75, "evaluation": 0,
            "saving": 2, "starting": 10, "lost": 34, "down": 103, "other": 0.75,
        }
    )  # fmt: skip
    assert sum(seconds.values()) == now[0] - 1000
    assert lines[-1].startswith("goodput 9% since the first start: training 17 s")
