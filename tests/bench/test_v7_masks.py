"""Masks of V7's exports against pycocotools."""

import csv
import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from bench import v7_masks
from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.records import read_records

HEIGHT, WIDTH = 60, 80
RIGHT = [(10, 10), (30, 10), (34, 50), (12, 52)]
LEFT = [(44, 12), (64, 10), (70, 50), (42, 50)]
HOLE = [(48, 20), (54, 20), (54, 28), (48, 28)]
IGNORE = [(20, 30), (60, 30), (60, 40), (20, 40)]
NAME = "person7_virus_8"


def path_of(points):
    return [{"x": x, "y": y} for x, y in points]


def image_fields():
    return {"width": WIDTH, "height": HEIGHT}


def darwin_1(points=(RIGHT, LEFT)):
    plain = [("Lung", one) for one in points[:1]] + [("Ignore", IGNORE)]
    shapes = [{"name": name, "polygon": {"path": path_of(one)}} for name, one in plain]
    for one in points[1:]:
        hollow = {"path": [path_of(one), path_of(HOLE)]}
        shapes.insert(1, {"name": "Lung", "complex_polygon": hollow})
    shapes.append({"name": "Viral Pneumonia", "tag": {}})
    image = {"filename": f"{NAME}.jpeg", "original_filename": f"{NAME}.jpeg", "seq": 17}
    return {"image": image | image_fields(), "annotations": shapes, "dataset": "x"}


def darwin_2():
    old = darwin_1()
    new = []
    for one in old["annotations"]:
        shape = one.get("polygon") or one.get("complex_polygon")
        if shape:
            paths = shape["path"] if isinstance(shape["path"][0], list) else [shape["path"]]
            new.append({"name": one["name"], "polygon": {"paths": paths}})
    item = {"name": f"{NAME}.jpeg", "path": "/", "slots": [image_fields()]}
    return {"version": "2.0", "item": item, "annotations": new}


def coco(left):
    right, ignored = ([[c for p in polygon for c in p]] for polygon in (RIGHT, IGNORE))
    shapes = [(0, right), (0, left), (1, ignored)]
    return {
        "images": [image_fields() | {"id": 17, "file_name": f"{NAME}.jpeg"}],
        "categories": [{"id": 0, "name": "Lung"}, {"id": 1, "name": "Ignore"}],
        "annotations": [
            {"id": k, "image_id": 17, "category_id": category, "segmentation": shape}
            for k, (category, shape) in enumerate(shapes)
        ],
    }


def write_json(folder: Path, content, name=f"{NAME}.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content))
    return folder


def unpacked(annotations: Path, out: Path, *more: str) -> tuple[np.ndarray, dict[str, str]]:
    v7_masks.main([f"--annotations={annotations}", f"--out={out}", *more])
    with open(out / "lungs.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    return np.asarray(PIL.Image.open(out / "masks" / f"{row['file']}.png")), row


def levels() -> np.ndarray:
    """What each export is to become, drawn by the reader of Darwin JSON."""
    drawn = v7_masks.levels_of(v7_masks._darwin(darwin_1(), "Lung"))
    assert {*np.unique(drawn)} == {0, 127, 254} and drawn[24, 51] == 0  # a hole
    return drawn


def run_lengths(mask: np.ndarray) -> list[int]:
    flat = mask.ravel(order="F").astype(int)
    edges = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    return [0, *counts] if flat[0] else counts


def test_polygons_cover_what_pycocotools_says():
    mask_api = pytest.importorskip("pycocotools.mask")
    flat = [[float(c) for p in LEFT for c in p]]
    theirs = mask_api.decode(mask_api.merge(mask_api.frPyObjects(flat, HEIGHT, WIDTH)))
    ours = v7_masks._polygons([LEFT], (HEIGHT, WIDTH))()
    # The two differ in who owns a pixel on the outline.
    assert (ours & theirs).sum() / (ours | theirs).sum() > 0.9
    rows, columns = (np.flatnonzero(ours.any(axis=k)) for k in (1, 0))
    assert (columns[0], rows[0], columns[-1], rows[-1]) == (42, 10, 70, 50)


def test_every_export_gives_the_same_two_lungs(tmp_path):
    expected = levels()
    hollow = {"counts": run_lengths(expected == 254), "size": [WIDTH, HEIGHT]}
    exports = {
        "darwin 1.0": write_json(tmp_path / "d1", darwin_1()),
        "darwin 2.0": write_json(tmp_path / "d2", darwin_2()),
        "coco": write_json(tmp_path / "coco", coco(hollow), "output.json"),
    }
    for place, (kind, folder) in enumerate(exports.items()):
        mask, row = unpacked(folder, tmp_path / f"out{place}")
        assert np.array_equal(mask, expected), kind
        assert (row["file"], row["width"], row["height"]) == (NAME, str(WIDTH), str(HEIGHT)), kind


def test_exports_become_records_or_one_line(tmp_path):
    with pytest.raises(UserError, match=r"no \*\.json in it"):
        unpacked(tmp_path, tmp_path / "none")
    out = tmp_path / "in"
    unpacked(write_json(tmp_path / "d1", darwin_1()), out)
    picture = PIL.Image.fromarray(np.full((HEIGHT, WIDTH), 90, np.uint8))
    (out / "PNEUMONIA").mkdir()
    picture.save(out / "PNEUMONIA" / f"{NAME}.jpeg")
    build.main(["--dataset=lungs", f"--source={out}", f"--out={tmp_path}/out", "--processes=1"])
    records = [r for f in (tmp_path / "out" / "records").glob("*.jsonl") for r in read_records(f)]
    boxes = {r.finding: r.boxes for r in records}
    assert boxes["right lung"] == [[10, 10, 35, 53]] and boxes["left lung"] == [[42, 10, 71, 51]]
    assert {(r.dataset, r.patient_id) for r in records} == {("lungs", "person7")}
    folder = write_json(tmp_path / "empty", darwin_1(points=()))
    with pytest.raises(UserError, match="no annotation of class 'Lung' is left"):
        unpacked(folder, tmp_path / "none")
    with pytest.raises(UserError, match=r"no category 'Heart'; expected one of Ignore, Lung"):
        unpacked(write_json(tmp_path / "c", coco([])), tmp_path / "none", "--class_name=Heart")


def broken(change):
    content = darwin_1()
    change(content)
    return content


BAD = {
    "invalid_record (no size)": broken(lambda c: c["image"].pop("width")),
    "bad_size": broken(lambda c: c["image"].update(width=10**6, height=10**6)),
    "invalid_record (points)": broken(
        lambda c: c["annotations"][0]["polygon"].update(path=path_of(RIGHT[:2]))
    ),
    "invalid_record (numbers)": broken(
        lambda c: c["annotations"][0]["polygon"]["path"].append({"x": "far", "y": 1})
    ),
    "invalid_record (list)": [1, 2],
    "mask_size": coco({"counts": [3, 4], "size": [WIDTH, HEIGHT]}),
    "invalid_record (compressed)": coco({"counts": "abc", "size": [WIDTH, HEIGHT]}),
    "duplicate_id": darwin_1(),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_set_aside_and_said(tmp_path, capsys, case):
    folder = write_json(tmp_path / "in", darwin_1(), "0.json")
    write_json(folder, BAD[case], "1.json")
    unpacked(folder, tmp_path / "out")
    said = capsys.readouterr().out
    reason = case.partition(" ")[0]
    assert f"1 masks, 0 annotations without lungs, 1 {reason}" in said
    assert "1.json" in said.splitlines()[0] and reason in said.splitlines()[0]
