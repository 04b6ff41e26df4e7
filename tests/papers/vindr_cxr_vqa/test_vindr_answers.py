"""Single answers: the class of a box, silence, refusals, what cannot be read, what is no box."""

import json

import pytest

from cxrjax.errors import UserError
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.vindr_cxr_vqa.figures import VINDR_CXR_VQA
from cxrjax.records import QARecord
from cxrjax.scoring.benchmark import Answers
from cxrjax.scoring.predictions import parse_prediction
from cxrjax.scoring.scores import ScoreOptions

FEW = Bootstrap(resamples=20)
HEIGHT, WIDTH = 100, 200
BOX = [20.0, 10.0, 100.0, 50.0]
FRACTIONS = [0.1, 0.1, 0.5, 0.5]
OTHER = [120.0, 60.0, 180.0, 90.0]


def _record(image="i0", number=0, asked="ILD", boxes=(), labels=None, kind="Is_there", **fields):
    """A question about one class (present where there are boxes), or, with labels, an open one."""
    there = bool(boxes) if labels is None else bool(labels)
    answer = {
        "text": f"Yes, {asked}." if there else f"There is no {asked}.",
        "labels": [asked] if labels is None else labels,
        "polarity": "pos" if there else "neg",
        "boxes_by_image": {image: [list(box) for box in boxes]} if boxes else {},
    }
    return QARecord.model_validate(
        {
            "dataset": "synthetic",
            "split": "validation",
            "image_id": image,
            "image_path": f"{image}.png",
            "image_hw": (HEIGHT, WIDTH),
            "question_id": f"{image}-{number}",
            "question": f"Is there {asked}?" if asked else "What is there?",
            "question_type": kind,
            "variables": {"finding": asked} if asked else None,
            "answers": [answer],
            "negative_kind": None if there else "absent_class",
            **fields,
        }
    )


def _said(record, text="", boxes=(), **fields):
    return {"question_id": record.question_id, "text": text, "boxes": list(boxes), **fields}


def _score_records(records, systems, options):
    references = VINDR_CXR_VQA.read(records, "r.jsonl", options.gt_mode)
    answers = {name: Answers(predictions, name) for name, predictions in systems.items()}
    return VINDR_CXR_VQA.score(references, answers, options)


def _score(records, lines, codec=None, gt_mode="exact", bootstrap=FEW):
    predictions = [parse_prediction(line, "p:1") for line in lines]
    options = ScoreOptions(gt_mode, codec, bootstrap=bootstrap)
    scores = _score_records(records, {"s": predictions}, options)
    return scores.figures["s"], scores.problems["s"]


def _values(records, lines, protocol, **how):
    return {name: f.value for name, f in _score(records, lines, **how)[0][protocol].items()}


def test_class_of_a_box():
    """Its label, else the class asked about, else the class that the answer names with it."""
    ild, open_ = _record("i0", 0, "ILD", [BOX]), _record("i0", 1, "", labels=["ILD"], kind="What")

    def f1(line):
        return _values([ild, open_], [line], "strict")["detection/f1@0.3"]

    assert f1(_said(ild, "", [FRACTIONS])) == 1
    assert f1(_said(ild, "", [FRACTIONS], labels=["interstitial lung disease"])) == 1
    assert f1(_said(ild, "", [FRACTIONS], labels=[None])) == 1
    assert f1(_said(ild, "", [FRACTIONS], labels=["Pneumothorax"])) == 0
    assert f1(_said(ild, "", [FRACTIONS], labels=["banana"])) == 0
    assert f1(_said(open_, "There is ILD.", [FRACTIONS])) == 1
    assert f1(_said(open_, "ILD without effusion.", [FRACTIONS])) == 1
    assert f1(_said(open_, "Something.", [FRACTIONS])) == 0
    assert f1(_said(open_, "ILD or effusion.", [FRACTIONS])) == 0
    _, problems = _score([ild, open_], [_said(open_, "ILD or effusion.", [FRACTIONS])])
    assert problems["unclassed_box"] == 1
    _, problems = _score([ild, open_], [_said(ild, "", [FRACTIONS], labels=["banana"])])
    assert problems["unknown_label"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "ILD at <loc_20_10_100_50> and effusion at <loc_120_60_180_90>.",
        "<loc_20_10_100_50> ILD ; <loc_120_60_180_90> pleural effusion",
        "ILD: <loc_20_10_100_50>\nEffusion: <loc_120_60_180_90>",
    ],
)
def test_class_named_next_to_a_box_in_text_alone(text):
    records = [
        _record("i0", 0, "ILD", [BOX]),
        _record("i0", 1, "Pleural effusion", [OTHER]),
        _record("i0", 2, "", labels=["ILD", "Pleural effusion"], kind="What"),
    ]
    line = {"question_id": "i0-2", "text": text}
    strict = _values(records, [line], "strict", codec="vindr_px")
    assert strict["detection/f1@0.3"] == 1
    assert strict["by_question_type/vqa/exact_set/What"] == 1


