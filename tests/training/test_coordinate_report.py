"""What is told of coordinates, and when a run warns of swapped corners."""

import dataclasses

import numpy as np
import pytest

from cxrjax.training.box_loss import Coordinates
from cxrjax.training.coordinate_report import named_figures, summarize, swapped_share
from cxrjax.training.observers import FinishedStep, StepTimes, SwappedCorners


def _coordinates(expected, likeliest=None, near=1.0):
    expected = np.asarray(expected, np.float32)
    likeliest = expected if likeliest is None else np.asarray(likeliest, np.float32)
    full = np.full_like(expected, near)
    return Coordinates(expected, 0 * full, full, 0.1 * full, likeliest, expected)


def test_swapped_corners_are_told_for_each_half_and_have_no_overlap():
    targets = np.array([[0.16, 0.2, 0.33, 0.6], [0.1, 0.2, 0.3, 0.6], [0.56, 0.2, 0.8, 0.6]])
    expected = targets.copy()
    expected[0, [0, 2]] = expected[0, [2, 0]]
    told = summarize(_coordinates(expected), targets)
    assert told["all"]["n"] == 3 and told["left_half"]["n"] == 2 and told["right_half"]["n"] == 1
    assert told["left_half"]["swapped_x"] == 0.5 and told["left_half"]["swapped_y"] == 0
    assert told["right_half"]["swapped_x"] == 0
    assert told["left_half"]["argmax_swapped_x"] == 0.5
    np.testing.assert_allclose(told["left_half"]["expected_iou"], 0.5, atol=1e-6)
    np.testing.assert_allclose(told["all"]["expected_error"][0], 0.17 / 3, atol=1e-6)
    figures = named_figures(told)
    assert figures["coordinates/left_half/swapped_x"] == 0.5
    np.testing.assert_allclose(figures["coordinates/all/spread/y_max"], 0.1, atol=1e-6)
    assert swapped_share(figures) == pytest.approx(1 / 3)


def test_mass_is_told_apart_where_the_likeliest_value_is_right():
    targets = np.array([[0.2, 0.2, 0.4, 0.4], [0.2, 0.2, 0.4, 0.4]])
    likeliest = targets + np.array([[0, 0, 0, 0], [0.3, 0, 0, 0]])
    found = _coordinates(targets, likeliest)
    found.near[:, 0] = [0.9, 0.1]
    told = summarize(found, targets)["all"]
    np.testing.assert_allclose(told["mass_within_0.05"][0], 0.5, atol=1e-6)
    np.testing.assert_allclose(told["mass_within_0.05_where_right"][0], 0.9, atol=1e-6)
    np.testing.assert_allclose(told["argmax_error"][0], 0.15, atol=1e-6)


def test_without_boxes_nothing_is_told_as_a_number():
    told = summarize(_coordinates(np.zeros((0, 4))), np.zeros((0, 4)))
    assert told["all"]["n"] == 0 and told["all"]["swapped_x"] is None
    assert told["left_half"]["mass_within_0.05"] == [None] * 4
    assert swapped_share(named_figures(told)) is None


@dataclasses.dataclass
class _Run:
    shares: dict[int, float]

    def warnings(self, total=1000):
        told = []
        watch = SwappedCorners(total, told.append, steps=10)
        for step in range(1, total + 1):
            values = {"coordinates/swapped": self.shares.get(step, 0.0)}
            watch.on_step(FinishedStep(step, values, StepTimes()))
        return told


def test_a_run_warns_once_of_corners_that_stay_swapped():
    early = dict.fromkeys(range(1, 100), 0.5)
    assert _Run(early).warnings() == []
    assert _Run(early | {500: 0.09}).warnings() == []  # 0.9 % over ten steps
    (found,) = _Run(early | dict.fromkeys(range(500, 1000), 0.2)).warnings()
    assert found.startswith("step 500: warning: 2.0% of expected boxes have swapped corners")
    SwappedCorners(10, pytest.fail, steps=1).on_step(FinishedStep(5, {}, StepTimes()))
