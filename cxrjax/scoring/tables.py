"""A paper's tables with our figures in them: Markdown for people, rows for programs.

A table is data: its columns, which metric each one shows under which protocol, the values the paper
printed, and notes on those that cannot be right.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cxrjax.metrics.bootstrap import Estimate
from cxrjax.scoring.scores import PAPER, STRICT, Scores
from cxrjax.scoring.text_tables import UNDEFINED, grid

# Below this many, a figure says little: it is printed in italics.
FEW = 10
NOT_THE_PAPERS = (
    "\nThese are not the paper's images: its values stand beside ours for orientation, and the "
    "differences are no reproduction.\n"
)


@dataclass(frozen=True)
class Column:
    """A column of a paper's table: its title there, and our metric under each protocol.

    Attributes:
        decimals: as the paper prints them; None: 1 of percentages, 3 of fractions.
    """

    title: str
    metrics: Mapping[str, str]
    percent: bool = False
    decimals: int | None = None

    def scale(self, value: float | None) -> float | None:
        """The value in the paper's unit."""
        return value if value is None or not self.percent else 100 * value

    def format(self, value: float | None) -> str:
        if value is None:
            return UNDEFINED
        decimals = (1 if self.percent else 3) if self.decimals is None else self.decimals
        return f"{value:.{decimals}f}"


# Fractions that stand in no paper's table.
PLAIN = Column("", {})


@dataclass(frozen=True)
class Note:
    """A footnote on cells of a column: the paper's cells of the rows named, and ours if `ours`."""

    column: str
    rows: tuple[str, ...]
    text: str
    ours: bool = False


@dataclass(frozen=True)
class PaperTable:
    """One table of a paper.

    Attributes:
        printed: the paper's row -> its values as printed, one per column; None where it has none.
        transposed: whether the paper has models as columns.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    printed: Mapping[str, tuple[float | None, ...]]
    notes: tuple[Note, ...] = ()
    transposed: bool = False

    def mark(self, row: str | None, column: Column) -> str:
        """Footnote marks of a cell; row None is one of ours under the paper's protocol."""
        marks = [
            f"[{number}]"
            for number, note in enumerate(self.notes, start=1)
            if note.column == column.title and (note.ours if row is None else row in note.rows)
        ]
        return "".join(f" {mark}" for mark in marks)


def table_metrics(tables: Iterable[PaperTable]) -> dict[str, list[str]]:
    """Protocol -> the metrics of the tables, in their order: those that systems are compared in."""
    return {
        protocol: list(
            dict.fromkeys(
                column.metrics[protocol]
                for table in tables
                for column in table.columns
                if protocol in column.metrics
            )
        )
        for protocol in (PAPER, STRICT)
    }


@dataclass(frozen=True)
class Breakdown:
    """A metric by class, by question type or by what else figures are broken down by.

    Attributes:
        prefix: metrics are called `<prefix>/<metric>/<key>`.
        metrics: metric -> heading.
        keys: the rows.
    """

    key: str
    title: str
    prefix: str
    metrics: Mapping[str, str]
    keys: Callable[[Scores], Sequence[str]]


def keys_after(prefix: str) -> Callable[[Scores], Sequence[str]]:
    """`Breakdown.keys` of all strict metrics whose name begins so."""

    def keys(scores: Scores) -> Sequence[str]:
        named = next(iter(scores.figures.values()))[STRICT]
        return [name.removeprefix(prefix) for name in named if name.startswith(prefix)]

    return keys


def about_references(settings: Mapping[str, Any]) -> str:
    """What was scored, as every tables.md begins."""
    return (
        f"{settings['images']:,} images, {settings['questions']:,} questions; data set "
        f"{', '.join(settings['datasets'])}, split {', '.join(settings['splits'])}."
    )


def about_intervals(settings: Mapping[str, Any]) -> str:
    """How the intervals were made, and what an undefined figure looks like."""
    bootstrap = settings["bootstrap"]
    return (
        f"In brackets: {100 * bootstrap['confidence']:g} % intervals ({bootstrap['method']} "
        f"bootstrap, {bootstrap['resamples']:,} resamples of {bootstrap['clusters']:,} clusters by "
        f"{' and '.join(bootstrap['clustered_by'])}, seed {bootstrap['seed']}). {UNDEFINED}: "
        "undefined."
    )


def table_markdown(table: PaperTable, scores: Scores, paper_row: Callable[[str], str]) -> str:
    """One table of the paper with our systems below its rows (or right of its columns).

    Args:
        paper_row: system -> the row of the paper that it is compared with.
    """
    lines = [["Model", "Protocol", *(column.title for column in table.columns), "Parse failures"]]
    for row, values in table.printed.items():
        cells = [
            column.format(value) + table.mark(row, column)
            for column, value in zip(table.columns, values, strict=True)
        ]
        lines.append([f"{row} (the paper)", "as printed", *cells, ""])
    for system in scores.figures:
        row = paper_row(system)
        for protocol in (PAPER, STRICT):
            ours = [_figure(scores, system, protocol, column) for column in table.columns]
            failures = scores.figures[system][protocol]["parse_failure_rate"].value
            cells = [
                with_interval(column, figure)
                + (table.mark(None, column) if protocol == PAPER else "")
                for column, figure in zip(table.columns, ours, strict=True)
            ]
            rate = UNDEFINED if failures is None else f"{100 * failures:.1f} %"
            lines.append([system, protocol, *cells, rate])
            if protocol == STRICT or row not in table.printed:
                continue  # nothing printed, or another definition than the paper's
            differences = [
                signed(column, _difference(column, figure, printed))
                for column, figure, printed in zip(
                    table.columns, ours, table.printed[row], strict=True
                )
            ]
            lines.append([f"{system} − {row}", "difference", *differences, ""])
    if table.transposed:
        lines = [list(cells) for cells in zip(*lines, strict=True)]
        lines[0][0] = "Metric"
    notes = "".join(f"\n[{number}] {note.text}\n" for number, note in enumerate(table.notes, 1))
    return f"## {table.title}\n\n{grid(lines)}{notes}"


