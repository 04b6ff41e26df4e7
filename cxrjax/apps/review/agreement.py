"""The agreement of filled review sheets, and the consensus that settles the rest."""

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax.apps.review.sheet import DIMENSIONS, LEVELS, Ratings, parse_level, read_rows
from cxrjax.errors import UserError
from cxrjax.evaluation.text_tables import UNDEFINED, grid
from cxrjax.metrics import agreement as measures
from cxrjax.metrics.bootstrap import Bootstrap, Estimate

_ORDINALS = (
    *("first", "second", "third", "fourth", "fifth"),
    *("sixth", "seventh", "eighth", "ninth", "tenth"),
)


def consensus_columns(readers: int) -> tuple[str, ...]:
    """Columns of the consensus file of so many readers."""
    places = _ORDINALS[:readers]
    return (
        *("question_id", "dimension"),
        *(f"{place}_reader" for place in places),
        *(f"{place}_rating" for place in places),
        *("outcome", "accepted", "note"),
    )


@dataclasses.dataclass(frozen=True)
class Consensus:
    """A filled consensus file: (question id, dimension) -> level, accepted or not."""

    outcomes: dict[tuple[str, str], int]
    accepted: dict[tuple[str, str], bool]


def shared_items(sheets: Sequence[Ratings]) -> list[tuple[str, str]]:
    """Returns (question id, dimension) that all readers rated, in the first sheet's order.

    Raises:
        UserError: the sheets are not of the same questions.
    """
    first = sheets[0]
    for sheet in sheets[1:]:
        if other := sorted(set(first.levels) ^ set(sheet.levels)):
            inside = first.reader if other[0] in first.levels else sheet.reader
            raise UserError(
                f"question {other[0]!r} is in the sheet {inside} alone ({len(other)} such): "
                "expected sheets of one sample"
            )
    return [
        (question_id, dimension)
        for question_id, levels in first.levels.items()
        for dimension in levels
        if all(dimension in sheet.levels[question_id] for sheet in sheets)
    ]


def consensus_rows(sheets: Sequence[Ratings]) -> list[dict[str, str]]:
    """Returns the rows of the consensus file to fill in."""
    rows = []
    for item in shared_items(sheets):
        question_id, dimension = item
        rated = [LEVELS[_rating(sheet, item)] for sheet in sheets]
        notes = [one.comments[question_id] for one in sheets if question_id in one.comments]
        alike = len({*rated}) == 1
        row = {"question_id": question_id, "dimension": dimension}
        for place, sheet, level in zip(_ORDINALS, sheets, rated, strict=False):
            row |= {f"{place}_reader": sheet.reader, f"{place}_rating": level}
        row["outcome"] = rated[0] if alike else ""
        row["accepted"] = "yes" if alike and rated[0] == LEVELS[0] else ""
        row["note"] = "" if alike else " / ".join(notes)
        rows.append(row)
    return rows


def read_consensus(path: Path, sheets: Sequence[Ratings]) -> Consensus:
    """Reads a filled consensus file and checks it against its sheets.

    Raises:
        UserError: it cannot be read, an outcome or acceptance is missing or unknown, an initial
            rating differs from the sheet's, or a question is missing or superfluous; names file
            and line.
    """
    outcomes: dict[tuple[str, str], int] = {}
    accepted: dict[tuple[str, str], bool] = {}
    expected = set(shared_items(sheets))
    for cells, where in read_rows(path, consensus_columns(len(sheets))[:-1]):
        item = cells["question_id"], cells["dimension"]
        if item not in expected or item in outcomes:
            again = "occurs twice" if item in outcomes else "is not in all sheets"
            raise UserError(f"{where}: {' / '.join(item)} {again}")
        _check_initial(cells, where, sheets)
        what = f"{where}: {' / '.join(item)}:"
        outcomes[item] = parse_level(cells["outcome"], f"{what} outcome")
        if cells["accepted"].lower() not in ("yes", "no"):
            raise UserError(f"{what} accepted is {cells['accepted']!r}; expected yes or no")
        accepted[item] = cells["accepted"].lower() == "yes"
    if missing := sorted(expected - set(outcomes)):
        raise UserError(f"{path}: no row for {' / '.join(missing[0])} ({len(missing)} missing)")
    return Consensus(outcomes, accepted)


def _check_initial(cells: dict[str, str], where: str, sheets: Sequence[Ratings]) -> None:
    for place, reader in zip(_ORDINALS, sheets, strict=False):
        column, rated = (
            f"{place}_rating",
            LEVELS[_rating(reader, (cells["question_id"], cells["dimension"]))],
        )
        if cells[column].lower() != rated:
            raise UserError(
                f"{where}: {column} is {cells[column]!r}, but {reader.reader} rated {rated!r}; "
                "initial ratings stay as they are"
            )


def outcome_summary(consensus: Consensus, sheets: Sequence[Ratings]) -> dict[str, object]:
    """Counts ratings before and after the discussion."""
    items = shared_items(sheets)
    disagreed = [item for item in items if _differ(sheets, item)]
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


def _differ(sheets: Sequence[Ratings], item: tuple[str, str]) -> bool:
    return len({_rating(sheet, item) for sheet in sheets}) > 1


