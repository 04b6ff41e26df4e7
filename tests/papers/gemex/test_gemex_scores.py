"""GEMeX's figures by hand, through the command and without files."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from cxrjax import score
from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.language_model.judges import Marks, RelativeScore
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.benchmarks import BENCHMARKS
from cxrjax.papers.gemex.native_files import read_native
from cxrjax.papers.gemex.truth import read_question
from cxrjax.records import Answer, QARecord, strip_answers, write_records
from cxrjax.records_io.quality import QualityLog
from cxrjax.scoring.benchmark import Answers, read_references
from cxrjax.scoring.predictions import parse_prediction
from cxrjax.scoring.scores import ScoreOptions

GEMEX = BENCHMARKS["gemex"]()
OPTIONS = ScoreOptions(gt_mode="exact", bootstrap=Bootstrap(resamples=0))


def score_records(records, predictions, options=OPTIONS):
    references = GEMEX.read(records, "test", options.gt_mode)
    return GEMEX.score(references, {"model": Answers(predictions, "model")}, options)


CHOICES = ["A: Clear lungs", "B: Atelectasis", "C: Pleural effusion"]
BENCH_SAMPLE = Path(__file__).parents[3] / "data" / "gemex" / "sample"
LEFT = [112.0, 0.0, 224.0, 224.0]  # the right half of the picture, pixels of 224


def make(number, kind, key, boxes=(LEFT,), patient=None, content="disease", **fields):
    listed = ", ".join(str([round(v) for v in box]) for box in boxes)
    return QARecord(
        dataset="gemex",
        split="test",
        patient_id=patient or f"p{number}",
        image_id=f"i{number}",
        image_path=f"i{number}.png",
        image_hw=(448, 224),
        question_id=f"q{number}",
        question="What is it?",
        question_type=kind,
        choices=CHOICES if kind.endswith("choice") else None,
        content_type=content,
        answers=[
            Answer(
                text=f"<answer> {key} <reason> It is seen there. <location>[{listed}]",
                regions=["left lung"],
                # The image is twice as high as the frame.
                boxes_by_image={
                    f"i{number}": [np.multiply(box, [1, 2, 1, 2]).tolist() for box in boxes]
                },
            )
        ],
        answer_key=key,
        reason="It is seen there.",
        **fields,
    )


RECORDS = [
    make(0, "open_ended", "Fluid on the left."),
    make(1, "closed_ended", "Yes."),
    make(2, "closed_ended", "No.", content="location"),
    make(3, "single_choice", "B"),
    make(4, "multi_choice", ["A", "C"], boxes=(LEFT, [0.0, 0.0, 56.0, 56.0])),
    make(5, "multi_choice", ["B", "C"]),
]
REFERENCE_TEXTS = [record.answer_text for record in RECORDS]


def figures(texts, records=RECORDS, options=OPTIONS, **fields):
    """{protocol: {metric: value}} of one system that says these texts; None: no line."""
    lines = [
        {"question_id": record.question_id, "text": text, **fields}
        for record, text in zip(records, texts, strict=True)
        if text is not None
    ]
    predictions = [parse_prediction(line, "test") for line in lines]
    scores = score_records(records, predictions, options)
    return {
        protocol: {name: figure["value"] for name, figure in named.items()}
        for protocol, named in scores.metrics()["model"].items()
    }


def test_the_references_own_texts_are_perfect():
    for named in figures(REFERENCE_TEXTS).values():
        for name in ("a_score", "v_score", "rouge_l", "bleu_1", "in_form_rate"):
            assert named[name] == pytest.approx(1), name
        assert named["parse_failure_rate"] == 0
        for kind in ("closed_ended", "single_choice", "multi_choice"):
            assert named[f"by_question_type/a_score/{kind}"] == 1
        assert named["ar_score"] is None and named["bert_score"] is None


# What no answer can have more or less of, and what is best at 0.
NO_SCORES = re.compile(r"chance$|chance/|per_question|ceiling_one_box")
WORST_AT_1 = re.compile(
    r"(?<!in_form_)rate\b|problems/|weighted_errors|neither_side|duplicate_share|left_out"
)


def test_references_of_every_question_type_score_in_full(phantom_records):
    """Whatever has a value is at its best, for every type, content, region, view and sex."""
    records = [one.model_copy(update={"split": "test"}) for one in phantom_records[:600]]
    kinds = {record.question_type for record in records}
    assert kinds == {"open_ended", "closed_ended", "single_choice", "multi_choice"}
    told = 0
    for named in figures([record.answer_text for record in records], records).values():
        assert {f"by_question_type/v_score/{kind}" for kind in kinds} <= named.keys()
        for name, value in named.items():
            if value is not None and not NO_SCORES.search(name):
                best = 0 if WORST_AT_1.search(name) else 1
                assert value == pytest.approx(best, abs=1e-5), name
                told += best
    assert told > 100


def test_figures_by_hand():
    texts = [
        "<answer> Fluid. <reason> It is seen there. <location>[[112, 0, 168, 224]]",  # half of it
        "The answer is yes.",  # right, without a box
        "A film of the chest.",  # names nothing
        "<answer> B <reason> It is. <location>[[112, 0, 224, 224], [0, 0, 56, 56]]",  # one too many
        "<answer> ['A', 'B'] <reason> It is. <location>[[112, 0, 224, 224]]",  # one of two
        None,
    ]
    found = figures(texts)
    strict, paper = found["strict"], found["paper"]
    by_type = "by_question_type/"
    assert strict[f"{by_type}a_score/closed_ended"] == 0.5
    assert strict[f"{by_type}answer_failure_rate/closed_ended"] == 0.5
    assert strict[f"{by_type}a_score/single_choice"] == 1
    assert strict[f"{by_type}a_score/multi_choice"] == 0
    assert strict[f"{by_type}jaccard/multi_choice"] == pytest.approx((1 / 3 + 0) / 2)
    # Of A, C and B, C: found A, wrongly B, missed C, B, C.
    assert strict[f"{by_type}micro_f1/multi_choice"] == pytest.approx(2 * 1 / (2 * 1 + 1 + 3))
    assert strict[f"{by_type}chance/multi_choice"] == pytest.approx(1 / 7)
    assert strict["a_score"] == pytest.approx(2 / 5)
    assert strict["v_score_strict"] == pytest.approx((0.5 + 0 + 0 + 1 / 2 + 1 / 2 + 0) / 6)
    assert strict["v_score_lenient"] == pytest.approx((0.5 + 0 + 0 + 1 + 1 + 0) / 6)
    assert strict["v_score_truth"] == pytest.approx((0.5 + 0 + 0 + 1 + 1 / 2 + 0) / 6)
    assert strict["v_score"] == strict["v_score_strict"]
    assert paper["v_score"] == paper["v_score_lenient"]
    # The paper's blank cell: no closed question has a box.
    assert paper[f"{by_type}v_score/closed_ended"] is None
    assert strict[f"{by_type}v_score/closed_ended"] == 0
    assert strict["parse_failure_rate"] == pytest.approx(2 / 6)
    assert strict["parse_failure_rate/not_yes_or_no"] == pytest.approx(1 / 6)
    assert strict["parse_failure_rate/no_box"] == pytest.approx(2 / 6)
    assert strict["problems/missing_prediction"] == 1
    assert strict["in_form_rate"] == pytest.approx(3 / 6)
    assert strict["by_content_type/a_score/location"] == 0
    assert strict["by_content_type/a_score/disease"] == pytest.approx(2 / 4)
    assert strict["by_region/v_score/left lung"] == strict["v_score"]
    assert strict["ceiling"] == 1
    # 3 of 4 boxes are hits at 0.3, of 7 true ones; an IoU of exactly 0.5 is none at 0.5.
    assert strict["boxes/truth_per_question"] == pytest.approx(7 / 6)
    assert strict["boxes/recall_ceiling_one_box"] == pytest.approx(6 / 7)
    assert strict["boxes/duplicate_share"] == 0
    assert strict["boxes/f1@0.3"] == strict["boxes/f1@0.4"] == pytest.approx(6 / 11)
    assert strict["boxes/f1@0.5"] == strict["boxes/f1@0.75"] == pytest.approx(4 / 11)


def test_references_that_cannot_be_read_lower_the_ceiling_and_repeated_boxes_are_told():
    records = [make(n, "single_choice", "B") for n in range(2)]
    twice = "<answer> B <reason> x <location>[[112, 0, 224, 224], [112, 0, 224, 223]]"
    lines = [{"question_id": record.question_id, "text": twice} for record in records]
    records[1].answers[0] = records[1].answers[0].model_copy(update={"text": "Fluid."})
    scores = score_records(records, [parse_prediction(line, "test") for line in lines])
    strict = scores.metrics()["model"]["strict"]
    assert strict["boxes/duplicate_share"]["value"] == 0.5
    assert strict["ceiling"]["value"] == 0.5
    curve = scores.curves["model"]["sweep/boxes/f1"]
    assert curve["y"][curve["x"].index(0.3)] == strict["boxes/f1@0.3"]["value"]


def test_figures_are_broken_down_by_what_the_records_say():
    records = [make(n, "single_choice", "B", sex="FM"[n % 2], age=30.0 + 40 * n) for n in range(3)]
    found = figures(["B", "C", "B"], records)["strict"]
    assert found["by_sex/a_score/F"] == 1 and found["by_sex/a_score/M"] == 0
    assert found["by_age/a_score/20-39"] == 1 and found["by_age/a_score/60-79"] == 0
    assert not any(name.startswith("by_view/") for name in found)


def test_confidence_is_held_against_the_a_score():
    records = [make(n, "single_choice", "B") for n in range(4)]
    sure = figures(["B", "B", "C", "C"], records, answer_logprob=float(np.log(0.5)))["strict"]
    assert sure["calibration/mean_confidence"] == pytest.approx(0.5)
    assert sure["calibration/accuracy"] == pytest.approx(0.5)
    assert sure["calibration/ece"] == pytest.approx(0)
    assert sure["calibration/brier"] == pytest.approx(0.25)
    assert figures(["B"] * 4, records)["strict"]["calibration/ece"] is None


def test_who_names_no_option_at_all_has_the_papers_blank():
    texts = ["x", "Maybe.", "Perhaps.", "x", "x", "x"]
    found = figures(texts)
    assert found["paper"]["by_question_type/a_score/closed_ended"] is None
    assert found["strict"]["by_question_type/a_score/closed_ended"] == 0


def test_lines_may_bring_their_boxes():
    found = figures(["normal"] * 6, boxes=[[0.5, 0, 1, 1]])
    assert found["strict"]["v_score"] == pytest.approx((5 + 1 / 2) / 6)


def test_location_tokens_are_no_words():
    tokens = CODECS["paligemma"].encode(np.array([[0.5, 0.0, 1.0, 1.0]]), 448, 224)
    texts = [t.partition(" <location>")[0] + " " + tokens for t in REFERENCE_TEXTS]
    found = figures(texts, boxes=[[0.5, 0, 1, 1]])["strict"]
    assert found["bleu_1"] == pytest.approx(1) and found["in_form_rate"] == 1


def test_other_codecs_are_read_where_the_size_is_known():
    boxes = np.array([[0.5, 0.0, 1.0, 1.0]])
    text = "Yes. " + CODECS["vindr_px"].encode(boxes, 448, 224)
    options = ScoreOptions(gt_mode="exact", codec="vindr_px", bootstrap=Bootstrap(resamples=0))
    assert figures([text] * 6, options=options)["strict"]["v_score"] > 0.9
    sizeless = [r.model_copy(update={"image_hw": None}) for r in RECORDS]
    with pytest.raises(UserError, match="--codec=vindr_px needs the image's size"):
        figures([text] * 6, sizeless, options)
    # GEMeX's own boxes need no size.
    assert figures(REFERENCE_TEXTS, sizeless)["strict"]["v_score"] == pytest.approx(1)


def test_permutation_of_the_predictions_changes_nothing_and_a_stray_box_never_helps():
    texts = list(REFERENCE_TEXTS)
    backwards = score_records(
        RECORDS,
        [
            parse_prediction({"question_id": r.question_id, "text": t}, "test")
            for r, t in reversed(list(zip(RECORDS, texts, strict=True)))
        ],
    )
    forwards = figures(texts)
    assert backwards.metrics()["model"]["strict"]["v_score"]["value"] == pytest.approx(
        forwards["strict"]["v_score"]
    )
    stray = [text[:-1] + ", [0, 200, 9, 224]]" for text in texts]
    duplicate = [text[:-1] + ", [112, 0, 224, 224]]" for text in texts]
    for worse in (stray, duplicate):
        assert figures(worse)["strict"]["v_score"] < forwards["strict"]["v_score"]


class FixedJudge:
    """Gives the marks that it is told to, and fails at one question."""

    name, surrogate, entails = "fixed", False, False

    def __init__(self, marks, surrogate=False):
        self.marks, self.surrogate = marks, surrogate
        self.asked = []

    def relative_scores(self, samples):
        self.asked = list(samples)
        return [RelativeScore(*self.marks[sample.question_id]) for sample in samples]


def judge(surrogate=False):
    marks = {f"q{n}": (Marks(8, 8), Marks(8, 8)) for n in range(6)}
    marks["q0"] = (Marks(9, 4), Marks(7, 4))  # 4/9 = 44.44 as in the paper's case studies
    marks["q1"] = (Marks(8, 3), Marks(8, 5))  # 3/8 = 37.5
    marks["q2"] = (Marks(5, 10), Marks(5, 10))  # twice as good as the reference
    marks["q5"] = (Marks(None, None, "refusal"), Marks(8, 8))
    return FixedJudge(marks, surrogate)


def test_relative_scores_are_means_of_per_sample_ratios():
    asked = judge()
    options = ScoreOptions(gt_mode="exact", bootstrap=Bootstrap(resamples=0), judge=asked)
    found = figures(REFERENCE_TEXTS, options=options)
    paper, strict = found["paper"], found["strict"]
    by_type = "by_question_type/ar_score"
    assert 100 * paper[f"{by_type}/open_ended"] == pytest.approx(44.44, abs=0.005)
    assert strict[f"{by_type}/open_ended"] == pytest.approx(8 / 16)
    assert paper[f"{by_type}/closed_ended"] == pytest.approx((0.375 + 2) / 2)
    assert paper[f"{by_type}_capped/closed_ended"] == pytest.approx((0.375 + 1) / 2)
    assert strict[f"{by_type}/closed_ended"] == pytest.approx((8 / 16 + 2) / 2)
    types = ("open_ended", "closed_ended", "single_choice", "multi_choice")
    assert paper["ar_score"] == pytest.approx(np.mean([paper[f"{by_type}/{t}"] for t in types]))
    # Of the two multiple-choice questions, the judge fails at one in the paper's order.
    assert paper[f"{by_type}/multi_choice"] == 1
    assert strict[f"{by_type}/multi_choice"] == strict[f"{by_type}_capped/multi_choice"] == 0.5
    assert paper["judge_failure_rate"] == strict["judge_failure_rate"] == pytest.approx(1 / 6)
    assert asked.asked[3].question.startswith("What is it? <choices>: [A: Clear lungs")
    assert asked.asked[3].reference == "B It is seen there."
    assert asked.asked[3].answer == "B It is seen there."


def test_a_judge_that_fails_in_one_order_is_left_out_where_that_order_counts():
    asked = judge()
    asked.marks["q3"] = (Marks(8, 8), Marks(None, None, "truncated"))
    asked.marks["q4"] = (Marks(None, None, "refusal"), Marks(8, 8))
    options = ScoreOptions(gt_mode="exact", bootstrap=Bootstrap(resamples=0), judge=asked)
    predictions = [
        parse_prediction({"question_id": f"q{n}", "text": text}, "test")
        for n, text in enumerate(REFERENCE_TEXTS)
    ]
    scores = score_records(RECORDS, predictions, options)
    paper, strict = (scores.figures["model"][protocol] for protocol in ("paper", "strict"))
    name = "by_question_type/ar_score/single_choice"
    assert (paper[name].value, paper[name].n) == (1, 1)
    # Nothing was judged: undefined, and no 0.
    assert (strict[name].value, strict[name].n) == (None, 1)
    assert paper["by_question_type/ar_score/multi_choice"].value is None
    assert paper["ar_score"].value is None and strict["ar_score"].value is None
    assert paper["judge_failure_rate"].value == pytest.approx(2 / 6)
    assert strict["judge_failure_rate"].value == pytest.approx(3 / 6)
    problems = scores.problems["model"]
    assert problems["judge_failure/refusal"] == 2 and problems["judge_failure/truncated"] == 1
    tables = GEMEX.markdown(scores)
    assert "judge_failure/refusal: the judge declined" in tables
    assert "left out under `paper` and counts as 0 under `strict`" in tables


def test_a_surrogates_figures_are_never_called_ar_score():
    options = ScoreOptions(
        gt_mode="exact", bootstrap=Bootstrap(resamples=0), judge=judge(surrogate=True)
    )
    found = figures(REFERENCE_TEXTS, options=options)["paper"]
    named = {name for name, value in found.items() if "ar_score" in name and value is not None}
    assert named and all(name.startswith("surrogate/") for name in named)


def test_judges_are_shown_the_report_where_the_references_keep_it():
    record = make(9, "open_ended", "Fluid.", quality={"native_fields": {"ori_report": "REPORT"}})
    asked = judge()
    asked.marks["q9"] = asked.marks["q3"]
    options = ScoreOptions(gt_mode="exact", bootstrap=Bootstrap(resamples=0), judge=asked)
    figures(["Fluid."], [record], options)
    assert asked.asked[0].context == "REPORT"


def test_outcomes_for_the_page():
    def outcome(record, text):
        line = {"question_id": record.question_id, "text": text}
        return GEMEX.outcome(record, parse_prediction(line, "test"), None)

    right = outcome(RECORDS[3], REFERENCE_TEXTS[3])
    assert (right.right, right.note) == (True, "said B") and right.iou == pytest.approx(1)
    wrong = outcome(RECORDS[4], "C")
    assert (wrong.right, wrong.iou, wrong.note) == (False, 0.0, "said C; it is A, C")
    assert "could not be matched" in outcome(RECORDS[1], "Maybe.").note
    assert outcome(RECORDS[0], REFERENCE_TEXTS[0]).right is None


def test_released_rows_are_scored_without_sizes(tmp_path):
    records = [
        record
        for path in sorted(BENCH_SAMPLE.glob("test/*_question.jsonl"))
        for record in read_native(path, "test", QualityLog())
    ]
    assert {record.image_hw for record in records} == {None}
    found = figures([record.answer_text for record in records], records)["strict"]
    assert found["a_score"] == 1 and found["v_score"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question_type": "What"}, "is of type 'What': expected one of open_ended"),
        ({"answers": []}, "has no answer"),
        ({"question_id": "q0"}, "stands there twice"),
        (
            {"answers": [Answer(text="x", boxes_by_image={"i1": [[9, 9, 5, 5]]})]},
            "leaves its image or has no extent",
        ),
        (
            {
                "image_hw": None,
                "answers": [Answer(text="x", boxes_by_image={"i1": [[1, 1, 5, 5]]})],
            },
            "image_hw null: join its size",
        ),
    ],
)
def test_unusable_references(change, message):
    with pytest.raises(UserError, match=message):
        read_references([RECORDS[0], RECORDS[1].model_copy(update=change)], "file", read_question)
    with pytest.raises(UserError, match="holds no records"):
        read_references([], "file", read_question)


def test_references_whose_key_cannot_be_read_are_left_out_of_the_a_score_and_counted():
    odd = [make(7, "single_choice", "D"), make(8, "closed_ended", "Perhaps.")]
    records = [*RECORDS, *odd]
    predictions = [
        parse_prediction({"question_id": r.question_id, "text": r.answer_text}, "test")
        for r in records
    ]
    scores = score_records(records, predictions)
    named = scores.metrics()["model"]["strict"]
    assert scores.settings["questions_without_key"] == 2
    assert named["a_score"] == {"value": 1.0, "ci_low": None, "ci_high": None, "n": 5}
    assert "2 references name no option" in GEMEX.markdown(scores)


def command(tmp_path, *flags, names=("base", "llava_med_v1")):
    references = tmp_path / "records" / "test.jsonl"
    write_records(references, RECORDS)
    paths = []
    for name, texts in zip(names, (["yes"] * 6, REFERENCE_TEXTS), strict=True):
        path = tmp_path / f"{name}.jsonl"
        lines = [
            {"question_id": record.question_id, "text": text}
            for record, text in zip(RECORDS, texts, strict=True)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        paths.append(f"--predictions={path}")
    out = tmp_path / "scores"
    score.main(
        ["--benchmark=gemex", f"--references={references}", *paths, f"--out={out}"]
        + ["--resamples=30", *flags]
    )
    return out


def test_the_command_writes_the_papers_tables(tmp_path, capsys):
    out = command(tmp_path, "--judge=surrogate")
    tables = (out / "tables.md").read_text()
    assert "llava_med_v1 − LLaVA-Med-v1 | difference" in tables
    assert "| 71.14 [1] |" in tables and "needs 77.14" in tables
    assert "Surrogate of the AR-score, open" in tables
    assert "so that there is no AR-score" in tables
    rows = list(csv.DictReader((out / "tables.csv").open()))
    cell = next(
        row
        for row in rows
        if (row["system"], row["column"], row["protocol"]) == ("llava_med_v1", "Closed A", "paper")
    )
    assert float(cell["ours"]) == 100 and float(cell["difference"]) == pytest.approx(37.38)
    blank = next(
        row
        for row in rows
        if (row["system"], row["column"], row["protocol"]) == ("llava_med_v1", "Multi A", "paper")
    )
    assert (blank["paper"], blank["difference"]) == ("", "")
    metrics = json.loads((out / "metrics.json").read_text())
    cell = metrics["base"]["strict"]["by_question_type/a_score/closed_ended"]
    assert cell["value"] == 0.5 and cell["n"] == 2 and cell["ci_low"] is not None
    compared = {row["metric"] for row in json.loads((out / "comparisons.json").read_text())}
    assert {"ap/coco", "froc/mean_sensitivity"} <= compared
    floors = json.loads((out / "floors.json").read_text())
    assert {"constant yes", "constant no", "prior box", "random"} <= floors["figures"].keys()
    assert {"a_score", "v_score"} <= {row["metric"] for row in floors["differences"]}


def test_unusable_options(tmp_path):
    with pytest.raises(UserError, match="--gt_mode=raw: expected 'exact'"):
        command(tmp_path, "--gt_mode=raw")
    with pytest.raises(UserError, match="--bertscore_model: vindr_cxr_vqa has no use for one"):
        score.main(
            ["--benchmark=vindr_cxr_vqa", "--references=x", "--predictions=y", "--out=z"]
            + [f"--bertscore_model={tmp_path}"]
        )
    questions = tmp_path / "questions.jsonl"
    write_records(questions, map(strip_answers, RECORDS))
    with pytest.raises(UserError, match=r"questions.jsonl: question 'q0' has no answer"):
        GEMEX.score_files(questions, {"x": questions}, OPTIONS)


@pytest.mark.parametrize(
    ("said", "f1"),
    [
        ("Yes, there is a small pleural effusion and no pneumothorax.", 1),
        ("There is no pleural effusion. No pneumothorax.", 0.5),
        ("There is a pneumothorax without effusion.", 0),
        ("The film shows a chest.", 0),
        ("", 0),
    ],
)
def test_open_answers_lose_what_they_turn_round(said, f1):
    record = make(0, "open_ended", "A pleural effusion on the left, no pneumothorax.")
    record = record.model_copy(update={"reason": None})
    record.answers[0].text = record.answers[0].text.replace("It is seen there.", "")
    line = {"question_id": "q0", "text": f"<answer> {said} <reason> <location>[]"}
    found = score_records([record], [parse_prediction(line, "p:1")]).figures["model"]
    assert found["strict"]["fact_f1"].value == pytest.approx(f1)
    assert found["strict"]["fact_f1"].n == 1


def test_only_open_answers_are_held_against_the_reference_by_what_they_compare():
    """A worse effusion called unchanged, on the other side, and a pneumothorax that nobody saw."""
    record = make(0, "open_ended", "The left pleural effusion has increased.")
    closed = make(1, "closed_ended", "The left pleural effusion has increased.")
    line = {
        "question_id": "q0",
        "text": "<answer> Unchanged right pleural effusion. Pneumothorax. <reason> <location>[]",
    }
    found = score_records([record, closed], [parse_prediction(line, "p:1")]).figures["model"]
    values = {name: figure.value for name, figure in found["strict"].items()}
    assert (values["temporal/f1"], found["strict"]["temporal/f1"].n) == (0, 1)
    assert found["strict"]["surrogate/weighted_errors"].n == 1
    assert values["surrogate/weighted_errors/side"] == 0.25
    assert values["surrogate/weighted_errors/false"] == 1
    assert values["surrogate/weighted_errors"] == 1.25


def test_other_options_on_another_picture_are_other_decisions():
    """One of two choices changes; the other and the yes stay, in other words."""
    records = [
        make(0, "single_choice", "A"),
        make(1, "single_choice", "B"),
        make(2, "closed_ended", "yes"),
        make(3, "open_ended", "An effusion."),
    ]
    said = {"m": ("A", "B", "yes", "An effusion."), "m_noise": ("C", "The answer is B", "Yes.", "")}
    systems = {
        name: Answers(
            [
                parse_prediction({"question_id": f"q{n}", "text": f"<answer> {text}"}, "p:1")
                for n, text in enumerate(texts)
            ],
            name,
        )
        for name, texts in said.items()
    }
    references = GEMEX.read(records, "test", OPTIONS.gt_mode)
    lines = GEMEX.score(references, systems, OPTIONS).reliance
    found = {line["measure"]: (line["value"], line["n"]) for line in lines}
    assert found["changed/decision"] == (pytest.approx(1 / 3), 3)
    assert found["changed/decision_yes"] == (0, 1)
    assert found["changed/words"] == (1, 4)
