"""A benchmark's tables.toml, and what tables.md, tables.csv and floors.json print by it.

It has tables with their columns, the metric of each under each protocol, the values that the paper
printed, and notes on those that cannot be right; lists of figures; breakdowns; headlines.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cxrjax.evaluation.counted import PAPER, STRICT, Counted
from cxrjax.evaluation.figure_lines import FigureLine, direction_of, shared_lines
from cxrjax.evaluation.scores import Beside, Scores
from cxrjax.evaluation.tables import (
    PLAIN,
    Breakdown,
    Column,
    FigureList,
    Note,
    PaperTable,
    about_intervals,
    about_references,
    csv_row,
    difference_of,
    failures_markdown,
    figure_of,
    floor_warnings,
    printed_words,
    table_markdown,
)
from cxrjax.files import read_packaged
from cxrjax.metrics.bootstrap import Estimate
from cxrjax.radiology_text.error_rates import about_reading


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
                row["difference"] = difference_of(PLAIN, figure, paper)
                for name in ("column", "unit", "paper_row", "note"):
                    del row[name]
                listed.append(row)
    return listed


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
            text += f"\n{printed_words()['not_the_papers']}\n"
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
                    figure = figure_of(scores, system, protocol, column)
                    notes = [n for n in table.notes if n.column == column.title and row in n.rows]
                    yield csv_row(table.key, system, protocol, column.title, column, figure) | {
                        "metric": column.metrics[protocol],
                        "paper_row": row if table.printed else None,
                        "paper": printed,
                        "difference": (
                            difference_of(column, figure, printed)
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
