"""ViX-Ray's figures, comparisons and error pages, through the commands."""

import csv
import json

import pytest
import sacrebleu

from cxrjax import score
from cxrjax.benchmarks import vix_ray_errors
from cxrjax.benchmarks.vix_ray_layout import paper_tables
from cxrjax.datasets.vix_ray.stages import records
from cxrjax.datasets.vix_ray.study import Study
from cxrjax.errors import UserError
from cxrjax.records import strip_answers, write_records

TEXTS = [
    ("Bóng tim to. Góc sườn hoành hai bên nhọn.", "Bóng tim to."),
    ("Tràn dịch màng phổi phải. Bóng tim không to.", "Tràn dịch màng phổi phải."),
    ("Nhu mô phổi hai bên sáng đều.", "Hình ảnh tim phổi bình thường."),
]


@pytest.fixture
def references(tmp_path):
    studies = [
        Study(
            image_id=f"vixray-test-{n:05d}",
            split="test",
            where="",
            findings=findings,
            impression=impression,
            view="PA",
            sex="M",
            age=60,
            note="",
            image_path="x.png",
            image_sha256="",
            native={"file": "test.parquet", "row": n, "columns": {}},
            image_hw=(10, 10),
        )
        for n, (findings, impression) in enumerate(TEXTS)
    ]
    path = tmp_path / "records" / "test.jsonl"
    write_records(path, [record for study in studies for record in records(study)])
    return path


def predict(path, answers):
    """A predictions file of (image number, stage-kind, text)."""
    lines = [
        {"question_id": f"vixray-test-{n:05d}-{kind}", "text": text, "boxes": []}
        for n, kind, text in answers
    ]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return path


def run(references, tmp_path, *files):
    words = [f"--predictions={file}" for file in files]
    out = tmp_path / "scores"
    score.main(
        ["--benchmark=vix_ray", f"--references={references}", *words, f"--out={out}"]
        + ["--resamples=20"]
    )
    return json.loads((out / "metrics.json").read_text()), (out / "tables.md").read_text()


def test_figures_of_each_stage_by_hand_and_by_sacrebleu(references, tmp_path):
    said = ["Bóng tim to. Góc sườn hoành hai bên tù.", TEXTS[1][0], ""]
    answers = [(n, "stage1-findings", text) for n, text in enumerate(said)]
    metrics, tables = run(references, tmp_path, predict(tmp_path / "tuned.jsonl", answers))
    named = metrics["tuned"]["paper"]
    # 8 of 9 words, all of them, none.
    assert named["stage1/findings/rouge_1"]["value"] == pytest.approx((8 / 9 + 1 + 0) / 3)
    strip = [text.lower().replace(".", "") for text in said]
    true = [text.lower().replace(".", "") for text, _ in TEXTS]
    expected = sacrebleu.corpus_bleu(strip, [true], tokenize="none").score / 100
    assert named["stage1/findings/bleu"]["value"] == pytest.approx(expected)
    assert named["stage1/findings/bleu"]["n"] == 3
    assert named["stage2/impression/bleu"] == {
        "value": None,
        "ci_low": None,
        "ci_high": None,
        "n": 0,
    }
    assert named["parse_failure_rate"]["value"] == pytest.approx(1 / 3)
    assert "Qwen2.5VL-7B (the paper) | as printed | 84.3 | 76.1 | 81.2 | 71.2" in tables
    assert "Stage 2" not in tables


