"""The tables of the page: what score wrote, beside the paper's values; nothing is computed here."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cxrjax.benchmarks.overlays import BASE, TUNED
from cxrjax.benchmarks.scores import PAPER, STRICT
from cxrjax.benchmarks.tables import FEW, UNDEFINED, PaperTable
from cxrjax.benchmarks.vindr_layout import FINE_TUNED, PRETRAINED, TABLES
from cxrjax.errors import UserError

# {system: {protocol: {metric: {value, ci_low, ci_high, n}}}}: the content of metrics.json.
Metrics = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]


@dataclass(frozen=True)
class Cell:
    """One figure as printed. `value` is None where it is undefined or was not measured."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    percent: bool = False

    @property
    def text(self) -> str:
        return format_number(self.value, self.percent)

    @property
    def interval(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return ""
        ends = (format_number(end, self.percent) for end in (self.low, self.high))
        return " to ".join(ends)

    @property
    def few(self) -> bool:
        return self.n is not None and self.n < FEW

    @property
    def exact(self) -> str:
        """The unrounded value, for the tooltip."""
        value = "undefined or not measured" if self.value is None else repr(self.value)
        return value if self.n is None else f"{value}, n = {self.n:,}"


@dataclass
class Row:
    """One metric, a cell for each system. `paper`: the paper's values as printed, as text."""

    label: str
    cells: list[Cell]
    paper: list[str] = field(default_factory=list)
    notes: list[int] = field(default_factory=list)

    @property
    def n(self) -> str:
        return common_n(self.cells)

    @property
    def plotted(self) -> bool:
        """Whether the values fit the plot's axis, 0 to 1."""
        values = [cell.value for cell in self.cells if cell.value is not None]
        return bool(values) and all(0 <= value <= 1 for value in values)


@dataclass
class Section:
    """Rows under one heading; `hint` says how they are defined."""

    title: str
    hint: str
    rows: list[Row] = field(default_factory=list)


@dataclass
class Table:
    """`paper` names the paper's columns; `notes` are numbered from 1 in the rows."""

    title: str
    key: str
    sections: list[Section]
    paper: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class BreakdownRow:
    """One class or question type: `cells[metric][system]`; `marked` if the base had learnt it."""

    name: str
    cells: list[list[Cell]]
    marked: bool

    @property
    def n(self) -> str:
        """The n of the first metric, the only one with a column."""
        return common_n(self.cells[0])


@dataclass(frozen=True)
class Breakdown:
    """`metrics` are (heading, definition), the columns; each has a column per system."""

    key: str
    heading: str
    metrics: list[tuple[str, str]]
    rows: list[BreakdownRow]


_PARSE_FAILURES = "parse_failure_rate"
# What each protocol's figures are, by table.
_HINTS = {
    ("table_4", PAPER): "the classes that an answer says are there, over all questions",
    ("table_4", STRICT): "accuracy over the (image, class) pairs asked about, absent ones too",
    ("table_5", PAPER): "right if it overlaps any true box, class ignored",
    ("table_5", STRICT): "matched one to one within a class",
    ("table_6", PAPER): "all boxes of all answers about an image, class ignored",
    ("table_6", STRICT): "a box that several answers give counts once, class ignored",
}
# Strict figures that the paper has no column for: (metric, label) below the table they belong to.
_FURTHER: dict[str, tuple[tuple[str, str], ...]] = {
    "table_4": (
        ("vqa/balanced_accuracy", "Balanced accuracy"),
        ("vqa/sensitivity", "Sensitivity"),
        ("vqa/specificity", "Specificity"),
        ("vqa/mcc", "Matthews correlation"),
        ("vqa/exact_set", "Exact set of classes"),
    ),
    "table_5": (
        ("detection_agnostic/precision@0.3", "Prec., class ignored"),
        ("detection_agnostic/recall@0.3", "Recall, class ignored"),
        ("detection_agnostic/f1@0.3", "F1, class ignored"),
        ("detection_agnostic/miou_tp@0.3", "mIoU (TP), class ignored"),
        ("detection/recall_ceiling@0.3", "Recall ceiling: the reference answers"),
        ("detection/boxes_per_image", "Predicted boxes per image"),
        ("detection/truth_boxes_per_image", "True boxes per image"),
        ("detection/boxes_per_normal_image", "Predicted boxes per image without any true box"),
        ("detection/duplicate_share", "Boxes that repeat one of their answer"),
    ),
}
_F1 = ("detection/f1@0.3", "Detection F1", "one to one, class-aware, IoU > 0.3")
_BALANCED = ("vqa/balanced_accuracy", "Balanced accuracy", "there or not, by image and class")
_MIOU = ("detection/miou_tp@0.3", "Mean IoU of true positives", "how well the found boxes fit")
_FAILURES = (_PARSE_FAILURES, "Parse failures", "answers that cannot be read")
_VQA_F1 = ("vqa/f1", "Question answering F1", "classes that answers say are there")
_BREAKDOWNS = (
    ("by_class", "Class", (_F1, _BALANCED, _MIOU)),
    ("by_question_type", "Question", (_VQA_F1, _BALANCED, _FAILURES)),
)


def check_metrics(metrics: Any) -> None:
    """Refuses what is not `{system: {protocol: {metric: {value, ...}}}}`.

    Raises:
        UserError: names the first place that is something else.
    """
    layout = "expected {system: {protocol: {metric: {value, ci_low, ci_high, n}}}}, as score writes"
    if not isinstance(metrics, Mapping) or not metrics:
        raise UserError(f"metrics: no systems: {layout}")
    for system, protocols in metrics.items():
        if not isinstance(protocols, Mapping):
            raise UserError(f"metrics: {system} is not an object: {layout}")
        for protocol, named in protocols.items():
            if not isinstance(named, Mapping):
                raise UserError(f"metrics: {system}/{protocol} is not an object: {layout}")
            for metric, entry in named.items():
                if not isinstance(entry, Mapping) or "value" not in entry:
                    raise UserError(f"metrics: {system}/{protocol}/{metric} has no value: {layout}")
                for name in ("value", "ci_low", "ci_high", "n"):
                    number = entry.get(name)
                    if number is not None and not isinstance(number, int | float):
                        where = f"{system}/{protocol}/{metric}/{name}"
                        raise UserError(f"metrics: {where} is {number!r}: expected a number")


def ordered_systems(metrics: Metrics) -> list[str]:
    """The systems with `base` and `tuned` first."""
    return sorted(metrics, key=lambda name: (name != BASE, name != TUNED))


def paper_tables(metrics: Metrics, systems: Sequence[str]) -> list[Table]:
    """Tables 4 to 6, the paper's rows always, further ones if any system has the metric."""
    return [_paper_table(table, metrics, systems) for table in TABLES]


def _paper_table(layout: PaperTable, metrics: Metrics, systems: Sequence[str]) -> Table:
    paper_rows = (PRETRAINED, FINE_TUNED)
    sections = []
    for protocol in (PAPER, STRICT):
        title = f"{protocol.capitalize()} protocol"
        section = Section(title, _HINTS.get((layout.key, protocol), ""))
        for i, column in enumerate(layout.columns):
            metric = column.metrics[protocol]
            row = Row(
                column.title,
                [_cell(metrics, name, protocol, metric, column.percent) for name in systems],
            )
            if protocol == PAPER:
                row.paper = [column.format(layout.printed[name][i]) for name in paper_rows]
                row.notes = [
                    number
                    for number, note in enumerate(layout.notes, start=1)
                    if note.column == column.title
                ]
            section.rows.append(row)
        if protocol == STRICT:
            for metric, label in _FURTHER.get(layout.key, ()):
                if _measured(metrics, STRICT, metric):
                    cells = [_cell(metrics, name, STRICT, metric) for name in systems]
                    section.rows.append(Row(label, cells))
        sections.append(section)
    notes = [note.text for note in layout.notes]
    return Table(layout.title, layout.key, sections, paper_rows, notes)


def parse_table(metrics: Metrics, systems: Sequence[str]) -> Table:
    """Shares of answers whose boxes could not be read, by category where score gives it."""
    section = Section("All answers", "by kind of failure, where any occurred")
    # The two protocols read the same answers; strict first, as in the headline.
    protocol = STRICT if _measured(metrics, STRICT, _PARSE_FAILURES) else PAPER
    for name in [_PARSE_FAILURES, *_below(metrics, protocol, _PARSE_FAILURES)]:
        label = name.removeprefix(_PARSE_FAILURES).strip("/").replace("_", " ")
        cells = [_cell(metrics, system, protocol, name) for system in systems]
        if not label or any(cell.value for cell in cells):
            section.rows.append(Row(label or "Any failure", cells))
    return Table("Parse failures", "parse_failures", [section])


def breakdowns(metrics: Metrics, systems: Sequence[str], seen: Iterable[str]) -> list[Breakdown]:
    """Strict figures by class and by question type: `by_class/<metric>/<class>` and so on.

    Rows are in the order of the files. `seen` are the classes the base had been trained on; those
    rows are marked.
    """
    marked = set(seen)
    found = []
    for key, heading, lines in _BREAKDOWNS:
        columns = [line for line in lines if _below(metrics, STRICT, f"{key}/{line[0]}")]
        names = dict.fromkeys(
            full.removeprefix(f"{key}/{metric}/")
            for metric, _, _ in columns
            for full in _below(metrics, STRICT, f"{key}/{metric}")
        )
        rows = [
            BreakdownRow(
                name,
                [
                    [_cell(metrics, system, STRICT, f"{key}/{metric}/{name}") for system in systems]
                    for metric, _, _ in columns
                ],
                key == "by_class" and name in marked,
            )
            for name in names
        ]
        if rows:
            found.append(Breakdown(key, heading, [(c[1], c[2]) for c in columns], rows))
    return found


def all_metrics(metrics: Metrics, systems: Sequence[str]) -> Table:
    """Every figure of metrics.json."""
    sections = []
    for protocol in dict.fromkeys(p for system in systems for p in metrics[system]):
        names = dict.fromkeys(n for s in systems for n in metrics[s].get(protocol, {}))
        rows = [Row(n, [_cell(metrics, system, protocol, n) for system in systems]) for n in names]
        sections.append(Section(f"{protocol.capitalize()} protocol", "", rows))
    return Table("All metrics", "all_metrics", sections)


def headlines(metrics: Metrics, systems: Sequence[str]) -> list[tuple[str, str, list[Cell]]]:
    """(label, definition, a cell per system) of the strict figures that matter most."""
    return [
        (label, hint, [_cell(metrics, system, STRICT, metric) for system in systems])
        for metric, label, hint in (_F1, _BALANCED, _MIOU, _FAILURES)
        if _measured(metrics, STRICT, metric)
    ]


def format_number(value: float | None, percent: bool = False) -> str:
    """Three decimals, one of a percentage; a dash where undefined: no one reads it as a zero."""
    if value is None:
        return UNDEFINED
    return f"{100 * value:.1f}" if percent else f"{value:,.3f}"


def common_n(cells: Iterable[Cell]) -> str:
    """The systems' n: one number where they agree."""
    found = dict.fromkeys(f"{cell.n:,}" for cell in cells if cell.n is not None)
    return " / ".join(found) or UNDEFINED


def _measured(metrics: Metrics, protocol: str, metric: str) -> bool:
    return any(metric in protocols.get(protocol, {}) for protocols in metrics.values())


def _below(metrics: Metrics, protocol: str, metric: str) -> list[str]:
    """Full names of what the metric is broken down into."""
    return list(
        dict.fromkeys(
            name
            for protocols in metrics.values()
            for name in protocols.get(protocol, {})
            if name.startswith(f"{metric}/")
        )
    )


def _cell(metrics: Metrics, system: str, protocol: str, metric: str, percent: bool = False) -> Cell:
    entry = metrics.get(system, {}).get(protocol, {}).get(metric)
    if entry is None:
        return Cell()
    low, high = _finite(entry.get("ci_low")), _finite(entry.get("ci_high"))
    return Cell(_finite(entry["value"]), low, high, entry.get("n"), percent)


def _finite(value: Any) -> float | None:
    """None for null and NaN alike: an undefined figure is a dash."""
    return None if value is None or not math.isfinite(value) else value
