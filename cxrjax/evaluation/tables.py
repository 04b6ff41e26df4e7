"""A paper's tables with our figures in them: Markdown for people, rows for programs.

What is printed is data, in the tables.toml of the paper's folder: tables with their columns, the
metric of each under each protocol, the values that the paper printed, and notes on those that
cannot be right; lists of figures beside them; breakdowns; headlines. `load_layout` says what a
tables.toml may have.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cxrjax.evaluation.counted import PAPER, STRICT, Counted
from cxrjax.evaluation.figure_lines import FigureLine, direction_of, shared_lines
from cxrjax.evaluation.figures import JUDGE_PROBLEMS
from cxrjax.evaluation.predictions import LINE_PROBLEMS, PROBLEMS
from cxrjax.evaluation.scores import Beside, Scores
from cxrjax.evaluation.text_tables import UNDEFINED, grid
from cxrjax.files import read_packaged
from cxrjax.metrics.bootstrap import Estimate
from cxrjax.radiology_text.error_rates import about_reading

# Below this many, a figure says little: it is printed in italics.
FEW = 10


def _words() -> Mapping[str, Any]:
    return read_packaged(str(__package__), "words.toml")


def _section(name: str, rows: Sequence[Sequence[str]], settings: Mapping[str, Any]) -> list[str]:
    """A section of words.toml with these rows; nothing without any."""
    if not rows:
        return []
    words = _words()[name]
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
    return _words()["references"].format(**{**settings, **named})


def about_intervals(settings: Mapping[str, Any]) -> str:
    """Describes how intervals were computed, and the sign for undefined figures."""
    own = {"confidence": _confidence(settings), "undefined": UNDEFINED}
    own["clustered_by"] = " and ".join(settings["bootstrap"]["clustered_by"])
    return _words()["intervals"].format(**settings["bootstrap"] | own)


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
            ours = [_figure(scores, system, protocol, column) for column in table.columns]
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
        return [_words()["floors_left_out"].format(**scores.settings) + "\n"]
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
    warning, confidence = _words()["warning"], _confidence(scores.settings) if told else ""
    return "".join(
        f"\n{warning.format(system=system, confidence=confidence, found=found)}\n"
        for system, found in told.items()
    )


def reliance_tables(scores: Scores) -> list[str]:
    """Systems on changed images beside themselves on their own; nothing where there are none."""
    changes, rows = _words()["reliance"]["changes"], []
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


def all_figures(
    scores: Scores, table: Callable[[str], str], printed: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """A line for every figure, in place of cells of tables.

    Args:
        table: metric -> the table that it is of.
        printed: metric -> the paper's value.
    """
    listed = []
    for system, protocols in scores.figures.items():
        for protocol, figures in protocols.items():
            for metric, figure in figures.items():
                row = csv_row(table(metric), system, protocol, "", PLAIN, figure)
                paper = (printed or {}).get(metric) if protocol == PAPER else None
                row |= {"metric": metric, "paper": paper}
                row["difference"] = _difference(PLAIN, figure, paper)
                for name in ("column", "unit", "paper_row", "note"):
                    del row[name]
                listed.append(row)
    return listed


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
            for s in (*systems, *(["best floor"] if metric in with_floor else []))
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
        marked = f" {_NO_BETTER}: not better than the best floor at {confidence}."
        told = f"In italics: fewer than {FEW}.{marked if with_floor else ''}{more}"
        return f"## {self.title}\n\n{grid(lines)}\n{told}\n"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The printed parts of a benchmark; made by `load_layout`."""

    # `title`, `citation`: of the results page.
    title: str
    # The benchmark's figures, those that several benchmarks have last.
    lines: tuple[FigureLine, ...] = ()
    citation: str = ""
    # Whether the page compares answers fact by fact, in place of word by word.
    by_facts: bool = False
    heading: str = ""  # of tables.md, with settings and words to fill in
    # The file of sentences whose errors are printed, where answers are read by rules.
    read_as: str = ""
    # Words of the heading on the judge: `none`, `by`, and after it of a `surrogate`.
    judged: Mapping[str, str] = field(default_factory=dict)
    # Whose images are the paper's own; with another, tables.md says so. "": none are.
    data_set: str = ""
    order: Sequence[str] = ("tables", "lists", "failures", "breakdowns")  # the parts of tables.md
    tables: tuple[PaperTable, ...] = ()
    lists: tuple[FigureList, ...] = ()
    breakdowns: tuple[Breakdown, ...] = ()
    # Row of the paper -> the systems' names that are compared with it; without any, a row's own
    # name within the system's, the longest that fits.
    paper_rows: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # The row of other systems; "": there is none, and they stand for themselves.
    default_row: str = ""
    # What they mean where it is not what `PROBLEMS` says.
    problems: Mapping[str, str] = field(default_factory=dict)
    csv_settings: Sequence[str] = ()  # settings that each line of tables.csv has
    # Protocol -> metrics that systems are compared in; "tables" among them, or none: those of the
    # tables.
    compared_in: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {PAPER: (), STRICT: ()}
    )
    # (protocol, metric, label, definition) of the figures that matter most.
    headlines: Sequence[Sequence[str]] = ()
    # Protocol -> the metrics that a training run logs.
    logged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    texts: Mapping[str, Any] = field(default_factory=dict)  # further data, whatever the paper needs
    # The options of scoring, of "codec", "judge", "segmenter", "bert_score", "radeval".
    takes: Sequence[str] = ("codec",)
    # Question types whose answers are compared as free text, "*" for all: by RadFact with a judge,
    # and by RadEval.
    free_text: Sequence[str] = ()
    floors: bool = True  # whether questions can be answered without looking
    report_floors: bool = False  # references are reports, of which floors are written, too

    def words(self, scores: Scores) -> Mapping[str, str]:
        """Words of the heading beside the settings."""
        del scores
        return {}

    def logged_figures(
        self, figures: Mapping[str, Mapping[str, Estimate]]
    ) -> list[tuple[str, str, float | None]]:
        """(protocol, metric, value) of one system's figures that a training run logs."""
        logged = self.logged or {STRICT: list(figures[STRICT])}
        return [(p, name, figures[p][name].value) for p, names in logged.items() for name in names]

    @property
    def reading(self) -> str:
        """Describes how often rules misread answers; "" if answers are not read by rules."""
        return about_reading(self.read_as) if self.read_as else ""

    def table(self, key: str) -> PaperTable:
        """The first table of this key."""
        return next(table for table in self.tables if table.key == key)

    def telling(self) -> list[tuple[str, str]]:
        """(protocol, metric) of the headlines that say how good answers are, not their form."""
        return [(p, metric) for p, metric, *_ in self.headlines if metric != "parse_failure_rate"]

    def compared(self) -> dict[str, list[str]]:
        """Protocol -> the metrics that systems are compared in, headlines among them; "tables":
        those of the tables."""
        told = self.telling()
        columns = [column for table in self.tables for column in table.columns]
        return {
            protocol: list(
                dict.fromkeys(
                    metric
                    for name in (*(metrics or ["tables"]), *(m for p, m in told if p == protocol))
                    for metric in (
                        [c.metrics[protocol] for c in columns] if name == "tables" else [name]
                    )
                )
            )
            for protocol, metrics in self.compared_in.items()
        }

    def shown(self) -> frozenset[str]:
        """The metrics in tables and lists, and those that systems are compared in."""
        columns = (column for table in self.tables for column in table.columns)
        return frozenset(
            (
                "parse_failure_rate",
                *(metric for column in columns for metric in column.metrics.values()),
                *(metric for listed in self.lists for metric in listed.metrics),
                *(metric for metrics in self.compared().values() for metric in metrics),
            )
        )

    def beside_floors(self, systems: Iterable[Counted]) -> Beside:
        """The figures of floors that stand beside the systems'."""
        starts = tuple(
            f"{one.prefix}/{metric}/" for one in self.breakdowns for metric in one.metrics
        )
        names = dict.fromkeys(name for one in systems for name in one.figures[STRICT])
        compared = self.compared().get(STRICT, ())
        # In order, which a set has not: it is that of the lines of floors.json.
        groups = [
            name for name in names if starts and name.startswith(starts) and name not in compared
        ]
        return Beside(self.shown(), dict.fromkeys(groups), partial(direction_of, self.lines))

    def paper_row(self, system: str) -> str:
        """The paper's row that a system is compared with."""
        if self.paper_rows:
            found = [row for row, names in self.paper_rows.items() if system.lower() in names]
        else:
            printed = dict.fromkeys(row for table in self.tables for row in table.printed)
            found = [row for row in printed if _letters(row) in _letters(system)]
        return max(found, key=lambda row: len(_letters(row)), default=self.default_row or system)

    def has_papers_images(self, scores: Scores) -> bool:
        """False where images that are not the paper's were scored: of others, or trained on."""
        settings = scores.settings
        return not self.data_set or (
            set(settings["datasets"]) == {self.data_set}
            and "train" not in settings.get("splits", ())
        )

    def head(self, scores: Scores) -> str:
        """The heading of tables.md: what the figures stand on."""
        settings = scores.settings
        filled = {"intervals": about_intervals(settings), **settings, **self.words(scores)}
        if "images" in settings:
            filled["references"] = about_references(settings)
        if self.judged:
            judged = self.judged["by" if "judge" in settings else "none"].format(**settings)
            surrogate = self.judged["surrogate"] if settings["surrogate_judge"] else ""
            filled["judged"] = judged + surrogate
        text = self.heading.format(**filled)
        if self.read_as:
            text += f"\n{self.reading}\n"
        if not self.has_papers_images(scores):
            text += f"\n{_words()['not_the_papers']}\n"
        return text + floor_warnings(scores, self.telling())

    def markdown(self, scores: Scores) -> str:
        """tables.md."""
        parts = {
            "tables": [
                table_markdown(t, scores, self.paper_row, self.has_papers_images(scores))
                for t in self.tables
            ],
            "lists": [listed.markdown(scores) for listed in self.lists],
            "failures": [failures_markdown(scores, self.problems)],
            "breakdowns": [b.markdown(scores) for b in self.breakdowns if b.most or b.keys(scores)],
        }
        texts = [text for part in self.order for text in parts[part]]
        return "\n".join([self.head(scores), *texts])

    def rows(self, scores: Scores) -> list[dict[str, Any]]:
        """The cells of tables.csv."""
        added = {name: scores.settings[name] for name in self.csv_settings}
        return [
            {**row, **added}
            for row in (
                *(row for table in self.tables for row in self._table_rows(table, scores)),
                *(row for breakdown in self.breakdowns for row in _broken_down(breakdown, scores)),
            )
        ]

    def _table_rows(self, table: PaperTable, scores: Scores) -> Iterable[dict[str, Any]]:
        """A cell each; empty where the paper has no value, a figure is undefined, or the protocol
        is not the paper's and a difference would mean nothing."""
        for system in scores.figures:
            row = self.paper_row(system)
            for protocol in (PAPER, STRICT):
                values = table.printed.get(row, (None,) * len(table.columns))
                for column, printed in zip(table.columns, values, strict=True):
                    figure = _figure(scores, system, protocol, column)
                    notes = [n for n in table.notes if n.column == column.title and row in n.rows]
                    yield csv_row(table.key, system, protocol, column.title, column, figure) | {
                        "metric": column.metrics[protocol],
                        "paper_row": row if table.printed else None,
                        "paper": printed,
                        "difference": (
                            _difference(column, figure, printed)
                            if protocol == PAPER and self.has_papers_images(scores)
                            else None
                        ),
                        "note": " ".join(note.text for note in notes),
                    }