def breakdown_markdown(breakdown: Breakdown, scores: Scores) -> str:
    """A metric by class or type for all systems, strict; n in each cell."""
    systems = list(scores.figures)
    lines = [["", *(f"{heading}, {s}" for heading in breakdown.metrics.values() for s in systems)]]
    for key in breakdown.keys(scores):
        cells = [key]
        for metric in breakdown.metrics:
            for system in systems:
                figure = scores.figures[system][STRICT][f"{breakdown.prefix}/{metric}/{key}"]
                cells.append(cell_with_n(PLAIN, figure))
        lines.append(cells)
    return f"## {breakdown.title}\n\n{grid(lines)}\nIn italics: fewer than {FEW}.\n"


def failures_markdown(scores: Scores, problems: Mapping[str, str]) -> str:
    """What could not be read and what else was wrong, for all systems.

    Args:
        problems: category -> what it means.
    """
    prefix = "parse_failure_rate"
    names = dict.fromkeys(
        name
        for protocols in scores.figures.values()
        for name in protocols[STRICT]
        if name.startswith(prefix)
    )
    lines = [["Answers that could not be read", *scores.figures]]
    for name in names:
        found = [protocols[STRICT].get(name) for protocols in scores.figures.values()]
        title = name.removeprefix(prefix).lstrip("/") or "all"
        lines.append([title, *(with_interval(PLAIN, f) if f else "0.000" for f in found)])
    for name, meaning in problems.items():
        counts = [str(counted[name]) for counted in scores.problems.values()]
        lines.append([f"{name}: {meaning} (count)", *counts])
    return f"## Failures and problems\n\n{grid(lines)}"


def table_rows(
    tables: Iterable[PaperTable],
    breakdowns: Iterable[Breakdown],
    scores: Scores,
    paper_row: Callable[[str], str],
) -> list[dict[str, Any]]:
    """All tables as one list of cells.

    Empty where the paper has no value, a figure is undefined, or the protocol is not the paper's
    and a difference would mean nothing.
    """
    rows = []
    for table in tables:
        for system in scores.figures:
            row = paper_row(system)
            for protocol in (PAPER, STRICT):
                nothing = (None,) * len(table.columns)
                values = table.printed.get(row, nothing)
                for column, printed in zip(table.columns, values, strict=True):
                    figure = _figure(scores, system, protocol, column)
                    notes = [n for n in table.notes if n.column == column.title and row in n.rows]
                    rows.append(
                        _row(table.key, system, protocol, column.title, column, figure)
                        | {
                            "metric": column.metrics[protocol],
                            "paper_row": row,
                            "paper": printed,
                            "difference": (
                                _difference(column, figure, printed) if protocol == PAPER else None
                            ),
                            "note": " ".join(note.text for note in notes),
                        }
                    )
    for breakdown in breakdowns:
        for system in scores.figures:
            for metric in breakdown.metrics:
                for key in breakdown.keys(scores):
                    name = f"{breakdown.prefix}/{metric}/{key}"
                    figure = scores.figures[system][STRICT][name]
                    row_of = _row(breakdown.key, system, STRICT, key, PLAIN, figure)
                    rows.append(row_of | {"metric": name})
    return rows


def _row(
    table: str, system: str, protocol: str, column: str, unit: Column, figure: Estimate
) -> dict[str, Any]:
    return {
        "table": table,
        "system": system,
        "protocol": protocol,
        "column": column,
        "metric": "",
        "unit": "%" if unit.percent else "",
        "ours": unit.scale(figure.value),
        "ci_low": unit.scale(figure.ci_low),
        "ci_high": unit.scale(figure.ci_high),
        "n": figure.n,
        "small": str(figure.n < FEW).lower(),
        "paper_row": None,
        "paper": None,
        "difference": None,
        "note": None,
    }


def _figure(scores: Scores, system: str, protocol: str, column: Column) -> Estimate:
    return scores.figures[system][protocol][column.metrics[protocol]]


def _difference(column: Column, figure: Estimate, printed: float | None) -> float | None:
    ours = column.scale(figure.value)
    return None if ours is None or printed is None else ours - printed


def signed(column: Column, value: float | None) -> str:
    """A difference in the column's unit, with its sign."""
    if value is None:
        return UNDEFINED
    return ("+" if value >= 0 else "−") + column.format(abs(value))


def with_interval(column: Column, figure: Estimate) -> str:
    """A figure in the column's unit, with its interval where it has one."""
    text = column.format(column.scale(figure.value))
    if figure.ci_low is None or figure.ci_high is None:
        return text
    low, high = column.scale(figure.ci_low), column.scale(figure.ci_high)
    return f"{text} ({column.format(low)} to {column.format(high)})"


def cell_with_n(column: Column, figure: Estimate) -> str:
    """The same with what it was taken over, in italics where that is little."""
    text = f"{with_interval(column, figure)}; n = {figure.n:,}"
    return f"*{text}*" if figure.n < FEW else text
