"""Answers to CXR-QBA's questions: what is read, what is counted, and the figures by hand."""

import dataclasses
import json

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, matthews_corrcoef

from cxrjax import score
from cxrjax.codecs import get_codec
from cxrjax.errors import UserError
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.cxr_qba.answers import CLAIMS, outcome
from cxrjax.papers.cxr_qba.figures import CXR_QBA
from cxrjax.papers.cxr_qba.truth import read_question
from cxrjax.records import Answer, QARecord, strip_answers, write_records
from cxrjax.scoring.benchmark import Answers, read_references
from cxrjax.scoring.predictions import Prediction
from cxrjax.scoring.scores import PAPER, STRICT, ScoreOptions

OPTIONS = ScoreOptions(gt_mode="exact", bootstrap=Bootstrap(resamples=0))
BOX = [20.0, 10.0, 60.0, 40.0]  # of 100 x 200: 0.1, 0.1, 0.3, 0.4


def part(text, labels=(), polarity="pos", tag="tag", **fields):
    return Answer(text=text, labels=list(labels), polarity=polarity, name_tag=tag, **fields)


def record(name, answers, kind="B01_describe_all", strategy="abnormal", **fields):
    return QARecord(
        dataset="cxr_qba",
        split="test",
        patient_id=fields.pop("patient_id", "p1"),
        image_id=fields.pop("image_id", "i"),
        image_path="i.jpg",
        image_hw=(100, 200),
        question_id=name,
        question="?",
        question_type=kind,
        question_strategy=strategy,
        answers=answers,
        **fields,
    )


def effusion(name="q", side="left", **fields):
    """ "There is a small left pleural effusion." and no pneumothorax, with a box."""
    return record(
        name,
        [
            part(
                f"There is a small {side} pleural effusion.",
                ["pleural effusion"],
                regions=[f"{side} pleural space"],
                certainty="certain",
                modifiers=[("severity", "small")],
                boxes_by_image={"i": [BOX]},
            ),
            part("There is no pneumothorax.", ["pneumothorax"], "neg"),
        ],
        **fields,
    )


def asked(name, yes, finding="pleural effusion", kind="D02_has_finding", **fields):
    """Is there an effusion? The template's answer with what it follows from."""
    below = part(
        f"There is {'' if yes else 'no '}{finding}.",
        [finding],
        "pos" if yes else "neg",
        answer_type="details",
        level=1,
    )
    text = f"Yes, there is {finding}." if yes else f"No, there is no {finding}."
    top = part(text, [finding], "pos" if yes else "neg", tag=None, sub_answers=[below])
    return record(name, [top], kind, "finding", variables={"finding": finding}, **fields)


def predict(name, text, boxes=()):
    return Prediction(name, text, np.array(boxes, float).reshape(-1, 4), None, None)


def score_records(records, predictions, options=OPTIONS):
    references = CXR_QBA.read(records, "test", options.gt_mode)
    return CXR_QBA.score(references, {"s": Answers(predictions, "s")}, options)


def figures(records, *predictions):
    scores = score_records(records, predictions)
    return {name: figure.value for name, figure in scores.figures["s"][STRICT].items()}, scores


def categories(one, text):
    values, _ = figures([one], predict("q", text))
    return {name for name in CLAIMS if values[f"errors/{name}"]}


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("There is a small left pleural effusion.", "right"),
        ("Small effusion on the left.", "right"),
        ("There is a small right pleural effusion.", "wrong_side"),
        ("There is a large left pleural effusion.", "wrong_severity"),
        ("There may be a small left pleural effusion.", "wrong_certainty"),
        ("There is a pneumothorax.", "denied_finding"),
        ("There is consolidation.", "unsupported"),
        ("There is a pleural effusion in the left lung apex.", "wrong_region"),
        ("There is a pleural effusion.", "right"),
    ],
)
def test_each_kind_of_claim(text, category):
    assert categories(effusion(), text) == {category}


