"""Draws docs/architecture.svg, the floors of the package, and prints their sizes.

    python docs/draw_architecture.py

tests/test_architecture.py checks imports against `FLOORS`.
"""

import ast
from html import escape
from pathlib import Path
from typing import NamedTuple

SVG = Path(__file__).parent / "architecture.svg"
PACKAGE = Path(__file__).resolve().parents[1] / "cxrjax"
ENTRY_POINTS = "entry points"


class Floor(NamedTuple):
    """Parts of `cxrjax` that import downward only, and among each other without a circle.

    Attributes:
        parts: folders (with a slash) and modules.
        holds: a few words on what lives there.
    """

    name: str
    parts: tuple[str, ...]
    holds: str


# From the top. A part may import those of its own floor and of the floors below. Above all stand
# the modules that `python -m` starts, of five lines each.
FLOORS = (
    Floor(ENTRY_POINTS, ("commands/", "tools/"), "flags in, one call, exit code out"),
    Floor("API", ("api/",), "load, ask, score and train from Python"),
    Floor("apps", ("apps/",), "results, review, demo page, server, annotations, planner"),
    Floor(
        "data",
        ("papers/", "simulation/"),
        "one folder a data set; rendered phantoms and simulated lesions",
    ),
    Floor(
        "evaluation",
        ("evaluation/",),
        "systems that answer; the protocol of a benchmark: predictions in, tables out",
    ),
    Floor("judges", ("language_model/",), "a language-model service and its judges"),
    Floor("runs", ("training/", "decoding/"), "loss, step, loop, checkpoints; sampling, grammar"),
    Floor("model", ("models/",), "tower, decoder, LoRA, weights in and out"),
    Floor("examples", ("input_pipeline/",), "prompts, tokens, batches, mixtures"),
    Floor(
        "measures",
        ("metrics/", "radiology_text/"),
        "pure functions of arrays and strings; a reader of report language",
    ),
    Floor("records", ("records_io/",), "reading, checking, splitting and writing records"),
    Floor(
        "formats",
        ("codecs/", "images/", "distributed/"),
        "boxes as text, pixels and geometry, hosts and meshes",
    ),
    Floor(
        "ground",
        (
            "untrusted/",
            "paths/",
            "boxes.py",
            "paper.py",
            "records.py",
            "settings.py",
            "errors.py",
            "cli.py",
            "choices.py",
            "flags.py",
            "family_tables.py",
            "files.py",
            "lock.py",
            "lease.py",
            "progress.py",
        ),
        "untrusted input, the box, the record, how commands end",
    ),
)

_WIDTH, _HEIGHT, _LEFT, _GAP = 960, 66, 118, 12


def draw() -> str:
    """Returns the drawing as SVG."""
    rows = []
    for place, floor in enumerate(FLOORS):
        top = 8 + place * (_HEIGHT + _GAP)
        rows.append(
            f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH - _LEFT - 8}" height="{_HEIGHT}" rx="6"/>'
            f'<text class="floor" x="{_LEFT - 10}" y="{top + 39}">{escape(floor.name)}</text>'
            f'<text class="parts" x="{_LEFT + 14}" y="{top + 28}">'
            f"{escape('   '.join(floor.parts))}</text>"
            f'<text class="holds" x="{_LEFT + 14}" y="{top + 51}">{escape(floor.holds)}</text>'
        )
        if place + 1 < len(FLOORS):
            x, y = _LEFT + (_WIDTH - _LEFT) // 2, top + _HEIGHT
            rows.append(f'<path d="M{x} {y}v{_GAP - 3}m-4 -4l4 4l4 -4"/>')
    height = 8 + len(FLOORS) * (_HEIGHT + _GAP)
    style = (
        "svg{background:#fff;font-family:system-ui,sans-serif}rect{fill:#eef3f8;stroke:#33608c}"
        "path{fill:none;stroke:#33608c}.floor{font-size:14px;text-anchor:end;fill:#33608c}"
        ".parts{font:13px ui-monospace,monospace;fill:#14191f}"
        ".holds{font-size:13px;fill:#4a5663}text{white-space:pre}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-label="Floors of the package, entry points on top; imports point down">\n'
        f'<style>{style}</style>\n<rect width="{_WIDTH}" height="{height}" '
        'style="fill:#fff;stroke:none"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def reached(module: str) -> set[Path]:
    """Returns the files of cxrjax that a module imports, directly or not, also within functions.

    Data sets, which are found by entry points, are not among them.
    """
    found: set[Path] = set()
    waiting = {module}
    while waiting:
        path = PACKAGE.parent / waiting.pop().replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if path in found or not path.is_file():
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cxrjax."):
                waiting |= {str(node.module), *(f"{node.module}.{a.name}" for a in node.names)}
            elif isinstance(node, ast.ImportFrom) and node.module == "cxrjax":
                waiting |= {f"cxrjax.{alias.name}" for alias in node.names}
    return found


def sizes() -> dict[str, tuple[int, int]]:
    """Returns Python files and lines of each folder of the package, of its base and of all."""
    found: dict[str, tuple[int, int]] = {}
    for path in PACKAGE.rglob("*.py"):
        top, lines = path.relative_to(PACKAGE).parts[0], _lines(path)
        for name in ("base" if top.endswith(".py") else top, "package"):
            files, total = found.get(name, (0, 0))
            found[name] = (files + 1, total + lines)
    return found


if __name__ == "__main__":
    SVG.write_text(draw(), encoding="utf-8")
    print(SVG)
    for name, (count, lines) in sorted(sizes().items(), key=lambda item: item[1]):
        print(f"{name}: {count} files, {lines:,} lines")
    for command in ("train", "predict", "score", "serve"):
        files = reached(f"cxrjax.commands.{command}")
        print(f"{command} reaches {len(files)} modules, {sum(map(_lines, files)):,} lines")
