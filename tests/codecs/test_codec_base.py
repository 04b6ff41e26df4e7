"""What holds for every codec."""

import itertools
import random
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.boxes import iou
from cxrjax.codecs import CODECS, FAILURE_CATEGORIES, get_codec
from cxrjax.codecs.frames import smart_resize
from cxrjax.errors import UserError
from cxrjax.images.geometry import Geometry, letterbox_geometry
from tests.papers.cases import data

FRAGMENTS = tomllib.loads(Path(__file__).with_name("fragments.toml").read_text("utf-8"))
each_codec = pytest.mark.parametrize("name", CODECS)

sizes = st.integers(1, 4000)
geometries = st.sampled_from(["none", "resize", "letterbox"])
fraction = st.floats(0, 1, width=32)
# Sides down to a millionth: thinner than any grid's step.
extents = st.tuples(fraction, fraction).map(sorted).filter(lambda pair: pair[1] - pair[0] > 1e-6)
some_boxes = st.lists(
    st.tuples(extents, extents).map(lambda xy: [xy[0][0], xy[1][0], xy[0][1], xy[1][1]]), max_size=6
).map(lambda rows: np.array(rows, np.float32).reshape(-1, 4))


def placed(kind, height, width):
    if kind == "none":
        return None
    return Geometry() if kind == "resize" else letterbox_geometry(height, width, 224, 224)


# How many steps the image has, the square around it, or the model's input.
OF_IMAGE = {"gemex": 224, "deepseek_vl2": 999, "chexagent": 100, "radvlm": 100, "minigpt": 100}
OF_IMAGE |= dict.fromkeys(("gemini_json", "internvl", "qwen_vl", "qwen2_vl", "glm_v"), 1000)
OF_SQUARE = {"medgemma_json": 1000, "llava": 100}
OF_INPUT = {"paligemma": 1024, "maira2": 100, "florence2": 1000, "kosmos2": 32}
OF_INPUT |= {"qwen2.5_vl_448": 448, "qwen3_vl": 1000}


def step(name, height, width, geometry):
    """A grid step in fractions of the original image, along x, y, x, y."""
    size = np.array([width, height] * 2)
    if name == "vindr_px":
        return 1 / size
    if name == "qwen2.5_vl":
        return 1 / np.array([*smart_resize(height, width)][::-1] * 2)
    if name in OF_SQUARE:
        return max(height, width) / OF_SQUARE[name] / size
    if name in OF_IMAGE:
        return np.full(4, 1 / OF_IMAGE[name])
    geometry = geometry or Geometry()
    return 1 / (OF_INPUT[name] * np.array([geometry.scale_x, geometry.scale_y] * 2))


@each_codec
def test_each_is_listed_forgives_rounding_and_reads_what_points(name):
    assert get_codec(name) is CODECS[name]
    assert CODECS[name].name == name
    codec = CODECS[name]
    text = "I'm sorry, it is at " + codec.encode(np.array([[0.1, 0.2, 0.3, 0.4]]), 100, 100)
    boxes, failures = codec.decode(text, 100, 100)
    assert len(boxes) == 1
    assert failures == []
    exact = codec.encode(np.array([[0, 0, 1, 1]]), 100, 100)
    assert codec.encode(np.array([[-1e-6, 0, 1, 1 + 1e-6]]), 100, 100) == exact
    one = codec.encode(np.array([[0.2, 0.3, 0.6, 0.9]]), 1000, 1000)
    read = codec.read_as_written(f"{one} a " * 1000, 1000, 1000)
    assert (len(read.spans), read.failures) == (1000, [])
    read = codec.read_as_written(f"{one} a " * 1200, 1000, 1000)
    assert len(read.spans) == 1000
    (rest,) = read.failures
    assert (rest.category, rest.start) == ("malformed", 1000 * len(f"{one} a "))


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'paligemma'"):
        get_codec("pali_gemma")


