"""Where the digits of boxes are among an answer's tokens."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.images.geometry import IDENTITY, letterbox_geometry
from cxrjax.input_pipeline.coordinates import BOX_ROUTES, DigitFinder, resolve_box_route
from cxrjax.input_pipeline.examples import ExampleConfig, QuestionEncoder
from cxrjax.input_pipeline.tokenizer import LOC_PIECES, SEG_PIECES, Tokenizer
from tests.papers.cases import cases

from .conftest import make_record, train_pieces

HEIGHT, WIDTH = 1200, 900
CONFIG = ExampleConfig(image_size=112, answer_buckets=(512,))
digit_codec = pytest.mark.parametrize("codec", ["vindr_px", "medgemma_json"])


@pytest.fixture(scope="module")
def finder(tokenizer):
    return DigitFinder(tokenizer)


def record(text: str):
    return make_record(text, image_hw=(HEIGHT, WIDTH))


@cases("codec, own, other")
def test_the_route_follows_the_codec_or_is_refused(codec, own, other):
    assert {"auto", own, other, "none"} == {*BOX_ROUTES}
    routes = {route: resolve_box_route(route, codec) for route in ("auto", own, "none")}
    assert routes == {"auto": own, own: own, "none": "none"}
    with pytest.raises(UserError, match=f"box_route='{other}' cannot reach"):
        resolve_box_route(other, codec)


corners = st.tuples(st.integers(0, 8), st.integers(0, 11)).flatmap(
    lambda low: st.tuples(
        st.just(100 * low[0] + 3),
        st.just(100 * low[1] + 7),
        st.integers(100 * low[0] + 4, WIDTH),
        st.integers(100 * low[1] + 8, HEIGHT),
    )
)
# Digits around the boxes, alone, in a row, in words and of other scripts.
prose = st.lists(
    st.sampled_from(["T12 ", "12345 ", " 3<4 ", "1", "²", "٣", "<loc0012>", "lung ", " at "]),
    max_size=4,
).map("".join)


@digit_codec
@settings(max_examples=40)
@given(boxes=st.lists(corners, max_size=3), words=st.lists(prose, min_size=4, max_size=4))
def test_digits_at_the_positions_say_the_boxes(codec, tokenizer, finder, boxes, words):
    notation = CODECS[codec]
    size = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
    fractions = np.array(boxes, np.float64).reshape(-1, 4) / size
    text = words[-1]
    for box, word in zip(fractions, words, strict=False):
        text += word.replace("<loc0012>", "") + notation.encode(
            box[None], HEIGHT, WIDTH, labels=["a 7 in 9"]
        )
    tokens = [*tokenizer.encode(text), tokenizer.eos_id]
    for geometry in (IDENTITY, letterbox_geometry(HEIGHT, WIDTH, 224, 224)):
        found = finder.find(text, tokens, notation, HEIGHT, WIDTH, geometry)
        digit_of = {token: digit for digit, token in enumerate(finder.token_ids)}
        digits = np.array(
            [digit_of.get(tokens[p], -9) for p in found.positions.ravel()], np.float64
        ).reshape(found.positions.shape)
        assert (digits[found.place_weights > 0] >= 0).all()
        numbers = (digits * found.place_weights).sum(-1)
        read = notation.decode(text, HEIGHT, WIDTH, strict=True).boxes
        assert len(read) == len(boxes)
        np.testing.assert_allclose(found.boxes, geometry.apply(read), atol=1e-6)
        np.testing.assert_allclose(numbers * found.scale + found.offset, found.boxes, atol=1e-6)
        np.testing.assert_allclose(found.boxes, geometry.apply(fractions), atol=1e-3)
        assert found.positions.shape == (len(boxes), 4, notation.max_digits)


@digit_codec
def test_examples_carry_the_digits_of_their_answers(codec, tokenizer):
    text = "12 lesions: <loc_5_60_100_1170> and <loc_0_0_900_1200>."
    for geometry in ("resize", "letterbox"):
        config = dataclasses.replace(CONFIG, codec=codec, geometry=geometry)
        encoder = pickle.loads(pickle.dumps(QuestionEncoder(tokenizer, config)))
        example = encoder.encode(record(text))
        assert encoder.digit_shape == (CODECS[codec].max_digits, DigitFinder(tokenizer).token_ids)
        expected = np.array([[5, 60, 100, 1170], [0, 0, 900, 1200]]) / [900, 1200, 900, 1200]
        if geometry == "letterbox":
            expected = letterbox_geometry(HEIGHT, WIDTH, 112, 112).apply(expected)
        np.testing.assert_allclose(example.boxes, expected, atol=6e-4)
        np.testing.assert_array_equal(example.boxes, example.digits.boxes)
        first = example.digits.positions[..., 0]
        np.testing.assert_array_equal(example.coordinate_positions, first)


@pytest.fixture(scope="module")
def merging_tokenizer() -> Tokenizer:
    """Like the demo's, but with pieces of several digits."""
    lines = [f"{number}{number + 1}" for number in range(300)] * 3
    symbols = [*LOC_PIECES, *SEG_PIECES, "\n"]
    changes = {"vocab_size": 1640, "user_defined_symbols": symbols, "split_digits": False}
    return Tokenizer(train_pieces(lines, **changes), "merging.model")


def test_tokenizers_that_merge_digits_and_numbers_too_long_are_refused(
    merging_tokenizer, tokenizer, finder
):
    assert len(merging_tokenizer.encode("123")) < 3
    with pytest.raises(UserError, match=r"merging.model: .*expected a token for each digit"):
        DigitFinder(merging_tokenizer)
    config = dataclasses.replace(CONFIG, codec="vindr_px")
    encoder = QuestionEncoder(merging_tokenizer, config)
    assert len(encoder.encode(record("No."), with_answer=False).prefix)
    with pytest.raises(UserError, match="expected a token for each digit"):
        _ = encoder.digit_shape
    codec = CODECS["vindr_px"]
    text = "<loc_0_0_123456_9>"
    with pytest.raises(UserError, match="coordinate 123456 has 6 digits, expected at most 5"):
        finder.find(text, tokenizer.encode(text), codec, 10, 200_000, IDENTITY)
    with pytest.raises(UserError, match="has 9 digits and its tokens have 1"):
        finder.find(text, tokenizer.encode("1 box"), codec, 10, 200_000, IDENTITY)
    swapped = tokenizer.encode("<loc_0_0_5_8>")
    with pytest.raises(UserError, match="digits of 9 are not tokens of their own"):
        finder.find("<loc_0_0_5_9>", swapped, codec, 10, 200, IDENTITY)
