"""`build --generator=language_model` on the sample table, against a server on this machine."""

import json
from pathlib import Path

import pytest

from cxrjax.commands.build import main
from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.build import VinDrBuilder, VinDrOptions
from cxrjax.papers.vindr_cxr_vqa.construct import language_model_writer
from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import TemplateWriter
from cxrjax.records import read_records

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "vindr_cxr_vqa" / "sample"
TABLE = SAMPLE / "train.csv"
FLAGS = ("--dataset=vindr_cxr_vqa", "--generator=language_model", "--model=wordy")
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
    prompt, text_of = language_model_writer.load_prompt(), language_model_writer.plan_text
    words = {text_of(plan, prompt): _words(plan) for plan in plans}
    refused = text_of(plans[0], prompt)

    def script(body, number):
        text = body["messages"][1]["content"]
        if text == refused:
            return chat.Text(None, refusal="I cannot look at patients.")
        return chat.Text(json.dumps(words[text]))

    def run(*flags):
        with chat.Server(script) as server:
            monkeypatch.setenv("CXRJAX_LM_BASE_URL", server.url)
            main([*FLAGS, f"--source={TABLE}", f"--out={tmp_path / 'out'}", *flags])
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
    assert [(e["reason"], e["item"]) for e in entries] == [
        ("generator_failed", build.plans[0].question_id)
    ]
    assert entries[0]["found"].startswith("refusal")
    account = json.loads(capsys.readouterr().out.splitlines()[-2])["wordy"]
    assert account["requests"] == asked

    first = (build.out / "records/train.jsonl").read_bytes()
    assert not build().bodies, "a second build is answered from the cache"
    assert (build.out / "records/train.jsonl").read_bytes() == first


def test_a_dry_run_sends_and_writes_nothing(build, capsys):
    assert not build("--dry_run").bodies
    assert f"{len(build.plans):,} requests to send" in capsys.readouterr().out
    assert not (build.out / "records").exists()


def test_a_release_has_its_own_words(tmp_path):
    nowhere = "--base_url=http://127.0.0.1:9/v1"
    with pytest.raises(UserError, match="brings its own questions"):
        main([*FLAGS, f"--source={SAMPLE / 'data_v1.json'}", f"--out={tmp_path}", nowhere])
