"""Box formats of models by examples of their makers, PaliGemma's in full."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cxrjax.codecs import CODECS, transcode
from cxrjax.codecs.frames import smart_resize
from cxrjax.codecs.tokens import NUM_BINS, PaliGemma, bin_centers
from cxrjax.errors import UserError
from cxrjax.images.geometry import Geometry, center_crop_geometry, letterbox_geometry
from tests.codecs.test_codec_readings import TABLES

HEIGHT, WIDTH = 3000, 2000
GEMEX_BOX = np.array([[26, 119, 217, 183]]) / 224


def test_published_forms_and_the_input_of_qwen_vl(subtests):
    for name, text, size, numbers, units, label in TABLES["published"]:
        with subtests.test(name=name, text=text):
            boxes, failures = CODECS[name].decode(text, *size, strict=True)
            np.testing.assert_allclose(boxes, [np.array(numbers) / (units * 2)], atol=1e-4)
            assert failures == []
            (span,) = CODECS[name].find(text, *size)
            assert (span.label or "") == label
    # By hand: to the nearest 28, then scaled so that the area is within the limits.
    for size, most, expected in TABLES["qwen_inputs"]:
        with subtests.test(size=size, most=most):
            height, width = smart_resize(*size, most)
            assert [height, width] == expected and 56 * 56 <= height * width <= most


def test_a_known_box_in_the_convention_s_own_frame(subtests):
    for name, numbers, units, written, size in TABLES["known_boxes"]:
        codec, boxes = CODECS[name], np.array([numbers]) / (units * 2)
        with subtests.test(name=name, written=written):
            for geometry in (None, letterbox_geometry(*size, 448, 448)):
                assert codec.encode(boxes, *size, geometry) == written
            for strict in (True, False):
                read = codec.decode(f"It is here: {written}{written}.", *size, strict=strict)
                np.testing.assert_allclose(read.boxes, np.tile(boxes, (2, 1)), atol=1e-6)
                assert read.failures == []


@given(st.data(), st.integers(1, 4000), st.integers(1, 4000))
def test_pixels_survive_float32_exactly(data, height, width):
    x = sorted(data.draw(st.lists(st.integers(0, width), min_size=2, max_size=2, unique=True)))
    y = sorted(data.draw(st.lists(st.integers(0, height), min_size=2, max_size=2, unique=True)))
    text = f"<loc_{x[0]}_{y[0]}_{x[1]}_{y[1]}>"
    boxes = CODECS["vindr_px"].decode(text, height, width, strict=True).boxes
    assert CODECS["vindr_px"].encode(boxes, height, width) == text


def test_failures_say_where_and_rewritten_boxes_leave_nothing_behind():
    for name, first, second in (
        ("vindr_px", "<loc_1_2_3>", "<loc_5_5_5_5>"),
        ("medgemma_json", '{"box_2d":[1,2,3]}', '{"box_2d":[300,5,300,5]}'),
    ):
        text = f"Left {first}, right {second}."
        failures = CODECS[name].decode(text, HEIGHT, WIDTH).failures
        places = [(first, 5), (second, text.index(second))]
        assert [(f.text, f.start) for f in failures] == places, name
    answer = "<answer> ['B', 'C'] <reason> Both bases are dense. <location> [[26, 119, 217, 183]]"
    one = transcode(answer, "gemex", "paligemma", HEIGHT, WIDTH)
    assert one.startswith("<answer> ['B', 'C'] <reason> Both bases are dense. <loc")
    assert one.endswith(">") and "[" not in one.split("dense.")[1]
    two = transcode("<location> [[1, 2, 3, 4], [5, 6, 7, 8]]", "gemex", "vindr_px", 224, 224)
    assert two == "<loc_1_2_3_4>, <loc_5_6_7_8>"
    text = "Seen at <loc_0_0_100_100>."
    assert transcode(text, "vindr_px", "minigpt", 100, 200) == "Seen at {<0><0><50><100>}."


def test_the_gemex_papers_examples_and_radvlms_hundredths():
    """Tables 12 and 13 of arXiv 2411.16778."""
    first = "<answer>[B, C] <location>[[26, 119, 217, 183]]"
    second = "<location> [[48, 48, 175, 180], [0,0,224,224]]"
    for strict in (True, False):
        boxes, failures = CODECS["gemex"].decode(first, HEIGHT, WIDTH, strict=strict)
        np.testing.assert_allclose(boxes, GEMEX_BOX, rtol=1e-6)
        more, others = CODECS["gemex"].decode(second, HEIGHT, WIDTH, strict=strict)
        np.testing.assert_allclose(more * 224, [[48, 48, 175, 180], [0, 0, 224, 224]], atol=1e-4)
        assert failures == others == []
    edges = np.array([[0, 0, 1, 1], [0.004, 0.02, 0.096, 1]])
    text = CODECS["radvlm"].encode(edges, HEIGHT, WIDTH)
    assert text == "[0.00, 0.00, 1.00, 1.00] [0.00, 0.02, 0.10, 1.00]"
    boxes = CODECS["radvlm"].decode("[0, 0, 1, 1]", HEIGHT, WIDTH).boxes
    np.testing.assert_allclose(boxes, [[0, 0, 1, 1]])


def test_names_and_phrases_of_boxes_are_labels_and_stay(subtests):
    for name, text, labels in TABLES["names_of_boxes"]:
        with subtests.test(text):
            assert [span.label or "" for span in CODECS[name].find(text, 1000, 1000)] == labels
            assert CODECS[name].decode(text, 1000, 1000).failures == []
    box = "<|box|>(55,45),(70,56)<|/box|>"
    text = f"<|ref|>left effusion<|/ref|>{box} and {box}"
    spans = CODECS["chexagent"].find(text, HEIGHT, WIDTH, strict=True)
    assert [span.label for span in spans] == ["left effusion", None]
    assert transcode(text, "chexagent", "chexagent", HEIGHT, WIDTH) == text
    assert transcode(text, "chexagent", "radvlm", HEIGHT, WIDTH) == (
        "<|ref|>left effusion<|/ref|>[0.55, 0.45, 0.70, 0.56] and [0.55, 0.45, 0.70, 0.56]"
    )
    text = (
        "<obj>Both bases are dense. <box><x1><y2><x3><y4></box><box><x5><y6><x7><y8></box></obj>"
        "<obj>No pneumothorax.</obj><box><x9><y9><x20><y20></box>"
    )
    spans = MAIRA.find(text, HEIGHT, WIDTH, strict=True)
    assert [span.label for span in spans] == ["Both bases are dense."] * 2 + [None]
    assert transcode(text, "maira2", "maira2", HEIGHT, WIDTH) == text


@pytest.mark.parametrize("name", ["internvl", "minigpt"])
def test_options_and_prose_are_no_boxes(name):
    for text in ("The answer is [A, C].", "{note}", "Grade [II], <5 mm."):
        assert [f.category for f in CODECS[name].decode(text, 100, 100).failures] == ["no_box"]


MAIRA = CODECS["maira2"]
MAIRA_TEXT = "<box><x55><y45><x70><y56></box>"
# What the model's own processor makes of it: (bin + 0.5) / 100.
MAIRA_BOX = np.array([0.555, 0.455, 0.705, 0.565])


def test_bins_are_placed_by_the_geometry_and_read_at_their_middles():
    for strict in (True, False):
        boxes, failures = MAIRA.decode(MAIRA_TEXT, HEIGHT, WIDTH, strict=strict)
        np.testing.assert_allclose(boxes, MAIRA_BOX[None], rtol=1e-6)
        assert failures == []
    assert MAIRA.encode(MAIRA_BOX[None], HEIGHT, WIDTH) == MAIRA_TEXT
    # The far edge belongs to the last bin, of which there is no <x100>.
    assert MAIRA.encode(np.array([[0, 0, 1, 1]]), HEIGHT, WIDTH) == (
        "<box><x0><y0><x99><y99></box>"
    )
    # A portrait image in a square: the sides are margin
    geometry = letterbox_geometry(200, 100, 64, 64)
    box = np.array([[0.0, 0.25, 0.5, 0.75]])
    text = CODEC.encode(box, 200, 100, geometry)
    assert text == "<loc0256><loc0256><loc0768><loc0512>"
    decoded = CODEC.decode(text, 200, 100, geometry, strict=True)
    assert np.abs(decoded.boxes - box).max() <= 1 / 1024 + 1e-6  # half a bin, twice as wide in x
    assert decoded.failures == []


def test_the_frame_is_what_the_model_sees_after_the_crop():
    """The processor's own way back: offsets of the square, then pixels of the image."""
    geometry = center_crop_geometry(HEIGHT, WIDTH)
    boxes, _ = MAIRA.decode(MAIRA_TEXT, HEIGHT, WIDTH, geometry)
    x, y = MAIRA_BOX[[0, 2]] * WIDTH, MAIRA_BOX[[1, 3]] * WIDTH + 500
    np.testing.assert_allclose(
        boxes[0], [x[0] / WIDTH, y[0] / HEIGHT, x[1] / WIDTH, y[1] / HEIGHT], rtol=1e-5
    )
    assert MAIRA.encode(boxes, HEIGHT, WIDTH, geometry) == MAIRA_TEXT
    with pytest.raises(UserError, match="outside the model's input"):
        MAIRA.encode(np.array([[0.1, 0.01, 0.9, 0.1]]), HEIGHT, WIDTH, geometry)
    letterboxed = MAIRA.encode(
        MAIRA_BOX[None], HEIGHT, WIDTH, letterbox_geometry(HEIGHT, WIDTH, 90, 90)
    )
    assert letterboxed == "<box><x53><y45><x63><y56></box>"
    geometry = center_crop_geometry(7, 10)
    np.testing.assert_allclose(geometry.apply(np.array([0.1, 0, 0.8, 1])), [0, 0, 1, 1], atol=1e-6)


