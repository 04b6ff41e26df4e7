"""`build --generator=language_model` on the sample table, against a server on this machine."""

import json
from pathlib import Path

import pytest

from cxrjax.build import main
from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.build import VinDrBuilder, VinDrOptions
from cxrjax.papers.vindr_cxr_vqa.construct.language_model_writer import load_prompt, plan_text
from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import TemplateWriter
from cxrjax.records import read_records

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "vindr_cxr_vqa" / "sample"
TABLE = SAMPLE / "train.csv"
ASKED = {
    "What": "What is abnormal here?",
    "Where": "Where is {}?",
    "Which": "Which region shows {}?",
    "How_many": "How many areas of {} are there?",
    "Yes_No": "Does the image show {}?",
    "Is_there": "Is there {}?",
}


def _words(plan):
    """Sound words: an answer of the templates."""
    ((_, wording),) = TemplateWriter(0).write([plan])
    return {
        "question": ASKED[plan.kind].format(plan.labels[0]),
        "answer": wording.answer,
        "reason": " ".join(["word"] * 200),
        "difficulty": "Easy",
    }


@pytest.fixture
def build(chat, tmp_path, monkeypatch):
    """`build(*flags)` -> the server, which has words for every plan but the first."""
    plans = VinDrBuilder(VinDrOptions(TABLE, tmp_path / "out")).plan()
    words = {plan_text(plan, load_prompt()): _words(plan) for plan in plans}
    refused = plan_text(plans[0], load_prompt())

    def script(body, number):
        text = body["messages"][1]["content"]
        if text == refused:
            return chat.Text(None, refusal="I cannot look at patients.")
        return chat.Text(json.dumps(words[text]))

    def run(*flags):
        with chat.Server(script) as server:
            monkeypatch.setenv("CXRJAX_LM_BASE_URL", server.url)
            where = [f"--source={TABLE}", f"--out={tmp_path / 'out'}"]
            how = ["--generator=language_model", "--model=wordy", *flags]
            main(["--dataset=vindr_cxr_vqa", *where, *how])
        return server

    run.plans, run.out = plans, tmp_path / "out"
    return run


def test_words_come_from_the_model_and_truth_from_the_table(build, capsys):
    asked = len(build().bodies)
    records = [r for path in sorted(build.out.glob("records/*.jsonl")) for r in read_records(path)]
    assert asked == len(build.plans)
    assert len(records) == asked - 1
    assert {record.generator.name for record in records} == {"wordy"}
    planned = {plan.question_id: plan for plan in build.plans}
    for record in records:
        plan = planned[record.question_id]
        assert record.gt_finding == plan.labels[0]
        assert [tuple(box) for box in record.boxes] == list(plan.boxes[plan.labels[0]])
    entries = json.loads((build.out / "quality.json").read_text())["set_aside"]
    (entry,) = entries
    assert (entry["reason"], entry["item"]) == ("generator_failed", build.plans[0].question_id)
    assert entry["found"].startswith("refusal")
    account = json.loads(capsys.readouterr().out.splitlines()[-2])["wordy"]
    assert account["requests"] == asked

    first = (build.out / "records" / "train.jsonl").read_bytes()
    assert not build().bodies, "a second build is answered from the cache"
    assert (build.out / "records" / "train.jsonl").read_bytes() == first


def test_a_dry_run_sends_and_writes_nothing(build, capsys):
    assert not build("--dry_run").bodies
    assert f"{len(build.plans):,} requests to send" in capsys.readouterr().out
    assert not (build.out / "records").exists()


def test_a_release_has_its_own_words(chat, tmp_path):
    flags = ["--dataset=vindr_cxr_vqa", f"--source={SAMPLE / 'data_v1.json'}", f"--out={tmp_path}"]
    flags += ["--generator=language_model", "--model=wordy", "--base_url=http://127.0.0.1:9/v1"]
    with pytest.raises(UserError, match="brings its own questions"):
        main(flags)