def test_an_open_question_does_not_tell_its_answer():
    """The reference's finding must not become the class of a box to an open question."""
    record = _record("i0", 0, "", labels=["ILD"], boxes=[BOX], kind="What", gt_finding="ILD")
    assert (
        _values([record], [_said(record, "Here.", [FRACTIONS])], "strict")["detection/f1@0.3"] == 0
    )
    asking = _record("i0", 0, "ILD", [BOX], variables=None, gt_finding="ILD")
    assert (
        _values([asking], [_said(asking, "Here.", [FRACTIONS])], "strict")["detection/f1@0.3"] == 1
    )


def test_who_does_not_answer_is_wrong_about_the_absent_too():
    records = [_record("i0", 0, "ILD", [BOX]), _record("i1", 0, "ILD")]
    for lines in (
        [],
        [_said(r, " ") for r in records],
        [_said(r, "I am sorry.", parse="refusal") for r in records],
    ):
        figures, problems = _score(records, lines)
        strict = {name: figure.value for name, figure in figures["strict"].items()}
        assert strict["vqa/accuracy"] == 0
        assert strict["vqa/exact_set"] == 0
        assert strict["vqa/mcc"] == -1
        assert strict["vqa/recall"] == 0
        assert problems["missing_prediction"] == 2 * (not lines)
    assert figures["strict"]["parse_failure_rate"].value == 1
    assert figures["strict"]["parse_failure_rate/refusal"].value == 1


def test_parse_failures_by_category():
    there, absent = _record("i0", 0, "ILD", [BOX]), _record("i1", 0, "ILD")
    open_ = _record("i1", 1, "", labels=["ILD"], kind="What")
    records = [there, absent, open_]

    def rates(*texts):
        lines = [
            {"question_id": r.question_id, "text": t} for r, t in zip(records, texts, strict=True)
        ]
        values = _values(records, lines, "strict", codec="vindr_px")
        name = "parse_failure_rate"
        return values[name], {k.removeprefix(name + "/"): v for k, v in values.items() if name in k}

    good = "Yes, ILD at <loc_20_10_100_50>."
    assert rates(good, "No.", "ILD.")[0] == 0
    assert rates("No, there is no ILD.", "No.", "ILD.")[0] == 0  # wrong, and quite readable
    rate, by_category = rates("Yes, ILD.", "No.", "ILD.")  # a box was due
    assert rate == by_category["no_box"] == pytest.approx(1 / 3)
    rate, by_category = rates("Yes, <loc_1_2", "Yes, <loc_1_2_3>", "ILD.")
    assert rate == pytest.approx(2 / 3)
    assert by_category["truncated"] == by_category["wrong_arity"] == pytest.approx(1 / 3)
    assert by_category["malformed"] == 0


def test_a_broken_box_is_missed_and_never_replaced():
    records = [_record("i0", 0, "ILD", [BOX, OTHER])]
    line = {"question_id": "i0-0", "text": "ILD at <loc_20_10_100_50> and <loc_120_60_180>."}
    strict = _values(records, [line], "strict", codec="vindr_px")
    assert strict["detection/precision@0.3"] == 1
    assert strict["detection/recall@0.3"] == 0.5
    assert strict["parse_failure_rate/wrong_arity"] == 1


def test_nan_boxes_are_wrong_and_counted():
    records = [_record("i0", 0, "ILD", [BOX])]
    line = json.loads('{"question_id": "i0-0", "text": "Yes.", "boxes": [[0.1, NaN, 0.5, 0.5]]}')
    figures, problems = _score(records, [line])
    assert problems["non_finite_box"] == 1
    for protocol in ("paper", "strict"):
        assert figures[protocol]["detection/precision@0.3"].value == 0
        assert figures[protocol]["localization/mean_iou"].value == 0
        assert figures[protocol]["problems/non_finite_box"].value == 1


def test_negation_is_understood():
    records = [_record("i0", 0, "Pneumothorax"), _record("i1", 0, "Pneumothorax", [BOX])]
    texts = ["There is no pneumothorax.", "There is a pneumothorax."]
    right = [_said(r, t) for r, t in zip(records, texts, strict=True)]
    wrong = [_said(r, t) for r, t in zip(records, texts[::-1], strict=True)]
    for protocol in ("paper", "strict"):
        assert _values(records, right, protocol)["vqa/f1"] == 1
        assert _values(records, wrong, protocol)["vqa/f1"] == 0


def test_predictions_for_unknown_questions_are_refused():
    records = [_record("i0", 0, "ILD", [BOX])]
    lines = [{"question_id": "elsewhere", "text": "", "boxes": []}]
    with pytest.raises(UserError, match=r"s: 1 predictions for questions .* 'elsewhere'"):
        _score(records, lines)


def test_records_of_ones_own_bring_their_classes():
    record = _record("i0", 0, "Right lung", [BOX], dataset="custom")
    strict = _values([record], [_said(record, "The right lung.", [FRACTIONS])], "strict")
    assert strict["by_class/detection/f1@0.3/Right lung"] == 1
    assert strict["vqa/f1"] == 1
