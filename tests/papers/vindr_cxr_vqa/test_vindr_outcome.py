"""What the page says came of a question of VinDr-CXR-VQA."""

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.evaluation.counted import STRICT
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.paper import load_benchmark
from cxrjax.papers.vindr_cxr_vqa.counts import mean_best_iou, outcome
from cxrjax.records import write_records
from tests.evaluation import made

CASES = made.cases_of(__file__)


def _record(present=True, image="i", **fields):
    boxes, labels = ([made.BOX], ["ILD"]) if present else ([], [])
    return made.record_of(image, boxes=boxes, labels=labels, **fields)


def _prediction(text, boxes=(), **fields):
    (line,) = made.predictions_of([made.line_of(_record(), text, boxes, **fields)])
    return line


@pytest.mark.parametrize(
    ("present", "text", "boxes", "right", "iou", "note"), CASES["right_or_wrong"]
)
def test_right_or_wrong_and_why(present, text, boxes, right, iou, note):
    found = outcome(_record(present), _prediction(text, boxes), None)
    assert (found.right, found.note) == (right, note)
    assert found.iou == (iou if iou is None else pytest.approx(iou, abs=1e-6))


def test_open_questions_name_what_was_missed():
    record = _record(kind="What", question="What is seen?", variables=None)
    found = outcome(record, _prediction("Cardiomegaly."), None)
    assert found.right is False and found.note == "missed: ILD; not there: Cardiomegaly"
    assert outcome(record, _prediction("ILD."), None).note == "all classes right"


def test_boxes_are_read_by_the_codec():
    text = "ILD at " + CODECS["paligemma"].encode(np.array([[0.1, 0.1, 0.5, 0.5]]), 100, 200)
    (line,) = made.predictions_of([{"question_id": "q", "text": text}])
    with pytest.raises(UserError, match="--codec"):
        outcome(_record(), line, None)
    assert outcome(_record(), line, CODECS["paligemma"]).iou > 0.95


def test_a_refusal_is_no_answer_whether_the_file_or_the_codec_tells_it():
    absent, text = _record(present=False), "I cannot answer this question."
    told = _prediction(text, parse="refusal")
    (found,) = made.predictions_of([{"question_id": "q", "text": text}])
    for line, codec in ((told, None), (found, CODECS["vindr_px"])):
        assert outcome(absent, line, codec).note == "no answer"


def test_without_a_reference_nothing_is_decided():
    assert outcome(_record(answers=[]), _prediction("ILD."), None).right is None


def test_the_share_of_right_answers_is_the_benchmarks_exact_set(tmp_path):
    records = [_record(n % 3 > 0, f"i{n}") for n in range(30)]
    texts = ["Yes.", "No.", "", "ILD, cardiomegaly.", "no ILD"] * 6
    lines = list(map(made.line_of, records, texts))
    write_records(tmp_path / "r.jsonl", records)
    made.write_lines(tmp_path / "p.jsonl", lines)
    scores = load_benchmark("vindr_cxr_vqa").score_files(
        tmp_path / "r.jsonl",
        {"p": tmp_path / "p.jsonl"},
        ScoreOptions(gt_mode="exact", bootstrap=made.NO),
    )
    predictions = made.predictions_of(lines)
    right = [outcome(r, p, None).right for r, p in zip(records, predictions, strict=True)]
    assert sum(right) / 30 == pytest.approx(scores.figures["p"][STRICT]["vqa/exact_set"].value)


def test_iou_of_two_sets_of_boxes():
    left, half = np.array([[0.0, 0.0, 0.5, 1.0]]), np.array([[0.0, 0.0, 0.25, 1.0]])
    none = np.zeros((0, 4))
    far = np.array([[0.8, 0.8, 0.9, 0.9]])
    assert mean_best_iou(none, none) is None
    assert mean_best_iou(left, none) == mean_best_iou(none, left) == 0
    assert mean_best_iou(left, left) == 1
    assert mean_best_iou(left, half) == pytest.approx(0.5)
    # .5 for each of the pair, nothing for the box that is far from all.
    assert mean_best_iou(left, np.concatenate([half, far])) == pytest.approx(1 / 3)
