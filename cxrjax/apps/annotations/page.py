"""The page of an import: how it was read, what is doubtful, and 20 images, the doubtful first."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cxrjax.apps.annotations.annotation import Annotations
from cxrjax.apps.annotations.questions import BoxedImage
from cxrjax.apps.results.pictures import empty_folder, write_full
from cxrjax.apps.viewer import viewer_parts
from cxrjax.evaluation.overlays import COLOURS, TRUTH, jpeg_data_uri
from cxrjax.evaluation.text_tables import template
from cxrjax.files import replace_text
from cxrjax.images.decode import read_image
from cxrjax.paths import relative
from cxrjax.records_io.quality import REASONS

PICTURES = 20
_SIDE = 480
_OF_BROWSERS = {".png", ".jpg", ".jpeg"}
_FIRST = 5  # entries that were rejected for one reason
_FILES = 20


def write_page(
    path: Path,
    looked: Sequence[BoxedImage],
    found: Annotations,
    doubts: Sequence[str],
    questions: Mapping[str, int],
    seed: int,
) -> None:
    """Writes the page.

    Args:
        found: the annotations, how they were read, and what was rejected.
        questions: split -> how many there will be.
        seed: decides which pictures are shown of those that are not doubtful.
    """
    quality = found.quality
    counts = {reason: count for reason, count in quality.counts().items() if count}
    classes: dict[str, list[int]] = {}
    for one in looked:
        for label, boxes in one.boxes.items():
            images, total = classes.get(label, (0, 0))
            classes[label] = [images + 1, total + len(boxes)]
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = empty_folder(path.parent, wanted=True)
    html = template(str(__package__), "page.html.j2").render(
        told=found.told,
        doubts=doubts,
        images=len(looked),
        empty=sum(not one.boxes for one in looked),
        classes=sorted(classes.items(), key=lambda item: -item[1][0]),
        questions=questions,
        files=_files(found.account()),
        warnings=dict(quality.warnings),
        reasons=[
            {
                "name": reason,
                "why": REASONS[reason],
                "count": count,
                "first": [e for e in quality.entries if e.reason == reason][:_FIRST],
            }
            for reason, count in counts.items()
        ],
        pictures=[_picture(one, folder, n) for n, one in enumerate(chosen(looked, seed))],
        colour=COLOURS[TRUTH],
        viewer=viewer_parts(),
    )
    replace_text(path, html)


def _files(account: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, int, int, str]]:
    """Rows of the table of files: those with most rejected entries, and the sum of the others."""
    rows = sorted(account.items(), key=lambda item: -sum(item[1]["rejected"].values()))
    table: list[tuple[str, int, int, str]] = []
    for file, of in rows[:_FILES]:
        why = ", ".join(f"{count:,} {reason}" for reason, count in of["rejected"].items())
        table.append((file, of["entries"], of["kept"], why))
    if rest := [of for _, of in rows[_FILES:]]:
        entries, kept = (sum(of[name] for of in rest) for name in ("entries", "kept"))
        table.append((f"{len(rest):,} other files", entries, kept, f"{entries - kept:,}"))
    return table


def chosen(looked: Sequence[BoxedImage], seed: int) -> list[BoxedImage]:
    """The pictures to show: doubtful ones, then each class at least once, then others by lot."""
    draw = random.Random(f"{seed}/look")
    rest = [one for one in looked if not one.odd and one.boxes]
    draw.shuffle(rest)
    odd = [one for one in looked if one.odd]
    draw.shuffle(odd)
    picked = odd[: PICTURES - 4] if rest else odd[:PICTURES]
    shown = {label for one in picked for label in one.boxes}
    for one in rest:
        if len(picked) < PICTURES and not {*one.boxes} <= shown:
            picked.append(one)
            shown |= {*one.boxes}
    empty = [one for one in looked if not one.boxes and not one.odd]
    others = [one for one in [*empty[:2], *rest] if one not in picked]
    return [*picked, *others][:PICTURES]


def _picture(one: BoxedImage, folder: Path, number: int) -> dict[str, Any]:
    height, width = one.image_hw
    boxes = [{"label": label, "box": box} for label, of in one.boxes.items() for box in of]
    return {
        "id": one.image_id,
        "patient": one.patient,
        "where": one.where,
        "odd": one.odd,
        "boxes": boxes,
        "picture": jpeg_data_uri(read_image(one.file, (_SIDE, _SIDE)), _SIDE),
        "viewed": {
            "url": _whole(one.file, folder, number),
            "width": width,
            "height": height,
            "name": one.image_id,
        },
        "layers": [
            {"name": TRUTH, "title": "boxes", "colour": COLOURS[TRUTH], "boxes": boxes},
        ],
    }


def _whole(file: Path, folder: Path, number: int) -> str | None:
    """The address of all pixels: the source's file, or a copy that browsers read."""
    if file.suffix.lower() in _OF_BROWSERS:
        return quote(relative(file.resolve(), folder.parent.resolve()))
    return write_full(read_image(file), _SIDE, folder, number)
