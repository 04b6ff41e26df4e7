"""What observers tell: questions left out, warnings of rewards, and of swapped corners."""

import dataclasses
import json
import math

import numpy as np
import pytest

from cxrjax.input_pipeline.batch import BatchProblem, LoadedBatch
from cxrjax.records_io.quality import QualityLog
from cxrjax.training import observers
from cxrjax.training.box_loss import Coordinates
from cxrjax.training.coordinate_report import named_figures, summarize, swapped_share
from cxrjax.training.rl.health import PolicyHealth
from tests.papers.cases import cases, data


def _problem(index, question_id=None):
    name = question_id or f"q{index}"
    return BatchProblem(index, name, "unreadable_image", f"{index}.png: truncated")


def test_each_question_is_counted_and_told_once(tmp_path):
    told, file = [], tmp_path / "quality.json"
    questions = observers.SetAsideQuestions(QualityLog(), file, told.append)
    questions.note(1, [_problem(5)])
    # Two files of a mixture may have the same id.
    questions.note(2, [_problem(5), _problem(3, "q5")])
    assert len(questions) == 2 and questions.state()["set_aside"] == [3, 5]
    assert told == ["rejected q5: 5.png: truncated", "rejected q5: 3.png: truncated"]
    assert json.loads(file.read_text())["total"] == 2


def test_a_resumed_run_counts_on_and_repeats_nothing_of_quality_json(tmp_path):
    file = tmp_path / "quality.json"
    first = observers.SetAsideQuestions(QualityLog(), file, lambda _: None)
    first.note(1, [_problem(5)])
    saved = first.state()
    first.note(2, [_problem(6)])  # after the checkpoint: the run is killed
    quality, told = QualityLog(), []
    quality.extend(json.loads(file.read_text()))
    resumed = observers.SetAsideQuestions(quality, file, told.append)
    resumed.on_start(saved)
    assert len(resumed) == 1
    resumed.note(2, [_problem(6), _problem(5)])
    assert told == [] and len(resumed) == 2
    resumed.note(3, [_problem(7)])
    assert len(resumed) == 3 and len(told) == 1
    content = json.loads(file.read_text())
    assert [entry["item"] for entry in content["set_aside"]] == ["q5", "q6", "q7"]


def test_questions_moved_out_of_the_picture_are_counted_over_a_resume(tmp_path):
    def loaded(out):
        return LoadedBatch(None, [], [], unvaried={"out_of_picture": out} if out else {})

    def logged(questions):
        figures = {}
        questions.on_log(None, figures)
        return figures

    told, file = [], tmp_path / "quality.json"
    questions = observers.SetAsideQuestions(QualityLog(), file, told.append)
    questions.on_batch(1, loaded(0))
    assert "out_of_picture" not in logged(questions)
    questions.on_batch(2, loaded(2))
    questions.on_batch(3, loaded(3))
    assert logged(questions) == {"set_aside": 0, "out_of_picture": 5}
    resumed = observers.SetAsideQuestions(QualityLog(), file, told.append)
    resumed.on_start(questions.state())
    resumed.on_batch(4, loaded(1))
    assert logged(resumed)["out_of_picture"] == 6
    assert not told and not file.exists()


HEALTHY = data(__file__)["healthy"]


def _told(*parts, saved=None, steps=4):
    """Lines after so many steps of each of the values."""
    lines = []
    health = PolicyHealth(lines.append, steps=steps)
    health.on_start(saved or {})
    for number, values in enumerate(v for v in parts for _ in range(2 * steps)):
        health.on_step(observers.FinishedStep(number + 1, HEALTHY | values, observers.StepTimes()))
    return lines, health


def test_runs_are_warned_once_and_healthy_ones_never():
    # A step in which nobody wrote a box has no entropy of coordinates.
    lines, _ = _told({}, {"rl/coordinate_entropy": math.nan}, {})
    assert lines == []
    saved = _told({})[1].state()
    assert saved == {"spurious_at_first": pytest.approx(0.3)}
    lines, _ = _told({"rl/spurious_boxes": 0.6}, saved=saved)
    assert "0.30 at first" in lines[0]
    early = dict.fromkeys(range(1, 100), 0.5)
    assert _Run(early).warnings() == []
    assert _Run(early | {500: 0.09}).warnings() == []  # 0.9 % over ten steps
    (found,) = _Run(early | dict.fromkeys(range(500, 1000), 0.2)).warnings()
    assert found.startswith("step 500: warning: 2.0% of expected boxes have swapped corners")
    observers.SwappedCorners(10, pytest.fail, steps=1).on_step(
        observers.FinishedStep(5, {}, observers.StepTimes())
    )


@cases("values, told")
def test_each_sickness_is_told_once(values, told):
    lines, _ = _told({}, values)
    (line,) = lines
    assert told in line and line.startswith("step ") and "warning" in line


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


def test_mass_and_nothing_are_told_as_what_they_are():
    targets = np.array([[0.2, 0.2, 0.4, 0.4], [0.2, 0.2, 0.4, 0.4]])
    likeliest = targets + np.array([[0, 0, 0, 0], [0.3, 0, 0, 0]])
    found = _coordinates(targets, likeliest)
    found.near[:, 0] = [0.9, 0.1]
    told = summarize(found, targets)["all"]
    np.testing.assert_allclose(told["mass_within_0.05"][0], 0.5, atol=1e-6)
    np.testing.assert_allclose(told["mass_within_0.05_where_right"][0], 0.9, atol=1e-6)
    np.testing.assert_allclose(told["argmax_error"][0], 0.15, atol=1e-6)
    told = summarize(_coordinates(np.zeros((0, 4))), np.zeros((0, 4)))
    assert told["all"]["n"] == 0 and told["all"]["swapped_x"] is None
    assert told["left_half"]["mass_within_0.05"] == [None] * 4
    assert swapped_share(named_figures(told)) is None


@dataclasses.dataclass
class _Run:
    shares: dict[int, float]

    def warnings(self, total=1000):
        told = []
        watch = observers.SwappedCorners(total, told.append, steps=10)
        for step in range(1, total + 1):
            values = {"coordinates/swapped": self.shares.get(step, 0.0)}
            watch.on_step(observers.FinishedStep(step, values, observers.StepTimes()))
        return told
