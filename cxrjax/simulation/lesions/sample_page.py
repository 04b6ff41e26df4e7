"""Writes a page of simulated lesions to look at, class by class, at several strengths.

    python -m cxrjax.simulation.lesions.sample_page --source=FOLDER --out=page.html

Each row shows one radiograph: as it is, then with one lesion at each strength, and the strongest
with its box. Synthetic lesion, real radiograph.
"""

from pathlib import Path
from typing import Any

import numpy as np

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.errors import UserError
from cxrjax.evaluation.overlays import jpeg_data_uri, overlay
from cxrjax.evaluation.text_tables import template
from cxrjax.files import replace_text, writing
from cxrjax.records_io.quality import QualityLog, Unusable
from cxrjax.simulation.lesions.build import SYNTHETIC, normal_images, read_pair
from cxrjax.simulation.lesions.compose import generator, render_graft
from cxrjax.simulation.phantoms.findings import CLASSES, Presence

_SIDE = 300  # pixels of a picture


def sample_rows(
    source: Path, label: str, strengths: list[float], count: int, seed: int, long_side: int
) -> list[list[dict[str, Any]]]:
    """Pictures of so many radiographs with one lesion of a class; a row each.

    Raises:
        UserError: the folder has no normal radiograph with a usable mask.
    """
    images = list(normal_images(source, QualityLog()))
    rows: list[list[dict[str, Any]]] = []
    for k in generator(seed, label, "normal").permutation(len(images)):
        if len(rows) == count:
            break
        try:
            pixels, mask = read_pair(images[k], long_side)
            row = [_cell(pixels, f"{images[k].image_id}, as it is")]
            for strength in strengths:
                only = [Presence(label, 3, (strength,))]
                graft = render_graft(pixels, mask, seed, images[k].image_id, only)
                ratios = [one.contrast_to_noise for one in graft.lesions]
                told = [f"contrast to noise {ratio:.2f}" for ratio in ratios if ratio is not None]
                row.append(_cell(graft.image, ", ".join([f"strength {strength:g}", *told])))
        except Unusable:
            continue
        boxed = overlay(graft.image, {CLASSES[label]["colour"]: graft.boxes})
        kinds = ", ".join(one.kind for one in graft.lesions if one.kind)
        rows.append([*row, _cell(boxed, kinds or "its box")])
    if not rows:
        raise UserError(f"{source}: no normal radiograph with a usable mask (data/lungs/README.md)")
    return rows


def _cell(image: np.ndarray, told: str) -> dict[str, Any]:
    return {"picture": jpeg_data_uri(image, _SIDE), "told": told}


def main(argv: list[str] | None = None) -> None:
    """Writes the page and prints where it is."""
    parser = command_parser("grafts.sample_page", __doc__)
    add = parser.add_argument
    add("--source", type=Path, required=True, metavar="FOLDER", help="as of build")
    add("--out", type=Path, required=True, metavar="FILE", help="HTML to write")
    add("--classes", nargs="+", choices=CLASSES, default=list(CLASSES), metavar="CLASS")
    add("--strengths", nargs="+", type=float, default=[0.7, 1.0, 1.4])
    add("--rows", type=int, default=4, help="radiographs a class (default 4)")
    add("--long_side", type=int, default=512, help="as of build (default 512)")
    add("--seed", type=int, default=0)
    flags = parser.parse_args(argv)
    if flags.rows < 1 or min(flags.strengths) <= 0:
        parser.error("--rows must be at least 1 and --strengths above 0")
    shape = (flags.strengths, flags.rows, flags.seed, flags.long_side)
    classes = {label: sample_rows(flags.source, label, *shape) for label in flags.classes}
    page = template(str(__package__), "samples.html.j2").render(classes=classes, made=SYNTHETIC)
    with writing(flags.out):
        replace_text(flags.out, page)
    print(flags.out)


if __name__ == "__main__":
    cli.run(main)
