"""GEMeX's figures by hand, through the command, and the paper's Tables 5 and 6 as data."""

import csv
import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.commands import score
from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import Answers, read_references
from cxrjax.evaluation.counted import PAPER, STRICT
from cxrjax.evaluation.predictions import parse_prediction
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.language_model.judges.judge import Marks, RelativeScore
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.gemex.figures import GEMEX
from cxrjax.papers.gemex.native_files import read_native
from cxrjax.papers.gemex.truth import read_question
from cxrjax.records import Answer, QARecord, strip_answers, write_records
from cxrjax.records_io.quality import QualityLog
from tests.papers.cases import cases, data, differing

OPTIONS = ScoreOptions(gt_mode="exact", bootstrap=Bootstrap(resamples=0))


def score_records(records, predictions, options=OPTIONS):
    references = GEMEX.read(records, "test", options.gt_mode)
    return GEMEX.score(references, {"model": Answers(predictions, "model")}, options)


CHOICES = ["A: Clear lungs", "B: Atelectasis", "C: Pleural effusion"]
BENCH_SAMPLE = Path(__file__).parents[3] / "data" / "gemex" / "sample"
KINDS = ("open_ended", "closed_ended", "single_choice", "multi_choice")
BY_HAND = data(__file__)
LEFT = [112.0, 0.0, 224.0, 224.0]  # the right half of the picture, pixels of 224


def make(number, kind, key, boxes=(LEFT,), content="disease", **fields):
    listed = ", ".join(str([round(v) for v in box]) for box in boxes)
    # The image is twice as high as the frame.
    pixels = [np.multiply(box, [1, 2, 1, 2]).tolist() for box in boxes]
    answer = Answer(
        text=f"<answer> {key} <reason> It is seen there. <location>[{listed}]",
        regions=["left lung"],
        boxes_by_image={f"i{number}": pixels},
    )
    known = {"dataset": "gemex", "split": "test", "patient_id": f"p{number}"}
    known |= {"image_id": f"i{number}", "image_path": f"i{number}.png", "image_hw": (448, 224)}
    known |= {"question_id": f"q{number}", "question": "What is it?", "question_type": kind}
    known |= {"choices": CHOICES if kind.endswith("choice") else None, "content_type": content}
    known |= {"answers": [answer], "answer_key": key, "reason": "It is seen there."}
    return QARecord(**known, **fields)


RECORDS = [
    make(0, "open_ended", "Fluid on the left."),
    make(1, "closed_ended", "Yes."),
    make(2, "closed_ended", "No.", content="location"),
    make(3, "single_choice", "B"),
    make(4, "multi_choice", ["A", "C"], boxes=(LEFT, [0.0, 0.0, 56.0, 56.0])),
    make(5, "multi_choice", ["B", "C"]),
]
REFERENCE_TEXTS = [record.answer_text for record in RECORDS]


def said(texts, records=RECORDS, **fields):
    """A prediction for each record with a text."""
    told = ((record, text) for record, text in zip(records, texts, strict=True) if text is not None)
    lines = ({"question_id": record.question_id, "text": text} for record, text in told)
    return [parse_prediction(line | fields, "test") for line in lines]


def figures(texts, records=RECORDS, options=OPTIONS, **fields):
    """{protocol: {metric: value}} of one system that says these texts; None: no line."""
    scores = score_records(records, said(texts, records, **fields), options)
    return {
        protocol: {name: figure["value"] for name, figure in named.items()}
        for protocol, named in scores.metrics()["model"].items()
    }


def judged(judge):
    return dataclasses.replace(OPTIONS, judge=judge)


def test_the_references_own_texts_are_perfect():
    for named in figures(REFERENCE_TEXTS).values():
        for name in ("a_score", "v_score", "rouge_l", "bleu_1", "in_form_rate"):
            assert named[name] == pytest.approx(1), name
        assert named["parse_failure_rate"] == 0
        for kind in KINDS[1:]:
            assert named[f"by_question_type/a_score/{kind}"] == 1
        assert named["ar_score"] is None and named["bert_score"] is None


