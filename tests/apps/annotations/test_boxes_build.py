"""`build --dataset=boxes` and `import`: every format, one set of records."""

import collections
import importlib
import json
from pathlib import Path

import numpy as np
import pytest

import cxrjax
from cxrjax.apps.annotations.annotation import Stated
from cxrjax.apps.annotations.folder import Folder
from cxrjax.apps.annotations.formats import FORMATS, read_annotations
from cxrjax.apps.annotations.questions import BoxedImage, choose_balanced
from cxrjax.commands import build, export
from cxrjax.errors import UserError
from cxrjax.records import class_in_words, read_records
from cxrjax.records_io.own_records import read_own_records
from cxrjax.records_io.quality import QualityLog
from tests.apps.annotations.samples import BOXES, SIZE, csv_text, draw_images, write_format


@pytest.fixture
def data(tmp_path) -> Path:
    """A folder of the images alone."""
    return draw_images(tmp_path / "data" / "images").parent


def built(data: Path, *flags: str, table: str | None = None, kind: str = "", out="out") -> list:
    """Records of the folder, into which a table or a format's files are written before."""
    if table is not None:
        (data / "boxes.csv").write_text(table)
    if kind:
        write_format(kind, data)
    place = data.parent / out
    build.main(["--dataset=boxes", f"--input={data}", f"--out={place}", "--processes=1", *flags])
    return [one for split in ("train", "validation") for one in read(place, split)]


def quality_of(data: Path, out: str = "out") -> dict:
    return json.loads((data.parent / out / "quality.json").read_text())


def read(out: Path, split: str) -> list:
    return list(read_records(out / "records" / f"{split}.jsonl"))


@pytest.mark.parametrize("kind", sorted(FORMATS.keys() - {"chexlocalize"}))
def test_every_format_gives_the_same_boxes(data, kind):
    write_format(kind, data)
    found_kind, found = read_annotations(Folder(data), Stated(), QualityLog())
    assert found_kind == kind and not found.quality.entries and not found.doubts
    assert sum(one["entries"] for one in found.account().values()) == len(found.kept)
    boxes = collections.defaultdict(list)
    for one in found.boxes:
        boxes[Path(one.image).stem].append((one.label, one.box))
    expected = {Path(name).stem: sorted(of) for name, of in BOXES.items() if of}
    assert {name: sorted(of) for name, of in boxes.items()} == {
        name: [(label, pytest.approx(box, abs=0.05)) for label, box in of]
        for name, of in expected.items()
    }
    assert {Path(one.image).stem for one in found.kept} == {Path(name).stem for name in BOXES}


def test_records_ask_in_the_words_of_classes_and_are_balanced(data, tmp_path, capsys):
    records = built(data, kind="coco")
    printed = capsys.readouterr().out
    assert "COCO: 1 file," in printed and "xywh as the file states" in printed
    assert "questions about" in printed and "no presence questions" not in printed
    by_kind = collections.Counter(one.question_type for one in records)
    assert by_kind["Where"] == 6 - 1  # c.png shows two nodules: one question
    assert by_kind["Is_there"]
    quality = quality_of(data)
    assert quality["total"] == 0 and "as many images" in quality["balance"]["rule"]
    for split in ("train", "validation"):
        for counts in quality["balance"][split].values():
            assert counts["is_there_yes"] == counts["is_there_no"]
            assert counts["where"] == counts["images_with"]
    for one in records:
        answer = one.answers[0]
        assert "effusion" in one.question or "nodule" in one.question
        assert answer.labels[0] in ("Effusion", "Nodule")
        assert (answer.polarity == "pos") == bool(one.boxes) == ("<loc_" in answer.text)
    counted = [one for one in records if one.question_type == "How_many" and one.image_id == "c"]
    assert len(counted) <= 1 and all("2 nodules" in one.answers[0].text for one in counted)
    page = (tmp_path / "out" / "look" / "index.html").read_text()
    assert page.count("<figure") == 6 and "Doubts" not in page
    patients = {
        split: {one.patient_id for one in read(tmp_path / "out", split)}
        for split in ("train", "validation")
    }
    assert not patients["train"] & patients["validation"]


def test_check_records_takes_what_was_built(data, tmp_path):
    built(data, kind="csv")
    problems: list = []
    lines = list(read_own_records(tmp_path / "out/records/train.jsonl", tmp_path / "out", problems))
    assert lines and not problems
    assert all(line.image.is_file() for line in lines)


def test_what_is_doubtful_is_shown_before_anything_is_written(data, tmp_path):
    text = csv_text().replace("10,20,40,50", "-30,20,40,50").replace("8,22,36,58", "8,22,36,95")
    out = tmp_path / "out"
    says = r"2 of 6 boxes reach beyond.*wrote only.*--accept"
    with pytest.raises(UserError, match=says):
        built(data, table=text)
    assert not (out / "records").exists() and not (out / "quality.json").exists()
    page = (out / "look" / "index.html").read_text()
    assert page.count('<figure class="odd">') == 2 and "--accept" in page
    assert built(data, "--accept")


