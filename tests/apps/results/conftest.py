"""A small run for the tests of the results page, and a parser to read the page back."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps.results.page import Inputs, write_page
from cxrjax.paper import load_benchmark
from cxrjax.records import GeneratorInfo, QARecord, write_records
from tests.apps.html_tree import Node, Tree
from tests.apps.page_records import make_record as record_of
from tests.apps.rows import ROWS

HEIGHT, WIDTH = 100, 80
IMAGES = 10


def make_entry(value, n=300, spread=0.02):
    if value == "undefined":
        return {"value": None, "ci_low": None, "ci_high": None, "n": n}
    return {"value": value, "ci_low": value - spread, "ci_high": value + spread, "n": n}


METRICS = {
    system: {
        protocol: {name: make_entry(*told) for name, told in figures.items()}
        for protocol, figures in protocols.items()
    }
    for system, protocols in ROWS["metrics"].items()
}


def make_record(index: int, **changes) -> QARecord:
    image_id = f"image-{index}"
    label = "Cardiomegaly" if index % 2 else "Nodule/Mass"
    given = {"split": "validation", "image_hw": (HEIGHT, WIDTH), "image_id": image_id}
    given |= {"variables": {"finding": label}, "image_path": f"images/{image_id}.png"}
    given |= {"generator": GeneratorInfo(name="templates", version="4")}
    given |= {"question": f"Where is the {label}?"}
    answer = {"labels": [label], "polarity": "pos"}
    text, box = f"The {label} is at <loc_8_20_40_60>.", [8, 20, 40, 60]
    return record_of(f"{image_id}-0", text, [box], answer=answer, **given | changes)


def make_prediction(index: int, boxes: list, **changes) -> dict:
    text = f"Seen at <loc0123><loc0456><loc0789><loc0999>, answer {index}"
    fields = {"question_id": f"image-{index}-0", "text": text, "boxes": boxes, "labels": []}
    fields |= {"box_scores": [0.5] * len(boxes), "answer_logprob": -1.0, "parse": "ok"}
    return fields | changes


def write_lines(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


class Page:
    """Files of a small run, to be changed by a test before `read()` writes and parses the page."""

    images, height, width = IMAGES, HEIGHT, WIDTH
    metrics = METRICS
    entry = staticmethod(make_entry)
    record = staticmethod(make_record)
    prediction = staticmethod(make_prediction)
    write_lines = staticmethod(write_lines)

    def __init__(self, root: Path):
        (root / "images").mkdir()
        shade = np.linspace(20, 220, WIDTH).astype(np.uint8)
        for index in range(IMAGES):
            image = np.tile(shade, (HEIGHT, 1))
            Image.fromarray(image).save(root / "images" / f"image-{index}.png")
        self.root = root
        self.records = [make_record(index) for index in range(IMAGES)]
        # The higher the index, the further the tuned box is from the truth (.1, .2, .5, .6).
        moved = [[0.1 + 0.02 * i, 0.2, 0.5 + 0.02 * i, 0.6] for i in range(IMAGES)]
        middle = [0.5, 0.5, 0.9, 0.9]
        self.predictions = {
            "base": [make_prediction(i, [middle] if i else []) for i in range(IMAGES)],
            "tuned": [make_prediction(i, [box]) for i, box in enumerate(moved)],
        }
        # Of `Inputs`, and of `write_page`.
        self.inputs: dict = {"metrics": copy.deepcopy(METRICS), "image_root": root}
        self.arguments: dict = {"title": "Run A", "benchmark": load_benchmark("vindr_cxr_vqa")}

    def write(self, **changes) -> Path:
        """Writes the page; changes are of `Inputs` where it has such a field."""
        references = self.root / "records.jsonl"
        write_records(references, self.records)
        files = {
            name: write_lines(self.root / f"{name}.jsonl", lines)
            for name, lines in self.predictions.items()
        }
        fields = Inputs.__dataclass_fields__
        given = self.inputs | {name: value for name, value in changes.items() if name in fields}
        how = {name: value for name, value in changes.items() if name not in fields}
        path = write_page(
            self.root / "out",
            inputs=Inputs(**{"references": references, "predictions": files} | given),
            **(self.arguments | how),
        )
        assert path == self.root / "out" / "index.html"
        self.html = path.read_text(encoding="utf-8")
        return path

    def read(self, **changes) -> Node:
        self.write(**changes)
        return Tree(self.html).root

    @staticmethod
    def texts(text: str) -> list[dict]:
        """Answers of text alone to every question."""
        return [{"question_id": f"image-{i}-0", "text": text} for i in range(IMAGES)]

    @staticmethod
    def cases(root: Node) -> dict:
        """Index and images of a page that is one file, as the page's script reads them."""
        data = {
            node["id"]: json.loads(node.text)
            for node in root.all("script", type="application/json")
        }
        index = data.pop("case-index")
        return index | {"cases": [image for part in data.values() for image in part]}

    def log(self) -> Path:
        """A training log of 100 steps with three validations."""
        lines: list[dict] = [
            {"step": s, "loss": 3 - s / 100, "ce": 2 - s / 100, "giou_loss": 1.0}
            | {"coordinates/swapped": 0.01}
            for s in range(100)
        ]
        lines += [{"step": s, "validation/vqa/f1": 0.5 + s / 400} for s in (0, 50, 99)]
        return write_lines(self.root / "metrics.jsonl", lines)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)
