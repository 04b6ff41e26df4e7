"""ViX-Ray's figures and comparisons, through the commands."""

import csv
import json

import pytest
import sacrebleu
from pyvi import ViTokenizer

from cxrjax.errors import UserError
from cxrjax.evaluation.predictions import Prediction
from cxrjax.papers.vix_ray.figures import VIX_RAY
from cxrjax.papers.vix_ray.records import VixRayStudy, records
from cxrjax.papers.vix_ray.tables import printed_tables
from cxrjax.records import read_records, strip_answers, write_records
from tests.evaluation import made
from tests.papers.cases import data

CASES = made.cases_of(__file__)

TEXTS = data(__file__)["texts"]
FINDINGS, IMPRESSIONS = zip(*TEXTS, strict=True)


@pytest.fixture
def folder(tmp_path):
    """A folder with the references, to which `predict` adds answers."""
    shared = {"split": "test", "where": "", "view": "PA", "sex": "M", "age": 60, "note": ""}
    shared |= {"image_path": "x.png", "image_sha256": "", "image_hw": (10, 10)}
    studies = [
        VixRayStudy(
            image_id=f"vixray-test-{n:05d}",
            findings=findings,
            impression=impression,
            native={"file": "test.parquet", "row": n, "columns": {}},
            **shared,
        )
        for n, (findings, impression) in enumerate(TEXTS)
    ]
    references = tmp_path / "records.jsonl"
    write_records(references, [record for study in studies for record in records(study)])
    return tmp_path


