"""The four data sets in one run, in small: build, train, go on, predict as one of them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cxrjax.commands import build, predict, train

_ROOT = Path(__file__).parents[1]

# It computes for longer than it compiles.
pytestmark = pytest.mark.usefixtures("optimised")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("mixture")
    small = ["--long_side=64", "--processes=1"]
    few = ["--images=6", "--validation_images=2", *small]
    rated = ["--rate_with=surrogate", "--least_grade=A"]
    for dataset, name, words in (
        ("phantom", "vindr", ["--seed=7", *few]),
        ("phantom_studies", "studies", ["--studies=6", *small]),
        ("gemex", "gemex", [f"--source={out / 'studies'}"]),
        ("cxr_qba", "cxr_qba", [f"--source={out / 'studies'}", *rated]),
        ("vix_ray_synthetic", "vix_ray", ["--segmenter=syllables", *few]),
    ):
        build.main([f"--dataset={dataset}", f"--out={out / name}", *words])
    return out


def _train(data, workdir, steps):
    files = {name: "train" for name in ("vindr", "gemex", "cxr_qba")} | {"vix_ray": "train_stage2"}
    settings = {
        f"mixture.sources.{name}.train": f"{data / name / 'records' / file}.jsonl"
        for name, file in files.items()
    }
    settings |= {
        "mixture.sources.cxr_qba.image_root": data / "studies",
        "training.steps": steps,
        "training.batch_images": 8,
        "training.log_every": 1,
        "training.checkpoint_every": 2,
        "training.keep_last": 3,
        "optimizer.schedule": "constant",
        "optimizer.warmup_steps": 1,
        "data.questions_per_image": 2,
        "data.packed_buckets": (900,),
        "data.workers": 0,
        "model.unroll": "false",
        "decoding.max_answer_tokens": 8,
    }
    words = (f"--config.{name}={value}" for name, value in settings.items())
    train.main(["--config=configs/mixture.py:tiny", f"--workdir={workdir}", *words])


@pytest.mark.slow
def test_four_sources_are_trained_in_one_run_and_the_run_goes_on(data, tmp_path, monkeypatch):
    monkeypatch.chdir(_ROOT)  # the configuration names the shipped base
    workdir = tmp_path / "run"
    _train(data, workdir, 4)
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
    losses = [line["train/loss"] for line in lines]
    assert len(losses) == 4 and np.isfinite(losses).all() and min(losses[2:]) < losses[0]
    for line in lines:
        for name in ("vindr", "gemex", "cxr_qba", "vix_ray"):
            assert line[f"train/images/{name}"] == 2 * line["step"]  # 8 images, equal weights
    run = (workdir / "run.json").read_text()
    for name in ("vindr", "gemex", "cxr_qba", "vix_ray"):
        assert str(data / name / "records") in run

    # As if it had been killed after step 3: it goes on from the checkpoint of step 2.
    shutil.rmtree(workdir / "checkpoints" / "4")
    _train(data, workdir, 4)
    assert json.loads((workdir / "run.json").read_text())["resumed_from"] == 2
    again = [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
    told = [n for n in lines[0] if n == "train/loss" or n.startswith("train/images/")]
    assert len(told) == 5
    for line, other in zip(lines, again, strict=True):
        assert [line[name] for name in told] == [other[name] for name in told]

    questions, out = data / "gemex" / "questions" / "train.jsonl", tmp_path / "gemex.jsonl"
    where = [f"--workdir={workdir}", "--source=gemex", f"--out={out}"]
    predict.main([*where, f"--questions={questions}"])
    assert len(out.read_text().splitlines()) == len(questions.read_text().splitlines()) > 0
