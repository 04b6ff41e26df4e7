"""Radiographs with lung masks -> records; what is set aside on the way; on drawn folders."""

import csv
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.images.decode import image_size
from cxrjax.images.geometry import is_resize
from cxrjax.papers.lungs.native import finding_of, patient_of
from cxrjax.records import read_records
from tests.evaluation import made

HEIGHT, WIDTH = 80, 100
# x0 y0 x1 y1 of the two drawn lungs.
RIGHT, LEFT = (10, 15, 42, 60), (55, 12, 90, 66)


def ellipse(box: tuple[int, int, int, int]) -> np.ndarray:
    """A mask of 0 and 1 whose extent is the box."""
    x0, y0, x1, y1 = box
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    inside = ((2 * x - x0 - x1) / (x1 - x0)) ** 2 + ((2 * y - y0 - y1) / (y1 - y0)) ** 2
    return (inside <= 1.02).astype(np.uint8)


RADIOGRAPH = np.random.default_rng(0).integers(150, 162, (HEIGHT, WIDTH)).astype(np.uint8)
LUNGS = 255 * (ellipse(RIGHT) + ellipse(LEFT))


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(pixels).save(path)
    return path


def folder(source: Path, masks: dict[str, np.ndarray], suffix: str = "png") -> Path:
    """A folder with an image for each mask, whose name is the key up to a slash or an ending."""
    for name, mask in masks.items():
        save(source / "images" / f"{name}.{suffix}", RADIOGRAPH)
        save(source / "masks" / f"{name}.png", mask)
    return source


def built(source: Path, out: Path, *flags: str) -> dict[str, list]:
    build.main(["--dataset=lungs", f"--source={source}", f"--out={out}", "--processes=1", *flags])
    files = sorted((out / "records").glob("*.jsonl"))
    return {file.stem: list(read_records(file)) for file in files}


def flat(splits: dict[str, list]) -> list:
    return [record for records in splits.values() for record in records]


def set_aside(out: Path) -> dict[str, str]:
    """What was set aside -> its reason."""
    entries = made.read_json(out / "quality.json")["set_aside"]
    return {entry["item"]: entry["reason"] for entry in entries}


