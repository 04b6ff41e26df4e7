"""Measures what each convention's rounding costs: the IoU that a perfect answer can reach.

    python -m bench.codec_ceiling --references=DIR/records/train.jsonl

Every distinct box of the answers is written and read back by each codec, for a model that sees the
image resized to its input. Printed for all boxes and by their size (the root of the share of the
image that a box covers): mean IoU with itself, the 5th percentile, and the share below 0.5.
"""

import argparse
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from cxrjax.boxes import area, iou
from cxrjax.cli import run
from cxrjax.codecs import CODECS, get_codec
from cxrjax.errors import UserError
from cxrjax.progress import progress_bar
from cxrjax.records import QARecord, read_records

# Limits of the root of a box's share of the image; 0.05 is a box of 150 pixels at 3,000.
SIDES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)


@dataclass(frozen=True)
class SizedImageBoxes:
    """An image's size in pixels, and its boxes, float64 [n, 4] xyxy fractions of it."""

    height: int
    width: int
    boxes: Float[np.ndarray, "n 4"]


@dataclass(frozen=True)
class Ceiling:
    """IoUs of boxes with what is read back of them; null where there is no box.

    Attributes:
        percentile_5: 5 % of the boxes have less.
        below_half: share below 0.5.
    """

    boxes: int
    mean: float | None
    percentile_5: float | None
    below_half: float | None


def codec_iou_ceiling(
    codec: str, boxes: Float[np.ndarray, "n 4"], height: int, width: int
) -> Float[np.ndarray, " n"]:
    """Returns the IoU of each box (fractions of the original) with itself, written and read."""
    convention = get_codec(codec)
    text = convention.encode(boxes, height, width)
    return iou(boxes, convention.decode(text, height, width, strict=True).boxes)


def distinct_boxes(
    records: Iterable[QARecord], size: tuple[int, int] | None = None
) -> tuple[list[SizedImageBoxes], int]:
    """Each image's boxes, and how many were left out because they do not fit the size given.

    Args:
        size: (height, width) to take where a record has none.

    Raises:
        UserError: a record has no size and none was given, or has a box that is not inside.
    """
    seen: dict[str, tuple[tuple[int, int], bool, dict[tuple[float, ...], None]]] = {}
    for record in progress_bar(records, desc="boxes", unit="question"):
        hw = record.image_hw or size
        if hw is None:
            raise UserError(
                f"question {record.question_id}: image_hw is null; join the sizes "
                "(build --dataset=records --sizes=FILE), or give --size=HEIGHTxWIDTH for all such"
            )
        known = record.image_hw is not None
        boxes = seen.setdefault(record.image_id, (hw, known, {}))[2]
        boxes.update(dict.fromkeys(map(tuple, record.boxes)))
    images, outside = [], 0
    for image_id, ((height, width), known, pixels) in seen.items():
        found = list(pixels)
        fractions = np.array(found, np.float64).reshape(-1, 4) / [width, height, width, height]
        inside = ((fractions >= 0) & (fractions <= 1)).all(axis=1)
        if known and not inside.all():
            worst = found[int(np.argmin(inside))]
            raise UserError(
                f"image {image_id}: box {worst} is not inside {width} x {height} pixels"
            )
        outside += int((~inside).sum())
        if inside.any():
            images.append(SizedImageBoxes(height, width, fractions[inside]))
    return images, outside


def ceilings(images: Sequence[SizedImageBoxes]) -> dict[str, dict[str, Ceiling]]:
    """{codec: {"all" or a range of box sizes: what it allows}}."""
    if not images:
        raise UserError("no boxes: there is nothing to round; expected records with answers")
    sides = np.sqrt(np.concatenate([area(image.boxes) for image in images]))
    groups = {"all": np.ones(len(sides), bool)}
    for low, high in itertools.pairwise(SIDES):
        name = f"{low:g} to {high:g}"
        groups[name] = (sides >= low) & ((sides < high) | (high == SIDES[-1]))
    table = {}
    for codec in CODECS:
        ious = np.concatenate(
            [
                codec_iou_ceiling(codec, image.boxes, image.height, image.width)
                for image in progress_bar(images, desc=codec, unit="image")
            ]
        )
        table[codec] = {name: _ceiling(ious[chosen]) for name, chosen in groups.items()}
    return table


def _ceiling(ious: Float[np.ndarray, " n"]) -> Ceiling:
    if not len(ious):
        return Ceiling(0, None, None, None)
    return Ceiling(
        len(ious),
        float(ious.mean()),
        float(np.percentile(ious, 5)),
        float((ious < 0.5).mean()),
    )


def markdown(table: Mapping[str, Mapping[str, Ceiling]]) -> str:
    """A table of mean / 5th percentile / share below 0.5, a row for each codec."""
    groups = list(next(iter(table.values())))
    counts = [f"{name} ({row.boxes:,})" for name, row in next(iter(table.values())).items()]
    lines = [["codec", *counts], ["---"] * (len(groups) + 1)]
    lines += [
        [f"`{codec}`", *(_cell(row[name]) for name in groups)] for codec, row in table.items()
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _cell(ceiling: Ceiling) -> str:
    if ceiling.mean is None:
        return "none"
    return f"{ceiling.mean:.3f} / {ceiling.percentile_5:.3f} / {ceiling.below_half:.2%}"


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.codec_ceiling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--references", required=True, type=Path, metavar="FILE", help="records with answers")
    add(
        "--size",
        metavar="HxW",
        help="height and width in pixels to assume of images whose records have none; boxes that "
        "do not fit are left out and counted",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table."""
    flags = parse_arguments(argv)
    size = None
    if flags.size is not None:
        match = re.fullmatch(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", flags.size)
        if match is None:
            raise UserError(f"--size={flags.size}: expected HEIGHTxWIDTH in pixels, as 3072x2540")
        size = int(match[1]), int(match[2])
    images, outside = distinct_boxes(read_records(flags.references), size)
    print(markdown(ceilings(images)))
    print(
        "\nmean IoU / 5th percentile / share below 0.5, by the root of a box's share of the image"
    )
    if outside:
        print(f"{outside:,} boxes do not fit {flags.size} and were left out")


if __name__ == "__main__":
    run(main)