def _broken_down(breakdown: Breakdown, scores: Scores) -> Iterable[dict[str, Any]]:
    for system in scores.figures:
        for metric in breakdown.metrics:
            for key in breakdown.keys(scores):
                name = f"{breakdown.prefix}/{metric}/{key}"
                figure = scores.figures[system][STRICT][name]
                yield csv_row(breakdown.key, system, STRICT, key, PLAIN, figure) | {"metric": name}


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def load_layout(package: str, kind: type[Layout] = Layout) -> Layout:
    """The tables.toml of a paper's folder.

    Keys are those of `Layout`, and of `PaperTable`, `FigureList` and `Breakdown` below `tables`,
    `lists` and `breakdowns`. A column is [title, metric] or [title, metric, metric under `paper`];
    `percent` of a table is true or the titles of such columns; "" is a blank cell; the text of a
    note may be a key of `note_texts`, and its rows "all". `every_table` has what all tables have,
    and `each` of a breakdown makes one of each of its keys.
    """
    content: dict[str, Any] = dict(read_packaged(package, "tables.toml"))
    texts = content.pop("note_texts", {})
    tables, breakdowns = content.pop("tables", ()), content.pop("breakdowns", ())
    every = content.pop("every_table", {})
    figures = dict(content.pop("figures", {}))
    lists = []
    for listed in content.pop("lists", ()):
        own = {name: line for name, line in listed["metrics"].items() if not isinstance(line, str)}
        figures |= own
        headings = {
            name: own[name][2] if name in own else h for name, h in listed["metrics"].items()
        }
        lists.append(FigureList(**{**listed, "metrics": headings}))
    lines = {name: FigureLine(name, *line) for name, line in figures.items()}
    for line in (one for section in content.pop("uses", ()) for one in shared_lines(section)):
        lines.setdefault(line.name, line)
    return kind(
        **content,
        lines=tuple(lines.values()),
        tables=tuple(_paper_table(table, texts, every) for table in tables),
        lists=tuple(lists),
        breakdowns=tuple(one for listed in breakdowns for one in _breakdowns(**listed)),
    )


