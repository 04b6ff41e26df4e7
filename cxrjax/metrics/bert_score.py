"""BERTScore of two texts from a language model's vectors of their tokens (arXiv 1904.09675).

The model is the caller's (`cxrjax.benchmarks.bert_vectors`); here is the arithmetic. Words are
weighted alike, without inverse document frequencies, which is the package bert-score's default too.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float


class BertScore(NamedTuple):
    """Precision, recall and F1; 1 at most, and above 0 for most pairs of texts unless rescaled."""

    precision: float
    recall: float
    f1: float


def bert_score(
    candidate: Float[np.ndarray, "n d"],
    candidate_words: Bool[np.ndarray, " n"],
    reference: Float[np.ndarray, "m d"],
    reference_words: Bool[np.ndarray, " m"],
) -> BertScore:
    """Each token's highest cosine with a token of the other text, averaged over a text's words.

    Args:
        candidate, reference: a vector for each token, those that begin and end a text included:
            they may be another one's nearest.
        candidate_words, reference_words: which tokens are of the text itself, and so are averaged.

    Returns:
        Zeros where a text has no words.
    """
    if not candidate_words.any() or not reference_words.any():
        return BertScore(0.0, 0.0, 0.0)
    cosine = _unit(candidate) @ _unit(reference).T
    precision = float(cosine.max(axis=1)[candidate_words].mean())
    recall = float(cosine.max(axis=0)[reference_words].mean())
    both = precision + recall
    return BertScore(precision, recall, 2 * precision * recall / both if both else 0.0)


def rescale(score: BertScore, baseline: BertScore) -> BertScore:
    """The score with the baseline of unrelated texts at 0 and 1 still at 1; below 0 is possible."""
    return BertScore(*((s - b) / (1 - b) for s, b in zip(score, baseline, strict=True)))


def _unit(vectors: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
