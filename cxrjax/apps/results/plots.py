"""The page's figures, drawn by matplotlib as SVG in the colours of the page, light and dark alike.

The same values give the same bytes. Where matplotlib writes a colour, the page's style sheet
decides which: `var(--soft)` and the like; colours of systems are mixed to be read on both.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES = (4.6, 2.8)
_PLACE = (0.16, 0.19, 0.81, 0.77)  # of the axes: left, bottom, width, height
_FONT = 10
_LARGEST = 1e100  # of values that are drawn: no axis reaches further
# Colours that nobody else would choose -> what the page has in their place.
_INK, _GRID, _ACCENT, _CARD = "#010203", "#010204", "#010205", "#010206"
_VARIABLES = {_INK: "--soft", _GRID: "--line", _ACCENT: "--accent", _CARD: "--card"}


class Look(NamedTuple):
    """Style of a line: '#rrggbb', and lengths of dashes and gaps (empty: no gaps)."""

    colour: str
    dashes: tuple[float, ...] = ()


ACCENT = Look(_ACCENT)


@dataclass(frozen=True)
class Plot:
    """A figure of the page, with its values as CSV; `links`: its points lead somewhere."""

    name: str
    title: str
    summary: str
    csv: str
    svg: Markup
    links: bool = False


class Line(NamedTuple):
    """Points by x; a NaN is a gap. Without a label it is not in the legend."""

    label: str
    points: Sequence[tuple[float, float]]
    look: Look = ACCENT
    faint: bool = False
    dotted: bool = False


def plot_lines(
    name: str,
    lines: Iterable[Line],
    x_label: str,
    y_label: str,
    *,
    diagonal: bool = False,
    shares: bool = False,
    whole: bool = False,
) -> Markup:
    """SVG of some lines.

    Args:
        diagonal: where a perfect system's line would be.
        shares: the axis upwards goes from 0 to 1.
        whole: steps, of which there are no fractions.
    """

    def draw(axes: "Axes") -> None:
        if diagonal:
            axes.plot([0, 1], [0, 1], color=_INK, linewidth=1, dashes=(2, 3))
        for line in lines:
            axes.plot(
                [x for x, _ in line.points],
                [y if abs(y) < _LARGEST else math.nan for _, y in line.points],
                color=line.look.colour,
                dashes=line.look.dashes or (None, None),
                linewidth=1 if line.faint else 1.7,
                alpha=0.35 if line.faint else 1,
                marker="o" if line.dotted else "",
                markersize=3.5,
                label=_plain(line.label) or None,
            )
        if shares:
            axes.set_ylim(-0.02, 1.02)
        if whole:
            axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]

    return _svg(name, draw, x_label, y_label)


def _svg(name: str, draw: Any, x_label: str, y_label: str) -> Markup:
    # Here: other commands of this package do not draw.
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: Any = {  # typed by literals of its keys
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": _FONT,
        "axes.edgecolor": _GRID,
        "axes.labelcolor": _INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": _GRID,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "legend.labelcolor": _INK,
        "legend.facecolor": _CARD,
        "legend.edgecolor": _GRID,
        "legend.framealpha": 0.8,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=_INCHES, dpi=72)
        FigureCanvasSVG(figure)
        axes = figure.add_axes(_PLACE)
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        axes.tick_params(length=0)
        draw(axes)
        axes.set_xlabel(_plain(x_label))
        axes.set_ylabel(_plain(y_label))
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="best", fontsize=_FONT - 0.5)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return Markup(_for_the_page(out.getvalue()))


def _plain(text: str) -> str:
    """A name as it stands: dollars would make it a formula, and an underscore in front hides it."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _for_the_page(svg: str) -> str:
    """The <svg> element alone: its colours and letters are the page's, its ids are its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    # It would hold for the whole page.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[a-zA-Z0-9_.]*_\d+"', "", svg)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    svg = f"<svg {view[0]}" + svg[svg.index(">") :]
    svg = re.sub(r"(<text style=\"[^\"]*?) font-family: [^;\"]*;", r"\1", svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = svg.replace("xlink:href=", "href=")
    # A hundredth of a pixel is as good as a millionth.
    svg = re.sub(r"(?<=[ \"])-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", svg)
    svg = re.sub(
        r"(?<=fill: |roke: )#[0-9a-f]{6}",
        lambda found: (
            f"var({_VARIABLES[found[0]]})"
            if found[0] in _VARIABLES
            else f"color-mix(in oklab, {found[0]} 72%, var(--depth))"
        ),
        svg,
    )
    return re.sub(r"\n\s*", "\n", svg).strip()


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
