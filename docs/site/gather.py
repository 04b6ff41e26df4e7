"""Gathers the pages of the site: `python docs/site/gather.py --out=DIR`.

The pages are the Markdown files of the repository where they stand (README.md is the first), the
notebooks, and three that are made here: the help of every command, the Python API, and modules
below it, both by their docstrings.
What a page links to besides comes along as a file, so that a link works in the repository and on
the site.
"""

import argparse
import enum
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cxrjax
from cxrjax.__main__ import commands

ROOT = Path(__file__).parents[2]
PAGES = (
    *("*.md", "docs/**/*.md", "data/**/*.md", "launch/*.md"),
    *("tests/**/README.md", "bench/**/README.md"),
)
_LINK = re.compile(r"(?<!`)\]\(([^)#?\s]+)[^)]*\)")
# Modules that other people's code calls, the data's way from the file to the table.
PUBLIC = (
    "records",
    "boxes",
    "codecs",
    "images.geometry",
    "input_pipeline.loader",
    "models.vlm",
    "training.config",
    "training.loop",
    "decoding.predictor",
    "metrics.detection",
    "metrics.localization",
    "metrics.bootstrap",
    "evaluation.benchmark",
    "radiology_text.reader",
    "radiology_text.answers",
)

# Function -> where its options are explained.
OPTIONS = {"load": "api.model.Decoding", "import_boxes": "apps.annotations.options.BoxesOptions"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    pages = [
        path for pattern in PAGES for path in ROOT.glob(pattern) if "downloads" not in path.parts
    ]
    for page in [*pages, *ROOT.glob("notebooks/*.ipynb")]:
        _copy(page, out)
    for page in pages:
        for link in _LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            if target.is_file() and target.is_relative_to(ROOT) and target not in pages:
                _copy(target, out)
    (out / "README.md").rename(out / "index.md")
    reference = out / "docs/reference"
    reference.mkdir()
    (reference / "commands.md").write_text(_commands_page(), encoding="utf-8")
    (reference / "api.md").write_text(_api_page(), encoding="utf-8")
    modules = (f"## cxrjax.{name}\n\n::: cxrjax.{name}\n" for name in PUBLIC)
    text = "# Modules\n\nBelow the API. Shapes are jaxtyping's.\n\n" + "\n".join(modules)
    (reference / "modules.md").write_text(text, encoding="utf-8")
    for name in ("iframe-worker.js", "accessible.css"):
        shutil.copy(Path(__file__).with_name(name), out)


def _copy(path: Path, out: Path) -> None:
    copy = out / path.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, copy)


def _commands_page() -> str:
    parts = ["# Commands\n\nWhat each prints with `--help`.\n"]
    for name in commands():
        said = subprocess.run(
            [sys.executable, "-m", "cxrjax", name, "--help"],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "100"},
            cwd=ROOT,
        )
        parts.append(f"## {name}\n\n```text\n{said.stdout.rstrip()}\n```\n")
    return "\n".join(parts)


def _api_page() -> str:
    """Functions, classes and enumerations of `cxrjax`, by where they are defined."""
    offered = {name: getattr(cxrjax, name) for name in sorted(cxrjax.__all__) if name[0] != "_"}
    kinds = {name: _kind(value) for name, value in offered.items()}
    parts = ["# Python API\n\n[A page of examples](../python.md) shows how these go together.\n"]
    for kind in ("Functions", "Classes", "Enumerations"):
        parts.append(f"## {kind}\n")
        for name in (name for name in kinds if kinds[name] == kind):
            parts.append(f"### cxrjax.{name}\n\n::: {offered[name].__module__}.{name}\n")
            if kind == "Enumerations":
                parts.append(f"Names: {', '.join(f'`{one.value}`' for one in offered[name])}.\n")
    parts.append("## Options\n")
    for name, place in OPTIONS.items():
        parts.append(f"### of cxrjax.{name}\n\n::: cxrjax.{place}\n")
    return "\n".join(parts)


def _kind(offered: object) -> str:
    if not isinstance(offered, type):
        return "Functions"
    return "Enumerations" if issubclass(offered, enum.Enum) else "Classes"


if __name__ == "__main__":
    main()
