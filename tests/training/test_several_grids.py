"""A run whose images go onto several grids, from training to what it answers."""

import json

import numpy as np
import pytest
from PIL import Image

from cxrjax import predict, train
from cxrjax.errors import UserError
from cxrjax.records import Answer, QARecord, write_records
from cxrjax.training import checkpoint
from cxrjax.training.data import example_config

_GRIDS = "128x128,192x128"
# (height, width), whose nearest grids are these in their order.
_SIZES = ((70, 68), (90, 60))
_CONFIG = '''
"""A test's experiment."""
from cxrjax.training.config import default_config

def get_config(variant=""):
    config = default_config()
    config.model.preset = "tiny_qwen@{grids}"
    config.model.init = "random"
    config.model.tokenizer = "data/demo_base/tokenizer.model"
    config.model.share = "image"
    config.data.train = config.data.validation = {records!r}
    config.data.allow_overlap = True
    config.data.codec = "qwen2.5_vl_{grids}"
    config.data.geometry = "letterbox"
    config.data.questions_per_image = 2
    config.data.prefix_buckets = (64,)
    config.data.workers = 0
    config.lora.rank = 2
    config.lora.alpha = 4.0
    config.decoding.max_answer_tokens = 8
    config.decoding.grammar = "none"
    config.training.batch_images = 8
    config.optimizer.schedule = "constant"
    config.training.steps = 4
    config.training.log_every = 1
    config.training.checkpoint_every = 2
    config.training.best_metric = "vqa/balanced_accuracy"
    return config
'''


def _record(image, number):
    height, width = _SIZES[image % 2]
    box = [4.0, 8.0, 4.0 + width // 3, 8.0 + height // 2]
    text = "The Nodule/Mass is located at <loc_{:.0f}_{:.0f}_{:.0f}_{:.0f}>.".format(*box)
    return QARecord(
        dataset="custom",
        split="train",
        image_id=f"i{image}",
        image_path=f"images/i{image}.png",
        image_hw=(height, width),
        question_id=f"q{image}.{number}",
        question="Where is the Nodule/Mass?",
        question_type="Where",
        answers=[Answer(text=text, boxes_by_image={f"i{image}": [box]})],
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory, request):
    """The workdir of a run, and what it was made of."""
    folder = tmp_path_factory.mktemp("grids")
    (folder / "data/images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for image in range(6):
        pixels = rng.integers(0, 256, _SIZES[image % 2], np.uint8)
        Image.fromarray(pixels).save(folder / f"data/images/i{image}.png")
    records = folder / "data/records/train.jsonl"
    write_records(records, [_record(image, number) for image in range(6) for number in range(2)])
    config = folder / "experiment.py"
    config.write_text(_CONFIG.format(grids=_GRIDS, records=str(records)))
    train.main([f"--config={config}", f"--workdir={folder / 'run'}"])
    return folder


def _answers(folder, name, *flags):
    out = folder / f"{name}.jsonl"
    predict.main(
        [*flags, f"--out={out}", f"--questions={folder / 'data/records/train.jsonl'}"]
        + ["--temperature=0"]
    )
    return {line["question_id"]: line for line in map(json.loads, out.open())}


def test_every_grid_is_learned_from_and_evaluated(run):
    lines = [json.loads(line) for line in (run / "run/metrics.jsonl").read_text().splitlines()]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert len(losses) == 4 and np.isfinite(losses).all()
    assert any("validation/vqa/balanced_accuracy" in line for line in lines)
    model, config, _ = checkpoint.load_model(run / "run")
    assert model.config.vision.image_hw == (192, 128)
    assert example_config(config).grids == ((128, 128), (192, 128))


def test_a_resumed_run_goes_on_as_if_nothing_had_happened(run):
    config = run / "experiment.py"
    for flags in (["--config.training.steps=2"], []):
        train.main([f"--config={config}", f"--workdir={run / 'resumed'}", *flags])
    whole, resumed = (
        [line for line in (run / name / "metrics.jsonl").read_text().splitlines() if "loss" in line]
        for name in ("run", "resumed")
    )
    told = [json.loads(lines[-1])["train/loss"] for lines in (whole, resumed)]
    assert told[0] == told[1]


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
def test_answers_are_drawn_and_learned_from_on_every_grid(run):
    flags = [f"--config={run / 'experiment.py'}", f"--workdir={run / 'drawn'}"]
    keys = {"rl.kind": "rloo", "rl.group_size": 2, "data.codec": "qwen3_vl"}
    keys |= {"training.steps": 2, "data.validation": None}
    train.main([*flags, *(f"--config.{key}={value}" for key, value in keys.items())])
    lines = [json.loads(line) for line in (run / "drawn/metrics.jsonl").read_text().splitlines()]
    rewards = [line["train/rl/reward"] for line in lines if "train/rl/reward" in line]
    assert len(rewards) == 2 and np.isfinite(rewards).all()


def test_rewards_cannot_tell_which_grid_pixels_are_of(run):
    flags = [f"--config={run / 'experiment.py'}", f"--workdir={run / 'refused'}"]
    with pytest.raises(UserError, match="without knowing which of these inputs an image has"):
        train.main([*flags, "--config.rl.kind=rloo", "--config.rl.group_size=2"])


def test_features_are_kept_of_one_size_alone(run):
    flags = [f"--config={run / 'experiment.py'}", f"--workdir={run / 'kept'}"]
    with pytest.raises(UserError, match="keeps features of one size of images"):
        train.main([*flags, f"--config.data.feature_cache={run / 'features'}"])
