"""Conventions of models that people use now, by examples of their makers' formats."""

import numpy as np
import pytest

from cxrjax.codecs import CODECS, transcode
from cxrjax.codecs.frames import smart_resize
from cxrjax.images.geometry import letterbox_geometry
from tests.codecs.test_codec_readings import TABLES

HEIGHT, WIDTH = 3000, 2000
BOX = np.array([[0.55, 0.45, 0.70, 0.56]])
GEMEX_BOX = np.array([[26, 119, 217, 183]]) / 224
LEFT_HALF = np.array([[0.0, 0.0, 0.5, 1.0]])


def test_a_published_form_is_read_as_its_makers_do(subtests):
    for name, text, size, numbers, units, label in TABLES["published"]:
        with subtests.test(name=name, text=text):
            boxes, failures = CODECS[name].decode(text, *size, strict=True)
            np.testing.assert_allclose(boxes, [np.array(numbers) / (units * 2)], atol=1e-4)
            assert failures == []
            (span,) = CODECS[name].find(text, *size)
            assert (span.label or "") == label


@pytest.mark.parametrize(
    ("size", "most", "expected"),
    [
        # By hand: to the nearest 28, then scaled down or up so that the area is within the limits.
        ((1024, 1024), 12_845_056, (1036, 1036)),
        ((3072, 2540), 12_845_056, (3080, 2548)),
        ((3072, 2540), 1_003_520, (1092, 896)),
        ((10, 2000), 12_845_056, (28, 1988)),
        ((40, 40), 12_845_056, (56, 56)),
    ],
)
def test_the_input_of_qwen_vl(size, most, expected):
    assert smart_resize(*size, most) == expected
    height, width = expected
    assert 56 * 56 <= height * width <= most


@pytest.mark.parametrize(
    ("name", "boxes", "written", "size"),
    [
        ("chexagent", BOX, "<|box|>(55,45),(70,56)<|/box|>", (HEIGHT, WIDTH)),
        ("chexagent", [[0, 0, 1, 1]], "<|box|>(0,0),(100,100)<|/box|>", (HEIGHT, WIDTH)),
        ("radvlm", BOX, "[0.55, 0.45, 0.70, 0.56]", (HEIGHT, WIDTH)),
        ("radvlm", [[0.0, 0.02, 0.1, 1]], "[0.00, 0.02, 0.10, 1.00]", (HEIGHT, WIDTH)),
        ("gemex", GEMEX_BOX, "<location>[[26, 119, 217, 183]]", (HEIGHT, WIDTH)),
        # The square around 200 x 100 pixels has 50 rows of padding above and below.
        ("llava", LEFT_HALF, "[0.00, 0.25, 0.50, 0.75]", (100, 200)),
        ("gemini_json", LEFT_HALF, '```json[{"box_2d":[0,0,1000,500]}]```', (100, 200)),
        ("internvl", LEFT_HALF, "<box>[[0, 0, 500, 1000]]</box>", (100, 200)),
        ("minigpt", LEFT_HALF, "{<0><0><50><100>}", (100, 200)),
    ],
)
def test_a_known_box_in_the_convention_s_own_frame(name, boxes, written, size):
    codec, boxes = CODECS[name], np.array(boxes)
    for geometry in (None, letterbox_geometry(*size, 448, 448)):
        assert codec.encode(boxes, *size, geometry) == written
    for strict in (True, False):
        read = codec.decode(f"It is here: {written}{written}.", *size, strict=strict)
        np.testing.assert_allclose(read.boxes, np.tile(boxes, (2, 1)), atol=1e-6)
        assert read.failures == []


