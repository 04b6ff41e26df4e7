"""The figures of the page: headlines, comparisons, all of metrics.json, and tables.md as HTML.

What score wrote, laid out; nothing is computed here. Of tables.md is read what this package writes,
as for LaTeX (text_tables.py): headings, tables of `grid`, paragraphs, footnotes "[1] ...", `code`
and *small cells*.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pydantic
from markupsafe import Markup, escape

from cxrjax.errors import UserError
from cxrjax.evaluation.overlays import BASE, TUNED
from cxrjax.evaluation.tables import FEW
from cxrjax.evaluation.text_tables import UNDEFINED, split_rows, template
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


class ScoreFile(pydantic.BaseModel):
    """Part of a file that score wrote, each value of its own type."""

    model_config = pydantic.ConfigDict(strict=True)


class _Entry(ScoreFile):
    """A figure of metrics.json."""

    value: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int | None = None


class _Line(ScoreFile):
    """A line of comparisons.json."""

    system: str
    compared_to: str
    protocol: str
    metric: str
    difference: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_holm: float | None
    n: int | None


_METRICS = pydantic.TypeAdapter(dict[str, dict[str, dict[str, _Entry]]])
_LINES = pydantic.TypeAdapter(list[_Line])


def as_written(kind: pydantic.TypeAdapter[Any], content: Any, file: str, layout: str) -> Any:
    """The content of a file that score wrote.

    Raises:
        UserError: names the first place that is something else.
    """
    try:
        return kind.validate_python(content)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = "/".join(map(str, first["loc"]))[:200]
        found = "missing" if first["type"] == "missing" else shown_value(first["input"])
        raise UserError(
            f"{file}: {place or 'all of it'} is {found}; expected {layout}, as score writes"
        ) from None


def check_metrics(metrics: Any) -> None:
    """Refuses what is not `{system: {protocol: {metric: {value, ...}}}}`.

    Raises:
        UserError: names the first place that is something else.
    """
    layout = "{system: {protocol: {metric: {value, ci_low, ci_high, n}}}}"
    if not as_written(_METRICS, metrics, "metrics.json", layout):
        raise UserError(f"metrics.json: no systems; expected {layout}, as score writes")


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
    layout = f"a list of objects with {', '.join(_Line.model_fields)}"
    for row in as_written(_LINES, list(rows), "comparisons.json", layout):
        low, high = _finite(row.ci_low), _finite(row.ci_high)
        p, corrected = _finite(row.p), _finite(row.p_holm)
        line = ComparisonRow(
            row.metric,
            Cell(_finite(row.difference), low, high, row.n),
            UNDEFINED if p is None else f"{p:.3g}",
            UNDEFINED if corrected is None else f"{corrected:.3g}",
            corrected is not None and corrected < SIGNIFICANT,
        )
        grouped.setdefault((row.system, row.compared_to, row.protocol), []).append(line)
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
    """A table as HTML; two lines of headings where every column is a metric of a system."""
    header, *body = lines
    # The paper has some tables with models as columns; its protocols are a line then.
    protocols = body[0] if body and body[0][0] == "Protocol" else [""] * len(header)
    parted = [_part(title, systems) for title in header[1:]]
    pairs = [part for part in parted if part is not None]
    if len(header) < 3 or len(pairs) < len(parted):
        pairs = []
    rows = []
    for name, *cells in body:
        kinds = (_KINDS.get(protocol, "") for protocol in protocols[1:])
        read = [_cell_of(text, kind) for text, kind in zip(cells, kinds, strict=True)]
        is_marked = section.broken_down and name in marked
        rows.append((_KINDS.get(cells[0], "") if cells else "", name, is_marked, read))
    html = template(str(__package__), "tables.html.j2", inline=_inline).render(
        key=section.key,
        header=header,
        pairs=pairs,
        metrics=Counter(metric for metric, _ in pairs),
        rows=rows,
        undefined_sign=UNDEFINED,
    )
    return Markup(html)


def _part(title: str, systems: Sequence[str]) -> tuple[str, str] | None:
    fitting = [name for name in systems if title.endswith(f", {name}")]
    if not fitting:
        return None
    system = max(fitting, key=len)
    return title.removesuffix(f", {system}"), system


def _cell_of(text: str, kind: str) -> dict[str, Any]:
    """A cell's parts: classes, and its figure with footnote marks, else its text."""
    small = _SMALL.fullmatch(text)
    text = small[1] if small else text
    figure = _FIGURE.fullmatch(text)
    names = ("num" if figure else "", kind, "few" if small else "")
    return {
        "classes": list(filter(None, names)),
        "text": text,
        "figure": figure and figure.groupdict(),
        "marks": re.findall(r"\d+", figure["notes"]) if figure else [],
    }


def _inline(text: str) -> Markup:
    """Escaped, with `code` set as code; a line in **stars** as a whole is bold."""
    if bold := _BOLD.fullmatch(text):
        return Markup("<strong>{}</strong>").format(_inline(bold[1]))
    pieces = _CODE.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if place % 2 else escape(piece)
        for place, piece in enumerate(pieces)
    )
