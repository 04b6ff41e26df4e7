"""Data sets from the hub and models to it, against a stand-in that huggingface_hub itself asks."""

import dataclasses
import io
import json
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub import constants
from PIL import Image

from cxrjax.commands import build, convert
from cxrjax.errors import UserError
from cxrjax.paths import in_path
from cxrjax.training import conversion, data, interchange, resolver
from cxrjax.training.base_model import base_sha256
from cxrjax.training.config import ExperimentConfig
from tests.hub_server import TOKEN, Repository, hub  # noqa: F401

CASES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
NAME = "hf://datasets/they/vqa"
BOX = "<loc_10_20_100_120>"
CHEST = "p10/p10000001/s50000001/0001.jpg"


def png(seed=0, size=(200, 160), kind="PNG"):
    pixels = np.random.default_rng(seed).integers(0, 255, size, np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def parquet(rows, features=None):
    """The bytes of a file, with the metadata that the `datasets` library writes."""
    table = pyarrow.Table.from_pylist(rows)
    if features:
        noted = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": noted})
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out)
    return out.getvalue()


def pair(**changes):
    asked = {"question": "Where is the mass?", "answer": f"Here {BOX}.", "reason": "It is seen."}
    known = {"type": "Where", "difficulty": "Easy", "gt_finding": "Nodule/Mass", "gt_location": BOX}
    return asked | known | changes


def vindr(number=0, **more):
    return {"image_id": f"{number:032x}", "num_questions": 1, "vqa": [pair()], **more}


def gemex(**changes):
    talk = [
        {"from": "human", "value": "<image>\nWhat is seen?"},
        {
            "from": "gpt",
            "value": "<answer> Fluid. <reason> The base is veiled. <location> [[1, 2, 30, 40]]",
        },
    ]
    row = {"conversations": talk, "row_id": 1, "q_type": "open_ended_questions", "type_prompt": ""}
    return row | {"image": CHEST} | changes


def asked(**changes):
    row = {"question": "Is there fluid?", "type": "finding", "answer": "Yes.", "reason": "Veiled."}
    row |= {"visual_regions": ["right lung"], "visual_locations": [[1, 2, 30, 40]]}
    return row | {"image_path": CHEST, "q_id": 0, "row_id": "row_0"} | changes


def built(source, out, dataset="vindr_cxr_vqa", *more):
    """Split -> records, and the manifest."""
    build.main([f"--dataset={dataset}", f"--source={source}", f"--out={out}", *more])
    splits = {
        file.stem: [json.loads(line) for line in file.read_text().splitlines()]
        for file in (out / "records").glob("*.jsonl")
    }
    return splits, json.loads((out / "manifest.json").read_text())


def image(data, name=""):
    return {"bytes": data, "path": name}


_FLAT = {
    f: [f"question {n}" if f == "question" else v for n in range(2)] for f, v in pair().items()
}
# Files of a repository, the splits' numbers of questions, and those of images that were found.
VINDR = {
    "as published": ({"data_v1.json": json.dumps([vindr(n) for n in range(20)])}, None, 0),
    "converted by the hub": (
        {"default/train/0000.parquet": [vindr(n) for n in range(20)]},
        None,
        0,
    ),
    "a question a row, images inside": (
        {
            "data/train-00000-of-00001.parquet": [
                {"image_id": "a" * 32, "image": image(png(1)), **pair()},
                {"image_id": "a" * 32, "image": image(png(1)), **pair(question="And how large?")},
            ],
            "data/validation-00000-of-00001.parquet": [
                {"image_id": "b" * 32, "image": image(png(2)), **pair(gt_location=None)}
            ],
        },
        {"train": 2, "validation": 1},
        3,
    ),
    "lists of each field, named by its file": (
        {
            "train.parquet": [{"image": image(png(1), f"x/{'c' * 32}.png"), "vqa": _FLAT}],
            "test.parquet": [{"image": image(png(2), f"{'d' * 32}.png"), "vqa": _FLAT}],
        },
        {"train": 2, "validation": 0, "test": 2},
        4,
    ),
    "lines, images beside": (
        {
            "train.jsonl": json.dumps({"image_id": "a" * 32, **pair()}),
            "val.jsonl": json.dumps(vindr(1)),
            f"images/{'a' * 32}.png": png(),
            f"images/{1:032x}.png": png(),
        },
        {"train": 1, "validation": 1},
        2,
    ),
}


def stored(files):
    """File -> bytes; lists of rows become Parquet."""
    return {
        name: parquet(found)
        if isinstance(found, list)
        else found.encode()
        if isinstance(found, str)
        else found
        for name, found in files.items()
    }


