"""RadFact of answers' sentences and boxes, by a judge (MAIRA-2, arXiv 2406.04449, section 3.3;
github.com/microsoft/RadFact).

The judge splits sentences into facts, as RadFact does with reports, and names for each fact of one
text the facts of the other that entail it, its evidence. A fact has the boxes of its sentences,
unless it denies. Of the answer's facts shares are called precision, of the reference's recall:

    logical     entailed, of all
    grounding   with entailed boxes, of the entailed ones that have boxes
    spatial     the same, of all that have boxes

Boxes are entailed where more than half of the area that they cover is covered by boxes of the
evidence. RadFact counts pixels of a mask of 224 x 224; here the areas are exact. Precision and
recall are means over the answers, F1 is of these means:

* `paper`: as in RadFact. Answers with nothing to take a share of are left out of its mean, and
  those that the judge could not split out of all.
* `strict`: these count as 0, too: logical shares of nothing beside something (1 beside nothing),
  and spatial ones without a box beside boxes. `grounding` is of what is entailed and boxed, as in
  `paper`.

A fact that the judge failed at is not entailed, as there. Of a surrogate judge all of this is
called `surrogate/radfact/...`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from cxrjax.evaluation.counted import PAPER, STRICT
from cxrjax.evaluation.figures import quotient, share
from cxrjax.evaluation.text_scores.sentences import GroundedSentence
from cxrjax.language_model.judges.judge import Entailment, Judge, judgement_line, metric_name
from cxrjax.metrics.bootstrap import Columns, Figure, Formula, Sums
from cxrjax.metrics.classification import harmonic_mean, ratio
from cxrjax.metrics.detection import TOLERANCE
from cxrjax.metrics.localization import region_areas, region_iop
from cxrjax.radiology_text.facts import fact_ratio, is_denial

COVERED = 0.5
KINDS = ("logical", "grounding", "spatial")
_DIRECTIONS = ("precision", "recall")

Boxes = Float[np.ndarray, "_ 4"]


class Statement(NamedTuple):
    """A judged statement."""

    boxes: Boxes  # xyxy in any unit; empty where it has none
    evidence: tuple[int, ...]  # indices of statements of the other text that entail it


def entailed_shares(
    statements: Sequence[Statement], others: Sequence[Statement]
) -> dict[str, tuple[int, int]]:
    """Counts {kind: (numerator, denominator)} of one text's statements.

    Args:
        others: the other text's, to which evidence points.
    """
    boxed = [one for one in statements if len(one.boxes)]
    entailed = [one for one in boxed if one.evidence]
    grounded = sum(
        boxes_entailed(one.boxes, np.concatenate([others[n].boxes for n in one.evidence]))
        for one in entailed
    )
    return {
        "logical": (sum(bool(one.evidence) for one in statements), len(statements)),
        "grounding": (grounded, len(entailed)),
        "spatial": (grounded, len(boxed)),
    }


def boxes_entailed(boxes: Boxes, evidence: Boxes) -> bool:
    """Returns whether the evidence covers more than half of the boxes; False without area."""
    areas = region_areas(boxes, evidence)
    return bool(region_iop(areas.intersection, areas.predicted) > COVERED + TOLERANCE)


class TextPair(NamedTuple):
    """An answer's sentences beside the reference's."""

    question_id: str
    predicted: Sequence[GroundedSentence]
    true: Sequence[GroundedSentence]
    lang: str = "en"


class _Facts(NamedTuple):
    """A text's facts with their boxes; none where there is a `failure`."""

    boxes: dict[str, Boxes]
    failure: str | None


def radfact_columns(
    judge: Judge, system: str, pairs: Sequence[TextPair]
) -> tuple[Columns, list[str | None]]:
    """Returns columns of the pairs, and the judge's failure in each or None.

    Raises:
        UserError: the judge cannot be asked.
    """
    predicted = _split(judge, [(pair.predicted, pair.lang) for pair in pairs])
    true = _split(judge, [(pair.true, pair.lang) for pair in pairs])
    both = list(zip(pairs, predicted, true, strict=True))
    verdicts = iter(
        judge.entail(
            [
                (fact, tuple(others.boxes), pair.lang)
                for pair, *sides in both
                for own, others in (sides, sides[::-1])
                for fact in own.boxes
            ]
        )
    )
    rows: list[dict[str, float]] = []
    failures: list[str | None] = []
    for pair, *sides in both:
        judged = [[next(verdicts) for _ in side.boxes] for side in sides]
        apart = sides[0].failure or sides[1].failure
        failure = apart or next((v.failure for one in judged for v in one if v.failure), None)
        failures.append(failure)
        judge.judgements.append(
            judgement_line(judge, "entailment", system, pair.question_id, failure)
            | {
                name: _listed(side, found)
                for name, side, found in zip(("predicted", "true"), sides, judged, strict=True)
            }
        )
        rows.append(
            {"asked": 1.0, "failed": float(failure is not None)}
            | dict(_shares(sides, judged, apart is not None))
        )
    shares = [f"{p}/{k}_{d}" for p in (PAPER, STRICT) for k in KINDS for d in _DIRECTIONS]
    names = {"asked", "failed", *shares, *(f"{name}/n" for name in shares)}
    return {
        f"radfact/{name}": np.array([row.get(name, 0.0) for row in rows]) for name in names
    }, failures


