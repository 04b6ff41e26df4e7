"""VinDr-CXR-VQA from its pieces to a folder; and the real table, where it can be had."""

import collections
import copy
import json
import os
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.box_table import read_box_table
from cxrjax.papers.vindr_cxr_vqa.build import VinDrBuilder, VinDrOptions
from cxrjax.records import read_records
from tests.evaluation import made
from tests.papers.cases import data

CASES = made.cases_of(__file__)

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "data" / "vindr_cxr_vqa" / "sample"
TABLE = SAMPLE / "train.csv"


def _build(source: Path, out: Path, **options) -> list:
    """Records of all splits."""
    VinDrBuilder(VinDrOptions(source, out, **options)).build()
    return _records(out)


def _records(out: Path) -> list:
    return [r for split in ("train", "validation") for r in read_records(_split(out, split))]


def _split(out: Path, split: str) -> Path:
    return out / "records" / f"{split}.jsonl"


def test_table_alone(tmp_path):
    records = _build(TABLE, tmp_path)
    assert len(records) == 8  # four on each of two abnormal images
    assert all(record.image_hw is None for record in records)
    statistics = made.read_json(tmp_path / "statistics.json")
    expected = {"images": 2, "questions": 8, "boxes": 9, "source/rows": 12, "source/images": 3}
    assert {name: statistics[name]["value"] for name in expected} == expected
    assert statistics["images"]["difference"] == 2 - 4394
    for entry in statistics.values():
        assert set(entry) == {"value", "paper", "difference", "note"}
    native = made.read_json(tmp_path / "data_v1.json")
    assert [entry["num_questions"] for entry in native] == [4, 4]


def test_splits_of_a_build_can_be_given_back_as_its_manifest(tmp_path):
    source = SAMPLE / "train.csv"
    VinDrBuilder(VinDrOptions(source, tmp_path / "a")).build()
    splits = made.read_json(tmp_path / "a" / "splits.json")
    assert sorted(map(len, splits.values())) == [1, 1]
    manifest = tmp_path / "splits.json"
    manifest.write_text(json.dumps({"train": splits["validation"], "validation": splits["train"]}))
    VinDrBuilder(VinDrOptions(source, tmp_path / "b", split_manifest=manifest)).build()
    hashes = [
        {
            name: split["split_sha256"]
            for name, split in made.read_json(out / "manifest.json")["splits"].items()
        }
        for out in (tmp_path / "a", tmp_path / "b")
    ]
    assert hashes[0] == {"train": hashes[1]["validation"], "validation": hashes[1]["train"]}
    assert "split_manifest" in made.read_json(tmp_path / "b" / "manifest.json")["source"]
    manifest.write_text(json.dumps({"train": ["sample_heart", "sample_normal", "elsewhere"]}))
    VinDrBuilder(VinDrOptions(source, tmp_path / "b", split_manifest=manifest)).build()
    counts = made.read_json(tmp_path / "b" / "quality.json")["counts"]
    assert (counts["not_in_split"], counts["not_in_source"]) == (1, 1)
    assert {record.image_id for record in _records(tmp_path / "b")} == {"sample_heart"}


def test_questions_for_everything_lift_the_recall_ceiling(tmp_path):
    ceilings = []
    for questions in ("one_box", "dense"):
        out = tmp_path / questions
        records = _build(TABLE, out, questions=questions)
        statistics = made.read_json(out / "statistics.json")
        ceilings.append(statistics["validation_recall_ceiling"]["value"])
        # The release's form has one finding a question.
        assert sum(entry["num_questions"] for entry in made.read_json(out / "data_v1.json")) == 8
        assert len(records) == 8 + 2 * (questions == "dense")
    assert 0 < ceilings[0] < ceilings[1] == 1


def test_tables(tmp_path, capsys):
    _build(TABLE, tmp_path)
    text, page = capsys.readouterr().out, (tmp_path / "tables.md").read_text()
    assert text.partition("## Table 3")[2].split("\n\n")[1].strip() in page
    for line in data(__file__)["tables"]:
        assert line in page, line


def test_questions_hold_no_answers_and_match_the_records(tmp_path):
    _build(TABLE, tmp_path)
    for split in ("train", "validation"):
        lines = (tmp_path / "questions" / f"{split}.jsonl").read_text()
        for word in ("<loc_", "answers", "gt_", "reason", "readers", "polarity"):
            assert word not in lines
        ids = [json.loads(line)["question_id"] for line in lines.splitlines()]
        assert ids == [record.question_id for record in read_records(_split(tmp_path, split))]


def test_release_with_its_table(tmp_path):
    records = _build(SAMPLE, tmp_path)
    assert made.read_json(tmp_path / "data_v1.json") == made.read_json(SAMPLE / "data_v1.json")
    assert made.read_json(tmp_path / "quality.json")["total"] == 0
    assert len(records) == 6 and set(records[0].readers) == {"S1", "S2", "S3"}
    manifest = made.read_json(tmp_path / "manifest.json")
    assert set(manifest["source"]) == {"table", "release"}
    assert len(manifest["source"]["table"]["sha256"]) == 64


def test_what_the_table_contradicts_is_set_aside(tmp_path):
    content = made.read_json(SAMPLE / "data_v1.json")
    content[0]["vqa"][0]["gt_location"] = "<loc_691_1375_1653_1832>"
    content[0]["vqa"][1]["gt_finding"] = "ILD"
    content.append(copy.deepcopy(content[1]) | {"image_id": "elsewhere"})
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.csv").write_bytes((SAMPLE / "train.csv").read_bytes())
    (source / "data_v1.json").write_text(json.dumps(content))
    records = _build(source, tmp_path / "out")
    quality = made.read_json(tmp_path / "out" / "quality.json")
    assert quality["counts"]["source_mismatch"] == quality["total"] == 5
    assert len(records) == 4


