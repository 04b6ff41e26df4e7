"""Runs a command: `cxrjax COMMAND ...` is `python -m cxrjax.COMMAND ...`.

cxrjax train --config=configs/vindr_lora.py:demo --workdir=runs/demo/train
cxrjax COMMAND --help
"""

import ast
import difflib
import runpy
import sys
from pathlib import Path

from cxrjax import cli
from cxrjax.errors import UserError

_PACKAGE = Path(__file__).parent
_PLACES = ("commands/*.py", "tools/*.py", "papers/*/commands/*.py")
# `import` is a keyword of Python, so that no module can have its name.
_NAMES = {"import_annotations": "import"}


def commands() -> dict[str, Path]:
    """Returns the file of every command by its name; folders of tools and papers are not in it."""
    files = [file for place in _PLACES for file in _PACKAGE.glob(place)]
    found = {file.stem: file for file in files if not file.stem.startswith("_")}
    return dict(sorted((_NAMES.get(name, name), file) for name, file in found.items()))


def module_of(name: str) -> str:
    """Returns the module that `python -m` starts for a command."""
    place = commands()[name].relative_to(_PACKAGE).with_suffix("").parts
    return ".".join(("cxrjax", *(place[1:] if place[0] == "commands" else place)))


def describe() -> str:
    """Returns a list of the commands with the first line of each; imports nothing."""
    lines = []
    for name, file in commands().items():
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        lines.append(f"  {name:24}{text.partition(chr(10))[0]}")
    return "\n".join((__doc__ or "", "Commands:", *lines))


def main() -> None:
    """Runs the command that the first argument names."""
    cli.run(_run)


def _run() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    known = commands()
    if name in ("--help", "-h"):
        print(describe())
        return
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        rest = f"the nearest is {near[0]}" if near else "`cxrjax --help` lists them"
        raise UserError(f"{name}: no such command; {rest}")
    del sys.argv[1]
    # Under the module's own name, so that worker processes find it too.
    runpy.run_module(module_of(name), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
