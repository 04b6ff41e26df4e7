"""The review as pages: the questions beside their pictures, and who agreed on what."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from tqdm import tqdm

from cxrjax.border.foreign_files import read_text
from cxrjax.images.decode import read_image
from cxrjax.images.files import ImageError
from cxrjax.pages import STYLE_SHEET
from cxrjax.pages.results.cases import script_json
from cxrjax.pages.results.tables import sections
from cxrjax.pages.review.sheet import COLUMNS, DIMENSIONS, LEVELS, NOT_APPLICABLE, sheet_rows
from cxrjax.records import QARecord
from cxrjax.scoring.overlays import COLOURS, TRUTH, jpeg_data_uri
from cxrjax.scoring.text_tables import template

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
    for record in tqdm(sample, desc="pictures", unit="image"):
        if record.image_id not in pictures:
            pictures[record.image_id] = _picture(image_root / record.image_path)
    items = [
        {
            "row": row,
            "picture": pictures[record.image_id],
            "boxes": [
                {"x": x0, "y": y0, "width": x1 - x0, "height": y1 - y0}
                for x0, y0, x1, y1 in record.boxes
            ],
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
