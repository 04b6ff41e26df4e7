"""Conventions of models that people use now, by examples of their makers' formats."""

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.codecs.frames import smart_resize


def read(name, text, height=1000, width=1000, strict=False):
    boxes, failures = CODECS[name].decode(text, height, width, strict=strict)
    return boxes, [failure.category for failure in failures]


@pytest.mark.parametrize(
    ("name", "text", "size", "expected", "label"),
    [
        # Numbers of published examples, and what their makers' own code reads in them.
        (
            "qwen_vl",
            "<ref>effusion</ref><box>(536,509),(588,602)</box>",
            (100, 200),
            [0.536, 0.509, 0.588, 0.602],
            "effusion",
        ),
        (
            "qwen2_vl",
            "<|object_ref_start|>effusion<|object_ref_end|><|box_start|>(272,494),(732,621)"
            "<|box_end|>",
            (100, 200),
            [0.272, 0.494, 0.732, 0.621],
            "effusion",
        ),
        (
            "qwen2.5_vl",
            '```json\n[\n\t{"bbox_2d": [341, 258, 397, 360], "label": "effusion"}\n]\n```',
            (644, 924),  # multiples of 28: the input is the image
            [341 / 924, 258 / 644, 397 / 924, 360 / 644],
            "effusion",
        ),
        (
            "qwen2.5_vl",
            '```json[{"bbox_2d": [518, 0, 1036, 518]}]```',
            (1024, 1024),  # the input has 1036 x 1036 pixels
            [0.5, 0.0, 1.0, 0.5],
            None,
        ),
        (  # Gemma 4's: huggingface.co/blog/gemma4
            "gemini_json",
            '```json\n[\n  {"box_2d": [171, 75, 245, 308], "label": "effusion"}\n]\n```',
            (10, 20),
            [0.075, 0.171, 0.308, 0.245],
            "effusion",
        ),
        (
            "qwen3_vl",
            '```json\n[\n\t{"bbox_2d": [341, 258, 397, 360], "label": "effusion"}\n]\n```',
            (644, 900),
            [0.341, 0.258, 0.397, 0.360],
            "effusion",
        ),
        (
            "deepseek_vl2",
            "<|ref|>effusion<|/ref|><|det|>[[100, 200, 300, 400]]<|/det|>",
            (1000, 1000),
            np.array([100.1, 200.2, 300.3, 400.4]) / 1000,
            "effusion",
        ),
        (
            "glm_v",
            "It is at <|begin_of_box|>[[94,598,177,991]]<|end_of_box|>.",
            (10, 20),
            [0.094, 0.598, 0.177, 0.991],
            None,
        ),
        (
            "glm_v",
            "It is at <|begin_of_box|>[816, 162, 838, 172]<|end_of_box|>.",
            (10, 20),
            [0.816, 0.162, 0.838, 0.172],
            None,
        ),
        (
            "florence2",
            "effusion<loc_52><loc_332><loc_932><loc_774>",
            (480, 640),
            np.array([33.6, 159.6, 596.8, 371.76]) / [640, 480, 640, 480],
            "effusion",
        ),
        (
            "kosmos2",
            "<phrase> effusion</phrase><object><patch_index_0044><patch_index_0863></object>",
            (10, 20),
            [0.390625, 0.046875, 0.984375, 0.828125],
            "effusion",
        ),
    ],
)
def test_a_published_form_is_read_as_its_makers_do(name, text, size, expected, label):
    boxes, failures = read(name, text, *size, strict=True)
    np.testing.assert_allclose(boxes, [expected], atol=1e-4)
    assert failures == []
    (span,) = CODECS[name].find(text, *size)
    assert span.label == label


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


