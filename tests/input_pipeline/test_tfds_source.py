"""A build as a TFDS data set: what is in it, that nothing half is left, the same batches."""

import subprocess
import sys
from pathlib import Path

import grain
import numpy as np
import pytest
import tensorflow_datasets as tfds

from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.images.decode import audit_header, image_size, read_image
from cxrjax.input_pipeline import stored_images
from cxrjax.input_pipeline.caches import FeatureCache
from cxrjax.input_pipeline.loader import eval_loader, single_source, train_loader
from cxrjax.input_pipeline.sources import RecordSource, open_tfds
from cxrjax.input_pipeline.usable_records import check_records
from cxrjax.records import QARecord, read_records, write_records
from cxrjax.records_io import tfds_builders
from cxrjax.training.config_file import load_config
from cxrjax.training.data import open_records

from .conftest import assert_equal, take

ROOT = Path(__file__).parents[2]


@pytest.fixture
def built(records_file) -> Path:
    """A folder as a build leaves it."""
    root = records_file.parent.parent
    (root / "manifest.json").write_text('{"dataset": "test"}')
    return root


def _convert(source: Path, out: Path) -> Path:
    build.main(["--dataset=tfds", f"--source={source}", f"--out={out}"])
    (folder,) = out.glob("*/1.0.0")
    return folder


@pytest.fixture
def files(built) -> RecordSource:
    return RecordSource(built / "records/train.jsonl", questions_per_image=3)


@pytest.fixture
def folder(built, tmp_path) -> Path:
    """The build as a data set."""
    return _convert(built, tmp_path / "tfds")


@pytest.fixture
def stored(folder):
    return open_tfds(folder, "train", 3)


@pytest.mark.parametrize("dataset", ["vindr_cxr_vqa", "vix_ray", "custom"])
def test_an_image_and_its_questions_are_an_example(built, tmp_path, dataset):
    path = built / "records/train.jsonl"
    records = [r.model_copy(update={"dataset": dataset}) for r in read_records(path)]
    write_records(path, records)
    folder = _convert(built, tmp_path / "tfds")
    name = "cxr_records" if dataset == "custom" else dataset
    assert folder == tmp_path / "tfds" / name / "1.0.0"
    data = tfds.builder_from_directory(str(folder)).as_data_source("train")
    source = RecordSource(path, questions_per_image=100)
    assert len(data) == len(source) == 5
    # By random access, through Grain.
    examples = grain.MapDataset.source(data)
    for number in (3, 0, 4, 1, 2):
        example, expected = examples[number], source[number]
        assert example["image"] == expected.image_path.read_bytes()
        assert example["image_id"].decode() == expected.records[0].image_id
        questions = example["questions"]
        assert list(questions["index"]) == list(expected.indices)
        assert [QARecord.model_validate_json(text) for text in questions["record"]] == list(
            expected.records
        )
        names = [text.decode() for text in questions["question_id"]]
        assert names == [record.question_id for record in expected.records]


def test_tfds_finds_the_named_data_sets_by_their_builder(built, tmp_path):
    path = built / "records/train.jsonl"
    write_records(path, [r.model_copy(update={"dataset": "vix_ray"}) for r in read_records(path)])
    data = tfds.data_source(
        "vix_ray",
        split="train",
        data_dir=str(tmp_path / "tfds"),
        builder_kwargs={"source": str(built)},
        download_and_prepare_kwargs={"download_dir": str(tmp_path / "none")},
    )
    assert len(data) == 5


@pytest.mark.parametrize("left_out", [(), (0, 7)])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_batches_are_those_of_the_records_file(stored, files, tokenizer, config, left_out, workers):
    assert stored.fingerprint == files.fingerprint and len(stored) == len(files)
    stored[0].image_path.open()  # an open data set is not handed to the worker
    batches = []
    for source, processes in ((files.without(left_out), 0), (stored.without(left_out), workers)):
        settings = {"global_batch_size": 4, "seed": 3, "workers": processes}
        with train_loader(single_source(source, config), tokenizer, **settings) as loader:
            batches.append(take(loader, 6))
    for expected, found in zip(*batches, strict=True):
        assert expected.problems == []
        assert_equal(expected, found)


def test_stored_images_and_features_are_those_of_the_files(
    stored, files, tokenizer, config, tmp_path
):
    loaders = (eval_loader(s, tokenizer, config, global_batch_size=2) for s in (files, stored))
    for expected, found in zip(*loaders, strict=True):
        assert_equal(expected, found)
    cache = FeatureCache(tmp_path / "cache", num_tokens=2, width=3, dtype="float32")
    features = np.arange(6, dtype=np.float32).reshape(2, 3)
    cache.write(cache.file_of(files[1].image_path), features)
    np.testing.assert_array_equal(cache.read(stored[1].image_path), features)
    assert cache.read(stored[3].image_path) is None
    for number in range(len(files)):
        image, file = stored[number].image_path, files[number].image_path
        assert image.image_hw == image_size(image) == image_size(file)
        assert audit_header(image) == audit_header(file)
        np.testing.assert_array_equal(read_image(image), read_image(file))
    check = check_records(stored)
    assert not check.indices and check.quality.examined == {"images": 5, "questions": 15}
    assert check_records(files).quality.examined == check.quality.examined
    assert stored_images.IMAGES_FILE == tfds_builders.IMAGES_FILE