def predict(folder, name, kind, texts, **fields):
    """Writes a system's answers to the questions of a kind about the first images."""
    lines = [
        {"question_id": f"vixray-test-{n:05d}-{kind}", "text": text, "boxes": [], **fields}
        for n, text in enumerate(texts)
    ]
    with open(folder / f"{name}.jsonl", "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    return name


def run(folder, *systems, **flags):
    return made.run_score(folder, *systems, benchmark="vix_ray", **flags)


def tables_of(folder):
    with open(folder / "out" / "tables.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_figures_of_each_stage_by_hand_and_by_sacrebleu(folder):
    said = ["Bóng tim to. Góc sườn hoành hai bên tù.", TEXTS[1][0], ""]
    metrics, tables = run(folder, predict(folder, "tuned", "stage1-findings", said))
    named = metrics["tuned"]["paper"]
    # 8 of 9 words, all of them, none.
    assert named["stage1/findings/rouge_1"]["value"] == pytest.approx((8 / 9 + 1 + 0) / 3)
    strip = [text.lower().replace(".", "") for text in said]
    true = [text.lower().replace(".", "") for text, _ in TEXTS]
    expected = sacrebleu.corpus_bleu(strip, [true], tokenize="none").score / 100
    assert named["stage1/findings/bleu_4"]["value"] == pytest.approx(expected)
    assert named["stage1/findings/bleu_4"]["n"] == 3
    undefined = {"value": None, "ci_low": None, "ci_high": None, "n": 0}
    assert named["stage2/impression/bleu_4"] == undefined
    assert named["parse_failure_rate"]["value"] == pytest.approx(1 / 3)
    assert "Qwen2.5VL-7B (the paper) | as printed | 84.30 | 76.10 | 81.21 | 71.22 |" in tables
    assert "Table 6, test. Stage 2" not in tables


def test_texts_are_held_against_each_other_by_what_they_assert(folder):
    """An effusion on the other side; an enlarged heart left out, another one made up."""
    said = ["Tim không to.", "Tràn dịch màng phổi trái. Bóng tim to.", TEXTS[2][0]]
    metrics, tables = run(folder, predict(folder, "tuned", "stage1-findings", said))
    named = metrics["tuned"]["strict"]
    errors = "stage1/findings/surrogate/weighted_errors"
    for part, weight in (("missed", 0.5), ("false", 0.5), ("side", 0.25), ("severity", 0)):
        assert named[f"{errors}/{part}"]["value"] == pytest.approx(weight / 3)
    assert named[errors]["value"] == pytest.approx(1.25 / 3) and named[errors]["n"] == 3
    assert named["stage1/findings/temporal/f1"]["value"] is None
    assert "Weighted errors in 100 texts" in tables and "41.67" in tables


def test_images_of_one_patient_are_resampled_together(folder):
    true = list(read_records(folder / "records.jsonl"))
    others = [r for r in true if r.image_id != true[-1].image_id]
    same = [r.model_copy(update={"patient_id": "p"}) for r in others]
    write_records(folder / "records.jsonl", [*same, *true[len(others) :]])
    run(folder, predict(folder, "m", "stage1-findings", ["Tim to."]))
    bootstrap = made.read_json(folder, "out", "score.json")["bootstrap"]
    assert bootstrap["clustered_by"] == ["image", "patient"] and bootstrap["clusters"] == 2


def test_stage_three_beside_one_and_two_and_after_beside_before(folder):
    predict(folder, "before", "stage1-findings", ["Bóng tim to."] * 3)
    predict(folder, "stage1", "stage1-findings", FINDINGS[:2])
    predict(folder, "gold", "stage3-findings", ["Bóng tim to."] * 3)
    predict(folder, "gold", "stage3-impression", IMPRESSIONS)
    metrics, tables = run(folder, "before", "stage1", "gold", resamples=20)

    def value(system, name):
        return metrics[system]["paper"][name]["value"]

    rouge = "stage1/findings/{}rouge_1"
    difference = value("stage1", rouge.format("")) - value("before", rouge.format(""))
    assert difference > 0
    assert value("stage1", rouge.format("minus/before/")) == pytest.approx(difference)
    # Beside the stage named last before it, not the model before fine-tuning.
    assert value("gold", "stage3/findings/minus_stage1/stage1/rouge_l") < 0
    compared = {name.split("/")[3] for name in metrics["gold"]["paper"] if "/minus_stage" in name}
    assert compared == {"stage1"}
    # A question left out is scored as empty.
    assert value("stage1", "stage1/findings/rouge_l") == pytest.approx(2 / 3)
    table_5 = tables.split("## Table 5.")[1].split("##")[0]
    assert "the paper's values are not available" in table_5
    lines = [line for line in table_5.splitlines() if line.startswith("|")]
    stage_1, stage_3, difference = lines[2:]
    assert stage_1.startswith("| Stage 1, findings: stage1 | 66.67 |")
    assert stage_3.startswith("| Stage 3, findings: gold | 33.33 |")
    assert difference.startswith("| difference | ↓ 33.33 (")
    table_11 = tables.split("## Table 11.")[1].split("##")[0]
    assert "| Stage 1, findings: before |" in table_11 and "| difference | ↑ " in table_11
    assert "## Table 12." not in tables
    tables = {row["table"] for row in tables_of(folder)}
    assert tables >= {"table_6/stage1/findings", "differences"}


def test_bleu_orders_and_words_are_those_of_sacrebleu(folder):
    said = ["Bóng tim to vừa.", "Tràn dịch màng phổi trái.", "Tim phổi bình thường."]
    predict(folder, "m", "stage2-impression", said)
    pair = (said, IMPRESSIONS)
    syllables = [[text.lower().replace(".", "") for text in texts] for texts in pair]
    metrics, tables = run(folder, "m")
    segmented = [
        [
            " ".join(word for word in ViTokenizer.tokenize(t).lower().split() if word != ".")
            for t in s
        ]
        for s in pair
    ]
    assert any("_" in text for text in segmented[1])
    for prefix, (hypotheses, true) in (("", syllables), ("words/", segmented)):
        for order in range(1, 5):
            own = sacrebleu.BLEU(tokenize="none", max_ngram_order=order)
            expected = own.corpus_score(hypotheses, [true]).score / 100
            found = metrics["m"]["paper"][f"stage2/impression/{prefix}bleu_{order}"]["value"]
            assert found == pytest.approx(expected), (prefix, order)
    assert "words cut by pyvi" in tables
    again, _ = run(folder, "m", segmenter="syllables")
    for order in range(1, 5):
        name = f"stage2/impression/{{}}bleu_{order}"
        named = again["m"]["paper"]
        assert named[name.format("words/")]["value"] == named[name.format("")]["value"]


def test_facts_of_a_surrogate_by_hand(folder):
    # 1 of 2 facts for 2 true ones; none for 2; 2 for the 1 true one, the true one among them.
    said = ["Bóng tim to. Gãy xương đòn.", "Xin lỗi, tôi không thể trả lời.", ""]
    said[2] = TEXTS[2][0] + " Xơ phổi trái."
    predict(folder, "m", "stage1-findings", said)
    metrics, tables = run(folder, "m", judge="surrogate")
    named = {
        name.removeprefix("stage1/findings/"): figure["value"]
        for name, figure in metrics["m"]["strict"].items()
        if name.startswith("stage1/findings/")
    }
    assert named["surrogate/fact_precision"] == pytest.approx((1 / 2 + 0 + 1 / 2) / 3)
    assert named["surrogate/fact_recall"] == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert named["surrogate/fact_precision_micro"] == pytest.approx(2 / 4)
    assert named["surrogate/fact_recall_micro"] == pytest.approx(2 / 5)
    assert named["surrogate/judge_failure_rate"] == 0
    assert named["surrogate/correct_rate"] == named["surrogate/hallucinated_rate"] == 2 / 4
    assert named["surrogate/missing_rate"] == pytest.approx(3 / 5)
    assert named["refusal_rate"] == pytest.approx(1 / 3)
    # Never in the paper's own columns.
    assert named["fact_precision"] is None and named["fact_recall"] is None
    assert "they are not the paper's precision and recall" in tables
    judged = made.read_lines(folder / "out" / "judgements.jsonl")
    ids = [f"vixray-test-{n:05d}" for n in range(3)]
    assert [line["question_id"][:17] for line in judged] == ids
    assert all(line["surrogate"] for line in judged)
    facts = [row for row in tables_of(folder) if row["table"] == "facts"]
    assert facts and all("surrogate/" in row["metric"] for row in facts)


def test_identity_has_all_facts_and_table_6_the_papers_values(folder):
    metrics, _ = run(folder, predict(folder, "m", "stage1-findings", FINDINGS), judge="surrogate")
    for metric in ("fact_precision", "fact_recall", "fact_precision_micro", "fact_recall_micro"):
        assert metrics["m"]["paper"][f"stage1/findings/surrogate/{metric}"]["value"] == 1
    assert metrics["m"]["paper"]["stage1/findings/rouge_l"]["value"] == 1
    found = {table.title: table.printed for table in printed_tables("validation")}
    gemini = found["Table 6, validation. Stage 1, findings"]["Gemini"]
    assert gemini == (44.07, 34.01, 34.49, 22.79, 12.10, 11.20)
    test = {table.title: table.printed for table in printed_tables("test")}
    tuned = test["Table 6, test. Stage 3, impression"]["Qwen2.5VL-7B"]
    assert tuned == (95.2, 93.8, 94.68, 89.75, 89.95, 90.88)


def test_second_turns_say_which_history_they_had(folder):
    # Something else that somebody keeps under this name is nothing said.
    for name, history in (("a", "gold"), ("b", "self"), ("c", [{"question": "x"}])):
        predict(folder, name, "stage3-impression", IMPRESSIONS, history=history)
    _, tables = run(folder, "a", "b")
    assert "| a, history=gold | paper |" in tables and "| b, history=self | paper |" in tables
    assert "No system with history" not in tables
    assert "No system with history=self is here" in run(folder, "a")[1]
    assert "| c, history=not stated | paper |" in run(folder, "c")[1]
    gold, own = (made.read_lines(folder / f"{name}.jsonl") for name in "ab")
    made.write_lines(folder / "d.jsonl", [gold[0], *own[1:]])
    with pytest.raises(UserError, match="second turns of stage 3 on several histories"):
        run(folder, "d")


def test_footnotes_stand_at_the_papers_odd_cells():
    noted = {
        (table.title.split(", ", 1)[1], note.column, row)
        for split in ("validation", "test")
        for table in printed_tables(split)
        for note in table.notes
        for row in note.rows
    }
    assert ("validation. Stage 1, findings", "ROUGE-2", "Gemini") in noted
    assert ("test. Stage 1, findings", "ROUGE-2", "Gemini") not in noted
    assert ("test. Stage 3, findings", "BLEU", "Gemini") in noted
    assert ("test. Stage 2, impression", "BLEU", "Qwen2.5VL-7B") in noted
    assert ("validation. Stage 2, impression", "BLEU", "Qwen2.5VL-7B") not in noted
    assert ("test. Stage 3, impression", "ROUGE-1", "Qwen2.5VL-7B") in noted
    assert ("test. Stage 1, findings", "Precision", "GPT-4v") in noted
    assert ("test. Stage 1, findings", "Precision", "Gemini") not in noted


@pytest.mark.parametrize(("text", "right", "note"), CASES["outcomes"])
def test_what_came_of_one_question(folder, text, right, note):
    record = next(read_records(folder / "records.jsonl"))
    found = VIX_RAY.outcome(record, Prediction("q", text, None, None, None), None)
    assert (found.right, found.iou, found.note) == (right, None, note)


def test_flags_that_do_not_go_together(folder):
    predict(folder, "a", "stage1-findings", ["x"])
    for flags, told in data(__file__)["flags_that_do_not_go_together"]:
        with pytest.raises(UserError, match=told):
            run(folder, "a", **flags)


def test_unusable_input_is_refused(folder):
    predict(folder, "a", "stage1-findings", ["x"])
    predict(folder, "b", "stage1-findings", ["x"] * 4)
    with pytest.raises(UserError, match="not in the references"):
        run(folder, "b")
    true, references = list(read_records(folder / "records.jsonl")), folder / "other.jsonl"
    write_records(references, map(strip_answers, true))
    with pytest.raises(UserError, match="has no answer; give a file of records/"):
        run(folder, "a", references=references)
    write_records(references, [r.model_copy(update={"question_strategy": "x"}) for r in true])
    with pytest.raises(UserError, match="is of x/findings"):
        run(folder, "a", references=references)
