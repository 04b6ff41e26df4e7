"""Single answers: the class of a box, silence, refusals, what cannot be read, what is no box."""

import pytest

from cxrjax.errors import UserError
from tests.evaluation.made import BOX, FRACTIONS, OTHER, line_of, record_of, score_lines, values_of
from tests.papers.cases import cases


def test_class_of_a_box():
    """Its label, else the class asked about, else the class that the answer names with it."""
    ild, open_ = record_of("i0", boxes=[BOX]), record_of("i0", 1, "", labels=["ILD"], kind="What")

    def f1(record, text="", problem=None, **fields):
        figures, problems = score_lines(
            [ild, open_], [line_of(record, text, [FRACTIONS], **fields)]
        )
        assert problem is None or problems[problem] == 1
        return figures["strict"]["detection/f1@0.3"].value

    assert f1(ild) == f1(ild, labels=["interstitial lung disease"]) == f1(ild, labels=[None]) == 1
    assert f1(ild, labels=["Pneumothorax"]) == 0
    assert f1(ild, problem="unknown_label", labels=["banana"]) == 0
    assert f1(open_, "There is ILD.") == f1(open_, "ILD without effusion.") == 1
    assert f1(open_, "Something.") == 0
    assert f1(open_, "ILD or effusion.", "unclassed_box") == 0


@cases("text")
def test_class_named_next_to_a_box_in_text_alone(text):
    records = [
        record_of("i0", 0, "ILD", [BOX]),
        record_of("i0", 1, "Pleural effusion", [OTHER]),
        record_of("i0", 2, "", labels=["ILD", "Pleural effusion"], kind="What"),
    ]
    strict = values_of(records, [{"question_id": "i0-2", "text": text}], codec="vindr_px")
    assert strict["detection/f1@0.3"] == 1
    assert strict["by_question_type/vqa/exact_set/What"] == 1


def test_who_does_not_answer_is_wrong_about_the_absent_too():
    records = [record_of("i0", 0, "ILD", [BOX]), record_of("i1", 0, "ILD")]
    for lines in (
        [],
        [line_of(r, " ") for r in records],
        [line_of(r, "I am sorry.", parse="refusal") for r in records],
    ):
        figures, problems = score_lines(records, lines)
        strict = {name: figure.value for name, figure in figures["strict"].items()}
        assert strict["vqa/accuracy"] == strict["vqa/exact_set"] == strict["vqa/recall"] == 0
        assert strict["vqa/mcc"] == -1
        assert problems["missing_prediction"] == 2 * (not lines)
    assert figures["strict"]["parse_failure_rate"].value == 1
    assert figures["strict"]["parse_failure_rate/refusal"].value == 1


def test_parse_failures_by_category():
    there, absent = record_of("i0", 0, "ILD", [BOX]), record_of("i1", 0, "ILD")
    open_ = record_of("i1", 1, "", labels=["ILD"], kind="What")
    records = [there, absent, open_]

    def rates(*texts):
        lines = [
            {"question_id": r.question_id, "text": t} for r, t in zip(records, texts, strict=True)
        ]
        values = values_of(records, lines, codec="vindr_px")
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


def test_broken_and_nan_boxes_are_missed_counted_and_never_replaced():
    records = [record_of("i0", 0, "ILD", [BOX, OTHER])]
    line = {"question_id": "i0-0", "text": "ILD at <loc_20_10_100_50> and <loc_120_60_180>."}
    strict = values_of(records, [line], codec="vindr_px")
    assert strict["detection/precision@0.3"] == 1
    assert strict["detection/recall@0.3"] == 0.5
    assert strict["parse_failure_rate/wrong_arity"] == 1
    records = [record_of("i0", 0, "ILD", [BOX])]
    line = line_of(records[0], "Yes.", [[0.1, float("nan"), 0.5, 0.5]])
    figures, problems = score_lines(records, [line])
    assert problems["non_finite_box"] == 1
    for protocol in ("paper", "strict"):
        assert figures[protocol]["detection/precision@0.3"].value == 0
        assert figures[protocol]["localization/mean_iou"].value == 0
        assert figures[protocol]["problems/non_finite_box"].value == 1


def test_negation_is_understood_and_open_questions_do_not_tell_their_answer():
    records = [record_of("i0", 0, "Pneumothorax"), record_of("i1", 0, "Pneumothorax", [BOX])]
    texts = ["There is no pneumothorax.", "There is a pneumothorax."]
    right = [line_of(r, t) for r, t in zip(records, texts, strict=True)]
    wrong = [line_of(r, t) for r, t in zip(records, texts[::-1], strict=True)]
    for protocol in ("paper", "strict"):
        assert values_of(records, right, protocol)["vqa/f1"] == 1
        assert values_of(records, wrong, protocol)["vqa/f1"] == 0
    # The reference's finding must not become the class of a box to an open question
    open_ = record_of("i0", 0, "", labels=["ILD"], boxes=[BOX], kind="What", gt_finding="ILD")
    asking = record_of("i0", 0, "ILD", [BOX], variables=None, gt_finding="ILD")
    for record, f1 in ((open_, 0), (asking, 1)):
        strict = values_of([record], [line_of(record, "Here.", [FRACTIONS])])
        assert strict["detection/f1@0.3"] == f1


def test_records_of_ones_own_bring_their_classes_and_unknown_questions_are_refused():
    record = record_of("i0", 0, "Right lung", [BOX], dataset="custom")
    strict = values_of([record], [line_of(record, "The right lung.", [FRACTIONS])])
    assert strict["by_class/detection/f1@0.3/Right lung"] == 1
    assert strict["vqa/f1"] == 1
    records = [record_of("i0", 0, "ILD", [BOX])]
    lines = [{"question_id": "elsewhere", "text": "", "boxes": []}]
    with pytest.raises(UserError, match=r"s: 1 predictions for questions .* 'elsewhere'"):
        score_lines(records, lines)
