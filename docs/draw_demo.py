"""Draws docs/demo.png, the picture of the README, from what `make demo` left.

    python docs/draw_demo.py [runs/demo]

The first held-out radiograph of each of the first findings that a question asks the place of: no
answer is picked for its looks. True boxes are green, the base's yellow, the tuned model's red.
"""

import json
import re
import sys
import textwrap
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cxrjax.evaluation.overlays import BASE, COLOURS, TRUTH, TUNED, overlay

PICTURE = Path(__file__).parent / "demo.png"
PANELS, SIDE, MARGIN, LINE = 4, 288, 8, 17


def read_lines(path: Path) -> list[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def panel(
    image: Path, record: dict[str, Any], base: dict[str, Any], tuned: dict[str, Any]
) -> Image.Image:
    """One radiograph with its three sets of boxes, and the words under it."""
    height, width = record["image_hw"]
    (answer, *_) = record["answers"]
    true = np.array(answer["boxes_by_image"][record["image_id"]]) / [width, height, width, height]
    scale = SIDE / max(height, width)
    pixels = Image.open(image).convert("L").resize((round(width * scale), round(height * scale)))
    drawn = overlay(
        np.asarray(pixels),
        {COLOURS[TRUTH]: true, COLOURS[BASE]: base["boxes"], COLOURS[TUNED]: tuned["boxes"]},
    )
    canvas = Image.new("RGB", (SIDE, SIDE + 7 * LINE), "black")
    canvas.paste(Image.fromarray(drawn), (0, 0))
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(13)
    top = SIDE + 4
    draw.text((2, top), record["question"], fill="white", font=font)
    for name, text in ((TRUTH, answer["text"]), (BASE, base["text"]), (TUNED, tuned["text"])):
        words = re.sub(r"<loc[^>]*>", "[box]", re.sub(r"(<loc\d+>){4}", "[box]", text))
        for line in textwrap.wrap(f"{name}: {words}", 44)[:2]:
            top += LINE
            draw.text((2, top), line, fill=COLOURS[name], font=font)
    return canvas


def main(demo: Path) -> None:
    """Writes docs/demo.png."""
    base, tuned = (
        {line["question_id"]: line for line in read_lines(demo / "predictions" / f"{name}.jsonl")}
        for name in (BASE, TUNED)
    )
    asked: dict[str, dict[str, Any]] = {}  # by finding
    for record in read_lines(demo / "data/records/validation.jsonl"):
        shown = record["image_id"] in {other["image_id"] for other in asked.values()}
        marked = record["answers"][0].get("boxes_by_image")
        if record["question_type"] == "Where" and marked and not shown:
            asked.setdefault(record["variables"]["finding"], record)
    panels = [
        panel(demo / "data" / record["image_path"], record, base[key], tuned[key])
        for record in islice(asked.values(), PANELS)
        for key in [record["question_id"]]
    ]
    width, height = panels[0].size
    picture = Image.new("RGB", (len(panels) * (width + MARGIN) - MARGIN, height), "black")
    for place, drawn in enumerate(panels):
        picture.paste(drawn, (place * (width + MARGIN), 0))
    picture.quantize(128).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"))
