"""Exports as people have them: each is imported as it was meant, or refused in one clear line."""

import json
import os
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from cxrjax.commands import import_annotations
from cxrjax.errors import UserError
from tests.apps.annotations import samples

CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))


def written(folder: Path, case: dict) -> Path:
    """The files of a case, beside images that differ."""
    names = case.get("images", [f"images/{name}" for name in samples.BOXES])
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(60, 190, (6, 8), np.uint8)
        PIL.Image.fromarray(pixels).resize(samples.SIZE[::-1]).save(folder / name)
    files = dict(case.get("files", {}))
    if "coco" in case:
        images = [{"id": number, "file_name": f"{name}.png"} for number, name in enumerate("ab", 1)]
        boxes = [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 20, 30, 30]}]
        content = {"images": images, "annotations": boxes} | case["coco"]
        files["coco.json"] = json.dumps(content | {"categories": [{"id": 1, "name": "Mass"}]})
    for name, (top, bottom, left, right) in case.get("masks", {}).items():
        mask = np.zeros(samples.SIZE, np.uint8)
        mask[top:bottom, left:right] = 255
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(mask).save(folder / name)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding=case.get("encoding", "utf-8"))
    for old, new in case.get("renamed", {}).items():  # to bytes that need not be UTF-8
        os.rename(folder / old, os.fsencode(folder) + b"/" + new.encode("latin-1"))
    if "zip" not in case:
        return folder
    return Path(shutil.make_archive(str(folder.parent / folder.name), "zip", folder))


def test_exports_are_imported_as_they_were_meant(tmp_path, subtests, capsys):
    for number, (name, case) in enumerate(CASES.items()):
        with subtests.test(name):
            source, out = written(tmp_path / f"{number}", case), tmp_path / f"out{number}"
            words = [str(source), f"--out={out}", "--processes=1", *case.get("flags", ())]
            if "refused" in case:
                with pytest.raises(UserError, match=case["refused"]) as refused:
                    import_annotations.main(words)
                assert "\n" not in str(refused.value)
                continue
            import_annotations.main(words)
            _check(case, out, capsys.readouterr().out)


def _check(case: dict, out: Path, printed: str) -> None:
    assert re.search(case.get("expected", ""), printed, re.DOTALL)
    assert case.get("absent", "\0") not in printed
    files = sorted((out / "records").glob("*.jsonl"))
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    ids = [one["question_id"] for one in records]
    assert len(set(ids)) == len(ids)
    words = [one["question"] + one["answers"][0]["text"] for one in records]
    assert not [text for text in case.get("texts", ()) if not any(text in word for word in words)]
    if "classes" in case:
        assert sorted({one["variables"]["finding"] for one in records}) == case["classes"]
    if "splits" in case:
        images = {one["split"]: set() for one in records}
        for one in records:
            images[one["split"]].add(one["image_id"])
        assert images == {split: set(of) for split, of in case["splits"].items()}
    where = [one for one in records if one["question_type"] == "Where"]
    if "boxes" in case:
        found = {one["image_id"]: one["answers"][0]["boxes_by_image"] for one in where}
        assert {image: of[image][0] for image, of in found.items()} == case["boxes"]
    if "denied" in case:
        there = [one for one in records if one["question_type"] == "Is_there"]
        assert {one["image_id"] for one in there} <= set(case["denied"])
    quality = json.loads((out / "quality.json").read_text())
    counts = {reason: count for reason, count in quality["counts"].items() if count}
    assert counts == case.get("reasons", counts)
    for of in json.loads((out / "manifest.json").read_text())["entries"].values():
        assert of["entries"] == of["kept"] + sum(of["rejected"].values())
