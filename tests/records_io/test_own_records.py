"""Records of users: sizes, patients, rejected lines, and the script for real radiographs."""

import collections
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from cxrjax.errors import UserError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import read_records
from cxrjax.records_io.own_records import OwnRecordsBuilder, OwnRecordsOptions


def _line(number: int, **fields) -> dict:
    """A record about image <number>.png, which is 60 high and 80 wide."""
    return {
        "dataset": "custom",
        "image_id": f"image-{number}",
        "image_path": f"images/{number}.png",
        "patient_id": f"patient-{number // 2}",
        "question_id": f"q{number}",
        "question": "Where is the heart?",
        "question_type": "Where",
        "answers": [
            {
                "text": "It is at <loc_10_20_40_50>.",
                "labels": ["heart"],
                "polarity": "pos",
                "boxes_by_image": {f"image-{number}": [[10.2, 19.7, 40.0, 50.0]]},
            }
        ],
    } | fields


def _answer(text: str, boxes=(), number: int = 0) -> list:
    return [{"text": text, "labels": ["ILD"], "boxes_by_image": {f"image-{number}": list(boxes)}}]


def _answered(text: str, *boxes, number: int = 0, **fields) -> dict:
    return _line(number, answers=_answer(text, boxes, number), **fields)


_OF_TWO = _answer("No.") + _line(0)["answers"]


@pytest.fixture
def source(tmp_path) -> Path:
    (tmp_path / "source" / "images").mkdir(parents=True)
    for number in range(10):
        image = np.full((60, 80), 40 + number, np.uint8)
        PIL.Image.fromarray(image).save(tmp_path / "source" / "images" / f"{number}.png")
    return tmp_path / "source"


def _build(source: Path, lines: list, **options) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (source / "records.jsonl").write_text(text + "\n", encoding="utf-8")
    out = source.parent / "out"
    OwnRecordsBuilder(OwnRecordsOptions(source, out, **options)).build()
    return out


def _json(path: Path):
    return json.loads(path.read_text())


def _splits(out: Path) -> dict[str, list]:
    return {p.stem: list(read_records(p)) for p in sorted((out / "records").glob("*.jsonl"))}


def test_size_path_and_split_are_filled_in(source):
    out = _build(source, [_line(n) for n in range(10)])
    splits = _splits(out)
    assert list(splits) == ["train", "validation"]
    patients = {name: {r.patient_id for r in records} for name, records in splits.items()}
    assert not patients["train"] & patients["validation"]
    assert len(patients["train"]) == 4 and len(patients["validation"]) == 1
    for name, records in splits.items():
        for record in records:
            assert record.split == name and record.image_hw == (60, 80)
            image = source / "images" / f"{record.image_id[-1]}.png"
            assert (out / record.image_path).resolve() == image
    assert _json(out / "quality.json")["total"] == 0
    statistics = _json(out / "statistics.json")
    expected = {"images": 10, "questions": 10, "boxes": 10, "classes": 1, "train_images": 8}
    assert {name: statistics[name]["value"] for name in expected} == expected
    # The same seed divides alike, another one differently.
    again = _splits(_build(source, [_line(n) for n in reversed(range(10))]))
    first, second = ({r.question_id for r in each["validation"]} for each in (splits, again))
    assert first == second


def test_absolute_paths_and_a_named_file(source, tmp_path):
    line = _line(0, image_path=str(source / "images" / "0.png"), split="train")
    (tmp_path / "mine.jsonl").write_text(json.dumps(line) + "\n")
    OwnRecordsBuilder(OwnRecordsOptions(tmp_path / "mine.jsonl", tmp_path / "out")).build()
    (record,) = _splits(tmp_path / "out")["train"]
    assert (tmp_path / "out" / record.image_path).resolve() == source / "images" / "0.png"


def test_given_splits_are_kept(source):
    lines = [_line(n, split="test" if n < 2 else "train") for n in range(10)]
    splits = _splits(_build(source, lines))
    assert {name: len(records) for name, records in splits.items()} == {"test": 2, "train": 8}


def test_splits_must_be_whole_and_patients_on_one_side(source):
    with pytest.raises(UserError, match=r"records\.jsonl:2: no split, though other"):
        _build(source, [_line(0, split="train"), _line(2)])
    with pytest.raises(UserError, match=r"records\.jsonl:2: patient-0 is in split 'test' and"):
        _build(source, [_line(0, split="train"), _line(1, split="test")])
    with pytest.raises(UserError, match="all records are of one patient"):
        _build(source, [_line(0), _line(1)])


