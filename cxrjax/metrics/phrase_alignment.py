"""What of a report is right, wrong, missing or too much, fact by fact (ViX-Ray, appendix D).

A heuristic for looking: facts are told apart by rules (facts.py). The paper marked its examples by
hand.
"""

import enum
from dataclasses import dataclass

from cxrjax.metrics.facts import Fact, decompose, pair_up, same, similarity

Span = tuple[int, int]


class Label(enum.StrEnum):
    """What a fact is; the paper's four colours, the last one in two."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    MISSING = "missing"
    HALLUCINATED = "hallucinated"
    REDUNDANT = "redundant"


@dataclass(frozen=True)
class Aligned:
    """A fact of the prediction, of the reference, or one of each.

    Attributes:
        predicted, reference: the facts; "" where there is none.
        similarity: F1 of their words.
        predicted_span, reference_span: (start, end) of their words in each text, in Unicode's form
            NFC; None where there is no fact.
    """

    label: Label
    predicted: str
    reference: str
    similarity: float
    predicted_span: Span | None
    reference_span: Span | None


def align(prediction: str, reference: str, lang: str) -> list[Aligned]:
    """Every fact of both texts once: those of the prediction in order, then the missing ones.

    Facts are matched one to one. A pair that says the same is correct, one that is related
    incorrect. Of what is left in the prediction, a fact that repeats an earlier one of it is
    redundant, any other hallucinated; in the reference, missing, unless it repeats an earlier one
    of it.
    """
    predicted, true = decompose(prediction, lang), decompose(reference, lang)
    pairs = dict(pair_up([f.text for f in predicted], [f.text for f in true], lang))
    aligned = []
    for index, fact in enumerate(predicted):
        if index in pairs:
            other = true[pairs[index]]
            right = same(fact.text, other.text, lang)
            aligned.append(_pair(Label.CORRECT if right else Label.INCORRECT, fact, other))
        else:
            repeated = _repeats(fact, predicted[:index], lang)
            aligned.append(_pair(Label.REDUNDANT if repeated else Label.HALLUCINATED, fact, None))
    found = set(pairs.values())
    aligned += [
        _pair(Label.MISSING, None, fact)
        for index, fact in enumerate(true)
        if index not in found and not _repeats(fact, true[:index], lang)
    ]
    return aligned


def _repeats(fact: Fact, earlier: tuple[Fact, ...], lang: str) -> bool:
    return any(same(fact.text, other.text, lang) for other in earlier)


def _pair(label: Label, predicted: Fact | None, true: Fact | None) -> Aligned:
    return Aligned(
        label,
        predicted.text if predicted else "",
        true.text if true else "",
        similarity(predicted.text, true.text) if predicted and true else 0.0,
        (predicted.start, predicted.end) if predicted else None,
        (true.start, true.end) if true else None,
    )
