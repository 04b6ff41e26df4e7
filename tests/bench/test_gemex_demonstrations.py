"""Thirty images of our own and the records that were checked by eye stay as they are.

`bench.gemex_demonstrations` renders the sheet of images that was inspected. Whatever turns a side,
a box or an answer, in phantoms, simulated lesions, the reader or the wording, fails here; what was
meant to change is inspected again.
"""

import json
import re

import pytest

from bench.gemex_demonstrations import KINDS, NOUNS, RECORDS, line, make
from cxrjax.papers.gemex.record_checks import check_record

GOLDEN = [json.loads(one) for one in RECORDS.read_text(encoding="utf-8").splitlines()]
# A finding's word in a reason -> what was drawn.
DRAWN = {noun: label for label, noun in NOUNS.items()} | {
    "opacity": ("Lung Opacity", "Infiltration"),
    "tortuosity of the aorta": "Aortic enlargement",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make(tmp_path_factory.mktemp("golden"))


def differences(made, golden):
    """Image -> fields that are not as they were checked."""
    found = {}
    for ours, theirs in zip(made, golden, strict=True):
        again = json.loads(line(ours))
        if fields := [name for name in theirs if again.get(name) != theirs[name]]:
            found[theirs["image"]] = fields
    return found


def test_thirty_records_of_all_types_are_as_they_were_checked_and_none_contradicts_itself(made):
    assert len(GOLDEN) == len({one["image"] for one in GOLDEN}) == 30
    assert {one["type"] for one in GOLDEN} == set(KINDS)
    assert differences(made, GOLDEN) == {}
    assert {one["image"]: told for one in made if (told := check_record(one["record"]))} == {}


def test_what_a_reason_says_is_there_was_drawn_there(made):
    """Held against the lesions that were drawn, which no report and no reader has touched."""
    held = 0
    for one in made:
        others = r" (?:It|Each|They) [^.]*\.|(?:No|There is no|The image shows no)[^.]*\."
        own = re.sub(others, " ", one["reason"])
        for noun, labels in DRAWN.items():
            named = [s for s in re.split(r"(?<=\.) ", own) if noun in s.lower() and " no " not in s]
            drawn = [box for label, box in one["lesions"] if label in labels]
            if not named:
                continue
            assert drawn, (one["image"], noun)
            sides = {side for side in ("left", "right") if re.search(rf"\b{side}\b", named[0])}
            middles = [(box[0] + box[2]) / 2 for box in drawn]
            assert sides != {"right"} or min(middles) < 0.5, (one["image"], noun)
            assert sides != {"left"} or max(middles) > 0.5, (one["image"], noun)
            held += bool(sides)
    assert held >= 8


@pytest.mark.parametrize(
    ("field", "turn"),
    [
        ("reason", lambda text: text.replace("right", "left")),
        ("boxes", lambda boxes: [[1 - b[2], b[1], 1 - b[0], b[3]] for b in boxes]),
        ("regions", lambda regions: [one.replace("left", "right") for one in regions]),
        ("key", lambda key: "No." if key == "Yes." else "Yes." if key == "No." else key[::-1]),
    ],
)
def test_what_turns_is_seen(made, field, turn):
    turned = [one | {field: turn(one[field])} for one in GOLDEN]
    changed = {one["image"] for one, was in zip(turned, GOLDEN, strict=True) if one != was}
    assert len(changed) >= 5
    found = differences(made, turned).items()
    assert {image for image, fields in found if field in fields} == changed
