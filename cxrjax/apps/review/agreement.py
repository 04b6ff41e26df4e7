"""The agreement of two filled review sheets, and the consensus that settles the rest."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax.apps.review.sheet import DIMENSIONS, LEVELS, Ratings, parse_level, read_rows
from cxrjax.errors import UserError
from cxrjax.evaluation.text_tables import UNDEFINED, grid
from cxrjax.metrics import agreement as measures
from cxrjax.metrics.bootstrap import Bootstrap

_RATINGS = ("first_rating", "second_rating")
CONSENSUS_COLUMNS = (
    "question_id",
    "dimension",
    "first_reader",
    "second_reader",
    *_RATINGS,
    "outcome",
    "accepted",
    "note",
)


@dataclasses.dataclass(frozen=True)
class Consensus:
    """A filled consensus file: (question id, dimension) -> level, accepted or not."""

    outcomes: dict[tuple[str, str], int]
    accepted: dict[tuple[str, str], bool]


def shared_items(first: Ratings, second: Ratings) -> list[tuple[str, str]]:
    """Returns (question id, dimension) that both readers rated, in the first sheet's order.

    Raises:
        UserError: the sheets are not of the same questions.
    """
    if other := sorted(set(first.levels) ^ set(second.levels)):
        inside = first.reader if other[0] in first.levels else second.reader
        raise UserError(
            f"question {other[0]!r} is in the sheet {inside} alone ({len(other)} such): expected "
            "two sheets of one sample"
        )
    return [
        (question_id, dimension)
        for question_id, levels in first.levels.items()
        for dimension in levels
        if dimension in second.levels[question_id]
    ]


def consensus_rows(first: Ratings, second: Ratings) -> list[dict[str, str]]:
    """Returns the rows of the consensus file to fill in."""
    rows = []
    for question_id, dimension in shared_items(first, second):
        a, b = (LEVELS[r.levels[question_id][dimension]] for r in (first, second))
        notes = [r.comments[question_id] for r in (first, second) if question_id in r.comments]
        rows.append(
            {
                "question_id": question_id,
                "dimension": dimension,
                "first_reader": first.reader,
                "second_reader": second.reader,
                "first_rating": a,
                "second_rating": b,
                "outcome": a if a == b else "",
                "accepted": "yes" if a == b == LEVELS[0] else "",
                "note": " / ".join(notes) if a != b else "",
            }
        )
    return rows


def read_consensus(path: Path, first: Ratings, second: Ratings) -> Consensus:
    """Reads a filled consensus file and checks it against its two sheets.

    Raises:
        UserError: it cannot be read, an outcome or acceptance is missing or unknown, an initial
            rating differs from the sheet's, or a question is missing or superfluous; names file
            and line.
    """
    outcomes: dict[tuple[str, str], int] = {}
    accepted: dict[tuple[str, str], bool] = {}
    expected = set(shared_items(first, second))
    for cells, where in read_rows(path, CONSENSUS_COLUMNS[:-1]):
        item = cells["question_id"], cells["dimension"]
        if item not in expected or item in outcomes:
            again = "occurs twice" if item in outcomes else "is not in both sheets"
            raise UserError(f"{where}: {' / '.join(item)} {again}")
        _check_initial(cells, where, dict(zip(_RATINGS, (first, second), strict=True)))
        what = f"{where}: {' / '.join(item)}:"
        outcomes[item] = parse_level(cells["outcome"], f"{what} outcome")
        if cells["accepted"].lower() not in ("yes", "no"):
            raise UserError(f"{what} accepted is {cells['accepted']!r}; expected yes or no")
        accepted[item] = cells["accepted"].lower() == "yes"
    if missing := sorted(expected - set(outcomes)):
        raise UserError(f"{path}: no row for {' / '.join(missing[0])} ({len(missing)} missing)")
    return Consensus(outcomes, accepted)


def _check_initial(cells: dict[str, str], where: str, readers: Mapping[str, Ratings]) -> None:
    for column, reader in readers.items():
        rated = LEVELS[reader.levels[cells["question_id"]][cells["dimension"]]]
        if cells[column].lower() != rated:
            raise UserError(
                f"{where}: {column} is {cells[column]!r}, but {reader.reader} rated {rated!r}; "
                "initial ratings stay as they are"
            )


def outcome_summary(consensus: Consensus, first: Ratings, second: Ratings) -> dict[str, object]:
    """Counts ratings before and after the discussion."""
    items = shared_items(first, second)
    disagreed = [i for i in items if _rating(first, i) != _rating(second, i)]
    by_question: dict[str, bool] = {}
    for question_id, dimension in items:
        yes = consensus.accepted[question_id, dimension]
        by_question[question_id] = by_question.get(question_id, True) and yes
    return {
        "ratings": len(items),
        "initial_disagreements": len(disagreed),
        "questions_with_disagreement": len({question_id for question_id, _ in disagreed}),
        "outcomes": {
            dimension: {
                level: sum(
                    consensus.outcomes[item] == place for item in items if item[1] == dimension
                )
                for place, level in enumerate(LEVELS)
            }
            for dimension in DIMENSIONS
        },
        "questions": len(by_question),
        "questions_accepted_on_all_dimensions": sum(by_question.values()),
        "not_accepted": sorted(q for q, yes in by_question.items() if not yes),
    }


def _rating(reader: Ratings, item: tuple[str, str]) -> int:
    return reader.levels[item[0]][item[1]]


# Section 2.2 of the paper.
PRINTED = {"kappa": 0.89, "ci_low": 0.84, "ci_high": 0.93, "disagreements": 7, "questions": 100}
POOLED = "pooled"


def agreement(
    first: Ratings, second: Ratings, bootstrap: Bootstrap | None = None
) -> dict[str, Any]:
    """Returns the content of agreement.json: each dimension, and all pooled.

    Intervals are the large-sample ones and those of resampled questions; only the latter allow for
    the pooled ratings of one question, which are not independent.

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
    resampled = measures.bootstrap_agreement(a, b, len(LEVELS), clusters, bootstrap)
    kappas = {}
    for weights in measures.WEIGHTS:
        estimate, kappa = resampled[weights], measures.cohen_kappa(a, b, len(LEVELS), weights)
        kappas[weights] = {
            "value": estimate.value,
            "analytic_ci": [None, None] if estimate.value is None else list(kappa.interval),
            "bootstrap_ci": [estimate.ci_low, estimate.ci_high],
            "expected_agreement": kappa.expected,
        }
    pairs = collections.Counter(zip(a, b, strict=True))
    return {
        "n": len(items),
        "observed_agreement": sum(one == two for one, two in zip(a, b, strict=True)) / len(items),
        "table": [[pairs[i, j] for j in range(len(LEVELS))] for i in range(len(LEVELS))],
        "kappa": kappas,
        "krippendorff_alpha": {
            scale: resampled[scale].to_json() for scale in measures.MEASUREMENT_LEVELS
        },
    }


def markdown(result: dict[str, Any]) -> str:
    """Returns the text of agreement.md."""
    lines = [["Dimension", "n", "Agreement", "Figure", "Value", "Analytic 95 %", "Bootstrap 95 %"]]
    for dimension, figures in result["dimensions"].items():
        name = dimension.replace("_", " ")
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
    """The paper's kappa, by the number of ratings it may be over."""
    po = 1 - PRINTED["disagreements"] / PRINTED["questions"]
    lines = [["If 7 ratings of 100 differ, over", "Chance agreement", "95 % half-width", "Levels"]]
    for observed, n in ((po, 100), (po, 300), (1 - 7 / 300, 300)):
        sane = measures.kappa_sanity(observed, PRINTED["kappa"], n)
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
