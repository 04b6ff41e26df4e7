"""BERTScore with a tiny random BERT, against the package bert-score."""

import pytest

from cxrjax.evaluation.text_scores.bert_score import BertScorer, BertScoreSettings

pytestmark = pytest.mark.parity

PAIRS = [
    ("there is a small effusion .", "there is no effusion ."),
    ("no effusion , lung clear", "heart large , lung clear and fluid left"),
    ("heart large .", "heart large ."),
    ("", "lung clear"),
    ("unknown words here", "fluid"),
    ("left right " * 60, "left " * 3),  # longer than the model can read
]
EMPTY = 3
UNKNOWN = {"unknown", "words", "here"}
WORDS = sorted({word for pair in PAIRS for text in pair for word in text.split()} - UNKNOWN)
BASELINE = "LAYER,P,R,F\n0,0.1,0.1,0.1\n1,0.1,0.2,0.3\n2,0.4,0.5,0.6\n"


@pytest.fixture(scope="module", params=["bert", "roberta"])
def model_folder(request, bert_folder):
    folder = bert_folder(WORDS, request.param)
    (folder / "baseline.tsv").write_text(BASELINE)
    return folder


@pytest.mark.parametrize("rescaled", [False, True])
def test_scores_are_the_packages(model_folder, rescaled):
    import bert_score

    baseline = model_folder / "baseline.tsv" if rescaled else None
    found = BertScorer(BertScoreSettings(model_folder, 2, baseline))(PAIRS)
    empty = found.pop(EMPTY)  # on which the package fails
    assert empty == pytest.approx([-0.4 / 0.6, -1.0, -0.6 / 0.4] if rescaled else [0, 0, 0])
    pairs = [pair for row, pair in enumerate(PAIRS) if row != EMPTY]
    candidates, references = map(list, zip(*pairs, strict=True))
    model = {"model_type": str(model_folder), "num_layers": 2, "lang": "en", "device": "cpu"}
    scale = {"rescale_with_baseline": rescaled, "baseline_path": baseline and str(baseline)}
    expected = bert_score.score(candidates, references, **model, **scale, use_fast_tokenizer=True)
    for row, score in enumerate(found):
        assert score == pytest.approx([float(part[row]) for part in expected], abs=1e-5), pairs[row]
    assert found[2].f1 == pytest.approx(1.0, abs=1e-6)
