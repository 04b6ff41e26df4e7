"""Rules in place of a judge: no model, no network, the same verdict every time.

Its marks go by findings (there or denied, side, degree) and by facts in common. They are no
AR-score and are never printed as one; every name of theirs says `surrogate`.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from cxrjax.language_model.judges import judge
from cxrjax.radiology_text.assertions import Assertion, Side, joined_side
from cxrjax.radiology_text.facts import VIETNAMESE, decompose, entails, pair_up, said_of, same
from cxrjax.radiology_text.reading import open_reader

# What of a finding's credit is lost where both texts say it is there, and it is on the other side,
# on one side instead of both, or of another degree.
SWAPPED, PARTIAL, DEGREE = 0.5, 0.25, 0.25
# Degrees that are the same: of size, and of severity.
_DEGREES = {"small": 1, "mild": 1, "moderate": 2, "large": 3, "severe": 3}

# Finding -> whether it is said to be there, its side, its degree.
Findings = Mapping[str, tuple[bool, Side | None, int]]


class SurrogateJudge:
    """The rules; see the module."""

    name = "surrogate: rules, version 1"
    surrogate = True
    entails = True

    def __init__(self) -> None:
        self.datasets: tuple[str, ...] = ()
        self.judgements: list[dict[str, Any]] = []

    def to_json(self) -> dict[str, Any]:
        """Returns nothing: the name tells the version."""
        return {}

    def relative_scores(self, samples: Sequence[judge.Sample]) -> list[judge.RelativeScore]:
        """Marks of each sample: 10 for the reference, `mark` for the answer, in either order."""
        scores = []
        for sample in samples:
            marks = judge.Marks(judge.HIGHEST, mark(sample))
            scores.append(judge.RelativeScore(marks, marks))
        self.judgements += map(judge.score_line, repeat(self), samples, scores)
        return scores

    def facts(self, texts: Sequence[tuple[str, str]]) -> list[judge.Facts]:
        """Facts by `cxrjax.radiology_text.facts.decompose`, each once."""
        return [_facts(text, lang) for text, lang in texts]

    def match(self, pairs: Sequence[tuple[judge.Facts, judge.Facts]]) -> list[judge.FactMatch]:
        """Pairs of `cxrjax.radiology_text.facts.pair_up` that say the same."""
        return [
            judge.FactMatch(predicted, true, _same_pairs(predicted, true))
            for predicted, true in pairs
        ]

    def entail(self, queries: Sequence[tuple[str, tuple[str, ...], str]]) -> list[judge.Entailment]:
        """Every premise that alone entails a fact, by `cxrjax.radiology_text.facts.entails`."""
        return [
            judge.Entailment(tuple(n for n, one in enumerate(premises) if entails(one, fact, lang)))
            for fact, premises, lang in queries
        ]


def mark(sample: judge.Sample) -> float:
    """1 to 10: the mean of what findings and facts agree, 10 where all do.

    Findings that neither text names leave the facts alone to count. A bare yes or no speaks of the
    findings that the question names. A blank answer gets 1.
    """
    if not sample.answer.strip():
        return judge.LOWEST
    lang = sample.lang
    said = _findings(sample.answer, sample.question, lang)
    true = _findings(sample.reference, sample.question, lang)
    facts = [_facts(text, lang) for text in (sample.answer, sample.reference)]
    total = sum(len(one.items) for one in facts)
    agreed = [2 * len(_same_pairs(*facts)) / total if total else 1.0]
    if named := said.keys() | true.keys():
        agreed.append(sum(_credit(said.get(n), true.get(n)) for n in named) / len(named))
    return judge.LOWEST + (judge.HIGHEST - judge.LOWEST) * sum(agreed) / len(agreed)


def _facts(text: str, lang: str) -> judge.Facts:
    return judge.Facts(tuple(dict.fromkeys(fact.text for fact in decompose(text, lang))), lang)


def _same_pairs(predicted: judge.Facts, true: judge.Facts) -> tuple[tuple[int, int], ...]:
    pairs = pair_up(predicted.items, true.items, predicted.lang)
    return tuple(
        (one, two)
        for one, two in pairs
        if same(predicted.items[one], true.items[two], predicted.lang)
    )


def _findings(text: str, question: str, lang: str) -> Findings:
    said = said_of(text, lang)
    if said:
        return _joined(said)
    outcome = open_reader("vi" if lang == VIETNAMESE else "en").read(text, question).outcome
    if outcome not in ("yes", "no"):
        return {}
    # Readers pass over questions.
    asked = _joined(said_of(question.replace("?", "."), lang))
    return {name: (outcome == "yes", side, degree) for name, (_, side, degree) in asked.items()}


def _joined(said: Sequence[Assertion]) -> Findings:
    """One statement on each finding; one that is named both ways is there."""
    findings = {}
    for name in dict.fromkeys(one.finding for one in said):
        own = [one for one in said if one.finding == name]
        there = [one for one in own if not one.denies]
        degrees = [_DEGREES.get(one.severity or "", 0) for one in there]
        side = joined_side(one.side for one in there)
        findings[name] = (bool(there), side, max(degrees, default=0))
    return findings


def _credit(
    said: tuple[bool, Side | None, int] | None, true: tuple[bool, Side | None, int] | None
) -> float:
    """0 to 1, of a finding as said and as it is; None: not named."""
    if said is None or true is None or said[0] != true[0]:
        return 0.0
    credit = 1.0
    if said[1] and true[1] and said[1] != true[1]:
        credit -= PARTIAL if "bilateral" in (said[1], true[1]) else SWAPPED
    if said[2] and true[2] and said[2] != true[2]:
        credit -= DEGREE
    return credit