def test_stage_three_beside_one_and_two_and_after_beside_before(references, tmp_path):
    before = predict(
        tmp_path / "before.jsonl", [(n, "stage1-findings", "Bóng tim to.") for n in range(3)]
    )
    one = predict(tmp_path / "stage1.jsonl", [(n, "stage1-findings", TEXTS[n][0]) for n in (0, 1)])
    gold = predict(
        tmp_path / "gold.jsonl",
        [(n, "stage3-findings", "Bóng tim to.") for n in range(3)]
        + [(n, "stage3-impression", TEXTS[n][1]) for n in range(3)],
    )
    metrics, tables = run(references, tmp_path, before, one, gold)

    def value(system, name):
        return metrics[system]["paper"][name]["value"]

    rouge = "stage1/findings/{}rouge_1"
    difference = value("stage1", rouge.format("")) - value("before", rouge.format(""))
    assert difference > 0
    assert value("stage1", rouge.format("minus/before/")) == pytest.approx(difference)
    # The same words in stage 3 and before.
    assert value("gold", "stage3/findings/minus_stage1/before/bleu") == 0
    assert value("gold", "stage3/findings/minus_stage1/stage1/rouge_l") < 0
    assert "stage3/impression/minus_stage2/gold/bleu" not in metrics["gold"]["paper"]
    # A question left out is scored as empty.
    assert value("stage1", "stage1/findings/rouge_l") == pytest.approx(2 / 3)
    assert "| Stage 3, findings: gold − stage1 (stage 1) | ↓ " in tables
    assert "| Stage 1, findings: stage1 − before | ↑ " in tables
    with open(tmp_path / "scores" / "tables.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["table"] for row in rows} >= {"table_6/stage1/findings", "differences"}


def test_unusable_input_is_refused(references, tmp_path):
    known = predict(tmp_path / "a.jsonl", [(0, "stage1-findings", "x")])
    with pytest.raises(UserError, match="not in the references"):
        run(references, tmp_path, predict(tmp_path / "b.jsonl", [(9, "stage1-findings", "x")]))
    with pytest.raises(UserError, match="no boxes"):
        score.main(
            ["--benchmark=vix_ray", f"--references={references}", f"--predictions={known}"]
            + ["--codec=paligemma", f"--out={tmp_path / 'o'}"]
        )
    from cxrjax.records import read_records

    questions = tmp_path / "questions.jsonl"
    write_records(questions, map(strip_answers, read_records(references)))
    with pytest.raises(UserError, match="has no answer; give a file of records/"):
        run(questions, tmp_path, known)
    other = [r.model_copy(update={"question_strategy": "x"}) for r in read_records(references)]
    write_records(questions, other)
    with pytest.raises(UserError, match="is of x/findings"):
        run(questions, tmp_path, known)


def test_the_papers_values_are_those_of_table_6():
    found = {table.title: table.printed for table in paper_tables("validation")}
    assert found["Table 6, validation. Stage 1, findings"]["Gemini"] == (44.07, 34.01, 34.49, 22.79)
    test = {table.title: table.printed for table in paper_tables("test")}
    assert test["Table 6, test. Stage 3, impression"]["Qwen2.5VL-7B"] == (95.2, 93.8, 94.68, 89.75)


def test_errors_in_colour_and_a_sheet(references, tmp_path):
    said = ["Bóng tim to. <b>Gãy xương</b> đòn.", "Xin lỗi, tôi không thể trả lời."]
    file = predict(tmp_path / "m.jsonl", [(n, "stage1-findings", t) for n, t in enumerate(said)])
    out = tmp_path / "errors"
    words = [f"--references={references}", f"--predictions={file}", f"--out={out}"]
    vix_ray_errors.main(words)
    counts = json.loads((out / "errors.json").read_text())
    assert counts["refusal"] == 1 and counts["answers"] == 2
    assert (counts["correct"], counts["hallucinated"], counts["missing"]) == (1, 1, 3)
    page = (out / "errors.html").read_text()
    assert '<span class="correct"' in page and "&lt;b&gt;" in page and "<b>" not in page
    raw = (out / "errors.csv").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf")
    with open(out / "errors.csv", encoding="utf-8-sig", newline="") as sheet:
        rows = list(csv.DictReader(sheet))
    assert len(rows) == 6 and all(row["judged"] == "" for row in rows)
    assert [row["guess"] for row in rows].count("refusal") == 1
    first = (out / "errors.html").read_bytes()
    vix_ray_errors.main(words)
    assert (out / "errors.html").read_bytes() == first