@pytest.mark.parametrize("files", [("train.csv",), ("train.csv", "data_v1.json")])
def test_with_images(tmp_path, files):
    source, out = tmp_path / "source", tmp_path / "out"
    (source / "images").mkdir(parents=True)
    for name in files:
        (source / name).write_bytes((SAMPLE / name).read_bytes())
    # The second image is smaller than its boxes reach.
    for name, size in {"sample_heart": (2336, 2080), "sample_nodules": (1400, 2000)}.items():
        PIL.Image.fromarray(np.zeros(size[::-1], np.uint8)).save(source / "images" / f"{name}.png")
    records = _build(source, out)
    assert {r.image_id for r in records} == {"sample_heart"}
    assert records[0].image_hw == (2080, 2336)
    assert (out / records[0].image_path).resolve() == source / "images" / "sample_heart.png"
    quality = made.read_json(out / "quality.json")
    assert quality["counts"]["box_outside_image"] == quality["total"] == 1


def test_missing_and_truncated_images(tmp_path):
    source = tmp_path / "source"
    (source / "images").mkdir(parents=True)
    (source / "train.csv").write_bytes((SAMPLE / "train.csv").read_bytes())
    noise = np.random.default_rng(0).integers(0, 255, (2000, 1700), np.uint8)
    path = source / "images" / "sample_nodules.jpg"
    PIL.Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UserError, match="no question left") as error:
        _build(source, tmp_path / "out")
    assert "'missing_image': 1" in str(error.value)
    assert "'unreadable_image': 1" in str(error.value)


def test_sources_and_mixes_that_cannot_be_used(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(UserError, match=r"found none of train\.csv"):
            _build(path, tmp_path / "out")
    (tmp_path / "table.xls").write_text("")
    with pytest.raises(UserError, match="expected a box table"):
        _build(tmp_path / "table.xls", tmp_path / "out")
    with pytest.raises(UserError, match="use --mix=released"):
        _build(TABLE, tmp_path, mix="paper")
    with pytest.raises(UserError, match="brings its own"):
        _build(SAMPLE, tmp_path, questions="dense")


def _real_table() -> Path:
    named = os.environ.get("CXRJAX_VINDR_BOX_TABLE")
    if named:
        return Path(named)
    wheels = sorted((ROOT / "data" / "downloads").glob("torchxrayvision-*.whl"))
    if not wheels:
        pytest.skip(
            "the real box table is not here: see data/vindr_cxr_vqa/README.md, or name it in "
            "CXRJAX_VINDR_BOX_TABLE"
        )
    return wheels[0]


def test_real_table_has_the_published_counts(tmp_path):
    build.main(
        ["--dataset=vindr_cxr_vqa", f"--source={_real_table()}", f"--out={tmp_path}", "--seed=3"]
    )
    statistics = made.read_json(tmp_path / "statistics.json")
    values = {name: entry["value"] for name, entry in statistics.items()}
    expected = CASES["real_table"]
    assert {name: values[name] for name in expected} == expected
    for name, entry in statistics.items():
        if name.startswith("source/") and name != "source/boxes_per_abnormal_image":
            assert entry["difference"] == 0, name
    assert len([n for n in values if n.startswith("source/")]) == 8 + 5 * 14
    for kind in ("Where", "What", "Is_there", "How_many", "Which", "Yes_No"):
        assert statistics[f"question_type_percent/{kind}"]["difference"] == 0
    assert abs(statistics["difficulty_percent/Easy"]["difference"]) < 1
    assert statistics["reason_words_min"]["value"] >= 150
    assert statistics["reason_words_max"]["value"] <= 250
    assert statistics["validation_boxes_per_image"]["value"] == pytest.approx(8.3, abs=0.3)
    assert made.read_json(tmp_path / "quality.json")["total"] == 0
    held_out = collections.Counter(
        label
        for record in {r.image_id: r for r in read_records(_split(tmp_path, "validation"))}.values()
        for label in {box.label for boxes in record.readers.values() for box in boxes}
    )
    for label, count in held_out.items():
        assert abs(count - 0.15 * values[f"source/images/{label}"]) <= 2, label


@pytest.mark.slow
def test_real_table_has_the_papers_mix(tmp_path):
    VinDrBuilder(VinDrOptions(_real_table(), tmp_path, mix="paper")).build()
    manifest = made.read_json(tmp_path / "manifest.json")
    assert manifest["mix_scale"] == 1 and manifest["splits"]["train"]["questions"] == 20_880
    polarity = collections.Counter(
        record.answers[0].polarity for record in read_records(_split(tmp_path, "train"))
    )
    assert polarity == {"pos": 8700, "neg": 12_180}


def test_real_table_has_the_two_boxes_that_the_release_quotes():
    images = {image.image_id: image for image in read_box_table(_real_table())}
    for image_id, rad_id, box in (
        ("9a5094b2563a1ef3ff50dc5c7ff71345", "R10", (691, 1375, 1653, 1831)),
        ("a3ca1ceec50e701e7f1a5d09a7827ee4", "R8", (1077, 1249, 2413, 2130)),
    ):
        marked = images[image_id].readers[rad_id]
        assert box in [f.box for f in marked if f.label == "Cardiomegaly"]