# What no answer can have more or less of, and what is best at 0.
NO_SCORES = re.compile(r"chance$|chance/|per_question|ceiling_one_box")
WORST_AT_1 = re.compile(
    r"(?<!in_form_)rate\b|problems/|weighted_errors|neither_side|duplicate_share|left_out"
)


def test_references_of_every_question_type_score_in_full(phantom_records):
    """Whatever has a value is at its best, for every type, content, region, view and sex."""
    records = [one.model_copy(update={"split": "test"}) for one in phantom_records[:300]]
    assert {record.question_type for record in records} == set(KINDS)
    told = 0
    for named in figures([record.answer_text for record in records], records).values():
        assert {f"by_question_type/v_score/{kind}" for kind in KINDS} <= named.keys()
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
    for protocol, expected in BY_HAND["figures_by_hand"].items():
        assert differing(found[protocol], expected) == {}
    assert strict["v_score"] == strict["v_score_strict"] == strict["by_region/v_score/left lung"]
    assert paper["v_score"] == paper["v_score_lenient"]


def test_references_that_cannot_be_read_lower_the_ceiling_and_repeated_boxes_are_told():
    records = [make(n, "single_choice", "B") for n in range(2)]
    twice = "<answer> B <reason> x <location>[[112, 0, 224, 224], [112, 0, 224, 223]]"
    records[1].answers[0] = records[1].answers[0].model_copy(update={"text": "Fluid."})
    scores = score_records(records, said([twice] * 2, records))
    strict = scores.metrics()["model"]["strict"]
    assert strict["boxes/duplicate_share"]["value"] == 0.5
    assert strict["ceiling"]["value"] == 0.5
    curve = scores.curves["model"]["sweep/boxes/f1"]
    assert curve["y"][curve["x"].index(0.3)] == strict["boxes/f1@0.3"]["value"]


def test_figures_are_broken_down_by_what_the_records_say():
    records = [make(n, "single_choice", "B", sex="FM"[n % 2], age=30.0 + 40 * n) for n in range(3)]
    found = figures(["B", "C", "B"], records)["strict"]
    assert differing(found, BY_HAND["broken_down"]) == {}
    assert not any(name.startswith("by_view/") for name in found)


def test_confidence_is_held_against_the_a_score():
    records = [make(n, "single_choice", "B") for n in range(4)]
    sure = figures(["B", "B", "C", "C"], records, answer_logprob=float(np.log(0.5)))["strict"]
    assert differing(sure, BY_HAND["calibrated"]) == {}
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
    options = dataclasses.replace(OPTIONS, codec="vindr_px")
    assert figures([text] * 6, options=options)["strict"]["v_score"] > 0.9
    sizeless = [r.model_copy(update={"image_hw": None}) for r in RECORDS]
    with pytest.raises(UserError, match="--codec=vindr_px needs the image's size"):
        figures([text] * 6, sizeless, options)
    # GEMeX's own boxes need no size.
    assert figures(REFERENCE_TEXTS, sizeless)["strict"]["v_score"] == pytest.approx(1)


def test_permutation_of_the_predictions_changes_nothing_and_a_stray_box_never_helps():
    backwards = score_records(RECORDS, said(REFERENCE_TEXTS)[::-1]).metrics()["model"]
    forwards = figures(REFERENCE_TEXTS)["strict"]["v_score"]
    assert backwards["strict"]["v_score"]["value"] == pytest.approx(forwards)
    for box in ("[0, 200, 9, 224]", "[112, 0, 224, 224]"):  # a stray one, one twice
        worse = [f"{text[:-1]}, {box}]" for text in REFERENCE_TEXTS]
        assert figures(worse)["strict"]["v_score"] < forwards


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
    found = figures(REFERENCE_TEXTS, options=judged(asked))
    for protocol, expected in BY_HAND["judged"].items():
        assert differing(found[protocol], expected) == {}
    by_type = {kind: found["paper"][f"by_question_type/ar_score/{kind}"] for kind in KINDS}
    assert 100 * by_type["open_ended"] == pytest.approx(44.44, abs=0.005)
    assert found["paper"]["ar_score"] == pytest.approx(np.mean(list(by_type.values())))
    assert asked.asked[3].question.startswith("What is it? <choices>: [A: Clear lungs")
    assert asked.asked[3].reference == "B It is seen there."
    assert asked.asked[3].answer == "B It is seen there."


