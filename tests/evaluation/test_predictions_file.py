"""Predictions of others: what is refused with its line, and what is kept and counted."""

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.evaluation import predictions
from cxrjax.evaluation.predictions import read_predictions
from tests.evaluation import made

CASES = made.cases_of(__file__)

GOOD = {"question_id": "q1", "text": "Yes.", "boxes": [[0.1, 0.2, 0.3, 0.4]], "parse": "ok"}


def _file(tmp_path, *lines):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def _parsed(**fields):
    return predictions.parse_prediction({"question_id": "q1"} | fields, "p:1")


def _read(codec=None, height=100, width=200, **fields):
    codec = CODECS[codec] if codec else None
    return predictions.read_boxes(_parsed(**fields), codec, height, width, "p")


def test_forms_of_other_models_are_read_without_their_thinking(subtests):
    """Boxes of the answer, and none of the thinking before it."""
    table = tomllib.loads(Path(__file__).with_name("answer_forms.toml").read_text())
    for codec, text, names in table["forms"]:
        with subtests.test(text=text):
            found = _read(codec, 1000, 1000, text=text).boxes
            expected = np.reshape([table[name] for name in names], (-1, 4))
            np.testing.assert_allclose(found, expected, atol=6e-3)
    for text, answer in made.cases_of(__file__)["bare_thought"]:
        with subtests.test(text=text):
            (line,) = made.predictions_of([{"question_id": "q", "text": text}])
            assert line.text == answer
            assert line.problems == ((("bare_thought", "text"),) if answer != text else ())


def test_reads_a_line_and_ignores_what_it_does_not_need(tmp_path):
    line = {**GOOD, "labels": ["ILD"], "box_scores": [0.5], "answer_logprob": -1, "mine": {}}
    (prediction,) = read_predictions(_file(tmp_path, json.dumps(line), ""))
    assert prediction.question_id == "q1"
    assert prediction.labels == ("ILD",)
    assert prediction.box_scores.tolist() == [0.5]
    assert prediction.answer_logprob == -1
    assert prediction.decision_probability == pytest.approx(1 / math.e)
    np.testing.assert_array_equal(prediction.boxes, [[0.1, 0.2, 0.3, 0.4]])


HUGE = [
    ["[" * 100_000, "not JSON"],
    [json.dumps(GOOD | {"boxes": [[0, 0, 1, 1]] * 1001}), "1,001 boxes"],
    [json.dumps(GOOD | {"text": "a" * 1_000_001}), "a line of more than 1,000,000 bytes"],
]


@pytest.mark.parametrize(("line", "says"), CASES["refused"] + HUGE)
def test_refuses_what_is_no_prediction_with_its_line(tmp_path, line, says):
    path = _file(tmp_path, json.dumps({**GOOD, "question_id": "q0"}), line)
    with pytest.raises(UserError, match=f"p.jsonl:2: .*{says}".replace("{}", r"\{\}")) as caught:
        read_predictions(path)
    assert len(str(caught.value)) < 400


