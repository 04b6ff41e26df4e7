"""`python -m cxrjax.train`, from records and images to a model that can be loaded."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from cxrjax import cli
from cxrjax.api.training_run import train_run
from cxrjax.commands import train
from cxrjax.errors import UserError
from cxrjax.input_pipeline import examples
from cxrjax.models import PRESETS
from cxrjax.records import write_records
from cxrjax.records_io.tfds_builders import write_tfds
from cxrjax.training import checkpoint
from cxrjax.training.config_file import load_config
from cxrjax.training.data import open_records
from cxrjax.training.workdir import describe_run
from tests.papers.cases import cases
from tests.training.conftest import read_metrics
from tests.training.small_data import make_record, write_experiment_file, write_noise

_ROOT = Path(__file__).resolve().parents[2]
_TOKENIZER = _ROOT / "data/demo_base/tokenizer.model"


def _record(index, x, image=None, **fields):
    return make_record(f"q{index}", image or f"i{index // 2}", box=(x, 10, x + 20, 50), **fields)


@pytest.fixture
def spec(tmp_path):
    """A config file whose data are eight images with two questions each, and one without."""
    rng = np.random.default_rng(0)
    for index in range(8):
        write_noise(tmp_path / f"data/images/i{index}.png", rng)
    records = tmp_path / "data/records/train.jsonl"
    lost = _record(100, 5.0, image_path="images/lost.png")
    write_records(records, [*(_record(i, 2.0 * i) for i in range(16)), lost])
    path = tmp_path / "experiment.py"
    keys = {"model.init": "random", "model.tokenizer": str(_TOKENIZER), "trainable": (".*",)}
    keys |= {"data.train": str(records), "data.questions_per_image": 2}
    keys |= {"data.prefix_buckets": (64,), "training.batch_images": 8}
    write_experiment_file(path, keys | {"training.steps": 3, "training.log_every": 1})
    return str(path)


@pytest.fixture
def smaller_tiny(monkeypatch):
    """The preset `tiny` with fewer and narrower layers."""
    tiny, sizes = PRESETS["tiny"], {"width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 16}
    vision = dataclasses.replace(tiny.vision, **sizes)
    decoder = dataclasses.replace(tiny.decoder, **sizes, head_dim=8)
    monkeypatch.setitem(PRESETS, "tiny", dataclasses.replace(tiny, vision=vision, decoder=decoder))


@pytest.mark.usefixtures("smaller_tiny")
def test_trains_and_leaves_a_model_that_loads(spec, tmp_path, capsys):
    workdir = tmp_path / "run"
    train_run(load_config(spec), workdir)
    assert "8 images of 16 questions" in capsys.readouterr().out
    lines = read_metrics(workdir)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["train/giou_loss"] > 0 for line in lines)
    quality = json.loads((workdir / "quality.json").read_text())
    assert quality["total"] == quality["counts"]["missing_image"] == 1
    records_hash = json.loads((workdir / "run.json").read_text())["data_sha256"]
    assert list(records_hash) == [str(tmp_path / "data/records/train.jsonl")]
    train_run(load_config(spec), workdir)
    printed = capsys.readouterr().out
    assert "resumed from the checkpoint of step 3" in printed
    assert f"card of the run: {workdir}/README.md, {workdir}/card.html" in printed
    card = (workdir / "README.md").read_text()
    assert "| 8 | 16 |" in card and "1 records were rejected" in card and "3 steps of 8" in card
    assert read_metrics(workdir) == lines
    loaded = checkpoint.load_model(workdir)
    assert loaded.tokenizer_path.read_bytes() == _TOKENIZER.read_bytes()
    fresh, _ = checkpoint.build_model(loaded.config)
    leaves = (jax.tree.leaves(nnx.state(model)) for model in (loaded.model, fresh))
    assert any((a != b).any() for a, b in zip(*leaves, strict=True))


@pytest.mark.slow
@pytest.mark.usefixtures("smaller_tiny")
def test_rewards_are_learned_from_where_another_run_has_come_to(spec, tmp_path, capsys):
    first, second = tmp_path / "run", tmp_path / "policy"
    train_run(load_config(spec), first)
    keys = {"model.start_from": first, "rl.kind": "rloo", "rl.group_size": 2}
    keys |= {"decoding.max_answer_tokens": 8, "training.steps": 2}
    overrides = [f"--config.{key}={value}" for key, value in keys.items()]
    train_run(load_config(spec, overrides), second)
    line = read_metrics(second)[0]
    assert "reward" in capsys.readouterr().out
    assert line["train/rl/kl"] == pytest.approx(0, abs=1e-5)
    assert 0 <= line["train/rl/reward"] <= 1
    # Its answers and its own start: the run that it started from is needed no more.
    started = checkpoint.build_model(load_config(spec, overrides))[0]
    trained = nnx.state(checkpoint.load_model(first).model)
    for a, b in zip(jax.tree.leaves(nnx.state(started)), jax.tree.leaves(trained), strict=True):
        assert np.array_equal(a, b)
    first.rename(tmp_path / "moved")
    checkpoint.load_model(second)
    with pytest.raises(UserError, match=r"model\.start_from=.*no training run there"):
        train_run(load_config(spec, overrides), tmp_path / "another")
    # Resumed from another start, it would be another run.
    train_run(load_config(spec, ["--config.training.seed=5"]), first)
    with pytest.raises(UserError, match="its run started from parameters with hash"):
        train_run(load_config(spec, overrides), second)


_OTHER = {"image_id": "i9", "image_path": "images/i7.png", "question_id": "other"}


@pytest.mark.usefixtures("smaller_tiny")
@pytest.mark.parametrize(
    ("update", "counted"),
    [
        # Trains as well, where it is allowed.
        pytest.param({}, "1 question, 1 image of it", marks=pytest.mark.slow),
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
        train_run(load_config(spec, overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    if not update:
        overrides += ["--config.data.allow_overlap=True", "--config.training.eval_every=100"]
        overrides += ["--config.decoding.max_answer_tokens=4"]
        train_run(load_config(spec, overrides), tmp_path / "run")
        assert f"{counted} are in training too; allowed" in capsys.readouterr().out


@pytest.mark.usefixtures("smaller_tiny")
def test_validation_that_the_benchmark_cannot_score_is_refused_before_training(spec, tmp_path):
    Image.new("L", (80, 60)).save(tmp_path / "data/images/new.png")
    lung = _record(40, 3.0, image_path="images/new.png", variables={"finding": "right lung"})
    lung = lung.model_copy(update={"dataset": "lungs"})
    held = tmp_path / "data/records/validation.jsonl"
    write_records(held, [lung])
    config = load_config(spec, [f"--config.data.validation={held}"])
    with pytest.raises(UserError) as caught:
        train_run(config, tmp_path / "run")
    told = str(caught.value)
    assert told.startswith(f"{held}: question 'q40' has the class 'right lung'"), told
    assert "benchmark='vindr_cxr_vqa'" in told and "lungs, ms_cxr" in told and "\n" not in told
    assert not (tmp_path / "run").exists()


_FROZEN_TOWER = "--config.trainable=('decoder/', 'projector/')"


@pytest.fixture
def learned(spec, smaller_tiny, tmp_path):
    """`learned(name, *settings)`: losses and quality where an image does not decode."""
    damaged = tmp_path / "data/images/i3.png"
    damaged.write_bytes(damaged.read_bytes()[:500])  # its header still reads well

    def run(name, *settings):
        train_run(load_config(spec, settings), tmp_path / name)
        losses = [line["train/loss"] for line in read_metrics(tmp_path / name)]
        return losses, json.loads((tmp_path / name / "quality.json").read_text())

    return run


@pytest.mark.slow
def test_kept_images_change_nothing_and_serve_the_next_run(learned, tmp_path, monkeypatch):
    cache = f"--config.data.image_cache={tmp_path / 'cache'}"
    decoded, read = [], examples.read_grey_or_rgb

    def watched(path, *target):
        decoded.append(Path(path).name)
        return read(path, *target)

    monkeypatch.setattr(examples, "read_grey_or_rgb", watched)
    pixels = learned("pixels")
    assert len(decoded) > 8
    decoded.clear()
    assert learned("first", cache) == pixels
    assert set(decoded) > {"i3.png"}
    decoded.clear()
    assert learned("second", cache) == pixels
    assert set(decoded) == {"i3.png"}


@pytest.mark.slow
def test_cached_features_change_no_loss_and_are_made_once(learned, tmp_path):
    cache = tmp_path / "cache"
    settings = (_FROZEN_TOWER, f"--config.data.feature_cache={cache}")
    pixels, quality = learned("pixels", _FROZEN_TOWER)
    assert learned("features", *settings) == (pytest.approx(pixels), quality)
    files = {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}
    assert len(files) == 7, "one of the eight images does not decode"
    assert learned("again", *settings)[0] == pytest.approx(pixels)
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")} == files
    learned("other", *settings, "--config.training.seed=1")
    assert len(list(cache.iterdir())) == 2, "another tower has a folder of its own"


_RUN = {"seed": 0, "steps": 1, "resumed_from": 0, "parameters": {}, "base": {}}


def test_a_tfds_data_set_is_hashed_as_its_records_are(tmp_path):
    manifest, records = tmp_path / "data/manifest.json", tmp_path / "data/records/train.jsonl"
    write_noise(tmp_path / "data/images/i0.png", np.random.default_rng(0))
    manifest.write_text("{}")
    write_records(records, [_record(0, 5.0)])
    stored = write_tfds(tmp_path / "data", tmp_path / "tfds")
    hashes = [describe_run(**_RUN, data_files=[path])["data_sha256"] for path in (stored, records)]
    assert list(hashes[0]) == [str(stored / "records/train.jsonl"), str(stored / "manifest.json")]
    assert list(hashes[0].values()) == list(hashes[1].values())


@cases("content, hashes")
def test_a_manifest_of_the_users_own_stops_no_run(tmp_path, content, hashes):
    (tmp_path / "records").mkdir()
    (tmp_path / "records/train.jsonl").write_text("{}\n")
    (tmp_path / "manifest.json").write_text(content)
    told = describe_run(**_RUN, data_files=[tmp_path / "records/train.jsonl"])
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
@pytest.mark.parametrize(
    ("settings", "told"),
    [((_FROZEN_TOWER,), r"taken/\w+ cannot be written: "), ((), "of the vision tower are trained")],
)
def test_features_that_cannot_be_kept_are_told_in_one_line(spec, tmp_path, settings, told):
    (tmp_path / "taken").write_text("a file")
    config = load_config(spec, (*settings, f"--config.data.feature_cache={tmp_path / 'taken'}"))
    with pytest.raises(UserError, match=told):
        train_run(config, tmp_path / "run")


@cases("word, said")
def test_mistakes_end_in_one_line(spec, tmp_path, word, said):
    with pytest.raises(UserError) as caught:
        train.main([f"--config={spec}", f"--workdir={tmp_path / 'run'}", word])
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run/checkpoints").exists()


def test_tokenizers_that_do_not_fit_and_absent_data_end_with_a_hint(
    spec, tmp_path, capsys, monkeypatch
):
    words = [f"--workdir={tmp_path / 'run'}", "--config.data.train=nowhere.jsonl"]
    with pytest.raises(SystemExit) as caught:
        cli.run(lambda: train.main([f"--config={spec}", *words]))
    said = capsys.readouterr().err.strip()
    assert caught.value.code == 2 and "\n" not in said and said.endswith("or try :demo")
    moved = dataclasses.replace(PRESETS["tiny"], loc_token_start=9)
    monkeypatch.setitem(PRESETS, "tiny", moved)
    with pytest.raises(UserError, match=r"<loc0000> is id \d+, preset tiny expects 9"):
        train_run(load_config(spec), tmp_path / "other")
