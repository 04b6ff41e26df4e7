"""Agreement of readings with labels, with confidence intervals.

Certainty is one scale from present to absent, in levels: present for certain, present as likely,
possible, unlikely, absent as likely, absent for certain (`level`); a reading is within one where
the levels are neighbours.

A label is matched with an assertion of the same finding, or else with one of a more general or
more special finding (`kin`, counted apart); where several of one finding compete, sides decide,
then status, certainty and time. Rates of labels have Wilson's interval at the number of labels that
are worth as much as independent ones (labels of one sentence are right or wrong together): their
number divided by the design effect of Kish, never below 1.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from bench.readers.sentences import Label, Sentence
from cxrjax.radiology_text.assertions import Assertion
from cxrjax.radiology_text.definitions import load_definitions

_LEVELS = {
    "present": {"certain": 0, "likely": 1, "possible": 2, "unlikely": 3},
    "uncertain": {"certain": 2, "likely": 2, "possible": 2, "unlikely": 3},
    "absent": {"certain": 5, "likely": 4, "possible": 4, "unlikely": 3},
}
_FIRM_PRESENT, _FIRM_ABSENT = (0, 1), (4, 5)
# Costs of a match: of no kin lies between one kin and two, so that a kin never displaces a finding.
_NO_KIN, _KIN, _SIDE, _STATUS, _TIME = 1500, 1000, 100, 10, 0.5
MEASURES = {
    "found": "findings found",
    "kin": "of them kin",
    "extra": "extra, of those read",
    "status": "status",
    "status_of_all": "status, of all",
    "side": "side",
    "side_named": "side, where one is named",
    "certainty": "certainty within one",
    "time": "time",
    "regions": "regions",
    "severity": "severity, where labelled",
    "whole": "sentences all right",
}


def level(one: Label | Assertion) -> int:
    """Place on the scale from 0, present for certain, to 5, absent for certain."""
    return _LEVELS[one.status][one.certainty]


class Pair(NamedTuple):
    """A label and the assertion that it was matched with."""

    label: Label
    read: Assertion

    @property
    def is_kin(self) -> bool:
        return self.label.finding != self.read.finding

    @property
    def inversion(self) -> str:
        """Describes how the reading inverts the label; "" if it does not."""
        ours, theirs = level(self.label), level(self.read)
        if ours in _FIRM_PRESENT and theirs in _FIRM_ABSENT:
            return "present read as absent"
        if ours in _FIRM_ABSENT and theirs in _FIRM_PRESENT:
            return "absent read as present"
        if {self.label.side, self.read.side} == {"left", "right"}:
            return f"{self.label.side} read as {self.read.side}"
        return ""

    def rights(self) -> dict[str, bool]:
        """Measure -> whether it is right; only those that can be told."""
        label, read = self
        told = {
            "status": label.status == read.status,
            "side": label.side == read.side,
            "certainty": abs(level(label) - level(read)) <= 1,
            "time": label.time == read.time,
        }
        if label.side or read.side:
            told["side_named"] = told["side"]
        if label.severity:
            told["severity"] = label.severity == read.severity
        if label.regions:
            told["regions"] = _on_sides(label) == _on_sides(read)
        return told


@dataclass(frozen=True)
class Graded:
    """One sentence with its reading.

    Attributes:
        missed: labels without a match.
        extra: assertions without one (all of an answer's), but for those that say once more what
            a matched one says.
        outcome: what was read of an answer; None for a sentence.
    """

    sentence: Sentence
    pairs: tuple[Pair, ...]
    missed: tuple[Label, ...]
    extra: tuple[Assertion, ...]
    outcome: str | None = None

    @property
    def inversions(self) -> list[str]:
        if {self.outcome, self.sentence.outcome} == {"yes", "no"}:
            return [f"{self.sentence.outcome} read as {self.outcome}"]
        return [f"{pair.label.finding}: {pair.inversion}" for pair in self.pairs if pair.inversion]

    @property
    def is_right(self) -> bool:
        if self.sentence.outcome:
            return self.outcome == self.sentence.outcome
        right = all(not pair.is_kin and all(pair.rights().values()) for pair in self.pairs)
        return right and not self.missed and not self.extra

    def counts(self, measure: str) -> tuple[int, int]:
        """(right, told) of a measure of `MEASURES`."""
        labels = len(self.pairs) + len(self.missed)
        if measure == "found":
            return len(self.pairs), labels
        if measure == "kin":
            return sum(pair.is_kin for pair in self.pairs), labels
        if measure == "extra":
            return len(self.extra), len(self.extra) + len(self.pairs)
        if measure == "whole":
            return int(self.is_right), 1
        told = [
            rights[name]
            for pair in self.pairs
            if (name := measure.removesuffix("_of_all")) in (rights := pair.rights())
        ]
        return sum(told), labels if measure.endswith("_of_all") else len(told)


def grade(sentence: Sentence, read: Sequence[Assertion], outcome: str | None = None) -> Graded:
    """Matches what was read with the labels.

    Args:
        outcome: what was read of an answer.
    """
    if sentence.outcome:
        return Graded(sentence, (), (), tuple(read), outcome)
    costs = np.array([[_cost(label, one) for one in read] for label in sentence.labels])
    pairs = linear_sum_assignment(costs) if costs.size else ((), ())
    matched = [(a, b) for a, b in zip(*pairs, strict=True) if costs[a, b] < _NO_KIN]
    labels, told = {a for a, _ in matched}, {_told(read[b]) for _, b in matched}
    return Graded(
        sentence,
        tuple(Pair(sentence.labels[a], read[b]) for a, b in matched),
        tuple(label for n, label in enumerate(sentence.labels) if n not in labels),
        tuple(one for one in read if _told(one) not in told),
    )


def _on_sides(one: Label | Assertion) -> set[str]:
    """The regions, those of both sides one by one: "lungs" of a bilateral finding are two."""
    sides = load_definitions().on_side
    both = one.side == "bilateral"
    return {
        name for region in one.regions for name in (sides(region, "both") if both else [region])
    }


def _told(one: Assertion) -> tuple[object, ...]:
    """All that a label says but for regions."""
    return one.finding, one.status, one.certainty, one.time, one.side


def _cost(label: Label, one: Assertion) -> float:
    cost = 0.0
    if label.finding != one.finding:
        definitions = load_definitions()
        if label.finding not in definitions.finding_ancestors(one.finding) and (
            one.finding not in definitions.finding_ancestors(label.finding)
        ):
            return _NO_KIN
        cost = _KIN
    cost += _SIDE * (label.side != one.side) + _STATUS * (label.status != one.status)
    return cost + abs(level(label) - level(one)) + _TIME * (label.time != one.time)


class Rate(NamedTuple):
    """A share with its 95 % interval, as fractions; None of nothing."""

    right: int
    total: int
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None:
            return "–"
        share, low, high = (100 * x for x in (self.right / self.total, self.low, self.high))
        return f"{share:.1f} ({low:.1f} to {high:.1f}; {self.right}/{self.total})"


def rate(counts: Iterable[tuple[int, int]]) -> Rate:
    """A share over sentences.

    Args:
        counts: (right, told) of each.
    """
    told = [(a, b) for a, b in counts if b]
    right, total = sum(a for a, _ in told), sum(b for _, b in told)
    if not total:
        return Rate(0, 0, None, None)
    share, worth = right / total, float(total)
    if 0 < share < 1:
        spread = sum((a - share * b) ** 2 for a, b in told)
        worth = total / max(1.0, spread / (total * share * (1 - share)))
    z = NormalDist().inv_cdf(0.975)
    middle = (share + z * z / (2 * worth)) / (1 + z * z / worth)
    half = math.sqrt(share * (1 - share) / worth + (z / (2 * worth)) ** 2) * z / (1 + z * z / worth)
    return Rate(right, total, max(0.0, middle - half), min(1.0, middle + half))
