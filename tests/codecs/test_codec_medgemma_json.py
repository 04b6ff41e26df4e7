import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.codecs import CODECS, transcode

CODEC = CODECS["medgemma_json"]
# Wider than high: 500 rows of zeros above, 500 below.
HEIGHT, WIDTH = 1000, 2000
A = '```json[{"box_2d":[300,100,500,400]}]```'
BOX_A = np.array([0.1, 0.1, 0.4, 0.5])


@given(st.lists(st.none() | st.text(max_size=20), min_size=1, max_size=4), st.booleans())
def test_labels_survive_whatever_is_in_them(names, strict):
    boxes = np.tile(BOX_A, (len(names), 1))
    text = CODEC.encode(boxes, HEIGHT, WIDTH, labels=names)
    listed = json.loads(text.removeprefix("```json").removesuffix("```"))
    assert [item.get("label") for item in listed] == names
    spans = CODEC.find(f"Seen: {text}.", HEIGHT, WIDTH, strict=strict)
    assert [span.label for span in spans] == names
    written = [f"Seen: {text}."[span.start : span.end] for span in spans]
    assert CODEC.separator.join(written) == text


def test_labels_are_read_leniently_and_whole_numbers_stay_thousandths():
    text = CODECS["vindr_px"].encode(BOX_A[None], HEIGHT, WIDTH, labels=["heart"])
    assert text == CODECS["vindr_px"].encode(BOX_A[None], HEIGHT, WIDTH)
    with pytest.raises(ValueError, match="zip"):
        CODEC.encode(BOX_A[None], HEIGHT, WIDTH, labels=["heart", "lung"])
    (span,) = CODEC.find("{'label': 'heart', 'box_2d': [300, 100, 500, 400]}", HEIGHT, WIDTH)
    assert span.label == "heart"
    (span,) = CODEC.find('```json[{"box_2d":[300,100,500,400],"label":"\\ud800"}]```', 9, 9)
    assert span.label == "?"
    boxes = CODEC.decode('```json[{"box_2d":[0,0,1,1]}]```', 10, 10).boxes
    np.testing.assert_allclose(boxes, [[0, 0, 0.001, 0.001]], atol=1e-9)


def test_prose_with_lists_moves_into_other_codecs_and_back():
    boxes = np.array([BOX_A, [0.5, 0.2, 0.9, 0.9]])
    text = "Seen at " + CODEC.encode(boxes, HEIGHT, WIDTH, labels=["a", "b"]) + ", both."
    pixels = transcode(text, "medgemma_json", "vindr_px", HEIGHT, WIDTH)
    assert pixels == "Seen at <loc_200_100_800_500>, <loc_1000_200_1800_900>, both."
    back = transcode(pixels, "vindr_px", "medgemma_json", HEIGHT, WIDTH)
    read = CODEC.decode(back, HEIGHT, WIDTH, strict=True).boxes
    np.testing.assert_allclose(read, boxes, atol=1e-6)
    assert transcode(A, "medgemma_json", "medgemma_json", HEIGHT, WIDTH) == A
    labelled = '```json[{"box_2d":[300,100,500,400],"label":"heart"}]```'
    assert transcode(labelled, "medgemma_json", "medgemma_json", HEIGHT, WIDTH) == labelled


@given(st.data(), st.integers(1, 3000), st.integers(1, 3000))
def test_numbers_stand_for_what_they_are_read_as(data, height, width):
    numbers = data.draw(st.lists(st.integers(0, 1000), min_size=4, max_size=4))
    for name in ("vindr_px", "medgemma_json"):
        codec = CODECS[name]
        rows = np.array([numbers, [0, 0, 0, 0], [1, 1, 1, 1]])
        read, at_zero, at_one = codec.fractions_of(rows, height, width)
        np.testing.assert_allclose(read, at_zero + rows[0] * (at_one - at_zero), atol=1e-6)
    x_min, y_min, x_max, y_max = numbers
    text = f'```json[{{"box_2d":[{y_min},{x_min},{y_max},{x_max}]}}]```'
    for box in CODEC.decode(text, height, width, strict=True).boxes:
        expected = CODEC.fractions_of(rows[:1], height, width)[0]
        np.testing.assert_allclose(box, np.clip(expected, 0, 1), atol=1e-6)


@pytest.mark.parametrize("name", ["vindr_px", "medgemma_json"])
def test_the_number_pattern_finds_the_numbers_of_a_span(name):
    codec = CODECS[name]
    boxes = np.array([BOX_A, [0.5, 0.2, 0.9, 0.9]])
    text = "7 at " + codec.encode(boxes, HEIGHT, WIDTH, labels=["T2 [1,2,3,4]", None])
    spans = codec.find(text, HEIGHT, WIDTH, strict=True)
    assert len(spans) == 2
    for span, box in zip(spans, boxes, strict=True):
        match = codec.number_pattern.search(text, span.start, span.end)
        numbers = [[int(match[k]) for k in ("x_min", "y_min", "x_max", "y_max")]]
        read = codec.fractions_of(np.array(numbers), HEIGHT, WIDTH)
        np.testing.assert_allclose(read[0], box, atol=1e-3)
        assert max(len(str(n)) for n in numbers[0]) <= codec.max_digits
