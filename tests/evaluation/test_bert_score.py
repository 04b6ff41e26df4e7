"""BERTScore's arithmetic by hand, and what is refused before a model is needed."""

import json
import sys

import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.evaluation.text_scores.bert_score import (
    BertScore,
    BertScorer,
    BertScoreSettings,
    bert_score,
    rescale,
)
from tests.evaluation import made

CASES = made.cases_of(__file__)

ALL = np.ones(2, bool)


def test_by_hand():
    candidate = np.array([[3.0, 0.0], [0.0, 2.0]])
    reference = np.array([[1.0, 0.0], [1.0, 0.0]])
    # The candidate's tokens find 1 and 0; both of the reference's find 1.
    assert bert_score(candidate, ALL, reference, ALL) == pytest.approx((0.5, 1.0, 2 / 3))
    # A token that is no word is not averaged, and may be another one's nearest all the same.
    first = np.array([True, False])
    assert bert_score(candidate, ~first, reference, ALL) == pytest.approx((0.0, 1.0, 0.0))


def test_a_text_without_words_gets_nothing():
    vectors = np.eye(2)
    assert bert_score(vectors, ~ALL, vectors, ALL) == (0, 0, 0)
    assert bert_score(vectors, ALL, vectors, ~ALL) == (0, 0, 0)


def test_rescaling_keeps_one_and_puts_the_baseline_at_zero():
    baseline = BertScore(0.8, 0.7, 0.75)
    assert rescale(BertScore(1, 1, 1), baseline) == pytest.approx((1, 1, 1))
    assert rescale(baseline, baseline) == pytest.approx((0, 0, 0))
    # roberta-large's published baseline for F1 at layer 17 is about 0.83: raw 0.90 is 0.41 then.
    assert rescale(BertScore(0.9, 0.9, 0.9), BertScore(0.83, 0.83, 0.83)).f1 == pytest.approx(
        0.07 / 0.17
    )


def test_without_pytorch_it_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"torch cannot be imported.*cxrjax\[bertscore\]"):
        BertScorer(BertScoreSettings(tmp_path))


@pytest.mark.parametrize(("config", "layer", "baseline", "message"), CASES["unusable_settings"])
def test_unusable_settings(tmp_path, monkeypatch, config, layer, baseline, message):
    monkeypatch.setitem(sys.modules, "torch", object())
    if config is not None:
        sizes = {} if "hidden_size" in config else {"num_hidden_layers": 3}
        text = json.dumps({"max_position_embeddings": 64, **sizes, **config})
        (tmp_path / "config.json").write_text(text)
    table = None
    if baseline is not None:
        table = tmp_path / "baseline.tsv"
        table.write_text(baseline)
    with pytest.raises(UserError, match=message):
        BertScorer(BertScoreSettings(tmp_path, layer, table))
