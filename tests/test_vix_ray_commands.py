"""ViX-Ray's and VinDr's way in small: build, train each stage, predict, score."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from cxrjax.commands import build, evaluate, predict, score, train
from cxrjax.input_pipeline.examples import QuestionEncoder
from cxrjax.input_pipeline.tokenizer import load_tokenizer
from cxrjax.records import read_records
from cxrjax.training.config_file import load_config
from cxrjax.training.data import example_config
from tests.evaluation import made

_ROOT = Path(__file__).parents[1]
_TOKENIZER = _ROOT / "data" / "vix_ray" / "tokenizer.model"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("vix_ray")
    build.main(
        ["--dataset=vix_ray_synthetic", "--images=8", "--validation_images=2", "--seed=1"]
        + ["--long_side=64", "--processes=1", "--segmenter=syllables", f"--out={out}"]
    )
    return out


def test_the_tokenizer_covers_the_language_and_loses_nothing(data):
    tokenizer = load_tokenizer(_TOKENIZER)
    for record in read_records(data / "records" / "train.jsonl"):
        ids = tokenizer.encode(record.answer_text)
        assert tokenizer.decode(ids) == record.answer_text
        # About a token a syllable: no letter is spelled in bytes.
        assert len(ids) < 1.6 * len(record.answer_text.split())
    other = "Thuỷ ngân ở ngoại vi 🫁"
    assert tokenizer.decode(tokenizer.encode(other)) == other


@pytest.mark.parametrize("variant", ["tiny", "qwen_tiny"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_variants_are_whole_and_every_question_fits(data, stage, variant):
    config = load_config(str(_ROOT / "configs" / f"vix_ray_stage{stage}.py:{variant}"))
    assert config.data.train.endswith(f"train_stage{stage}.jsonl")
    assert (_ROOT / config.model.tokenizer).is_file()
    encoder = QuestionEncoder(load_tokenizer(_TOKENIZER), example_config(config))
    for record in read_records(data / "records" / f"train_stage{stage}.jsonl"):
        encoded = encoder.encode(record)
        answer = [*encoder.tokenizer.encode(record.answer_text), encoder.tokenizer.eos_id]
        # The answer alone has a loss, whatever stands in the history.
        assert encoded.answer.tolist() == answer
        for turn in record.history:
            said = encoder.tokenizer.decode([int(t) for t in encoded.prefix])
            assert turn.answer in said
        assert not len(encoded.boxes)


@pytest.mark.slow
def test_three_stages_are_trained_predicted_and_compared(data, tmp_path, monkeypatch):
    monkeypatch.chdir(_ROOT)  # the configuration names the shipped tower and tokenizer
    files = []
    for stage in (1, 2, 3):
        training = """--config.training.epochs=3.0 --config.optimizer.warmup_steps=1
            --config.training.log_every=1 --config.model.unroll=false
            --config.decoding.max_answer_tokens=8"""
        train.main(
            [f"--config=configs/vix_ray_stage{stage}.py:tiny"]
            + [f"--workdir={tmp_path / f'stage{stage}'}"]
            + [f"--config.data.train={data / 'records' / f'train_stage{stage}.jsonl'}"]
            + training.split()
        )
        lines = made.read_lines(tmp_path / f"stage{stage}" / "metrics.jsonl")
        losses = [line["train/loss"] for line in lines if "train/loss" in line]
        assert len(losses) == 3 and np.isfinite(losses).all() and losses[-1] < losses[0]
        for name, questions in _questions(stage).items():
            files.append(tmp_path / f"{name}.jsonl")
            predict.main(
                [f"--workdir={tmp_path / f'stage{stage}'}", f"--out={files[-1]}"]
                + [f"--questions={data / 'questions' / questions}"]
            )
    asked = made.read_lines(tmp_path / "self.jsonl.turns.jsonl")
    said = {line["question_id"]: line["text"] for line in made.read_lines(files[2])}
    assert len(asked) == 2 and len(said) == 4
    for record in asked:
        (turn,) = record["history"]
        assert turn["answer"] == said[turn["question_id"]]
    words = [f"--predictions={file}" for file in files]
    references = data / "records" / "test.jsonl"
    score.main(
        ["--benchmark=vix_ray", f"--references={references}", *words, "--resamples=10"]
        + [f"--out={tmp_path / 'scores'}"]
    )
    metrics = made.read_json(tmp_path, "scores", "metrics.json")
    said = {"stage1": None, "stage2": None, "self": "self", "gold": "gold"}
    assert made.read_json(tmp_path, "scores", "score.json")["histories"] == said
    assert metrics["self"]["paper"]["stage3/findings/minus_stage1/stage1/bleu_4"]["n"] == 2
    assert metrics["gold"]["paper"]["stage3/findings/bleu_4"]["n"] == 0
    evaluate.main(
        [f"--workdir={tmp_path / 'stage3'}", "--benchmark=vix_ray", "--resamples=10"]
        + [f"--references={data / 'records' / 'test_stage3.jsonl'}"]
    )
    assert (tmp_path / "stage3" / "evaluation" / "metrics.json").is_file()


def _questions(stage):
    """Name of the predictions -> questions file."""
    if stage < 3:
        return {f"stage{stage}": f"test_stage{stage}.jsonl"}
    return {"self": "test_stage3.jsonl", "gold": "test_stage3_gold.jsonl"}


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")  # it computes for longer than it compiles
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

    training = """--config.data.prompt=vqa_reason --config.data.questions_per_image=2
        --config.data.prefix_buckets=(32,) --config.data.answer_buckets=(768,)
        --config.data.packed_buckets=(1200,) --config.data.workers=0 --config.model.unroll=false
        --config.training.batch_images=8 --config.training.epochs=None --config.training.steps=4
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
