"""Sentences of answers and references, and which boxes are theirs."""

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.evaluation.predictions import Prediction
from cxrjax.evaluation.text_scores.sentences import read_sentences, reference_text
from cxrjax.records import Answer
from tests.evaluation import made

CASES = made.cases_of(__file__)

A, B = "<loc_10_10_20_20>", "<loc_50_50_90_90>"
FIRST, SECOND = [0.1, 0.1, 0.2, 0.2], [0.5, 0.5, 0.9, 0.9]


def read(text, boxes=None, codec="vindr_px"):
    line = Prediction("q", text, None if boxes is None else np.array(boxes), None, "ok")
    found = read_sentences(line, CODECS[codec], (100, 100), "here")
    return [(sentence.text, sentence.boxes.round(3).tolist()) for sentence in found]


@pytest.mark.parametrize(("text", "expected"), CASES["sentences"])
def test_boxes_belong_to_the_sentence_that_they_stand_in_or_behind(text, expected):
    found = read(text)
    assert [boxes for _, boxes in found] == expected
    assert not any("<" in words or "loc" in words for words, _ in found)


@pytest.mark.parametrize(("codec", "text", "expected"), CASES["notations"])
def test_notations_that_models_write(codec, text, expected):
    assert [[words, len(boxes)] for words, boxes in read(text, codec=codec)] == expected


def test_boxes_beside_the_text_belong_to_every_sentence():
    both = [FIRST, SECOND]
    assert read("A nodule. A mass.", both) == [("A nodule.", both), ("A mass.", both)]
    # The text has as many: it says which is whose, and the line where they are.
    moved = [[0.3, 0.3, 0.4, 0.4], SECOND]
    assert read(f"A nodule. {A} A mass. {B}", moved) == [
        ("A nodule.", [moved[0]]),
        ("A mass.", [SECOND]),
    ]
    assert read(" ", both) == []


@pytest.mark.parametrize("piece", ["[", "(1 ", "<", "<obj>", f"A nodule. {A} ", "No effusion. "])
def test_a_text_of_a_million_characters_takes_seconds(piece):
    assert len(read(piece * (1_000_000 // len(piece)))) <= 200


def test_references_are_their_main_answers():
    answers = [
        Answer(text="No effusion."),
        Answer(text="A nodule. It is round.", boxes_by_image={"i": [[10, 10, 20, 20]]}),
        Answer(text="Elsewhere.", boxes_by_image={"j": [[10, 10, 20, 20]]}),
        Answer(text="Further.", answer_type="details"),
    ]
    record = made.record_of("i", answers=answers, image_hw=(100, 100))
    found = reference_text(record)
    assert [(sentence.text, len(sentence.boxes)) for sentence in found.sentences] == [
        ("No effusion.", 0),
        ("A nodule.", 1),
        ("It is round.", 1),
        ("Elsewhere.", 0),
    ]
    assert found.sentences[1].boxes.tolist() == [FIRST]
    assert found.text == "No effusion. A nodule. It is round. Elsewhere."
