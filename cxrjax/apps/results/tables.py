"""The figures of the page: headlines, comparisons, all of metrics.json, and tables.md as HTML.

What score wrote, laid out; nothing is computed here. Of tables.md is read what this package writes,
as for LaTeX (text_tables.py): headings, tables of `grid`, paragraphs, footnotes "[1] ...", `code`
and *small cells*.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup, escape

from cxrjax.errors import UserError
from cxrjax.evaluation.overlays import BASE, TUNED
from cxrjax.evaluation.tables import FEW
from cxrjax.evaluation.text_tables import UNDEFINED, split_rows
from cxrjax.untrusted.names import shown_value

# {system: {protocol: {metric: {value, ci_low, ci_high, n}}}}: the content of metrics.json.
Metrics = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]

# A corrected p below this is set in bold.
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Cell:
    """One figure as printed. `value` is None where it is undefined or was not measured."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None

    @property
    def text(self) -> str:
        return format_number(self.value)

    @property
    def interval(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return ""
        return f"{format_number(self.low)} to {format_number(self.high)}"

    @property
    def few(self) -> bool:
        return self.n is not None and self.n < FEW

    @property
    def exact(self) -> str:
        """The unrounded value, for the tooltip."""
        value = "undefined or not measured" if self.value is None else repr(self.value)
        return value if self.n is None else f"{value}, n = {self.n:,}"


@dataclass(frozen=True)
class ComparisonRow:
    """One line of comparisons.json; p as text."""

    metric: str
    difference: Cell
    p: str
    p_holm: str
    significant: bool


@dataclass(frozen=True)
class Compared:
    """Two systems under one protocol; the plots of its lines go from -reach to reach."""

    system: str
    other: str
    protocol: str
    reach: float
    lines: list[ComparisonRow]


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
                        where = f"{system}/{protocol}/{metric}/{name}"[:200]
                        raise UserError(
                            f"metrics: {where} is {shown_value(number)}: expected a number"
                        )


def ordered_systems(metrics: Metrics) -> list[str]:
    """The systems with `base` and `tuned` first."""
    return sorted(metrics, key=lambda name: (name != BASE, name != TUNED))


def headlines(
    chosen: Iterable[Sequence[str]], metrics: Metrics, systems: Sequence[str]
) -> list[tuple[str, str, list[Cell]]]:
    """(label, definition, a cell per system) of what was measured of `Layout.headlines`."""
    found = []
    for protocol, metric, label, hint in chosen:
        cells = [_cell(metrics, system, protocol, metric) for system in systems]
        if any(cell.value is not None for cell in cells):
            found.append((label, hint, cells))
    return found


def all_metrics(
    metrics: Metrics, systems: Sequence[str]
) -> list[tuple[str, list[tuple[str, list[Cell]]]]]:
    """Protocol -> every figure of metrics.json: (metric, a cell per system)."""
    found = []
    for protocol in dict.fromkeys(p for system in systems for p in metrics[system]):
        names = dict.fromkeys(n for s in systems for n in metrics[s].get(protocol, {}))
        rows = [(name, [_cell(metrics, s, protocol, name) for s in systems]) for name in names]
        found.append((protocol, rows))
    return found


def comparisons(rows: Iterable[Mapping[str, Any]]) -> list[Compared]:
    """Content of comparisons.json, by pair and protocol.

    Raises:
        UserError: a line is not as score writes it.
    """
    grouped: dict[tuple[str, str, str], list[ComparisonRow]] = {}
    for number, row in enumerate(rows, start=1):
        try:
            difference = Cell(
                _finite(row["difference"]),
                _finite(row["ci_low"]),
                _finite(row["ci_high"]),
                None if row["n"] is None else int(row["n"]),
            )
            p, corrected = _finite(row["p"]), _finite(row["p_holm"])
            key = str(row["system"]), str(row["compared_to"]), str(row["protocol"])
            line = ComparisonRow(
                str(row["metric"]),
                difference,
                UNDEFINED if p is None else f"{p:.3g}",
                UNDEFINED if corrected is None else f"{corrected:.3g}",
                corrected is not None and corrected < SIGNIFICANT,
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            raise UserError(
                f"comparisons: entry {number}: expected system, compared_to, protocol, metric, "
                "difference, ci_low, ci_high, p, p_holm and n, as score writes them"
            ) from None
        grouped.setdefault(key, []).append(line)
    return [
        Compared(*key, reach=_reach(line.difference for line in lines), lines=lines)
        for key, lines in grouped.items()
    ]


def _reach(cells: Iterable[Cell]) -> float:
    ends = [abs(v) for c in cells for v in (c.value, c.low, c.high) if v is not None]
    return max(ends, default=0.0) or 1.0


def format_number(value: float | None) -> str:
    """Three decimals; a dash where undefined: no one reads it as a zero."""
    return UNDEFINED if value is None else f"{value:,.3f}"


def _cell(metrics: Metrics, system: str, protocol: str, metric: str) -> Cell:
    entry = metrics.get(system, {}).get(protocol, {}).get(metric)
    if entry is None:
        return Cell()
    low, high = _finite(entry.get("ci_low")), _finite(entry.get("ci_high"))
    return Cell(_finite(entry["value"]), low, high, entry.get("n"))


def _finite(value: Any) -> float | None:
    """None for null and NaN alike: an undefined figure is a dash."""
    return None if value is None or not math.isfinite(value) else value


# A figure: value, interval, n, footnote marks.
_FIGURE = re.compile(
    r"(?P<value>[↑↓=] ?[\d.,]+|[+−-]?[\d.,]+(?: %)?|–)(?: \((?P<interval>[^()]+ to [^()]+)\))?"
    r"(?:; (?P<n>n = [\d,]+))?(?P<notes>(?: \[\d+\])*)"
)
_NOTE = re.compile(r"\[(\d+)\] (.*)")
_SMALL = re.compile(r"\*([^*]+)\*")
_BOLD = re.compile(r"\*\*(.+)\*\*")
_CODE = re.compile(r"`([^`]*)`")
# The second cell of a line of a paper's table, and what it says of the line.
_KINDS = {"as printed": "printed", "difference": "difference"}


@dataclass
class Section:
    """One heading with HTML of its tables, paragraphs and footnotes, ready for the page.

    `broken_down`: its tables are by class, type and the like.
    """

    title: str
    key: str
    broken_down: bool = False
    parts: list[Markup] = field(default_factory=list)
    notes: list[Markup] = field(default_factory=list)


def sections(
    markdown: str, key: str, systems: Sequence[str] = (), marked: Collection[str] = ()
) -> list[Section]:
    """The sections of tables.md; the first, without a title, is what stands above all headings.

    Args:
        key: what the sections' own keys begin with.
        systems: names that headings of columns may end in, as in "F1, tuned"; such columns are
            grouped.
        marked: rows of broken-down tables that get a mark: classes that the base had learnt.
    """
    found = [Section("", key)]
    table: list[str] = []
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        here = found[-1]
        if table:
            here.parts.append(_table(split_rows(table), here, systems, marked))
            table = []
        if line.startswith("## "):
            title = line.removeprefix("## ")
            by = re.search(r"\b[Bb]y\b", title) is not None
            found.append(Section(title, f"{key}-{len(found)}", by))
        elif note := _NOTE.fullmatch(line):
            here.notes.append(_inline(note[2]))
        elif line and not line.startswith("# "):
            here.parts.append(Markup("<p>{}</p>").format(_inline(line)))
    return found


def _table(
    lines: Sequence[Sequence[str]],
    section: Section,
    systems: Sequence[str],
    marked: Collection[str],
) -> Markup:
    header, *body = lines
    # The paper has some tables with models as columns; its protocols are a line then.
    protocols = body[0] if body and body[0][0] == "Protocol" else [""] * len(header)
    rows = []
    for line in body:
        kind = "" if len(line) < 2 else _KINDS.get(line[1], "")
        cells = [_row_heading(line[0], section.broken_down and line[0] in marked)]
        cells += [
            _html_cell(text, _KINDS.get(protocol, ""))
            for text, protocol in zip(line[1:], protocols[1:], strict=True)
        ]
        rows.append(
            Markup('<tr class="{}">{}</tr>').format(kind, Markup("").join(cells))
            if kind
            else Markup("<tr>{}</tr>").format(Markup("").join(cells))
        )
    return Markup(
        '<div class="scroll" role="region" aria-labelledby="{}" tabindex="0">'
        '<table class="paper-table">'
        "<thead>{}</thead><tbody>{}</tbody></table></div>"
    ).format(section.key, _head(header, systems), Markup("").join(rows))


def _head(header: Sequence[str], systems: Sequence[str]) -> Markup:
    """One line, or two where every column is a metric of a system."""
    parted = [_part(title, systems) for title in header[1:]]
    if len(header) < 3 or any(part is None for part in parted):
        cells = [Markup('<th scope="col">{}</th>').format(_inline(title)) for title in header]
        return Markup("<tr>{}</tr>").format(Markup("").join(cells))
    pairs = [part for part in parted if part is not None]
    metrics = list(dict.fromkeys(metric for metric, _ in pairs))
    top = [
        Markup('<th scope="colgroup" colspan="{}" class="group">{}</th>').format(
            sum(name == metric for name, _ in pairs), _inline(metric)
        )
        for metric in metrics
    ]
    below = [
        Markup('<th scope="col"{}>{}</th>').format(
            Markup(' class="edge"') if place == 0 or pairs[place - 1][0] != metric else "", system
        )
        for place, (metric, system) in enumerate(pairs)
    ]
    corner = Markup('<th scope="col" rowspan="2">{}</th>').format(_inline(header[0]))
    return Markup("<tr>{}{}</tr><tr>{}</tr>").format(
        corner, Markup("").join(top), Markup("").join(below)
    )


def _part(title: str, systems: Sequence[str]) -> tuple[str, str] | None:
    fitting = [name for name in systems if title.endswith(f", {name}")]
    if not fitting:
        return None
    system = max(fitting, key=len)
    return title.removesuffix(f", {system}"), system


def _row_heading(text: str, marked: bool) -> Markup:
    badge = Markup(' <span class="badge">seen by base</span>') if marked else ""
    return Markup('<th scope="row">{}{}</th>').format(_inline(text), badge)


def _html_cell(text: str, kind: str) -> Markup:
    classes = [kind] if kind else []
    if small := _SMALL.fullmatch(text):
        classes.append("few")
        text = small[1]
    if (figure := _FIGURE.fullmatch(text)) is None:
        return Markup("<td{}>{}</td>").format(_class(classes), _inline(text))
    value = figure["value"]
    parts = [
        Markup('<span class="none" title="undefined">{}</span>').format(value)
        if value == UNDEFINED
        else Markup("<b>{}</b>").format(value)
    ]
    for mark in re.findall(r"\d+", figure["notes"]):
        parts.append(Markup("<sup>{}</sup>").format(mark))
    if figure["interval"]:
        parts.append(Markup(" <small>{}</small>").format(figure["interval"]))
    if figure["n"]:
        parts.append(Markup(" <small>{}</small>").format(figure["n"]))
    return Markup("<td{}>{}</td>").format(_class(["num", *classes]), Markup("").join(parts))


def _class(names: Sequence[str]) -> Markup:
    return Markup(' class="{}"').format(" ".join(names)) if names else Markup("")


def _inline(text: str) -> Markup:
    """Escaped, with `code` set as code; a line in **stars** as a whole is bold."""
    if bold := _BOLD.fullmatch(text):
        return Markup("<strong>{}</strong>").format(_inline(bold[1]))
    pieces = _CODE.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if place % 2 else escape(piece)
        for place, piece in enumerate(pieces)
    )