BOX = [[0.1, 0.3, 0.4, 0.5]]
TWO = [[0.1, 0.3, 0.4, 0.5], [0.6, 0.7, 0.8, 0.9]]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("medgemma_json", '{"box_2d": [[300, 100, 500, 400]], "label": "a"}', BOX),
        ("medgemma_json", '{"box_2d": [[300, 100], [500, 400]]}', BOX),
        ("medgemma_json", '{"box_2d": [[300, 100, 500, 400], [700, 600, 900, 800]]}', TWO),
        ("medgemma_json", '{"box_2d": ["300", "100", "500", "400"]}', BOX),
        ("medgemma_json", "{'box_2d': [['300', '100'], ['500', '400']]}", BOX),
        ("medgemma_json", '```json[{"bbox_2d": [300, 100, 500, 400], "label": "a"}]```', BOX),
        (
            "medgemma_json",
            'Final Answer: ```json[{"box_2d":[1,2,3,4]}]```\n'
            '**Final Answer:** ```json[{"box_2d":[300,100,500,400]}]```',
            BOX,
        ),
        (
            "medgemma_json",
            'Final Answer: ```json[{"box_2d":[300,100,500,400]}]```\nFinal Answer: The heart.',
            BOX,
        ),
        ("gemini_json", '{"box_2d": [[300, 100], [500, 400]]}', BOX),
        ("chexagent", "<|ref|>a<|/ref|><|box|>(10,30),(40,50),(60,70),(80,90)<|/box|>", TWO),
        ("chexagent", "<|box|>(10,30),(40,50)(60,70),(80,90)<|/box|>", TWO),
        ("qwen_vl", "<box>(100,300),(400,500),(600,700),(800,900)</box>", TWO),
        ("qwen2_vl", "(100,300),(400,500)", BOX),
        ("deepseek_vl2", "[[100, 300, 400, 500], [600, 700, 800, 900]]", TWO),
        ("radvlm", "It is at (0.10, 0.30, 0.40, 0.50).", BOX),
        ("radvlm", "It is at [10%, 30%, 40%, 50%].", BOX),
        ("radvlm", "It is at (10 %, 30 %, 40.0 %, 50 %).", BOX),
        ("vindr_px", "It is at loc_100_300_400_500.", BOX),
        ("vindr_px", "It is at (loc_100_300_400_500) and [loc 600, 700, 800, 900].", TWO),
        (
            "kosmos2",
            "<phrase>a</phrase><object><patch_index_0044><patch_index_0863>"
            "</delimiter_of_multi_objects/><patch_index_0044><patch_index_0863></object>",
            [[0.390625, 0.046875, 0.984375, 0.828125]] * 2,
        ),
        # One row of patches: all of them.
        ("kosmos2", "<patch_index_0036><patch_index_0039>", [[4 / 32, 1 / 32, 8 / 32, 2 / 32]]),
        ("florence2", "a<loc_99><loc_299><loc_399><loc_499>", BOX),
    ],
)
def test_variants_are_read_leniently(name, text, expected):
    boxes, failures = read(name, text)
    np.testing.assert_allclose(boxes, expected, atol=1e-3)
    assert failures == []


@pytest.mark.parametrize(
    ("name", "text", "category"),
    [
        ("radvlm", "The ratio (0.6) and the size (2.5 cm) are large (see 1, 2, 3, 4).", "no_box"),
        ("radvlm", "[10%, 0.3, 40%, 50%]", "malformed"),
        ("vindr_px", "see loc_100_300 and loc_1_2_3_4_5", "no_box"),
        ("medgemma_json", '{"box_2d": [[300, 100, 500], [400]]}', "wrong_arity"),
        ("medgemma_json", 'Final Answer: {"box_2d":[1,2,3,4]} Final Answer: []', "no_box"),
        ("qwen3_vl", '{"bbox_2d": [0.1, 0.3, 0.4, 0.5]}', "ambiguous_scale"),
        ("qwen3_vl", '{"box_2d": [100, 300, 400, 500]}', "no_box"),
        ("deepseek_vl2", "<|ref|>a<|/ref|><|det|>[[1, 2, 3", "truncated"),
        ("glm_v", "<|begin_of_box|>[[1, 2, 3]]<|end_of_box|>", "wrong_arity"),
        ("glm_v", "<|begin_of_b", "truncated"),
        ("florence2", "a<loc_1><loc_2><loc_3>", "truncated"),
        ("florence2", "a<loc_1><loc_2><loc_3> b", "wrong_arity"),
        # A polygon is no two boxes.
        ("florence2", "a<poly>" + "".join(f"<loc_{n}>" for n in range(8)) + "</poly>", "malformed"),
        ("kosmos2", "<object><patch_index_0044></object> is", "wrong_arity"),
        ("kosmos2", "<object><patch_index_0044><patch_in", "truncated"),
        ("kosmos2", "<patch_index_0863><patch_index_5000>", "out_of_range"),
        ("qwen2.5_vl", '{"bbox_2d": [1500, 1500, 1900, 1900]}', "out_of_range"),
    ],
)
def test_what_cannot_be_read(name, text, category):
    boxes, failures = read(name, text)
    assert not len(boxes)
    assert set(failures) == {category}
