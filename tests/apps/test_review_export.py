"""What corrections make of records: boxes, words, polarity, missed findings, pairs."""

import json

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps.review.correction import Correctable, CorrectionRefusedError
from cxrjax.apps.review.export import export_reviews
from cxrjax.apps.review.wording import has_reason, in_words
from cxrjax.records import Answer
from tests.apps.page_records import make_record
from tests.apps.rows import ROWS

BOXES = [[10.0, 20.0, 60.0, 90.0], [100.0, 20.0, 160.0, 90.0]]
TEXT = "The effusion is at <loc_10_20_60_90> and <loc_100_20_160_90>."
FINE = {"answer_appropriateness": "acceptable", "spatial_reference": "acceptable"}


def _record(name="a", text=TEXT, boxes=BOXES, **changes):
    answer = {"labels": ["effusion"], "polarity": "pos" if boxes else "neg"}
    given = {"image_hw": (100, 200), "question": "Where is the effusion?"} | changes
    return make_record(name, text, boxes, answer=answer, **given)


def _correction(*boxes, answer=""):
    """JSON of boxes (box, origin, kind, label)."""
    told = [dict(zip(("box", "origin", "kind", "label"), one, strict=True)) for one in boxes]
    return json.dumps({"boxes": told, "answer": answer})


def _kept(box, origin):
    return box, origin, "answer", "effusion"


@pytest.fixture
def export(tmp_path):
    """`export(records, reviews)` of readers by name, in a folder beside the image's."""
    (tmp_path / "in").mkdir()
    Image.fromarray(np.zeros((100, 200), np.uint8)).save(tmp_path / "in" / "i.png")

    def run(records, closed=None, codec="paligemma", **reviews):
        out = tmp_path / "out"
        return export_reviews(records, reviews, tmp_path / "in", out, codec, closed or {})

    return run


def _one(export, record, correction, **more):
    found = export([record], anna={record.question_id: {"correction": correction}}, **more)
    assert not found.left_out, found.left_out
    return found


def test_boxes_are_moved_deleted_and_added_in_record_and_text(export):
    moved = [12, 22, 60, 90]
    text = "The effusion is at [box 1] and [box 2]."
    told = _correction(_kept(moved, 0), _kept(BOXES[1], 1), answer=text)
    found = _one(export, _record(gt_location="<loc_10_20_60_90>"), told)
    (record,) = found.records
    assert record.gt_location is None, "which is of the box that was"
    assert record.boxes == [moved, BOXES[1]]
    assert record.answer_text == "The effusion is at <loc_12_22_60_90> and <loc_100_20_160_90>."
    assert record.image_path == "../in/i.png" and record.generator.name == "review"
    (pair,) = found.pairs
    assert pair["question_id"] == "a" and pair["worse"].startswith("The effusion is at <loc0204>")
    assert pair["better"].startswith("The effusion is at <loc0225><loc0061>")
    added = ([5, 5, 30, 30], None, "answer", "effusion")
    told = _correction(_kept(BOXES[1], 1), added, answer="Two places: [box 2].")
    (record,) = _one(export, _record(), told).records
    # What the words leave out stands behind them: record and text are to agree.
    assert record.answer_text == "Two places: <loc_5_5_30_30>. <loc_100_20_160_90>"
    assert sorted(record.boxes) == [[5, 5, 30, 30], BOXES[1]]


def test_no_box_left_is_a_denial_and_the_other_way_round(export):
    record = _record(answer_key="yes", negative_kind=None)
    told = _correction(answer="There is no effusion.")
    (denied,) = _one(export, record, told).records
    assert denied.boxes == [] and denied.answer_text == "There is no effusion."
    assert denied.answers[0].polarity == "neg" and denied.negative_kind == "absent_class"
    assert denied.answer_key == "no"
    record = _record("b", "No, there is no effusion.", [], negative_kind="absent_class")
    told = _correction((BOXES[0], None, "answer", "effusion"), answer="Yes, effusion at [box 1].")
    (affirmed,) = _one(export, record, told).records
    assert affirmed.answer_text == "Yes, effusion at <loc_10_20_60_90>."
    assert affirmed.answers[0].polarity == "pos" and affirmed.negative_kind is None
    # Of an answer that named nothing, as denials of some data sets.
    unnamed = Answer(text="No.", polarity="neg")
    record = _record("c", answers=[unnamed], gt_finding="effusion")
    (named,) = _one(export, record, told).records
    assert named.answers[0].labels == ["effusion"]


