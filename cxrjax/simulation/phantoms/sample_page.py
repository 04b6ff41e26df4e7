"""Draws a page of samples to look at: phantoms, or studies out of a built folder.

    python -m cxrjax.simulation.phantoms.sample_page --out=F.png [--boxes]
    python -m cxrjax.simulation.phantoms.sample_page --source=DIR --out=F.png

With --boxes each finding is framed and named. Of each study: its first frontal view with the boxes
of its scene graph; the last view, findings framed where it is frontal, too; the report.
"""

import argparse
import colorsys
import itertools
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cxrjax import cli
from cxrjax.errors import UserError
from cxrjax.files import read_json_lines, read_json_object
from cxrjax.images.decode import read_image
from cxrjax.simulation.phantoms.findings import CLASSES
from cxrjax.simulation.phantoms.regions import REGIONS
from cxrjax.simulation.phantoms.render import SMALLEST, Phantom, render_phantom
from cxrjax.simulation.phantoms.studies.build import SCENE_GRAPHS, TRUTH
from cxrjax.simulation.phantoms.studies.layouts import image_folder
from cxrjax.untrusted.foreign_files import read_text


def draw_boxes(phantom: Phantom) -> Image.Image:
    """The picture with its findings framed and named."""
    picture = Image.fromarray(phantom.image).convert("RGB")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(max(10, phantom.height // 36))
    size = np.array([phantom.width, phantom.height] * 2)
    for label, box in zip(phantom.labels, phantom.boxes, strict=True):
        corners, colour = (box * size).tolist(), CLASSES[label]["colour"]
        draw.rectangle(corners, outline=colour)
        draw.text((corners[0] + 2, max(corners[1] - 1, 0)), label, fill=colour, font=font)
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


_COLUMNS = 2  # studies side by side
_LINE = 11  # pixels


def _colour_of(position: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(position * 0.618 % 1, 0.85, 1)
    return round(255 * red), round(255 * green), round(255 * blue)


def _with_regions(picture: Image.Image, graph: dict[str, Any]) -> Image.Image:
    picture = picture.convert("RGB")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(9)
    for found in graph["objects"]:
        colour = _colour_of(REGIONS.index(found["bbox_name"]))
        corners = [found[f"original_{edge}"] for edge in ("x1", "y1", "x2", "y2")]
        draw.rectangle(corners, outline=colour)
        draw.text((corners[0] + 2, corners[1]), found["bbox_name"], fill=colour, font=font)
    return picture


def _with_lesions(picture: Image.Image, lesions: list[dict[str, Any]]) -> Image.Image:
    picture = picture.convert("RGB")
    draw = ImageDraw.Draw(picture)
    for lesion in lesions:
        draw.rectangle(lesion["box"], outline="#ffff50", width=2)
        place = lesion["box"][0] + 3, lesion["box"][1] + 2
        draw.text(place, lesion["finding"], fill="#ffff50", font=ImageFont.load_default(12))
    return picture


def _open(source: Path, study: dict[str, Any], image: dict[str, Any]) -> Image.Image:
    folder = source / image_folder(study["subject_id"], study["study_id"])
    path = folder / f"{image['dicom_id']}.jpg"
    return Image.fromarray(read_image(path))


def draw_study(source: Path, study: dict[str, Any], side: int) -> Image.Image:
    """A panel of 3 x 1 squares of `side` pixels."""
    panel = Image.new("RGB", (3 * side, side))
    first, last = study["images"][0], study["images"][-1]
    graph = read_json_object(source / SCENE_GRAPHS / f"{first['dicom_id']}_SceneGraph.json")
    shown = [
        _with_regions(_open(source, study, first), graph),
        _with_lesions(_open(source, study, last), last["lesions"]),
    ]
    for k, picture in enumerate(shown):
        picture.thumbnail((side, side))
        panel.paste(picture, (k * side, 0))
    lesions = "; ".join(
        f"{one['finding']} {one['kind']} ({', '.join(one['regions'])})" for one in first["lesions"]
    )
    report = source / f"{image_folder(study['subject_id'], study['study_id'])}.txt"
    views = "+".join(image["view"] for image in study["images"])
    lines = [f"s{study['study_id']} no. {study['study_order']} {views} {study['kind']}"]
    lines += textwrap.wrap(f"drawn: {lesions or 'nothing'}", side // 6)
    for paragraph in read_text(report).split("\n \n"):
        lines += textwrap.wrap(" ".join(paragraph.split()), side // 6)
    text = "\n".join(lines[: side // _LINE])
    font = ImageFont.load_default(10)
    ImageDraw.Draw(panel).multiline_text(
        (2 * side + 6, 2), text, fill="white", font=font, spacing=1
    )
    return panel


def studies_page(source: Path, first: int, count: int, side: int) -> Image.Image:
    """Panels of `count` studies of a finished build from number `first` on.

    Raises:
        UserError: the folder is no such build, or has fewer studies.
    """
    truth = source / TRUTH
    lines = read_json_lines(truth, "", "--source=BUILD?")
    studies = [study for _, study in itertools.islice(lines, first, first + count)]
    if not studies:
        raise UserError(f"{truth}: has no study number {first}; choose a smaller --first")
    rows = -(-len(studies) // _COLUMNS)
    page = Image.new("RGB", (_COLUMNS * 3 * side, rows * side))
    for k, study in enumerate(studies):
        place = k % _COLUMNS * 3 * side, k // _COLUMNS * side
        page.paste(draw_study(source, study, side), place)
    return page


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="sample_page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="picture file to write, e.g. p.png")
    add("--first", type=int, default=0, help="number of the first picture or study")
    add("--long_side", "--side", type=int, default=400, help="pixels of one picture")
    phantoms = parser.add_argument_group("phantoms").add_argument
    phantoms("--seed", type=int, default=0)
    phantoms("--rows", type=int, default=3)
    phantoms("--columns", type=int, default=4)
    phantoms("--boxes", action="store_true", help="frame and name the findings")
    kind = parser.add_mutually_exclusive_group().add_argument
    kind("--normal", action="store_const", const=True, default=None)
    kind("--abnormal", dest="normal", action="store_const", const=False)
    studies = parser.add_argument_group("studies").add_argument
    studies("--source", type=Path, help="folder of a finished build of phantom_studies")
    studies("--studies", type=int, default=12)
    flags = parser.parse_args(argv)
    side = flags.long_side
    if side < SMALLEST or min(flags.rows, flags.columns, flags.studies) < 1:
        parser.error(
            f"--long_side must be at least {SMALLEST}, --rows, --columns and --studies at least 1"
        )
    if flags.seed < 0 or flags.first < 0:
        parser.error("--seed and --first must not be negative")
    if flags.source:
        page = studies_page(flags.source, flags.first, flags.studies, side)
    else:
        shape = (flags.rows, flags.columns, side, flags.boxes)
        page = sample_page(flags.seed, *shape, first=flags.first, normal=flags.normal)
    try:
        page.save(flags.out)
    except (OSError, ValueError) as error:
        raise UserError(f"--out={flags.out}: cannot write the page: {error}") from None
    print(flags.out)


if __name__ == "__main__":
    cli.run(main)