def test_a_judge_that_fails_in_one_order_is_left_out_where_that_order_counts():
    asked = judge()
    asked.marks["q3"] = (Marks(8, 8), Marks(None, None, "truncated"))
    asked.marks["q4"] = (Marks(None, None, "refusal"), Marks(8, 8))
    scores = score_records(RECORDS, said(REFERENCE_TEXTS), judged(asked))
    for protocol, expected in BY_HAND["judge_fails"].items():
        named = scores.figures["model"][protocol]
        assert differing({name: figure.value for name, figure in named.items()}, expected) == {}
        assert named["by_question_type/ar_score/single_choice"].n == 1
    problems = scores.problems["model"]
    assert problems["judge_failure/refusal"] == 2 and problems["judge_failure/truncated"] == 1
    tables = GEMEX.markdown(scores)
    assert "judge_failure/refusal: the judge declined" in tables
    assert "left out under `paper` and counts as 0 under `strict`" in tables


def test_a_surrogates_figures_are_never_called_ar_score():
    found = figures(REFERENCE_TEXTS, options=judged(judge(surrogate=True)))["paper"]
    named = {name for name, value in found.items() if "ar_score" in name and value is not None}
    assert named and all(name.startswith("surrogate/") for name in named)


def test_judges_are_shown_the_report_where_the_references_keep_it():
    record = make(9, "open_ended", "Fluid.", quality={"native_fields": {"ori_report": "REPORT"}})
    asked = judge()
    asked.marks["q9"] = asked.marks["q3"]
    figures(["Fluid."], [record], judged(asked))
    assert asked.asked[0].context == "REPORT"


def test_outcomes_for_the_page():
    def outcome(record, text):
        (prediction,) = said([text], [record])
        return GEMEX.outcome(record, prediction, None)

    right = outcome(RECORDS[3], REFERENCE_TEXTS[3])
    assert (right.right, right.note) == (True, "said B") and right.iou == pytest.approx(1)
    wrong = outcome(RECORDS[4], "C")
    assert (wrong.right, wrong.iou, wrong.note) == (False, 0.0, "said C; it is A, C")
    assert "could not be matched" in outcome(RECORDS[1], "Maybe.").note
    assert outcome(RECORDS[0], REFERENCE_TEXTS[0]).right is None


def test_released_rows_are_scored_without_sizes():
    paths = sorted(BENCH_SAMPLE.glob("test/*_question.jsonl"))
    records = [one for path in paths for one in read_native(path, "test", QualityLog())]
    assert {record.image_hw for record in records} == {None}
    found = figures([record.answer_text for record in records], records)["strict"]
    assert found["a_score"] == 1 and found["v_score"] == pytest.approx(1)


def boxed(*box):
    return [Answer(text="x", boxes_by_image={"i1": [[*box]]})]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question_type": "What"}, "is of type 'What': expected one of open_ended"),
        ({"answers": []}, "has no answer"),
        ({"question_id": "q0"}, "stands there twice"),
        ({"answers": boxed(9, 9, 5, 5)}, "leaves its image or has no extent"),
        ({"image_hw": None, "answers": boxed(1, 1, 5, 5)}, "image_hw null: join its size"),
    ],
)
def test_unusable_references(change, message):
    with pytest.raises(UserError, match=message):
        read_references([RECORDS[0], RECORDS[1].model_copy(update=change)], "file", read_question)
    with pytest.raises(UserError, match="holds no records"):
        read_references([], "file", read_question)


