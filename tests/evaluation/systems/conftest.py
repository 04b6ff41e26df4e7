"""Records that runners' tests ask about, and questions with images on disk."""

import json
import tomllib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from cxrjax.records import Answer, QARecord, write_records

CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))


@pytest.fixture
def record():
    """Makes a record; `boxes` are pixels of an image of 100 by 200, `said` the answer's text."""

    def make(number, *, boxes=(), said=None, labels=(), polarity="unk", **fields):
        image_id = fields.get("image_id", "i")
        finding = fields.pop("finding", None)
        at = {image_id: [list(box) for box in boxes]} if boxes else {}
        told = {"labels": list(labels), "polarity": polarity, "boxes_by_image": at}
        given = {
            "dataset": "custom",
            "split": "train",
            "image_id": image_id,
            "image_path": f"{image_id}.png",
            "image_hw": (100, 200),
            "question_id": f"q{number}",
            "question": "What is seen?",
            "question_type": "What",
            "variables": {"finding": finding} if finding else None,
            "answers": [] if said is None else [Answer(text=said, **told)],
        }
        return QARecord(**given | fields)

    return make


@pytest.fixture
def questions(tmp_path, record):
    """`questions(count=4, per_image=2, **fields)` -> a questions file, with images beside it."""

    def make(count=4, per_image=2, **fields):
        folder = tmp_path / "data"
        (folder / "images").mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        usual = {"split": "validation", "image_hw": (40, 60), "question_type": "Where"}
        usual |= {"variables": {"finding": "opacity"}}
        records = []
        for number in range(count):
            name = f"image{number // per_image}"
            path = folder / "images" / f"{name}.png"
            if not path.exists():
                PIL.Image.fromarray(rng.integers(0, 255, (40, 60), np.uint8)).save(path)
            about = {"image_id": name, "image_path": f"images/{name}.png"}
            about |= {"question": f"Where is the opacity, number {number}?"}
            records.append(record(number, **usual | about | fields))
        write_records(folder / "questions" / "validation.jsonl", records)
        return folder / "questions" / "validation.jsonl"

    return make


@pytest.fixture
def lines():
    """`lines(path)` -> question id -> its line of predictions."""

    def read(path):
        found = [json.loads(line) for line in path.read_text().splitlines()]
        assert len({line["question_id"] for line in found}) == len(found)
        return {line["question_id"]: line for line in found}

    return read
