"""The review as pages: the questions beside their images, and who agreed on what."""

import dataclasses
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from markupsafe import Markup
from PIL import Image

from cxrjax.apps import STYLE_SHEET
from cxrjax.apps.results.cases import script_json
from cxrjax.apps.results.tables import sections
from cxrjax.apps.review import sheet
from cxrjax.apps.review.correction import Correctable
from cxrjax.apps.review.options import chosen_options
from cxrjax.apps.review.wording import in_words, writes_boxes
from cxrjax.apps.viewer import viewer_parts
from cxrjax.evaluation.overlays import COLOURS, TRUTH, TUNED, jpeg_data_uri
from cxrjax.evaluation.text_tables import template
from cxrjax.images.decode import image_size, read_grey_or_rgb, read_image
from cxrjax.images.files import ImageError
from cxrjax.paper import closed_classes
from cxrjax.progress import progress_bar
from cxrjax.records import Answer, QARecord, class_in_words
from cxrjax.untrusted.foreign_files import read_text

_SCRIPT = Path(__file__).parent / "review_page.js"
# Longer side of an image within the page: a hundred of them make some 10 MB.
_LONG_SIDE = 1000


@dataclasses.dataclass(frozen=True)
class ReviewPage:
    """A page, its images by number, and limits of corrections by question id."""

    html: str
    pictures: list[Path]
    correctable: dict[str, Correctable]
    without: int


def render_review_page(
    sample: Sequence[QARecord],
    image_root: Path,
    served: bool = False,
    about: Mapping[str, str] = MappingProxyType({}),
    own: Mapping[str, QARecord] = MappingProxyType({}),
) -> ReviewPage:
    """The page of a sample.

    Args:
        sample: the questions, in the order of the sheet.
        image_root: what `image_path` is relative to. An image that is not there or cannot be read
            is replaced by a line that says so.
        served: the page belongs to a review server, which keeps the ratings and reads each image
            when it is shown; else the browser keeps them, and saves a CSV.
        about: question id -> more to say of it.
        own: question id -> the record with the set's own answer, shown beside one to review.
    """
    rows = sheet.sheet_rows(sample)
    files: dict[str, Path] = {}
    for record in sample:
        files.setdefault(record.image_id, image_root / record.image_path)
    numbered = enumerate(progress_bar(files.items(), desc="images", unit="image", disable=served))
    pictures = {
        image_id: _picture(path, f"picture/{number}" if served else "")
        for number, (image_id, path) in numbered
    }
    items = [
        {
            "row": row,
            "picture": pictures[record.image_id],
            "regions": list(dict.fromkeys(name for one in record.answers for name in one.regions)),
            "parts": [in_words(part, record) for part in _parts(record.answers)],
            "about": ", ".join([*_about(record), *filter(None, [about.get(record.question_id)])]),
            "own": sheet.answered(own[record.question_id]) if record.question_id in own else "",
        }
        for record, row in zip(sample, rows, strict=True)
    ]
    # The page keeps ratings under the sheet's own hash: another sample does not find them.
    key = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
    labels = {label for record in sample for one in record.answers for label in one.labels}
    data = {
        "key": key,
        "columns": sheet.COLUMNS,
        "dimensions": list(sheet.DIMENSIONS),
        "levels": len(sheet.LEVELS),
        "rows": rows,
        "served": served,
        "colour": COLOURS[TUNED if own else TRUTH],
        "own_colour": COLOURS[TRUTH],
        "pictures": pictures,
        "classes": sorted(labels.union(*(closed_classes(one.dataset) for one in sample))),
        "items": [
            _item(record, pictures[record.image_id])
            | {"own": own[record.question_id].boxes if record.question_id in own else []}
            for record in sample
        ],
    }
    viewer = viewer_parts()
    html = template(str(__package__), "review.html.j2").render(
        items=items,
        served=served,
        viewer=viewer,
        script=Markup(read_text(_SCRIPT)),
        dimensions=sheet.DIMENSIONS,
        levels=sheet.LEVELS,
        not_applicable=sheet.NOT_APPLICABLE,
        data=Markup(script_json(data)),
    )
    correctable = {
        record.question_id: Correctable(
            counted_in(record, pictures[record.image_id]),
            len(record.boxes),
            closed_classes(record.dataset),
            chosen_options(record),
        )
        for record in sample
    }
    without = sum(not pictures[record.image_id]["uri"] for record in sample)
    return ReviewPage(html, list(files.values()), correctable, without)


def counted_in(record: QARecord, picture: Mapping[str, Any]) -> tuple[int, int] | None:
    """(height, width) that the record's boxes are pixels of; None where there is no image."""
    if not picture["uri"]:
        return None
    return record.image_hw or (picture["height"], picture["width"])


def full_picture(path: Path) -> bytes:
    """A radiograph as a PNG file of full resolution, with the window that models see.

    Raises:
        ImageError, OSError: it cannot be read.
    """
    out = io.BytesIO()
    # Quick rather than small: it is looked at once, on the same machine as a rule.
    Image.fromarray(read_grey_or_rgb(path)).save(out, "PNG", compress_level=1)
    return out.getvalue()


def _item(record: QARecord, picture: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the data with which the page shows one question and takes its correction."""
    size = counted_in(record, picture)
    finding = sheet.finding_of(record)
    main = [one for one in record.answers if one.answer_type == "main"]
    chosen = chosen_options(record)
    return {
        "image": record.image_id,
        "height": size[0] if size else 0,
        "width": size[1] if size else 0,
        "boxes": record.boxes,
        "finding": "" if finding == sheet.OPEN else finding,
        "words": "" if finding == sheet.OPEN else class_in_words(finding),
        "text": chosen.words if chosen else in_words(record.answer_text, record),
        # Of several answers the text is not one.
        "editable": len(main) <= 1 and (bool(chosen.words) if chosen else record.choices is None),
        "options": chosen and [list(one) for one in chosen.options.items()],
        "chosen": chosen and list(chosen.chosen),
        "several": bool(chosen and chosen.several),
        "writes": writes_boxes(record),
        "english": record.lang == "en",
        "counts": record.question_type.lower() == "how_many",
        "polar": record.question_type.lower() in ("is_there", "yes_no"),
        "closed": bool(closed_classes(record.dataset)),
    }


def render_agreement(result: dict[str, Any] | None, text: str, written: Sequence[str]) -> str:
    """The agreement of sheets as a page.

    Args:
        result, text: agreement.json and agreement.md; None and empty of one reader alone.
        written: names of the files that hold the review.
    """
    return template(str(__package__), "review_agreement.html.j2").render(
        style=Markup(read_text(STYLE_SHEET)),
        sections=sections(text, "agreement") if result else [],
        readers=result["readers"] if result else [],
        disagreements=result["disagreements"] if result else [],
        dimensions={name: title.partition(":")[0] for name, title in sheet.DIMENSIONS.items()},
        written=written,
    )


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


def _picture(path: Path, url: str) -> dict[str, Any]:
    """An image's address and size, or why there is none.

    Args:
        url: where a server has it; it is then not decoded here.
    """
    try:
        pixels = None if url else read_image(path)
        height, width = image_size(path) if pixels is None else pixels.shape[:2]
    except (ImageError, OSError):
        found = "cannot be read" if path.is_file() else "is missing"
        return {"uri": "", "url": "", "why": f"{path.name} {found}", "width": 0, "height": 0}
    return {
        "uri": url if pixels is None else jpeg_data_uri(pixels, _LONG_SIDE),
        "url": url,
        "why": "",
        "width": width,
        "height": height,
    }