def test_references_whose_key_cannot_be_read_are_left_out_of_the_a_score_and_counted():
    records = [*RECORDS, make(7, "single_choice", "D"), make(8, "closed_ended", "Perhaps.")]
    scores = score_records(records, said([one.answer_text for one in records], records))
    named = scores.metrics()["model"]["strict"]
    assert scores.settings["questions_without_key"] == 2
    assert named["a_score"] == {"value": 1.0, "ci_low": None, "ci_high": None, "n": 5}
    assert "2 references name no option" in GEMEX.markdown(scores)


def command(tmp_path, *flags):
    references, out = tmp_path / "records" / "test.jsonl", tmp_path / "scores"
    write_records(references, RECORDS)
    paths = []
    for name, texts in {"base": ["yes"] * 6, "llava_med_v1": REFERENCE_TEXTS}.items():
        path = tmp_path / f"{name}.jsonl"
        told = zip(RECORDS, texts, strict=True)
        lines = [{"question_id": record.question_id, "text": text} for record, text in told]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        paths.append(f"--predictions={path}")
    where = ["--benchmark=gemex", f"--references={references}", f"--out={out}"]
    score.main([*where, *paths, "--resamples=30", *flags])
    return out


def test_the_command_writes_the_papers_tables(tmp_path, capsys):
    out = command(tmp_path, "--judge=surrogate")
    tables = (out / "tables.md").read_text()
    assert "llava_med_v1 − LLaVA-Med-v1 | difference" in tables
    assert "| 71.14 [1] |" in tables and "needs 77.14" in tables
    assert "Surrogate of the AR-score, open" in tables
    assert "so that there is no AR-score" in tables
    rows = list(csv.DictReader((out / "tables.csv").open()))
    by_name = {(row["system"], row["column"], row["protocol"]): row for row in reversed(rows)}
    cell = by_name["llava_med_v1", "Closed A", "paper"]
    assert float(cell["ours"]) == 100 and float(cell["difference"]) == pytest.approx(37.38)
    blank = by_name["llava_med_v1", "Multi A", "paper"]
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
        flags = ["--benchmark=vindr_cxr_vqa", "--references=x", "--predictions=y", "--out=z"]
        score.main([*flags, f"--bertscore_model={tmp_path}"])
    questions = tmp_path / "questions.jsonl"
    write_records(questions, map(strip_answers, RECORDS))
    with pytest.raises(UserError, match=r"questions.jsonl: question 'q0' has no answer"):
        GEMEX.score_files(questions, {"x": questions}, OPTIONS)


@cases("text, f1")
def test_open_answers_lose_what_they_turn_round(text, f1):
    record = make(0, "open_ended", "A pleural effusion on the left, no pneumothorax.")
    record = record.model_copy(update={"reason": None})
    record.answers[0].text = record.answers[0].text.replace("It is seen there.", "")
    texts = [f"<answer> {text} <reason> <location>[]"]
    found = score_records([record], said(texts, [record])).figures["model"]
    assert found["strict"]["fact_f1"].value == pytest.approx(f1)
    assert found["strict"]["fact_f1"].n == 1


def test_only_open_answers_are_held_against_the_reference_by_what_they_compare():
    """A worse effusion called unchanged, on the other side, and a pneumothorax that nobody saw."""
    record = make(0, "open_ended", "The left pleural effusion has increased.")
    closed = make(1, "closed_ended", "The left pleural effusion has increased.")
    text = "<answer> Unchanged right pleural effusion. Pneumothorax. <reason> <location>[]"
    found = score_records([record, closed], said([text], [record])).figures["model"]
    values = {name: figure.value for name, figure in found["strict"].items()}
    assert differing(values, BY_HAND["compared"]) == {}
    assert found["strict"]["temporal/f1"].n == found["strict"]["surrogate/weighted_errors"].n == 1


