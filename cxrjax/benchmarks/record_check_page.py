"""A page of records as the model is given them: image at its size, prompt, target, boxes."""

import random
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.benchmarks.overlays import BASE, COLOURS, TRUTH, jpeg_data_uri
from cxrjax.benchmarks.record_check import REMEDIES, RecordsCheck, Usable
from cxrjax.benchmarks.templates import template
from cxrjax.boxes import iou
from cxrjax.codecs import get_codec
from cxrjax.datasets import output
from cxrjax.input_pipeline.examples import QuestionEncoder, image_geometry, load_image

PAGE_FILE = "index.html"


def write_page(check: RecordsCheck, out: Path, count: int, seed: int = 0) -> Path:
    """Writes the page of `count` usable records, drawn by `seed`, and returns its path.

    Raises:
        UserError: the folder cannot be written to.
    """
    drawn = random.Random(f"{seed}/record samples").sample(
        check.usable, min(count, len(check.usable))
    )
    html = template("record_check.html.j2").render(
        check=check,
        config=check.encoder.config,
        remedies=REMEDIES,
        samples=[model_view(one, check.encoder) for one in drawn],
        truth_colour=COLOURS[TRUTH],
        token_colour=COLOURS[BASE],
    )
    with output.writing(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / PAGE_FILE).write_text(html, encoding="utf-8")
    return out / PAGE_FILE


def model_view(usable: Usable, encoder: QuestionEncoder) -> dict[str, Any]:
    """What the template shows of a record: nothing of text and boxes that is not in the tokens.

    `boxes` are read from the decoded target, `record_boxes` are where the record has them; both as
    fractions of the model's input. `lowest_iou` compares them pairwise, None where they are not
    the same number.
    """
    record, encoded, config = usable.line.record, usable.encoded, encoder.config
    assert record.image_hw is not None
    height, width = record.image_hw
    geometry = image_geometry(height, width, config)
    target = encoder.tokenizer.decode(encoded.answer.tolist())
    codec = get_codec(config.codec)
    decoded = geometry.apply(codec.decode(target, height, width, geometry).boxes)
    size = np.array([width, height, width, height], np.float64)
    true = geometry.apply(np.array(record.boxes, np.float64).reshape(-1, 4) / size)
    lowest = None
    if len(true) and len(true) == len(decoded):
        lowest = float(iou(decoded, true.astype(np.float32)).min())
    return {
        "record": record,
        "where": usable.line.where,
        "picture": jpeg_data_uri(load_image(usable.line.image, config), config.image_size),
        "prompt": encoder.tokenizer.decode(encoded.prefix.tolist()),
        "target": target,
        "tokens": (len(encoded.prefix), len(encoded.answer)),
        "boxes": _rectangles(decoded),
        "record_boxes": _rectangles(true),
        "lowest_iou": lowest,
    }


def _rectangles(boxes: np.ndarray) -> list[dict[str, float]]:
    return [
        {"x": float(x0), "y": float(y0), "width": float(x1 - x0), "height": float(y1 - y0)}
        for x0, y0, x1, y1 in boxes
    ]
