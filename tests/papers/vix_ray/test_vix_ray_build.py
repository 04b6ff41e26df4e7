"""Native files -> folder of records -> native files."""

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from bench import paper_figures
from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.papers.vix_ray.build import VixRayBuilder, VixRayOptions, write_native
from cxrjax.records import read_records
from tests.evaluation import made

from .conftest import FINDINGS, IMPRESSION, png, row, write

_PROMPT = (
    "Ảnh chụp X-ray PA (Chụp Xquang tim phổi thẳng) bệnh nhân nam, 60 tuổi. "
    "Cho biết bệnh nhân bị gì?"
)


def built(source, out, **options):
    VixRayBuilder(VixRayOptions(source, out, segmenter="syllables", **options)).build()
    return out


def records_of(out, name):
    return list(read_records(out / "records" / f"{name}.jsonl"))


def warnings_of(out):
    return made.read_json(out, "quality.json")["warnings"]


def rows_of(folder):
    """File name -> rows, of a folder of Parquet files."""
    return {
        path.name: pyarrow.parquet.read_table(path).to_pylist()
        for path in sorted(folder.rglob("*.parquet"))
    }


def test_native_to_records_to_native_loses_nothing(folder, tmp_path):
    write(
        folder / "data" / "test-00000-of-00001.parquet",
        [row(6, findings="Bo\u0301ng  tim to.\n", sex="khác", Ages=None, note="x", **{"Năm": 3})],
    )
    out = built(folder, tmp_path / "out")
    for split in ("train", "validation", "test"):
        write_native(tmp_path / "back", records_of(out, f"{split}_stage1"), out)
    assert rows_of(tmp_path / "back") == rows_of(folder)


@pytest.mark.parametrize("place", ["default/{}/0000.parquet", "{}/0000.parquet"])
def test_the_layout_that_the_hub_converts_to(folder, tmp_path, place):
    source = tmp_path / "hub"
    for number, split in enumerate(("train", "validation", "test")):
        write(source / place.format(split), [row(number)])
    out = built(source, tmp_path / "out")
    for split in ("train", "validation", "test"):
        stage1 = records_of(out, f"{split}_stage1")
        assert [r.image_id for r in stage1] == [f"vixray-{split}-00000"]
        write_native(tmp_path / "back", stage1, out)
        files = tmp_path / "back" / split / "0000.parquet", source / place.format(split)
        back, given = (pyarrow.parquet.read_table(file).to_pylist() for file in files)
        assert back == given


def test_a_single_file_is_divided_by_its_images(tmp_path):
    file = write(tmp_path / "all.parquet", [row(number % 60) for number in range(120)])
    out = built(file, tmp_path / "out")
    found = {
        split: [r.image_id for r in records_of(out, f"{split}_stage1")]
        for split in ("train", "validation", "test")
    }
    ids = sorted(image_id.split("-")[-1] for of in found.values() for image_id in of)
    assert ids == [f"{number:05d}" for number in range(120)]
    assert 80 < len(found["train"]) < 112 and found["validation"] and found["test"]
    warnings = warnings_of(out)
    assert warnings["in no named split: divided 8:1:1 by the image"] == 120
    assert "the same image in two splits" not in warnings
    # A split's own file is that split's, by itself or in a folder.
    named = write(tmp_path / "val.parquet", [row(0)])
    assert records_of(built(named, tmp_path / "val"), "validation")


def test_four_questions_a_radiograph_by_stage(folder, tmp_path):
    out = built(folder, tmp_path / "out")
    first = records_of(out, "train")[:4]
    asked = [(r.question_strategy, r.question_type, r.question) for r in first]
    assert asked == [
        ("stage1", "findings", _PROMPT),
        ("stage2", "impression", _PROMPT),
        ("stage3", "findings", _PROMPT),
        ("stage3", "impression", "Kết luận từ thông tin trên bệnh nhân bị gì?"),
    ]
    assert [r.answer_text for r in first] == [FINDINGS, IMPRESSION] * 2
    (turn,) = first[3].history
    expected = (first[2].question_id, _PROMPT, FINDINGS)
    assert (turn.question_id, turn.question, turn.answer) == expected
    assert first[0].image_hw == (40, 40) and not any(r.boxes for r in first)
    assert (out / first[0].image_path).read_bytes() == png(0)
    for stage, count in (("stage1", 5), ("stage2", 5), ("stage3", 10)):
        records = records_of(out, f"train_{stage}")
        assert len(records) == count and {r.question_strategy for r in records} == {stage}


