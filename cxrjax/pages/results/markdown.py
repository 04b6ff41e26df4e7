"""The benchmark's tables (tables.md) as HTML for the page.

What is read is the Markdown that this package writes, as for LaTeX (text_tables.py): headings,
tables of `grid`, paragraphs, footnotes "[1] ...", `code` and *small cells*.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from cxrjax.scoring.text_tables import UNDEFINED, split_rows

# A figure: value, interval, n, footnote marks.
_FIGURE = re.compile(
    r"(?P<value>[↑↓=] ?[\d.,]+|[+−-]?[\d.,]+(?: %)?|–)(?: \((?P<interval>[^()]+ to [^()]+)\))?"
    r"(?:; (?P<n>n = [\d,]+))?(?P<notes>(?: \[\d+\])*)"
)
_NOTE = re.compile(r"\[(\d+)\] (.*)")
_SMALL = re.compile(r"\*([^*]+)\*")
_CODE = re.compile(r"`([^`]*)`")
# The second cell of a line of a paper's table, and what it says of the line.
_KINDS = {"as printed": "printed", "difference": "difference"}


@dataclass
class Section:
    """One heading with what stands below it, ready for the page.

    Attributes:
        broken_down: whether its tables are by class, type and the like.
        parts: HTML of its tables and paragraphs, in order.
        notes: footnotes of its tables.
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
            _cell(text, _KINDS.get(protocol, ""))
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


def _cell(text: str, kind: str) -> Markup:
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
    """Escaped, with `code` set as code."""
    pieces = _CODE.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if place % 2 else escape(piece)
        for place, piece in enumerate(pieces)
    )
