"""CXR-QBA in shards as a TFDS data set: an image an example, its bytes where there are images."""

import json

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from cxrjax import build
from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.construct.tfds_builder import CxrQba, write_qba_tfds
from cxrjax.records import QARecord, read_records


@pytest.fixture
def built(sample, tmp_path):
    """A build of three studies and the same in shards."""
    whole, shards = tmp_path / "whole", tmp_path / "shards"
    main = build.main
    main(["--dataset=cxr_qba", f"--source={sample / 'reports'}", f"--out={whole}"])
    main(["--dataset=shards", f"--source={whole}", f"--out={shards}", "--num_shards=3"])
    return whole, shards


@pytest.fixture
def images(built, tmp_path):
    """A folder with the images that the records name."""
    root = tmp_path / "images"
    for number, path in enumerate(sorted({r.image_path for r in _records(built[0])})):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(root / path)
    return root


def _records(whole):
    return [r for f in sorted((whole / "records").glob("*.jsonl")) for r in read_records(f)]


def _examples(folder):
    builder = tfds.builder_from_directory(str(folder))
    return {split: list(builder.as_data_source(split)) for split in builder.info.splits}


def test_examples_are_images_with_their_questions(built, images, tmp_path):
    whole, shards = built
    flags = [f"--source={shards}", f"--image_root={images}", f"--out={tmp_path / 'tfds'}"]
    build.main(["--dataset=tfds", *flags])
    found = []
    for split, examples in _examples(tmp_path / "tfds/cxr_qba/1.0.0").items():
        indices = [index for one in examples for index in one["questions"]["index"]]
        assert indices == list(range(len(indices)))  # in the order of the shards
        for one in examples:
            assert one["image"] == (images / one["image_path"].decode()).read_bytes()
            records = [QARecord.model_validate_json(text) for text in one["questions"]["record"]]
            assert {(r.split, r.image_id) for r in records} == {(split, one["image_id"].decode())}
            found += records
    assert sorted(found, key=lambda r: r.question_id) == sorted(
        _records(whole), key=lambda r: r.question_id
    )


def test_without_images_and_by_the_builder_s_name(built, tmp_path):
    _, shards = built
    data = tfds.data_source(
        "cxr_qba",
        split="train",
        data_dir=str(tmp_path / "tfds"),
        builder_kwargs={"source": str(shards)},
        download_and_prepare_kwargs={"download_dir": str(tmp_path / "none")},
    )
    assert CxrQba.name == "cxr_qba" and "image" not in data[0] and len(data[0]["questions"])
    # What is there is left as it is.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "tfds").rglob("*")}
    folder = write_qba_tfds(shards, tmp_path / "tfds")
    assert folder == tmp_path / "tfds/cxr_qba/1.0.0"
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "tfds").rglob("*")}


def test_what_cannot_be_written(built, images, tmp_path):
    whole, shards = built
    path = sorted({record.image_path for record in _records(whole)})[1]
    (images / path).unlink()
    with pytest.raises(UserError, match=f"{path}: cannot read the image.*--image_root"):
        write_qba_tfds(shards, tmp_path / "tfds", images)
    assert not (tmp_path / "tfds/cxr_qba/1.0.0").exists()
    write_qba_tfds(shards, tmp_path / "tfds")
    manifest = json.loads((shards / "manifest.json").read_text())
    (shards / "manifest.json").write_text(json.dumps({**manifest, "seed": 9}))
    with pytest.raises(UserError, match="of another build"):
        write_qba_tfds(shards, tmp_path / "tfds")
    (shards / "manifest.json").write_text(json.dumps({**manifest, "dataset": "gemex"}))
    with pytest.raises(UserError, match="expected questions of cxr_qba in shards"):
        write_qba_tfds(shards, tmp_path / "other")
