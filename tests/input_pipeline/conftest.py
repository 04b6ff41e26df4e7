"""A hermetic tokenizer and a small folder of images with questions about them."""

import numpy as np
import pytest
from PIL import Image

from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.records import Answer, QARecord, write_records
from cxrjax.tools.tokenizer_training import template_corpus, train_tokenizer

FINDINGS = ("Cardiomegaly", "Pleural effusion", "Nodule/Mass", "ILD", "Pneumothorax")
# (height, width), and how many questions are asked: more than fit one element, exactly as many,
# fewer, one. 15 questions; 7 elements at 3 questions an image.
IMAGES = (((60, 50), 5), ((48, 80), 3), ((64, 64), 2), ((51, 33), 1), ((70, 40), 4))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_tokenizer(template_corpus()))


@pytest.fixture
def config() -> ExampleConfig:
    return ExampleConfig(
        image_size=28, max_boxes=3, prefix_buckets=(12, 24), answer_buckets=(16, 48)
    )


def question(image: int, number: int, size: tuple[int, int], boxes: list) -> QARecord:
    """A record whose answer shows the boxes, pixels, or says no where there are none."""
    height, width = size
    finding = FINDINGS[(image + number) % len(FINDINGS)]
    written = " ".join("<loc_" + "_".join(map(str, box)) + ">" for box in boxes)
    text = f"Yes, there is {finding} at {written}." if boxes else f"No, there is no {finding}."
    answer = Answer(
        text=text,
        labels=[finding],
        polarity="pos" if boxes else "neg",
        boxes_by_image={f"image{image}": [list(map(float, box)) for box in boxes]},
    )
    return QARecord(
        dataset="synthetic",
        split="train",
        image_id=f"image{image}",
        image_path=f"images/{image}.png",
        image_hw=(height, width),
        question_id=f"i{image}q{number}",
        question=f"Is there any {finding}?",
        question_type="Is_there",
        variables={"finding": finding},
        answers=[answer],
    )


@pytest.fixture
def make_records():
    """The records of `IMAGES`, interleaved so that no image's questions stand together."""

    def make() -> list[QARecord]:
        rng = np.random.default_rng(7)
        records = []
        for number in range(max(count for _, count in IMAGES)):
            for image, ((height, width), count) in enumerate(IMAGES):
                if number < count:
                    boxes = []
                    for _ in range(number % 4):
                        x, y = int(rng.integers(0, width - 12)), int(rng.integers(0, height - 12))
                        w, h = rng.integers(4, 12, 2)
                        boxes.append((x, y, x + int(w), y + int(h)))
                    records.append(question(image, number, (height, width), boxes))
        return records

    return make


@pytest.fixture
def records_file(tmp_path, make_records):
    """`DIR/records/train.jsonl` with the images beside it; returns the path."""
    (tmp_path / "images").mkdir()
    for image, ((height, width), _) in enumerate(IMAGES):
        pixels = np.full((height, width), 40 * (image + 1), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"images/{image}.png")
    path = tmp_path / "records/train.jsonl"
    write_records(path, make_records())
    return path