def test_the_gemex_papers_examples():
    """Tables 12 and 13 of arXiv 2411.16778."""
    first = "<answer>[B, C] <location>[[26, 119, 217, 183]]"
    second = "<location> [[48, 48, 175, 180], [0,0,224,224]]"
    for strict in (True, False):
        boxes, failures = CODECS["gemex"].decode(first, HEIGHT, WIDTH, strict=strict)
        np.testing.assert_allclose(boxes, GEMEX_BOX, rtol=1e-6)
        more, others = CODECS["gemex"].decode(second, HEIGHT, WIDTH, strict=strict)
        np.testing.assert_allclose(more * 224, [[48, 48, 175, 180], [0, 0, 224, 224]], atol=1e-4)
        assert failures == others == []


def test_radvlm_rounds_to_hundredths_and_takes_whole_numbers_of_the_corner():
    edges = np.array([[0, 0, 1, 1], [0.004, 0.02, 0.096, 1]])
    text = CODECS["radvlm"].encode(edges, HEIGHT, WIDTH)
    assert text == "[0.00, 0.00, 1.00, 1.00] [0.00, 0.02, 0.10, 1.00]"
    boxes = CODECS["radvlm"].decode("[0, 0, 1, 1]", HEIGHT, WIDTH).boxes
    np.testing.assert_allclose(boxes, [[0, 0, 1, 1]])


def test_a_list_leaves_nothing_behind_when_it_is_rewritten():
    answer = "<answer> ['B', 'C'] <reason> Both bases are dense. <location> [[26, 119, 217, 183]]"
    one = transcode(answer, "gemex", "paligemma", HEIGHT, WIDTH)
    assert one.startswith("<answer> ['B', 'C'] <reason> Both bases are dense. <loc")
    assert one.endswith(">") and "[" not in one.split("dense.")[1]
    two = transcode("<location> [[1, 2, 3, 4], [5, 6, 7, 8]]", "gemex", "vindr_px", 224, 224)
    assert two == "<loc_1_2_3_4>, <loc_5_6_7_8>"


@pytest.mark.parametrize(
    ("name", "text", "labels"),
    [
        ("internvl", "<ref>opacity</ref><box>[[1, 2, 30, 40]]</box>", ["opacity"]),
        ("internvl", "<ref>a</ref><box>[[1, 2, 30, 40], [5, 6, 70, 80]]</box>", ["a", "a"]),
        ("minigpt", "<p>opacity</p> {<1><2><30><40>}", ["opacity"]),
        ("minigpt", "<p>a</p> {<1><2><30><40>}<delim>{<5><6><70><80>}", ["a", None]),
        ("gemini_json", '[{"box_2d": [2, 1, 40, 30], "label": "opacity"}]', ["opacity"]),
        ("llava", "opacity [0.10, 0.20, 0.30, 0.70]", [None]),
    ],
)
def test_the_name_of_a_box(name, text, labels):
    assert [span.label for span in CODECS[name].find(text, 1000, 1000)] == labels
    assert CODECS[name].decode(text, 1000, 1000).failures == []


def test_a_phrase_before_a_box_is_its_label_and_stays():
    box = "<|box|>(55,45),(70,56)<|/box|>"
    text = f"<|ref|>left effusion<|/ref|>{box} and {box}"
    spans = CODECS["chexagent"].find(text, HEIGHT, WIDTH, strict=True)
    assert [span.label for span in spans] == ["left effusion", None]
    assert transcode(text, "chexagent", "chexagent", HEIGHT, WIDTH) == text
    assert transcode(text, "chexagent", "radvlm", HEIGHT, WIDTH) == (
        "<|ref|>left effusion<|/ref|>[0.55, 0.45, 0.70, 0.56] and [0.55, 0.45, 0.70, 0.56]"
    )


@pytest.mark.parametrize("name", ["internvl", "minigpt"])
def test_options_and_prose_are_no_boxes(name):
    for text in ("The answer is [A, C].", "{note}", "Grade [II], <5 mm."):
        assert [f.category for f in CODECS[name].decode(text, 100, 100).failures] == ["no_box"]


def test_from_one_convention_to_another():
    text = "Seen at <loc_0_0_100_100>."
    assert transcode(text, "vindr_px", "minigpt", 100, 200) == "Seen at {<0><0><50><100>}."
