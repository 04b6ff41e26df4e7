"""Text metrics: RadEval through its interface, BERTScore by hand, sentences and their boxes."""

import json
import os
import sys
import types

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.evaluation.predictions import Prediction
from cxrjax.evaluation.text_scores.bert_score import (
    BertScore,
    BertScorer,
    BertScoreSettings,
    bert_score,
    rescale,
)
from cxrjax.evaluation.text_scores.sentences import read_sentences, reference_text
from cxrjax.records import Answer, write_records
from tests.evaluation import made

SAID = ["Pleural effusion.", "", "No effusion."]
TRUE = ["Pleural effusion.", "Cardiomegaly.", "Pleural effusion."]
# What 2.2.1 gives: for each text, or once for all.
EACH = {
    "radgraph": ["radgraph_simple", "radgraph_partial", "radgraph_complete"],
    "ratescore": ["ratescore"],
    "green": ["green"],
}
ONCE = {
    "f1chexbert": [
        f"f1chexbert_{classes}_{mean}_f1"
        for classes in ("5", "all")
        for mean in ("micro", "macro", "weighted")
    ],
    "srrbert": [f"srrbert_weighted_{name}" for name in ("f1", "precision", "recall")],
}


class RadEval:
    """Signature and manners of radeval.RadEval; a text is worth the words that it shares."""

    fault = None
    calls: list = []

    def __init__(
        self,
        metrics=None,
        openai_api_key=None,
        gemini_api_key=None,
        per_sample=False,
        detailed=False,
        show_progress=True,
        cache_dir=None,
    ):
        (self.name,) = metrics
        self.per_sample = per_sample
        if self.fault == "weights":
            raise OSError("We couldn't connect to the hub,\nand couldn't find them in the cache.")
        if self.fault == "package":
            raise ModuleNotFoundError("No module named 'medspacy'")
        assert sys.modules["RadEval"] is sys.modules["radeval"]

    def __call__(self, refs, hyps):
        assert isinstance(refs, list) and isinstance(hyps, list) and len(refs) == len(hyps)
        RadEval.calls.append((self.name, refs, hyps))
        worth = [float(ref == hyp) for ref, hyp in zip(refs, hyps, strict=True)]
        if self.fault == "short":
            worth = worth[1:]
        if self.name in EACH:
            assert self.per_sample
            return {key: worth for key in EACH[self.name]}
        assert not self.per_sample
        return dict.fromkeys(ONCE[self.name], sum(worth) / len(worth))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Records and answers, and the module in the package's place."""
    package = types.ModuleType("radeval")
    package.RadEval = type("RadEval", (RadEval,), {})
    RadEval.calls = []
    monkeypatch.setitem(sys.modules, "radeval", package)
    monkeypatch.setitem(sys.modules, "RadEval", None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    records = [
        made.record_of(f"i{n}", labels=["Effusion"], dataset="custom", answer={"text": text})
        for n, text in enumerate(TRUE)
    ]
    write_records(tmp_path / "records.jsonl", records)
    made.write_lines(tmp_path / "said.jsonl", map(made.line_of, records, SAID))

    def run(radeval, benchmark="own"):
        metrics, _ = made.run_score(
            tmp_path, "said", benchmark=benchmark, radeval=radeval, resamples=9
        )
        return metrics["said"]["strict"]

    run.package = package.RadEval
    run.out = tmp_path / "out"
    return run


def test_its_figures_stand_in_the_tables(files, capsys):
    found = files("radgraph,f1chexbert,ratescore,green,srrbert")
    names = {name for name in found if name.startswith("radeval/")}
    assert names == {
        *(f"radeval/{key}" for keys in EACH.values() for key in keys),
        *(f"radeval/{key}" for key in ONCE["f1chexbert"] if "weighted" not in key),
        *(f"radeval/{key}" for key in ONCE["srrbert"]),
    }
    # One of three alike; an answer without words is worth 0 and not given to the package.
    ratescore = found["radeval/ratescore"]
    assert ratescore["value"] == pytest.approx(1 / 3) and ratescore["n"] == 3
    assert ratescore["ci_low"] is not None
    once = found["radeval/f1chexbert_5_micro_f1"]
    assert once == {"value": pytest.approx(1 / 3), "ci_low": None, "ci_high": None, "n": 3}
    asked = {name: hyps for name, _, hyps in RadEval.calls}
    assert asked["green"] == ["Pleural effusion.", "No effusion."]
    assert asked["f1chexbert"] == SAID
    printed = capsys.readouterr().out
    assert "## RadEval" in printed and "| RaTEScore | 0.333" in printed
    settings = made.read_json(files.out / "score.json")["radeval"]
    assert settings["metrics"] == ["radgraph", "f1chexbert", "ratescore", "green", "srrbert"]


def test_nothing_is_downloaded(files, monkeypatch):
    constants = types.ModuleType("huggingface_hub.constants")
    constants.HF_HUB_OFFLINE = False
    hub = types.ModuleType("huggingface_hub")
    hub.constants = constants
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    files("green")
    assert os.environ["HF_HUB_OFFLINE"] == "1" and constants.HF_HUB_OFFLINE is True


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("weights", r"green cannot be started \(OSError: We couldn't .* must be on this machine"),
        ("package", r"green lacks a package \(.*medspacy'\): pip install radeval==2.2.1"),
        ("short", r"green failed \(ValueError: not a number for each of 2 texts\).*2\.2\.1"),
    ],
)
def test_what_is_not_here_is_one_line(files, fault, told):
    files.package.fault = fault
    with pytest.raises(UserError, match=told) as raised:
        files("green")
    assert "\n" not in str(raised.value)
    assert not (files.out / "metrics.json").exists()


def test_the_package_and_the_benchmark_must_fit(files, monkeypatch):
    with pytest.raises(UserError, match="--radeval=green,crimson: no 'crimson'; expected radgraph"):
        files("green,crimson")
    with pytest.raises(UserError, match="--radeval: vindr_cxr_vqa has no use for one"):
        files("green", benchmark="vindr_cxr_vqa")
    monkeypatch.setitem(sys.modules, "radeval", None)
    with pytest.raises(UserError, match=r"radeval cannot be imported .*pip install radeval==2.2.1"):
        files("green")


def test_a_number_that_is_none_is_refused(files, monkeypatch):
    monkeypatch.setattr(files.package, "__call__", lambda self, refs, hyps: {"green": [np.nan] * 2})
    with pytest.raises(UserError, match="a number that is not finite"):
        files("green")


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