def radfact_figures(judge: Judge) -> dict[str, dict[str, Figure]]:
    """Returns {protocol: {metric: figure}} of the columns."""
    figures: dict[str, dict[str, Figure]] = {}
    for protocol in (PAPER, STRICT):
        named = {"judge_failure_rate": share("radfact/failed", "radfact/asked")}
        for kind in KINDS:
            columns = [f"radfact/{protocol}/{kind}_{name}" for name in _DIRECTIONS]
            for name, column in zip(_DIRECTIONS, columns, strict=True):
                named[f"{kind}_{name}"] = share(column, f"{column}/n")
            precision, recall = (quotient(column, f"{column}/n") for column in columns)
            named[f"{kind}_f1"] = Figure(_f1(precision, recall, protocol), "radfact/asked")
        figures[protocol] = {
            metric_name(judge, f"radfact/{name}"): figure for name, figure in named.items()
        }
    return figures


def _f1(precision: Formula, recall: Formula, protocol: str) -> Formula:
    def f1(sums: Sums) -> np.ndarray:
        two = precision(sums), recall(sums)
        known = np.isfinite(two).all(axis=0) | (protocol == STRICT)
        return np.where(known, harmonic_mean(*two), np.nan)

    return f1


def _split(judge: Judge, texts: Sequence[tuple[Sequence[GroundedSentence], str]]) -> list[_Facts]:
    """The facts of each text; repeated ones once, with the boxes of all."""
    asked = list(dict.fromkeys((s.text, lang) for sentences, lang in texts for s in sentences))
    found = dict(zip(asked, judge.facts(asked), strict=True))
    apart = []
    for sentences, lang in texts:
        facts: dict[str, Boxes] = {}
        for sentence in sentences:
            for fact in found[sentence.text, lang].items:
                boxes = sentence.boxes[:0] if is_denial(fact, lang) else sentence.boxes
                before = facts.get(fact, boxes[:0])
                facts[fact] = np.unique(np.concatenate([before, boxes]), axis=0)
        failures = (found[sentence.text, lang].failure for sentence in sentences)
        failure = next(filter(None, failures), None)
        apart.append(_Facts({} if failure else facts, failure))
    return apart


def _shares(
    sides: Sequence[_Facts], judged: Sequence[Sequence[Entailment]], failed: bool
) -> Iterator[tuple[str, float]]:
    """Yields each share that is defined, and 1 under its name with `/n`.

    Args:
        failed: a text could not be split.
    """
    statements = [
        [Statement(boxes, v.evidence) for boxes, v in zip(side.boxes.values(), found, strict=True)]
        for side, found in zip(sides, judged, strict=True)
    ]
    counts = [entailed_shares(*statements), entailed_shares(*statements[::-1])]
    for direction, own, other in zip(_DIRECTIONS, counts, counts[::-1], strict=True):
        for kind, (part, whole) in own.items():
            strict = float(ratio(part, whole))
            if kind == "logical":
                strict = 0.0 if failed else fact_ratio(part, whole, other[kind][1])
            elif kind == "spatial" and not whole and other[kind][1]:
                strict = 0.0
            paper = np.nan if failed else float(ratio(part, whole))
            for protocol, value in ((PAPER, paper), (STRICT, strict)):
                if np.isfinite(value):
                    yield f"{protocol}/{kind}_{direction}", value
                    yield f"{protocol}/{kind}_{direction}/n", 1.0


def _listed(side: _Facts, judged: Sequence[Entailment]) -> list[dict[str, object]]:
    """Facts for judgements.jsonl; evidence by place among those of the other text."""
    return [
        {"fact": fact, "boxes": boxes.round(4).tolist(), "evidence": list(verdict.evidence)}
        for (fact, boxes), verdict in zip(side.boxes.items(), judged, strict=True)
    ]
