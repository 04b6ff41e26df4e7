"""Conventions of general models: LLaVA-1.5, Gemini, InternVL, MiniGPT-v2."""

import numpy as np
import pytest

from cxrjax.codecs import CODECS, transcode

LEFT_HALF = np.array([[0.0, 0.0, 0.5, 1.0]])


@pytest.mark.parametrize(
    ("name", "written"),
    [
        # The square around 200 x 100 pixels has 50 rows of padding above and below.
        ("llava", "[0.00, 0.25, 0.50, 0.75]"),
        ("gemini_json", '```json[{"box_2d":[0,0,1000,500]}]```'),
        ("internvl", "<box>[[0, 0, 500, 1000]]</box>"),
        ("minigpt", "{<0><0><50><100>}"),
    ],
)
def test_a_known_box(name, written):
    assert CODECS[name].encode(LEFT_HALF, 100, 200) == written
    read = CODECS[name].decode(written, 100, 200, strict=True)
    np.testing.assert_allclose(read.boxes, LEFT_HALF, atol=1e-6)
    assert read.failures == []


@pytest.mark.parametrize(
    ("name", "text", "label"),
    [
        ("internvl", "<ref>opacity</ref><box>[[1, 2, 30, 40]]</box>", "opacity"),
        ("minigpt", "<p>opacity</p> {<1><2><30><40>}", "opacity"),
        ("gemini_json", '[{"box_2d": [2, 1, 40, 30], "label": "opacity"}]', "opacity"),
        ("llava", "opacity [0.10, 0.20, 0.30, 0.70]", None),
    ],
)
def test_the_name_of_a_box(name, text, label):
    (span,) = CODECS[name].find(text, 1000, 1000)
    assert span.label == label


def test_boxes_of_one_phrase():
    read = CODECS["internvl"].find("<ref>a</ref><box>[[1, 2, 30, 40], [5, 6, 70, 80]]</box>", 9, 9)
    assert [span.label for span in read] == ["a", "a"]
    read = CODECS["minigpt"].decode("<p>a</p> {<1><2><30><40>}<delim>{<5><6><70><80>}", 9, 9)
    assert len(read.boxes) == 2 and read.failures == []


@pytest.mark.parametrize(
    ("name", "text", "category"),
    [
        ("internvl", "<box>[[1, 2, 3", "truncated"),
        ("internvl", "at <box>[[", "truncated"),
        ("internvl", "at <bo", "truncated"),
        ("internvl", "<box>[[1, 2, 3]]</box>", "wrong_arity"),
        ("internvl", "<box>[[30, 2, 30, 9]]</box>", "degenerate"),
        ("internvl", "<box>[[100, 2000, 300, 4000]]</box>", "out_of_range"),
        ("minigpt", "{<1><2", "truncated"),
        ("minigpt", "{<1><2><3>}", "wrong_arity"),
        ("minigpt", "{<1><2><1><9>}", "degenerate"),
        ("minigpt", "{<1><200><30><400>}", "out_of_range"),
        ("minigpt", "{<1><2><3><1.2.3>}", "malformed"),
        ("llava", "[0.50, 0.00, 0.80, 0.10]", "out_of_range"),  # in the padding
        ("gemini_json", '```json[{"box_2d":[1,2', "truncated"),
    ],
)
def test_what_cannot_be_read(name, text, category):
    boxes, failures = CODECS[name].decode(text, 100, 200)
    assert len(boxes) == 0
    assert [failure.category for failure in failures] == [category]


@pytest.mark.parametrize("name", ["internvl", "minigpt"])
def test_options_and_prose_are_no_boxes(name):
    for text in ("The answer is [A, C].", "{note}", "Grade [II], <5 mm."):
        assert [f.category for f in CODECS[name].decode(text, 100, 100).failures] == ["no_box"]


def test_from_one_convention_to_another():
    text = "Seen at <loc_0_0_100_100>."
    assert transcode(text, "vindr_px", "minigpt", 100, 200) == "Seen at {<0><0><50><100>}."