@given(st.sampled_from(list(CODECS)), some_boxes, sizes, sizes, geometries, st.booleans())
def test_round_trip(name, boxes, height, width, kind, strict):
    # No letterbox shows anything of thinner ones, nor do hundredths of a padded square, nor 32
    # patches of a letterbox.
    if max(height, width) > (30 if name == "kosmos2" else 100) * min(height, width):
        return
    geometry = placed(kind, height, width)
    codec = CODECS[name]
    text = codec.encode(boxes, height, width, geometry)
    decoded = codec.decode(text, height, width, geometry, strict)
    assert len(decoded.boxes) == len(boxes)
    assert decoded.boxes.dtype == np.float32
    if not len(boxes):
        assert [failure.category for failure in decoded.failures] == ["no_box"]
        return
    assert decoded.failures == []
    assert (decoded.boxes[:, :2] < decoded.boxes[:, 2:]).all()
    assert decoded.boxes.min() >= 0 and decoded.boxes.max() <= 1
    grid_step = step(name, height, width, geometry)
    off = np.abs(decoded.boxes - boxes) / grid_step
    thick = ((boxes[:, 2:] - boxes[:, :2]) >= grid_step[:2] * (1 + 1e-4)).all(axis=1)
    assert (off[thick] <= 0.5 + 1e-3).all()
    assert (off <= 1.5 + 1e-3).all()


@given(st.sampled_from(list(CODECS)), some_boxes, st.booleans())
def test_find_is_decode_with_places(name, boxes, strict):
    codec = CODECS[name]
    text = "Here: " + " and ".join(codec.encode(box[None], 900, 700) for box in boxes) + "."
    spans = codec.find(text, 900, 700, strict=strict)
    decoded = codec.decode(text, 900, 700, strict=strict)
    assert len(spans) == len(boxes)
    np.testing.assert_array_equal(np.array([s.box for s in spans]).reshape(-1, 4), decoded.boxes)
    for span, box in zip(spans, boxes, strict=True):
        assert text[span.start : span.end] == codec.encode(box[None], 900, 700)
    assert all(a.end <= b.start for a, b in itertools.pairwise(spans))


@given(
    st.sampled_from(list(CODECS)),
    st.lists(st.one_of(*map(st.sampled_from, FRAGMENTS["pieces"])), max_size=14).map("".join),
    st.booleans(),
    geometries,
)
def test_any_text_is_read_or_counted(name, text, strict, kind):
    geometry = placed(kind, 30, 20)
    codec = CODECS[name]
    decoded = codec.decode(text, 30, 20, geometry, strict)
    assert decoded.boxes.shape == (len(decoded.boxes), 4)
    assert np.isfinite(decoded.boxes).all()
    assert len(decoded.boxes) + len(decoded.failures) >= 1
    categories = [failure.category for failure in decoded.failures]
    assert set(categories) <= set(FAILURE_CATEGORIES)
    if {"no_box", "refusal"} & set(categories):
        assert len(categories) == 1
        assert not len(decoded.boxes)
    starts = [failure.start for failure in decoded.failures]
    assert starts == sorted(starts)
    for failure in decoded.failures:
        assert len(failure.text) <= 80
        assert text.startswith(failure.text, failure.start)
    if strict:  # whatever strict reading accepts, lenient reading does too, the same way
        lenient = [box.tolist() for box in codec.decode(text, 30, 20, geometry).boxes]
        assert all(box.tolist() in lenient for box in decoded.boxes)


NO_BOX = data(__file__)["no_box"]
BROKEN = {
    "truncated": ("The opacity is at <loc", "The opacity is at <lo"),
    "malformed": ("<loca", "the <local> lesion", "<loc> here", "<loc_abc_def> here"),
}


