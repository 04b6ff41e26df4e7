"""Tables of figures in Markdown: a paper's with our rows, lists, breakdowns, common sections."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cxrjax.evaluation.counted import PAPER, STRICT
from cxrjax.evaluation.figures import JUDGE_PROBLEMS
from cxrjax.evaluation.predictions import LINE_PROBLEMS, PROBLEMS
from cxrjax.evaluation.scores import Scores
from cxrjax.evaluation.text_tables import UNDEFINED, grid
from cxrjax.files import read_packaged
from cxrjax.metrics.bootstrap import Estimate

# Below this many, a figure says little: it is printed in italics.
FEW = 10


def printed_words() -> Mapping[str, Any]:
    return read_packaged(str(__package__), "words.toml")


def _section(name: str, rows: Sequence[Sequence[str]], settings: Mapping[str, Any]) -> list[str]:
    """A section of words.toml with these rows; nothing without any."""
    if not rows:
        return []
    words = printed_words()[name]
    text = words["text"].format(**settings["bootstrap"] | {"confidence": _confidence(settings)})
    return [f"## {words['title']}\n", grid([words["columns"], *rows]), f"{text}\n"]


@dataclass(frozen=True)
class Column:
    """A column of a paper's table: its title there, and our metric under each protocol."""

    title: str
    metrics: Mapping[str, str]
    percent: bool = False
    decimals: int | None = None  # as the paper prints them; None: 1 of percentages, 3 of fractions

    def scale(self, value: float | None) -> float | None:
        """The value in the paper's unit."""
        return value if value is None or not self.percent else 100 * value

    def format(self, value: float | None) -> str:
        if value is None:
            return UNDEFINED
        decimals = (1 if self.percent else 3) if self.decimals is None else self.decimals
        return f"{value:.{decimals}f}"


# Marks what could be had without looking.
_NO_BETTER = "†"
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
    """One table of a paper."""

    key: str
    title: str
    columns: tuple[Column, ...]
    # The paper's row -> its values as printed, one per column; None where it has none.
    printed: Mapping[str, tuple[float | None, ...]]
    notes: tuple[Note, ...] = ()
    transposed: bool = False  # whether the paper has models as columns
    split: str | None = None  # the one whose values these are; None: they are of all
    # Those of the rows; a table that no paper has needs none of a paper.
    protocols: Sequence[str] = (PAPER, STRICT)

    def mark(self, row: str | None, column: Column) -> str:
        """Footnote marks of a cell; row None is one of ours under the paper's protocol."""
        marks = [
            f"[{number}]"
            for number, note in enumerate(self.notes, start=1)
            if note.column == column.title and (note.ours if row is None else row in note.rows)
        ]
        return "".join(f" {mark}" for mark in marks)


def about_references(settings: Mapping[str, Any]) -> str:
    """Describes what was scored; the first line of every tables.md."""
    named = {name: ", ".join(settings[name]) for name in ("datasets", "splits")}
    return printed_words()["references"].format(**{**settings, **named})


def about_intervals(settings: Mapping[str, Any]) -> str:
    """Describes how intervals were computed, and the sign for undefined figures."""
    own = {"confidence": _confidence(settings), "undefined": UNDEFINED}
    own["clustered_by"] = " and ".join(settings["bootstrap"]["clustered_by"])
    return printed_words()["intervals"].format(**settings["bootstrap"] | own)


def _confidence(settings: Mapping[str, Any]) -> str:
    return f"{100 * settings['bootstrap']['confidence']:g} %"