def test_words_alone_are_corrected_and_take_a_picture(export):
    kept = [_kept(box, place) for place, box in enumerate(BOXES)]
    told = _correction(*kept, answer="Effusions: [box 2] and [box 1].")
    (record,) = _one(export, _record(), told).records
    assert record.answer_text == "Effusions: <loc_100_20_160_90> and <loc_10_20_60_90>."
    assert sorted(record.boxes) == BOXES and record.answers[0].polarity == "pos"
    with pytest.raises(CorrectionRefusedError, match="without an image"):
        Correctable(None, 2).read('{"boxes": []}')


def test_missed_findings_are_questions_of_their_own(export):
    missed = ([5, 5, 30, 30], None, "missed", "Lung_nodule")
    other = ([50, 5, 80, 30], None, "missed", "Lung_nodule")
    kept = [_kept(box, place) for place, box in enumerate(BOXES)]
    text = "The effusion is at [box 1] and [box 2]."
    reviews = {
        "a": {"correction": _correction(*kept, missed, answer=text)},
        "b": {"correction": _correction(other, answer="No.")},
        "c": FINE,
    }
    denial = _record("c", "No.", [], gt_finding="Lung_nodule")
    found = export([_record(), _record("b", "No.", []), denial], anna=reviews)
    assert (found.corrected, found.missed, found.pairs) == (0, 1, [])
    assert found.left_out == {"denies a finding that a reader saw": ["c"]}
    record = found.records[-1]
    assert record.question == "Where is the lung nodule?" and record.finding == "Lung_nodule"
    assert record.boxes == [missed[0], other[0]]
    assert record.answer_text == ("The lung nodules are at <loc_5_5_30_30> and <loc_50_5_80_30>.")
    assert [one.question_id for one in found.records] == ["a", "b", "i-lung_nodule-missed"]


def test_what_cannot_be_taken_over_is_counted_by_reason(export):
    wrong = FINE | {"spatial_reference": "major"}
    named = _correction(_kept(BOXES[0], 0), answer="At [box 7].")
    first, second = (_correction(_kept(box, 0), answer="At [box 1].") for box in BOXES)
    found = export(
        [_record(name) for name in "abcdef"] + [_record("g", image_path="none.png", image_hw=None)],
        anna={"a": FINE, "b": wrong, "c": {"correction": named}, "d": {"correction": first}},
        bao={"d": {"correction": second}, "e": {"spatial_reference": "minor"}},
    )
    assert [record.question_id for record in found.records] == ["a", "e", "f", "g"]
    assert (found.confirmed, found.unchanged) == (1, 4), "what nobody rated is as it was"
    assert dict(found.left_out) == {
        "rated major and not corrected": ["b"],
        "its words name a box that is missing: correct the words": ["c"],
        "corrected by several readers, and differently: choose one by --reader": ["d"],
    }


def test_boxes_of_gemex_are_one_list_behind_the_words(export):
    text = "There is fluid. <location>[[12, 45, 67, 202]]"
    record = _record(text=text, boxes=[[10.7, 20.1, 59.8, 90.2]], dataset="gemex")
    assert in_words(text, record) == "There is fluid. [box 1]"
    told = _correction(
        _kept([20, 20, 60, 90], 0),
        ([100, 20, 160, 90], None, "answer", "effusion"),
        answer="There is fluid. [box 1] and [box 2]",
    )
    (corrected,) = _one(export, record, told).records
    boxes = "[[22, 45, 67, 202], [112, 45, 179, 202]]"
    assert corrected.answer_text == f"There is fluid. <location>{boxes}"


MANY = json.dumps({"boxes": [{"box": [1, 2, 3, 4]}] * 101})


@pytest.mark.parametrize(("text", "says"), [*ROWS["refused_corrections"], (MANY, "boxes")])
def test_a_correction_that_cannot_be_is_refused(text, says):
    with pytest.raises(CorrectionRefusedError, match=says):
        Correctable((100, 200), 2, ("nodule",)).read(text)


@pytest.mark.parametrize(("text", "said"), ROWS["notation_in_words"])
def test_no_notation_is_left(text, said):
    assert in_words(text, _record()) == said
    assert "<loc" not in in_words(text, _record(image_hw=None))


@pytest.mark.parametrize("reason", [None, "", "None", " none. ", "N/A"])
def test_a_reason_that_is_none_is_not_one(reason):
    assert not has_reason(_record(reason=reason)) and has_reason(_record(reason="Blunted angle."))
