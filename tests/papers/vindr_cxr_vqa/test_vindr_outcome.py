"""What the page says came of a question of VinDr-CXR-VQA."""

import json

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.papers.benchmarks import BENCHMARKS
from cxrjax.papers.vindr_cxr_vqa.counts import mean_best_iou, outcome
from cxrjax.records import QARecord, write_records
from cxrjax.scoring.predictions import parse_prediction
from cxrjax.scoring.scores import STRICT, ScoreOptions


def _record(present=True, question_id="q", image_id="i", **fields):
    boxes = {"boxes_by_image": {image_id: [[20, 10, 100, 50]]}} if present else {}
    answer = {
        "text": "ILD." if present else "There is no ILD.",
        "labels": ["ILD"] if present else [],
        "polarity": "pos" if present else "neg",
    }
    return QARecord.model_validate(
        {
            "dataset": "synthetic",
            "split": "validation",
            "image_id": image_id,
            "image_path": "i.png",
            "image_hw": (100, 200),
            "question_id": question_id,
            "question": "Is there ILD?",
            "question_type": "Is_there",
            "variables": {"finding": "ILD"},
            "negative_kind": None if present else "absent_class",
            "answers": [answer | boxes],
            **fields,
        }
    )


def _prediction(text, boxes=(), **fields):
    return parse_prediction({"question_id": "q", "text": text, "boxes": list(boxes), **fields}, "x")


@pytest.mark.parametrize(
    ("present", "text", "boxes", "right", "iou", "note"),
    [
        (True, "Yes, ILD.", [[0.1, 0.1, 0.5, 0.5]], True, 1.0, "there, as said"),
        (True, "Yes, ILD.", [], True, 0.0, "there, as said"),
        (True, "No ILD.", [], False, 0.0, "said absent; it is there"),
        (False, "Yes, ILD.", [[0.1, 0.1, 0.5, 0.5]], False, 0.0, "said there; it is absent"),
        (False, "No.", [], True, None, "absent, as said"),
        (False, "", [], False, None, "no answer"),
        (True, "ILD and pneumothorax.", [], False, 0.0, "not there: Pneumothorax"),
    ],
)
def test_right_or_wrong_and_why(present, text, boxes, right, iou, note):
    found = outcome(_record(present), _prediction(text, boxes), None)
    assert (found.right, found.note) == (right, note)
    assert found.iou == (iou if iou is None else pytest.approx(iou, abs=1e-6))


def test_open_questions_name_what_was_missed():
    record = _record(question_type="What", question="What is seen?", variables=None)
    found = outcome(record, _prediction("Cardiomegaly."), None)
    assert found.right is False and found.note == "missed: ILD; not there: Cardiomegaly"
    assert outcome(record, _prediction("ILD."), None).note == "all classes right"


def test_boxes_are_read_by_the_codec():
    text = "ILD at " + CODECS["paligemma"].encode(np.array([[0.1, 0.1, 0.5, 0.5]]), 100, 200)
    line = parse_prediction({"question_id": "q", "text": text}, "x")
    with pytest.raises(UserError, match="--codec"):
        outcome(_record(), line, None)
    assert outcome(_record(), line, CODECS["paligemma"]).iou > 0.95


def test_a_refusal_is_no_answer_whether_the_file_or_the_codec_tells_it():
    absent, text = _record(present=False), "I cannot answer this question."
    told = _prediction(text, parse="refusal")
    found = parse_prediction({"question_id": "q", "text": text}, "x")
    for line, codec in ((told, None), (found, CODECS["vindr_px"])):
        assert outcome(absent, line, codec).note == "no answer"


def test_without_a_reference_nothing_is_decided():
    assert outcome(_record(answers=[]), _prediction("ILD."), None).right is None


def test_the_share_of_right_answers_is_the_benchmarks_exact_set(tmp_path):
    records = [_record(n % 3 > 0, f"q{n}", f"i{n}") for n in range(30)]
    texts = ["Yes.", "No.", "", "ILD, cardiomegaly.", "no ILD"]
    lines = [{"question_id": f"q{n}", "text": texts[n % 5], "boxes": []} for n in range(30)]
    write_records(tmp_path / "r.jsonl", records)
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    scores = BENCHMARKS["vindr_cxr_vqa"]().score_files(
        tmp_path / "r.jsonl", {"p": tmp_path / "p.jsonl"}, ScoreOptions(gt_mode="exact")
    )
    right = [
        outcome(r, parse_prediction(line, "x"), None).right
        for r, line in zip(records, lines, strict=True)
    ]
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
