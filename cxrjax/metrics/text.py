"""Similarity of two texts in any script: ROUGE (rouge-score) and BLEU (sacrebleu).

Words here are runs of Unicode letters and digits, in lower case and Unicode's form NFC. The
packages' own tokenizers would cut Vietnamese at its diacritics (rouge-score), or keep punctuation
as words (sacrebleu). In Vietnamese such runs are syllables; a segmenter that joins them to words
goes in their place by `tokenize`.
"""

import functools
import re
import types
import unicodedata
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

ROUGE = ("rouge1", "rouge2", "rougeL")
if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU

BLEU_ORDER = 4
_WORD = re.compile(r"\w+")

Sums = Mapping[str, Float[np.ndarray, "*sums"]]
# Text -> words without blanks in them.
Tokenize = Callable[[str], list[str]]


def tokens(text: str) -> list[str]:
    """The text's words: in Vietnamese its syllables."""
    return _WORD.findall(unicodedata.normalize("NFC", text).lower())


@functools.cache
def _scorer(tokenize: Tokenize, names: tuple[str, ...]) -> "RougeScorer":
    from rouge_score import rouge_scorer  # not at the top: NLTK comes with it, seconds

    return rouge_scorer.RougeScorer(names, tokenizer=types.SimpleNamespace(tokenize=tokenize))


@functools.cache
def _bleu() -> "BLEU":
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize="none", max_ngram_order=BLEU_ORDER)


def rouge(
    prediction: str, reference: str, tokenize: Tokenize = tokens, names: tuple[str, ...] = ROUGE
) -> dict[str, float]:
    """F-measures of ROUGE-1, ROUGE-2 and ROUGE-L, 0 to 1; 0 where a text has no words.

    Args:
        names: which of them are computed.
    """
    scores = _scorer(tokenize, names).score(reference, prediction)
    return {name: float(score.fmeasure) for name, score in scores.items()}


def bleu_statistics(prediction: str, reference: str, tokenize: Tokenize = tokens) -> dict[str, int]:
    """The parts of corpus BLEU: `bleu` makes the figure of their sums over texts.

    Returns:
        `match1..4` and `total1..4`, n-grams of the prediction that the reference has and all of
        them; `predicted` and `reference`, words.
    """
    score = _bleu().corpus_score(
        [" ".join(tokenize(prediction))], [[" ".join(tokenize(reference))]]
    )
    statistics = {"predicted": score.sys_len, "reference": score.ref_len}
    for n in range(BLEU_ORDER):
        statistics[f"match{n + 1}"] = score.counts[n]
        statistics[f"total{n + 1}"] = score.totals[n]
    return statistics


def likeness(prediction: str, reference: str) -> dict[str, float]:
    """Returns ROUGE-L and the parts of corpus BLEU."""
    parts = bleu_statistics(prediction, reference)
    return {"rougeL": rouge(prediction, reference, names=("rougeL",))["rougeL"], **parts}


def bleu(sums: Sums, order: int = BLEU_ORDER) -> Float[np.ndarray, "*sums"]:
    """Corpus BLEU of summed statistics, 0 to 1, elementwise; NaN where no reference has words.

    sacrebleu's default: brevity penalty; precisions without a match are smoothed to 1/2, 1/4, ...
    of one match (`exp`); 0 where nothing matches or no prediction is `order` words long.

    Args:
        order: the longest n-grams, 1 to 4: BLEU-1 to BLEU-4.
    """
    predicted, reference = (np.asarray(sums[k], np.float64) for k in ("predicted", "reference"))
    log_sum, halvings = np.zeros_like(predicted), np.zeros_like(predicted)
    with np.errstate(divide="ignore", invalid="ignore"):
        for n in range(1, order + 1):
            match = np.asarray(sums[f"match{n}"], np.float64)
            halvings += match == 0
            log_sum += np.log(np.where(match == 0, 0.5**halvings, match) / sums[f"total{n}"])
        value = np.minimum(1.0, np.exp(1 - reference / predicted)) * np.exp(log_sum / order)
    nothing = (np.asarray(sums["match1"]) == 0) | (np.asarray(sums[f"total{order}"]) == 0)
    return np.where(reference > 0, np.where(nothing, 0.0, value), np.nan)
