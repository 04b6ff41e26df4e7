"""Records checked by rules of their own: none of a build contradicts itself, planted faults do."""

import re

import numpy as np
import pytest

from cxrjax.papers.gemex.dialogue import assistant_text
from cxrjax.papers.gemex.record_checks import check_record

CHECKED = 1_200


def test_none_of_many_records_contradicts_itself(phantom_records):
    assert len(phantom_records) >= CHECKED
    assert all(record.boxes for record in phantom_records)
    assert len({record.template_id for record in phantom_records}) > 90
    assert not any(map(check_record, phantom_records))


def changed(record, **fields):
    """The record with other words, written into its answer's text as well."""
    copy = record.model_copy(deep=True, update=fields)
    location = copy.answer_text.partition("<location>")[2]
    key = copy.answer_key if isinstance(copy.answer_key, str) else list(copy.answer_key)
    copy.answers[0].text = assistant_text(key, copy.reason, f"<location>{location}")
    return copy


def moved(record, change):
    """The record with another box in its text and in its list."""
    height, width = record.image_hw
    copy = record.model_copy(deep=True)
    boxes = [change(box, width, height) for box in record.boxes]
    copy.answers[0].boxes_by_image = {record.image_id: boxes}
    framed = np.multiply(boxes, 224 / np.array([width, height] * 2)).round().astype(int).tolist()
    copy.answers[0].text = copy.answer_text.partition("<location>")[0] + f"<location>{framed}"
    return copy


def mirrored(box, width, _):
    return [width - box[2], box[1], width - box[0], box[3]]


def upside_down(box, _, height):
    return [box[0], height - box[3], box[2], height - box[1]]


def sided(record):
    return all(region.startswith(("left ", "right ")) for region in record.answers[0].regions)


def levelled(record):
    return all(re.search("(upp|low)er lung", region) for region in record.answers[0].regions)


def one_less(record):
    copy = record.model_copy(deep=True)
    copy.answers[0].boxes_by_image = {record.image_id: record.boxes[:1]}
    return copy


def swapped(text):
    return text.replace("left", "LEFT").replace("right", "left").replace("LEFT", "right")


def placed(record):
    alone = len(record.answers[0].regions) == 1
    return alone and sided(record) and swapped(record.reason) != record.reason


DENIED = "pleural effusion, pneumothorax, opacity, consolidation, cardiomegaly, atelectasis, nodule"
PLANTS = {
    "box on the other side": (sided, lambda r: moved(r, mirrored), "on the other side"),
    "box at another level": (levelled, lambda r: moved(r, upside_down), "at another level"),
    "one box less": (lambda r: len(r.boxes) > 1, one_less, "in the record"),
    "reason's side": (placed, lambda r: changed(r, reason=swapped(r.reason)), "reason: names the"),
    "yes for no": (
        lambda r: r.question_type == "closed_ended",
        lambda r: changed(r, answer_key="No." if r.answer_key == "Yes." else "Yes."),
        "answer",
    ),
    "another letter": (
        lambda r: r.question_type == "single_choice",
        lambda r: changed(r, answer_key="B" if r.answer_key == "A" else "A"),
        "chosen",
    ),
    "a letter less": (
        lambda r: r.question_type == "multi_choice" and len(r.answer_key) > 1,
        lambda r: changed(r, answer_key=r.answer_key[1:]),
        "not chosen",
    ),
    "another degree": (
        lambda r: r.content_type in ("severity", "size") and r.question_type == "open_ended",
        lambda r: changed(r, answer_key="Severe." if r.answer_key != "Severe." else "Mild."),
        "which is the answer",
    ),
    "a finding where all is normal": (
        lambda r: r.answer_key in ("Normal.", "Clear."),
        lambda r: changed(r, reason="There is a pneumothorax. " + r.reason),
        "not that anything is",
    ),
    "a denial beside it": (
        lambda r: "closed_ended/presence" in r.template_id and r.answer_key == "Yes.",
        lambda r: changed(r, reason=f"{r.reason} There is no {DENIED} or mass."),
        "there is none",
    ),
    "a broken verb": (
        lambda r: " is " in r.reason.partition(":")[0] and " that " not in r.reason,
        lambda r: changed(r, reason=r.reason.replace(" is ", " are ", 1)),
        "reason:",
    ),
    "a wrong article": (
        lambda r: " a " in r.question,
        lambda r: changed(r, question=r.question.replace(" a ", " an ")),
        "question: an",
    ),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_faults_are_found(phantom_records, plant):
    fits, spoil, told = PLANTS[plant]
    spoiled = [spoil(record) for record in phantom_records if fits(record)]
    assert len(spoiled) >= 10
    found = [any(told in fault for fault in check_record(one)) for one in spoiled]
    # Some spoiled records stay true: what is denied may not be what is there.
    floor = {"a denial beside it": 0.2, "a broken verb": 0.6, "box at another level": 0.6}
    floor |= {"a letter less": 0.6}  # of a region's statement the reason may not name it
    assert sum(found) >= floor.get(plant, 0.9) * len(spoiled)