CODEC = PaliGemma()


def bins_of(boxes):
    """The bins that are written for boxes of the model's input, as x_min, y_min, x_max, y_max."""
    tokens = re.findall(r"<loc([0-9]{4})>", CODEC.encode(boxes, 1, 1))
    return np.array(tokens, int).reshape(-1, 4)[:, [1, 0, 3, 2]]


def test_bins_are_read_at_their_middles_y_first():
    text = CODEC.encode(np.array([[456.5, 123.5, 1023.5, 789.5]]) / 1024, 1, 1)
    assert text == "<loc0123><loc0456><loc0789><loc1023>"
    tokens = [int(text[k + 4 : k + 8]) for k in range(0, 36, 9)]
    canonical = [456, 123, 1023, 789]
    assert tokens == [canonical[k] for k in CODEC.coordinate_order]
    assert CODECS["paligemma"].coordinate_order == (1, 0, 3, 2)
    assert CODEC.encode(np.array([[0, 0, 1, 1]]), 7, 7) == "<loc0000><loc0000><loc1023><loc1023>"
    centers = bin_centers()
    assert centers.shape == (NUM_BINS,)
    assert centers.dtype == np.float32
    assert centers[0] == 0.5 / 1024
    assert centers[-1] == 1023.5 / 1024
    boxes = CODEC.decode("<loc0123><loc0456><loc0789><loc1023>", 10, 10, strict=True).boxes
    np.testing.assert_array_equal(boxes[0], centers[[456, 123, 1023, 789]])
    np.testing.assert_array_equal(CODEC.from_bins(np.arange(1024)), centers)


