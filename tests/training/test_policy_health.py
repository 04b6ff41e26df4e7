"""Warnings of reinforcement learning: each once, with what to do, and none of a healthy run."""

import math

import pytest

from cxrjax.training.observers import FinishedStep, PolicyHealth, StepTimes

HEALTHY = {
    "rl/dead_groups": 0.4,
    "rl/truncated": 0.0,
    "rl/kl": 0.05,
    "rl/coordinate_entropy": 2.0,
    "rl/spurious_boxes": 0.3,
}


def _told(*parts, saved=None, steps=4):
    """Lines after so many steps of each of the values."""
    lines = []
    health = PolicyHealth(lines.append, steps=steps)
    health.on_start(saved or {})
    for number, values in enumerate(v for v in parts for _ in range(2 * steps)):
        health.on_step(FinishedStep(number + 1, HEALTHY | values, StepTimes()))
    return lines, health


def test_a_healthy_run_is_told_nothing():
    # A step in which nobody wrote a box has no entropy of coordinates.
    lines, _ = _told({}, {"rl/coordinate_entropy": math.nan}, {})
    assert lines == []


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"rl/dead_groups": 0.95}, "% of groups are worth the same throughout"),
        ({"rl/truncated": 0.5}, "% of answers do not end in their slots"),
        ({"rl/kl": 2.5}, " nats a token away from the start: raise rl.kl_weight"),
        ({"rl/coordinate_entropy": 0.01}, " nats of entropy in coordinates"),
        ({"rl/spurious_boxes": 0.6}, " spurious boxes an answer, 0.30 at first"),
    ],
)
def test_each_sickness_is_told_once(values, told):
    lines, _ = _told({}, values)
    (line,) = lines
    assert told in line and line.startswith("step ") and "warning" in line


def test_the_first_boxes_are_remembered_over_a_resume():
    saved = _told({})[1].state()
    assert saved == {"spurious_at_first": pytest.approx(0.3)}
    lines, _ = _told({"rl/spurious_boxes": 0.6}, saved=saved)
    assert "0.30 at first" in lines[0]