def test_a_denial_of_the_general_denies_the_special_but_not_of_what_is_acute_alone():
    def lungs(**fields):
        denial = part("No lung opacity.", ["lung opacity"], "neg", **fields)
        return record("q", [denial])

    assert categories(lungs(), "There is consolidation.") == {"denied_finding"}
    acute = lungs(modifiers=[("temporal", "acute")])
    assert categories(acute, "There is consolidation.") == {"unsupported"}
    assert categories(acute, "There is a lung opacity.") == {"denied_finding"}


def test_the_general_name_of_what_is_there_is_borne_out():
    one = record("q", [part("There is consolidation.", ["consolidation"])])
    assert categories(one, "There is a lung opacity.") == {"right"}
    other = record("q", [part("There is a lung opacity.", ["lung opacity"])])
    assert categories(other, "There is consolidation.") == {"unsupported"}


def test_a_region_called_free_denies_what_is_said_of_it():
    clear = part("No, there are no abnormal findings in the left lung.", [], "neg", tag=None)
    one = record(
        "q", [clear], "C03_is_abnormal_region", "region_abnormal", variables={"region": "left lung"}
    )
    assert categories(one, "Yes, there is consolidation in the left lower lobe.") == {
        "denied_region"
    }
    assert categories(one, "Yes, there is consolidation in the right lung.") == {"unsupported"}


def test_findings_by_hand():
    records = [effusion("q1"), effusion("q2", patient_id="p2")]
    values, scores = figures(
        records,
        predict("q1", "There is a small left pleural effusion. There is a pneumothorax."),
        predict("q2", "There is consolidation. No effusion."),
    )
    assert values["findings/precision"] == pytest.approx(1 / 3)
    assert values["findings/recall"] == pytest.approx(1 / 2)
    assert values["findings/f1"] == pytest.approx(2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2))
    assert values["errors/statement_contradicted"] == pytest.approx(1 / 2)
    assert values["errors/denied_finding"] == pytest.approx(1 / 3)
    assert values["denials/precision"] == 0  # the only denial is of what is there
    assert scores.figures["s"][STRICT]["findings/precision"].n == 3
    assert values["findings/ceiling_f1"] == 1


def test_what_the_reference_does_not_say_is_undefined():
    values, _ = figures([effusion()], predict("q", "I cannot tell."))
    assert values["findings/precision"] is None
    assert values["findings/recall"] == 0
    assert values["yes_no/mcc"] is None
    assert values["hallucination/rate"] is None


def test_yes_and_no_against_scikit_learn():
    rng = np.random.default_rng(0)
    truth, said = rng.random(60) < 0.4, rng.random(60) < 0.5
    records = [asked(f"q{n}", bool(yes), image_id=f"i{n}") for n, yes in enumerate(truth)]
    answers = [predict(f"q{n}", "Yes." if yes else "No.") for n, yes in enumerate(said)]
    values, _ = figures(records, *answers)
    assert values["yes_no/mcc"] == pytest.approx(matthews_corrcoef(truth, said))
    assert values["yes_no/balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, said))
    assert values["yes_no/predicted_yes"] == pytest.approx(said.mean())
    assert values["yes_no/true_yes"] == pytest.approx(truth.mean())
    # A yes claims the finding that was asked about.
    assert values["findings/precision"] == pytest.approx((truth & said).sum() / said.sum())
    assert values["findings/recall"] == pytest.approx((truth & said).sum() / truth.sum())


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Yes.", True),
        ("There is a pleural effusion.", True),
        ("Possibly, there may be a pleural effusion.", True),
        ("Possibly.", True),
        ("No.", False),
        ("There is no pleural effusion.", False),
        ("Hm.", False),
        ("", False),
    ],
)
def test_how_a_yes_can_be_said(text, right):
    values, scores = figures([asked("q", True)], predict("q", text))
    assert values["yes_no/accuracy"] == right
    assert values["yes_no/undecided"] == (text in ("Hm.", ""))
    assert scores.problems["s"]["blank_answer"] == (not text)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("B04_is_normal", "There is consolidation.", False),
        ("B04_is_normal", "Normal.", True),
        ("B04_is_normal", "Abnormal.", False),
        ("C04_is_normal_region", "It is normal.", True),
        ("B03_is_abnormal", "Normal.", False),
        ("B03_is_abnormal", "It is abnormal.", True),
        ("B04_is_normal", "There is no consolidation.", True),
        ("B03_is_abnormal", "There is consolidation.", True),
        ("B03_is_abnormal", "The lungs are clear.", False),
        ("B13_has_devices", "There is a chest tube.", True),
        ("B13_has_devices", "There is consolidation.", None),
        ("B16_has_imaging_artifacts", "There is motion artifact.", True),
    ],
)
def test_what_speaks_for_a_yes_where_none_is_said(kind, text, says):
    for true in (True, False):
        one = record("q", [part("Yes." if true else "No.", tag=None)], kind)
        values, _ = figures([one], predict("q", text))
        assert values["yes_no/accuracy"] == (says is true)
        assert values["yes_no/undecided"] == (says is None)


