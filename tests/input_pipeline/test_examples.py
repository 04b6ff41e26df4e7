"""One record to tokens, masks and boxes."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cxrjax.boxes import iou
from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.images.geometry import letterbox_geometry
from cxrjax.input_pipeline import examples
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.records import QARecord, strip_answers
from tests.papers.cases import cases

from .conftest import demo_tokenizer, make_record, written

TOKENIZER = demo_tokenizer()
PALIGEMMA = CODECS["paligemma"]
HEIGHT, WIDTH = 300, 200
CONFIG = examples.ExampleConfig(image_size=112)


def encode(record: QARecord, **changes):
    return examples.QuestionEncoder(TOKENIZER, dataclasses.replace(CONFIG, **changes)).encode(
        record
    )


def test_prefixes_and_answers_of_every_format_are_delimited():
    example = encode(make_record("It is at <loc_20_30_100_150>."))
    assert example.prefix[0] == TOKENIZER.bos_id
    assert TOKENIZER.decode(example.prefix) == "Where is the Cardiomegaly?\n"
    assert example.answer[-1] == TOKENIZER.eos_id
    assert TOKENIZER.decode(example.answer) == "It is at <loc0102><loc0102><loc0512><loc0512>."
    record = make_record("see <b> 3<4 at <loc_20_30_100_150>.")
    example = encode(record)
    ids = np.asarray(example.answer)[example.coordinate_positions] - TOKENIZER.loc_ids[0]
    np.testing.assert_array_equal(PALIGEMMA.from_bins(ids), example.boxes)
    record = make_record("No.").model_copy(update={"type_prompt": "[tag]"})
    ends = ("\n", " ASSISTANT:", "\nAssistant:", " [/INST]", "<channel|>")
    assert all(format.prefix(record).endswith(ends) for format in PROMPTS.values())
    asked = {name + kind for name in _ASKED for kind in ("", "_reason", "_typed")}
    gemex = {"gemex" + kind for kind in ("", "_chat", "_dialogue", "_llava", "_llava_med")}
    others = {"detect", "grounded", "grounded_chat", "grounding", "llava", "llava_med"}
    assert set(PROMPTS) == asked | gemex | others | {"medgemma_boxes"}


pixel_boxes = st.lists(
    st.tuples(*(st.integers(1, side) for side in (WIDTH, HEIGHT, WIDTH, HEIGHT))).map(
        lambda b: (min(b[0], b[2]) - 1, min(b[1], b[3]) - 1, b[2], b[3])
    ),
    max_size=8,
)
prose = st.text(st.characters(codec="utf-8", exclude_characters="\0▁<"), max_size=20)


@given(
    pixel_boxes, st.lists(prose, min_size=9, max_size=9), st.sampled_from(["resize", "letterbox"])
)
def test_tokens_at_the_positions_say_the_target_boxes(boxes, words, geometry):
    parts = [f"{word} {box}" for word, box in zip(words, written(boxes), strict=False)]
    record = make_record("".join(parts) + words[-1])
    example = encode(record, geometry=geometry, answer_buckets=(1024,))
    assert example.boxes.shape == (len(boxes), 4) and example.boxes.dtype == np.float32
    ids = np.asarray(example.answer)[example.coordinate_positions]
    bins = ids - TOKENIZER.loc_ids[0]
    np.testing.assert_array_equal(PALIGEMMA.from_bins(bins), example.boxes)
    # And they are the boxes of the record, moved into the model's frame.
    fractions = np.asarray(boxes, np.float32).reshape(-1, 4) / [WIDTH, HEIGHT, WIDTH, HEIGHT]
    if geometry == "letterbox":
        fractions = letterbox_geometry(HEIGHT, WIDTH, 112, 112).apply(fractions)
    np.testing.assert_allclose(example.boxes, fractions, atol=0.51 / 1024)
    # Each location token belongs to exactly one coordinate.
    is_loc = np.isin(example.answer, TOKENIZER.loc_ids)
    assert sorted(example.coordinate_positions.ravel()) == np.flatnonzero(is_loc).tolist()


def test_boxes_of_an_answer_decode_to_the_record_s_or_are_none():
    boxes = [(20, 60, 100, 270), (5, 5, 30, 40)]
    text = "Seen at <loc_20_60_100_270> and <loc_5_5_30_40>."
    for geometry in ("resize", "letterbox"):
        example = encode(make_record(text), geometry=geometry)
        frame = letterbox_geometry(HEIGHT, WIDTH, 112, 112) if geometry == "letterbox" else None
        decoded = PALIGEMMA.decode(TOKENIZER.decode(example.answer), HEIGHT, WIDTH, frame)
        assert not decoded.failures
        expected = np.asarray(boxes) / [WIDTH, HEIGHT, WIDTH, HEIGHT]
        assert iou(decoded.boxes, expected).min() > 0.95
    example = encode(make_record("No, there is no Cardiomegaly."))
    assert example.boxes.shape == example.coordinate_positions.shape == (0, 4)
    assert [examples.bucket(n, (4, 8)) for n in (0, 4, 5, 8)] == [4, 4, 8, 8]


@pytest.mark.parametrize("codec", ["paligemma", "vindr_px"])
def test_without_a_box_loss_there_are_no_coordinates(codec):
    text = "It is at <loc_20_30_100_150>."
    example = encode(make_record(text), codec=codec, box_route="none")
    said = CODECS[codec].decode(TOKENIZER.decode(example.answer), HEIGHT, WIDTH)
    assert len(said.boxes) == 1
    assert len(example.boxes) == len(example.coordinate_positions) == 0
    assert example.digits is None


def test_detect_format_names_the_finding_before_its_boxes():
    boxes = [(20, 60, 100, 270), (0, 0, 50, 75)]
    record = make_record("Whatever it says.", boxes)
    example = encode(record, prompt="detect")
    assert TOKENIZER.decode(example.prefix) == "detect Cardiomegaly\n"
    assert TOKENIZER.decode(example.answer) == (
        "Cardiomegaly <loc0204><loc0102><loc0921><loc0512> <loc0000><loc0000><loc0256><loc0256>"
    )
    assert len(example.boxes) == 2
    nothing = encode(make_record("No."), prompt="detect")
    assert TOKENIZER.decode(nothing.answer) == "none"


def test_what_is_lacking_is_named_and_prediction_needs_no_answer():
    with pytest.raises(UserError, match=r"question q1: variables.finding is null"):
        encode(make_record("No.", variables=None), prompt="detect")
    with pytest.raises(UserError, match="question q1: image_hw is null"):
        encode(make_record("No.", image_hw=None))
    record = strip_answers(make_record("It is at <loc_20_30_100_150>."))
    encoder = examples.QuestionEncoder(TOKENIZER, CONFIG)
    example = encoder.encode(record.model_copy(update={"image_hw": None}), with_answer=False)
    assert TOKENIZER.decode(example.prefix) == "Where is the Cardiomegaly?\n"
    assert len(example.answer) == 0
    with pytest.raises(UserError, match="question q1: no answer to learn from"):
        encoder.encode(record)


@pytest.mark.parametrize(
    "text", ["at <loc_1_2_3>", "at <loc_1_2_3_x>", "at <loc_50_50_20_20>", "at <loc_0_0_201_10>"]
)
def test_answer_boxes_that_do_not_parse_are_refused_by_name(text):
    with pytest.raises(UserError, match=r"question q1: .*<loc_"):
        encode(make_record(text))


@cases("changes, reason, message")
def test_nothing_is_truncated(changes, reason, message):
    record = make_record("At <loc_1_2_30_40> and <loc_5_6_70_80>.")
    with pytest.raises(examples.TooLongError, match=f"question q1: {message}") as caught:
        encode(record, **changes)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.reason, str(copy)) == (reason, str(caught.value))


@cases("changes")
def test_unusable_settings_are_refused_by_name(changes):
    (name,) = changes
    with pytest.raises(UserError, match=f"{name} is "):
        examples.ExampleConfig(image_size=112, **changes)


_ASKED = ("vqa", "qwen", "gemma4", "gemma4_small", "medgemma", "smolvlm")


@pytest.mark.parametrize("geometry", ["resize", "letterbox"])
@pytest.mark.parametrize(("height", "width"), [(300, 200), (160, 320)])
def test_pixels_land_where_boxes_are_said_to(tmp_path, geometry, height, width):
    """The transform of the pixels and the map of the boxes are chosen in two places."""
    x0, y0, x1, y1 = 40, 60, 120, 110
    pixels = np.zeros((height, width), np.uint8)
    pixels[y0:y1, x0:x1] = 255
    Image.fromarray(pixels).save(tmp_path / "image.png")
    config = examples.ExampleConfig(112, geometry=geometry)
    bright = examples.load_image(tmp_path / "image.png", config)[..., 0] > 127
    rows, columns = np.flatnonzero(bright.any(1)), np.flatnonzero(bright.any(0))
    seen = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) / 112
    fractions = np.array([[x0 / width, y0 / height, x1 / width, y1 / height]])
    said = examples.image_geometry(height, width, config).apply(fractions)[0]
    np.testing.assert_allclose(seen, said, atol=1 / 112)
