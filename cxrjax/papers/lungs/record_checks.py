"""Checks of lung records by rules of their own: side against box, number against boxes, what is
asked against what is answered, sentences against simple grammar."""

import re
from collections.abc import Iterator

import numpy as np

from cxrjax.codecs import CODECS
from cxrjax.radiology_text.answer_details import place_said
from cxrjax.radiology_text.box_places import place_faults
from cxrjax.radiology_text.sentence_faults import sentence_faults
from cxrjax.records import QARecord

_CODEC = "vindr_px"
# Of the image: what a lung takes up at least, and where its box begins at the latest.
_LEAST_HEIGHT, _LEAST_WIDTH = 0.1, 0.05


def check_record(record: QARecord) -> list[str]:
    """Lists what in a record's words contradicts its boxes or other words of it."""
    faults = [f"question: {fault}" for fault in sentence_faults(record.question)]
    faults += [f"answer: {fault}" for fault in sentence_faults(record.answer_text)]
    if record.question_type == "Where":
        faults += _lung_faults(record)
    else:
        faults += _normal_faults(record)
    return faults


def _lung_faults(record: QARecord) -> Iterator[str]:
    if record.image_hw is None:
        yield "no size of the image"
        return
    height, width = record.image_hw
    text, boxes = record.answer_text, record.boxes
    read = CODECS[_CODEC].decode(text, height, width).boxes * [width, height, width, height]
    if len(read) != len(boxes) or np.abs(read - np.asarray(boxes).reshape(-1, 4)).max() > 1:
        yield "answer: its boxes are not the record's"
    both = bool(re.search(r"\blungs\b", record.question))
    if both != bool(re.search(r"\blungs\b", text)) or len(boxes) != 1 + both:
        yield f"answer: {len(boxes)} boxes to {record.question!r}"
    none = np.zeros((0, 4))
    asked, said = (place_said(one, none) for one in (record.question, text.partition("<")[0]))
    if not both and asked.sides != said.sides:
        yield "answer: another side than the question's"
    yield from place_faults(said, boxes, record.image_hw, "answer")
    for x_min, y_min, x_max, y_max in boxes:
        if not (0 <= x_min < x_max <= width and 0 <= y_min < y_max <= height):
            yield "a box beyond the image"
        if x_max - x_min < _LEAST_WIDTH * width or y_max - y_min < _LEAST_HEIGHT * height:
            yield "a box too small for a lung"
    # As the words have them, "right and left": the patient's right is on the image's left.
    if len(boxes) == 2 and boxes[0][0] + boxes[0][2] >= boxes[1][0] + boxes[1][2]:
        yield "the right lung is not left of the left one"


def _normal_faults(record: QARecord) -> Iterator[str]:
    opened = re.match(r"(Yes|No), ", record.answer_text)
    if opened is None:
        yield "answer: neither yes nor no"
        return
    denied = " not " in record.answer_text
    if denied != (opened[1] == "No"):
        yield "answer: its words are another answer than its first"
    polarity = record.answers[0].polarity
    if polarity is not None and (polarity == "pos") != (opened[1] == "Yes"):
        yield f"answer: {opened[1]}, tagged {polarity}"
