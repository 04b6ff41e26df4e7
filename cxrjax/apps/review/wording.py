"""Boxes in words: what a reader sees in the place of `<loc_709_298_763_341>` and its like."""

import re
from collections.abc import Sequence

import numpy as np

from cxrjax.codecs import BoxGeometry, get_codec
from cxrjax.paper import find_paper
from cxrjax.records import QARecord

# Any notation that no codec of the record has read: tokens of models, boxes cut off.
_LEFT = re.compile(r"(?:<loc\d{1,4}>\s?){1,4}|<loc[_\d]*>?")
_LOCATION_TAG = re.compile(r"\s*<\s{0,3}location\s{0,3}>\s?\[((?:\[box [^\]]{1,9}\](?:,\s)?)*)\]")
_ASIDE = 2.0  # pixels that a text's box, of whole pixels, may lie beside the record's
NO_REASON = frozenset({"", "none", "none.", "n/a", "na", "-", "null"})


def has_reason(record: QARecord) -> bool:
    """Returns whether there is a reason to rate; sources also write "None" for no reason."""
    return (record.reason or "").strip().lower() not in NO_REASON


def writes_boxes(record: QARecord) -> bool:
    """Returns whether the record's answer has its boxes in its text, or would if it had any."""
    if record.boxes:
        return "[box " in in_words(record.answer_text, record)
    main = [one for one in record.answers if one.answer_type == "main"]
    return find_paper(record.dataset).boxes_in_text and len(main) <= 1


def in_words(
    text: str, record: QARecord, codec: str = "", geometry: BoxGeometry | None = None
) -> str:
    """The text with `[box 2]` for the second of the record's boxes, and no notation of any kind.

    A box that is none of the record's is `[another place]`.

    Args:
        codec: the text's box format, where it is not the record's.
        geometry: how the image was placed into the input whose coordinates the text has.
    """
    # Of a size that nobody knows, the order is what is left to tell boxes by.
    height, width = record.image_hw or (1_000_000, 1_000_000)
    spans = get_codec(codec or record.codec).find(text, height, width, geometry)
    scale = np.array([width, height, width, height], np.float64)
    pieces, done = [], 0
    for place, span in enumerate(spans):
        if record.image_hw is None:
            number = place if place < len(record.boxes) else None
        else:
            number = _nearest(span.box * scale, record.boxes, width / 200)
        told = "[another place]" if number is None else f"[box {number + 1}]"
        pieces += [text[done : span.start], told]
        done = span.end
    said = "".join([*pieces, text[done:]])
    said = _LOCATION_TAG.sub(lambda found: f" {found[1]}" if found[1] else "", said)
    return _LEFT.sub("[another place]", said).strip()


def _nearest(box: np.ndarray, boxes: Sequence[Sequence[float]], coarse: float) -> int | None:
    """The index of the record's box that this one of the text is, if any.

    Args:
        coarse: pixels that a convention on a grid of its own may lie beside.
    """
    if not boxes:
        return None
    apart = np.abs(np.array(boxes, np.float64) - box).max(axis=1)
    nearest = int(apart.argmin())
    return nearest if apart[nearest] <= max(_ASIDE, coarse) else None


def boxes_in_words(record: QARecord) -> str:
    """Describes the boxes for readers who fill in the sheet without the page."""
    return "; ".join(
        f"box {number}: x {x0:g} to {x1:g}, y {y0:g} to {y1:g}"
        for number, (x0, y0, x1, y1) in enumerate(record.boxes, start=1)
    )
