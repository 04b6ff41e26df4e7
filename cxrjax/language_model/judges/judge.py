"""The interface of judges: what they are asked, and what they say.

A judge rates an answer beside the reference (the relative score of LLaVA-Med), takes texts apart
into facts and decides which facts entail another (RadFact of MAIRA-2, section 3.3). Its failures
are part of the result, by category, and counted; each benchmark decides what they are worth.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, Protocol, runtime_checkable

LOWEST, HIGHEST = 1, 10  # marks

# How judging can fail; what a language model's server does wrong is `service`.
FAILURES = {
    "refusal": "the judge declined, or a filter behind it",
    "truncated": "the judge's answer ended at its token limit",
    "invalid_json": "no JSON object in the judge's answer",
    "invalid_content": "not what was asked for: a mark out of range, a fact that is not there",
    "over_length": "more text than is sent to a judge; not asked",
    "service": "no answer from the server, after all retries; asked again in the next run",
    "not_asked": "a dry run",
}


@dataclass(frozen=True)
class Sample:
    """One answer to be judged beside the reference."""

    # `system`, `question_id`: whose answer to what; not shown to the judge.
    system: str
    question_id: str
    question: str
    reference: str
    answer: str
    context: str = ""  # what the judge may know besides the question, such as the report
    lang: str = "en"  # language of the texts


@dataclass(frozen=True)
class Marks:
    """Overall marks, 1 to 10, of the reference and of the answer; None, None where it failed."""

    reference: float | None
    answer: float | None
    failure: str | None = None


@dataclass(frozen=True)
class RelativeScore:
    """Marks in both orders: a judge may favour what it reads first (or last)."""

    reference_first: Marks  # the order of the papers
    answer_first: Marks  # the other one

    @property
    def failure(self) -> str | None:
        """Category of the first order that failed; None where both have marks."""
        return self.reference_first.failure or self.answer_first.failure

    @property
    def ratio_reference_first(self) -> float | None:
        """The answer's mark over the reference's, as the papers ask; above 1 where it is better."""
        return _ratio(self.reference_first)

    @property
    def ratio(self) -> float | None:
        """The answer's marks of both orders over the reference's; None where either failed."""
        if self.failure is not None:
            return None
        one, two = self.reference_first, self.answer_first
        return _ratio(Marks(_sum(one.reference, two.reference), _sum(one.answer, two.answer)))


@dataclass(frozen=True)
class Facts:
    """Statements of one text, each understood by itself; none where `failure` says why."""

    items: tuple[str, ...]
    lang: str
    failure: str | None = None


@dataclass(frozen=True)
class FactMatch:
    """The facts of two texts, and the pairs that say the same."""

    predicted: Facts
    true: Facts
    # (index of a predicted fact, index of a true one), no index twice.
    pairs: tuple[tuple[int, int], ...]
    failure: str | None = None


class Entailment(NamedTuple):
    """The indices of the facts that entail one, `evidence`: none where it is not entailed."""

    evidence: tuple[int, ...]
    failure: str | None = None


@runtime_checkable
class Judge(Protocol):
    """Rates answers and takes texts apart."""

    name: str  # what it is called beside its figures
    # Rules in place of a model. Its figures are never called by the metric's own name.
    surrogate: bool
    datasets: tuple[str, ...]  # whose texts it is given, for whoever must permit sending them
    entails: bool  # whether `entail` can be asked: not of a replay without such verdicts
    # What was judged, a line of JSON each: `score_line` and `fact_line`.
    judgements: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Returns how it judged, and at what cost."""
        ...

    def relative_scores(self, samples: Sequence[Sample]) -> list[RelativeScore]:
        """Marks of each sample, in order."""
        ...

    def facts(self, texts: Sequence[tuple[str, str]]) -> list[Facts]:
        """Facts of each (text, language), in order; a blank text has none."""
        ...

    def match(self, pairs: Sequence[tuple[Facts, Facts]]) -> list[FactMatch]:
        """Pairs predicted facts with the true ones that say the same, one to one, in order."""
        ...

    def entail(self, queries: Sequence[tuple[str, tuple[str, ...], str]]) -> list[Entailment]:
        """Returns for each (fact, premises, language), in order, which premises entail the fact."""
        ...


def compare_facts(judge: Judge, samples: Sequence[Sample]) -> list[FactMatch]:
    """Facts of each answer and its reference, matched. Equal texts are taken apart once."""
    texts = list(
        dict.fromkeys((text, one.lang) for one in samples for text in (one.answer, one.reference))
    )
    found = dict(zip(texts, judge.facts(texts), strict=True))
    matches = judge.match(
        [(found[one.answer, one.lang], found[one.reference, one.lang]) for one in samples]
    )
    judge.judgements += map(fact_line, repeat(judge), samples, matches)
    return matches


def score_line(judge: Judge, sample: Sample, score: RelativeScore) -> dict[str, Any]:
    """A rating for judgements.jsonl; marks are means over both orders."""
    marks = (score.reference_first, score.answer_first)
    line = judgement_line(judge, "relative_score", sample.system, sample.question_id, score.failure)
    return line | {
        "reference": _mean(mark.reference for mark in marks),
        "answer": _mean(mark.answer for mark in marks),
        "ratio": score.ratio,
        "ratio_reference_first": score.ratio_reference_first,
    }


def fact_line(judge: Judge, sample: Sample, match: FactMatch) -> dict[str, Any]:
    """Facts of an answer and of the reference for judgements.jsonl, and which are the same."""
    return judgement_line(judge, "facts", sample.system, sample.question_id, match.failure) | {
        "predicted": list(match.predicted.items),
        "true": list(match.true.items),
        "same": [list(one) for one in match.pairs],
    }


def metric_name(judge: Judge, name: str) -> str:
    """The name that a judge's figure goes by: a surrogate's says so."""
    return f"surrogate/{name}" if judge.surrogate else name


def judgement_line(
    judge: Judge, task: str, system: str, question_id: str, failure: str | None
) -> dict[str, Any]:
    """Returns the first fields of a line of judgements.jsonl."""
    return {
        "task": task,
        "judge": judge.name,
        "surrogate": judge.surrogate,
        "system": system,
        "question_id": question_id,
        "failure": failure,
    }


def _mean(marks: Iterable[float | None]) -> float | None:
    known = [mark for mark in marks if mark is not None]
    return sum(known) / len(known) if len(known) == 2 else None


def _ratio(marks: Marks) -> float | None:
    if marks.reference is None or marks.answer is None:
        return None
    return marks.answer / marks.reference  # a mark is at least 1


def _sum(one: float | None, two: float | None) -> float | None:
    return None if one is None or two is None else one + two
