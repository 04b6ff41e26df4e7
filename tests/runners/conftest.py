"""Records that runners' tests ask about, and questions with images on disk."""

import json

import numpy as np
import PIL.Image
import pytest

from cxrjax.records import Answer, QARecord, write_records


@pytest.fixture
def record():
    """Makes a record; `boxes` are pixels of an image of 100 by 200, `said` the answer's text."""

    def make(number, *, boxes=(), said=None, labels=(), polarity="unk", **fields):
        image_id = fields.pop("image_id", "i")
        finding = fields.pop("finding", None)
        answer = Answer(
            text=said or "",
            labels=list(labels),
            polarity=polarity,
            boxes_by_image={image_id: [list(box) for box in boxes]} if boxes else {},
        )
        given = {
            "dataset": "custom",
            "split": "train",
            "image_path": f"{image_id}.png",
            "image_hw": (100, 200),
            "question": "What is seen?",
            "question_type": "What",
            "variables": {"finding": finding} if finding else None,
            "answers": [] if said is None else [answer],
        }
        return QARecord(image_id=image_id, question_id=f"q{number}", **{**given, **fields})

    return make


@pytest.fixture
def questions(tmp_path):
    """`questions(count=4, per_image=2, **fields)` -> a questions file, with images beside it."""

    def make(count=4, per_image=2, **fields):
        folder = tmp_path / "data"
        (folder / "images").mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        records = []
        for number in range(count):
            image_id = f"image{number // per_image}"
            path = folder / "images" / f"{image_id}.png"
            if not path.exists():
                pixels = rng.integers(0, 255, (40, 60), np.uint8)
                PIL.Image.fromarray(pixels).save(path)
            record = {
                "dataset": "custom",
                "split": "validation",
                "image_id": image_id,
                "image_path": f"images/{image_id}.png",
                "image_hw": (40, 60),
                "question_id": f"q{number}",
                "question": f"Where is the opacity, number {number}?",
                "question_type": "Where",
                "variables": {"finding": "opacity"},
            }
            records.append(QARecord(**record | fields))
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
