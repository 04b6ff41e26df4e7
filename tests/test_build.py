"""The flags of `build`, and a build by a language model on this machine."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cxrjax.cli import run
from cxrjax.commands.build import main, parse_arguments
from cxrjax.errors import UserError
from cxrjax.paper import find_paper, load_papers
from cxrjax.papers.vindr_cxr_vqa.build import VinDrBuilder, VinDrOptions
from cxrjax.papers.vindr_cxr_vqa.construct import language_model_writer
from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import TemplateWriter
from cxrjax.records import read_records
from cxrjax.records_io.builder import Builder, BuildOptions
from tests.papers.cases import data

ROOT = Path(__file__).parents[1]
BUILT = [paper.name for paper in load_papers() if paper.builder]
COMMON = {"out", "seed", "processes", "strict"}


def _help(capsys, *words: str) -> str:
    with pytest.raises(SystemExit, match=r"^0$"):
        parse_arguments([*words, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("dataset", BUILT)
def test_help_of_a_data_set_shows_its_flags_alone(dataset, capsys):
    builder = find_paper(dataset).part("builder")
    assert issubclass(builder, Builder) and issubclass(builder.options_class, BuildOptions)
    shown = _help(capsys, f"--dataset={dataset}")
    assert ("--lean" in shown) == (dataset == "cxr_qba")
    assert ("--conspicuity" in shown) == (dataset in ("phantom", "vix_ray_synthetic"))
    assert ("--base_url" in shown) == (dataset in ("cxr_qba", "gemex", "vindr_cxr_vqa"))
    without = ("phantom", "phantom_studies", "vix_ray_synthetic")
    assert ("--source" in shown) == (dataset not in without)
    assert all(f"--{flag}" in shown for flag in COMMON)


def test_help_lists_data_sets_in_less_than_a_second(capsys):
    shown = _help(capsys)
    assert all(f"  {name} " in shown for name in BUILT)
    assert all(f"--{flag}" in shown for flag in (*COMMON, "source", "dataset"))
    assert "--lean" not in shown
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "cxrjax.build", "--help"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_a_flag_of_another_data_set_is_told_whose_it_is(tmp_path, capsys):
    told = (
        "--dataset=phantom: --coord_format belongs to --dataset=gemex; "
        "--lean belongs to --dataset=cxr_qba"
    )
    words = ["--dataset=phantom", "--lean", "--coord_format=xywh", f"--out={tmp_path}"]
    with pytest.raises(SystemExit, match=r"^2$"):
        run(lambda: main(words))
    assert capsys.readouterr().err.splitlines() == [f"error: {told}"]
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="--sizes belongs to --dataset=sizes and vindr_cxr_vqa"):
        main(["--dataset=gemex", "--source=x", "--out=y", "--sizes=z"])
    with pytest.raises(UserError, match="--model belongs to --dataset=cxr_qba and gemex and vind"):
        main(["--dataset=ms_cxr", "--source=x", "--out=y", "--model=m"])


@pytest.mark.parametrize("dataset", ["shards", "tfds"])
def test_what_only_writes_a_build_anew_refuses_flags_that_decide_nothing(dataset):
    told = "seed decides nothing; --processes decides nothing; --strict decides nothing"
    flags = ["--source=x", "--out=y", "--seed=3", "--processes", "2", "--strict"]
    with pytest.raises(UserError, match=f"--dataset={dataset}: --{told}"):
        main([f"--dataset={dataset}", *flags])
    parse_arguments([f"--dataset={dataset}", "--source=x", "--out=y"])


def test_unusable_missing_and_useful_flags(capsys):
    for words, told in data(__file__)["unusable_flags"].items():
        with pytest.raises(SystemExit, match=r"^2$"):
            parse_arguments(words.split())
        assert told in capsys.readouterr().err
    for words, told in data(__file__)["missing_flags"].items():
        with pytest.raises(UserError, match=told):
            parse_arguments(words.split())
    words = ["--dataset=vindr_cxr_vqa", "--source=a", "--out", "b", "--questions=dense"]
    words += ["--seed=3", "--strict", "--generator=language_model", "--dry_run", "--price_in=1.5"]
    options = parse_arguments(words).options
    assert (options.source, options.out, options.seed) == (Path("a"), Path("b"), 3)
    assert options.strict and options.questions == "dense" and options.mix == "released"
    assert options.client.dry_run and options.client.price_in == 1.5
    assert not options.client.text_only


SAMPLE = Path(__file__).resolve().parents[1] / "data" / "vindr_cxr_vqa" / "sample"
TABLE = SAMPLE / "train.csv"
FLAGS = ("--dataset=vindr_cxr_vqa", "--generator=language_model", "--model=wordy")
ASKED = data(__file__)["asked"]


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


def test_dry_runs_write_nothing_and_a_release_has_its_own_words(build, capsys, tmp_path):
    assert not build("--dry_run").bodies
    assert f"{len(build.plans):,} requests to send" in capsys.readouterr().out
    assert not (build.out / "records").exists()
    nowhere = "--base_url=http://127.0.0.1:9/v1"
    with pytest.raises(UserError, match="brings its own questions"):
        main([*FLAGS, f"--source={SAMPLE / 'data_v1.json'}", f"--out={tmp_path}", nowhere])
