"""Draws a page of studies out of a built folder, to look at.

    python -m cxrjax.phantoms.studies.sample_page --source=DIR --out=F.png

Each study: its first frontal view with the boxes of its scene graph; the last view, findings framed
where it is frontal, too; the report.
"""

import argparse
import colorsys
import itertools
import json
import textwrap
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from cxrjax import cli
from cxrjax.errors import UserError
from cxrjax.files import read_json_object
from cxrjax.phantoms.regions import REGIONS
from cxrjax.phantoms.studies.build import SCENE_GRAPHS, TRUTH
from cxrjax.phantoms.studies.layouts import image_folder

_COLUMNS = 2  # studies side by side
_LINE = 11  # pixels


def _colour(position: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(position * 0.618 % 1, 0.85, 1)
    return round(255 * red), round(255 * green), round(255 * blue)


def _with_regions(picture: Image.Image, graph: dict[str, Any]) -> Image.Image:
    picture = picture.convert("RGB")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(9)
    for found in graph["objects"]:
        colour = _colour(REGIONS.index(found["bbox_name"]))
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
    try:
        with Image.open(path) as picture:
            return picture.copy()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}; build the folder again") from None


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
    for paragraph in report.read_text(encoding="utf-8").split("\n \n"):
        lines += textwrap.wrap(" ".join(paragraph.split()), side // 6)
    text = "\n".join(lines[: side // _LINE])
    font = ImageFont.load_default(10)
    ImageDraw.Draw(panel).multiline_text(
        (2 * side + 6, 2), text, fill="white", font=font, spacing=1
    )
    return panel


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="sample_page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--source", type=Path, required=True, help="folder of a finished build")
    parser.add_argument("--out", type=Path, required=True, help="picture file to write")
    parser.add_argument("--first", type=int, default=0, help="number of studies to pass over")
    parser.add_argument("--studies", type=int, default=12)
    parser.add_argument("--side", type=int, default=420, help="pixels of one view")
    flags = parser.parse_args(argv)
    if flags.first < 0 or flags.studies < 1 or flags.side < 64:
        parser.error("--first must not be negative, --studies at least 1, --side at least 64")
    truth = flags.source / TRUTH
    try:
        with open(truth, encoding="utf-8") as lines:
            chosen = itertools.islice(lines, flags.first, flags.first + flags.studies)
            studies = [json.loads(line) for line in chosen]
    except OSError as error:
        raise UserError(f"{truth}: cannot be read: {error.strerror}; --source=BUILD?") from None
    if not studies:
        raise UserError(f"{truth}: has no study number {flags.first}; choose a smaller --first")
    rows = -(-len(studies) // _COLUMNS)
    page = Image.new("RGB", (_COLUMNS * 3 * flags.side, rows * flags.side))
    for k, study in enumerate(studies):
        place = k % _COLUMNS * 3 * flags.side, k // _COLUMNS * flags.side
        page.paste(draw_study(flags.source, study, flags.side), place)
    try:
        page.save(flags.out)
    except (OSError, ValueError) as error:
        raise UserError(f"--out={flags.out}: cannot write the page: {error}") from None
    print(flags.out)


if __name__ == "__main__":
    cli.run(main)
