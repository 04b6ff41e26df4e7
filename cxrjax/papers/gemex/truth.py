"""The questions of a GEMeX references file and what is true, ready to be scored."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cxrjax.codecs import CODECS
from cxrjax.codecs.prose import SIDE
from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import References, cluster_of
from cxrjax.evaluation.figures import image_attributes
from cxrjax.papers.gemex.dialogue import QUESTION_TYPES, human_text, parse_answer
from cxrjax.papers.gemex.native import EXTRA_FIELDS, REPORT_FIELD
from cxrjax.papers.sources.regions import load_regions
from cxrjax.records import QARecord

# Of a box's edge beyond its image, as a fraction: rounding of pixels.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class GemexQuestion:
    """One question and its reference."""

    question_id: str
    kind: str  # a key of `QUESTION_TYPES`
    words: str  # the question without its options; `asked` has them too
    asked: str
    choices: tuple[str, ...] | None
    # letters, or "Yes" or "No", of closed and choice questions; None where the reference's cannot
    # be read or offers no choices, and of open questions.
    key: frozenset[str] | None
    written: str  # the whole answer, as it stands in the records
    text: str  # answer and reason, without tags and boxes
    boxes: Float[np.ndarray, "n 4"]  # float64 [n, 4], xyxy fractions of the image
    image_hw: tuple[int, int] | None  # None where it is unknown: GEMeX's own boxes need none
    cluster: tuple[str, str]  # what is resampled together
    regions: tuple[str, ...]  # names among GEMeX's 30, where the reference names them
    # What figures are broken down by besides; None where the record does not say.
    attributes: Mapping[str, str | None]
    report: str  # the radiologist's, where the references keep it; "" otherwise


GemexReferences = References[GemexQuestion]


def read_question(record: QARecord, source: str) -> GemexQuestion:
    """One record, its boxes in `boxes_by_image`, or in its text as GEMeX writes them.

    Raises:
        UserError: another type of question, no answer, or a box outside its image.
    """
    if record.question_type not in QUESTION_TYPES:
        raise _error(
            source,
            record,
            f"is of type {record.question_type!r}: expected one of {', '.join(QUESTION_TYPES)}",
        )
    if not record.answers:
        raise _error(source, record, "has no answer: score needs the records, not the questions")
    parsed = parse_answer(record.answer_text, record.question_type, record.choices)
    regions = load_regions()
    named = [regions.name(region) for answer in record.answers for region in answer.regions]
    extra = record.quality.get(EXTRA_FIELDS, {})
    return GemexQuestion(
        question_id=record.question_id,
        kind=record.question_type,
        words=record.question,
        asked=human_text(record.question, record.choices),
        choices=tuple(record.choices) if record.choices else None,
        key=_key(record, parsed.key),
        written=record.answer_text,
        text=" ".join(filter(None, (parsed.answer, record.reason or parsed.reason))),
        boxes=_boxes(record, source),
        image_hw=record.image_hw,
        cluster=cluster_of(record),
        regions=tuple(dict.fromkeys(name for name in named if name)),
        attributes={"content_type": record.content_type, **image_attributes(record)},
        report=str(extra.get(REPORT_FIELD, "")) if isinstance(extra, dict) else "",
    )


def _key(record: QARecord, written: str | list[str] | None) -> frozenset[str] | None:
    offers = record.question_type in ("single_choice", "multi_choice")
    if record.question_type == "open_ended" or (offers and not record.choices):
        return None
    key = record.answer_key if record.answer_key is not None else written
    if not key:
        return None
    text = key if isinstance(key, str) else str(key)
    read = parse_answer(text, record.question_type, record.choices).key
    if not read or (isinstance(key, list) and set(read) != set(key)):
        return None
    return frozenset([read] if isinstance(read, str) else read)


def _boxes(record: QARecord, source: str) -> Float[np.ndarray, "n 4"]:
    if record.boxes and record.image_hw:
        height, width = record.image_hw
        boxes = np.array(record.boxes, np.float64) / [width, height, width, height]
    else:
        # On GEMeX's frame of 224 pixels, which is the image stretched: fractions need no size.
        found = CODECS["gemex"].find(record.answer_text, SIDE, SIDE)
        boxes = np.array([span.box for span in found], np.float64).reshape(-1, 4)
        if record.boxes and not len(boxes):
            raise _error(source, record, "has boxes in pixels and image_hw null: join its size")
    # Written so that NaN fails.
    inside = (boxes >= -_ROUNDING) & (boxes <= 1 + _ROUNDING)
    if not (inside.all() and (boxes[:, :2] < boxes[:, 2:]).all()):
        raise _error(
            source,
            record,
            "has a box that leaves its image or has no extent: expected x0 < x1 and y0 < y1, "
            "pixels of the original image",
        )
    return boxes


def _error(source: str, record: QARecord, what: str) -> UserError:
    return UserError(f"{source}: question {record.question_id!r} {what}")