def table_markdown(
    table: PaperTable, scores: Scores, paper_row: Callable[[str], str], same_images: bool = True
) -> str:
    """One table of the paper with our systems below its rows (or right of its columns).

    Args:
        same_images: whether they are the paper's, so that differences mean something.
        paper_row: system -> the row of the paper that it is compared with.
    """
    lines = [["Model", "Protocol", *(column.title for column in table.columns), "Parse failures"]]
    for row, values in table.printed.items():
        cells = [
            column.format(value) + table.mark(row, column)
            for column, value in zip(table.columns, values, strict=True)
        ]
        lines.append([f"{row} (the paper)", "as printed", *cells, ""])
    for system, figures in scores.rows.items():
        row = paper_row(system) if system in scores.figures else ""
        for protocol in table.protocols:
            ours = [figure_of(scores, system, protocol, column) for column in table.columns]
            failures = figures[protocol]["parse_failure_rate"].value
            cells = [
                with_interval(column, figure)
                + (table.mark(None, column) if protocol == PAPER else "")
                for column, figure in zip(table.columns, ours, strict=True)
            ]
            rate = UNDEFINED if failures is None else f"{100 * failures:.1f} %"
            lines.append([system, protocol, *cells, rate])
            if protocol == STRICT or row not in table.printed or not same_images:
                continue  # nothing printed, or another definition than the paper's
            differences = [
                signed(column, difference_of(column, figure, printed))
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


def failures_markdown(scores: Scores, problems: Mapping[str, str]) -> str:
    """Lists answers that could not be read, and other problems, for all systems.

    Args:
        problems: category -> what it means, where it is not what all benchmarks mean.
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
    meanings = {**PROBLEMS, **LINE_PROBLEMS, **JUDGE_PROBLEMS, **problems}
    for name in dict.fromkeys(name for counted in scores.problems.values() for name in counted):
        counts = [str(counted.get(name, 0)) for counted in scores.problems.values()]
        lines.append([f"{name}: {meanings[name]} (count)", *counts])
    named = [
        f"\n{system}: {category}: {', '.join(f'{name} ({n:,})' for name, n in cases.items())}\n"
        for system, found in scores.settings.get("line_problems", {}).items()
        for category, cases in found.items()
    ]
    return f"## Failures and problems\n\n{grid(lines)}{''.join(named)}"


def floor_tables(scores: Scores) -> list[str]:
    """Every system against the best system that does not look; nothing where there are none."""
    if scores.settings.get("floors_left_out"):
        return [printed_words()["floors_left_out"].format(**scores.settings) + "\n"]
    rows = [
        [
            *(row["system"], row["protocol"], f"`{row['metric']}`", row["floor"]),
            *(f"{row['floor_value']:.3f}", _compared(row), f"{row['n']:,}"),
        ]
        for row in scores.against_floors
    ]
    return _section("floors", rows, scores.settings)


def floor_warnings(scores: Scores, metrics: Iterable[Sequence[str]]) -> str:
    """A line for each system that is no better than a floor in any headline.

    Args:
        metrics: (protocol, metric) of the headlines.
    """
    wanted = [tuple(metric) for metric in metrics]
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in scores.against_floors:
        if (row["protocol"], row["metric"]) in wanted:
            rows.setdefault(row["system"], []).append(row)
    told = {
        system: ", ".join(
            f"`{row['metric']}` ({_compared(row)} to {row['floor']})"
            for row in sorted(found, key=lambda row: -(row["difference"] or -1.0))
        )
        for system, found in rows.items()
        if not any(row["better"] for row in found)
    }
    warning, confidence = printed_words()["warning"], _confidence(scores.settings) if told else ""
    return "".join(
        f"\n{warning.format(system=system, confidence=confidence, found=found)}\n"
        for system, found in told.items()
    )


def reliance_tables(scores: Scores) -> list[str]:
    """Systems on changed images beside themselves on their own; nothing where there are none."""
    changes, rows = printed_words()["reliance"]["changes"], []
    for row in scores.reliance:
        told = changes.get(row["measure"])
        estimate = Estimate(row["value"], row["ci_low"], row["ci_high"], row["n"])
        difference = {**row, "difference": row["value"]}
        how_much = with_interval(PLAIN, estimate) if told else _compared(difference)
        what = told or f"`{row['measure']}`"
        rows.append([row["own"], row["system"], what, how_much, f"{row['n']:,}"])
    return _section("reliance", rows, scores.settings)


def comparison_tables(scores: Scores) -> list[str]:
    """Every system against the one that all are compared with; nothing of one system."""
    rows = [
        [
            *(f"{row['system']} − {row['compared_to']}", row["protocol"], f"`{row['metric']}`"),
            _compared(row),
            *(UNDEFINED if p is None else f"{p:.3g}" for p in (row["p"], row["p_holm"])),
            f"{row['n']:,}",
        ]
        for row in scores.comparisons
    ]
    return _section("comparison", rows, scores.settings)


def _compared(row: Mapping[str, Any]) -> str:
    if row["difference"] is None:
        return UNDEFINED
    text = f"{row['difference']:+.3f}"
    if row["ci_low"] is None:
        return text
    return f"{text} ({row['ci_low']:+.3f} to {row['ci_high']:+.3f})"


@dataclass(frozen=True, kw_only=True)
class FigureList:
    """Figures one below the other, in a column for each system (and protocol)."""

    title: str
    metrics: Mapping[str, str]  # metric -> heading
    # The first cell; "" for columns of both protocols, `<system>, <protocol>`.
    corner: str = "Strict"
    percent: bool = False
    decimals: int | None = None
    known_only: bool = False  # whether lines without any defined figure are left out
    # Metric -> sentence below the list for each system where it is not 0.
    remarks: Mapping[str, str] = field(default_factory=dict)

    def markdown(self, scores: Scores) -> str:
        both = not self.corner
        unit = Column("", {}, self.percent, self.decimals)
        systems = [(s, p) for s in scores.rows for p in ((PAPER, STRICT) if both else (STRICT,))]
        names = [f"{system}, {protocol}" if both else system for system, protocol in systems]
        lines = [[self.corner, *names]]
        for metric, title in self.metrics.items():
            figures = [scores.rows[s][p].get(metric) for s, p in systems]
            if not self.known_only or any(f is not None and f.value is not None for f in figures):
                cells = (with_interval(unit, f) if f is not None else "" for f in figures)
                lines.append([title, *cells])
        remarks = [
            f"{system}: {text}\n"
            for metric, text in self.remarks.items()
            for system, protocol in systems
            if system in scores.figures and scores.figures[system][protocol][metric].value
        ]
        return "\n".join([f"## {self.title}\n\n{grid(lines)}", *remarks])


@dataclass(frozen=True)
class Breakdown:
    """A metric by class, by question type or by what else figures are broken down by."""

    key: str
    title: str
    prefix: str  # metrics are called `<prefix>/<metric>/<key>`
    metrics: Mapping[str, str]  # metric -> heading
    corner: str = ""  # heading of the rows
    counted: str = ""  # the metric whose n stands in a column of its own; "": n is in each cell
    most: int | None = None  # rows shown at most, those of the highest n; None: all
    only_filled: bool = False  # whether rows without any unit are left out

    def keys(self, scores: Scores) -> list[str]:
        """The rows: all that the first metric has."""
        start = f"{self.prefix}/{next(iter(self.metrics))}/"
        named = next(iter(scores.figures.values()))[STRICT]
        return [
            name.removeprefix(start)
            for name, figure in named.items()
            if name.startswith(start) and (figure.n or not self.only_filled)
        ]

    def markdown(self, scores: Scores) -> str:
        systems, keys = list(scores.figures), self.keys(scores)
        floors = {
            (row["metric"], row["system"]): row
            for row in (*scores.against_floors, *scores.groups_against_floors)
            if row["protocol"] == STRICT
        }
        with_floor = {
            metric
            for metric in self.metrics
            if any(name.startswith(f"{self.prefix}/{metric}/") for name, _ in floors)
        }
        headings = [
            f"{heading}, {s}"
            for metric, heading in self.metrics.items()
            for s in (*systems, *(["best baseline"] if metric in with_floor else []))
        ]
        lines = [[self.corner, *(["questions"] if self.counted else []), *headings]]
        first = scores.figures[systems[0]][STRICT]
        size = {
            k: first[f"{self.prefix}/{self.counted}/{k}"].n if self.counted else 0 for k in keys
        }
        shown = keys
        if self.most is not None:
            shown = sorted(sorted(keys, key=lambda key: (-size[key], key))[: self.most])
        for key in shown:
            cells = [key, f"{size[key]:,}"] if self.counted else [key]
            for metric in self.metrics:
                name = f"{self.prefix}/{metric}/{key}"
                beside = [floors.get((name, system)) for system in systems]
                for system, row in zip(systems, beside, strict=True):
                    figure = scores.figures[system][STRICT][name]
                    cell = cell_with_n(PLAIN, figure, with_n=not self.counted)
                    cells.append(cell if row is None or row["better"] else f"{cell} {_NO_BETTER}")
                if metric in with_floor:
                    best = next((row for row in beside if row), None)
                    cells.append(f"{best['floor_value']:.3f}, {best['floor']}" if best else "")
            lines.append(cells)
        left_out = len(keys) - len(shown)
        more = f" {left_out} smaller groups stand in tables.csv." if left_out else ""
        confidence = _confidence(scores.settings) if with_floor else ""
        marked = f" {_NO_BETTER}: not better than the best baseline at {confidence}."
        told = f"In italics: fewer than {FEW}.{marked if with_floor else ''}{more}"
        return f"## {self.title}\n\n{grid(lines)}\n{told}\n"


def csv_row(
    table: str, system: str, protocol: str, column: str, unit: Column, figure: Estimate
) -> dict[str, Any]:
    value, low, high = map(unit.scale, (figure.value, figure.ci_low, figure.ci_high))
    said = {"table": table, "system": system, "protocol": protocol, "column": column, "metric": ""}
    said |= {"unit": "%" if unit.percent else ""}
    numbers: dict[str, Any] = {"ours": value, "ci_low": low, "ci_high": high, "n": figure.n}
    numbers["small"] = str(figure.n < FEW).lower()
    return said | numbers | dict.fromkeys(("paper_row", "paper", "difference", "note"))


def figure_of(scores: Scores, system: str, protocol: str, column: Column) -> Estimate:
    return scores.rows[system][protocol].get(column.metrics[protocol], _UNKNOWN)


# Of what a floor is not asked, such as a judge's marks.
_UNKNOWN = Estimate(None, None, None, 0)


def difference_of(column: Column, figure: Estimate, printed: float | None) -> float | None:
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


def cell_with_n(column: Column, figure: Estimate, with_n: bool = True) -> str:
    """Formats a cell with its interval and n, in italics if n is small."""
    text = with_interval(column, figure) + (f"; n = {figure.n:,}" if with_n else "")
    return f"*{text}*" if figure.n < FEW else text
