"""Checks of VinDr-CXR-VQA's records by rules of their own: none knows how the words were written.

Side against box, number against boxes, place against box, reason against answer and annotation,
sentences against simple grammar. They serve the check of finished records (`review --check`) and of
a language model's words.
"""

import functools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from cxrjax.papers.vindr_cxr_vqa.annotation import related
from cxrjax.papers.vindr_cxr_vqa.native import pixel_boxes
from cxrjax.radiology_text.answer_details import SaidPlace, count_said, place_said
from cxrjax.radiology_text.box_places import place_faults
from cxrjax.radiology_text.mentions import Mention, MentionReader
from cxrjax.radiology_text.sentence_faults import sentence_faults
from cxrjax.records import QARecord

Box = Sequence[float]

_BOX = re.compile(r"<loc[^>]*>")
_SENTENCE = re.compile(r"(?<=[.?]) (?=[A-Z<])")


def check_record(record: QARecord) -> list[str]:
    """Lists what in a record's words contradicts its boxes, its readers, or other words of it."""
    answer, reason = record.answer_text, record.reason or ""
    asked = record.finding or record.gt_finding or ""
    boxes = record.boxes
    found = [
        *_place_faults(answer, boxes, record.image_hw, asked, "answer"),
        *_number_faults(record, answer),
        *_reason_faults(record, reason, asked),
    ]
    for name, text in (("question", record.question), ("answer", answer), ("reason", reason)):
        careless = name == "question" and _varied(record)
        found += [] if careless else [f"{name}: {fault}" for fault in grammar_faults(text)]
    return found


def _varied(record: QARecord) -> bool:
    return bool(re.search(r"careless|typo", record.template_id or ""))


def _place_faults(
    text: str, boxes: Sequence[Box], hw: tuple[int, int] | None, asked: str, where: str
) -> Iterator[str]:
    """Sides and levels that a text names and no box is at; only of images of a known size."""
    said = _place(_BOX.sub(" ", text), asked)
    yield from place_faults(said, boxes, hw, where)


def _number_faults(record: QARecord, answer: str) -> Iterator[str]:
    if record.question_type != "How_many" or record.negative_kind:
        return
    said = count_said(answer)
    if said != len(record.boxes):
        yield f"answer: says {said}, and shows {len(record.boxes)} boxes"


def _reason_faults(record: QARecord, reason: str, asked: str) -> Iterator[str]:
    readers = record.readers or {}
    for rad_id in readers:
        if re.search(rf"\b{re.escape(rad_id)}\b", reason) and rad_id != "consensus":
            yield f"reason: names the reader {rad_id}"
    if pixel_boxes(reason):
        yield "reason: shows boxes"
    present = {mark.label for marks in readers.values() for mark in marks}
    if not readers:
        return
    for sentence in _SENTENCE.split(reason):
        yield from _sentence_faults(sentence, present, asked)
    # The answer is told by the last sentence.
    end = _SENTENCE.split(reason)[-1]
    no = bool(
        re.search(
            r"\b(?:is (?:a plain )?no|a no|no (?:place|area|region|part|abnormality)|nothing)\b",
            end,
        )
    )
    if no != bool(record.negative_kind):
        yield f"reason: ends with {end!r}, the answer is {'no' if record.negative_kind else 'yes'}"
    if asked and not record.negative_kind:
        first = next((s for s in _SENTENCE.split(reason) if _names(s, asked)), "")
        yield from _place_faults(first, record.boxes, record.image_hw, asked, "reason")
        ours = _place(first.replace("interstitial lung disease", "ILD"), asked)
        theirs = _place(_BOX.sub(" ", record.answers[0].text), asked)
        if theirs.regions and ours != theirs:
            yield f"reason: its place is {ours}, the answer's {theirs}"


def _sentence_faults(sentence: str, present: set[str], asked: str) -> Iterator[str]:
    """A class that a sentence affirms or denies of this film against the annotation."""
    if not re.search(r"\b(?:film|marked|reported|seen|region)\b", sentence):
        return
    # What would be seen is general knowledge.
    told = re.split(r"[:;] it would|, which may|\bwould\b", sentence)[0]
    for mention in _mentions(told):
        if mention.negated and mention.name in present:
            yield f"reason: denies {mention.name}, which is marked: {sentence!r}"
        if mention.negated and (near := present & {*related(mention.name)}):
            yield f"reason: denies {mention.name}, and {min(near)} is marked: {sentence!r}"
        if not mention.negated and mention.name not in present and _claims(told):
            yield f"reason: affirms {mention.name}, which nobody marked: {sentence!r}"


def _claims(sentence: str) -> bool:
    return bool(
        re.search(
            r"\b(?:the|this|frontal) film\b|\bmarked\b|is seen (?:in|at|on)\b", sentence, re.I
        )
    )


def _names(sentence: str, asked: str) -> bool:
    return any(mention.name == asked for mention in _mentions(sentence)) or (
        asked == "Other lesion" and "lesion of another kind" in sentence
    )


def grammar_faults(text: str) -> Iterator[str]:
    """Plain faults of English, and `was` or `were` against what was marked."""
    yield from sentence_faults(text)
    for match in re.finditer(r"(?:^|\. |\bwith )([^.]*?) (was|were) marked", _BOX.sub("X", text)):
        several = " and " in match[1]
        if (
            several == (match[2] == "was")
            and "nodule or mass" not in match[1]
            and "No " not in match[1]
        ):
            yield f"{match[1]} {match[2]} marked"


@functools.cache
def _reader() -> MentionReader:
    return MentionReader()


@functools.lru_cache(maxsize=1 << 13)  # few sentences are of one image alone
def _mentions(sentence: str) -> list[Mention]:
    return _reader().mentions(sentence)


@functools.lru_cache(maxsize=4096)
def _place(text: str, asked: str) -> SaidPlace:
    return place_said(text, np.zeros((0, 4)), asked)