@given(st.lists(st.integers(0, 1024), min_size=4, max_size=4, unique=True))
def test_a_bin_holds_its_lower_edge(edges):
    x = sorted(edges[:2])
    y = sorted(edges[2:])
    (bins,) = bins_of(np.array([[x[0], y[0], x[1], y[1]]]) / 1024)
    if max(x[1] - x[0], y[1] - y[0]) > 1 and min(x[1] - x[0], y[1] - y[0]) > 1:
        np.testing.assert_array_equal(bins, np.minimum([x[0], y[0], x[1], y[1]], 1023))


@given(hnp.arrays(np.int32, (5, 4), elements=st.integers(0, 1023)))
def test_bins_to_fractions_to_bins(bins):
    bins = np.concatenate(
        [np.minimum(bins[:, :2], bins[:, 2:]), np.maximum(bins[:, :2], bins[:, 2:])], axis=1
    )
    bins = bins[(bins[:, :2] < bins[:, 2:]).all(axis=1)]
    np.testing.assert_array_equal(bins_of(CODEC.from_bins(bins)), bins)


def test_thin_boxes_take_the_bin_they_lean_to_and_none_lies_off_the_input():
    for low, high, expected in TABLES["thin"]:
        (bins,) = bins_of(np.array([[low, 100, high, 200]]) / 1024)
        assert [*bins[[0, 2]]] == expected
    right_half = Geometry(scale_x=2.0, offset_x=-1.0)
    with pytest.raises(UserError, match="model's input"):
        CODEC.encode(np.array([[0.1, 0.1, 0.4, 0.4]]), 100, 100, right_half)
    assert CODEC.encode(np.array([[0.1, 0.0, 0.75, 1.0]]), 100, 100, right_half) == (
        "<loc0000><loc0000><loc1023><loc0512>"
    )


def test_boxes_in_the_margin(subtests):
    geometry = letterbox_geometry(200, 100, 64, 64)
    for x_min, x_max, *outcomes in TABLES["margins"]:
        text = f"<loc0100><loc{x_min:04d}><loc0900><loc{x_max:04d}>"
        on_the_image = np.clip((np.array([x_min, x_max]) + 0.5 - 256) / 512, 0, 1)
        for mode, expected in zip((True, False), outcomes, strict=True):
            with subtests.test(text, strict=mode):
                boxes, failures = CODEC.decode(text, 200, 100, geometry, strict=mode)
                assert [failure.category for failure in failures] == expected.split()
                assert len(boxes) == (not expected)
                for box in boxes:
                    np.testing.assert_allclose(box[[0, 2]], on_the_image, atol=1e-6)
