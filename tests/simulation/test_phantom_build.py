"""Phantom datasets on disk: complete, deterministic, resumable, with VinDr's statistics."""

import collections
import dataclasses
import json
import tomllib
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import PIL.Image
import pytest

from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.box_table import read_box_table
from cxrjax.records import read_records
from cxrjax.simulation import findings, phantoms
from cxrjax.simulation.builder import pixel_box
from cxrjax.simulation.phantoms import PhantomBuilder, PhantomOptions
from cxrjax.simulation.render import render_phantom

SMALL = {"images": 40, "validation_images": 6, "long_side": 64}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("phantom")
    PhantomBuilder(PhantomOptions(out, **SMALL)).build()
    return out


def _json(path: Path):
    return json.loads(path.read_text())


def test_folder(built):
    names = {"boxes.csv", "images", "manifest.json", "quality.json", "questions", "records"}
    assert {path.name for path in built.iterdir()} == names | {"statistics.json"}
    splits = _json(built / "manifest.json")["splits"]
    assert (splits["train"]["images"], splits["validation"]["images"]) == (40, 6)
    statistics = _json(built / "statistics.json")
    assert statistics["images"]["value"] == 46
    assert abs(statistics["polarity_percent/pos"]["difference"]) < 1
    for split in ("train", "validation"):
        assert len(list((built / "questions").glob("*.jsonl"))) == 2
        for record in read_records(built / "records" / f"{split}.jsonl"):
            with PIL.Image.open(built / record.image_path) as image:
                assert image.mode == "L" and image.size[::-1] == record.image_hw
            assert record.split == split and record.dataset == "synthetic"
            for x0, y0, x1, y1 in record.boxes:
                assert 0 <= x0 < x1 <= record.image_hw[1] and 0 <= y0 < y1 <= record.image_hw[0]


def test_truth_is_the_phantoms(built):
    records = list(read_records(built / "records" / "train.jsonl"))
    build = PhantomOptions(built, **SMALL)
    for index in range(8):
        phantom = render_phantom(
            build.stream("train"), index, long_side=64, normal=build.is_normal(index)
        )
        mine = [r for r in records if r.image_id == f"phantom-0-train-{index:06d}"]
        boxes = collections.Counter(
            (r.variables["finding"], *box) for r in mine if r.variables for box in r.boxes
        )
        assert boxes == collections.Counter(
            (label, *pixel_box(box, *phantom.image.shape))
            for label, box in zip(phantom.labels, phantom.boxes, strict=True)
        )
        with PIL.Image.open(built / mine[0].image_path) as image:
            assert np.array_equal(np.asarray(image), phantom.image)


def test_box_table_is_the_readers(built):
    images = {image.image_id: image for image in read_box_table(built / "boxes.csv")}
    assert len(images) == 46
    for record in read_records(built / "records" / "train.jsonl"):
        if record.readers is not None:
            table = images[record.image_id]
            assert table.image_hw == record.image_hw
            theirs, ours = ({r: len(m) for r, m in x.readers.items()} for x in (table, record))
            assert theirs == ours


def test_splits_and_seeds_share_no_phantom_and_every_tenth_is_normal(built):
    what = [r for r in read_records(built / "records" / "train.jsonl") if r.question_type == "What"]
    normal = [r.image_id for r in what if r.negative_kind == "no_finding_image"]
    assert normal == [f"phantom-0-train-{index:06d}" for index in (9, 19, 29, 39)]
    builds = [PhantomOptions(Path("x"), 1, 1, seed=seed) for seed in range(50)]
    assert len({build.stream(split) for build in builds for split in phantoms.SPLITS}) == 100


def test_more_images_keep_the_first(built, tmp_path):
    PhantomBuilder(PhantomOptions(tmp_path, 20, 6, long_side=64)).build()
    for path in (tmp_path / "images").iterdir():
        assert path.read_bytes() == (built / "images" / path.name).read_bytes()


@pytest.mark.slow
def test_number_of_processes_changes_nothing(built, tmp_path):
    PhantomBuilder(PhantomOptions(tmp_path, **SMALL, processes=2)).build()
    for path in sorted(built.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / path.relative_to(built)).read_bytes(), path


def test_interrupted_build_resumes(built, tmp_path, monkeypatch):
    build, render = PhantomOptions(tmp_path, **SMALL), Mock(wraps=render_phantom)

    def stops(*arguments):
        if render.call_count == 20:
            raise KeyboardInterrupt
        return render(*arguments)

    monkeypatch.setattr(phantoms, "render_phantom", stops)
    with pytest.raises(KeyboardInterrupt):
        PhantomBuilder(build).build()
    assert not (tmp_path / "manifest.json").exists()
    render.reset_mock()
    monkeypatch.setattr(phantoms, "render_phantom", render)
    PhantomBuilder(build).build()
    # One chunk of 16 was complete.
    assert render.call_count == 46 - 16
    assert (tmp_path / "manifest.json").read_bytes() == (built / "manifest.json").read_bytes()


def test_parts_of_another_build_are_not_taken_up(tmp_path):
    build = PhantomOptions(tmp_path, 2, 1, long_side=64)
    other = PhantomBuilder(dataclasses.replace(build, seed=1)).fingerprint()
    assert PhantomBuilder(build).fingerprint() != other
    (tmp_path / "parts").mkdir()
    part = tmp_path / "parts" / "train-0000000-0000002.json"
    part.write_text(json.dumps({"fingerprint": other, "made": []}))
    PhantomBuilder(build).build()
    assert _json(tmp_path / "manifest.json")["splits"]["train"]["images"] == 2