def test_other_options_on_another_picture_are_other_decisions():
    """One of two choices changes; the other and the yes stay, in other words."""
    kinds = ("single_choice", "single_choice", "closed_ended", "open_ended")
    keys = ("A", "B", "yes", "An effusion.")
    records = [make(n, *one) for n, one in enumerate(zip(kinds, keys, strict=True))]
    told = {"m": keys, "m_noise": ("C", "The answer is B", "Yes.", "")}
    systems = {
        name: Answers(said([f"<answer> {text}" for text in texts], records), name)
        for name, texts in told.items()
    }
    references = GEMEX.read(records, "test", OPTIONS.gt_mode)
    lines = GEMEX.score(references, systems, OPTIONS).reliance
    found = {line["measure"]: (line["value"], line["n"]) for line in lines}
    assert found["changed/decision"] == (pytest.approx(1 / 3), 3)
    assert found["changed/decision_yes"] == (0, 1)
    assert found["changed/words"] == (1, 4)


TABLE_5, TABLE_6 = (GEMEX.layout.table(key) for key in ("table_5", "table_6"))
TITLES = [column.title for column in TABLE_5.columns]
# Test questions of each type (Table 3).
QUESTIONS = {"Open AR": 1144, "Closed AR": 543, "Single AR": 1300, "Multi AR": 973}


def printed(row):
    return dict(zip(TITLES, TABLE_5.printed[row], strict=True))


@pytest.mark.parametrize("row", [row for row in TABLE_5.printed if row != "Random"])
def test_averages_are_unweighted_means_of_the_types(row):
    """Weighted by questions, the last row would be another."""
    cells = printed(row)
    if row == "GPT-4o-mini":
        assert np.mean([cells[title] for title in QUESTIONS]) == pytest.approx(80.80, abs=0.005)
        cells["Closed AR"] = 77.14  # what the footnote says
    values, weights = [cells[title] for title in QUESTIONS], list(QUESTIONS.values())
    assert np.mean(values) == pytest.approx(cells["Avg. AR"], abs=0.0051)
    if row == "LLaVA-Med-GEMeX":
        assert np.average(values, weights=weights) == pytest.approx(86.71, abs=0.005)


def test_claims_of_the_text():
    ours = printed("LLaVA-Med-GEMeX")["Avg. AR"]
    assert ours - printed("LLaVA-Med-v1")["Avg. AR"] == pytest.approx(13.51)
    assert ours - printed("GPT-4o-mini")["Avg. AR"] == pytest.approx(3.74)
    tuned, base = (np.array(TABLE_6.printed[r]) for r in ("LLaVA-Med-GEMeX", "GPT-4o-mini"))
    assert np.mean(tuned - base) == pytest.approx(12.11, abs=0.005)
    single = [column.title for column in TABLE_6.columns].index("Single BLEU-1")
    better, worse = (TABLE_6.printed[r][single] for r in ("mPLUG-Owl", "LLaVA-v1.5"))
    assert better - worse == pytest.approx(28.83)


def test_the_random_row_is_near_chance():
    random = printed("Random")
    for kind, chance, off in (("Closed", 50, 2), ("Single", 25, 1), ("Multi", 100 / 15, 1)):
        assert random[f"{kind} A"] == pytest.approx(chance, abs=off)


def test_blanks_are_where_the_paper_has_them():
    blank = {row: sum(v is None for v in values) for row, values in TABLE_5.printed.items()}
    assert blank == blank | data(__file__)["blanks"]
    assert all(None not in values for values in TABLE_6.printed.values())
    assert len(TABLE_5.columns) == len(TABLE_6.columns) == 12


def test_every_column_has_a_metric_of_its_own_type():
    for table in (TABLE_5, TABLE_6):
        for column in table.columns:
            kind = column.title.split()[0].lower()
            for metric in (column.metrics[protocol] for protocol in (PAPER, STRICT)):
                assert metric == "ar_score" or metric.split("/")[-1].startswith(kind)


@cases("system, row")
def test_systems_are_compared_with_their_own_row(system, row):
    assert GEMEX.layout.paper_row(system) == row


@cases("datasets, splits, are")
def test_images_that_were_trained_on_are_not_the_papers(datasets, splits, are):
    scores = SimpleNamespace(settings={"datasets": datasets, "splits": splits})
    assert GEMEX.layout.has_papers_images(scores) is are
