"""Chosen options: corrected by keyboard on the page, and what the export makes of them."""

import json

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps.review.correction import Correctable, CorrectionRefusedError
from cxrjax.apps.review.export import export_reviews
from cxrjax.apps.review.options import chosen_options
from cxrjax.commands import review
from cxrjax.papers.gemex.dialogue import parse_answer
from cxrjax.records import read_records, write_records
from tests.apps.page_records import make_record
from tests.apps.rows import ROWS

CHOICES = ["A: Air", "B: Pleural fluid", "C: Scar"]
BOX = [30.0, 40.0, 90.0, 120.0]
REASON = "It blunts the angle."


def _record(name, text, key, kind="single_choice", boxes=(BOX,), **changes):
    given = {"dataset": "gemex", "question": "What is seen?", "question_type": kind}
    given |= {"choices": CHOICES, "answer_key": key, "image_hw": (224, 224), "reason": REASON}
    return make_record(name, text, boxes, **given | changes)


AT = "<location>[[30, 40, 90, 120]]"
SINGLE = _record("single", f"<answer> B <reason> {REASON} {AT}", "B", age=70)
SEVERAL_TEXT = f"<answer> ['A', 'C'] <reason> {REASON} <location>[]"
SEVERAL = _record("several", SEVERAL_TEXT, ["A", "C"], "multi_choice", [])


def _exported(tmp_path, record, **correction):
    Image.fromarray(np.zeros((224, 224), np.uint8)).save(tmp_path / "i.png")
    boxes = [{"box": box, "origin": place} for place, box in enumerate(record.boxes)]
    told = json.dumps({"boxes": boxes, **correction})
    reviews = {"anna": {record.question_id: {"correction": told}}}
    return export_reviews([record], reviews, tmp_path, tmp_path / "out", "gemex", {})


@pytest.mark.parametrize(
    ("record", "choice", "text", "key"),
    [
        (SINGLE, ["C"], f"<answer> C <reason> {REASON} {AT}", "C"),
        (SEVERAL, ["B"], f"<answer> ['B'] <reason> {REASON} <location>[]", ["B"]),
        (SEVERAL, ["A", "B"], f"<answer> ['A', 'B'] <reason> {REASON} <location>[]", ["A", "B"]),
    ],
)
def test_a_corrected_option_is_in_text_key_and_preference(tmp_path, record, choice, text, key):
    found = _exported(tmp_path, record, choice=choice)
    (after,), (pair,) = found.records, found.pairs
    assert (after.answer_text, after.answer_key) == (text, key)
    assert after.boxes == record.boxes
    parsed = parse_answer(after.answer_text, after.question_type, after.choices)
    assert parsed.key == key and parsed.reason == REASON and not parsed.failures
    assert (pair["better"], pair["worse"]) == (text, record.answer_text)


def test_the_reason_is_corrected_beside_the_option_if_there_is_one(tmp_path):
    found = _exported(tmp_path, SINGLE, choice=["A"], answer="It is black. [box 1]")
    assert found.records[0].answer_text == f"<answer> A <reason> It is black. {AT}"
    found = _exported(tmp_path, SEVERAL, choice=["A", "C"])
    assert found.records[0].answer_text == SEVERAL.answer_text
    assert (found.corrected, found.pairs) == (0, [])
    for text, key in (("Because of B.", "B"), ("Bright.", "B"), ("B", "D"), ("B", None)):
        assert chosen_options(_record("x", text, key, dataset="custom", boxes=[])) is None


@pytest.mark.parametrize(("text", "key", "new", "expected"), ROWS["named_options"])
def test_options_are_named_as_the_record_names_them(text, key, new, expected):
    chosen = chosen_options(_record("x", text, key, dataset="custom", boxes=[]))
    assert chosen.text(new, chosen.words) == expected
    assert chosen.text(chosen.chosen, chosen.words) == text


@pytest.mark.parametrize(
    ("record", "choice", "says"),
    [
        (SINGLE, ["A", "B"], "expected one option"),
        (SINGLE, ["D"], "expected one of A, B, C"),
        (SEVERAL, [], "expected some of A, B, C"),
        (SEVERAL, ["A", "A"], "expected some of"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(record, choice, says):
    correctable = Correctable((224, 224), 1, (), chosen_options(record))
    told = json.dumps({"boxes": [], "choice": choice})
    with pytest.raises(CorrectionRefusedError, match=says):
        correctable.read(told)
    with pytest.raises(CorrectionRefusedError, match="none to choose"):
        Correctable((224, 224), 1).read(told)


@pytest.mark.slow
def test_options_are_corrected_by_keyboard(browser, tmp_path):
    ramp = np.tile(np.arange(224, dtype=np.uint8), (224, 1))
    Image.fromarray(ramp).save(tmp_path / "i.png")
    write_records(tmp_path / "records.jsonl", [SINGLE, SEVERAL])
    flags = [f"--records={tmp_path / 'records.jsonl'}", "--sample=2", f"--out={tmp_path / 'out'}"]
    flags += [f"--image_root={tmp_path}"]
    review.main(flags)
    tab = browser.new_page()
    tab.goto((tmp_path / "out" / "index.html").as_uri())
    tab.fill("#reader", "anna")
    tab.keyboard.press("Enter")
    tab.keyboard.press("Escape")
    first = tab.evaluate("data.rows[0].question_id")
    keys = {"single": ["a", "c", "Escape"], "several": ["a", "b", "c", "Escape"]}
    for name in (first, "several" if first == "single" else "single"):
        assert tab.evaluate("data.rows[current].question_id") == name
        for key in keys[name]:
            tab.keyboard.press(key)
        assert "corrected" in tab.inner_text("#corrected")
        assert tab.input_value("#answer").startswith(REASON)  # and no tag of the data set
        tab.keyboard.press("n")
    tab.reload()
    with tab.expect_download() as download:
        tab.click("#save")
    download.value.save_as(tmp_path / "out" / "anna.csv")
    review.main([*flags, f"--export={tmp_path / 'next'}"])
    after = {one.question_id: one for one in read_records(tmp_path / "next" / "records.jsonl")}
    assert after["single"].answer_key == "C" and after["several"].answer_key == ["A", "B"]
    assert after["several"].answer_text.startswith("<answer> ['A', 'B'] <reason>")
    # What was chosen at first is no correction.
    tab.evaluate("toQuestion(data.rows.findIndex((row) => row.question_id === 'single'))")
    for key in ("a", "b"):
        tab.keyboard.press(key)
    assert tab.inner_text("#corrected") == ""
