"""Measures the agreement of two filled review sheets, beside what the paper prints."""

from collections.abc import Sequence
from typing import Any

from cxrjax.metrics.agreement import (
    MEASUREMENT_LEVELS,
    WEIGHTS,
    bootstrap_alpha,
    bootstrap_kappa,
    cohen_kappa,
    contingency,
    kappa_sanity,
)
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.pages.review.consensus import shared_items
from cxrjax.pages.review.sheet import DIMENSIONS, LEVELS, Ratings
from cxrjax.scoring.text_tables import UNDEFINED, grid

# Section 2.2 of the paper.
PRINTED = {"kappa": 0.89, "ci_low": 0.84, "ci_high": 0.93, "disagreements": 7, "questions": 100}
POOLED = "pooled"


def agreement(
    first: Ratings, second: Ratings, bootstrap: Bootstrap | None = None
) -> dict[str, Any]:
    """The content of agreement.json: each dimension, and all pooled.

    Intervals are the large-sample ones and those of resampled questions; the pooled ratings of one
    question are no independent ones, which only the latter respect.

    Raises:
        UserError: the sheets are not of the same questions.
    """
    items = shared_items(first, second)
    groups = {
        dimension: [item for item in items if item[1] == dimension] for dimension in DIMENSIONS
    }
    return {
        "readers": [first.reader, second.reader],
        "questions": len(first.levels),
        "levels": list(LEVELS),
        "dimensions": {
            name: _figures(group, first, second, bootstrap or Bootstrap())
            for name, group in {**groups, POOLED: items}.items()
        },
        "disagreements": [
            {
                "question_id": question_id,
                "dimension": dimension,
                first.reader: LEVELS[first.levels[question_id][dimension]],
                second.reader: LEVELS[second.levels[question_id][dimension]],
            }
            for question_id, dimension in items
            if first.levels[question_id][dimension] != second.levels[question_id][dimension]
        ],
        "paper": PRINTED,
    }


def _figures(
    items: Sequence[tuple[str, str]], first: Ratings, second: Ratings, bootstrap: Bootstrap
) -> dict[str, Any]:
    if not items:
        return {"n": 0}
    a, b = ([r.levels[q][dimension] for q, dimension in items] for r in (first, second))
    clusters = [question_id for question_id, _ in items]
    table = contingency(a, b, len(LEVELS))
    kappas = {}
    for weights in WEIGHTS:
        kappa = cohen_kappa(table, weights)
        resampled = bootstrap_kappa(a, b, len(LEVELS), clusters, weights, bootstrap)
        defined = resampled.value is not None
        low, high = kappa.interval if defined else (None, None)
        kappas[weights] = {
            "value": resampled.value,
            "analytic_ci": [low, high],
            "bootstrap_ci": [resampled.ci_low, resampled.ci_high],
            "expected_agreement": kappa.expected,
        }
    return {
        "n": len(items),
        "observed_agreement": cohen_kappa(table).observed,
        "table": table.astype(int).tolist(),
        "kappa": kappas,
        "krippendorff_alpha": {
            scale: bootstrap_alpha(a, b, len(LEVELS), clusters, scale, bootstrap).to_json()
            for scale in MEASUREMENT_LEVELS
        },
    }


def markdown(result: dict[str, Any]) -> str:
    """agreement.md."""
    lines = [["Dimension", "n", "Agreement", "Figure", "Value", "Analytic 95 %", "Bootstrap 95 %"]]
    for name, figures in result["dimensions"].items():
        if not figures["n"]:
            lines.append([name, "0", *[UNDEFINED] * 5])
            continue
        head = [name, str(figures["n"]), f"{figures['observed_agreement']:.3f}"]
        for weights, kappa in figures["kappa"].items():
            intervals = (_range(kappa["analytic_ci"]), _range(kappa["bootstrap_ci"]))
            lines.append([*head, f"kappa, {weights}", _number(kappa["value"]), *intervals])
        for scale, alpha in figures["krippendorff_alpha"].items():
            interval = _range([alpha["ci_low"], alpha["ci_high"]])
            lines.append([*head, f"alpha, {scale}", _number(alpha["value"]), "", interval])
    return "\n".join(
        [
            "# Agreement of the review\n",
            f"{' and '.join(result['readers'])}, {result['questions']} questions, levels "
            f"{', '.join(result['levels'])}; {len(result['disagreements'])} ratings differ. "
            "Bootstrap intervals resample questions.\n",
            grid(lines),
            _printed(),
        ]
    )


def _printed() -> str:
    """What the paper's kappa needs, by the number of ratings it may be over."""
    po = 1 - PRINTED["disagreements"] / PRINTED["questions"]
    lines = [["If 7 ratings of 100 differ, over", "Chance agreement", "95 % half-width", "Levels"]]
    for observed, n in ((po, 100), (po, 300), (1 - 7 / 300, 300)):
        sane = kappa_sanity(observed, PRINTED["kappa"], n)
        title = f"{n} ratings, agreement {observed:.3f}"
        needed = f"at least {sane.least_levels}"
        lines.append([title, f"{sane.expected:.3f}", f"{sane.half_width:.3f}", needed])
    return (
        f"The paper prints kappa {PRINTED['kappa']} [{PRINTED['ci_low']}, {PRINTED['ci_high']}] "
        f"with {PRINTED['disagreements']} disagreements in {PRINTED['questions']} questions. What "
        f"that takes:\n\n{grid(lines)}"
    )


def _number(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.3f}"


def _range(ends: Sequence[float | None]) -> str:
    return UNDEFINED if ends[0] is None else f"{_number(ends[0])} to {_number(ends[1])}"
