"""The folder: published names, columns and keys; complete and consistent."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import PIL.Image
from pycocotools import mask as coco

from cxrjax.simulation.regions import REGIONS
from cxrjax.simulation.studies.build import MASKS, SCENE_GRAPHS
from cxrjax.simulation.studies.layouts import CHEXPERT, STRUCTURES, image_folder, letterbox

CUES = ("comparison_cues", "temporal_cues", "severity_cues", "texture_cues")
PER_SENTENCE = ("attributes", "attributes_ids", "phrases", "phrase_IDs", "sections", *CUES)


def table(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))


def graphs(built: Path) -> dict[str, dict]:
    files = (built / SCENE_GRAPHS).glob("*.json")
    found = [json.loads(path.read_text()) for path in files]
    return {graph["image_id"]: graph for graph in found}


def test_tables_list_every_file(built, truth):
    metadata = {row["dicom_id"]: row for row in table(built / "mimic-cxr-2.0.0-metadata.csv.gz")}
    splits = {row["dicom_id"]: row for row in table(built / "mimic-cxr-2.0.0-split.csv.gz")}
    records = table(built / "cxr-record-list.csv.gz")
    reports = table(built / "cxr-study-list.csv.gz")
    labels = table(built / "mimic-cxr-2.0.0-chexpert.csv.gz")
    assert len(truth) == len(reports) == len(labels) == 20
    assert list(metadata) == list(splits) == [row["dicom_id"] for row in records]
    images = sorted(path.relative_to(built) for path in (built / "files").rglob("*.jpg"))
    assert images == sorted(Path(row["path"]).with_suffix(".jpg") for row in records)
    assert all((built / row["path"]).is_file() for row in reports)
    assert list(labels[0]) == ["subject_id", "study_id", *CHEXPERT]
    for study in truth:
        folder = built / image_folder(study["subject_id"], study["study_id"])
        for image in study["images"]:
            row = metadata[image["dicom_id"]]
            assert (int(row["Rows"]), int(row["Columns"])) == (image["height"], image["width"])
            assert row["ViewPosition"] == image["view"]
            assert len(row["StudyDate"]) == 8 and int(row["StudyDate"])
            assert splits[image["dicom_id"]]["split"] == study["split"]
            with PIL.Image.open(folder / f"{image['dicom_id']}.jpg") as picture:
                assert picture.mode == "L" and picture.size == (image["width"], image["height"])
                assert np.asarray(picture).std() > 25


def test_summaries_and_no_patient_in_two_splits(truth, built):
    splits: dict[int, set[str]] = {}
    for study in truth:
        splits.setdefault(study["subject_id"], set()).add(study["split"])
    assert all(len(found) == 1 for found in splits.values())
    manifest, statistics, _ = (
        json.loads((built / f"{name}.json").read_text())
        for name in ("manifest", "statistics", "quality")
    )
    assert manifest["synthetic"] is True and manifest["studies"] == 20
    assert statistics["images"]["value"] == sum(len(study["images"]) for study in truth)
    assert statistics["studies"]["value"] == 20


def test_scene_graphs(built, truth):
    found = graphs(built)
    frontal = {i["dicom_id"] for s in truth for i in s["images"] if i["view"] != "LATERAL"}
    assert set(found) == frontal
    for image_id, graph in found.items():
        names = [one["bbox_name"] for one in graph["objects"]]
        assert len(names) >= 27 and set(names) <= set(REGIONS)
        ids = {one["object_id"] for one in graph["objects"]}
        assert ids == {f"{image_id}_{name}" for name in names}
        for entry in graph["attributes"]:
            assert entry["object_id"] in ids
            assert len({len(entry[key]) for key in PER_SENTENCE}) == 1
            for labels in entry["attributes"]:
                assert all(label.split("|")[1] in ("yes", "no") for label in labels)
        for relation in graph["relationships"]:
            assert relation["subject_id"] in ids
            before, name = relation["object_id"].split("_", 1)
            earlier = found[before]
            assert earlier["patient_id"] == graph["patient_id"]
            assert earlier["StudyDateTime"] < graph["StudyDateTime"]
            assert name in {one["bbox_name"] for one in earlier["objects"]}


def test_boxes_of_both_frames_agree(built):
    for graph in graphs(built).values():
        folder = built / image_folder(graph["patient_id"], graph["study_id"])
        with PIL.Image.open(folder / f"{graph['image_id']}.jpg") as picture:
            width, height = picture.size
        scale, left, top = letterbox(height, width)
        for one in graph["objects"]:
            for axis, offset, size in (("x", left, width), ("y", top, height)):
                for edge in (f"{axis}1", f"{axis}2"):
                    assert 0 <= one[edge] <= 224 and 0 <= one[f"original_{edge}"] <= size
                    assert abs(one[f"original_{edge}"] * scale + offset - one[edge]) < 1.1
            assert one["width"] == one["x2"] - one["x1"] > 0
            assert one["original_height"] == one["original_y2"] - one["original_y1"] > 0


def test_masks_decode_and_fit_the_boxes(built):
    pairs = {"right lung": "right lung", "heart": "cardiac silhouette"}
    for image_id, graph in graphs(built).items():
        content = json.loads((built / MASKS / f"{image_id}.json").read_text())
        names = {one["id"]: one["name"] for one in content["categories"]}
        assert tuple(names.values()) == STRUCTURES
        image = content["images"][0]
        masks = {}
        for one in content["annotations"]:
            mask = coco.decode(one["segmentation"])
            assert mask.shape == (image["height"], image["width"])
            assert mask.sum() == one["area"] > 0
            masks[names[one["category_id"]]] = mask
        assert len(masks) > 50
        boxes = {one["bbox_name"]: one for one in graph["objects"]}
        for structure, region in pairs.items():
            rows, columns = np.nonzero(masks[structure])
            box = boxes[region]
            assert abs(columns.min() - box["original_x1"]) <= 3
            assert abs(rows.max() + 1 - box["original_y2"]) <= 5
        if "breast left" in masks:
            assert graph["gender"] == "F"


def test_lesions_lie_in_their_regions(built, truth):
    found = graphs(built)
    checked = 0
    for study in truth:
        image = study["images"][0]
        boxes = {one["bbox_name"]: one for one in found[image["dicom_id"]]["objects"]}
        for lesion in image["lesions"]:
            x0, y0, x1, y1 = lesion["box"]
            assert 0 <= x0 < x1 <= image["width"] and 0 <= y0 < y1 <= image["height"]
            spots = [boxes[name] for name in lesion["regions"] if name in boxes]
            assert spots, lesion
            for axis, middle in (("x", (x0 + x1) / 2), ("y", (y0 + y1) / 2)):
                first = min(one[f"original_{axis}1"] for one in spots)
                last = max(one[f"original_{axis}2"] for one in spots)
                assert first - 4 <= middle <= last + 4, (study["study_id"], lesion)
            checked += 1
    assert checked > 10
