"""Writes the definitions of all figures into docs/protocols.md, from the lines of tables.toml.

python docs/figure_tables.py
"""

from collections.abc import Iterable
from pathlib import Path

from cxrjax.evaluation.figure_lines import FigureLine, shared_lines
from cxrjax.evaluation.layout import load_layout
from cxrjax.files import read_packaged

PAGE = Path(__file__).parent / "protocols.md"
START = "<!-- from here on written by docs/figure_tables.py -->\n"
PAPERS = Path(__file__).parents[1] / "cxrjax/papers"
_ARROWS = {"higher": "↑", "lower": "↓", "none": ""}


def _table(lines: Iterable[FigureLine]) -> str:
    rows = ["| figure | is | better | |", "|---|---|---|---|"]
    for line in lines:
        value = f"`{line.value}`".replace("|", "\\|") if line.value else ""
        rows.append(f"| `{line.name}` | {value} | {_ARROWS[line.direction]} | {line.sentence} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """Returns the page with its generated part renewed."""
    shared = read_packaged("cxrjax.evaluation", "figures.toml")
    known = {line for section in shared for line in shared_lines(section)}
    parts = [PAGE.read_text(encoding="utf-8").partition(START)[0] + START]
    for path in sorted(PAPERS.glob("*/tables.toml")):
        layout = load_layout(f"cxrjax.papers.{path.parent.name}")
        own = [line for line in layout.lines if line not in known]
        parts.append(f"### {layout.title.removesuffix(' results')}\n\n{_table(own)}")
    for section in shared:
        title = section.replace("_", " ").capitalize()
        parts.append(f"### {title} (of several benchmarks)\n\n{_table(shared_lines(section))}")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
