"""Page of images of a build, and of rejected ones, to inspect before anything is trained."""

import contextlib
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import ImageColor

from cxrjax.errors import UserError
from cxrjax.evaluation import sample_page
from cxrjax.images.decode import read_image, read_levels
from cxrjax.images.geometry import resize
from cxrjax.papers.lungs.native import LungImage
from cxrjax.records import QARecord, read_records
from cxrjax.records_io.builder import records_files
from cxrjax.records_io.quality import REASONS, QualityLog

PAGE = "samples.html"
_BUILT, _REJECTED = 30, 6
COLOURS = {"right_lung": "#4cc9f0", "left_lung": "#ffd60a"}
# Share of the image that shows where a mask lies on it.
_TINT = 0.65


def write_samples(out: Path, images: Iterable[LungImage], quality: QualityLog, seed: int) -> None:
    """Writes the page.

    Args:
        out: folder of the build, whose records are written.
        images: what was read; rejected images and masks are shown where they can be read.
        seed: decides which records are shown.
    """
    by_name = {image.name: image for image in images}
    sections = []
    for reason, count in quality.counts().items():
        cases = [entry for entry in quality.entries if entry.reason == reason][:_REJECTED]
        shown = [
            sample_page.SampleImage(one.item, one.found, _masked(by_name.get(one.item)))
            for one in cases
        ]
        if count:
            heading = f"Rejected, {reason}: {count}"
            sections.append(sample_page.SampleSection(heading, [REASONS[reason]], shown))
    built = [_built(out, *pair) for pair in _sampled(out, seed)]
    sections.append(sample_page.SampleSection("Built", (), built))
    notes = [f"{text}: {count}" for text, count in quality.warnings.items()]
    notes.append("Sides are the patient's: the right lung is on the image's left.")
    sample_page.write_sample_page(out / PAGE, f"Lungs: {out.name}", notes, sections)


def _sampled(out: Path, seed: int) -> list[tuple[QARecord, QARecord]]:
    """Returns the questions about the right and the left lung of randomly chosen images."""
    asked: dict[str, dict[str, QARecord]] = {}
    for file in records_files(out):
        for record in read_records(file):
            asked.setdefault(record.image_id, {})[record.question_id.rpartition("-")[2]] = record
    able = [(of["right_lung"], of["left_lung"]) for of in asked.values() if {*COLOURS} <= of.keys()]
    return random.Random(f"{seed}/samples").sample(able, min(_BUILT, len(able)))


def _built(out: Path, right: QARecord, left: QARecord) -> sample_page.SampleImage:
    height, width = right.image_hw or (1, 1)
    boxes = [
        sample_page.SampleBox(
            name.replace("_", " "),
            colour,
            (np.array(record.boxes[0]) / [width, height, width, height]).tolist(),
        )
        for (name, colour), record in zip(COLOURS.items(), (right, left), strict=True)
    ]
    caption = f"{right.split}, patient {right.patient_id}, {width} x {height}"
    pixels = read_image(out / right.image_path)
    return sample_page.SampleImage(right.image_id, caption, pixels, boxes)


def _masked(image: LungImage | None) -> np.ndarray | None:
    """Returns the image with its masks tinted, or what of both can be read."""
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
            # Shown at the size of the image: a different size is what was found.
            mask = resize(mask.astype(np.uint8), *pixels.shape[:2])[0] > 0
        colour = ImageColor.getrgb([*COLOURS.values()][place % 2])
        tinted = _TINT * pixels + (1 - _TINT) * np.array(colour)
        pixels = np.where(mask[..., None], tinted, pixels).astype(np.uint8)
    return pixels