def test_vindr_is_built_from_its_layouts_on_the_hub(hub, tmp_path, subtests):  # noqa: F811
    for name, (files, counts, images) in VINDR.items():
        with subtests.test(name):
            repository = hub.hub["datasets", "they/vqa"] = Repository(stored(files))
            splits, manifest = built(NAME, tmp_path / name)
            found = {split: len(records) for split, records in splits.items()}
            assert found == counts if counts else sum(found.values()) == 20
            records = [record for of in splits.values() for record in of]
            assert sum(record.get("image_hw") == [200, 160] for record in records) == images
            assert manifest["hub"] == f"{NAME}@{repository.sha}"
            assert all(record["gt_finding"] == "Nodule/Mass" for record in records)


GEMEX = {
    "as published": {
        "closed_ended_question.jsonl": json.dumps(asked()),
        "multi_choice_question.jsonl": json.dumps(asked(choices=["A: x", "B: y"], answer=["A"])),
    },
    "one table": {
        "data/test-00000-of-00001.parquet": [
            asked(answer=["Yes."], choices=None),
            asked(answer=["A", "B"], choices=["A: x", "B: y"], q_id=1),
            asked(answer=["A"], choices=["A: x", "B: y"], q_id=2),
            asked(answer=["At the base."], q_id=3),
        ]
    },
    "a folder a type": {
        "closed_ended/test.parquet": [asked()],
        "multi_choice/test.parquet": [asked(answer="['A', 'B']", choices=["A: x", "B: y"])],
    },
}


def test_gemex_is_built_from_its_layouts_on_the_hub(hub, tmp_path, subtests):  # noqa: F811
    for name, files in GEMEX.items():
        with subtests.test(name):
            hub.hub["datasets", "they/vqa"] = Repository(stored(files))
            splits, _ = built(NAME, tmp_path / name, "gemex")
            kinds = {record["question_type"]: record["answer_key"] for record in splits["test"]}
            assert kinds["closed_ended"] == "Yes."
            assert kinds["multi_choice"] in (["A", "B"], ["A"])
            if name == "one table":
                assert kinds["single_choice"] == "A" and kinds["open_ended"] == "At the base."


def test_gemex_with_images_in_columns(hub, tmp_path):  # noqa: F811
    files = {
        "train.parquet": [gemex(image=image(png(kind="JPEG"), CHEST))],
        "val.parquet": [gemex(image=image(png(1, kind="JPEG"), CHEST.replace("001", "002")))],
        "test.parquet": [asked(image_path=None, image=image(png(2, kind="JPEG"), "t/0009.jpg"))],
    }
    hub.hub["datasets", "they/vqa"] = Repository(stored(files))
    splits, _ = built(NAME, tmp_path / "out", "gemex")
    (record,) = splits["train"]
    assert record["patient_id"] == "p10000001" and record.get("image_hw") == [200, 160]
    assert record["image_path"] == f"unpacked/files/{CHEST}"
    assert [len(splits[split]) for split in ("validation", "test")] == [1, 1]


def test_records_and_boxes_from_the_hub(hub, tmp_path):  # noqa: F811
    boxes = {"bbox": [[10, 20, 90, 100]], "category": [1]}
    names = {"names": ["Nodule", "Effusion"], "_type": "ClassLabel"}
    features = {"objects": {"feature": {"category": names}, "_type": "Sequence"}}
    rows = [{"image": image(png(n)), "image_id": n, "objects": boxes} for n in range(4)]
    repository = Repository({"data/train-0.parquet": parquet(rows, features)})
    hub.hub["datasets", "they/vqa"] = repository
    splits, _ = built(NAME, tmp_path / "boxes", "boxes", "--box_form=xywh", "--accept")
    records = [record for of in splits.values() for record in of]
    assert "effusion" in json.dumps(records).lower() and "nodule" not in json.dumps(records).lower()
    first = json.dumps(next(r for r in records if r["answers"][0]["boxes_by_image"]))
    shown = json.loads(first)
    shown["image_path"] = "images/0.png"
    repository = Repository(
        {
            "sub/records.jsonl": json.dumps(shown).encode(),
            "sub/images/0.png": png(),
            "other.bin": b"1",
        }
    )
    hub.hub["datasets", "they/vqa"] = repository
    built(f"{NAME}@main/sub", tmp_path / "records", "records")
    assert not any("other.bin" in request for request in hub.asked)


def refused(call):
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value) and TOKEN not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_fetched_is_one_line(hub, tmp_path, monkeypatch, subtests):  # noqa: F811
    whole = stored({"data_v1.json": json.dumps([vindr(n) for n in range(20)])})
    for case in CASES["fetched"]:
        with subtests.test(case["name"]), monkeypatch.context() as patch:
            held = {("datasets", "they/vqa"), ("models", "they/vqa")} if "is" in case else ()
            hub.hub = {key: Repository(whole, **case["is"]) for key in held}
            patch.setenv("HF_TOKEN", case.get("token", ""))
            if case["of"].startswith("hf://datasets/"):
                line = refused(lambda: built(case["of"], tmp_path / "out"))  # noqa: B023
            else:
                words = [f"--checkpoint={case['of']}", f"--out={tmp_path / 'out'}"]
                line = refused(lambda: convert.main(words))  # noqa: B023
            assert re.search(case["said"].replace("HUB", hub.address), line)
            assert not (tmp_path / "out").exists()
            shutil.rmtree(constants.HF_HUB_CACHE, ignore_errors=True)


