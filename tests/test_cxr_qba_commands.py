"""The commands of configs/cxr_qba.py's docstring, on a few phantom studies with their images."""

import json
from pathlib import Path

import numpy as np
import pytest

from cxrjax import build, predict, score, train
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


@pytest.mark.slow
def test_questions_on_change_are_trained_on_and_answered_with_both_images(
    data, tmp_path, monkeypatch
):
    """Another earlier image gives other likelihoods, all else alike."""
    monkeypatch.chdir(_ROOT)
    studies = data / "studies"
    build.main(
        [
            "--dataset=cxr_qba",
            f"--source={studies}",
            "--rate_with=surrogate",
            "--longitudinal",
            f"--out={tmp_path / 'data'}",
        ]
    )
    files = sorted((tmp_path / "data" / "records").glob("*.jsonl"))
    records = [record for file in files for record in read_records(file)]
    compared = [record for record in records if record.earlier is not None]
    assert compared and all(r.question_strategy == "longitudinal" for r in compared)
    chosen, references = tmp_path / "chosen.jsonl", tmp_path / "references.jsonl"
    write_records(chosen, [*compared[:12], *(r for r in records[:20] if r.earlier is None)])
    write_records(references, compared[:4])
    # The image of now in the place of the earlier one: nothing can have changed.
    same = [
        record.model_copy(
            update={"earlier": record.earlier.model_copy(update={"image_path": record.image_path})}
        )
        for record in compared[:4]
    ]
    write_records(tmp_path / "same.jsonl", map(strip_answers, same))
    write_records(tmp_path / "questions.jsonl", map(strip_answers, compared[:4]))
    lines = _train(
        data,
        tmp_path / "run",
        2,
        f"--config.data.train={chosen}",
        "--config.data.earlier_images=True",
    )
    assert np.isfinite([line["train/loss"] for line in lines]).all()
    found = {}
    for name in ("questions", "same"):
        predict.main(
            [
                f"--workdir={tmp_path / 'run'}",
                f"--questions={tmp_path / f'{name}.jsonl'}",
                f"--image_root={studies}",
                f"--out={tmp_path / f'{name}.predictions.jsonl'}",
            ]
        )
        text = (tmp_path / f"{name}.predictions.jsonl").read_text()
        found[name] = [json.loads(line)["answer_logprob"] for line in text.splitlines()]
    assert len(found["same"]) == 4 and None not in found["questions"]
    assert np.abs(np.subtract(found["questions"], found["same"])).min() > 1e-5
    score.main(
        [
            "--benchmark=cxr_qba",
            f"--references={references}",
            f"--predictions={tmp_path / 'questions.predictions.jsonl'}",
            f"--out={tmp_path / 'scores'}",
        ]
    )
    assert json.loads((tmp_path / "scores" / "metrics.json").read_text())
