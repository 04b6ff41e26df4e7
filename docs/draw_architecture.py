"""Draws docs/architecture.svg: the floors of the package, entry points on top.

    python docs/draw_architecture.py

`FLOORS` is what tests/test_architecture.py holds the imports against.
"""

from html import escape
from pathlib import Path
from typing import NamedTuple

SVG = Path(__file__).parent / "architecture.svg"
ENTRY_POINTS = "entry points"


class Floor(NamedTuple):
    """Parts of `cxrjax` that import downward only, and among each other without a circle.

    Attributes:
        parts: folders (with a slash) and modules.
        holds: what lives there.
    """

    name: str
    parts: tuple[str, ...]
    holds: str


# From the top. A part may import those of its own floor and of the floors below.
FLOORS = (
    Floor(
        ENTRY_POINTS,
        (
            *("build.py", "check_records.py", "train.py", "predict.py", "score.py"),
            *("evaluate.py", "report.py", "convert.py", "review.py", "plan.py", "tools/"),
        ),
        "flags in, one call, exit code out",
    ),
    Floor(
        "results",
        ("benchmarks/", "runners/", "planning/", "demo/"),
        "tables; whoever answers; what a pod will take; a page to try models in",
    ),
    Floor("measures", ("metrics/", "judges/"), "pure functions of arrays and strings; verdicts"),
    Floor("runs", ("training/", "decoding/"), "loss, step, loop, checkpoints; sampling, grammar"),
    Floor("model", ("models/", "devices/"), "tower, decoder, LoRA, weights in and out; meshes"),
    Floor("examples", ("input_pipeline/",), "prompts, tokens, batches, mixtures"),
    Floor("records", ("datasets/",), "native formats, construction, quality control"),
    Floor(
        "borders",
        ("codecs/", "images/", "language_model/"),
        "boxes as text, pixels and geometry, requests to a service",
    ),
    Floor(
        "ground",
        (
            *("boxes.py", "records.py", "errors.py", "cli.py", "json_file.py"),
            *("keyed_lines.py", "negation.py", "provenance.py", "hardware.py"),
            *("distributed.py", "roll_call.py"),
        ),
        "the box, the record, how commands end",
    ),
)

_WIDTH, _HEIGHT, _LEFT, _GAP = 960, 66, 118, 12


def draw() -> str:
    """The drawing."""
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


if __name__ == "__main__":
    SVG.write_text(draw(), encoding="utf-8")
    print(SVG)