def _breakdowns(
    title: str, each: Mapping[str, str] | None = None, corner: str = "", **listed: Any
) -> Iterable[Breakdown]:
    """One, or one for each key of `each`, whose name stands for {} in title and corner."""
    if each is None:
        yield Breakdown(title=title, corner=corner, **listed)
    for key, name in (each or {}).items():
        title_here, corner_here = title.replace("{}", name), corner.replace("{}", name)
        yield Breakdown(key=key, prefix=key, title=title_here, corner=corner_here, **listed)


def _paper_table(
    table: Mapping[str, Any], texts: Mapping[str, str], every: Mapping[str, Any]
) -> PaperTable:
    kind = table["key"].partition("/")[2]
    listed = [*table.get("notes", ()), *every.get("notes", ())]
    table = {**every, **table, "notes": listed}
    percent, decimals = table.get("percent", False), table.get("decimals")
    columns = tuple(
        Column(
            title,
            {PAPER: names[-1].replace("{}", kind), STRICT: names[0].replace("{}", kind)},
            percent if isinstance(percent, bool) else title in percent,
            decimals,
        )
        for title, *names in table["columns"]
    )
    # TOML has no null: "" is a blank cell.
    printed = {
        row: tuple(None if value == "" else value for value in values)
        for row, values in table.get("printed", {}).items()
    }
    notes = tuple(
        Note(
            note["column"],
            tuple(printed) if note.get("rows") == "all" else tuple(note.get("rows", ())),
            texts.get(note["text"], note["text"]),
            note.get("ours", False),
        )
        for note in table.get("notes", ())
    )
    own = {name: table[name] for name in ("transposed", "split") if name in table}
    return PaperTable(table["key"], table["title"], columns, printed, notes, **own)


def csv_row(
    table: str, system: str, protocol: str, column: str, unit: Column, figure: Estimate
) -> dict[str, Any]:
    value, low, high = map(unit.scale, (figure.value, figure.ci_low, figure.ci_high))
    said = {"table": table, "system": system, "protocol": protocol, "column": column, "metric": ""}
    said |= {"unit": "%" if unit.percent else ""}
    numbers: dict[str, Any] = {"ours": value, "ci_low": low, "ci_high": high, "n": figure.n}
    numbers["small"] = str(figure.n < FEW).lower()
    return said | numbers | dict.fromkeys(("paper_row", "paper", "difference", "note"))


def _figure(scores: Scores, system: str, protocol: str, column: Column) -> Estimate:
    return scores.rows[system][protocol].get(column.metrics[protocol], _UNKNOWN)


# Of what a floor is not asked, such as a judge's marks.
_UNKNOWN = Estimate(None, None, None, 0)


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


def cell_with_n(column: Column, figure: Estimate, with_n: bool = True) -> str:
    """Formats a cell with its interval and n, in italics if n is small."""
    text = with_interval(column, figure) + (f"; n = {figure.n:,}" if with_n else "")
    return f"*{text}*" if figure.n < FEW else text
