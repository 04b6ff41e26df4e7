"""Answers to CXR-QBA's questions: what is read, what is counted, and the figures by hand."""

import dataclasses
import json

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, matthews_corrcoef

from cxrjax.codecs import get_codec
from cxrjax.commands import score
from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import Answers, read_references
from cxrjax.evaluation.counted import PAPER, STRICT
from cxrjax.evaluation.predictions import Prediction
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.cxr_qba.answers import CLAIMS, outcome
from cxrjax.papers.cxr_qba.figures import CXR_QBA
from cxrjax.papers.cxr_qba.truth import read_question
from cxrjax.records import Answer, QARecord, strip_answers, write_records
from tests.papers.cases import cases, data, differing

OPTIONS = ScoreOptions(gt_mode="exact", bootstrap=Bootstrap(resamples=0))
BOX = [20.0, 10.0, 60.0, 40.0]  # of 100 x 200: 0.1, 0.1, 0.3, 0.4


def part(text, labels=(), polarity="pos", tag="tag", **fields):
    return Answer(text=text, labels=list(labels), polarity=polarity, name_tag=tag, **fields)


def record(name, answers, kind="B01_describe_all", strategy="abnormal", **fields):
    known = {"dataset": "cxr_qba", "split": "test", "patient_id": "p1", "image_id": "i"}
    known |= {"image_path": "i.jpg", "image_hw": (100, 200), "question_id": name, "question": "?"}
    known |= {"question_type": kind, "question_strategy": strategy, "answers": answers}
    return QARecord(**known | fields)


def effusion(name="q", side="left", **fields):
    """ "There is a small left pleural effusion." and no pneumothorax, with a box."""
    there = part(
        f"There is a small {side} pleural effusion.",
        ["pleural effusion"],
        regions=[f"{side} pleural space"],
        certainty="certain",
        modifiers=[("severity", "small")],
        boxes_by_image={"i": [BOX]},
    )
    return record(
        name, [there, part("There is no pneumothorax.", ["pneumothorax"], "neg")], **fields
    )


def asked(name, yes, finding="pleural effusion", kind="D02_has_finding", **fields):
    """Is there an effusion? The template's answer with what it follows from."""
    polarity, there = ("pos", "there is") if yes else ("neg", "there is no")
    details = {"answer_type": "details", "level": 1}
    below = part(f"{there.capitalize()} {finding}.", [finding], polarity, **details)
    text = f"{'Yes' if yes else 'No'}, {there} {finding}."
    top = part(text, [finding], polarity, tag=None, sub_answers=[below])
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


@cases("text, category")
def test_each_kind_of_claim(text, category):
    assert categories(effusion(), text) == {category}


def test_templates_and_denials_are_read_by_what_they_stand_for():
    def lungs(**fields):
        return record("q", [part("No lung opacity.", ["lung opacity"], "neg", **fields)])

    assert categories(lungs(), "There is consolidation.") == {"denied_finding"}
    acute = lungs(modifiers=[("temporal", "acute")])
    assert categories(acute, "There is consolidation.") == {"unsupported"}
    assert categories(acute, "There is a lung opacity.") == {"denied_finding"}
    # The general name of what is there is borne out.
    one = record("q", [part("There is consolidation.", ["consolidation"])])
    assert categories(one, "There is a lung opacity.") == {"right"}
    other = record("q", [part("There is a lung opacity.", ["lung opacity"])])
    assert categories(other, "There is consolidation.") == {"unsupported"}
    #  "No, the study is not normal." carries the tags of what is there, and a "neg"
    below = part("There is consolidation.", ["consolidation"], answer_type="details", level=1)
    top = part("No, there are abnormal findings.", ["consolidation"], "neg", None)
    one = record("q", [top.model_copy(update={"sub_answers": [below]})], "B04_is_normal")
    question = read_question(one, "test")
    assert set(question.present) == {"consolidation"}
    assert (question.absent, question.stated, question.yes) == (frozenset(), frozenset(), False)


def test_what_is_said_of_places_is_held_against_the_reference():
    clear = part("No, there are no abnormal findings in the left lung.", [], "neg", tag=None)
    one = record(
        "q", [clear], "C03_is_abnormal_region", "region_abnormal", variables={"region": "left lung"}
    )
    denied = categories(one, "Yes, there is consolidation in the left lower lobe.")
    assert denied == {"denied_region"}
    assert categories(one, "Yes, there is consolidation in the right lung.") == {"unsupported"}
    one = effusion(kind="D03_where_is_finding", variables={"finding": "pleural effusion"})
    assert categories(one, "In the left pleural space.") == {"right"}
    assert categories(one, "In the right pleural space.") == {"wrong_side"}


