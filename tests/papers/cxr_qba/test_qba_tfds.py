"""CXR-QBA in shards as a TFDS data set: an image an example, its bytes where there are images."""

import json
import operator
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.construct.tfds_builder import CxrQba, write_qba_tfds
from cxrjax.records import QARecord


@pytest.fixture(scope="module")
def in_shards(plain, tmp_path_factory):
    """The build of three studies in shards; not to be changed."""
    out = tmp_path_factory.mktemp("shards") / "out"
    build.main(["--dataset=shards", f"--source={plain.out}", f"--out={out}", "--num_shards=3"])
    return out


@pytest.fixture
def images(plain, tmp_path):
    """A folder with the images that the records name."""
    root = tmp_path / "images"
    for number, path in enumerate(sorted({r.image_path for r in plain.records})):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(root / path)
    return root


def _examples(folder):
    builder = tfds.builder_from_directory(str(folder))
    return {split: list(builder.as_data_source(split)) for split in builder.info.splits}


def test_examples_are_images_with_their_questions(plain, in_shards, images, tmp_path):
    flags = [f"--source={in_shards}", f"--image_root={images}", f"--out={tmp_path / 'tfds'}"]
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
    by_id = operator.attrgetter("question_id")
    assert sorted(found, key=by_id) == sorted(plain.records, key=by_id)


def test_without_images_and_by_the_builder_s_name(in_shards, tmp_path):
    data = tfds.data_source(
        "cxr_qba",
        split="train",
        data_dir=str(tmp_path / "tfds"),
        builder_kwargs={"source": str(in_shards)},
        download_and_prepare_kwargs={"download_dir": str(tmp_path / "none")},
    )
    assert CxrQba.name == "cxr_qba" and "image" not in data[0] and len(data[0]["questions"])
    # What is there is left as it is.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "tfds").rglob("*")}
    folder = write_qba_tfds(in_shards, tmp_path / "tfds")
    assert folder == tmp_path / "tfds/cxr_qba/1.0.0"
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "tfds").rglob("*")}


def test_what_cannot_be_written(plain, in_shards, images, tmp_path):
    shards = shutil.copytree(in_shards, tmp_path / "shards")
    path = sorted({record.image_path for record in plain.records})[1]
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
