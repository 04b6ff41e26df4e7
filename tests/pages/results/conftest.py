"""A small run for the tests of the results page, and a parser to read the page back."""

import copy
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax.pages.results.page import Inputs, write_page
from cxrjax.papers.benchmarks import BENCHMARKS
from cxrjax.records import Answer, GeneratorInfo, QARecord, write_records

VOID = {"meta", "img", "input", "br"}
HEIGHT, WIDTH = 100, 80
IMAGES = 10


class Node:
    def __init__(self, tag: str, attributes: dict[str, str | None]):
        self.tag, self.attributes = tag, attributes
        self.children: list[Node | str] = []

    def __getitem__(self, name: str) -> str:
        return self.attributes[name] or ""

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()

    @property
    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def all(self, tag: str | None = None, cls: str | None = None, **attributes: str):
        for child in self.children:
            if isinstance(child, Node):
                named = (tag is None or child.tag == tag) and (cls is None or cls in child.classes)
                wanted = {name.replace("_", "-"): value for name, value in attributes.items()}
                if named and wanted.items() <= child.attributes.items():
                    yield child
                yield from child.all(tag, cls, **attributes)


class Tree(HTMLParser):
    """A tree of nodes; an unbalanced tag is an error, unlike in a browser."""

    def __init__(self, html: str):
        super().__init__()
        self.root = Node("root", {})
        self.open = [self.root]
        self.feed(html)
        self.close()
        assert self.open == [self.root], f"unclosed {self.open[-1].tag}"

    def handle_starttag(self, tag, attrs):
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def make_entry(value, n=300, spread=0.02):
    if value is None:
        return {"value": None, "ci_low": None, "ci_high": None, "n": n}
    return {"value": value, "ci_low": value - spread, "ci_high": value + spread, "n": n}


METRICS = {
    "tuned": {
        "paper": {
            "vqa/accuracy": make_entry(None, 1200),
            "vqa/accuracy_as_printed": make_entry(0.84217, 1200),
            "vqa/f1": make_entry(0.84217, 1200),
            "detection/f1@0.3": make_entry(0.71828),
            "localization/good@0.5": make_entry(0.57721),
        },
        "strict": {
            "vqa/balanced_accuracy": make_entry(0.91327, 4200),
            "detection/f1@0.3": make_entry(0.66607),
            "detection/miou_tp@0.3": make_entry(0.69315),
            "by_class/detection/f1@0.3/Nodule/Mass": make_entry(0.41421, 55),
            "by_class/detection/f1@0.3/Atelectasis": make_entry(0.73205, 4),
            "by_class/detection/miou_tp@0.3/Atelectasis": make_entry(None, 4),
            "by_question_type/vqa/f1/Where": make_entry(0.80902, 1200),
            "parse_failure_rate": make_entry(0.0, 1200),
            "parse_failure_rate/wrong_arity": make_entry(0.00125, 1200, 0.001),
        },
    },
    "base": {
        "paper": {"vqa/f1": make_entry(0.55123, 1200)},
        "strict": {
            "detection/f1@0.3": make_entry(0.22360),
            "detection/miou_tp@0.3": make_entry(None),
            "parse_failure_rate": make_entry(0.04321, 1200),
        },
    },
}


def make_record(index: int, **changes) -> QARecord:
    image_id = f"image-{index}"
    label = "Cardiomegaly" if index % 2 else "Nodule/Mass"
    fields = dict(
        dataset="custom",
        split="validation",
        image_id=image_id,
        image_path=f"images/{image_id}.png",
        image_hw=(HEIGHT, WIDTH),
        question_id=f"{image_id}-0",
        question=f"Where is the {label}?",
        question_type="Where",
        variables={"finding": label},
        generator=GeneratorInfo(name="templates", version="3"),
        answers=[
            Answer(
                text=f"The {label} is at <loc_8_20_40_60>.",
                labels=[label],
                polarity="pos",
                boxes_by_image={image_id: [[8, 20, 40, 60]]},
            )
        ],
    )
    return QARecord(**(fields | changes))


def make_prediction(index: int, boxes: list, **changes) -> dict:
    fields = {
        "question_id": f"image-{index}-0",
        "text": f"Seen at <loc0123><loc0456><loc0789><loc0999>, answer {index}",
        "boxes": boxes,
        "labels": [],
        "box_scores": [0.5] * len(boxes),
        "answer_logprob": -1.0,
        "parse": "ok",
    }
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
        self.predictions = {
            "base": [
                make_prediction(i, [[0.5, 0.5, 0.9, 0.9]] if i else []) for i in range(IMAGES)
            ],
            "tuned": [
                make_prediction(i, [[0.1 + 0.02 * i, 0.2, 0.5 + 0.02 * i, 0.6]])
                for i in range(IMAGES)
            ],
        }
        # Of `Inputs`, and of `write_page`.
        self.inputs: dict = {"metrics": copy.deepcopy(METRICS), "image_root": root}
        self.arguments: dict = {
            "title": "Run A",
            "benchmark": BENCHMARKS["vindr_cxr_vqa"](),
        }

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
            {
                "step": s,
                "loss": 3 - s / 100,
                "ce": 2 - s / 100,
                "giou_loss": 1.0,
                "coordinates/swapped": 0.01,
            }
            for s in range(100)
        ]
        lines += [{"step": s, "validation/vqa/f1": 0.5 + s / 400} for s in (0, 50, 99)]
        return write_lines(self.root / "metrics.jsonl", lines)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)
