"""From tokens to a line of predictions."""

import math
import re

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.decoding.confidence import Spelled, box_confidences
from cxrjax.decoding.predictor import TokenAnswer, prediction
from cxrjax.input_pipeline.examples import ExampleConfig
from tests.asked import asked
from tests.decoding.conftest import TOKENIZER

_RECORD = asked(question_id="q7", question="Where is the ILD?", variables={"finding": "ILD"})
_BOX = np.array([[0.1, 0.3, 0.5, 0.6]], np.float32)


def _predicted(tokens, logprobs, words=None, config=None, stops=(TOKENIZER.eos_id,)):
    answer = TokenAnswer(_RECORD, np.array(tokens), logprobs, words)
    return prediction(answer, TOKENIZER, config or ExampleConfig(112), stops)


def _line(text, config=None, logprob=-0.5):
    tokens = np.array([*TOKENIZER.encode(text), TOKENIZER.eos_id, 0, 0])
    return _predicted(tokens, np.where(tokens > 0, logprob, 0.0), config=config)


def test_boxes_scores_and_labels_of_a_text_come_back_through_a_letterbox():
    box_text = CODECS["paligemma"].encode(_BOX, 112, 112)
    line = _line(f"The ILD is located at {box_text}.")
    assert line["question_id"] == "q7" and line["parse"] == "ok"
    assert "ILD is located at" in line["text"]
    np.testing.assert_allclose(line["boxes"], _BOX, atol=0.5 / 1024 + 1e-6)
    assert line["labels"] == ["ILD"]
    assert math.isclose(line["box_scores"][0], math.exp(-1.0), rel_tol=1e-5)
    words = len(TOKENIZER.encode(f"The ILD is located at {box_text}.")) + 1
    assert math.isclose(line["answer_logprob"], -0.5 * words, rel_tol=1e-5)
    # 300 x 200 in a square: 1/6 of the width is padding on either side.
    inside = np.array([[1 / 6 + 0.1 * 2 / 3, 0.3, 1 / 6 + 0.5 * 2 / 3, 0.6]], np.float32)
    text = CODECS["paligemma"].encode(inside, 112, 112)
    line = _line(text, ExampleConfig(112, geometry="letterbox"))
    np.testing.assert_allclose(line["boxes"], _BOX, atol=0.02)


def test_what_becomes_of_no_box_a_broken_one_and_one_that_was_mended_or_swapped():
    assert _line("There is no ILD.")["parse"] == "ok"
    assert _line("There is no ILD.")["boxes"] == []
    assert _line("<loc0001><loc0002>")["parse"] != "ok"
    line = _line("<loc100><loc0200><loc0300><loc0400>")  # a zero left out
    assert len(line["boxes"]) == 1 and line["repaired_boxes"] == 1
    assert "repaired_boxes" not in _line("<loc0100><loc0200><loc0300><loc0400>")
    line = _line("<loc0300><loc0512><loc0600><loc0100>")  # y, x, y, x: x_min beyond x_max
    left, right = 100.5 / 1024, 512.5 / 1024
    np.testing.assert_allclose(line["boxes"][0][::2], [right, left], atol=1e-5)
    assert line["parse"] == "ok"


def test_any_stop_token_ends_the_text_and_without_one_it_is_truncated():
    ids = TOKENIZER.encode("ILD")
    stop = TOKENIZER.encode("none")[0]
    logprobs = np.array([-0.5] * len(ids) + [-1.0, 0.0])
    line = _predicted([*ids, stop, 0], logprobs, stops=(1, stop))
    assert line["text"] == "ILD"
    assert math.isclose(line["answer_logprob"], -0.5 * len(ids) - 1.0)
    tokens = TOKENIZER.encode("No. No. No.")
    assert _predicted(tokens, np.zeros(len(tokens)))["parse"] == "truncated"


def test_scores_are_of_each_box_and_probabilities_of_tokens_without_watched_words():
    loc = TOKENIZER.loc_ids
    # The second stands behind a word of probability 0.1.
    logprobs = np.log(np.array([0.5] * 4 + [0.1] + [0.25] * 4))
    line = _predicted([*loc[1:5], 1500, *loc[5:9]], logprobs, stops=(1,))
    np.testing.assert_allclose(line["box_scores"], [0.5, 0.025], rtol=1e-6)
    assert box_confidences(Spelled(["No", "."], np.zeros(2)), []) == []
    tokens = [*TOKENIZER.encode("No."), TOKENIZER.eos_id]
    for words in (None, np.zeros((len(tokens), 0))):
        line = _predicted(tokens, np.full(len(tokens), -0.5), words)
        assert line["decision_logprob"] == -1.0  # "No" and "."
        assert line["coordinate_logprob"] is None


@pytest.mark.parametrize("codec", ["vindr_px", "medgemma_json", "qwen3_vl"])
def test_boxes_in_digits_have_scores_of_their_own_digits(codec):
    notation = CODECS[codec]
    boxes = np.array([[0.125, 0.25, 0.5, 0.75], [0.5, 0.5, 0.875, 0.9375]])
    text = "Yes: " + notation.encode(boxes, 1000, 1000)
    places = [(span.start, span.end) for span in notation.find(text, 1000, 1000)]
    # A character is a token; the digits of the second box are unsure, and so is the first word.
    key = {at for found in re.finditer("box_2d", text) for at in range(*found.span())}
    digits = [text[at].isdigit() and at not in key for at in range(len(text))]
    probabilities = np.where(digits, 0.9, 0.95)
    probabilities[[at for at in np.flatnonzero(digits) if at >= places[1][0]]] = 0.5
    probabilities[0] = 0.8
    spelled = Spelled(list(text), np.log(probabilities))
    scores = [found.score for found in box_confidences(spelled, places)]
    np.testing.assert_allclose(scores, [0.9 * 0.8, 0.5 * 0.8])


def test_a_reason_follows_the_answer_and_shows_no_box_of_it():
    box_text = CODECS["paligemma"].encode(_BOX, 112, 112)
    text = f"The ILD is located at {box_text}.\nReasoning: R1 drew {box_text} and another."
    line = _line(text, ExampleConfig(112, prompt="vqa_reason"))
    assert line["text"].endswith(".") and "Reasoning" not in line["text"]
    assert line["reason"].startswith("R1 drew")
    assert len(line["boxes"]) == len(line["box_scores"]) == len(line["labels"]) == 1
    without = _line(text.partition("\n")[0], ExampleConfig(112, prompt="vqa_reason"))
    assert without["reason"] == "" and without["text"] == line["text"]
    # A format that asks for no reason takes all of it for the answer.
    assert len(_line(text)["boxes"]) == 2
