"""A run whose images go onto several grids, from training to what it answers."""

import json

import numpy as np
import pytest

from cxrjax.commands import predict, train
from cxrjax.errors import UserError
from cxrjax.records import write_records
from cxrjax.training import checkpoint
from cxrjax.training.data import example_config
from tests.training.conftest import read_metrics
from tests.training.small_data import make_record, write_experiment_file, write_noise

_GRIDS = "128x128,192x128"
# (height, width), whose nearest grids are these in their order.
_SIZES = ((70, 68), (90, 60))
_KEYS = {
    "model.preset": f"tiny_qwen@{_GRIDS}",
    **{"model.init": "random", "model.tokenizer": "data/demo_base/tokenizer.model"},
    **{"model.share": "image", "data.codec": f"qwen2.5_vl_{_GRIDS}", "data.geometry": "letterbox"},
    **{"data.allow_overlap": True, "data.questions_per_image": 2, "data.prefix_buckets": (64,)},
    **{"data.workers": 0, "lora.rank": 2, "lora.alpha": 4.0, "optimizer.schedule": "constant"},
    **{"decoding.max_answer_tokens": 8, "decoding.grammar": "none", "training.batch_images": 8},
    **{"training.steps": 4, "training.log_every": 1, "training.checkpoint_every": 2},
    "training.best_metric": "vqa/balanced_accuracy",
}


def _record(image, number):
    height, width = hw = _SIZES[image % 2]
    box = (4, 8, 4 + width // 3, 8 + height // 2)
    return make_record(f"q{image}.{number}", f"i{image}", hw=hw, box=box)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """The folder of what a run is made of."""
    folder = tmp_path_factory.mktemp("grids")
    rng = np.random.default_rng(0)
    for image in range(6):
        write_noise(folder / f"data/images/i{image}.png", rng, _SIZES[image % 2])
    records = folder / "data/records/train.jsonl"
    write_records(records, [_record(image, number) for image in range(6) for number in range(2)])
    data = {"data.train": str(records), "data.validation": str(records)}
    write_experiment_file(folder / "experiment.py", _KEYS | data)
    return folder


@pytest.fixture(scope="module")
def run(experiment):
    """The same folder, with the workdir `run` of a run."""
    _train(experiment, "run")
    return experiment


def _train(folder, name, **keys):
    words = [f"--config.{key.replace('__', '.')}={value}" for key, value in keys.items()]
    train.main([f"--config={folder / 'experiment.py'}", f"--workdir={folder / name}", *words])


def _answers(folder, name, *flags):
    out = folder / f"{name}.jsonl"
    predict.main(
        [*flags, f"--out={out}", f"--questions={folder / 'data/records/train.jsonl'}"]
        + ["--temperature=0"]
    )
    return {line["question_id"]: line for line in map(json.loads, out.open())}


@pytest.mark.slow
def test_every_grid_is_learned_from_and_evaluated(run):
    lines = read_metrics(run / "run")
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert len(losses) == 4 and np.isfinite(losses).all()
    assert any("validation/vqa/balanced_accuracy" in line for line in lines)
    model, config, _ = checkpoint.load_model(run / "run")
    assert model.config.vision.image_hw == (192, 128)
    assert example_config(config).grids == ((128, 128), (192, 128))


@pytest.mark.slow
def test_a_resumed_run_goes_on_as_if_nothing_had_happened(run):
    _train(run, "resumed", training__steps=2)
    _train(run, "resumed")
    whole, resumed = (
        [line["train/loss"] for line in read_metrics(run / name) if "train/loss" in line]
        for name in ("run", "resumed")
    )
    assert whole[-1] == resumed[-1]


@pytest.mark.slow
def test_an_image_is_asked_as_by_a_run_of_its_grid_alone(run):
    """Whatever else the file has, and in whatever batch."""
    several = _answers(run, "several", f"--workdir={run / 'run'}")
    assert len(several) == 12
    for number, grid in enumerate(_GRIDS.split(",")):
        config = json.loads((run / "run/config.json").read_text())
        config["model"]["preset"] = f"tiny_qwen@{grid}"
        config["data"]["codec"] = f"qwen2.5_vl_{grid}"
        alone = run / f"run{number}"
        alone.mkdir()
        for part in (run / "run").iterdir():
            (alone / part.name).symlink_to(part)
        (alone / "config.json").unlink()
        (alone / "config.json").write_text(json.dumps(config))
        found = _answers(run, f"alone{number}", f"--workdir={alone}")
        for image in range(number, 6, 2):
            for question in range(2):
                name = f"q{image}.{question}"
                assert found[name]["text"] == several[name]["text"]
                assert found[name]["answer_logprob"] == pytest.approx(
                    several[name]["answer_logprob"], abs=1e-4
                )


@pytest.mark.heavy
def test_answers_are_drawn_and_learned_from_on_every_grid(experiment):
    keys = {"rl__kind": "rloo", "rl__group_size": 2, "data__codec": "qwen3_vl"}
    _train(experiment, "drawn", **keys, training__steps=2, data__validation=None)
    lines = read_metrics(experiment / "drawn")
    rewards = [line["train/rl/reward"] for line in lines if "train/rl/reward" in line]
    assert len(rewards) == 2 and np.isfinite(rewards).all()


def test_rewards_cannot_tell_which_grid_pixels_are_of(experiment):
    with pytest.raises(UserError, match="without knowing which of these inputs an image has"):
        _train(experiment, "refused", rl__kind="rloo", rl__group_size=2)


def test_features_are_kept_of_one_size_alone(experiment):
    with pytest.raises(UserError, match="keeps features of one size of images"):
        _train(experiment, "kept", data__feature_cache=experiment / "features")
