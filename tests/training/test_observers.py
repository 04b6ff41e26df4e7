"""Questions left out of batches: counted once, whatever a run is made of."""

import json

from cxrjax.input_pipeline.batch import BatchProblem, LoadedBatch
from cxrjax.records_io.quality import QualityLog
from cxrjax.training.observers import SetAsideQuestions


def _problem(index, question_id=None):
    name = question_id or f"q{index}"
    return BatchProblem(index, name, "unreadable_image", f"{index}.png: truncated")


def test_each_question_is_counted_and_told_once(tmp_path):
    told, file = [], tmp_path / "quality.json"
    questions = SetAsideQuestions(QualityLog(), file, told.append)
    questions.note(1, [_problem(5)])
    # Two files of a mixture may have the same id.
    questions.note(2, [_problem(5), _problem(3, "q5")])
    assert len(questions) == 2 and questions.state()["set_aside"] == [3, 5]
    assert told == ["set aside q5: 5.png: truncated", "set aside q5: 3.png: truncated"]
    assert json.loads(file.read_text())["total"] == 2


def test_a_resumed_run_counts_on_and_repeats_nothing_of_quality_json(tmp_path):
    file = tmp_path / "quality.json"
    first = SetAsideQuestions(QualityLog(), file, lambda _: None)
    first.note(1, [_problem(5)])
    saved = first.state()
    first.note(2, [_problem(6)])  # after the checkpoint: the run is killed
    quality, told = QualityLog(), []
    quality.extend(json.loads(file.read_text()))
    resumed = SetAsideQuestions(quality, file, told.append)
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
    questions = SetAsideQuestions(QualityLog(), file, told.append)
    questions.on_batch(1, loaded(0))
    assert "out_of_picture" not in logged(questions)
    questions.on_batch(2, loaded(2))
    questions.on_batch(3, loaded(3))
    assert logged(questions) == {"set_aside": 0, "out_of_picture": 5}
    resumed = SetAsideQuestions(QualityLog(), file, told.append)
    resumed.on_start(questions.state())
    resumed.on_batch(4, loaded(1))
    assert logged(resumed)["out_of_picture"] == 6
    assert not told and not file.exists()
