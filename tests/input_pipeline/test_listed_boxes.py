"""Answers that list more boxes than there are."""

import re

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.input_pipeline.augment import AugmentConfig, draw_change
from cxrjax.input_pipeline.examples import ExampleConfig, QuestionEncoder
from cxrjax.input_pipeline.listed_boxes import LISTED, are_real, list_boxes, only
from tests.input_pipeline.test_prompts import make_record

TRUE = "<loc0100><loc0200><loc0300><loc0400>"
OTHER = "<loc0500><loc0200><loc0700><loc0400>"
BOX = re.compile(r"(?:<loc\d{4}>){4}")


def encoder(tokenizer, **settings) -> QuestionEncoder:
    lengths = {"prefix_buckets": (200,), "answer_buckets": (200,)}
    config = ExampleConfig(112, prompt="vqa_listed", **lengths, **settings)
    return QuestionEncoder(tokenizer, config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("No, there is no ILD.", "No, there is no ILD."),
        (f"Yes, ILD at {TRUE}.", "Yes, ILD at."),
        (f"There are 2 areas of ILD: {TRUE} and {OTHER}.", "There are 2 areas of ILD:."),
    ],
)
def test_a_list_is_filled_with_boxes_marked_as_noise(text, words):
    true = BOX.findall(text)
    listed = list_boxes(text, (1, 2))
    boxes = BOX.findall(listed)
    assert boxes[: len(true)] == true and len(boxes) == LISTED
    assert are_real(listed) == [True] * len(true) + [False] * (LISTED - len(true))
    read = CODECS["paligemma"].read_as_written(listed, 100, 100)
    assert read.parse == "ok" and not read.repaired
    corners = np.array([span.as_written for span in read.spans])
    assert (corners[:, :2] < corners[:, 2:]).all()
    assert only(listed, are_real(listed)) == " ".join([*true, words])
    assert list_boxes(text, (1, 2)) == listed != list_boxes(text, (1, 3))


def test_as_many_boxes_as_a_list_has_need_no_noise():
    listed = list_boxes(" ".join([TRUE] * (LISTED + 1)), (0,))
    assert are_real(listed) == [True] * (LISTED + 1)


def test_half_of_the_noise_lies_beside_true_boxes():
    text = "<loc0500><loc0500><loc0510><loc0510>"  # too small to be drawn but beside it
    sides = []
    for seed in range(400):
        read = CODECS["paligemma"].decode(list_boxes(text, (seed,)), 1, 1)[0]
        sides += list((read[1:, 2:] - read[1:, :2]).max(1))
    assert 0.45 < np.mean(np.array(sides) < 0.03) < 0.55


def test_boxes_that_do_not_count_leave():
    text = f"{TRUE} {OTHER} no Yes, ILD at."
    assert only(text, [True, True]) == f"{TRUE} {OTHER} Yes, ILD at."
    assert only(text, [False, True]) == f"{OTHER} Yes, ILD at."


def test_what_is_learned_of_boxes_is_of_true_ones_alone(tokenizer):
    example = encoder(tokenizer).encode(make_record())
    plain = ExampleConfig(112, prefix_buckets=(200,), answer_buckets=(200,))
    expected = QuestionEncoder(tokenizer, plain).encode(make_record())
    np.testing.assert_array_equal(example.boxes, expected.boxes)
    first, last = tokenizer.loc_ids[[0, -1]]
    is_bin = (example.answer >= first) & (example.answer <= last)
    assert is_bin.sum() == 4 * LISTED and example.coordinate_positions.size == 8
    is_bin[example.coordinate_positions] = False
    assert is_bin.sum() == 4 * (LISTED - 2)


def test_noise_is_another_at_every_visit(tokenizer):
    config = AugmentConfig(gamma=0.1)
    first, again, other = (
        encoder(tokenizer).encode(make_record(), change=draw_change(config, 0, position)).answer
        for position in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_answers_about_several_findings_stay(tokenizer):
    record = make_record(variables={})
    assert tokenizer.decode(encoder(tokenizer).encode(record).answer).startswith("It is at <loc")


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"codec": "vindr_px"}, "q1.*data.codec"), ({"box_route": "none"}, "auto")],
)
def test_what_cannot_be_listed_is_refused(tokenizer, settings, told):
    with pytest.raises(UserError, match=told):
        encoder(tokenizer, **settings).encode(make_record())