POOLED = "pooled"


def agreement(sheets: Sequence[Ratings], bootstrap: Bootstrap | None = None) -> dict[str, Any]:
    """Returns the content of agreement.json: each dimension, and all pooled.

    Of two readers Cohen's kappas, of more Fleiss' kappa and Cohen's of each pair. Intervals are the
    large-sample ones and those of resampled questions; only the latter allow for the pooled
    ratings of one question, which are not independent.

    Raises:
        UserError: the sheets are not of the same questions.
    """
    items = shared_items(sheets)
    groups = {
        dimension: [item for item in items if item[1] == dimension] for dimension in DIMENSIONS
    }
    figures = _figures if len(sheets) == 2 else _figures_of_many
    return {
        "readers": [sheet.reader for sheet in sheets],
        "questions": len(sheets[0].levels),
        "levels": list(LEVELS),
        "dimensions": {
            name: figures(group, sheets, bootstrap or Bootstrap()) if group else {"n": 0}
            for name, group in {**groups, POOLED: items}.items()
        },
        "disagreements": [
            {"question_id": item[0], "dimension": item[1]}
            | {sheet.reader: LEVELS[_rating(sheet, item)] for sheet in sheets}
            for item in items
            if _differ(sheets, item)
        ],
    }


def _figures(
    items: Sequence[tuple[str, str]], sheets: Sequence[Ratings], bootstrap: Bootstrap
) -> dict[str, Any]:
    a, b = ([_rating(sheet, item) for item in items] for sheet in sheets)
    clusters = [question_id for question_id, _ in items]
    resampled = measures.bootstrap_agreement([a, b], len(LEVELS), clusters, bootstrap)
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
        "krippendorff_alpha": _alphas(resampled),
    }


def _figures_of_many(
    items: Sequence[tuple[str, str]], sheets: Sequence[Ratings], bootstrap: Bootstrap
) -> dict[str, Any]:
    rated = [[_rating(sheet, item) for item in items] for sheet in sheets]
    clusters = [question_id for question_id, _ in items]
    resampled = measures.bootstrap_agreement(rated, len(LEVELS), clusters, bootstrap)
    fleiss = resampled["fleiss"]
    pairs: dict[str, dict[str, Any]] = {}
    for (one, a), (two, b) in itertools.combinations(zip(sheets, rated, strict=True), 2):
        kappa = measures.cohen_kappa(a, b, len(LEVELS))
        defined = kappa.value == kappa.value
        pairs[f"{one.reader} and {two.reader}"] = {
            "observed_agreement": kappa.observed,
            "value": kappa.value if defined else None,
            "analytic_ci": list(kappa.interval) if defined else [None, None],
        }
    return {
        "n": len(items),
        "observed_agreement": sum(one["observed_agreement"] for one in pairs.values()) / len(pairs),
        "fleiss_kappa": {"value": fleiss.value, "bootstrap_ci": [fleiss.ci_low, fleiss.ci_high]},
        "pairs": pairs,
        "krippendorff_alpha": _alphas(resampled),
    }


def _alphas(resampled: Mapping[str, Estimate]) -> dict[str, Any]:
    return {scale: resampled[scale].to_json() for scale in measures.MEASUREMENT_LEVELS}


def markdown(result: dict[str, Any]) -> str:
    """Returns the text of agreement.md."""
    lines = [["Dimension", "n", "Agreement", "Figure", "Value", "Analytic 95 %", "Bootstrap 95 %"]]
    for dimension, figures in result["dimensions"].items():
        name = dimension.replace("_", " ")
        if not figures["n"]:
            lines.append([name, "0", *[UNDEFINED] * 5])
            continue
        head = [name, str(figures["n"]), f"{figures['observed_agreement']:.3f}"]
        for weights, kappa in figures.get("kappa", {}).items():
            intervals = (_range(kappa["analytic_ci"]), _range(kappa["bootstrap_ci"]))
            lines.append([*head, f"kappa, {weights}", _number(kappa["value"]), *intervals])
        if fleiss := figures.get("fleiss_kappa"):
            interval = _range(fleiss["bootstrap_ci"])
            lines.append([*head, "Fleiss' kappa", _number(fleiss["value"]), "", interval])
        for pair, kappa in figures.get("pairs", {}).items():
            alike = f"{kappa['observed_agreement']:.3f}"
            told = _number(kappa["value"]), _range(kappa["analytic_ci"]), ""
            lines.append([name, str(figures["n"]), alike, f"kappa, {pair}", *told])
        for scale, alpha in figures["krippendorff_alpha"].items():
            interval = _range([alpha["ci_low"], alpha["ci_high"]])
            lines.append([*head, f"alpha, {scale}", _number(alpha["value"]), "", interval])
    return "\n".join(
        [
            "# Agreement of the review\n",
            f"{_and(result['readers'])}, {result['questions']} questions, levels "
            f"{', '.join(result['levels'])}; {len(result['disagreements'])} ratings differ. "
            "Bootstrap intervals resample questions.\n",
            grid(lines),
        ]
    )


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]])


def _number(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.3f}"


def _range(ends: Sequence[float | None]) -> str:
    return UNDEFINED if ends[0] is None else f"{_number(ends[0])} to {_number(ends[1])}"