def test_image_with_too_many_boxes_of_a_class_is_rejected(tmp_path, monkeypatch):
    def crowded(seed, index, *options):
        phantom = render_phantom(seed, index, *options)
        if index:
            return phantom
        boxes = np.array([[0.1 * k, 0.1, 0.1 * k + 0.08, 0.2] for k in range(7)], np.float32)
        return dataclasses.replace(phantom, boxes=boxes, labels=["ILD"] * 7)

    monkeypatch.setattr(phantoms, "render_phantom", crowded)
    PhantomBuilder(PhantomOptions(tmp_path, 3, 2, long_side=64)).build()
    quality = _json(tmp_path / "quality.json")
    assert quality["counts"]["too_many_boxes"] == 2 and quality["examined"]["images"] == 5
    assert _json(tmp_path / "manifest.json")["splits"]["train"]["images"] == 2


def test_boxes_in_pixels_and_pictures_as_jpeg(tmp_path):
    assert pixel_box([0.1, 0.2, 0.5, 0.9], height=200, width=100) == (10, 40, 50, 180)
    assert pixel_box([0.0, 0.0, 1.0, 1.0], height=7, width=9) == (0, 0, 9, 7)
    # Thinner than a pixel, also at the far border: widened to one inside the image.
    assert pixel_box([0.501, 0.999, 0.502, 1.0], height=10, width=10) == (5, 9, 6, 10)
    PhantomBuilder(PhantomOptions(tmp_path, 1, 1, long_side=64, image_format="jpg")).build()
    for path in (tmp_path / "images").iterdir():
        with PIL.Image.open(path) as image:
            assert image.format == "JPEG" and image.mode == "L"


_UNUSABLE = "images=0 validation_images=0 seed=-1 processes=0 long_side=63 normal_percent=101"


@pytest.mark.parametrize("flag", _UNUSABLE.split())
def test_unusable_options(flag):
    name, value = flag.split("=")
    options = {"images": 1, "validation_images": 1, name: int(value)}
    with pytest.raises(UserError, match=f"--{flag}"):
        PhantomOptions(Path("x"), **options)


TABLE = tomllib.loads(Path(__file__).with_name("vindr_table.toml").read_text())
IMAGES = 3000


@pytest.fixture(scope="module")
def drawn():
    """class -> number of lesions in each of many pictures that have the class."""
    rng = np.random.default_rng(1)
    counts = collections.defaultdict(list)
    for _ in range(IMAGES):
        for presence in findings.draw_presences(rng):
            counts[presence.label].append(len(presence.strengths))
    return counts


@pytest.fixture(scope="module")
def marks():
    """Boxes and votes by class over many abnormal pictures; reading needs no pixels."""
    rng = np.random.default_rng(0)
    boxes, votes, empty = collections.Counter(), collections.defaultdict(lambda: [0, 0, 0]), 0
    for _ in range(IMAGES):
        presences = findings.draw_presences(rng)
        labels = [p.label for p in presences for _ in p.strengths]
        somewhere = np.tile(np.array([0.2, 0.3, 0.4, 0.5], np.float32), (len(labels), 1))
        read = findings.read(rng, presences, labels, somewhere)
        seen = collections.Counter()
        for found in read.values():
            empty += not found
            boxes.update(label for label, _ in found)
            seen.update({label for label, _ in found})
        for label, count in seen.items():
            votes[label][count - 1] += 1
    return boxes, votes, empty


def test_boxes_and_lesions_are_those_of_the_table(drawn, marks):
    assert list(findings.CLASSES) == list(TABLE)
    for label, (boxes, images, votes) in TABLE.items():
        said = findings.CLASSES[label]
        assert (said["boxes"], sum(said["votes"]), said["votes"]) == (boxes, images, votes)
    assert sum(said["boxes"] for said in findings.CLASSES.values()) == 36096
    for label in ("Nodule/Mass", "ILD", "Pleural thickening"):
        law = findings.lesion_count_law(label)
        share = np.bincount(drawn[label], minlength=len(law) + 1)[1:] / len(drawn[label])
        np.testing.assert_allclose(share, law, atol=0.08)
    boxes, _, _ = marks
    assert sum(boxes.values()) / IMAGES == pytest.approx(36096 / 4394, rel=0.03)
    assert marks[2] == 0


@pytest.mark.parametrize("label", TABLE)
def test_frequencies_and_numbers_of_lesions(marks, label):
    boxes, votes, _ = marks
    table_boxes, table_images, table_votes = TABLE[label]
    # A tenth (look-alikes) and three standard errors of the count.
    expected = table_images / 4394 * IMAGES
    assert sum(votes[label]) == pytest.approx(expected, abs=0.12 * expected + 3 * expected**0.5)
    share = table_boxes / 36096 * sum(boxes.values())
    assert boxes[label] == pytest.approx(share, abs=0.12 * share + 4 * share**0.5)
    shape = np.array(votes[label]) / sum(votes[label])
    tolerance = 0.06 + 1.5 / sum(votes[label]) ** 0.5
    np.testing.assert_allclose(shape, np.array(table_votes) / table_images, atol=tolerance)
    law = findings.lesion_count_law(label)
    assert len(law) == findings.CLASSES[label]["most"]
    assert law.sum() == pytest.approx(1)
    assert (np.diff(law) < 0).all() or label == "ILD"  # ILD is bilateral more often than not
    counts = np.arange(1, len(law) + 1)
    # A reader marks nine of ten, and one at least.
    marks = (law * (0.9 * counts + 0.1**counts)).sum() * 1.01
    boxes, _, (one, two, three) = TABLE[label]
    assert marks == pytest.approx(max(boxes / (one + 2 * two + 3 * three), 1.01), abs=0.005)
