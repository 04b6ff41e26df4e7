"""The consensus of two readers: initial ratings, outcome of the discussion, acceptance.

A row per question and dimension. Where the readers agree, the outcome is filled in already; where
they agree on "acceptable", the acceptance too. The rest is theirs to fill in.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.pages.review.sheet import DIMENSIONS, LEVELS, Ratings, parse_level, read_rows

_RATINGS = ("first_rating", "second_rating")
COLUMNS = (
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
    """A filled consensus file.

    Attributes:
        outcomes: (question id, dimension) -> index into `LEVELS` after discussion.
        accepted: (question id, dimension) -> whether it was accepted in the end.
    """

    outcomes: dict[tuple[str, str], int]
    accepted: dict[tuple[str, str], bool]


def shared_items(first: Ratings, second: Ratings) -> list[tuple[str, str]]:
    """(question id, dimension) that both readers rated, in the first sheet's order.

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
    """The consensus file to fill in."""
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
    """A filled consensus file, checked against the two sheets it settles.

    Raises:
        UserError: it cannot be read, an outcome or acceptance is missing or unknown, an initial
            rating is not the sheet's, or a question is missing or superfluous; names file and line.
    """
    outcomes: dict[tuple[str, str], int] = {}
    accepted: dict[tuple[str, str], bool] = {}
    expected = set(shared_items(first, second))
    for cells, where in read_rows(path, COLUMNS[:-1]):
        item = cells["question_id"], cells["dimension"]
        if item not in expected or item in outcomes:
            again = "stands there twice" if item in outcomes else "is not in both sheets"
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
    """Counts before and after the discussion."""
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