def test_the_index_alone_is_read_before_the_first_batch(folder):
    for shard in folder.glob("*.array_record*"):
        shard.unlink()
    stored = open_tfds(folder, "train")
    assert not check_records(stored).indices
    with pytest.raises(Exception, match="array_record"):
        read_image(stored[0].image_path)


def test_the_recipe_s_variant_reads_what_the_build_wrote(built, tmp_path, monkeypatch):
    path = built / "records/train.jsonl"
    write_records(path, [r.model_copy(update={"dataset": "custom"}) for r in read_records(path)])
    monkeypatch.chdir(tmp_path)
    _convert(built, Path("runs/own/tfds"))
    opened = open_records(load_config(f"{ROOT}/configs/records_lora.py:tfds"), "train")
    source, entries = opened.source, opened.quality.entries
    assert source.fingerprint == RecordSource(path, questions_per_image=4).fingerprint
    assert not entries and source.num_images == 5
    assert read_image(source[0].image_path).size


def test_records_of_other_images_are_refused(folder):
    path = folder / "records/train.jsonl"
    path.write_text(path.read_text().replace("images/3.png", "images/9.png"))
    stored = open_tfds(folder, "train")
    with pytest.raises(UserError, match=r"image3 \(images/9\.png\) is not among the 5"):
        check_records(stored)


def test_sources_and_images_that_cannot_be_read_leave_no_data_set(built, tmp_path):
    path = built / "images/2.png"
    path.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"images/2\.png: not PNG, JPEG or DICOM"):
        _convert(built, tmp_path / "tfds")
    path.unlink()
    with pytest.raises(UserError, match=r"images/2\.png: cannot be read"):
        _convert(built, tmp_path / "tfds")
    assert not list((tmp_path / "tfds").glob("*/*"))
    (built / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"manifest\.json: cannot be read"):
        _convert(built, tmp_path / "tfds")
    (built / "manifest.json").write_text("{}")
    (built / "records/train.jsonl").write_text("")
    with pytest.raises(UserError, match="no records"):
        _convert(built, tmp_path / "tfds")
    with pytest.raises(UserError, match=r"images\.json: cannot be read"):
        open_tfds(tmp_path, "train")


def test_a_second_run_does_nothing_and_another_build_is_refused(built, folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert _convert(built, tmp_path / "tfds") == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    with pytest.raises(UserError, match="no split 'test', found"):
        open_tfds(folder, "test")
    (built / "manifest.json").write_text('{"dataset": "other"}')
    with pytest.raises(UserError, match="of another build"):
        _convert(built, tmp_path / "tfds")


_STUCK = """
import sys, time
from pathlib import Path
from cxrjax.records_io import tfds_builders

generate = tfds_builders.CxrRecords._generate_examples

def stuck(*arguments):
    for number, example in enumerate(generate(*arguments)):
        yield example
        if number == 2:
            print("writing", flush=True)
            time.sleep(600)

tfds_builders.CxrRecords._generate_examples = stuck
tfds_builders.write_tfds(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_that_looks_whole(built, tmp_path):
    out = tmp_path / "tfds"
    command = [sys.executable, "-c", _STUCK, str(built), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert any("writing" in line for line in run.stdout)
        run.kill()
    assert run.returncode == -9
    (unfinished,) = out.glob("*/*")
    assert unfinished.name.startswith("incomplete.")
    folder = _convert(built, out)
    assert list(folder.parent.iterdir()) == [folder]
    assert len(open_tfds(folder, "train")) == 5


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_damaged_shard_loses_questions_that_are_told_by_id(folder, tokenizer, config, workers):
    (shard,) = folder.glob("*train.array_record*")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0xFF
    shard.write_bytes(content)
    source = open_tfds(folder, "train", 3)
    settings = {"global_batch_size": 2, "seed": 5, "workers": workers}
    with train_loader(single_source(source, config), tokenizer, **settings) as loader:
        problems = [each for loaded in take(loader, 4) for each in loaded.problems]
    assert problems
    for problem in problems:
        assert problem.reason == "unreadable_image" and problem.question_id
        assert "the shard is damaged" in problem.detail and "\n" not in problem.detail


@pytest.mark.parametrize(
    "entries", ["1", '{"a": 1}', "[1]", '[["a", "b"]]', '[["a", "b", [1]]]', "[[[], [], [1, 2]]]"]
)
def test_an_index_of_something_else(tmp_path, entries):
    (tmp_path / stored_images.IMAGES_FILE).write_text(f'{{"train": {entries}}}')
    with pytest.raises(UserError, match=r"images\.json: 'train' is not a list of"):
        stored_images.StoredImages(tmp_path, "train")
