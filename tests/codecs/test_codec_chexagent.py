import numpy as np
import pytest

from cxrjax.codecs import CODECS, transcode
from cxrjax.images.geometry import letterbox_geometry

CODEC = CODECS["chexagent"]
HEIGHT, WIDTH = 3000, 2000
TEXT = "<|box|>(55,45),(70,56)<|/box|>"
BOX = np.array([0.55, 0.45, 0.70, 0.56])


def read(text, strict):
    boxes, failures = CODEC.decode(text, HEIGHT, WIDTH, strict=strict)
    return boxes, [failure.category for failure in failures]


def test_hundredths_of_the_image():
    for strict in (True, False):
        boxes, failures = read(f"It is here: {TEXT}{TEXT}.", strict)
        np.testing.assert_allclose(boxes, [BOX, BOX], rtol=1e-6)
        assert failures == []
    assert CODEC.encode(BOX[None], HEIGHT, WIDTH) == TEXT
    geometry = letterbox_geometry(HEIGHT, WIDTH, 448, 448)
    assert CODEC.encode(BOX[None], HEIGHT, WIDTH, geometry) == TEXT
    whole = CODEC.encode(np.array([[0, 0, 1, 1]]), HEIGHT, WIDTH)
    assert whole == "<|box|>(0,0),(100,100)<|/box|>"


def test_a_phrase_before_a_box_is_its_label_and_stays():
    text = f"<|ref|>left effusion<|/ref|>{TEXT} and {TEXT}"
    spans = CODEC.find(text, HEIGHT, WIDTH, strict=True)
    assert [span.label for span in spans] == ["left effusion", None]
    assert transcode(text, "chexagent", "chexagent", HEIGHT, WIDTH) == text
    assert transcode(text, "chexagent", "radvlm", HEIGHT, WIDTH) == (
        "<|ref|>left effusion<|/ref|>[0.55, 0.45, 0.70, 0.56] and [0.55, 0.45, 0.70, 0.56]"
    )


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("text", "categories"),
    [
        ("The heart (see above) is large (CTR 0.6).", ["no_box"]),
        ("<|box|>", ["truncated"]),
        ("at <|bo", ["truncated"]),
        ("<|box|>(55,45),(70", ["truncated"]),
        ("<|box|>(55,45)", ["truncated"]),
        ("(55,45),(70", ["truncated"]),
        ("<|box|>(55,45),(70)<|/box|>", ["wrong_arity"]),
        ("<|box|>(55,45),(70,56,9)<|/box|>", ["wrong_arity"]),
        ("<|box|>(5-5,45),(70,56)<|/box|>", ["malformed"]),
        ("<|box|>left base<|/box|>", ["malformed"]),
        ("<|box|><|/box|>", ["malformed"]),
        ("<|box|>(55,45),(55,56)<|/box|>", ["degenerate"]),
        ("<|box|>(155,145),(170,156)<|/box|>", ["out_of_range"]),
        ("<|box|>(-30,45),(-20,56)<|/box|>", ["out_of_range"]),
    ],
)
def test_failures_of_both_modes(text, categories, strict):
    boxes, failed = read(text, strict)
    assert not len(boxes)
    assert failed == categories


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("(55,45),(70,56)", "malformed"),
        ("at (55, 45) (70, 56), I think", "malformed"),
        ("<box>(55,45),(70,56)</box>", "malformed"),
        ("<|box|>(55,45),(70,56)", "malformed"),
        ("<|box|>(55,45),(70,56)<|/b", "malformed"),
        ("<|box|>[55, 45, 70, 56]<|/box|>", "malformed"),
        ("<|box|>(55.0,45),(70,56)<|/box|>", "malformed"),
        ("<|box|>(70,56),(55,45)<|/box|>", "degenerate"),
    ],
)
def test_repaired_when_lenient(text, category):
    boxes, failed = read(text, strict=False)
    np.testing.assert_allclose(boxes, BOX[None], atol=1e-6)
    assert failed == []
    assert read(text, strict=True)[1] == [category]