def test_a_bare_place_answers_where_the_finding_is():
    one = effusion(kind="D03_where_is_finding", variables={"finding": "pleural effusion"})
    assert categories(one, "In the left pleural space.") == {"right"}
    assert categories(one, "In the right pleural space.") == {"wrong_side"}


def test_boxes_by_hand():
    records = [effusion("q1"), effusion("q2"), asked("q3", False)]
    true = [0.1, 0.1, 0.3, 0.4]
    half = [0.1, 0.1, 0.3, 0.25]  # IoU and IoT 0.5, IoP 1
    values, _ = figures(
        records,
        predict("q1", "x", [true, [0.8, 0.8, 0.9, 0.9]]),
        predict("q2", "x", [half]),
        predict("q3", "x", [true]),
    )
    assert values["boxes/precision@0.3"] == pytest.approx(2 / 4)
    assert values["boxes/recall@0.3"] == 1
    assert values["boxes/miou_tp@0.3"] == pytest.approx(0.75)
    assert values["boxes/recall@0.5"] == pytest.approx(1 / 2)  # exactly 0.5 is not above it
    union = 0.06 / (0.06 + 0.01)
    assert values["boxes/iou"] == pytest.approx((union + 0.5 + 0) / 3)
    assert values["boxes/iop"] == pytest.approx((union + 1 + 0) / 3)
    assert values["boxes/iot"] == pytest.approx((1 + 0.5) / 2)
    assert values["boxes/per_question_without"] == 1
    assert values["boxes/truth_per_question"] == pytest.approx(2 / 3)
    assert values["boxes/duplicate_share"] == 0
    assert values["boxes/recall_ceiling_one_box"] == 1
    assert values["boxes/f1@0.3"] == pytest.approx(2 * 2 / (4 + 2))
    assert values["boxes/f1@0.5"] == pytest.approx(2 * 1 / (4 + 2))
    twice, _ = figures(records[:1], predict("q1", "x", [true, [0.1, 0.1, 0.3, 0.401]]))
    assert twice["boxes/duplicate_share"] == 0.5


def test_boxes_in_the_text_are_read_by_a_codec_and_are_no_words():
    codec = get_codec("paligemma")
    text = effusion().answers[0].text + " " + codec.encode([[0.1, 0.1, 0.3, 0.4]], 100, 200)
    one = effusion()
    one = one.model_copy(update={"answers": one.answers[:1]})
    prediction = Prediction("q", text, None, None, None)
    scores = score_records([one], [prediction], dataclasses.replace(OPTIONS, codec="paligemma"))
    named = scores.figures["s"][STRICT]
    assert named["boxes/f1@0.5"].value == 1
    assert named["text/rouge_l"].value == named["text/bleu"].value == 1
    with pytest.raises(UserError, match="--codec"):
        score_records([one], [prediction])


def test_swapped_sides_are_counted_apart_from_findings():
    records = [effusion("q1"), effusion("q2", side="right")]
    values, _ = figures(records, *(predict(r.question_id, r.answer_text) for r in records))
    assert (values["sides/swapped"], values["findings/f1"], values["errors/right"]) == (0, 1, 1)
    swapped = {"q1": records[1].answer_text, "q2": records[0].answer_text}
    values, _ = figures(records, *(predict(name, text) for name, text in swapped.items()))
    assert (values["sides/swapped"], values["findings/f1"], values["errors/right"]) == (1, 1, 0)


