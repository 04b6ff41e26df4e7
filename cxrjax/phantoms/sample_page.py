"""Draws a page of sample radiographs: `python -m cxrjax.phantoms.sample_page --out=F.png`.

With --boxes each finding is framed and named.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cxrjax import cli
from cxrjax.errors import UserError
from cxrjax.phantoms.findings import STATISTICS
from cxrjax.phantoms.render import SMALLEST, Phantom, render_phantom

# One colour per class, told apart on grey.
COLOURS = dict(
    zip(
        STATISTICS,
        (
            *("#ff5050", "#ffa040", "#ffff50", "#ff50c0", "#50ff50", "#50ffff", "#60a0ff"),
            *("#c080ff", "#b0ff80", "#ffb0b0", "#40c0b0", "#ffd080", "#ffffff", "#ff8080"),
        ),
        strict=True,
    )
)


def draw_boxes(phantom: Phantom) -> Image.Image:
    """The picture with its findings framed and named."""
    picture = Image.fromarray(phantom.image).convert("RGB")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(max(10, phantom.height // 36))
    size = np.array([phantom.width, phantom.height] * 2)
    for label, box in zip(phantom.labels, phantom.boxes, strict=True):
        corners = (box * size).tolist()
        draw.rectangle(corners, outline=COLOURS[label])
        draw.text((corners[0] + 2, max(corners[1] - 1, 0)), label, fill=COLOURS[label], font=font)
    return picture


def sample_page(
    seed: int,
    rows: int,
    columns: int,
    long_side: int,
    boxes: bool,
    first: int = 0,
    normal: bool | None = None,
) -> Image.Image:
    """A grid of pictures `first`, `first` + 1, ... of the series."""
    page = Image.new("RGB", (columns * long_side, rows * long_side))
    for k in range(rows * columns):
        phantom = render_phantom(seed, first + k, long_side, normal)
        picture = draw_boxes(phantom) if boxes else Image.fromarray(phantom.image)
        page.paste(picture, (k % columns * long_side, k // columns * long_side))
    return page


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="sample_page")
    parser.add_argument("--out", type=Path, required=True, help="picture file to write, e.g. p.png")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="index of the first picture")
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--columns", type=int, default=4)
    parser.add_argument("--long_side", type=int, default=400, help="pixels of one picture")
    parser.add_argument("--boxes", action="store_true", help="frame and name the findings")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--normal", action="store_const", const=True, default=None)
    kind.add_argument("--abnormal", dest="normal", action="store_const", const=False)
    flags = parser.parse_args(argv)
    if flags.long_side < SMALLEST or min(flags.rows, flags.columns) < 1:
        parser.error(f"--long_side must be at least {SMALLEST}, --rows and --columns at least 1")
    if flags.seed < 0 or flags.first < 0:
        parser.error("--seed and --first must not be negative")
    page = sample_page(
        *(flags.seed, flags.rows, flags.columns, flags.long_side, flags.boxes),
        first=flags.first,
        normal=flags.normal,
    )
    try:
        page.save(flags.out)
    except (OSError, ValueError) as error:
        raise UserError(f"--out={flags.out}: cannot write the page: {error}") from None
    print(flags.out)


if __name__ == "__main__":
    cli.run(main)
