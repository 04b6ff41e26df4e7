"""VinDr-CXR-VQA in small: its layout with phantom pixels, built, trained on, asked and scored."""

import shutil
from pathlib import Path

import pytest

from cxrjax.commands import build, predict, score, train
from cxrjax.records import read_records
from tests.evaluation import made

_ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_what_is_built_can_be_trained_on(tmp_path, monkeypatch):
    monkeypatch.chdir(_ROOT)  # the configuration names the shipped base
    phantoms, source, data = tmp_path / "phantoms", tmp_path / "source", tmp_path / "vindr"
    build.main(
        ["--dataset=phantom", "--seed=3", "--images=24", "--validation_images=1"]
        + ["--long_side=96", "--processes=1", "--normal_percent=0", f"--out={phantoms}"]
    )
    source.mkdir()
    shutil.copy(phantoms / "boxes.csv", source / "train.csv")
    shutil.move(phantoms / "images", source / "images")
    build.main(["--dataset=vindr_cxr_vqa", f"--source={source}", f"--out={data}", "--processes=1"])
    records = list(read_records(data / "records" / "train.jsonl"))
    assert {len(record.boxes) for record in records} <= {1, 2, 3, 4, 5, 6}
    assert all(record.image_hw and 150 <= len(record.reason.split()) <= 250 for record in records)

    training = """--config.data.prompt=vqa_reason --config.data.questions_per_image=4
        --config.data.prefix_buckets=(32,) --config.data.answer_buckets=(768,)
        --config.data.packed_buckets=(2048,) --config.data.workers=0 --config.model.unroll=false
        --config.training.batch_images=8 --config.training.epochs=2.0
        --config.training.log_every=1 --config.decoding.max_answer_tokens=24"""
    train.main(
        ["--config=configs/vindr_lora.py:phantom", f"--workdir={tmp_path / 'run'}"]
        + [f"--config.data.{s}={data / 'records' / s}.jsonl" for s in ("train", "validation")]
        + training.split()
    )
    metrics = made.read_lines(tmp_path / "run" / "metrics.jsonl")
    losses = [line["train/loss"] for line in metrics if "train/loss" in line]
    assert losses[-1] < losses[0]
    out = tmp_path / "tuned.jsonl"
    questions = data / "questions" / "validation.jsonl"
    predict.main([f"--workdir={tmp_path / 'run'}", f"--questions={questions}", f"--out={out}"])
    assert all("reason" in line for line in made.read_lines(out))
    score.main(
        ["--benchmark=vindr_cxr_vqa", f"--references={data / 'records' / 'validation.jsonl'}"]
        + [f"--predictions={out}", f"--out={tmp_path / 'scores'}", "--gt_mode=wbf"]
    )
    metrics = made.read_json(tmp_path, "scores", "metrics.json")
    assert "detection/f1@0.3" in metrics["tuned"]["strict"]
