"""`python -m cxrjax.train`, from records and images to a model that can be loaded."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from cxrjax import train
from cxrjax.errors import UserError
from cxrjax.input_pipeline import examples
from cxrjax.models import PRESETS
from cxrjax.records import Answer, QARecord, write_records
from cxrjax.records_io.tfds_builders import write_tfds
from cxrjax.training import checkpoint
from cxrjax.training.config_file import load_config
from cxrjax.training.data import open_records
from cxrjax.training.workdir import describe_run

_ROOT = Path(__file__).resolve().parents[2]
_TOKENIZER = _ROOT / "data/demo_base/tokenizer.model"

_CONFIG = '''
"""A test's experiment."""
from cxrjax.training.config import default_config

def get_config(variant=""):
    config = default_config()
    config.model.init = "random"
    config.model.tokenizer = {tokenizer!r}
    config.data.train = {records!r}
    config.data.questions_per_image = 2
    config.data.prefix_buckets = (64,)
    config.trainable = (".*",)
    config.training.batch_images = 8
    config.training.steps = 3
    config.training.log_every = 1
    config.missing_data_help = "Put the table into data/vindr, or try :demo"
    return config
'''


def _record(index, x, path=None):
    box = [x, 10.0, x + 20.0, 50.0]
    text = "The Nodule/Mass is located at <loc_{:.0f}_{:.0f}_{:.0f}_{:.0f}>.".format(*box)
    return QARecord(
        dataset="custom",
        split="train",
        image_id=f"i{index // 2}",
        image_path=path or f"images/i{index // 2}.png",
        image_hw=(60, 80),
        question_id=f"q{index}",
        question="Where is the Nodule/Mass?",
        question_type="Where",
        answers=[Answer(text=text, boxes_by_image={f"i{index // 2}": [box]})],
    )


@pytest.fixture
def spec(tmp_path):
    """A config file whose data are eight images with two questions each, and one without."""
    (tmp_path / "data/images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for index in range(8):
        pixels = rng.integers(0, 256, (60, 80), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"data/images/i{index}.png")
    records = tmp_path / "data/records/train.jsonl"
    lost = _record(100, 5.0, "images/lost.png")
    write_records(records, [*(_record(i, 2.0 * i) for i in range(16)), lost])
    path = tmp_path / "experiment.py"
    path.write_text(_CONFIG.format(tokenizer=str(_TOKENIZER), records=str(records)))
    return str(path)


@pytest.fixture
def smaller_tiny(monkeypatch):
    """The preset `tiny` with fewer and narrower layers."""
    tiny = PRESETS["tiny"]
    small = dataclasses.replace(
        tiny,
        vision=dataclasses.replace(tiny.vision, width=16, depth=1, num_heads=2, mlp_dim=16),
        decoder=dataclasses.replace(
            tiny.decoder, width=16, depth=1, num_heads=2, head_dim=8, mlp_dim=16
        ),
    )
    monkeypatch.setitem(PRESETS, "tiny", small)


@pytest.mark.usefixtures("smaller_tiny")
def test_trains_and_leaves_a_model_that_loads(spec, tmp_path, capsys):
    workdir = tmp_path / "run"
    train.train(load_config(spec), workdir)
    assert "8 images of 16 questions" in capsys.readouterr().out
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    assert all(json.loads(line)["train/giou_loss"] > 0 for line in lines)
    quality = json.loads((workdir / "quality.json").read_text())
    assert quality["total"] == quality["counts"]["missing_image"] == 1
    records_hash = json.loads((workdir / "run.json").read_text())["data_sha256"]
    assert list(records_hash) == [str(tmp_path / "data/records/train.jsonl")]
    train.train(load_config(spec), workdir)
    printed = capsys.readouterr().out
    assert "resumed from the checkpoint of step 3" in printed
    assert f"card of the run: {workdir}/README.md, {workdir}/card.html" in printed
    card = (workdir / "README.md").read_text()
    assert "| 8 | 16 |" in card and "1 records were set aside" in card and "3 steps of 8" in card
    assert (workdir / "metrics.jsonl").read_text().splitlines() == lines
    loaded = checkpoint.load_model(workdir)
    assert loaded.tokenizer_path.read_bytes() == _TOKENIZER.read_bytes()
    fresh, _ = checkpoint.build_model(loaded.config)
    changed = jax.tree.map(
        lambda a, b: bool((a != b).any()), *map(nnx.state, (loaded.model, fresh))
    )
    assert any(jax.tree.leaves(changed))


@pytest.mark.usefixtures("smaller_tiny")
def test_rewards_are_learned_from_where_another_run_has_come_to(spec, tmp_path, capsys):
    first, second = tmp_path / "run", tmp_path / "policy"
    train.train(load_config(spec), first)
    overrides = [
        f"--config.model.start_from={first}",
        "--config.rl.kind=rloo",
        "--config.rl.group_size=2",
        "--config.decoding.max_answer_tokens=8",
        "--config.training.steps=2",
    ]
    train.train(load_config(spec, overrides), second)
    lines = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    assert "reward" in capsys.readouterr().out
    assert lines[0]["train/rl/kl"] == pytest.approx(0, abs=1e-5)
    assert 0 <= lines[0]["train/rl/reward"] <= 1
    # Its answers and its own start: the run that it started from is needed no more.
    started = checkpoint.build_model(load_config(spec, overrides))[0]
    trained = nnx.state(checkpoint.load_model(first).model)
    for a, b in zip(jax.tree.leaves(nnx.state(started)), jax.tree.leaves(trained), strict=True):
        assert np.array_equal(a, b)
    first.rename(tmp_path / "moved")
    checkpoint.load_model(second)
    with pytest.raises(UserError, match=r"model\.start_from=.*no training run there"):
        train.train(load_config(spec, overrides), tmp_path / "another")
    # Resumed from another start, it would be another run.
    train.train(load_config(spec, ["--config.training.seed=5"]), first)
    with pytest.raises(UserError, match="its run started from parameters with hash"):
        train.train(load_config(spec, overrides), second)


_OTHER = {"image_id": "i9", "image_path": "images/i7.png", "question_id": "other"}


@pytest.mark.usefixtures("smaller_tiny")
@pytest.mark.parametrize(
    ("update", "counted"),
    [
        ({}, "1 question, 1 image of it"),
        # Under another name the file is the same; the patient is, whatever image it is.
        (_OTHER, "1 image of it"),
        ({**_OTHER, "image_path": "images/new.png", "patient_id": "p1"}, "1 patient of it"),
    ],
)
def test_what_is_trained_on_is_not_validated_on(spec, tmp_path, capsys, update, counted):
    records = tmp_path / "data/records"
    trained = [_record(i, 2.0 * i).model_copy(update={"patient_id": f"p{i}"}) for i in range(14)]
    trained += [_record(i, 2.0 * i) for i in (14, 15)]  # of i7.png, patient unknown
    write_records(records / "train.jsonl", trained)
    Image.new("L", (80, 60)).save(tmp_path / "data/images/new.png")
    held = _record(14, 3.0).model_copy(update=update)
    held.answers[0].boxes_by_image = {held.image_id: [[3.0, 10.0, 23.0, 50.0]]}
    write_records(records / "validation.jsonl", [held])
    overrides = [f"--config.data.validation={records / 'validation.jsonl'}"]
    with pytest.raises(UserError, match=f"validation.jsonl: {counted} are in training too"):
        train.train(load_config(spec, overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    if not update:
        overrides += ["--config.data.allow_overlap=True", "--config.training.eval_every=100"]
        overrides += ["--config.decoding.max_answer_tokens=4"]
        train.train(load_config(spec, overrides), tmp_path / "run")
        assert f"{counted} are in training too; allowed" in capsys.readouterr().out


@pytest.mark.usefixtures("smaller_tiny")
def test_validation_that_the_benchmark_cannot_score_is_refused_before_training(spec, tmp_path):
    Image.new("L", (80, 60)).save(tmp_path / "data/images/new.png")
    lung = _record(40, 3.0, "images/new.png").model_copy(
        update={"dataset": "lungs", "variables": {"finding": "right lung"}}
    )
    held = tmp_path / "data/records/validation.jsonl"
    write_records(held, [lung])
    config = load_config(spec, [f"--config.data.validation={held}"])
    with pytest.raises(UserError) as caught:
        train.train(config, tmp_path / "run")
    told = str(caught.value)
    assert told.startswith(f"{held}: question 'q40' has the class 'right lung'"), told
    assert "benchmark='vindr_cxr_vqa'" in told and "lungs, own" in told and "\n" not in told
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("smaller_tiny")
def test_kept_images_change_nothing_and_serve_the_next_run(spec, tmp_path, monkeypatch):
    cache, damaged = tmp_path / "cache", tmp_path / "data/images/i3.png"
    damaged.write_bytes(damaged.read_bytes()[:500])  # its header still reads well
    decoded, read = [], examples.read_grey_or_rgb
    monkeypatch.setattr(
        examples,
        "read_grey_or_rgb",
        lambda path, *target: decoded.append(path) or read(path, *target),
    )

    def losses(name, *more):
        train.train(load_config(spec, more), tmp_path / name)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["train/loss"] for line in lines]

    pixels = losses("pixels")
    assert len(decoded) > 8
    decoded.clear()
    assert losses("first", f"--config.data.image_cache={cache}") == pixels
    assert {Path(path).name for path in decoded} > {"i3.png"}
    decoded.clear()
    assert losses("second", f"--config.data.image_cache={cache}") == pixels
    assert {Path(path).name for path in decoded} == {"i3.png"}
    quality = json.loads((tmp_path / "second/quality.json").read_text())
    assert quality == json.loads((tmp_path / "pixels/quality.json").read_text())


@pytest.mark.usefixtures("smaller_tiny")
def test_cached_features_change_no_loss_and_are_made_once(spec, tmp_path):
    cache, damaged = tmp_path / "cache", tmp_path / "data/images/i3.png"
    damaged.write_bytes(damaged.read_bytes()[:500])  # its header still reads well
    settings = ("--config.trainable=('decoder/', 'projector/')",)

    def losses(name, *more):
        train.train(load_config(spec, (*settings, *more)), tmp_path / name)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["train/loss"] for line in lines]

    pixels = losses("pixels")
    assert losses("features", f"--config.data.feature_cache={cache}") == pytest.approx(pixels)
    files = {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}
    assert len(files) == 7, "one of the eight images does not decode"
    quality = json.loads((tmp_path / "features/quality.json").read_text())
    assert quality == json.loads((tmp_path / "pixels/quality.json").read_text())

    assert losses("again", f"--config.data.feature_cache={cache}") == pytest.approx(pixels)
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")} == files
    losses("other", f"--config.data.feature_cache={cache}", "--config.training.seed=1")
    assert len(list(cache.iterdir())) == 2, "another tower has a folder of its own"


def test_a_tfds_data_set_is_opened_and_hashed_as_its_records_are(spec, tmp_path):
    manifest, records = tmp_path / "data/manifest.json", tmp_path / "data/records/train.jsonl"
    manifest.write_text("{}")
    write_records(records, (_record(i, 2.0 * i) for i in range(16)))
    stored = write_tfds(tmp_path / "data", tmp_path / "tfds")
    config = load_config(spec, (f"--config.data.train={stored}",))
    opened, expected = open_records(config, "train"), open_records(load_config(spec), "train")
    assert opened.source.fingerprint == expected.source.fingerprint
    assert opened.quality == expected.quality and not opened.quality.entries
    run = {"seed": 0, "steps": 1, "resumed_from": 0, "parameters": {}, "base": {}}
    hashes = [describe_run(**run, data_files=[path])["data_sha256"] for path in (stored, records)]
    assert list(hashes[0]) == [str(stored / "records/train.jsonl"), str(stored / "manifest.json")]
    assert list(hashes[0].values()) == list(hashes[1].values())


@pytest.mark.parametrize(
    ("content", "hashes"),
    [
        ('{"splits": {"train": {"split_sha256": "abc"}}}', {"train": "abc"}),
        ('{"splits": {"train": 800}}', {}),
        ('["image.png"]', {}),
        ("not JSON", {}),
    ],
)
def test_a_manifest_of_the_users_own_stops_no_run(tmp_path, content, hashes):
    (tmp_path / "records").mkdir()
    (tmp_path / "records/train.jsonl").write_text("{}\n")
    (tmp_path / "manifest.json").write_text(content)
    run = {"seed": 0, "steps": 1, "resumed_from": 0, "parameters": {}, "base": {}}
    told = describe_run(**run, data_files=[tmp_path / "records/train.jsonl"])
    assert told["split_sha256"] == {str(tmp_path / "manifest.json"): hashes}


def test_no_record_left_is_told_with_the_reason(spec, tmp_path):
    none_left = load_config(spec, ("--config.data.findings=('ILD',)",))
    with pytest.raises(UserError, match=r"1 set aside, the first for missing_image .*\('ILD',\)"):
        open_records(none_left, "train")
    records = tmp_path / "data/records/train.jsonl"
    write_records(records, (_record(i, 2.0 * i) for i in range(16)))
    with pytest.raises(UserError, match=r"none asks about data.findings=\('ILD',\)"):
        open_records(none_left, "train")
    for image in (tmp_path / "data/images").iterdir():
        image.unlink()
    with pytest.raises(UserError, match=r"16 set aside, the first for missing_image .*jsonl:1:"):
        open_records(load_config(spec), "train")


@pytest.mark.usefixtures("smaller_tiny")
def test_features_that_cannot_be_written_are_told_in_one_line(spec, tmp_path):
    (tmp_path / "taken").write_text("a file")
    settings = ("--config.trainable=('decoder/', 'projector/')",)
    config = load_config(spec, (*settings, f"--config.data.feature_cache={tmp_path / 'taken'}"))
    with pytest.raises(UserError, match=r"\.npy cannot be written: "):
        train.train(config, tmp_path / "run")


@pytest.mark.usefixtures("smaller_tiny")
def test_features_of_a_tower_that_trains_are_refused(spec, tmp_path):
    config = load_config(spec, (f"--config.data.feature_cache={tmp_path / 'features'}",))
    with pytest.raises(UserError, match="of the vision tower are trained"):
        train.train(config, tmp_path / "run")


def test_a_tokenizer_that_does_not_fit_is_refused(spec, tmp_path, monkeypatch):
    moved = dataclasses.replace(PRESETS["tiny"], loc_token_start=9)
    monkeypatch.setitem(PRESETS, "tiny", moved)
    with pytest.raises(UserError, match=r"<loc0000> is id \d+, preset tiny expects 9"):
        train.train(load_config(spec), tmp_path / "run")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--config.data.train=nowhere.jsonl", "nowhere.jsonl, which is not there"),
        ("--config.model.init=checkpoint", "model.init_from is not set"),
        ("--config.optimizer.learning_rat=1", "did you mean 'optimizer.learning_rate'"),
        ("--config.model.preset=tinny", "did you mean 'tiny'"),
        ("--steps=5", "expected --config.key=value"),
    ],
)
def test_mistakes_end_in_one_line(spec, tmp_path, word, said):
    with pytest.raises(UserError) as caught:
        train.main([f"--config={spec}", f"--workdir={tmp_path / 'run'}", word])
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run/checkpoints").exists()


def test_absent_data_exit_code_and_the_hint(spec, tmp_path):
    command = [sys.executable, "-m", "cxrjax.train", f"--config={spec}"]
    command += [f"--workdir={tmp_path / 'run'}", "--config.data.train=nowhere.jsonl"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.strip().endswith("or try :demo")