def test_no_questions_file_tells_an_answer_but_the_one_that_says_so(folder, tmp_path):
    out = built(folder, tmp_path / "out")
    for path in sorted((out / "questions").iterdir()):
        text = path.read_text()
        assert "native_row" not in text and '"answers"' not in text
        assert (FINDINGS in text) == path.name.endswith("_gold.jsonl"), path.name
        assert IMPRESSION not in text.replace(FINDINGS, "")
    gold = list(read_records(out / "questions" / "test_stage3_gold.jsonl"))
    assert [r.question_type for r in gold] == ["impression"]
    assert gold[0].history[0].answer == FINDINGS


def test_what_is_unknown_of_a_patient_is_left_out_of_the_question(tmp_path):
    source = tmp_path / "source"
    changes = {"view": None, "sex": "?", "Ages": None}
    write(source / "train.parquet", [row(0, **changes), row(1, sex="Nữ", view="lateral", Ages=7)])
    out = built(source, tmp_path / "out")
    records = records_of(out, "train_stage1")
    assert records[0].question == "Ảnh chụp X-ray bệnh nhân. Cho biết bệnh nhân bị gì?"
    assert "LATERAL (Chụp Xquang tim phổi nghiêng) bệnh nhân nữ, 7 tuổi." in records[1].question


def test_a_broken_image_is_set_aside_with_its_row(tmp_path):
    source = tmp_path / "source"
    broken = [row(0), row(1, image={"bytes": b"no image", "path": ""})]
    broken.append(row(2, image={"bytes": png(2)[:200], "path": ""}))
    write(source / "train.parquet", broken)
    out = built(source, tmp_path / "out")
    quality = made.read_json(out, "quality.json")
    assert quality["counts"]["unreadable_image"] == 2
    where = [entry["where"] for entry in quality["set_aside"]]
    assert where == ["train.parquet row 1", "train.parquet row 2"]


def test_what_may_identify_is_counted_by_row_and_not_repeated(tmp_path):
    source = tmp_path / "source"
    told = "Bệnh nhân Nguyễn Văn An, số điện thoại 0912345678."
    write(source / "train.parquet", [row(0), row(1, findings=told)])
    text = (built(source, tmp_path / "out") / "quality.json").read_text()
    warnings = json.loads(text)["warnings"]
    assert warnings["possible name of a person"] == warnings["possible phone of a person"] == 1
    place = "findings of vixray-train-00001 (train.parquet row 1)"
    assert warnings[f"possible name of a person: {place}"] == 1
    assert "Nguyễn" not in text and "0912" not in text


def test_redacted_texts_are_nowhere_in_what_is_built(tmp_path):
    source = tmp_path / "source"
    told = "Bệnh nhân Nguyễn Văn An sinh năm 1950. Bóng tim to. Gọi 0912345678."
    note = {"Ghi chú": "BS. Trần Thị Bình, 12/03/2021", "Khác": "số bệnh án 20210312"}
    write(source / "train.parquet", [row(0, findings=told, **note)])
    out = built(source, tmp_path / "out", redact=True)
    texts = {p.name: p.read_text() for p in out.rglob("*.json*") if p.is_file()}
    for name, text in texts.items():
        for secret in ("Nguyễn", "1950", "0912", "Trần", "12/03", "20210312"):
            assert secret not in text, name
    (record,) = records_of(out, "train_stage1")
    assert record.answer_text == "Bệnh nhân ___ ___. Bóng tim to. Gọi ___."
    warnings = json.loads(texts["quality.json"])["warnings"]
    assert warnings["redacted, possible name of a person"] == 2
    assert warnings["redacted, possible date of a person"] == 2
    assert not [warning for warning in warnings if warning.startswith("possible")]


