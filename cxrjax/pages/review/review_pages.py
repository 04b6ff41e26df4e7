"""The review as pages: the questions beside their pictures, and who agreed on what."""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from cxrjax.border.foreign_files import read_text
from cxrjax.images.decode import read_image
from cxrjax.images.files import ImageError
from cxrjax.pages import STYLE_SHEET
from cxrjax.pages.results.cases import script_json
from cxrjax.pages.results.tables import sections
from cxrjax.pages.review.sheet import COLUMNS, DIMENSIONS, LEVELS, NOT_APPLICABLE, sheet_rows
from cxrjax.progress import progress_bar
from cxrjax.records import Answer, QARecord
from cxrjax.scoring.overlays import COLOURS, TRUTH, jpeg_data_uri
from cxrjax.scoring.text_tables import template

_BOX = re.compile(r"<loc_[\d_]+>")
_SCRIPT = Path(__file__).parent / "review_page.js"
# Longer side of a picture on the page: a hundred of them make some 10 MB.
_LONG_SIDE = 1000


def render_review_page(
    sample: Sequence[QARecord], image_root: Path, served: bool = False
) -> tuple[str, int]:
    """The page, and how many of its questions have no picture.

    Args:
        sample: the questions, in the order of the sheet.
        image_root: what `image_path` is relative to. A picture that is not there or cannot be read
            is replaced by a line that says so.
        served: the page belongs to a review server, which keeps the ratings; else the browser does,
            and saves a CSV.
    """
    rows = sheet_rows(sample)
    pictures: dict[str, dict[str, Any]] = {}
    for record in progress_bar(sample, desc="pictures", unit="image"):
        if record.image_id not in pictures:
            pictures[record.image_id] = _picture(image_root / record.image_path)
    items = [
        {
            "row": row,
            "picture": pictures[record.image_id],
            "regions": list(dict.fromkeys(name for one in record.answers for name in one.regions)),
            "parts": [*_parts(record.answers)],
            "about": ", ".join(_about(record)),
            "boxes": _boxes(record, pictures[record.image_id]),
            "answer": _numbered(row["answer"]),
        }
        for record, row in zip(sample, rows, strict=True)
    ]
    # The page keeps ratings under the sheet's own hash: another sample does not find them.
    key = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
    data = {
        "key": key,
        "columns": COLUMNS,
        "dimensions": list(DIMENSIONS),
        "rows": rows,
        "served": served,
    }
    without = sum(not pictures[record.image_id]["uri"] for record in sample)
    html = template(str(__package__), "review.html.j2").render(
        items=items,
        served=served,
        script=Markup(read_text(_SCRIPT)),
        dimensions=DIMENSIONS,
        levels=LEVELS,
        not_applicable=NOT_APPLICABLE,
        colour=COLOURS[TRUTH],
        data=Markup(script_json(data)),
    )
    return html, without


def render_agreement(result: dict[str, Any], text: str, written: Sequence[str]) -> str:
    """The agreement of two sheets as a page.

    Args:
        result, text: agreement.json and agreement.md.
        written: names of the files that hold the review.
    """
    return template(str(__package__), "review_agreement.html.j2").render(
        style=Markup(read_text(STYLE_SHEET)),
        sections=sections(text, "agreement"),
        readers=result["readers"],
        disagreements=result["disagreements"],
        written=written,
    )


def _boxes(record: QARecord, picture: dict[str, Any]) -> list[dict[str, float]]:
    """The record's boxes on the picture, which may be stored smaller than its original."""
    height, width = record.image_hw or (picture["height"], picture["width"])
    across, down = picture["width"] / (width or 1), picture["height"] / (height or 1)
    return [
        {
            "x": x0 * across,
            "y": y0 * down,
            "width": (x1 - x0) * across,
            "height": (y1 - y0) * down,
        }
        for x0, y0, x1, y1 in record.boxes
    ]


def _numbered(text: str) -> str:
    """An answer with boxes by number, as the picture has them, in the place of their pixels."""
    numbers = itertools.count(1)
    return _BOX.sub(lambda _: f"[box {next(numbers)}]", text)


def _parts(answers: Iterable[Answer], depth: int = 0) -> Iterator[str]:
    """The texts of answers below the main ones, and beside them."""
    for answer in answers:
        if depth or answer.answer_type != "main":
            yield "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}" * (depth - 1) + answer.text
        yield from _parts(answer.sub_answers, depth + 1)


def _about(record: QARecord) -> Iterator[str]:
    """The film and the patient as a reader is told of them, where they are known."""
    yield from (one for one in (record.view, record.sex) if one)
    if record.age is not None:
        yield f"{record.age:g} years"


def _picture(path: Path) -> dict[str, Any]:
    """A picture's address and size, or why there is none."""
    try:
        pixels = read_image(path)
    except (ImageError, OSError):
        found = "cannot be read" if path.is_file() else "is not there"
        return {"uri": "", "why": f"{path.name} {found}", "width": 0, "height": 0}
    height, width = pixels.shape[:2]
    return {
        "uri": jpeg_data_uri(pixels, _LONG_SIDE),
        "why": "",
        "width": width,
        "height": height,
    }