@pytest.mark.parametrize(
    ("bad", "reason", "found"),
    [
        ("{", "invalid_record", "line"),
        ("[1]", "invalid_record", "line"),
        (_line(0, colour="red"), "invalid_record", "colour"),
        (_line(0, image_hw=[0, 4]), "invalid_record", "image_hw"),
        (_line(0, question_id="q4"), "duplicate_id", "earlier"),
        (_line(0, image_path="images/none.png"), "missing_image", "none.png is missing"),
        (_line(0, image_path="images/cut.jpg"), "unreadable_image", "cut.jpg"),
        (_line(0, image_path="images/text.png"), "unreadable_image", "text.png"),
        (_line(0, image_hw=[80, 60]), "size_mismatch", "[60, 80]"),
        (_line(0, dataset="vindr_cxr_vqa", answers=_OF_TWO), "unknown_class", "'heart'"),
        (_answered("Yes.", [1, 2, 81, 4]), "box_outside_image", "81"),
        (_answered("Yes.", [5, 2, 5, 4]), "bad_box", "no area"),
        (_answered("At <loc_1_2_3>."), "box_text", "wrong_arity"),
        (_answered("At <loc_1_2_99_4>."), "box_text", "out_of_range"),
        (_answered("At <loc_1_2_3_4>."), "box_mismatch", "1 boxes"),
        (_answered("At <loc_1_2_3_4>.", [1, 2, 3, 5]), "box_mismatch", "expected the same"),
    ],
)
def test_bad_records_are_set_aside_and_counted(source, bad, reason, found):
    noise = np.random.default_rng(0).integers(0, 255, (200, 300), np.uint8)
    cut = source / "images" / "cut.jpg"
    PIL.Image.fromarray(noise).save(cut)
    cut.write_bytes(cut.read_bytes()[:2000])
    (source / "images" / "text.png").write_text("no image")
    out = _build(source, [_line(2), _line(4), bad])
    quality = _json(out / "quality.json")
    assert quality["total"] == quality["counts"][reason] == 1
    (entry,) = quality["set_aside"]
    assert entry["reason"] == reason and entry["where"] == "records.jsonl:3"
    assert found in entry["found"], entry
    kept = {r.question_id for records in _splits(out).values() for r in records}
    assert kept == {"q2", "q4"}


def test_nothing_usable_or_unreadable(source):
    with pytest.raises(
        UserError, match=r"no record left; .*; the first: records\.jsonl:1: missing"
    ):
        _build(source, [_line(0, image_path="images/none.png")])
    with pytest.raises(UserError, match="no record left"):
        _build(source, [])
    with pytest.raises(UserError, match="cannot read records"):
        OwnRecordsBuilder(OwnRecordsOptions(source / "other.jsonl", source.parent / "out")).build()
    (source / "records.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        OwnRecordsBuilder(OwnRecordsOptions(source, source.parent / "out")).build()


def test_text_without_boxes_and_prose_with_them_are_both_fine(source):
    plain = _answered("In the middle.", [1, 2, 3, 4])
    out = _build(source, [plain, _answered("No, there is no ILD.", number=2)])
    assert _json(out / "quality.json")["total"] == 0


def test_oddities_of_images_are_counted(source):
    grey16 = PIL.Image.fromarray(np.arange(4800, dtype=np.uint16).reshape(60, 80))
    grey16.save(source / "images" / "0.png")
    quality = _json(_build(source, [_line(0), _line(2)]) / "quality.json")
    assert any("16-bit" in text for text in quality["warnings"])


BAD_PATHS = {
    "x" * 5000: "invalid_record",
    "images/" + "x" * 256: "invalid_record",
    "d/" * 999 + "x": "missing_image",
    "a\0.png": "invalid_record",
    "a\nb.png": "invalid_record",
    "": "missing_image",
    ".": "missing_image",
    "images": "missing_image",
    "images/0.png/x.png": "missing_image",
    "images/loop": "missing_image",
    "images/pipe": "missing_image",
    "/dev/zero": "missing_image",
    "../../../../../../../../../../etc/passwd": "unreadable_image",
}


def test_a_path_that_no_image_has_sets_one_record_aside(source):
    os.mkfifo(source / "images" / "pipe")
    (source / "images" / "loop").symlink_to("loop")
    bad = [_line(0, question_id=f"bad{n}", image_path=path) for n, path in enumerate(BAD_PATHS)]
    surrogate = json.dumps(_line(0)).replace("images/0.png", "\\ud800.png")
    out = _build(source, [_line(2), *bad, surrogate, _line(4)])
    quality = _json(out / "quality.json")
    reasons = [*BAD_PATHS.values(), "invalid_record"]
    counts = {reason: count for reason, count in quality["counts"].items() if count}
    assert counts == collections.Counter(reasons)
    assert {entry["where"]: entry["reason"] for entry in quality["set_aside"]} == {
        f"records.jsonl:{n}": reason for n, reason in enumerate(reasons, start=2)
    }
    assert max(len(entry["found"]) for entry in quality["set_aside"]) < 3000
    assert {r.question_id for records in _splits(out).values() for r in records} == {"q2", "q4"}


def test_an_image_may_lie_anywhere_and_behind_links(source):
    elsewhere = source.parent / "elsewhere"
    (source / "images").rename(elsewhere)
    (source / "images").symlink_to(elsewhere)
    paths = ["images/2.png", str(elsewhere / "4.png"), "../elsewhere/6.png"]
    lines = [_line(n, image_path=path) for n, path in zip((2, 4, 6), paths, strict=True)]
    out = _build(source, lines)
    assert sum(map(len, _splits(out).values())) == 3
    for record in (record for records in _splits(out).values() for record in records):
        assert (out / record.image_path).is_file()


def test_what_trains_and_predicts_names_the_line(source):
    for path in ("x" * 5000, "a\0b"):
        (source / "records.jsonl").write_text(json.dumps(_line(0, image_path=path, split="train")))
        with pytest.raises(UserError, match=r"records\.jsonl:1: image_path: .*") as caught:
            RecordSource(source / "records.jsonl")
        assert len(str(caught.value)) < 400 and str(caught.value).isprintable()


SCRIPT = Path(__file__).parents[2] / "data" / "real_cxr" / "make_records.py"
spec = importlib.util.spec_from_file_location("make_records", SCRIPT)
make_records = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_records)


