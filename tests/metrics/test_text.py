"""ROUGE and BLEU against the packages themselves and by hand."""

import random
import unicodedata

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from rouge_score import rouge_scorer

from cxrjax.metrics.text import bleu, bleu_statistics, rouge, tokens

_WORDS = ["bóng", "tim", "to", "tràn", "dịch", "màng", "phổi", "phải", "trái", "không"]
_TEXT = st.lists(st.sampled_from(_WORDS), max_size=12).map(" ".join)
_ASCII = st.lists(st.sampled_from(["a", "bc", "d1"]), max_size=9).map(" ".join)


def assert_as_the_package(prediction, reference, found):
    own = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"]).score(reference, prediction)
    assert found == pytest.approx({name: score.fmeasure for name, score in own.items()})


def elementwise(statistics):
    return {name: np.array([float(value)]) for name, value in statistics.items()}


def summed(pairs):
    statistics = [bleu_statistics(*pair) for pair in pairs]
    return {name: float(sum(s[name] for s in statistics)) for name in statistics[0]}


def test_tokens_and_rouge_by_hand_and_as_the_package_has_them():
    text = "Tràn dịch màng phổi (phải), 0,5."
    expected = ["tràn", "dịch", "màng", "phổi", "phải", "0", "5"]
    assert tokens(text) == tokens(unicodedata.normalize("NFD", text)) == expected
    found = rouge("bóng tim to", "bóng tim không to")
    # 3 of 3 and 3 of 4 words; 1 of 2 and 1 of 3 pairs; longest common subsequence 3.
    assert found == pytest.approx({"rouge1": 6 / 7, "rouge2": 2 / 5, "rougeL": 6 / 7})
    found = rouge("bóng tim to", "bóng tim không to", names=("rougeL",))
    assert found == pytest.approx({"rougeL": 6 / 7})
    assert rouge("", "bóng tim") == {"rouge1": 0, "rouge2": 0, "rougeL": 0}
    # The package cuts at anything but a-z and 0-9: words spelled so are left alone by it
    names = {word: f"w{number}" for number, word in enumerate(_WORDS)}
    rng = random.Random(1)
    for _ in range(50):
        one, two = (rng.choices(_WORDS, k=rng.randint(1, 12)) for _ in range(2))
        spelled = [" ".join(names[word] for word in words) for words in (one, two)]
        assert_as_the_package(*spelled, rouge(" ".join(one), " ".join(two), str.split))


@given(_ASCII.filter(len), _ASCII)
def test_rouge_of_plain_ascii_is_the_packages_own(prediction, reference):
    assert_as_the_package(prediction, reference, rouge(prediction, reference))


@given(st.lists(st.tuples(_TEXT, _TEXT), min_size=1, max_size=6), st.integers(1, 4))
def test_bleu_of_sums_is_sacrebleus_of_the_corpus(pairs, order):
    predictions, references = zip(*pairs, strict=True)
    package = sacrebleu.BLEU(tokenize="none", lowercase=True, max_ngram_order=order)
    expected = package.corpus_score(list(predictions), [list(references)]).score
    found = bleu(elementwise(summed(pairs)), order)[0]
    if not any(references):
        assert np.isnan(found)
    else:
        assert 100 * found == pytest.approx(expected, abs=1e-6)


def test_bleu_is_elementwise_and_segmented_words_count_whole():
    rng = random.Random(0)
    corpora = [
        [(" ".join(rng.choices(_WORDS, k=9)), " ".join(rng.choices(_WORDS, k=7))) for _ in range(5)]
        for _ in range(3)
    ]
    sums = [summed(corpus) for corpus in corpora]
    together = bleu({name: np.array([s[name] for s in sums]) for name in sums[0]})
    apart = [bleu(elementwise(s))[0] for s in sums]
    np.testing.assert_array_equal(together, apart)
    assert bleu(elementwise(summed([("a b c d", "a b c d")])))[0] == 1

    def joined(text):
        return text.replace("tràn dịch", "tràn_dịch").replace("màng phổi", "màng_phổi")

    def segmented(text):
        return tokens(joined(text))

    prediction, reference = "tràn dịch màng phổi phải", "tràn dịch màng phổi trái"
    # Three words of which two agree, five syllables of which four do.
    assert rouge(prediction, reference, segmented)["rouge1"] == pytest.approx(2 / 3)
    assert rouge(prediction, reference)["rouge1"] == pytest.approx(4 / 5)
    statistics = bleu_statistics(prediction, reference, segmented)
    package = sacrebleu.BLEU(tokenize="none", max_ngram_order=2)
    own = package.corpus_score([joined(prediction)], [[joined(reference)]])
    assert 100 * bleu(elementwise(statistics), 2)[0] == pytest.approx(own.score)
