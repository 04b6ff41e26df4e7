"""A step's time falls into device, data wait and host, whatever is in flight."""

import time
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.training.progress import RunningStep, StepClock, StepTimes


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


def test_a_slow_loader_is_a_wait_for_data():
    times = _run(step_seconds=0.02, data_seconds=0.1)
    assert 0.06 < times.data_wait < 0.11
    assert times.data_wait > 0.5 * times.total


def test_data_that_come_during_a_slow_step_are_not_waited_for():
    times = _run(step_seconds=0.2, data_seconds=0.05)
    assert times.data_wait < 0.02
    assert times.device > 0.9 * times.total


def test_what_happens_between_steps_is_left_out_by_restart():
    clock, call = StepClock(), _computing(0.01)
    time.sleep(0.2)
    clock.restart()
    clock.dispatching()
    assert clock.times(clock.watch(call())).total < 0.15
    clock.close()