def test_without_a_network_the_cache_answers(hub, monkeypatch):  # noqa: F811
    hub.hub["datasets", "they/vqa"] = Repository({"data_v1.json": b"[]"})
    fetched = in_path(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert in_path(NAME) == fetched and (fetched / "data_v1.json").read_bytes() == b"[]"
    said = refused(lambda: in_path("hf://datasets/they/other"))
    assert "they/other cannot be reached (or HF_HUB_OFFLINE is set), and the cache" in said


def test_a_run_reads_what_was_built_from_a_data_set():
    config = ExperimentConfig(data=dataclasses.replace(ExperimentConfig().data, train=NAME))
    assert f"cxrjax.build --dataset=NAME --source={NAME}" in refused(
        lambda: data.check_addresses(config)
    )


@pytest.fixture
def converted(monkeypatch, tmp_path):
    """A run with figures, whose conversion is a folder of three files."""
    run = tmp_path / "run"
    run.mkdir()
    figures = {
        "vqa/f1": {"value": 0.5, "ci_low": 0.4, "ci_high": 0.6, "n": 9},
        "x": {"value": None},
    }
    (run / "metrics.json").write_text(json.dumps({"tuned": {"strict": figures, "paper": {}}}))

    def export(source, out, merge, dtype):
        out.mkdir()
        (out / "config.json").write_text('{"model_type": "paligemma"}')
        (out / "model.safetensors").write_bytes(b"weights")
        (out / "hf.json").write_text('{"source": "google/paligemma-3b-pt-224"}')

    monkeypatch.setattr(interchange, "kind_of", lambda _: "run")
    monkeypatch.setattr(interchange, "export_hf", export)
    return run


def pushed(run, out, *more):
    convert.main([f"--checkpoint={run}", f"--out={out}", "--to=merged", "--push=me/chest", *more])


def test_a_model_is_pushed_with_its_card(hub, converted, tmp_path, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    pushed(converted, tmp_path / "out")
    made = hub.hub["models", "me/chest"]
    assert made.private and set(made.files) == {
        "README.md", "config.json", "hf.json", "model.safetensors",
    }  # fmt: skip
    card = made.files["README.md"].decode()
    assert 'base_model: "google/paligemma-3b-pt-224"' in card and "Gemma terms of use" in card
    assert "| tuned | vqa/f1 | 0.5 | 0.4 to 0.6 | 9 |" in card and "| x |" not in card
    assert 'cxrjax.load("hf://me/chest")' in card
    assert f"{hub.address}/me/x" in capsys.readouterr().out
    pushed(converted, tmp_path / "again", "--public")  # there already; stays what it is


def test_a_base_of_our_own_is_fetched_whole(hub, tmp_path):  # noqa: F811
    base = Path("data/demo_base").absolute()
    files = {path.relative_to(base).as_posix(): path for path in base.rglob("*") if path.is_file()}
    content = {name: path.read_bytes() for name, path in files.items()}
    hub.hub["models", "me/base"] = Repository({**content, "code.py": b"import os"})
    found = resolver.resolve("hf://me/base")
    assert base_sha256(found) == base_sha256(base) and not (found / "code.py").exists()
    with pytest.raises(UserError, match=r"has no hf\.json"):
        convert.main(["--checkpoint=hf://me/base", f"--out={tmp_path / 'hf'}", "--to=hf"])


def test_what_cannot_be_pushed_is_one_line(hub, converted, tmp_path, monkeypatch, subtests):  # noqa: F811
    out = tmp_path / "out"
    for case in CASES["pushed"]:
        with subtests.test(case["name"]), monkeypatch.context() as patch:
            hub.hub = {("models", "me/chest"): Repository()} if case.get("public") else {}
            patch.setenv("HF_TOKEN", case.get("token", ""))
            line = refused(lambda: pushed(converted, out, *case.get("more", [])))  # noqa: B023
            assert case["said"].replace("HUB", hub.address) in line and not out.exists()
    assert "--public: is about --push" in refused(
        lambda: conversion.convert(converted, out, to="hf", public=True)
    )


def test_a_hub_that_vanishes_leaves_the_folder(hub, converted, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.vanish = True
    out = tmp_path / "out"
    assert f"{out} is whole: `hf upload me/chest {out}`" in refused(lambda: pushed(converted, out))
    assert (out / "model.safetensors").is_file()
