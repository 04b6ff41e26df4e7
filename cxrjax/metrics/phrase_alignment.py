"""What of a report is right, wrong, missing or too much, phrase by phrase (ViX-Ray, appendix D).

A heuristic for looking, no metric: phrases are told apart by their words, not by what they mean.
The paper marked its examples by hand.
"""

import enum
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from cxrjax.metrics.text import tokens

# A phrase with at least this share of words in common (F1) says the same; with at least the second,
# something else about the same thing.
SAME, RELATED = 0.75, 0.35
# Words that turn a phrase round; a phrase with and one without never say the same.
_NEGATIONS = frozenset(("không", "chưa", "no", "not", "without"))
# And those that must agree where both phrases have one of a line.
_OPPOSITES = tuple(
    frozenset(line.split())
    for line in ("phải trái hai right left both bilateral", "trên giữa dưới upper middle lower")
)
# Full stops and semicolons and new lines; commas part findings too, but not "0,5".
_END = re.compile(r"(?<=[.;!?])\s+|\n+|,(?!\d)\s*")
_REFUSALS = re.compile(
    r"(?i)xin lỗi|tôi (?:không thể|không có khả năng|rất tiếc)|"
    r"không thể (?:cung cấp|đưa ra|chẩn đoán)|"
    r"(?:i'?m |i am )?sorry|i (?:cannot|can't|can not|am unable|am not able)|as an ai|"
    r"consult (?:a|your) (?:doctor|physician|medical)"
)


class Label(enum.StrEnum):
    """What a phrase is; the paper's four colours, the last one in two."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    MISSING = "missing"
    HALLUCINATED = "hallucinated"
    REDUNDANT = "redundant"


@dataclass(frozen=True)
class Aligned:
    """A phrase of the prediction, of the reference, or one of each.

    Attributes:
        predicted, reference: the phrases; "" where there is none.
        similarity: F1 of their words.
    """

    label: Label
    predicted: str
    reference: str
    similarity: float


def phrases(text: str) -> list[str]:
    """The text in sentences and clauses."""
    return [part.strip(" ,;") for part in _END.split(text) if part and tokens(part)]


def is_refusal(text: str) -> bool:
    """Whether the text declines to answer, as some models do with medical images."""
    return bool(_REFUSALS.search(text))


def similarity(first: str, second: str) -> float:
    """F1 of the words that two phrases have in common, 0 to 1."""
    one, two = Counter(tokens(first)), Counter(tokens(second))
    common = (one & two).total()
    return 2 * common / (one.total() + two.total()) if common else 0.0


def align(prediction: str, reference: str) -> list[Aligned]:
    """Every phrase of both texts once: those of the prediction in order, then the missing ones.

    Phrases are matched one to one so that similarities sum to the most. A pair that says the same
    is correct, one that is related incorrect. Of what is left in the prediction, a phrase that
    repeats an earlier one of it is redundant, any other hallucinated; in the reference, missing.
    """
    predicted, true = phrases(prediction), phrases(reference)
    pairs = _match(predicted, true)
    aligned = []
    for index, phrase in enumerate(predicted):
        if index in pairs:
            other = true[pairs[index]]
            label = Label.CORRECT if _same(phrase, other) else Label.INCORRECT
            aligned.append(Aligned(label, phrase, other, similarity(phrase, other)))
        else:
            repeated = any(_same(phrase, earlier) for earlier in predicted[:index])
            label = Label.REDUNDANT if repeated else Label.HALLUCINATED
            aligned.append(Aligned(label, phrase, "", 0.0))
    found = set(pairs.values())
    aligned += [
        Aligned(Label.MISSING, "", phrase, 0.0)
        for index, phrase in enumerate(true)
        if index not in found
    ]
    return aligned


def _match(predicted: Sequence[str], true: Sequence[str]) -> dict[int, int]:
    """Index of a predicted phrase -> of the true one that it goes with."""
    if not predicted or not true:
        return {}
    # What says the same comes first, however alike a phrase that says the contrary is.
    scores = np.array([[similarity(p, t) + _same(p, t) for t in true] for p in predicted])
    rows, columns = linear_sum_assignment(np.where(scores >= RELATED, scores, 0.0), maximize=True)
    return {
        int(row): int(column)
        for row, column in zip(rows, columns, strict=True)
        if scores[row, column] >= RELATED
    }


def _same(first: str, second: str) -> bool:
    one, two = set(tokens(first)), set(tokens(second))
    if bool(one & _NEGATIONS) != bool(two & _NEGATIONS):
        return False
    for line in _OPPOSITES:
        if one & line and two & line and one & line != two & line:
            return False
    return similarity(first, second) >= SAME