def test_findings_and_missing_boxes_by_hand():
    records = [effusion("q1"), effusion("q2", patient_id="p2")]
    values, scores = figures(
        records,
        predict("q1", "There is a small left pleural effusion. There is a pneumothorax."),
        predict("q2", "There is consolidation. No effusion."),
    )
    assert differing(values, data(__file__)["findings_by_hand"]) == {}
    assert scores.figures["s"][STRICT]["findings/precision"].n == 3
    normal = record("q2", [part("The lungs are clear.", tag=None)])
    boxless = {"labels": None, "parse": "no_box"}
    lines = [Prediction(q, "Fine.", np.zeros((0, 4)), **boxless) for q in ("q1", "q2")]
    named, scores = figures([effusion("q1"), normal, effusion("q3")], *lines)
    assert named["parse_failure_rate/no_box"] == pytest.approx(1 / 3)
    assert named["parse_failure_rate"] == pytest.approx(1 / 3)
    assert scores.problems["s"]["missing_prediction"] == 1


@cases("sides, texts, expected")
def test_figures_of_effusions(sides, texts, expected):
    records = [effusion(f"q{n}", side=side) for n, side in enumerate(sides)]
    values, _ = figures(records, *(predict(f"q{n}", text) for n, text in enumerate(texts)))
    assert differing(values, expected) == {}


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


@cases("text, right")
def test_how_a_yes_can_be_said(text, right):
    values, scores = figures([asked("q", True)], predict("q", text))
    assert values["yes_no/accuracy"] == right
    assert values["yes_no/undecided"] == (text in ("Hm.", ""))
    assert scores.problems["s"]["blank_answer"] == (not text)


@cases("kind, text, says")
def test_what_speaks_for_a_yes_where_none_is_said(kind, text, says):
    for true in (True, False):
        one = record("q", [part("Yes." if true else "No.", tag=None)], kind)
        values, _ = figures([one], predict("q", text))
        assert values["yes_no/accuracy"] == (says is true)
        assert values["yes_no/undecided"] == (says is None)


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
    assert differing(values, data(__file__)["boxes_by_hand"]) == {}
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


def test_hallucination_and_breakdowns_part_the_questions():
    normal = record("q1", [part("The lungs are normal.", ["lung opacity"], "neg")])
    values, scores = figures(
        [normal, effusion("q2")],
        predict("q1", "There is a pneumothorax and consolidation."),
        predict("q2", "There is a pneumothorax."),
    )
    assert values["hallucination/rate"] == 1
    assert values["hallucination/claims_per_question"] == 2
    assert scores.figures["s"][STRICT]["hallucination/rate"].n == 1
    graded = effusion("q1", view="PA", grade="A"), effusion("q2", view="AP", grade="B")
    said = [predict("q1", graded[0].answer_text), predict("q2", "No effusion.")]
    scores = score_records([*graded, asked("q3", True, view="AP")], said)
    named = scores.figures["s"][STRICT]
    assert [named[f"by_view/findings/f1/{view}"].value for view in ("PA", "AP")] == [1, 0]
    assert named["by_grade/text/rouge_l/unrated"].n == 1
    assert named["by_question_type/text/rouge_l/D02_has_finding"].value == 0
    assert [named[f"by_strategy/text/rouge_l/{one}"].n for one in ("abnormal", "finding")] == [2, 1]
    assert scores.problems["s"]["missing_prediction"] == 1


def test_the_paper_has_no_benchmark_and_broken_down_figures_one_order():
    _, scores = figures([effusion()], predict("q", "x"))
    named = scores.figures["s"][PAPER]
    assert named["findings/f1"].value is None and named["boxes/f1@0.3"].value is None
    assert set(named) <= set(scores.figures["s"][STRICT])
    assert "no benchmark of models" in CXR_QBA.markdown(scores)
    records = [effusion(f"q{n}", view=view) for n, view in enumerate(("PA", "LL", "AP", "XX"))]
    named, _ = figures(records, predict("q0", "Fine."))
    views = [n.split("/")[-1] for n in named if n.startswith("by_view/findings/f1/")]
    assert views == ["AP", "LL", "PA", "XX"]


ASKED = {
    "effusion": effusion(),
    "yes": asked("q", True),
    "no": asked("q", False),
    "nothing": record("q", [part("Nothing.", tag=None)]),
}


@cases("about, text, right, note")
def test_outcomes(about, text, right, note):
    one = ASKED[about]
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


def boxed(*box):
    return effusion().model_copy(update={"answers": [part("x", boxes_by_image={"i": [[*box]]})]})


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([effusion().model_copy(update={"image_hw": None})], "image_hw null"),
        ([effusion().model_copy(update={"answers": []})], "no answers"),
        ([boxed(60.0, 10.0, 20.0, 40.0)], r"box \[60.0, 10.0, 20.0, 40.0\]: expected x0 < x1"),
        ([boxed(0.0, 0.0, 300.0, 40.0)], "200 x 100 pixels"),
        ([effusion(), effusion()], "stands there twice"),
        ([], "no records"),
        ([strip_answers(effusion())], "no answers"),
    ],
)
def test_unusable_references(records, message):
    with pytest.raises(UserError, match=message):
        read_references(records, "test.jsonl", read_question)
    with pytest.raises(UserError, match="not in the references"):
        figures([effusion()], predict("other", "x"))


def test_another_yes_or_no_on_another_picture_is_another_decision():
    asked = [effusion(f"q{n}", kind="C08_is_abnormal_region") for n in range(2)]
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