def test_templates_repeat_tags_that_are_not_read():
    """ "No, the study is not normal." carries the tags of what is there, and a "neg"."""
    below = part("There is consolidation.", ["consolidation"], answer_type="details", level=1)
    top = part("No, there are abnormal findings.", ["consolidation"], "neg", None)
    one = record("q", [top.model_copy(update={"sub_answers": [below]})], "B04_is_normal")
    question = read_question(one, "test")
    assert set(question.present) == {"consolidation"}
    assert (question.absent, question.stated, question.yes) == (frozenset(), frozenset(), False)


def test_hallucination_is_counted_where_nothing_is_there():
    normal = record("q1", [part("The lungs are normal.", ["lung opacity"], "neg")])
    values, scores = figures(
        [normal, effusion("q2")],
        predict("q1", "There is a pneumothorax and consolidation."),
        predict("q2", "There is a pneumothorax."),
    )
    assert values["hallucination/rate"] == 1
    assert values["hallucination/claims_per_question"] == 2
    assert scores.figures["s"][STRICT]["hallucination/rate"].n == 1


def test_the_paper_has_no_benchmark():
    _, scores = figures([effusion()], predict("q", "x"))
    named = scores.figures["s"][PAPER]
    assert named["findings/f1"].value is None and named["boxes/f1@0.3"].value is None
    assert set(named) <= set(scores.figures["s"][STRICT])
    assert "no benchmark of models" in CXR_QBA.markdown(scores)


def test_no_box_is_a_failure_only_where_one_is_due():
    normal = record("q2", [part("The lungs are clear.", tag=None)])
    boxless = {"labels": None, "parse": "no_box"}
    lines = [Prediction(q, "Fine.", np.zeros((0, 4)), **boxless) for q in ("q1", "q2")]
    named, scores = figures([effusion("q1"), normal, effusion("q3")], *lines)
    assert named["parse_failure_rate/no_box"] == pytest.approx(1 / 3)
    assert named["parse_failure_rate"] == pytest.approx(1 / 3)
    assert scores.problems["s"]["missing_prediction"] == 1


def test_broken_down_figures_stand_in_one_order():
    records = [effusion(f"q{n}", view=view) for n, view in enumerate(("PA", "LL", "AP", "XX"))]
    named, _ = figures(records, predict("q0", "Fine."))
    views = [n.split("/")[-1] for n in named if n.startswith("by_view/findings/f1/")]
    assert views == ["AP", "LL", "PA", "XX"]


def test_breakdowns_part_the_questions():
    records = [
        effusion("q1", view="PA", grade="A"),
        effusion("q2", view="AP", grade="B"),
        asked("q3", True, view="AP"),
    ]
    scores = score_records(
        records, [predict("q1", records[0].answer_text), predict("q2", "No effusion.")]
    )
    named = scores.figures["s"][STRICT]
    assert named["by_view/findings/f1/PA"].value == 1
    assert named["by_view/findings/f1/AP"].value == 0
    assert named["by_grade/text/rouge_l/unrated"].n == 1
    assert named["by_question_type/text/rouge_l/D02_has_finding"].value == 0
    assert named["by_strategy/text/rouge_l/abnormal"].n == 2
    assert named["by_strategy/text/rouge_l/finding"].n == 1
    assert scores.problems["s"]["missing_prediction"] == 1


@pytest.mark.parametrize(
    ("one", "text", "right", "note"),
    [
        (effusion(), "There is a small left pleural effusion.", True, "borne out"),
        (effusion(), "No effusion.", False, "denied; it is there: pleural effusion"),
        (effusion(), "There is a right effusion.", False, "other way round"),
        (effusion(), "Fine.", False, "not mentioned"),
        (asked("q", True), "No.", False, "said no, not yes"),
        (asked("q", True), "Yes.", True, "said yes"),
        (asked("q", False), "Hm.", False, "neither yes nor no"),
        (record("q", [part("Nothing.", tag=None)]), "Nothing.", None, "names nothing"),
    ],
)
def test_outcomes(one, text, right, note):
    found = outcome(one, predict("q", text, [[0.1, 0.1, 0.3, 0.4]]), None)
    assert found.right is right
    assert note in found.note
    assert found.iou == (1.0 if one.boxes else None)


