"""The commands of configs/cxr_qba.py's docstring, on a few phantom studies with their images."""

import base64
import json
from pathlib import Path

import numpy as np
import openai
import pytest

from cxrjax.apps.serving.named_models import open_served
from cxrjax.apps.serving.start import Bounds, answering_beside
from cxrjax.commands import build, predict, score, train
from cxrjax.records import read_records, strip_answers, write_records

_ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Phantom studies, their questions, and these in shards."""
    root = tmp_path_factory.mktemp("cxr_qba")
    studies = f"{root / 'studies'}"
    build.main(["--dataset=phantom_studies", "--studies=8", "--long_side=144", f"--out={studies}"])
    rated = ["--rate_with=surrogate", "--least_grade=A"]
    build.main(["--dataset=cxr_qba", f"--source={studies}", *rated, f"--out={root / 'data'}"])
    shards = [f"--source={root / 'data'}", f"--out={root / 'shards'}", "--num_shards=2"]
    build.main(["--dataset=shards", *shards])
    return root


def _train(data, workdir, steps, **changed):
    settings = {
        "data.train": data / "data" / "records" / "train.jsonl",
        "data.image_root": data / "studies",
        "training.batch_images": 8,
        "data.packed_buckets": (640,),
        "data.workers": 0,
        "model.unroll": "false",
        "training.steps": steps,
        "training.log_every": 1,
        "training.checkpoint_every": steps,
        "decoding.max_answer_tokens": 8,
    }
    settings |= {f"data.{name}": value for name, value in changed.items()}
    words = (f"--config.{name}={value}" for name, value in settings.items())
    train.main(["--config=configs/cxr_qba.py:tiny", f"--workdir={workdir}", *words])
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
    assert np.isfinite([line["train/loss"] for line in lines]).all()
    return lines


def _predict(data, folder, questions):
    """The answers of the run in `folder`, written beside it."""
    out = folder / f"{questions.stem}.predictions.jsonl"
    where = [f"--workdir={folder / 'run'}", f"--image_root={data / 'studies'}", f"--out={out}"]
    predict.main([*where, f"--questions={questions}"])
    return out, [json.loads(line) for line in out.open()]


def _score(references, answers, folder):
    told = [f"--references={references}", f"--predictions={answers}", f"--out={folder}"]
    score.main(["--benchmark=cxr_qba", *told])
    return json.loads((folder / "metrics.json").read_text())


@pytest.mark.slow
def test_training_on_images_answering_and_scoring(data, tmp_path, monkeypatch):
    monkeypatch.chdir(_ROOT)  # the configuration names the shipped base
    lines = _train(data, tmp_path / "run", 4)
    losses = [line["train/loss"] for line in lines]
    assert len(losses) == 4 and losses[3] < losses[0]
    assert all(0 < line["train/box_iou"] < 1 for line in lines)

    largest = max((data / "data" / "questions").glob("*.jsonl"), key=lambda f: f.stat().st_size)
    for kind in ("questions", "records"):
        some = (data / "data" / kind / largest.name).read_text().splitlines(keepends=True)[:6]
        (tmp_path / f"{kind}.jsonl").write_text("".join(some))
    answers, said = _predict(data, tmp_path, tmp_path / "questions.jsonl")
    assert len(said) == 6
    metrics = _score(tmp_path / "records.jsonl", answers, tmp_path / "scores")
    assert "strict" in metrics["questions.predictions"]


@pytest.mark.slow
def test_training_on_shards_chooses_by_their_table(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(_ROOT)
    chosen = ("surrogate_grade=A++|A+|A", "view=PA", "question_strategy=finding")
    _train(data, tmp_path / "run", 2, train=data / "shards", select=chosen)
    records = list(read_records(data / "data" / "records" / "train.jsonl"))
    found = [r for r in records if (r.view, r.question_strategy) == ("PA", "finding")]
    assert 0 < len(found) < len(records)
    assert f"of {len(found):,} questions" in capsys.readouterr().out


@pytest.mark.slow
def test_questions_on_change_are_trained_on_and_answered_with_both_images(
    data, tmp_path, monkeypatch
):
    """Another earlier image gives other likelihoods, all else alike."""
    monkeypatch.chdir(_ROOT)
    flags = ["--dataset=cxr_qba", f"--source={data / 'studies'}", f"--out={tmp_path / 'data'}"]
    build.main([*flags, "--rate_with=surrogate", "--longitudinal"])
    files = sorted((tmp_path / "data" / "records").glob("*.jsonl"))
    records = [record for file in files for record in read_records(file)]
    compared = [record for record in records if record.earlier is not None]
    assert compared and all(r.question_strategy == "longitudinal" for r in compared)
    chosen, references = tmp_path / "chosen.jsonl", tmp_path / "references.jsonl"
    write_records(chosen, [*compared[:12], *(r for r in records[:20] if r.earlier is None)])
    write_records(references, compared[:4])
    # The image of now in the place of the earlier one: nothing can have changed.
    same = [record.model_copy(deep=True) for record in compared[:4]]
    for record in same:
        record.earlier.image_path = record.image_path
    _train(data, tmp_path / "run", 2, train=chosen, earlier_images=True)
    found, texts = {}, {}
    for name, own in (("same", same), ("questions", compared[:4])):
        write_records(tmp_path / f"{name}.jsonl", map(strip_answers, own))
        answers, said = _predict(data, tmp_path, tmp_path / f"{name}.jsonl")
        found[name] = [line["answer_logprob"] for line in said]
        texts[name] = [line["text"] for line in said]
    assert len(found["same"]) == 4 and None not in found["questions"]
    assert np.abs(np.subtract(found["questions"], found["same"])).min() > 1e-5
    assert _score(references, answers, tmp_path / "scores")
    served = open_served(tmp_path / "run", "run", {}, slots=1, longest_prompt=64, decoding={})
    with answering_beside(served, Bounds(seconds=600)) as (address, token):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=token, max_retries=60)
        for name, own in (("same", same), ("questions", compared)):
            told = client.chat.completions.create(**_body(data / "studies", own[0]))
            grounding = told.choices[0].grounding
            assert grounding["text"] == texts[name][0]
            assert grounding["answer_logprob"] == pytest.approx(found[name][0], abs=1e-3)


def _body(root, record):
    """The question of a record in OpenAI's form, with its image and the earlier one."""
    parts = [{"type": "text", "text": record.question}]
    for path in (record.image_path, record.earlier.image_path):
        coded = base64.b64encode((root / path).read_bytes()).decode()
        url = {"url": f"data:application/octet-stream;base64,{coded}"}
        parts.append({"type": "image_url", "image_url": url})
    return {"model": "run", "messages": [{"role": "user", "content": parts}]}
