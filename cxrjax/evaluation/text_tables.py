"""Tables as text: Markdown, and LaTeX from it; and the HTML templates of pages.

tables.tex is made from tables.md, so that the two cannot differ. What is read is the Markdown that
this package writes: headings, tables of `grid`, paragraphs, `code` and *small cells*.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cxrjax.files import read_packaged

if TYPE_CHECKING:
    import jinja2


UNDEFINED = "–"

_HEADINGS = {"# ": "section", "## ": "subsection", "### ": "subsubsection"}
# Small cells stand wholly in italics; a star inside a text is no mark.
_SMALL = re.compile(r"\*([^*]+)\*")
_CELLS = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"`([^`]*)`")
_PREAMBLE = """% Packages: booktabs, longtable, xcolor. Cells in grey are of fewer than 10.
% With Vietnamese or other scripts in it: XeLaTeX or LuaLaTeX.
"""


def grid(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first line is its header."""
    # A name of others may hold what ends a line.
    header, *body = [
        "| " + " | ".join(" ".join(cell.splitlines()).replace("|", r"\|") for cell in line) + " |"
        for line in lines
    ]
    rule = "|" + "---|" * len(lines[0])
    return "\n".join([header, rule, *body]) + "\n"


def to_latex(markdown: str) -> str:
    """Converts headings, tables and paragraphs to LaTeX for `\\input`; small cells are grey."""
    parts = [_PREAMBLE]
    table: list[str] = []
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        if table:
            parts.append(_latex_table(table))
            table = []
        for mark, command in _HEADINGS.items():
            if line.startswith(mark):
                parts.append(f"\\{command}*{{{_escape(line.removeprefix(mark))}}}")
                break
        else:
            parts.append(_escape(line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip() + "\n"


def split_rows(lines: Sequence[str]) -> list[list[str]]:
    """The cells of a table of `grid`, its header first, without the rule below it."""
    header, _, *body = [
        [cell.strip().replace(r"\|", "|") for cell in _CELLS.split(line)[1:-1]] for line in lines
    ]
    return [header, *body]


def _latex_table(lines: Sequence[str]) -> str:
    header, *body = split_rows(lines)
    rows = [" & ".join(_cell(cell) for cell in line) + r" \\" for line in [header, *body]]
    columns = "l" * len(header)
    return "\n".join(
        [
            rf"\begin{{longtable}}{{{columns}}}",
            r"\toprule",
            rows[0],
            r"\midrule",
            r"\endhead",
            *rows[1:],
            r"\bottomrule",
            r"\end{longtable}",
        ]
    )


def _cell(text: str) -> str:
    if small := _SMALL.fullmatch(text):
        return rf"\textcolor{{gray}}{{{_escape(small[1])}}}"
    # A row that opens with a bracket would be read as an option of the line break before it.
    return "{" + _escape(text) + "}" if text.startswith("[") else _escape(text)


def _escape(text: str) -> str:
    special = read_packaged(str(__package__), "words.toml")["latex"]
    pieces = _CODE.split(text)
    escaped = ["".join(special.get(c, c) for c in piece) for piece in pieces]
    return "".join(
        rf"\texttt{{{piece}}}" if place % 2 else piece for place, piece in enumerate(escaped)
    )


def template(package: str, name: str, **filters: Any) -> "jinja2.Template":
    """The template `name` of a package's folder: text is escaped, a missing name is an error."""
    import jinja2  # here: not every table needs it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(name)