def test_splits_by_manifest(folder, tmp_path):
    manifest = tmp_path / "splits.json"
    ids = {"train": ["vixray-train-00000"], "test": ["vixray-train-00001", "vixray-test-00009"]}
    manifest.write_text(json.dumps(ids))
    out = built(folder, tmp_path / "out", split_manifest=manifest)
    assert [r.image_id for r in records_of(out, "test_stage1")] == ids["test"][:1]
    quality = made.read_json(out, "quality.json")
    assert quality["counts"]["not_in_split"] == 5
    assert quality["counts"]["not_in_source"] == 1
    assert made.read_json(out, "manifest.json")["split_manifest"]["sha256"]
    for text, told in (
        ('{"train": ["a"], "test": ["a"]}', "'a' stands in train and again in test"),
        ('{"extra": ["b"]}', "split 'extra': expected one of"),
        ('{"train": [["a"]]}', "train: expected a list of image ids"),
    ):
        manifest.write_text(text)
        with pytest.raises(UserError, match=told):
            built(folder, tmp_path / "out2", split_manifest=manifest)


def test_images_twice_are_noticed_and_nothing_usable_is_an_error(tmp_path):
    write(tmp_path / "source" / "train.parquet", [row(findings="")])
    told = r"no row left; .*; the first: train.parquet row 0: missing_"
    with pytest.raises(UserError, match=told):
        built(tmp_path / "source", tmp_path / "out")
    source = tmp_path / "source"
    write(source / "train.parquet", [row(0), row(0)])
    write(source / "test.parquet", [row(0)])
    warnings = warnings_of(built(source, tmp_path / "twice"))
    assert warnings["the same image twice in a split"] == 1
    assert warnings["the same image in two splits"] == 1
    assert "the same image in two splits: vixray-train-00000, vixray-test-00000" in warnings


def test_a_build_taken_up_again_gives_the_same(folder, tmp_path):
    out = built(folder, tmp_path / "out")
    manifest = (out / "manifest.json").read_bytes()
    image = out / "images" / "vixray-train-00000.png"
    written = image.stat().st_mtime_ns
    (out / "images" / "vixray-train-00001.png").write_bytes(b"half")
    built(folder, out)
    assert (out / "manifest.json").read_bytes() == manifest
    assert image.stat().st_mtime_ns == written
    assert (out / "images" / "vixray-train-00001.png").read_bytes() == png(1)


def test_the_command_and_its_statistics(folder, tmp_path):
    words = ["--dataset=vix_ray", f"--source={folder}", "--processes=1", "--segmenter=pyvi"]
    build.main([*words, f"--out={tmp_path / 'out'}"])
    statistics = made.read_json(tmp_path, "out", "statistics.json")
    assert statistics["train_images"]["value"] == 5
    assert statistics["train_images"]["paper"] == 4320
    assert statistics["train_images"]["difference"] == -4315
    assert statistics["boxes"]["value"] == 0 and statistics["questions"]["value"] == 28
    assert statistics["train_age_mean"]["value"] == 60
    # pyvi: Bóng tim to Góc sườn hoành hai bên nhọn.
    assert statistics["train_findings_words_max"]["value"] == 9
    assert statistics["validation_findings_words_mean"]["paper"] == 45
    tables = (tmp_path / "out" / "tables.md").read_text()
    assert (
        "| Samples, train | 5 | 4,320 | -4,315 | Table 3 |" in tables and "Synthetic" not in tables
    )
    paper_figures.main([f"--build={tmp_path / 'out'}", f"--out={tmp_path}"])
    for name in ("body_parts.png", "diagnoses.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    phrases = made.read_json(tmp_path, "phrases.json")
    assert phrases["diagnoses"] == {"bóng tim to": 7}
    assert phrases["body_parts"] == {"bóng tim": 7, "góc sườn hoành": 7}
    with pytest.raises(UserError, match="--source"):
        build.main(["--dataset=vix_ray", f"--out={tmp_path / 'out'}"])


def test_the_shipped_sample_builds_and_goes_back(tmp_path):
    sample = Path(__file__).parents[3] / "data" / "vix_ray" / "sample"
    out = built(sample, tmp_path / "out")
    quality = made.read_json(out, "quality.json")
    assert quality["examined"]["rows"] == 8 and quality["total"] == 0
    for split in ("train", "validation", "test"):
        write_native(tmp_path / "back", records_of(out, f"{split}_stage1"), out)
    assert rows_of(tmp_path / "back") == rows_of(sample)