def _source(folder: Path, **changes) -> Path:
    (folder / "images").mkdir(parents=True)
    lines = []
    for number in range(8):
        name = f"images/{number}.png"
        PIL.Image.fromarray(np.full((50, 60), 9, np.uint8)).save(folder / name)
        sides = make_records._SIDES
        boxes = [
            {"label": "Lung", "xyxy": [5.0, 6.0, 25.0, 40.0], "side": sides["right lung"]},
            {"label": "Lung", "xyxy": [33.0, 7.0, 55.0, 44.0], "side": sides["left lung"]},
        ]
        line = {"image": name, "width": 60, "height": 50, "patient_id": str(number // 2)}
        lines.append(json.dumps(line | {"view": "PA", "boxes": boxes} | changes))
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_three_questions_an_image_divided_by_patient(tmp_path):
    source, file = _source(tmp_path / "source"), tmp_path / "made" / "records.jsonl"
    make_records.main([f"--source={source}", f"--out={file}"])
    records = list(read_records(file))
    assert len(records) == 24
    sides = {
        split: {r.patient_id for r in records if r.split == split}
        for split in ["train", "validation"]
    }
    assert len(sides["validation"]) == 1 and not sides["train"] & sides["validation"]
    texts = [record.answer_text for record in records[:3]]
    assert texts == [
        "The right lung is located at <loc_5_6_25_40>.",
        "The left lung is located at <loc_33_7_55_44>.",
        "The lungs are located at <loc_5_6_25_40> and <loc_33_7_55_44>.",
    ]
    assert (file.parent / records[0].image_path).resolve() == source / "images" / "0.png"
    OwnRecordsBuilder(OwnRecordsOptions(file, tmp_path / "out")).build()
    assert json.loads((tmp_path / "out" / "quality.json").read_text())["total"] == 0


def test_boxes_must_fit_the_file_and_be_one_a_side(tmp_path):
    with pytest.raises(UserError, match=r"50x60 \(height x width\).*50x61"):
        make_records.main([f"--source={_source(tmp_path / 'a', width=61)}", f"--out={tmp_path}/r"])
    with pytest.raises(UserError, match="0 boxes with side"):
        make_records.main([f"--source={_source(tmp_path / 'b', boxes=[])}", f"--out={tmp_path}/r"])
    with pytest.raises(UserError, match="cannot read"):
        make_records.main([f"--source={tmp_path / 'c'}", f"--out={tmp_path}/r"])


def test_the_real_radiographs(tmp_path):
    beside = Path(__file__).parents[3] / "shared" / "real_cxr"
    source = Path(os.environ.get("CXRJAX_REAL_CXR", beside))
    if not source.is_dir():
        pytest.skip(f"no real radiographs at {source}; name their folder in CXRJAX_REAL_CXR")
    make_records.main([f"--source={source}", f"--out={tmp_path / 'records.jsonl'}"])
    records = list(read_records(tmp_path / "records.jsonl"))
    assert len(records) == 270 and len({r.patient_id for r in records}) == 48
