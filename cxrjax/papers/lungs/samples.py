"""A page of what was built and of what was set aside, to look at before anything is trained."""

import contextlib
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.errors import UserError
from cxrjax.evaluation.overlays import jpeg_data_uri, overlay
from cxrjax.evaluation.text_tables import template
from cxrjax.files import replace_text
from cxrjax.images.decode import read_image, read_levels
from cxrjax.images.geometry import resize
from cxrjax.papers.lungs.native import LungImage
from cxrjax.records import QARecord, read_records
from cxrjax.records_io.builder import records_files
from cxrjax.records_io.quality import REASONS, QualityLog

PAGE = "samples.html"
_BUILT, _SET_ASIDE = 30, 6
_SIDE = 320
COLOURS = {"right_lung": "#4cc9f0", "left_lung": "#ffd60a"}
# How much of a picture shows where a mask lies on it.
_TINT = 0.65


def write_samples(out: Path, images: Iterable[LungImage], quality: QualityLog, seed: int) -> None:
    """Writes the page.

    Args:
        out: folder of the build, whose records are written.
        images: what was read; of what was set aside its picture and mask are shown where they can
            be read.
        seed: decides which records are shown.
    """
    by_name = {image.name: image for image in images}
    counts = quality.counts()
    reasons = [
        {
            "name": reason,
            "why": REASONS[reason],
            "n": counts[reason],
            "cases": [
                {"item": e.item, "found": e.found, "picture": _masked(by_name.get(e.item))}
                for e in [e for e in quality.entries if e.reason == reason][:_SET_ASIDE]
            ],
        }
        for reason in counts
        if counts[reason]
    ]
    page = template(str(__package__), "samples.html.j2").render(
        built=[_built(out, *pair) for pair in _drawn(out, seed)],
        reasons=reasons,
        warnings=dict(quality.warnings),
        colours=COLOURS,
        name=out.name,
    )
    replace_text(out / PAGE, page)


def _drawn(out: Path, seed: int) -> list[tuple[QARecord, QARecord]]:
    """The questions about the right and the left lung of images drawn at random."""
    asked: dict[str, dict[str, QARecord]] = {}
    for file in records_files(out):
        for record in read_records(file):
            asked.setdefault(record.image_id, {})[record.question_id.rpartition("-")[2]] = record
    able = [(of["right_lung"], of["left_lung"]) for of in asked.values() if {*COLOURS} <= of.keys()]
    return random.Random(f"{seed}/samples").sample(able, min(_BUILT, len(able)))


def _built(out: Path, right: QARecord, left: QARecord) -> dict[str, Any]:
    height, width = right.image_hw or (1, 1)
    boxes = {
        colour: np.array(record.boxes) / [width, height, width, height]
        for colour, record in zip(COLOURS.values(), (right, left), strict=True)
    }
    picture = overlay(read_image(out / right.image_path), boxes)
    return {
        "item": right.image_id,
        "found": f"{right.split}, patient {right.patient_id}, {width} x {height}",
        "picture": jpeg_data_uri(picture, _SIDE),
    }


def _masked(image: LungImage | None) -> str | None:
    """The image with its masks tinted, or what of both can be read."""
    if image is None:
        return None
    pixels = None
    with contextlib.suppress(UserError):
        pixels = read_image(image.image)
    for place, path in enumerate(image.masks.values()):
        try:
            levels = read_levels(path)
        except UserError:
            continue
        mask = levels > 0
        if pixels is None:
            pixels = np.zeros((*mask.shape, 3), np.uint8)
        if mask.shape != pixels.shape[:2]:
            # Shown as large as the image: that it is not is what was found.
            mask = resize(mask.astype(np.uint8), *pixels.shape[:2])[0] > 0
        colour = [int([*COLOURS.values()][place % 2][k : k + 2], 16) for k in (1, 3, 5)]
        tinted = _TINT * pixels + (1 - _TINT) * np.array(colour)
        pixels = np.where(mask[..., None], tinted, pixels).astype(np.uint8)
    return None if pixels is None else jpeg_data_uri(pixels, _SIDE)