def test_the_command_writes_and_compares(tmp_path):
    records = [effusion(f"q{n}", patient_id=f"p{n}") for n in range(4)]
    path = tmp_path / "records.jsonl"
    write_records(path, records)
    for name, text in (("base", "Nothing."), ("tuned", records[0].answer_text)):
        lines = [{"question_id": r.question_id, "text": text, "boxes": []} for r in records]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    flags = ["--benchmark=cxr_qba", f"--references={path}", f"--out={tmp_path}", "--resamples=50"]
    score.main([*flags, *(f"--predictions={tmp_path}/{n}.jsonl" for n in ("base", "tuned"))])
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["tuned"]["strict"]["findings/recall"]["value"] == 1
    compared = json.loads((tmp_path / "comparisons.json").read_text())
    (found,) = (row for row in compared if row["metric"] == "text/rouge_l")
    assert found["system"] == "tuned" and found["difference"] > 0
    ranked = {"yes_no/specificity", "ap/coco", "froc/mean_sensitivity"}
    assert ranked <= {row["metric"] for row in compared}
    floors = json.loads((tmp_path / "floors.json").read_text())
    assert {"constant yes", "majority", "prior box"} <= floors["figures"].keys()
    assert "findings/f1" in {row["metric"] for row in floors["differences"]}
    assert "by question type" in (tmp_path / "tables.md").read_text().lower()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_hw": None}, "image_hw null"),
        ({"answers": []}, "no answers"),
        (
            {"answers": [part("x", boxes_by_image={"i": [[60.0, 10.0, 20.0, 40.0]]})]},
            r"box \[60.0, 10.0, 20.0, 40.0\]: expected x0 < x1",
        ),
        (
            {"answers": [part("x", boxes_by_image={"i": [[0.0, 0.0, 300.0, 40.0]]})]},
            "200 x 100 pixels",
        ),
    ],
)
def test_unusable_references(change, message):
    with pytest.raises(UserError, match=message):
        read_references([effusion().model_copy(update=change)], "test.jsonl", read_question)


def test_refusals():
    with pytest.raises(UserError, match="stands there twice"):
        read_references([effusion(), effusion()], "test.jsonl", read_question)
    with pytest.raises(UserError, match="no records"):
        read_references([], "test.jsonl", read_question)
    with pytest.raises(UserError, match="not in the references"):
        figures([effusion()], predict("other", "x"))
    with pytest.raises(UserError, match="no answers"):
        read_references([strip_answers(effusion())], "test.jsonl", read_question)


def test_sentences_are_held_against_the_references_by_what_they_compare():
    one = effusion()
    text = one.answer_text
    values, _ = figures([one], predict("q", text))
    assert values["surrogate/weighted_errors"] == 0 and values["temporal/f1"] is None
    values, _ = figures([one], predict("q", f"{text} New pneumothorax."))
    assert values["surrogate/weighted_errors/false"] == values["surrogate/weighted_errors"] == 1
    assert values["temporal/precision"] == 0
    values, _ = figures([one], predict("q", "Nothing."))
    assert values["surrogate/weighted_errors/missed"] == 0.5


def test_another_yes_or_no_on_another_picture_is_another_decision():
    asked = [
        effusion(f"q{n}").model_copy(update={"question_type": "C08_is_abnormal_region"})
        for n in range(2)
    ]
    references = CXR_QBA.read(asked, "test", OPTIONS.gt_mode)
    said = {"s": ("Yes.", "Yes."), "s_blind": ("No.", "Yes, there is.")}
    systems = {
        name: Answers([predict(f"q{n}", text) for n, text in enumerate(texts)], name)
        for name, texts in said.items()
    }
    lines = CXR_QBA.score(references, systems, OPTIONS).reliance
    found = {line["measure"]: line["value"] for line in lines}
    assert found["changed/decision"] == found["changed/decision_yes"] == 0.5
    assert found["changed/words"] == 1