def write_table(source: Path, rows: list[dict[str, str]]) -> None:
    with open(source / "lungs.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def asked(records: list, image_id: str) -> dict[str, list]:
    """Finding asked about -> the record's boxes."""
    return {r.finding: r.boxes for r in records if r.image_id == image_id}


def test_the_patients_right_lung_is_on_the_images_left(tmp_path):
    records = flat(built(folder(tmp_path / "in", {"a": LUNGS, "b": LUNGS}), tmp_path / "out"))
    right, left = [*RIGHT], [*LEFT]
    boxes = {"right lung": [right], "left lung": [left], "lungs": [right, left]}
    assert asked(records, "a") == boxes
    assert {r.dataset for r in records} == {"custom"}  # on whose terms is not known
    texts = {r.finding: r.answer_text for r in records if r.image_id == "a"}
    assert texts["right lung"] == "The right lung is located at <loc_10_15_42_60>."
    assert texts["lungs"] == ("The lungs are located at <loc_10_15_42_60> and <loc_55_12_90_66>.")


LABELS = ellipse(RIGHT) + 2 * ellipse(LEFT)
SPECKED = LUNGS.copy()
SPECKED[2, 2:5] = 255
TOUCHING = LABELS.copy()
TOUCHING[40, 30:70] = np.where(np.arange(30, 70) < 48, 1, 2)
USABLE = {
    "one bit": LUNGS > 0,
    "zeros and ones": LUNGS // 255,
    "two levels that touch": TOUCHING,
    "16 bits": LUNGS.astype(np.uint16) * 257,
    "alpha": np.dstack([LUNGS, LUNGS, LUNGS, np.full_like(LUNGS, 255)]),
    "specks": SPECKED,
}


def test_masks_of_other_kinds_say_the_same(tmp_path):
    records = flat(built(folder(tmp_path / "in", USABLE), tmp_path / "out", "--strict"))
    for name in USABLE:
        right, left = asked(records, name)["lungs"]
        widened = [10, 15, 48, 60], [48, 12, 90, 66]
        assert [right, left] == ([*widened] if "touch" in name else [[*RIGHT], [*LEFT]]), name
    quality = made.read_json(tmp_path / "out" / "quality.json")
    assert quality["warnings"] == {"specks of a mask left out": 1}


def test_two_files_of_a_lung_each(tmp_path):
    source = tmp_path / "in"
    for name in ("a", "b"):
        save(source / "images" / f"{name}.png", RADIOGRAPH)
    for side, box in (("right", RIGHT), ("left", LEFT)):
        save(source / "masks" / f"a_{side}.png", 255 * ellipse(box))
        save(source / "masks" / f"{side} lung" / "b.png", 255 * ellipse(box))
    records = flat(built(source, tmp_path / "out", "--strict"))
    for name in ("a", "b"):
        assert asked(records, name)["lungs"] == [[*RIGHT], [*LEFT]]


def _colour_image(source: Path) -> None:
    coloured = np.dstack([RADIOGRAPH // part for part in (1, 2, 3)])
    save(source / "images" / "x.png", coloured)


def _damaged(source: Path) -> None:
    file = source / "images" / "x.png"
    file.write_bytes(file.read_bytes()[:-40])


def _without(kind: str) -> Callable[[Path], None]:
    return lambda source: (source / kind / "x.png").unlink()


def _of(mask: np.ndarray) -> Callable[[Path], None]:
    return lambda source: save(source / "masks" / "x.png", mask) and None


def _sides_swapped(source: Path) -> None:
    _without("masks")(source)
    for side, box in (("left", RIGHT), ("right", LEFT)):
        save(source / "masks" / f"x_{side}.png", 255 * ellipse(box))


def _lateral(source: Path) -> None:
    for kind in ("images", "masks"):
        (source / kind / "x.png").rename(source / kind / "x_lateral.png")


def _third(source: Path) -> None:
    save(source / "masks" / "x_left.png", LUNGS)
    save(source / "masks" / "x_right.png", LUNGS)


ABOVE = ellipse((20, 2, 60, 35)) + ellipse((22, 40, 62, 75))
BAD = {
    "mask_size": _of(np.kron(LUNGS[:40], np.ones((3, 2), np.uint8))),
    "unmatched_mask": _without("images"),
    "missing_mask": _without("masks"),
    "unreadable_image": _damaged,
    "three_lungs": _of(LUNGS | 255 * ellipse((44, 68, 54, 78))),
    "three_lungs (files)": _third,
    "colour_image": _colour_image,
    "lateral_view": _lateral,
    "one_lung": _of(255 * ellipse(RIGHT)),
    "one_lung (touching)": _of(255 * (TOUCHING > 0).astype(np.uint8)),
    "no_lung": _of(0 * LUNGS),
    "inverted_mask": _of(255 - LUNGS),
    "not_a_mask (grey)": _of(np.add.outer(np.arange(80), np.arange(100)).astype(np.uint8)),
    "not_a_mask (colour)": _of(np.dstack([LUNGS, 0 * LUNGS, 255 * ellipse(LEFT)])),
    "not_a_mask (levels)": _of(LABELS + 3 * ellipse((44, 68, 54, 78))),
    "lung_sides": _of(255 * ABOVE),
    "lung_sides (names)": _sides_swapped,
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_set_aside_with_its_reason(tmp_path, case):
    source = folder(tmp_path / "in", {"good": LUNGS, "other": LUNGS, "x": LUNGS})
    BAD[case](source)
    records = flat(built(source, tmp_path / "out"))
    reasons = set_aside(tmp_path / "out")
    assert [*reasons.values()] == [case.partition(" ")[0]]
    assert {r.image_id for r in records} == {"good", "other"}
    page = (tmp_path / "out" / "samples.html").read_text()
    assert page.count("<figure>") == 3
    assert page.count("data:image/jpeg") == 2 + (case != "unmatched_mask")
    with pytest.raises(UserError, match=r"found with --strict: .*; expected no rejections"):
        built(source, tmp_path / "strict", "--strict")


def test_squeezed_copies_get_their_proportions_back(tmp_path):
    source = folder(tmp_path / "in", {"person1_virus_2": LUNGS, "IM-0007-0001": LUNGS})
    row = {"file": "person1_virus_2.png", "patient": "person1", "finding": "viral"}
    row |= {"width": "301", "height": "120", "v7_mask": "9", "right_lung": "0.101 0.19 0.42 0.75"}
    second = dict.fromkeys(row, "") | {"file": "IM-0007-0001.png", "finding": "normal"}
    write_table(source, [row | {"left_lung": "0.55 0.15 0.9 0.82"}, second | {"left_lung": ""}])
    records = flat(built(source, tmp_path / "out", "--strict"))
    restored = [r for r in records if r.patient_id == "person1"]
    assert {r.image_hw for r in restored} == {(120, 301)} and len(restored) == 4
    size = image_size(tmp_path / "out" / restored[0].image_path)
    assert is_resize(size, (120, 301)) and min(size) == HEIGHT
    right = asked(records, restored[0].image_id)["right lung"][0]
    assert right == pytest.approx([30.4, 22.8, 126.42, 90])
    kept = next(r for r in records if r.patient_id == "IM-0007")
    assert image_size(tmp_path / "out" / kept.image_path) == (HEIGHT, WIDTH)
    normal = {r.patient_id: r.answers[0] for r in records if r.finding == "normal"}
    assert normal["IM-0007"].polarity == "pos" and normal["person1"].polarity == "neg"
    assert {r.dataset for r in records} == {"lungs"}
    of_normal = next(r for r in records if r.finding == "normal")
    assert "proves nothing" in of_normal.quality["shortcuts"]


def test_a_table_that_contradicts_its_masks_is_set_aside(tmp_path):
    source = folder(tmp_path / "in", {"a": LUNGS, "b": LUNGS, "c": LUNGS, "d": LUNGS})
    row = {"file": "a.png", "width": "100", "right_lung": "0.2 0.2 0.42 0.75", "height": "80"}
    rows = [
        row | {"left_lung": "0.55 0.15 0.9 0.82"},
        row | {"file": "b.png", "left_lung": "0.9 0.1 0.5 0.8"},
        row | {"file": "c.png", "width": "wide", "left_lung": "", "right_lung": ""},
        row | {"file": "gone.png", "left_lung": ""},
        row | {"file": "gone.png", "left_lung": ""},
    ]
    write_table(source, rows)
    assert {r.image_id for r in flat(built(source, tmp_path / "out"))} == {"d"}
    entries = made.read_json(tmp_path / "out" / "quality.json")["set_aside"]
    assert [(e["item"], e["reason"], e["where"]) for e in entries] == [
        ("gone.png", "duplicate_id", "lungs.csv:6"),
        ("b.png", "bad_box", "lungs.csv:3"),
        ("c.png", "bad_size", "lungs.csv:4"),
        ("gone.png", "missing_image", "lungs.csv:5"),
        ("a.png", "mask_mismatch", "lungs.csv:2"),
    ]


def test_a_patients_split_depends_on_no_other_patient(tmp_path):
    names = [f"person{number}_virus_{k}" for number in range(40) for k in (1, 2)]
    splits = built(folder(tmp_path / "all", dict.fromkeys(names, LUNGS)), tmp_path / "out")
    split_of = {r.patient_id: split for split, of in splits.items() for r in of}
    patients = {split: {r.patient_id for r in of} for split, of in splits.items()}
    assert sum(map(len, patients.values())) == 40 and all(patients.values())
    few = built(folder(tmp_path / "few", dict.fromkeys(names[::6], LUNGS)), tmp_path / "out2")
    assert all(split_of[r.patient_id] == split for split, of in few.items() for r in of)


def test_the_tables_splits_count_and_hold_whole_patients(tmp_path):
    source = folder(tmp_path / "source", dict.fromkeys("abcd", LUNGS))
    rows = [
        {"file": f"{name}.png", "patient": patient, "split": split}
        for name, patient, split in zip("abcd", "1123", ["Test", "test", "train", ""], strict=True)
    ]
    write_table(source, rows)
    records = built(source, tmp_path / "built")
    of = {record.image_id: split for split, asked in records.items() for record in asked}
    assert (of["a"], of["b"], of["c"]) == ("test", "test", "train")
    for wrong, said in (("held out", r"lungs\.csv:3: split is 'held out'"), ("train", "patient 1")):
        rows[1]["split"] = wrong
        write_table(source, rows)
        with pytest.raises(UserError, match=said):
            built(source, tmp_path / "wrong")


def test_folders_as_published_say_patient_and_finding(tmp_path):
    source = tmp_path / "in"
    train = ("train/NORMAL/IM-0115-0001", "train/PNEUMONIA/person1_bacteria_2")
    for name in (*train, "test/PNEUMONIA/person1_virus_6", "test/PNEUMONIA/other"):
        save(source / f"{name}.jpeg", RADIOGRAPH)
        save(source / "masks" / f"{name.rpartition('/')[2]}.png", LUNGS)
    records = flat(built(source, tmp_path / "out", "--strict"))
    answers = {r.image_id: (r.patient_id, r.answers[0].polarity) for r in records}
    assert {r.finding for r in records} == {"right lung", "left lung", "lungs", "normal"}
    normal = {r.image_id: r.answers[0].polarity for r in records if r.finding == "normal"}
    assert normal == {name: "pos" if "IM-" in name else "neg" for name in answers}
    assert {patient for patient, _ in answers.values()} == {"IM-0115", "person1", "other"}
    # The same name without a folder that says so: nothing is known.
    assert [*map(finding_of, ("IM-0115-0001.jpeg", "person1_virus_6.jpeg"))] == ["", "viral"]


def test_a_name_that_two_images_share_belongs_to_neither(tmp_path):
    source = tmp_path / "in"
    for name in ("one/a", "two/a", "two/b"):
        save(source / "images" / f"{name}.png", RADIOGRAPH)
    for name in ("a", "b"):
        save(source / "masks" / f"{name}.png", LUNGS)
    assert {r.image_id for r in flat(built(source, tmp_path / "out"))} == {"two-b"}
    reasons = {"one/a.png": "missing_mask", "two/a.png": "missing_mask", "a": "unmatched_mask"}
    assert set_aside(tmp_path / "out") == reasons


def test_nothing_to_use_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"no images in images/ of it; expected images/, masks/"):
        built(tmp_path, tmp_path / "out")
    source = folder(tmp_path / "in", {"x": 0 * LUNGS})
    with pytest.raises(UserError, match=r"no image left; rejected: .'no_lung': 1"):
        built(source, tmp_path / "out")


@pytest.mark.slow
def test_the_real_radiographs(tmp_path):
    beside = Path(__file__).parents[4] / "shared" / "real_lungs"
    source = Path(os.environ.get("CXRJAX_REAL_LUNGS", beside))
    if not source.is_dir():
        pytest.skip(f"no real radiographs at {source}; name their folder in CXRJAX_REAL_LUNGS")
    begun = time.process_time()
    splits = built(source, tmp_path, "--strict")
    assert time.process_time() - begun < 120
    records = flat(splits)
    assert len({r.image_id for r in records}) == 5225
    assert len({r.image_id for r in records if r.boxes}) == 3864
    patients = [{r.patient_id for r in of} for of in splits.values()]
    assert sum(map(len, patients)) == len(set().union(*patients)) == 2797
    for right, left in zip(
        *([r for r in records if r.finding == f"{side} lung"] for side in ("right", "left")),
        strict=True,
    ):
        assert right.image_id == left.image_id and right.boxes[0][0] < left.boxes[0][0]
    with open(source / "lungs.csv", newline="") as file:
        for row in csv.DictReader(file):
            assert patient_of(row["file"]) == row["patient"]