def test_patients_are_not_divided(data):
    rows = csv_text().splitlines()
    lines = [f"{rows[0]},patient_id"] + [f"{row},p{ord(row[0]) % 2}" for row in rows[1:]]
    records = built(data, table="\n".join(lines))
    split_of = {(one.patient_id, one.split) for one in records}
    assert len({patient for patient, _ in split_of}) == len(split_of) == 2


def test_a_smaller_copy_keeps_the_boxes_of_its_original(data):
    draw_images(data / "images", size=(SIZE[0] // 2, SIZE[1] // 2))
    records = built(data, kind="cvat")
    assert {one.image_hw for one in records} == {SIZE}
    assert [10.0, 20.0, 40.0, 50.0] in [box for one in records for box in one.boxes]


def test_import_is_the_same_command(data, tmp_path, capsys):
    write_format("coco", data)
    command = importlib.import_module("cxrjax.commands.import_annotations")
    command.main([str(data), f"--out={tmp_path / 'out'}", "--processes=1"])
    assert f"check_records {tmp_path / 'out'}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        command.main(["--help"])
    assert not end.value.code and "as-labels" in capsys.readouterr().out.replace("_", "-")
    assert read(tmp_path / "out", "train")


TOOLS = ["coco", "cvat", "label_studio", "yolo"]


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_exported_is_imported_again(data, tmp_path, tool, capsys):
    rows = csv_text().replace(",", ";").replace("Effusion", 'Épanchement, "x: y" # z').splitlines()
    lines = [f"{rows[0]};patient_id;split"]
    lines += [f"{row};p{row[0]};{'validation' if row[0] in 'af' else 'train'}" for row in rows[1:]]
    for name in BOXES:  # files of one name in several folders
        (data / "images" / name[0]).mkdir()
        (data / "images" / name).rename(data / "images" / name[0] / "50%25 #1.png")
    lines = [lines[0], *(f"{row[0]}/50%25 #1{row[1:]}" for row in lines[1:])]
    built(data, "--negatives=none", table="\n".join(lines), out="first")
    words = [f"--records={tmp_path / 'first'}", f"--to={tool}", f"--out={tmp_path / 'tool'}"]
    export.main(words)
    assert f"4 images, 6 boxes of 2 classes for {tool}" in capsys.readouterr().out
    found = cxrjax.import_boxes(
        tmp_path / "tool", tmp_path / "again", images=data / "images", negatives="none", processes=1
    )
    assert set(found.splits) == {"train", "validation"}
    first = {
        (r.image_path, r.finding): r
        for file in (tmp_path / "first" / "records").glob("*.jsonl")
        for r in read_records(file)
    }
    again = {(r.image_path, r.finding): r for split in found.splits for r in found.records(split)}
    assert set(again) == set(first)
    for name, record in again.items():
        assert record.split == first[name].split and record.image_hw == first[name].image_hw
        assert np.allclose(record.boxes, first[name].boxes, atol=0.011)
        assert tool == "yolo" or record.patient_id == first[name].patient_id


@pytest.mark.parametrize("tool", TOOLS)
def test_predictions_are_exported_as_predictions(data, tmp_path, tool):
    records = [one for one in built(data, kind="csv") if one.question_type == "Where"]
    line = {"question_id": records[0].question_id, "labels": ["Nodule"], "box_scores": [0.7]}
    line["boxes"] = [[0.1, 0.2, 0.5, 0.6]]

    def exported(*lines: dict) -> str:
        return cxrjax.export(tmp_path / "out", tool, tmp_path / "tool", predictions=lines)

    told = exported(line)
    assert "tool: 1 image, 1 box of 1 class" in told and "questions left out: not predicted" in told
    assert ("1 confidence left out: CVAT" in told) == (tool == "cvat")
    with pytest.raises(UserError, match="predictions of a model"):
        cxrjax.import_boxes(tmp_path / "tool", tmp_path / "again", images=data / "images")
    assert "1 box left out: without an area" in exported(line | {"boxes": [[0.1, 0.2, 0.1, 0.6]]})
    for wrong, told in ("not in the ref", {"question_id": "x"}), ("no boxes;", {"boxes": None}):
        with pytest.raises(UserError, match=wrong):
            exported(line | told)


def test_classes_become_words():
    labels = ("Pleural_effusion", "ILD", "PleuralEffusion", "Nodule/Mass", "COVID-19")
    words = ["pleural effusion", "ILD", "pleural effusion", "nodule/mass", "COVID-19"]
    assert [class_in_words(label) for label in labels] == words


def test_the_rarer_of_yes_and_no_decides():
    def image(number: int, *labels: str) -> BoxedImage:
        boxes = {label: [(0.0, 0.0, 1.0, 1.0)] for label in labels}
        return BoxedImage(f"i{number}", "", (2, 2), str(number), boxes, "")

    images = [image(n, "lung") for n in range(3)] + [image(3, "lung", "rare"), image(4, "lung")]
    asked = choose_balanced(images, ["lung", "rare"], seed=0)
    assert not any("lung" in labels for labels in asked.values())
    assert "rare" in asked["i3"]
    assert sum("rare" in labels for labels in asked.values()) == 2