def test_a_long_line_a_repeated_id_and_an_empty_file_are_refused(tmp_path):
    path = _file(tmp_path, json.dumps(GOOD), "", json.dumps(GOOD))
    with pytest.raises(UserError, match=r"p\.jsonl:3: question_id 'q1' was predicted on line 1"):
        read_predictions(path)
    with pytest.raises(UserError, match=r"none\.jsonl: cannot read predictions"):
        read_predictions(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="holds no predictions"):
        read_predictions(_file(tmp_path, "", ""))
    path = tmp_path / "huge.jsonl"
    with open(path, "wb") as out:
        out.write(b'{"question_id": "q1", "text": "')
        out.truncate(100_000_000)
    with pytest.raises(UserError, match=r"huge\.jsonl:1: a line of more than"):
        read_predictions(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e300", "1" + "0" * 307])
def test_a_box_that_is_no_place_stays_a_prediction_and_overlaps_nothing(tmp_path, number):
    line = '{"question_id": "q1", "boxes": [[0, 0, NUMBER, 1], [0, 0, 1, 1]]}'
    (prediction,) = read_predictions(_file(tmp_path, line.replace("NUMBER", number)))
    read = predictions.read_boxes(prediction, None, 100, 200, "p")
    assert read.problems == ("non_finite_box",)
    np.testing.assert_array_equal(read.boxes, [[0, 0, 0, 0], [0, 0, 1, 1]])


def test_boxes_that_are_doubtful_or_mended_are_counted():
    swapped = _read(boxes=[[0.3, 0.2, 0.1, 0.4]])
    assert swapped.problems == ("swapped_box",)
    np.testing.assert_array_equal(swapped.boxes, [[0.1, 0.2, 0.3, 0.4]])
    assert _read(boxes=[[0.1, 0.2, 0.1, 0.4]] * 2).problems == ("degenerate_box",) * 2
    pixels = _read(boxes=[[691, 1375, 1653, 1831]])
    assert pixels.problems == ("out_of_range_box",)
    np.testing.assert_array_equal(pixels.boxes, [[691, 1375, 1653, 1831]])
    assert _read(boxes=[[0, 0, 1.00001, 1]]).problems == ()
    assert _read(boxes=[]).problems == ()
    read = _read("vindr_px", text="<loc_1_2_30_40>, <loc_1, 2, 30, 40> or <LOC_1_2_30_40>")
    assert (len(read.boxes), read.parse, read.problems) == (3, "ok", ("repaired_box",) * 2)
    fields = {"text": "", "boxes": [[0.5, 0.1, 0.2, 0.3]]}
    read = _read(**fields, repaired_boxes=1)
    assert sorted(read.problems) == ["repaired_box", "swapped_box"]
    with pytest.raises(UserError, match="repaired_boxes is -1: expected a count"):
        _parsed(**fields, repaired_boxes=-1)


@pytest.mark.parametrize("name", sorted(CODECS))
def test_a_codec_reads_the_text_of_lines_without_boxes(name):
    codec = CODECS[name]
    # As the convention's own model writes: of an image that MAIRA-2 sees the middle square of.
    geometry = codec.makers_geometry(1000, 2000)
    written = codec.encode(np.array([[0.25, 0.5, 0.75, 1.0]]), 1000, 2000, geometry)
    text = f"There is ILD at {written}."
    read = _read(name, 1000, 2000, text=text)
    # Kosmos-2 names patches of a grid of 32, whose middles it stands for.
    near = 1 / 64 if name == "kosmos2" else 6e-3
    np.testing.assert_allclose(read.boxes, [[0.25, 0.5, 0.75, 1.0]], rtol=0, atol=near)
    assert read.parse == "ok"
    assert [start for start, _ in read.places or ()] == [text.index(written)]
    # The line's own boxes are kept, an empty list of them too.
    assert not len(_read(name, 1000, 2000, text=text, boxes=[]).boxes)


@pytest.mark.parametrize(
    ("text", "category"),
    [("<loc_1_2_3>", "wrong_arity"), ("at <loc_1_2", "truncated"), ("No.", "no_box")],
)
def test_a_codec_says_what_it_could_not_read(text, category):
    read = _read("vindr_px", text=text, boxes=None)
    assert (read.parse, len(read.boxes)) == (category, 0)


def test_text_without_a_codec_is_refused_and_questions_are_no_misspelt_keys():
    with pytest.raises(UserError, match="p: question q1 has no boxes: give --codec=NAME"):
        _read(text="x")
    with pytest.raises(UserError, match="has no boxes \\(is 'boxs' a key misspelt"):
        _read(text="x", boxs=[])
    line = _parsed(question="Is there ILD?", text="No.", box_score=[])
    assert line.problems == (("misspelt_key", "box_score"),)
    text = '```json[{"box_2d": [1, 2, 30, 40], "label": "ILD"}, {"box_2d": [1, 2, 30, 40]}]```'
    assert _read("medgemma_json", 100, 100, text=text).named == ("ILD", None)


@pytest.mark.parametrize(
    ("logprob", "probability", "counted"), CASES["confidence"] + [[10**300, None, 1]]
)
def test_confidence_in_an_answer(logprob, probability, counted):
    fields = {**GOOD, "answer_logprob": logprob}
    assert _parsed(**fields).decision_probability == probability
    assert _read(**fields).problems.count("unusable_logprob") == counted


def test_scores_that_are_no_confidence_are_counted():
    boxes = [[0.1, 0.2, 0.3, 0.4]] * 4
    read = {**GOOD, "boxes": boxes, "box_scores": [0.5, None, math.nan, math.inf]}
    assert np.isnan(_parsed(**read).box_scores).tolist() == [False, True, True, True]
    given = _read(**read)
    assert given.problems == ("unusable_score",) * 3
    assert len(given.boxes) == 4
    # Without boxes there is nothing that the scores could belong to.
    none = _read(**{**GOOD, "boxes": [], "box_scores": [1]})
    assert (none.problems, len(none.scores)) == (("unmatched_values",), 0)


SOME = [-3.5, None]
TWO = "<loc_10_10_50_50> and <loc_60_60_90_90>"


@pytest.mark.parametrize(
    ("text", "fields", "labels", "scores", "problems"), CASES["values_of_boxes"]
)
def test_values_of_boxes_in_the_text_are_held_against_them(text, fields, labels, scores, problems):
    read = _read("vindr_px", text=text, **fields)
    assert list(read.labels) == labels
    np.testing.assert_array_equal(read.scores, np.array(scores, float))
    counted = [name for name in read.problems if name in ("unmatched_values", "unusable_score")]
    assert len(counted) == (problems or 0)


def test_keys_that_look_like_others_and_repeated_ones_are_noted(tmp_path):
    lines = (
        '{"question_id": "q1", "text": "Yes.", "box_score": [1], "Lables": ["ILD"], "mine": 1}',
        '{"question_id": "q2", "text": "No.", "text": "Yes.", "meta": {"a": 1, "a": 2}}',
        '{"question_id": "q3", "text": "Yes.", "written": "Yes. ", "notes": {"text": 1}}',
    )
    misspelt, repeated, fine = read_predictions(_file(tmp_path, *lines))
    assert misspelt.problems == (("misspelt_key", "box_score"), ("misspelt_key", "Lables"))
    assert repeated.problems == (("repeated_key", "a"), ("repeated_key", "text"))
    assert repeated.text == "Yes."
    assert fine.problems == ()


@pytest.mark.parametrize(("text", "counted"), CASES["points"])
def test_points_are_counted_and_are_no_boxes(text, counted):
    assert _parsed(text=text).problems == tuple(("point", tag) for tag in counted)
    assert not len(_read("radvlm", text=text).boxes)
    with pytest.raises(UserError) as error:
        _read(text=text)
    assert ("points, which have no extent" in str(error.value)) == bool(counted)


@pytest.mark.parametrize(
    ("named", "contradicts"),
    [("im1", False), ("im1.png", False), ("images/im1.dicom", False), ("im2", True), (7, False)],
)
def test_a_line_about_another_image_is_noted(named, contradicts):
    (checked,) = predictions.check_images([_parsed(**GOOD, image_id=named)], {"q1": {"im1"}})
    assert checked.problems == ((("contradicted_image", named),) if contradicts else ())


@pytest.mark.parametrize(
    ("written", "text", "counted"),
    [
        (b"half \\ud800 of it", "half \ufffd of it", 1),
        (b"other \\udc00\\ud83d", "other \ufffd\ufffd", 1),
        (b"whole \\ud83d\\ude00", "whole \U0001f600", 0),
        (b"told: \\\\ud800", "told: \\ud800", 0),
        ("plain \ud55c".encode(), "plain \ud55c", 0),
    ],
)
def test_half_a_character_is_read_and_counted(tmp_path, written, text, counted):
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'{"question_id": "q1", "boxes": [], "text": "%s"}\n' % written)
    (prediction,) = read_predictions(file)
    assert prediction.text == text
    assert [category for category, _ in prediction.problems] == ["half_character"] * counted
