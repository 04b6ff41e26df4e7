"""The commands of configs/cxr_qba.py's docstring, on a few phantom studies with their images."""

import json
from pathlib import Path

import numpy as np
import pytest

from cxrjax import build, predict, score, train

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


def _train(data, workdir, steps, *words):
    train.main(
        [
            "--config=configs/cxr_qba.py:tiny",
            f"--workdir={workdir}",
            f"--config.data.train={data / 'data' / 'records' / 'train.jsonl'}",
            f"--config.data.image_root={data / 'studies'}",
            "--config.training.batch_images=8",
            "--config.data.packed_buckets=(640,)",
            "--config.data.workers=0",
            "--config.model.unroll=false",
            f"--config.training.steps={steps}",
            "--config.training.log_every=1",
            f"--config.training.checkpoint_every={steps}",
            "--config.decoding.max_answer_tokens=8",
            *words,
        ]
    )
    return [json.loads(line) for line in (workdir / "metrics.jsonl").open()]


@pytest.mark.slow
def test_training_on_images_answering_and_scoring(data, tmp_path, monkeypatch):
    monkeypatch.chdir(_ROOT)  # the configuration names the shipped base
    lines = _train(data, tmp_path / "run", 4)
    losses = [line["train/loss"] for line in lines]
    assert len(losses) == 4 and np.isfinite(losses).all() and losses[3] < losses[0]
    assert all(0 < line["train/box_iou"] < 1 for line in lines)

    asked = sorted((data / "data" / "questions").glob("*.jsonl"), key=lambda f: f.stat().st_size)
    some = tmp_path / "questions.jsonl"
    some.write_text("".join(asked[-1].read_text().splitlines(keepends=True)[:6]))
    answers = tmp_path / "answers.jsonl"
    predict.main(
        [
            f"--workdir={tmp_path / 'run'}",
            f"--questions={some}",
            f"--image_root={data / 'studies'}",
            f"--out={answers}",
        ]
    )
    assert len(answers.read_text().splitlines()) == 6
    references = tmp_path / "references.jsonl"
    records = data / "data" / "records" / asked[-1].name
    references.write_text("".join(records.read_text().splitlines(keepends=True)[:6]))
    score.main(
        [
            "--benchmark=cxr_qba",
            f"--references={references}",
            f"--predictions={answers}",
            f"--out={tmp_path / 'scores'}",
        ]
    )
    metrics = json.loads((tmp_path / "scores" / "metrics.json").read_text())
    assert "strict" in metrics["answers"]


@pytest.mark.slow
def test_training_on_shards_chooses_by_their_table(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(_ROOT)
    chosen = "('surrogate_grade=A++|A+|A', 'view=PA', 'question_strategy=finding')"
    words = [f"--config.data.train={data / 'shards'}", f"--config.data.select={chosen}"]
    lines = _train(data, tmp_path / "run", 2, *words)
    assert np.isfinite([line["train/loss"] for line in lines]).all()
    records = (data / "data" / "records" / "train.jsonl").read_text().splitlines()
    found = [
        one
        for one in map(json.loads, records)
        if one["view"] == "PA" and one["question_strategy"] == "finding"
    ]
    assert 0 < len(found) < len(records)
    assert f"of {len(found):,} questions" in capsys.readouterr().out