@pytest.mark.parametrize(
    ("name", "texts"),
    [(name, NO_BOX) for name in CODECS] + [(name, BROKEN) for name in ("paligemma", "vindr_px")],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_texts_without_a_whole_box(subtests, name, texts):
    rows = [(text, category) for category in texts for text in texts[category]]
    for (text, category), strict in itertools.product(rows, (True, False)):
        with subtests.test(text=text, strict=strict):
            boxes, failures = CODECS[name].decode(text, 100, 100, strict=strict)
            assert boxes.shape == (0, 4)
            assert [failure.category for failure in failures] == [category]


@each_codec
def test_encode_refuses_what_is_no_box(subtests, name):
    good = [0.1, 0.1, 0.2, 0.2]
    for box, message in (
        ([0.1, 0.1, 1.2, 0.5], "outside its image"),
        ([-0.1, 0.1, 0.2, 0.5], "outside its image"),
        ([100, 200, 300, 400], "pixels have to be divided"),
        ([np.nan, 0.1, 0.2, 0.5], "outside its image"),
        ([0.5, 0.1, 0.5, 0.5], "no extent"),
        ([0.1, 0.6, 0.5, 0.5], "no extent"),
    ):
        with subtests.test(box=box), pytest.raises(UserError, match=message):
            CODECS[name].encode(np.array([good, box]), 100, 100)


@each_codec
def test_a_size_is_never_assumed_nor_a_shape(subtests, name):
    codec = CODECS[name]
    for size in ((None, None), (0, 100), (100, -1)):
        for call in (codec.encode, codec.decode, codec.find):
            said = np.zeros((0, 4)) if call == codec.encode else ""
            # TypeError: from the run-time type check, where that is on.
            with (
                subtests.test(size=size, call=call),
                pytest.raises((UserError, TypeError), match=r"image_hw|height"),
            ):
                call(said, *size)
    with pytest.raises((ValueError, TypeError)):
        codec.encode(np.zeros(4), 100, 100)


HOSTILE = [row[0] + (row[1] * row[2] if row[1:] else "") for row in FRAGMENTS["hostile"]]


def _mixed(seed):
    """A few of them, each repeated, one behind the other."""
    rng = random.Random(seed)
    parts = rng.choices([unit for unit in HOSTILE if len(unit) < 100], k=rng.randint(2, 5))
    return "".join(part * rng.choice((1, 1, 2, 30, 200)) for part in parts)


def _seconds(read, unit, characters):
    """Processor time of the quicker of two; the other one may have met a garbage collection."""
    text = (unit * (characters // len(unit) + 1))[:characters]
    taken = []
    for _ in range(2):
        started = time.process_time()
        read(text)
        taken.append(time.process_time() - started)
        if taken[0] < 0.1:
            break
    return min(taken)


def _read_with(name):
    codec = CODECS[name]
    codec.read_as_written("", 3000, 3000)  # strict and lenient in one
    return lambda text: codec.read_as_written(text, 3000, 3000)


UNITS = [*HOSTILE, *(_mixed(seed) for seed in range(12))]


@each_codec
@pytest.mark.parametrize("step", [16, pytest.param(4, marks=pytest.mark.slow)])
def test_an_answer_of_200_kilobytes_is_read_at_once(subtests, name, step):
    """Units between the steps are read in a tenth, and each by other codecs as a whole.
    0.2 s on a quiet core; beside a busy neighbour on the same core it takes up to 0.23."""
    for number, unit in enumerate(UNITS, start=-list(CODECS).index(name)):
        characters, seconds = (20_000, 0.1) if number % step else (200_000, 0.3)
        with subtests.test(unit=unit[:80]):
            assert _seconds(_read_with(name), unit, characters) < seconds


@pytest.mark.slow
@each_codec
def test_time_is_linear_in_the_text(subtests, name):
    for unit in UNITS[list(CODECS).index(name) % 20 :: 20]:
        with subtests.test(unit=unit[:80]):
            assert _seconds(_read_with(name), unit, 600_000) < 1


@each_codec
def test_boxes_survive_prose_and_case_in_lenient_reading_alone(name):
    codec = CODECS[name]
    box = np.array([[0.2, 0.3, 0.6, 0.9]])
    text = codec.encode(box, 800, 600)
    exact = codec.decode(text, 800, 600, strict=True)
    assert iou(exact.boxes, box).min() > (0.85 if name == "kosmos2" else 0.95)
    changes = [("<", "< "), (">", " >"), ("```json", "```"), ('"', "'"), ("[0", "[ 0")]
    for written in {text.upper(), *(text.replace(*change) for change in changes)} - {text}:
        lenient = codec.decode(f"See {written}.", 800, 600)
        assert lenient.failures == []
        np.testing.assert_allclose(lenient.boxes, exact.boxes)
        strict = codec.decode(f"See {written}.", 800, 600, strict=True)
        assert not len(strict.boxes)
        assert [failure.category for failure in strict.failures] == ["malformed"]


@each_codec
def test_a_letterbox_margin_is_not_image(name):
    """Boxes at the image's border stay on it, whatever the margin's rounding."""
    codec = CODECS[name]
    for height, width in ((3000, 2336), (2336, 3000), (1000, 999), (400, 39)):
        geometry = letterbox_geometry(height, width, 224, 224)
        edges = np.array(
            [[0, 0, 1, 1], [0, 0, 1e-5, 1e-5], [1 - 1e-5, 1 - 1e-5, 1, 1], [0.5, 0, 0.6, 1]]
        )
        text = codec.encode(edges, height, width, geometry)
        boxes, failures = codec.decode(text, height, width, geometry, strict=True)
        assert failures == []
        assert boxes.shape == edges.shape
